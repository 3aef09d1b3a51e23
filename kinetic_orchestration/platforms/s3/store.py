"""The store on S3-compatible storage: the hosts' records, with what only clients call and error messages for users.

It owns the check, once per bucket and server, that conditional writes are honoured, on which all agreement rests. How
requests are made and objects kept is `host.machine.s3`'s, so client and hosts share one implementation. It does not
know the objects.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kinetic_orchestration.errors import Corrupt, Denied, StoreError, Unreachable, UsageError
from kinetic_orchestration.host.machine.bootstrap import Reply
from kinetic_orchestration.host.machine.s3 import refusals, requests
from kinetic_orchestration.host.machine.s3.credentials import Unavailable
from kinetic_orchestration.host.machine.s3.records import (
    COPIED,
    NOTE,
    PART,
    SCHEME,
    Note,
    S3Records,
    field_of,
    number_of,
    uploads_of,
)
from kinetic_orchestration.host.machine.s3.requests import NOTHING, Body
from kinetic_orchestration.host.machine.s3.signature import encoded
from kinetic_orchestration.platforms.shared import owner_stamp
from kinetic_orchestration.platforms.store import too_large
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Entry, Record, RecordsError, check_name
from kinetic_orchestration.protocol.system.parallel import REQUESTS, side_by_side

STAMP_LASTS: Final = 600.0  # seconds for which a stamp that was read is not read again
CLOCK_AGE: Final = 60.0  # seconds after which the server's time is asked for again

_stamped: dict[tuple[int, str], float] = {}  # (process, address) → when its stamp was read


class S3Store(S3Records):
    """A `Store` under `s3://bucket/prefix/deployment`."""

    trusted = False
    metered = True
    folder = None
    parallel = REQUESTS

    def __init__(self, url: str, deployment: str) -> None:
        super().__init__(url)
        self.deployment = deployment
        self.address = f"{self.requests.place.endpoint}/{url}"
        self.caller: object = self.requests.chain

    def bell(self) -> None:
        return None

    def read_all(self, names: Sequence[str]) -> list[Record | None]:
        return side_by_side(self.read, names, REQUESTS, name="kinetic-reads")

    def find(self, name: str) -> Entry | None:
        facts = self._facts(name)
        return None if facts is None else Entry(name, facts.size, number_of(facts.etag), facts.updated)

    def list(self, prefix: str, *, last: str = "") -> Iterator[Entry]:
        return (entry for entry in super().list(prefix) if not last or entry.name.endswith(f"/{last}"))

    def renew(self, name: str) -> bool:
        facts = self._facts(name)
        if facts is None:
            return False
        key = self._key(name)
        note = facts.note or Note(os.urandom(8).hex(), 0, 0)
        source = {
            "x-amz-copy-source": encoded(f"/{self.requests.place.bucket}/{key}", path=True),
            "x-amz-copy-source-if-match": f'"{facts.etag}"',
        }
        size = facts.size + note.tail
        if size > COPIED:
            step = max(COPIED // 5, PART)

            def part(number: int) -> tuple[Body, dict[str, str]]:
                start = (number - 1) * step
                return NOTHING, {**source, "x-amz-copy-source-range": f"bytes={start}-{min(start + step, size) - 1}"}

            self._assemble(name, note, -(-size // step), part, {})
            return True
        kind = {"x-amz-metadata-directive": "REPLACE", "Content-Type": "application/octet-stream"}
        told = {NOTE: str(note)} if facts.note is not None else {}
        reply, _ = self._ask("PUT", key, headers={**source, **kind, **told}, check=lambda told: field_of(told, "ETag"))
        if reply.status == 412:  # another object has just taken the name
            return True
        if refusals.read(reply).absent:
            return False
        self._check(reply, "write", name)
        return True

    def written_at(self, name: str, generation: int) -> float:
        facts = self._facts(name)
        return facts.updated if facts is not None and number_of(facts.etag) == generation else self.now()

    def ring(self, text: str) -> bool:
        return self.hint(names.ring(text), b"")

    def hint(self, name: str, data: bytes) -> bool:
        with contextlib.suppress(Exception):
            self._put(name, data, {}, patience=0.0)
            return True
        return False

    def now(self) -> float:
        clock = self.requests.clock
        if not clock.fresh(CLOCK_AGE):
            self._facts(names.DEPLOYMENT)
        return clock.now()

    def sweep(self, older_than: float = 86400.0) -> int:
        """Abort uploads by parts that were interrupted; how many they were. MinIO lists none, and does this itself."""
        found = [(key, upload) for key, upload, begun in self._uploads() if self.now() - begun > older_than]
        for key, upload in found:
            self._ask("DELETE", key, [("uploadId", upload)])
        return len(found)

    def download(self, name: str, path: str, *, most: int | None = None) -> None:
        try:
            super().download(name, path, most=most)
        except RecordsError as error:  # of this machine's disk
            raise StoreError(f"{error}") from error

    def _ask(self, method: str, key: str = "", *more: Any, **options: Any) -> tuple[Reply, bool]:
        try:
            return super()._ask(method, key, *more, **options)
        except Unavailable as error:
            raise Denied(f"The store {self.url} cannot be opened. {error}") from error

    def _uploads(self) -> Iterator[tuple[str, str, float]]:
        """Yield the key, the id and the time of all uploads by parts that are not complete."""
        mark: list[tuple[str, str]] = []
        while True:
            query = [("uploads", ""), ("prefix", self._prefix), ("encoding-type", "url"), *mark]
            reply, _ = self._ask("GET", query=query, check=uploads_of)
            self._check(reply, "list", "uploads")
            found, mark = uploads_of(reply)
            yield from found
            if not mark:
                return

    def missing(self, name: str) -> Exception:
        return StoreError(str(super().missing(name)))

    def too_large(self, name: str, limit: int, size: int | None = None) -> Exception:
        return too_large(name, self.url, limit, size)

    def damaged(self, name: str, reason: str) -> Exception:
        return Corrupt(f"Cannot read {name} (store {self.url}): {reason}.")

    def misconfigured(self, number: int, verb: str, name: str, reason: str) -> Exception:
        return self.refusal(number, verb, name, reason)

    def refusal(self, number: int, verb: str, name: str, reason: str) -> Exception:
        happened = f"Cannot {verb} {name} (store {self.url})"
        if number == errno.EAGAIN:
            return Unreachable(f"{happened}: for {requests.PATIENCE:.0f} s it answered {reason!r}. Try again later.")
        return (Denied if number == errno.EACCES else StoreError)(f"{happened}: {reason}.")


def open_s3(address: str, deployment: str) -> S3Store:
    """The store of one deployment under `s3://bucket/prefix`, stamped and checked if it is new."""
    owner_stamp.check_deployment(deployment)
    bucket, _, prefix = address[len(SCHEME) :].rstrip("/").partition("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
        raise UsageError(f"{address!r} names no bucket: write s3://bucket or s3://bucket/prefix.")
    if bucket.endswith("--x-s3"):
        raise UsageError(
            f"{address!r} is a directory bucket, whose listings have no order: give a bucket of the general kind."
        )
    try:
        check_name(prefix or "none")
    except ValueError as error:
        raise UsageError(f"{address!r} cannot be a store: {error}.") from None
    try:
        store = S3Store("/".join(part for part in ("s3:/", bucket, prefix, deployment) if part), deployment)
    except RecordsError as error:
        raise UsageError(str(error)) from None
    known = os.getpid(), store.address
    if time.monotonic() - _stamped.get(known, -STAMP_LASTS) < STAMP_LASTS:
        return store
    place = f"{store.requests.place.endpoint or 'aws'}/{bucket}"
    record = store.read(names.DEPLOYMENT)
    if record is None:
        check_guarantees(store)
        store.create(names.DEPLOYMENT, owner_stamp.new(deployment, store.now(), place))
        record = store.read(names.DEPLOYMENT)
    fields = owner_stamp.settle(store, store.url, record, deployment, place)
    if fields.get("checked") != place:  # it was copied here, or is reached by another address
        check_guarantees(store)
    _stamped[known] = time.monotonic()
    return store


def check_guarantees(store: S3Store) -> None:
    """Raise StoreError unless the server keeps what the records rest on."""
    name = f"probe-{os.urandom(8).hex()}"
    try:
        for promise, check in _PROMISES.items():
            if not check(store, name):
                raise StoreError(
                    f"{store.requests.place.server} cannot keep a store in the bucket {store.requests.place.bucket}: "
                    f"{promise}. Update the server, if a newer version does what AWS S3 does, or name another store "
                    "with KINETIC_STORE."
                )
    finally:
        with contextlib.suppress(StoreError):
            store.delete(name)


def _creates_once(store: S3Store, name: str) -> bool:
    return store.create(name, b"1") is not None and store.create(name, b"2") is None


def _replaces_what_was_read(store: S3Store, name: str) -> bool:
    record = store.read(name)
    if record is None or store.swap(name, b"1", record.generation) in (None, record.generation):
        return False
    return store.swap(name, b"3", record.generation) is None


def _completes_once(store: S3Store, name: str) -> bool:
    note = Note(os.urandom(8).hex(), 0, 0)
    return store._assemble(name, note, 1, lambda _: (Body(b"4"), {}), {"If-None-Match": "*"}) is None


_PROMISES: dict[str, Callable[[S3Store, str], bool]] = {
    "it writes over an object though it is told not to (If-None-Match on PUT)": _creates_once,
    "it does not compare an object with the one that was read (If-Match on PUT)": _replaces_what_was_read,
    "it writes over an object by an upload in parts though it is told not to (If-None-Match)": _completes_once,
}
