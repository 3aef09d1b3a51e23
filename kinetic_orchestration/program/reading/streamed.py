"""Data that a program reads where they are: the address, with the files that were there when the job was submitted.

Each read names the generation of its object, so another content is an error and never other data. It does not know
formats: a file is opened here, and Grain, pyarrow or any other reader makes records of it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from kinetic_orchestration.errors import DataChanged, UsageError
from kinetic_orchestration.host.prepare.data import held
from kinetic_orchestration.protocol.content import pins
from kinetic_orchestration.protocol.records.base import RecordsError

if TYPE_CHECKING:
    from kinetic_orchestration.host.machine.bucket_records import Bucket

BUFFER = 256 << 10  # bytes that a small read takes along
_REFUSAL = 64 << 10  # bytes of an answer that has no content
_WHOLE = 64 << 20  # bytes of an object that may come as a whole where a range was asked for
_AGAIN = "Submit the job again to train on what is there now, or keep data that jobs read under names of their own"


class StreamedData(str):
    """The address of `Data(…, stream=True)`, as a string, with the files that the job may read there.

    It can be pickled, as the workers of a loader need it, for processes of the same host; elsewhere the pickle is the
    address, a plain string.

    Attributes:
        files: Sizes of the files, by their names below the address, in the order of names.
        digest: Digest of the list of names, sizes, checksums and generations: of one content.
    """

    files: Mapping[str, int]
    digest: str
    _path: str
    _pinned: pins.Pinned

    def __new__(cls, path: str) -> StreamedData:
        """Read the list of files at a path of this host."""
        with Path(path).open("rb") as file:
            data = file.read(pins.LIMIT + 1)
        found = pins.decode(data, os.path.basename(path))
        made = super().__new__(cls, found.address)
        made.files = MappingProxyType({one.name: one.size for one in found.files})
        made.digest = found.digest
        made._path, made._pinned = path, found
        return made

    def __reduce__(self) -> Any:
        return opened, (self._path, str(self))

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading, at any position: each read fetches the bytes that are asked for.

        Args:
            name: One of `files`.

        Raises:
            UsageError: There is none of that name.
            DataChanged: Now or at a later read, it is not the one that was there when the job was submitted.
        """
        file = next((one for one in self._pinned.files if one.name == name), None)
        if file is None:
            raise UsageError(f"{self} has no file {name!r}: it has {', '.join(list(self.files)[:5])}, …")
        if not self.startswith("gs://"):
            return _open_here(held.place_of(self._pinned, file), file)
        raw = _Object(self._bucket(), held.object_of(self._pinned, file), file)
        return cast("BinaryIO", io.BufferedReader(raw, BUFFER))

    def check(self) -> None:
        """Compare all that is at the address with what was there when the job was submitted, for readers that are
        given the address itself. Before the function is called, each host has done so, but for files that are new.

        Raises:
            DataChanged: A file is missing, new or another one.
        """
        if why := held.difference(self._pinned):
            raise DataChanged(f"{why}. {_AGAIN}")

    def _bucket(self) -> Bucket:
        return _bucket_of(str(self), os.getpid())


def opened(path: str, address: str = "") -> str:
    """Return the data whose list of files is at this path: what a pickle of one names. In a result of the function,
    which is read elsewhere, it is the address alone.
    """
    try:
        return StreamedData(path)
    except FileNotFoundError:
        if not address:
            raise
        return address


def _open_here(path: str, file: pins.File) -> BinaryIO:
    try:
        found = Path(path).open("rb")  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise DataChanged(f"{path} is gone. {_AGAIN}") from None
    status = os.fstat(found.fileno())
    if (status.st_size, str(status.st_mtime_ns)) != (file.size, file.generation):
        found.close()
        raise DataChanged(f"{path} was changed after the job was submitted. {_AGAIN}")
    return found


_buckets: dict[tuple[str, int], Bucket] = {}  # by address and process: a forked one must not share connections


def _bucket_of(address: str, process: int) -> Bucket:
    from kinetic_orchestration.host.machine import buckets

    name = address[len("gs://") :].partition("/")[0]
    found = _buckets.get((name, process))
    if found is None:
        found = _buckets.setdefault((name, process), buckets.open_objects(address))
    return found


class _Object(io.RawIOBase):
    """One generation of an object, by ranges."""

    def __init__(self, bucket: Bucket, name: str, file: pins.File) -> None:
        self._bucket, self._object, self._file = bucket, name, file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        if base + offset < 0:
            raise ValueError(f"a file has no position {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        end = min(self._at + len(view), self._file.size)
        if end <= self._at:
            return 0
        data = self._range(self._at, end)
        view[: len(data)] = data
        self._at = end
        return len(data)

    def _range(self, start: int, end: int) -> bytes:
        generation = self._file.generation
        target = self._bucket.object(self._object, alt="media", generation=generation)
        from kinetic_orchestration.host.machine.connections import TooMuch

        most = max(end - start, min(self._file.size, _WHOLE), _REFUSAL)
        try:
            reply, _ = self._bucket.ask("GET", target, headers={"Range": f"bytes={start}-{end - 1}"}, most=most)
        except TooMuch:
            raise self._unpacked() from None
        found = reply.headers.get("X-Goog-Generation", generation)
        if reply.status == 404 or (reply.status in (200, 206, 416) and found != generation):
            raise DataChanged(
                f"{self._object} in {self._bucket} is another object, or gone, since the job was submitted. {_AGAIN}"
            )
        self._bucket.check(reply, "read", self._object)
        if reply.status == 200 and len(reply.data) != self._file.size:
            raise self._unpacked()
        data: bytes = reply.data if reply.status == 206 else reply.data[start:end]
        if len(data) != end - start:
            raise RecordsError(
                5, f"Cannot read {self._object} ({self._bucket}): {len(data)} of {end - start} bytes came."
            )
        return data

    def _unpacked(self) -> RecordsError:
        """Cloud Storage answers so, and knows no ranges (https://docs.cloud.google.com/storage/docs/transcoding)."""
        return RecordsError(
            5,
            f"Cannot read {self._object} ({self._bucket}): it came whole, and with another size than it has there, as "
            "an object with Content-Encoding: gzip does. Remove that from its metadata, and unpack it in the function",
        )
