"""Writes the output of a host's program to the log. Handles bytes and frames, and no process."""

from __future__ import annotations

import contextlib
from _thread import allocate_lock

from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.output import frames

TYPE_CHECKING = False  # typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from kinetic_orchestration.protocol.records.files import FileRecords

# Message of the transport that stands in for the chips' links, once for each device.
EMULATION = b" peer ranks. Expected number of connected peer ranks is"


class LogWriter:
    """Appends frames to this host's segments and rings the bell. For stores that can append; else `segments`."""

    full = False
    trouble = ""

    def __init__(self, records: FileRecords, job: str, attempt: int, host: int) -> None:
        self._records = records
        self._key = (job, attempt, host)
        self.segment = 0
        self.offset = 0
        self._time = 0.0
        self._lock = allocate_lock()  # what prepares the host has a thread of its own, and notes to write

    def write(self, kind: str, payload: bytes) -> None:
        with self._lock:
            self._write(kind, payload)

    def _write(self, kind: str, payload: bytes) -> None:
        self._time = max(self._time, self._records.now())  # the store's, so that hosts agree; never backwards
        if self.offset > frames.SEGMENT_BYTES:
            self._append(frames.encode(frames.NEXT, self._time, b""))
            self.segment += 1
            self.offset = 0
        self._append(frames.encode(kind, self._time, payload))
        self._records.ring(self._key[0])

    def hurry(self) -> None:
        """Do nothing: every line is in the store already."""

    def flush(self) -> bool:
        return True

    def close(self) -> bool:
        return True

    def _append(self, data: bytes) -> None:
        self._records.append(names.segment(*self._key, self.segment), data)
        self.offset += len(data)


def without_emulation(whole: bytes) -> bytes:
    """Remove Gloo's messages about itself, sixteen times over, where processes stand for the hosts of a slice."""
    import re

    pattern = rb"(?m)^(?:\[Gloo\] Rank \d+ is connected to )?\d+" + re.escape(EMULATION) + rb" : \d+\n"
    return re.sub(pattern, b"", whole)


def widen(pipe: int) -> None:
    """Widen a pipe, so that the program can write while the agent is busy. Linux only; failure is ignored."""
    import fcntl

    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
