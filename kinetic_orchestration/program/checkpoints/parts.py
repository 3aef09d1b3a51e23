"""One host's file of a checkpoint: arrays in the safetensors format, so that it can be read without this package.

Eight bytes with the length of a header of JSON, the header, and the bytes of all tensors one after another
(https://huggingface.co/docs/safetensors). Facts that the format cannot express (the position of a piece in its array,
plain values, unknown dtypes) are JSON in the header's metadata.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from math import prod
from typing import Any

from kinetic_orchestration.program.checkpoints.commits import Leaf, Part
from kinetic_orchestration.program.checkpoints.trees import HostPart, Start
from kinetic_orchestration.protocol.content.digest import CHUNK, THREADS, Hasher, of_bytes, of_chunk, of_leaves
from kinetic_orchestration.protocol.system import kernel
from kinetic_orchestration.protocol.system.parallel import side_by_side

# The names of dtypes in safetensors; other dtypes are stored as bytes, with their names in the metadata.
TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
READERS = 4  # chunks that are read at a time
NEAR, APART = 64 << 10, 16  # shorter runs that are not further apart are read together, with the bytes between them


class Torn(ValueError):
    """Not the bytes that were written."""


def write(path: str, state: HostPart, *, durable: bool = False) -> Part:
    """Write the file, whole, with its digest; a full disk raises its OSError. `durable`: sync it to the disk, before a
    commit for which older ones are removed."""
    header = _header(state)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _reserve(file, len(header) + sum(len(piece.data) for piece in state.pieces))
        with Hasher(file, _begin_to_store) if durable else Hasher(file) as hasher:
            hasher.update(header)
            for piece in state.pieces:
                hasher.update(piece.data)
            digest = hasher.digest()
            several = len(hasher.leaves) > 1  # the digest of a part of one chunk is that of the chunk
            told = Part(hasher.size, digest, CHUNK if several else 0, b"".join(hasher.leaves) if several else b"")
        if durable:
            os.fsync(file)
        return told
    finally:
        os.close(file)


def _begin_to_store(file: int, offset: int, size: int) -> None:
    """Start writing the last data to the disk while the next is written: little is left to wait for at the end. fsync
    reports errors.
    """
    if (begin := kernel.call("sync_file_range")) is not None:
        begin(file, offset, size, _WRITE)


_WRITE = 2  # SYNC_FILE_RANGE_WRITE, of <linux/fs.h>


def _reserve(file: int, size: int) -> None:
    """Allocate the blocks before the bytes: a full disk is detected immediately, and writing is faster. posix_fallocate
    is no alternative: it writes to every block if a file system does not support it.
    """
    if (reserve := kernel.call("fallocate")) is not None and reserve(file, 0, 0, size):
        import ctypes

        if (number := ctypes.get_errno()) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(number, os.strerror(number))


def _header(state: HostPart) -> bytes:
    tensors: dict[str, Any] = {}
    pieces, at = [], 0
    for number, piece in enumerate(state.pieces):
        dtype = _dtype(piece.path, state)
        size = len(piece.data)
        known = TYPES.get(dtype)
        name = piece.path if piece.path not in tensors else f"{piece.path}@{number}"
        tensors[name] = {
            "dtype": known or "U8",
            "shape": list(piece.shape) if known else [size],
            "data_offsets": [at, at + size],
        }
        pieces.append([piece.path, dtype, list(piece.start), list(piece.shape), at])
        at += size
    kinetic = json.dumps({"pieces": pieces, "plain": state.plain}, separators=(",", ":"))
    text = json.dumps({"__metadata__": {"format": "kinetic", "kinetic": kinetic}, **tensors}, separators=(",", ":"))
    data = text.encode()
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def _dtype(path: str, state: HostPart) -> str:
    dtype = state.dtypes[path]
    return "uint32" if dtype.startswith("key<") else dtype


Pieces = Mapping[str, list[tuple[str, Start, tuple[int, ...], int]]]
"""By the path of an array, what a part has of it: dtype, beginning and shape of each rectangle, and its offset."""

HEADER = 8  # bytes of a header's length, before it
HEAD = 64 << 10  # bytes that most headers fit into


def pieces_of(read: Callable[[int, int], bytes]) -> Pieces:
    """Return what a part says it has, by its header alone: it is not believed yet.

    Args:
        read: Returns the part's bytes from a beginning to an end.

    Raises:
        Torn: It has no such header.
    """
    head = read(0, HEAD)
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 + length and len(head) == HEAD:
        head += read(HEAD, 8 + length)
    return _of_header(head[8 : 8 + length], 8 + length)[0]


def _of_header(header: bytes, begin: int) -> tuple[Pieces, Mapping[str, Any]]:
    """The pieces of a header, and the plain values in it. `begin`: the offset of the bytes behind it."""
    try:
        kinetic = json.loads(json.loads(header)["__metadata__"]["kinetic"])
        pieces: dict[str, list[tuple[str, Start, tuple[int, ...], int]]] = {}
        for path, dtype, start, shape, at in kinetic["pieces"]:
            pieces.setdefault(path, []).append((dtype, tuple(start), tuple(shape), begin + at))
        return pieces, kinetic["plain"]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise Torn(f"it is not a part of a checkpoint ({type(error).__name__})") from None


def count_in(pieces: Pieces, path: str, start: Start, shape: tuple[int, ...]) -> int:
    """Return the number of elements of a rectangle of an array that the pieces have."""
    return sum(
        prod(max(0, min(a + h, s + w) - max(a, s)) for a, h, s, w in zip(at, extent, start, shape, strict=True))
        for _, at, extent, _ in pieces.get(path, ())
    )


Fetch = Callable[[int, int], bytes]
"""Returns the bytes of a part from a beginning to an end."""


class Opened:
    """A part of which a file is here, believed by its digest. After that it is read and not mapped, so that what is
    restored is not in memory twice."""

    _is_filled = False  # while it is read

    def __init__(self, path: str, told: Part) -> None:
        self._file = os.open(path, (os.O_RDWR if self._is_filled else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            size = os.fstat(self._file).st_size
            if size != told.size:
                raise Torn(f"it has {size} bytes, and {told.size} were written")
            if size < HEADER:
                raise Torn("it is too short for a part of a checkpoint")
            self._believe(told)
            length = int.from_bytes(os.pread(self._file, HEADER, 0), "little")
            if length > size - HEADER:
                raise Torn("its header is longer than it is")
            self._need([range(HEADER + length)])
            self._pieces, self.plain = _of_header(os.pread(self._file, length, HEADER), HEADER + length)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._file)

    def _believe(self, told: Part) -> None:
        if _digest(self._file, told.size) != told.digest:
            raise Torn("its digest is not that of what was written")

    def _need(self, spans: Iterable[range]) -> None:
        """Have these bytes here, and believed."""

    def look(self, path: str, start: Start, shape: tuple[int, ...]) -> int:
        """The number of elements of a rectangle of an array that this part has. They are here and believed then."""
        for dtype, at, has, offset in self._pieces.get(path, ()):
            self._need(_spans(offset, at, has, start, shape, width(dtype)))
        return self.has(path, start, shape)

    def has(self, path: str, start: Start, shape: tuple[int, ...]) -> int:
        """The number of elements of a rectangle of an array that `copy` would find in this part."""
        return count_in(self._pieces, path, start, shape)

    def has_nan(self) -> bool:
        """Return True if the state holds NaN. Infinite values may be intended."""
        if any(isinstance(value, float) and math.isnan(value) for value in self.plain.values()):
            return True
        numpy: Any = sys.modules.get("numpy")
        for dtype, _, shape, offset in (piece for pieces in self._pieces.values() for piece in pieces if numpy):
            width = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}.get(dtype, 0)
            for at in range(0, prod(shape) * width, CHUNK):
                data = os.pread(self._file, min(CHUNK, prod(shape) * width - at), offset + at)
                if dtype == "bfloat16":  # which numpy has not: all bits of the exponent, and one below them
                    found = (numpy.frombuffer(data, "<u2") & 0x7FFF > 0x7F80).any()
                else:
                    found = numpy.isnan(numpy.frombuffer(data, dtype)).any()
                if found:
                    return True
        return False

    def copy(self, path: str, leaf: Leaf, start: Start, into: memoryview) -> int:
        """Copy what this part has of a rectangle of an array; how many of its elements that were."""
        copied = 0
        item = len(into) // max(1, prod(leaf.shape))
        for _, at, shape, offset in self._pieces.get(path, ()):
            self._need(_spans(offset, at, shape, start, leaf.shape, item))
            copied += _overlap(self._file, offset, at, shape, into, start, leaf.shape, item)
        return copied


class Ranged(Opened):
    """A part of which only the chunks are read, and believed by their digests, that have something of what is asked
    for: those of a file that is here, or such that are fetched into an empty one."""

    def __init__(self, path: str, told: Part, leaves: bytes, fetch: Fetch | None = None) -> None:
        """`fetch`: fills the file, which is the reader's own; without it the file has everything.

        Raises:
            Torn: The digests are not those of the part, or a chunk is not what was written.
        """
        self._fetch = fetch
        self._is_filled = fetch is not None
        self._leaves = _apart(leaves)
        self._chunk = told.chunk
        self._size = told.size
        self._here: set[int] = set()
        self.timed: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext  # around what takes time
        super().__init__(path, told)

    def _believe(self, told: Part) -> None:
        if len(self._leaves) != -(-told.size // told.chunk) or of_leaves(self._leaves) != told.digest:
            raise Torn("the digests of its chunks are not those of what was written")
        self._need([range(HEADER)])

    def _need(self, spans: Iterable[range]) -> None:
        wanted: set[int] = set()
        for span in spans:
            if span.start < 0 or span.stop > self._size:
                raise Torn("its header names bytes beyond its end")
            wanted.update(range(span.start // self._chunk, -(-span.stop // self._chunk)))
        if wanted - self._here:
            with self.timed():
                side_by_side(self._take, sorted(wanted - self._here), READERS, name="kinetic-restore")
            self._here |= wanted

    def _take(self, number: int) -> None:
        begin = number * self._chunk
        end = min(begin + self._chunk, self._size)
        data = os.pread(self._file, end - begin, begin) if self._fetch is None else self._fetch(begin, end)
        if of_chunk(data) != self._leaves[number]:
            raise Torn(f"its bytes from {begin} to {end} are not what was written")
        if self._fetch is not None:
            os.pwrite(self._file, data, begin)


def _apart(leaves: bytes) -> list[bytes]:
    return [leaves[at : at + 32] for at in range(0, len(leaves), 32)]


def digest_of(leaves: bytes) -> str:
    """Return the digest of a part by those of its chunks; "" without any."""
    return of_leaves(_apart(leaves)) if leaves else ""


def width(dtype: str) -> int:
    """Bytes of one element."""
    if dtype.startswith("key<"):
        return 4
    if dtype == "bool":
        return 1
    digits = "".join(letter if letter.isdigit() else " " for letter in dtype).split()
    return max(1, int(digits[0]) // 8) if digits else 1


def _spans(
    offset: int, at: Start, has: tuple[int, ...], start: Start, wants: tuple[int, ...], item: int
) -> Iterator[range]:
    """The bytes of a piece that a rectangle of its array has, as few long runs of them as they lie in."""
    for there, _, run, apart, _, count in _runs(at, has, start, wants, item):
        if apart <= NEAR:  # what lies between them is in the same chunks
            yield range(offset + there, offset + there + (count - 1) * apart + run)
        else:
            yield from (
                range(first, first + run) for first in range(offset + there, offset + there + count * apart, apart)
            )


def digest_of_file(path: str) -> str:
    """Return the digest of a whole file."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        return _digest(file, size) if size else of_bytes(b"")
    finally:
        os.close(file)


def _digest(file: int, size: int) -> str:
    with mmap.mmap(file, size, access=mmap.ACCESS_READ) as memory, memoryview(memory) as view:
        return of_bytes(view)


def _overlap(
    file: int, offset: int, at: Start, has: tuple[int, ...],
    into: memoryview, start: Start, wants: tuple[int, ...], item: int,
) -> int:  # fmt: skip
    """Copy the intersection of two rectangles of one array, both in C order."""
    for there, here, run, apart, gap, count in _runs(at, has, start, wants, item):
        _read_runs(file, offset + there, apart, into, here, gap, run, count)
    return prod(_extent(at, has, start, wants)[1])


def _extent(at: Start, has: tuple[int, ...], start: Start, wants: tuple[int, ...]) -> tuple[list[int], list[int]]:
    low = [max(*pair) for pair in zip(at, start, strict=True)]
    high = [min(a + h, s + w) for a, h, s, w in zip(at, has, start, wants, strict=True)]
    return low, [max(0, to - since) for since, to in zip(low, high, strict=True)]


def _runs(
    at: Start, has: tuple[int, ...], start: Start, wants: tuple[int, ...], item: int
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """The runs of bytes in which two rectangles overlap: the first one's place in either, their length, how far apart
    they are in either, and how many they are."""
    low, extent = _extent(at, has, start, wants)
    if not all(extent):
        return
    # The innermost dimensions that both have whole form one run; those of the next one are equally far apart.
    run, outer = item, len(extent)
    while outer:
        run *= extent[outer - 1]
        outer -= 1
        if not extent[outer] == has[outer] == wants[outer]:
            break
    count = extent[outer - 1] if outer else 1
    apart, gap = (item * prod(shape[outer:]) for shape in (has, wants))
    for row in _indices(extent[: max(0, outer - 1)]):
        there = here = 0
        for axis in range(len(extent)):
            step = row[axis] if axis < len(row) else 0
            there = there * has[axis] + low[axis] - at[axis] + step
            here = here * wants[axis] + low[axis] - start[axis] + step
        yield there * item, here * item, run, apart, gap, count


def _indices(extent: list[int]) -> Iterator[tuple[int, ...]]:
    if not extent:
        yield ()
        return
    for first in range(extent[0]):
        for rest in _indices(extent[1:]):
            yield (first, *rest)


def _read_runs(file: int, at: int, apart: int, into: memoryview, here: int, gap: int, run: int, count: int) -> None:
    """`count` runs of bytes, each so far `apart` from the next in the file, and by such a `gap` in memory."""
    if run >= NEAR or apart > APART * run or count == 1:
        for number in range(count):
            _read(file, into[here + number * gap :][:run], at + number * apart)
        return
    together = max(1, CHUNK // apart)
    for first in range(0, count, together):
        few = min(together, count - first)
        found = bytearray((few - 1) * apart + run)
        _read(file, memoryview(found), at + first * apart)
        for number in range(few):
            to = here + (first + number) * gap
            into[to : to + run] = found[number * apart : number * apart + run]


def _read(file: int, into: memoryview, at: int) -> None:
    """Large pieces side by side: what takes the time is memory, of which each page is touched for the first time."""
    if len(into) < 2 * CHUNK:
        _read_one(file, into, at)
        return

    def read(begin: int) -> None:
        _read_one(file, into[begin : begin + CHUNK], at + begin)

    side_by_side(read, range(0, len(into), CHUNK), THREADS, name="kinetic-restore")


def _read_one(file: int, into: memoryview, at: int) -> None:
    while len(into):
        count = os.preadv(file, [into], at)
        if not count:
            raise Torn("it became shorter while it was read")
        into, at = into[count:], at + count
