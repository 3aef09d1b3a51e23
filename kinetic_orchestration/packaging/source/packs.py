"""Contents: reading each file once, hashing it, and writing many files' bytes into few blobs.

Responsible for files that change while they are read, and for what goes into which pack. Knows nothing of
walks, trees or stores.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, ParamSpec, TypeVar

from kinetic_orchestration.errors import StoreError, UsageError
from kinetic_orchestration.packaging.source.walk import FileToRead, shown, unreadable
from kinetic_orchestration.plan.declare.checks.secret_shapes import HEAD, is_key_file, is_key_name
from kinetic_orchestration.protocol.content import tree
from kinetic_orchestration.protocol.content.file_stamps import Stamp, stamp_of
from kinetic_orchestration.protocol.system.parallel import side_by_side

_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")

# The local store waits for the disk up to this size, so that a power cut cannot leave a torn pack.
PACK_SIZE = 16 << 20

_PIECE = 1 << 20
_WHOLE = 4 << 20  # up to here a file is read at once
_ATTEMPTS = 4


class Content(NamedTuple):
    """A file as it was read. One that looks like a key is neither written nor digested, unless it is allowed."""

    path: str
    stamp: Stamp
    size: int
    sha256: bytes
    secret: bool
    steady: bool  # False: it changed during every attempt
    withheld: bool = False


@dataclass(frozen=True)
class PackFile:
    """A pack on this disk, raw: (sha256, size) of its contents in their order."""

    path: Path
    contents: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.contents)

    def offsets(self) -> Iterator[tuple[str, int, int]]:
        """(sha256, offset, size) of each content."""
        offset = 0
        for sha256, size in self.contents:
            yield sha256, offset, size
            offset += size


def read_all(root: str, files: Sequence[FileToRead], spool: Path | None) -> tuple[list[Content], list[PackFile]]:
    """Read and hash every file that still is there; with `spool`, write packs of their contents into it."""
    total = sum(found.stamp[1] for found in files)
    # At least two groups, one for each thread, if a thread is worthwhile.
    groups = list(by_size(files, lambda found: found.stamp[1], min(PACK_SIZE, max(PACK_SIZE // 4, total // 2 + 1))))
    seen: dict[bytes, object] = {}

    def work(group: Sequence[FileToRead]) -> tuple[list[Content], PackFile | None]:
        if spool is None:
            reader = _Reader(root, None, seen)
            return [content for found in group if (content := reader.read(found))], None
        with _new_file(spool) as file:
            reader = _Reader(root, file, seen)
            contents = [content for found in group if (content := reader.read(found))]
            _writing(file.flush)
            return contents, PackFile(Path(file.name), tuple(reader.written))

    results = side_by_side(work, groups)
    contents = [content for group, _ in results for content in group]
    packs = [pack for _, pack in results if pack is not None and pack.contents]
    return contents, packs


def gather(sources: Sequence[tuple[tree.Entry, Path, int]], spool: Path) -> PackFile:
    """Write one pack of contents from other files: (entry, file, offset). Each must still be the same."""
    with _new_file(spool) as file:
        for entry, path, offset in sources:
            hasher = hashlib.sha256()
            try:
                for piece in pieces_of(path, offset, entry.size):
                    hasher.update(piece)
                    _writing(file.write, piece)
            except OSError:
                pass  # it is gone, and so its digest is another
            if hasher.hexdigest() != entry.sha256:
                raise UsageError(
                    f"{shown(entry.path)} changed while the project was being uploaded. Nothing has run: try "
                    "again, or name it in .kineticignore if it keeps changing"
                )
        _writing(file.flush)
        return PackFile(Path(file.name), tuple((entry.sha256, entry.size) for entry, _, _ in sources))


def pieces_of(path: Path, offset: int, size: int) -> Iterator[bytes]:
    with tree.RawReader(os.fsencode(path)) as reader:
        yield from reader.pieces(offset, size)


def compressed(pack: PackFile) -> Path | None:
    """The pack compressed, as a file next to it; None if that would save less than a tenth."""
    import zlib

    size = pack.size
    sample = b"".join(
        piece for at in range(4) for piece in pieces_of(pack.path, at * (size // 4), min(size // 4 + 1, 64 << 10))
    )
    if len(zlib.compress(sample, 1)) > 0.9 * len(sample):
        return None
    encoder = zlib.compressobj(1)
    with _new_file(pack.path.parent) as file:
        for piece in pieces_of(pack.path, 0, size):
            _writing(file.write, encoder.compress(piece))
        _writing(file.write, encoder.flush())
        _writing(file.flush)
        return Path(file.name)


def pack_of(pack: PackFile, stored: int, encoding: str) -> tree.Pack:
    return tree.Pack(tree.pack_id(encoding, (sha256 for sha256, _ in pack.contents)), pack.size, stored, encoding)


def by_size(items: Iterable[_T], size: Callable[[_T], int], limit: int = PACK_SIZE) -> Iterator[list[_T]]:
    """Consecutive items, as many at a time as stay within `limit`; at least one."""
    group: list[_T] = []
    total = 0
    for item in items:
        weight = size(item)
        if group and total + weight > limit:
            yield group
            group, total = [], 0
        group.append(item)
        total += weight
    if group:
        yield group


class _Reader:
    """Reads one group of files, in one thread. `seen` is shared: equal contents are written once."""

    def __init__(self, root: str, file: BinaryIO | None, seen: dict[bytes, object]) -> None:
        self.root = root
        self.file = file
        self.seen = seen
        self.written: list[tuple[str, int]] = []

    def read(self, found: FileToRead) -> Content | None:
        path, before, followed, allowed = found
        names = (path, os.path.realpath(f"{self.root}/{path}")) if followed else (path,)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if followed else os.O_NOFOLLOW)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                descriptor = os.open(f"{self.root}/{path}", flags)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    return None  # deleted, or made a link, since the walk
                if not allowed and any(map(is_key_name, names)):
                    return Content(path, before, 0, b"", True, True, withheld=True)
                raise unreadable(self.root, path, error) from None
            try:
                if attempt > 1:
                    before = stamp_of(os.fstat(descriptor))
                last = attempt == _ATTEMPTS
                read = self._whole if before[1] <= _WHOLE else self._piecewise
                content = read(names, descriptor, before, last, allowed)
            except OSError as error:
                raise unreadable(self.root, path, error) from None
            finally:
                os.close(descriptor)
            if content is not None:
                return content
        raise AssertionError("the last attempt takes what it gets")

    def _whole(
        self, names: tuple[str, ...], descriptor: int, before: Stamp, last: bool, allowed: bool
    ) -> Content | None:
        data = os.read(descriptor, before[1] + 1)
        after = stamp_of(os.fstat(descriptor))
        size = len(data)
        steady = after == before and size == before[1]
        if not steady and not last:
            return None
        path, secret = names[0], _is_key(names, data, whole=True)
        if secret and not allowed:
            return Content(path, after, size, b"", True, steady, withheld=True)
        sha256 = hashlib.sha256(data).digest()
        if self.file is not None and data and self._is_first(sha256):
            _writing(self.file.write, data)
            self.written.append((sha256.hex(), size))
        return Content(path, after, size, sha256, secret, steady)

    def _piecewise(
        self, names: tuple[str, ...], descriptor: int, before: Stamp, last: bool, allowed: bool
    ) -> Content | None:
        """Read a large file, never whole in memory. A copy that turns out unneeded is cut off again."""
        path, secret = names[0], _is_key(names, os.pread(descriptor, HEAD, 0), whole=False)
        if secret and not allowed:
            return Content(path, before, before[1], b"", True, True, withheld=True)
        start = self.file.tell() if self.file is not None else 0
        hasher, size = hashlib.sha256(), 0
        while data := os.read(descriptor, _PIECE):
            hasher.update(data)
            size += len(data)
            if self.file is not None:
                _writing(self.file.write, data)
            if size > before[1]:
                break  # it grows; what came in since can wait
        after = stamp_of(os.fstat(descriptor))
        sha256 = hasher.digest()
        steady = after == before and size == before[1]
        useful = steady or last
        if self.file is not None:
            if useful and size and self._is_first(sha256):
                self.written.append((sha256.hex(), size))
            else:
                self.file.seek(start)
                _writing(self.file.truncate)
        return Content(path, after, size, sha256, secret, steady) if useful else None

    def _is_first(self, sha256: bytes) -> bool:
        mine = object()
        return self.seen.setdefault(sha256, mine) is mine


def _is_key(names: tuple[str, ...], head: bytes, *, whole: bool) -> bool:
    """Return True if a file is a key by any of its names: a link's own, and that of its target."""
    return any(is_key_file(name, head, whole=whole) for name in names)


def _new_file(spool: Path) -> BinaryIO:
    def make() -> BinaryIO:
        descriptor, path = tempfile.mkstemp(prefix="pack-", dir=spool)
        os.close(descriptor)
        return open(path, "wb", buffering=_PIECE)  # noqa: PTH123

    return _writing(make)


def _writing(call: Callable[_P, _R], *arguments: _P.args, **named: _P.kwargs) -> _R:
    """Make the call; an OSError while packs are written is the disk's fault, not that of the file being read."""
    try:
        return call(*arguments, **named)
    except OSError as error:
        raise StoreError(f"The project's files cannot be gathered for the upload: {error}") from error
