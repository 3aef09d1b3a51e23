"""A place in a bucket of Cloud Storage. The service copies objects, also between buckets and in several calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.models.places import marks
from kinetic_orchestration.models.places.place import Place, check_file
from kinetic_orchestration.models.values import ModelFile
from kinetic_orchestration.plan.configuration import settings as configuration
from kinetic_orchestration.platforms.google.credentials import credentials
from kinetic_orchestration.platforms.google.storage import transfer
from kinetic_orchestration.platforms.google.storage.requests import SINGLE, Requests

_FIELDS = "name,size,crc32c,md5Hash,generation,updated"


class CloudStorage:
    """A `Place` below a prefix of a bucket."""

    def __init__(self, address: str) -> None:
        settings = configuration.load(store="", deployment="local")  # of any bucket
        self.address = address
        self.store = f"{settings.storage_emulator} gs://"
        self.requests = Requests(address, credentials(settings), settings.storage_emulator)

    def list(self, folder: str) -> Sequence[ModelFile]:
        prefix = f"{folder}/" if folder else ""
        return [_file(name.removeprefix(prefix), blob) for name, blob in self._listed(prefix) if not name.endswith("/")]

    def marked(self, folder: str, files: Sequence[ModelFile]) -> Sequence[ModelFile]:
        del folder
        return files

    def read(self, name: str, limit: int) -> bytes | None:
        check_file(name)
        piece = self.requests.get(name, 0, None, limit=limit)
        return None if piece is None else piece.data

    def create(self, name: str, data: bytes) -> bool:
        check_file(name)
        return self._write(name, data, 0)

    def put(self, name: str, data: bytes) -> None:
        check_file(name)
        self._write(name, data, None)

    def copy(self, source: Place, file: ModelFile, name: str) -> None:
        check_file(name)
        self.requests.copy(cast("CloudStorage", source).requests, file.name, name, int(file.generation))

    def fetch(self, name: str, path: str, size: int) -> None:
        check_file(name)
        transfer.fetch(self.requests, name, path, SINGLE, size)

    def send(self, path: str, name: str) -> None:
        check_file(name)
        with Path(path).open("rb") as file:
            size = Path(path).stat().st_size
            if size > SINGLE:
                transfer.send(self.requests, name, file.fileno(), size, 0, SINGLE)
            else:
                self._write(name, file.read(), 0)

    def marks_of(self, path: str, wanted: Mapping[str, str]) -> Mapping[str, str]:
        return marks.of_file(path, wanted)

    def address_of(self, name: str) -> str:
        return f"{self.address}/{name}" if name else self.address

    def _write(self, name: str, data: bytes, generation: int | None) -> bool:
        if len(data) > SINGLE:
            return transfer.send(self.requests, name, data, len(data), generation, SINGLE) is not None
        return self.requests.write(name, data, generation, {}) is not None

    def _listed(self, prefix: str) -> Iterator[tuple[str, Any]]:
        token: str | None = None
        while True:
            page, token = self.requests.page(prefix, _FIELDS, token)
            yield from page
            if not token:
                return


def _file(name: str, blob: Any) -> ModelFile:
    told = {"crc32c": blob.crc32c, "md5": blob.md5_hash}
    return ModelFile(name, int(blob.size), {mark: value for mark, value in told.items() if value}, str(blob.generation))


def open_cloud_storage(address: str) -> CloudStorage:
    """Open a place at `gs://bucket/folder`. Raises UsageError if the address has no bucket or no folder in it."""
    bucket, _, folder = address.removeprefix("gs://").rstrip("/").partition("/")
    if not bucket or not all(letter.isalnum() or letter in "-_." for letter in bucket) or not folder:
        raise UsageError(f"{address!r} is no folder of a bucket: write gs://bucket/folder")
    check_file(folder)
    return CloudStorage(f"gs://{bucket}/{folder}")
