"""Digests: sha256, taken over chunks side by side when there is much to hash.

A digest of more than one chunk is the sha256 of the chunks' digests, so that two cores hash one gigabyte in
half the time. What is hashed begins with what it is, bytes or digests of chunks (as in RFC 6962, section 2.1): or a
small file that holds the digests of a large one's chunks would have the large one's digest.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from concurrent.futures import Executor, Future

CHUNK = 8 << 20
LEAF = b"kinetic bytes\n"
NODE = b"kinetic chunks\n"
THREADS = 2
# From this size on it is worthwhile to remember a file's digest (`verified`): smaller ones take milliseconds.
LARGE = 16 << 20
# Smaller pieces are gathered into one; larger ones are used in place.
_COPIED = 64 << 10
# What is hashed and then written at a time: it is in the core's own cache in between. With 2 MiB and more Linux takes
# twice as long to write, as it searches for pages of that size.
_STRIDE = 512 << 10
# Chunks under way: bounds the memory of a producer that is faster than two cores can hash.
_PENDING = 4


def of_bytes(data: bytes | bytearray | memoryview) -> str:
    with Hasher() as hasher:
        hasher.update(data)
        return hasher.digest()


def of_chunk(data: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of one chunk."""
    sha = hashlib.sha256(LEAF)
    sha.update(data)
    return sha.digest()


def of_leaves(leaves: list[bytes]) -> str:
    """Return the digest of all bytes by those of their chunks."""
    return leaves[0].hex() if len(leaves) == 1 else hashlib.sha256(NODE + b"".join(leaves)).hexdigest()


def plain_of_file(path: str | os.PathLike[str]) -> str:
    """Return the sha256 of a file's bytes as they are, as tools and wheels are named; its size is no matter."""
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            hasher.update(piece)
    return hasher.hexdigest()


class Hasher:
    """Takes bytes in pieces of any size; hashes whole chunks on two threads next to its caller's.

    With a file descriptor it also writes them there, from its start: each stride is hashed and written by one thread
    while it is in that core's cache. `written` is called for each chunk that was (descriptor, offset, size). A large
    piece is not copied: it must not change before `digest()`.
    """

    def __init__(
        self, descriptor: int | None = None, written: Callable[[int, int, int], object] = lambda *_: None
    ) -> None:
        self.size = 0
        self.leaves: list[bytes] = []  # the digests of the chunks, once the whole one was asked for
        self._descriptor = descriptor
        self._written = written
        self._pieces: list[bytearray | memoryview] = []
        self._gathered = 0
        self._chunks: list[Future[bytes]] = []
        self._pool: Executor | None = None
        self._free: threading.Semaphore | None = None

    def __enter__(self) -> Hasher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        if not view.nbytes:
            return
        view = view.cast("B")
        self.size += len(view)
        while len(view):
            piece = view[: CHUNK - self._gathered]
            view = view[len(piece) :]
            self._gather(piece)
            if self._gathered == CHUNK:
                self._submit()

    def digest(self) -> str:
        """Waits for everything; raises what a write raised."""
        if not self._chunks:
            self.leaves = [self._take(0, self._pieces)]
        else:
            if self._pieces:
                self._submit()
            self.leaves = [chunk.result() for chunk in self._chunks]
            self.close()
        return of_leaves(self.leaves)

    def close(self) -> None:
        """Ends the threads, whether or not the digest was asked for."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _gather(self, piece: memoryview) -> None:
        self._gathered += len(piece)
        if len(piece) >= _COPIED:
            self._pieces.append(piece)
        elif self._pieces and isinstance(self._pieces[-1], bytearray):
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))

    def _threads(self) -> Executor:
        """The threads that hash: an executor's, as chunks come one by one, and `parallel` wants all its items first.

        Raises RuntimeError at the end of the program: it can then neither be imported for the first time nor used.
        """
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="kinetic-digest")
        return self._pool

    def _submit(self) -> None:
        if self._free is None:
            import threading

            self._free = threading.Semaphore(_PENDING)
        self._free.acquire()
        offset = len(self._chunks) * CHUNK
        try:
            chunk = self._threads().submit(self._take, offset, self._pieces)
        except RuntimeError:  # the program is at its end, and no thread can start
            from concurrent.futures import Future

            chunk = Future()
            chunk.set_result(self._take(offset, self._pieces))
        chunk.add_done_callback(self._done)
        self._chunks.append(chunk)
        self._pieces = []
        self._gathered = 0

    def _done(self, _: Future[bytes]) -> None:
        if self._free is not None:
            self._free.release()

    def _take(self, offset: int, pieces: list[bytearray | memoryview]) -> bytes:
        sha = hashlib.sha256(LEAF)
        begin = offset
        for piece in pieces:
            if self._descriptor is None:
                sha.update(piece)
                continue
            view = memoryview(piece)
            for at in range(0, len(view), _STRIDE):
                part = view[at : at + _STRIDE]
                sha.update(part)
                _write(self._descriptor, part, offset)
                offset += len(part)
        if self._descriptor is not None:
            self._written(self._descriptor, begin, offset - begin)
        return sha.digest()


def _write(descriptor: int, view: memoryview, offset: int) -> None:
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]
