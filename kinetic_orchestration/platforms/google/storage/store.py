"""The store on Google Cloud Storage: its verbs in terms of requests, its address, and its stamp.

No condition is ever put on a delete, nor relied on for more than a single small request: not every server that
speaks this API honours one there. What takes more than one request is named by its content, so that a second
writer does no harm. It does not know what the records mean.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kinetic_orchestration.errors import StoreError, UsageError
from kinetic_orchestration.plan.configuration import settings as settings_module
from kinetic_orchestration.platforms.google.credentials import credentials
from kinetic_orchestration.platforms.google.storage import transfer
from kinetic_orchestration.platforms.google.storage.requests import CLOCK_AGE, SINGLE, Requests, moment
from kinetic_orchestration.platforms.shared import owner_stamp
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Entry, Record, Signal, check_name
from kinetic_orchestration.protocol.records.bucket_metadata import moment_of, signal_metadata, signals_of
from kinetic_orchestration.protocol.system.parallel import REQUESTS

STAMP_LASTS: Final = 600.0  # seconds for which a stamp that was read is not read again

_CHECKED_FIRST: Final = 1 << 20  # above this it is cheaper to check for the object than to send it
_stamped: dict[tuple[int, str], float] = {}  # (process, address) → when its stamp was read


class GcsStore:
    """A `Store` under `gs://bucket/prefix/deployment`."""

    trusted = False
    metered = True
    folder = None
    parallel = REQUESTS
    can_append = False
    part = SINGLE
    """The bytes of one request; objects with more go up and come down in parallel."""

    def __init__(self, url: str, deployment: str, credentials: Any, endpoint: str = "") -> None:
        self.url = url
        self.address = f"{endpoint}/{url}"
        self.caller = credentials
        self.deployment = deployment
        self.requests = Requests(url, credentials, endpoint)

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    def bell(self) -> None:
        return None

    def create(self, name: str, data: bytes | bytearray | memoryview) -> int | None:
        check_name(name)
        return self._write(name, bytes(data), 0)

    def swap(self, name: str, data: bytes | bytearray | memoryview, generation: int) -> int | None:
        check_name(name)
        return self._write(name, bytes(data), generation) if generation > 0 else None

    def put(self, name: str, data: bytes | bytearray | memoryview) -> int:
        check_name(name)
        return self._write(name, bytes(data), None) or 0

    def signal(self, name: str, data: bytes) -> int:
        check_name(name)
        return self.requests.write(name, data, None, signal_metadata(name, data)) or 0

    def signals(self, prefix: str) -> Iterator[Signal]:
        listed = self._listed(prefix, "name,generation,updated,metadata")
        return signals_of(((name, blob.metadata, blob.generation, moment(blob)) for name, blob in listed), self.read)

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Record | None:
        check_name(name)
        piece = self.requests.get(name, start, end, limit=names.limit_of(name) if limit is None else limit)
        return None if piece is None else Record(piece.data, piece.generation, piece.updated)

    def read_all(self, names: Sequence[str]) -> list[Record | None]:
        return transfer.in_parallel(self.read, names)

    def find(self, name: str) -> Entry | None:
        check_name(name)
        blob = self.requests.stat(name)
        return None if blob is None else Entry(name, blob.size, int(blob.generation), moment(blob))

    def renew(self, name: str) -> bool:
        check_name(name)
        return self.requests.rewrite(name)

    def written_at(self, name: str, generation: int) -> float:
        return moment_of(generation, self.now())

    def list(self, prefix: str, *, last: str = "") -> Iterator[Entry]:
        for name, blob in self._listed(prefix, "name,size,generation,updated", last=last):
            yield Entry(name, blob.size, blob.generation, moment(blob))

    def delete(self, name: str) -> bool:
        check_name(name)
        return self.requests.delete(name)

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        check_name(name)
        with open(path, "rb") as file:  # noqa: PTH123 - the caller's own file: what is wrong is told as it is
            size = os.fstat(file.fileno()).st_size
            if size > _CHECKED_FIRST and self.requests.stat(name) is not None:
                won = False
            elif size > self.part:
                won = transfer.send(self.requests, name, file.fileno(), size, 0, self.part) is not None
            else:
                won = self._write(name, file.read(), 0) is not None
        if move:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        return won

    def download(self, name: str, path: str, *, most: int | None = None) -> None:
        check_name(name)
        most = names.file_limit_of(name) if most is None else most
        transfer.fetch(self.requests, name, path, self.part, most)

    def local_path(self, name: str) -> str | None:
        check_name(name)
        return None

    def ring(self, text: str) -> bool:
        return self.hint(names.ring(text), os.urandom(8))

    def hint(self, name: str, data: bytes) -> bool:
        with contextlib.suppress(Exception):
            self.requests.write_once(name, data, signal_metadata(name, data))
            return True
        return False

    def now(self) -> float:
        clock = self.requests.client.clock
        if not clock.fresh(CLOCK_AGE):
            self.requests.stat(names.DEPLOYMENT)
        return clock.now()

    def sweep(self, older_than: float = 86400.0) -> int:
        """Delete the parts that uploads which were killed left behind; how many they were."""
        listed = self._listed(transfer.PARTS, "name,generation,updated", hidden=True)
        old = [name for name, blob in listed if self.now() - moment(blob) > older_than]
        transfer.in_parallel(self.requests.delete, old)
        return len(old)

    def erase(self) -> int:
        """Delete all objects of this deployment, its stamp last; how many they were. For who made it for a while."""
        found = [name for name, _ in self._listed("", "name,generation,updated", hidden=True)]
        transfer.in_parallel(self.requests.delete, [name for name in found if name != names.DEPLOYMENT])
        self.requests.delete(names.DEPLOYMENT)
        _stamped.pop((os.getpid(), self.address), None)
        return len(found)

    def _write(self, name: str, data: bytes, generation: int | None) -> int | None:
        if len(data) > self.part:
            return transfer.send(self.requests, name, data, len(data), generation, self.part)
        return self.requests.write(name, data, generation, {})

    def _listed(self, prefix: str, fields: str, *, hidden: bool = False, last: str = "") -> Iterator[tuple[str, Any]]:
        """List objects. Names with a part that begins with a dot are the store's own and hidden by default."""
        folder = prefix.rpartition("/")[0]
        if folder and not hidden:
            check_name(folder)
        token: str | None = None
        while True:
            page, token = self.requests.page(prefix, fields, token, last)
            for name, blob in page:
                if (hidden or "/." not in f"/{name}") and name.endswith(f"/{last}" if last else ""):
                    yield name, blob
            if not token:
                return


def open_gcs(address: str, deployment: str) -> GcsStore:
    """The store of one deployment under `gs://bucket/prefix`, stamped and checked if it is new."""
    owner_stamp.check_deployment(deployment)
    bucket, _, prefix = address.partition("://")[2].rstrip("/").partition("/")
    if not bucket or not all(letter.isalnum() or letter in "-_." for letter in bucket):
        raise UsageError(f"{address!r} names no bucket: write gs://bucket or gs://bucket/prefix.")
    try:
        check_name(prefix or "none")
    except ValueError as error:
        raise UsageError(f"{address!r} cannot be a store: {error}.") from None
    settings = settings_module.load(store=address, deployment=deployment)
    url = "/".join(part for part in ("gs:/", bucket, prefix, deployment) if part)
    store = GcsStore(url, deployment, credentials(settings), settings.storage_emulator)
    known = os.getpid(), store.address
    if time.monotonic() - _stamped.get(known, -STAMP_LASTS) < STAMP_LASTS:
        return store
    record = store.read(names.DEPLOYMENT)
    if record is None:
        mark = owner_stamp.new(deployment, store.now(), url)
        store.create(names.DEPLOYMENT, mark)
        if store.create(names.DEPLOYMENT, mark) is not None:
            raise StoreError(
                f"{settings.storage_emulator or 'The server'} cannot keep a store: it overwrites an object that is "
                "there, though it was told not to (ifGenerationMatch=0)."
            )
        record = store.read(names.DEPLOYMENT)
    owner_stamp.settle(store, url, record, deployment, url)
    _stamped[known] = time.monotonic()
    return store
