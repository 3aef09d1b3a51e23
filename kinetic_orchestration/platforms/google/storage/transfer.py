"""Objects too big for one request: uploads in parallel parts that are composed, downloads in parallel ranges.

It owns the objects under `.parts/` during an upload, and the incomplete file during a download.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from kinetic_orchestration.errors import Corrupt, StoreError
from kinetic_orchestration.platforms.google.storage.requests import Requests
from kinetic_orchestration.platforms.store import too_large
from kinetic_orchestration.protocol.records.base import reason_of
from kinetic_orchestration.protocol.system.parallel import side_by_side

PARTS: Final = ".parts/"
WORKERS: Final = 8

_COMPOSED: Final = 32  # sources of one compose request, by the API's rule
_TRIES: Final = 3
_T = TypeVar("_T")
_R = TypeVar("_R")


class _Changed(Exception):
    """The object is another one than when its first piece came, or was torn on the way."""


def send(
    requests: Requests, name: str, source: int | bytes, size: int, generation: int | None, part: int
) -> int | None:
    """Write `size` bytes of an open file, or those bytes, under a condition as `Requests.write` does."""
    folder = f"{PARTS}{os.urandom(16).hex()}"
    parts = [f"{folder}/{n:06d}" for n in range(-(-size // part))]
    made = list(parts)

    def send_part(n: int) -> None:
        start, stop = n * part, min(size, n * part + part)
        data = source[start:stop] if isinstance(source, bytes) else os.pread(source, stop - start, start)
        if len(data) != stop - start:
            raise StoreError(f"Cannot write {name} (store {requests.url}): the file became shorter meanwhile.")
        requests.write(parts[n], data, None, {})

    try:
        in_parallel(send_part, range(len(parts)))
        while len(parts) > _COMPOSED:
            groups = [parts[n : n + _COMPOSED] for n in range(0, len(parts), _COMPOSED)]
            joined = [f"{folder}/{len(made) + n:06d}" for n in range(len(groups))]
            made += joined
            in_parallel(lambda pair: requests.compose(pair[0], pair[1], None), list(zip(joined, groups, strict=True)))
            parts = joined
        return requests.compose(name, parts, generation)
    finally:
        in_parallel(requests.delete_once, made)  # a sweep removes what remains


def fetch(requests: Requests, name: str, path: str, part: int, most: int) -> None:
    """Write the object to the file `path`, whole or not at all; not at all if it has more than `most` bytes."""
    temporary = f"{path}.{os.urandom(4).hex()}.part"
    try:
        for left in reversed(range(_TRIES)):
            with contextlib.suppress(_Changed), open(temporary, "w+b") as file:  # noqa: PTH123
                _fetch(requests, name, path, file.fileno(), part, most, last=not left)
                os.rename(temporary, path)
                return
        raise StoreError(f"Cannot read {name} (store {requests.url}): it was overwritten again and again meanwhile.")
    except OSError as error:
        reason = "its folder is not there" if isinstance(error, FileNotFoundError) else reason_of(error)
        raise StoreError(f"Cannot copy {name} to {path} (store {requests.url}): {reason}.") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def in_parallel(act: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Do all, a few at a time; the first failure is raised, and what had not begun is not begun."""
    return side_by_side(act, items, WORKERS, name="gcs")


def _fetch(requests: Requests, name: str, path: str, file: int, part: int, most: int, *, last: bool) -> None:
    first = requests.get(name, 0, part)
    if first is None:
        raise StoreError(f"Cannot read {name} (store {requests.url}): there is no such object.")
    if first.total > most:
        raise too_large(name, requests.url, most, first.total)
    disk = os.fstatvfs(file)
    free = disk.f_bavail * disk.f_frsize
    if first.total > free:
        raise StoreError(
            f"Cannot copy {name} to {path} (store {requests.url}): it has {first.total / 1e6:.1f} MB, and "
            f"{free / 1e6:.1f} MB are free there. Free some space, or choose a folder on another disk."
        )
    os.pwrite(file, first.data, 0)

    def fetch_piece(start: int) -> None:
        piece = requests.get(name, start, start + part, first.generation)
        if piece is None or len(piece.data) != min(part, first.total - start):
            raise _Changed
        os.pwrite(file, piece.data, start)

    in_parallel(fetch_piece, range(part, first.total, part))
    if not _matches(file, first.crc32c):
        if last:
            raise Corrupt(f"{name} (store {requests.url}) does not arrive as it was sent: its checksum differs.")
        raise _Changed


def _matches(file: int, crc32c: str) -> bool:
    """Return True if a file has that checksum, or if computing it would take minutes, without the fast library."""
    import google_crc32c

    if not crc32c or google_crc32c.implementation != "c":
        return True
    value = at = 0
    while block := os.pread(file, 1 << 20, at):
        value = google_crc32c.extend(value, block)
        at += len(block)
    return base64.b64encode(value.to_bytes(4, "big")).decode() == crc32c
