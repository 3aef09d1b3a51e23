"""Copies of files from one host of an attempt to another, over connections on which both prove that they have its key.

A file is asked for, or offered, by its digest: no name and no path comes from another host. The bytes are not
encrypted, and are no secret between hosts; whoever reads them verifies the digest that the bucket has. Sizes, times and
the number of connections are bounded. Does not know what is in the files.

    listener   GREETING, its nonce
    caller     its nonce, what it wants (ASK or OFFER), digest, size, proof of all of this
    listener   YES or NO, proof of all of this
    then the bytes, from the one who has them
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

GREETING = b"kinetic tier 1\n\n"
NONCE = PROOF = 32
ASK, OFFER = b"A", b"O"
YES, NO = b"Y", b"N"
SIZE = 8  # bytes of a size
DIGEST = 64
CONNECT = 3.0  # seconds; a buddy's machine is next to this one
SILENCE = 10.0  # of a connection
SLOWEST = 20_000_000  # bytes a second, below which the bucket is no slower
AT_ONCE = 4  # connections that a host answers
PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Files:
    """The copies of a host, as its listener uses them."""

    find: Callable[[str, int], str | None]
    """Returns the path of a copy, by its digest and its size."""
    taking: Callable[[str, int], contextlib.AbstractContextManager[str | None]]
    """Opens the path for one that is offered, which is kept if nothing is raised; None if it is not wanted."""


class Refused(OSError):
    """The other side did not prove that it has the key, or has no such file."""


class Listener:
    """Answers the other hosts of an attempt."""

    def __init__(self, address: str, key: bytes, files: Files) -> None:
        """Raises OSError."""
        self._key = key
        self._files = files
        self._free = threading.Semaphore(AT_ONCE)
        self._door = socket.create_server((address, 0), backlog=2 * AT_ONCE)
        self.port: int = self._door.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="kinetic-buddies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody from now on."""
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # which ends the wait for the next connection
        self._door.close()
        self._thread.join(SILENCE)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            if not self._free.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._answer, args=(connection,), name="kinetic-buddy", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:  # the caller sees it, and goes to the bucket
            try:
                self._answer_one(connection)
            finally:
                self._free.release()

    def _answer_one(self, connection: socket.socket) -> None:
        line = _Line(connection, time.monotonic() + SILENCE)
        said = GREETING + os.urandom(NONCE)
        line.send(said)
        asked = line.read(NONCE + len(ASK) + DIGEST + SIZE)
        if not hmac.compare_digest(line.read(PROOF), _proof(self._key, b"caller", said, asked)):
            raise Refused("no key")
        what, digest = asked[NONCE : NONCE + 1], asked[NONCE + 1 : NONCE + 1 + DIGEST].decode("ascii", "replace")
        size = int.from_bytes(asked[-SIZE:], "big")
        if set(digest) - set("0123456789abcdef"):
            raise Refused("no digest")
        line.until = _until(size)

        def reply(word: bytes) -> None:
            line.send(word + _proof(self._key, b"listener", said, asked, word))

        if what == ASK:
            path = self._files.find(digest, size)
            reply(NO if path is None else YES)
            if path is not None:
                line.send_file(path, size)
        elif what == OFFER:
            with self._files.taking(digest, size) as path:
                reply(NO if path is None else YES)
                if path is not None:
                    line.receive_file(path, size)


def fetch(address: str, port: int, key: bytes, digest: str, size: int, path: str) -> None:
    """Write the copy that another host has to a file; it is not verified. Raises OSError."""
    with _asking(address, port, key, ASK, digest, size) as line:
        line.receive_file(path, size)


def offer(address: str, port: int, key: bytes, digest: str, size: int, path: str) -> None:
    """Send a file to another host. Raises OSError, and Refused if it is not wanted there."""
    with _asking(address, port, key, OFFER, digest, size) as line:
        line.send_file(path, size)
        line.read_end()


@contextlib.contextmanager
def _asking(address: str, port: int, key: bytes, what: bytes, digest: str, size: int) -> Iterator[_Line]:
    with socket.create_connection((address, port), timeout=CONNECT) as connection:
        line = _Line(connection, time.monotonic() + SILENCE)
        said = line.read(len(GREETING) + NONCE)
        if not said.startswith(GREETING):
            raise Refused(f"{address} is no buddy")
        asked = os.urandom(NONCE) + what + digest.encode("ascii") + size.to_bytes(SIZE, "big")
        line.send(asked + _proof(key, b"caller", said, asked))
        word = line.read(len(YES))
        if not hmac.compare_digest(line.read(PROOF), _proof(key, b"listener", said, asked, word)):
            raise Refused(f"{address} has not the attempt's key")
        if word != YES:
            raise Refused(f"{address} has no such copy, or no room for it")
        line.until = _until(size)
        yield line


class _Line:
    """A connection until a moment, after which all that is done on it raises TimeoutError."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection = connection
        self.until = until

    def send(self, data: bytes) -> None:
        self._wait()
        self._connection.sendall(data)

    def send_file(self, path: str, size: int) -> None:
        with Path(path).open("rb") as file:
            while size:
                piece = file.read(min(PIECE, size))
                if not piece:
                    raise Refused(f"{path} became shorter")
                self.send(piece)
                size -= len(piece)

    def read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._wait()
            piece = self._connection.recv(size - len(found))
            if not piece:
                raise Refused("the other side has ended the connection")
            found += piece
        return bytes(found)

    def read_end(self) -> None:
        """Wait until the other side has all of it."""
        self._wait()
        self._connection.shutdown(socket.SHUT_WR)
        self._connection.recv(1)

    def receive_file(self, path: str, size: int) -> None:
        with Path(path).open("wb", buffering=0) as file:
            left, piece = size, bytearray(PIECE)
            view = memoryview(piece)
            while left:
                self._wait()
                count = self._connection.recv_into(view, min(PIECE, left))
                if not count:
                    raise Refused("the other side has ended the connection")
                file.write(view[:count])
                left -= count

    def _wait(self) -> None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other side is too slow")
        self._connection.settimeout(min(left, SILENCE))


def _until(size: int) -> float:
    return time.monotonic() + SILENCE + size / SLOWEST


def _proof(key: bytes, who: bytes, *said: bytes) -> bytes:
    return hmac.new(key, b"\0".join((who, *(hashlib.sha256(one).digest() for one in said))), hashlib.sha256).digest()
