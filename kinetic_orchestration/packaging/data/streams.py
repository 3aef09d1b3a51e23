"""Lists the files of data that are read where they are, as they are when the job is submitted."""

from __future__ import annotations

from kinetic_orchestration.errors import DataNotFound, UsageError
from kinetic_orchestration.host.prepare.data import held
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.protocol.content import pins


def find(data: Data, settings: Settings) -> pins.Pinned:
    """Return the files at an address, each with its generation.

    Raises:
        DataNotFound: There are none.
        StoreError: The bucket cannot be listed.
        UsageError: They cannot be listed as a whole.
    """
    files = _objects(data, settings) if data.is_gcs else _files(data.path)
    if not files:
        raise DataNotFound(f"{data!r}: there is nothing at {data.path}")
    try:
        return pins.pinned(data.path, files)
    except pins.Unpinned as error:
        raise UsageError(f"{data!r} is refused: {error}") from None


def _objects(data: Data, settings: Settings) -> list[pins.File]:
    from kinetic_orchestration.platforms.google.credentials import credentials
    from kinetic_orchestration.platforms.google.storage.requests import Requests

    folder, _, name = data.path.rpartition("/")
    bucket = Requests(folder, credentials(settings), settings.storage_emulator)
    if name:
        blob = bucket.stat(name)
        return [] if blob is None else [_object(name, blob)]
    files: list[pins.File] = []
    token: str | None = None
    while True:
        page, token = bucket.page("", "name,size,crc32c,generation,updated", token)
        files += [
            _object(name, blob) for name, blob in page if name and not name.endswith("/")
        ]  # no markers of folders
        if not token or len(files) > pins.MOST_FILES:
            return files


def _object(name: str, blob: object) -> pins.File:
    size, crc32c, generation = (getattr(blob, field) for field in ("size", "crc32c", "generation"))
    return pins.File(name, int(size), f"{pins.CRC32C}{crc32c}" if crc32c else "", str(generation))


def _files(path: str) -> list[pins.File]:
    files: list[pins.File] = []
    for name, found in held.files_of(path):
        files.append(pins.File(name, found.st_size, "", str(found.st_mtime_ns)))
        if len(files) > pins.MOST_FILES:
            break
    return files
