"""Digests: sha256, taken over chunks side by side when there is much to hash.

A digest of more than one chunk is the sha256 of the chunks' digests, so that two cores hash one gigabyte in
half the time.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

CHUNK = 8 << 20


def of_bytes(data: bytes | bytearray | memoryview) -> str:
    hasher = Hasher()
    hasher.update(data)
    return hasher.digest()


def of_file(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return of_stream(file, os.fstat(file.fileno()).st_size)


def of_stream(file: BinaryIO, size: int) -> str:
    if size <= CHUNK:
        return hashlib.sha256(file.read()).hexdigest()
    hasher = Hasher()
    while data := file.read(CHUNK):
        hasher.update(data)
    return hasher.digest()


class Hasher:
    """Takes bytes in any pieces; hashes whole chunks on two threads beside its caller.

    A piece of a chunk's length or more is not copied: it must not change before `digest()`.
    """

    def __init__(self) -> None:
        self.size = 0
        self._rest = bytearray()
        self._chunks: list[Future[bytes]] = []
        self._pool: ThreadPoolExecutor | None = None

    def update(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        self.size += len(view)
        while len(view):
            if not self._rest and len(view) >= CHUNK:
                self._submit(view[:CHUNK])
                view = view[CHUNK:]
                continue
            missing = CHUNK - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
            if len(self._rest) == CHUNK:
                self._submit(self._rest)
                self._rest = bytearray()

    def digest(self) -> str:
        parts = [chunk.result() for chunk in self._chunks]
        if self._pool is not None:
            self._pool.shutdown()
        if self._rest or not parts:
            parts.append(_sha256(self._rest))
        return parts[0].hex() if len(parts) == 1 else _sha256(b"".join(parts)).hex()

    def _submit(self, chunk: bytearray | memoryview) -> None:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(2, thread_name_prefix="kinetic-digest")
        self._chunks.append(self._pool.submit(_sha256, chunk))


def _sha256(chunk: bytes | bytearray | memoryview) -> bytes:
    return hashlib.sha256(chunk).digest()
