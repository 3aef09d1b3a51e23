"""A journal of the messages between the emulated cloud or cluster and its callers: off unless a folder is named for it.

Every server of an emulator appends each exchange, before its answer is sent, to a file of its process: the bytes on the
wire, without the emulator's token, headers and the contents of objects. It still holds secrets: only the owner can read
the folder, and the user who asked for it removes it. It knows no API.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

VARIABLE: Final = "KINETIC_EMULATOR_JOURNAL"
LOST: Final = -1
PLANTED: Final = "planted"
_FILE: Final = 16 << 20  # then another one is begun, so that a reader can remove what it has read
_HEAD: Final = 4  # bytes of the length of an entry's head


class Exchange(NamedTuple):
    face: str
    """rest, storage, grpc, or kubernetes: of the last, each change that a watch is told is an exchange of its own."""
    method: str
    """The method of HTTP; empty over gRPC."""
    target: str
    """The path and the query; over gRPC the full name of the method."""
    status: int
    """The status of HTTP, or over gRPC the code of google.rpc. LOST: no answer came, or a part of it."""
    request: bytes
    request_type: str
    answer: bytes
    answer_type: str
    planted: tuple[str | int, ...] = ()
    """The part of the answer that a test put there: PLANTED, all of it; or a number that is no value of an enum."""


# Whether the answer that this thread is about to give is a test's own.
_here = threading.local()


def plant() -> None:
    """Mark the answer that this thread is about to give as one that a test has made."""
    _here.planted = True


class Journal:
    """The exchanges of this process, in the order of their answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._number = 0
        self._size = 0
        self._file = -1

    def write(self, exchange: Exchange) -> None:
        planted = (*exchange.planted, PLANTED) if getattr(_here, "planted", False) else exchange.planted
        _here.planted = False
        fields = {
            **exchange._asdict(), "request": len(exchange.request), "answer": len(exchange.answer), "planted": planted,
        }  # fmt: skip
        head = json.dumps(fields).encode()
        with self._lock:
            if self._file < 0 or self._size > _FILE:
                self._begin_file()
            entry = b"".join((len(head).to_bytes(_HEAD), head, exchange.request, exchange.answer))
            self._size += os.write(self._file, entry)

    def _begin_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        path = self._folder / f"{os.getpid()}-{self._number:06}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._number += 1
        self._size = 0


_journals: dict[tuple[int, str], Journal] = {}


def asked_for() -> Journal | None:
    """Returns the journal of this process in the folder that the environment names, or None."""
    folder = os.environ.get(VARIABLE, "")
    return _journals.setdefault((os.getpid(), folder), Journal(Path(folder))) if folder else None


def entries(data: bytes) -> Iterator[tuple[Exchange, int]]:
    """Yields each exchange that is whole in the bytes of a file, and where it ends."""
    at = 0
    while len(data) - at >= _HEAD:
        head = at + _HEAD
        body = head + int.from_bytes(data[at:head])
        if len(data) < body:
            return
        fields = json.loads(data[head:body])
        middle = body + fields["request"]
        at = middle + fields["answer"]
        if len(data) < at:
            return
        fields |= {"request": data[body:middle], "answer": data[middle:at], "planted": tuple(fields["planted"])}
        yield Exchange(**fields), at
