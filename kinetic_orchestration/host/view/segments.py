"""The log of a host on a store whose objects are never written to again: segments, each written once and whole.

A thread of its own writes what has gathered: the first line at once, then at a pace, or when much has gathered. A
failure loses nothing: what could not be written stays, in bounded memory, until it can be. When that is full the
program has to wait.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.report import frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.host.machine.bucket_records import CloudRecords

WATCHED = 1.0
UNWATCHED = 5.0
SLOWEST = 15.0
A_SECOND = 16  # segments, of all hosts
MUCH = 256 << 10
FULL = 16 << 20
CLOSE_PATIENCE = 60.0
SHOWN = (frames.OUT, frames.ERR, frames.NOTE)
PAUSE = 1.0  # after a failure, which has been asked again for a while already


def pace(hosts: int, *, watched: bool) -> float:
    """Return the seconds between two segments of a host: many hosts together write no more than a few a second."""
    return min(SLOWEST, max(WATCHED if watched else UNWATCHED, hosts / A_SECOND))


class SegmentWriter:
    """Takes frames on any thread; `write` never waits. A writer asks `full` first, and stops reading meanwhile."""

    offset = 0  # in a segment that is not there yet, nothing can be read

    def __init__(
        self,
        records: CloudRecords,
        job: str,
        attempt: int,
        host: int,
        watched: Callable[[], bool] = lambda: False,
        begun: Callable[[], object] = lambda: None,
        hosts: int = 1,
        echo: Callable[[bytes], object] | None = None,
    ) -> None:
        """`begun` is called when the first segment is there, `echo` with each line for people."""
        self._records = records
        self._key = (job, attempt, host)
        self._watched = watched
        self._begun = begun
        self._hosts = hosts
        self._echo = echo
        self.segment = 0  # the number of the next segment that is not written yet
        self.trouble = ""
        self._frames: list[bytes] = []
        self._size = 0
        self._time = self._written = 0.0
        self._hurried = self._closed = False
        self._asked = 0  # flushes that are waited for
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def full(self) -> bool:
        return self._size > FULL

    def write(self, kind: str, payload: bytes) -> None:
        with self._changed:
            self._time = max(self._time, self._records.now())  # the store's, so that hosts agree; never backwards
            frame = frames.encode(kind, self._time, payload)
            self._frames.append(frame)
            self._size += len(frame)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kinetic-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if self._echo is not None and kind in SHOWN:
            self._echo(payload)

    def hurry(self) -> None:
        """Write without delay from now on: the machine may be gone in seconds."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def flush(self, patience: float = CLOSE_PATIENCE) -> bool:
        """Wait until everything written is in the store. Returns True if it is."""
        deadline = time.monotonic() + patience
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
            while self._size and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            self._asked -= 1
            return not self._size

    def close(self, patience: float = CLOSE_PATIENCE) -> bool:
        """Flush and end the thread; return False if lines were lost for good."""
        whole = self.flush(patience)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)
        return whole

    def _run(self) -> None:
        while batch := self._next():
            self._ship(batch)

    def _next(self) -> bytes:
        """Wait until the next segment is due and return its bytes; none at the end."""
        with self._changed:
            while not self._closed:
                left = self._wait()
                if self._size and left <= 0:
                    break
                self._changed.wait(left if self._size else None)
            batch: list[bytes] = []
            size = 0
            for frame in self._frames:
                if batch and size + len(frame) > frames.SEGMENT_BYTES:
                    break
                batch.append(frame)
                size += len(frame)
            if not batch or self._closed:
                return b""
            self._time = max(self._time, self._records.now())
            self._taken = len(batch), size
            return b"".join([*batch, frames.encode(frames.NEXT, self._time, b"")])

    def _wait(self) -> float:
        """Return the seconds until the gathered lines are to be written."""
        if self._asked or self._size >= MUCH or not self._written:
            return 0.0
        steady = WATCHED if self._hurried else pace(self._hosts, watched=self._watched())
        return self._written + steady - time.monotonic()

    def _ship(self, batch: bytes) -> None:
        """Write a segment, with the same bytes in every try, so that a write whose answer was lost is recognised."""
        while not self._is_shipped(batch):
            if self._closed:
                return
            time.sleep(PAUSE)
        with self._changed:
            count, size = self._taken
            del self._frames[:count]
            self._size -= size
            self.segment += 1
            first, self._written = not self._written, time.monotonic()
            self._changed.notify_all()
        if first:
            self._begun()

    def _is_shipped(self, batch: bytes) -> bool:
        try:
            while self._records.create(name := names.segment(*self._key, self.segment), batch) is None:
                found = self._records.read(name, 0, len(batch) + 1)
                if found is not None and found.data == batch:
                    break
                self.segment += 1  # an earlier life of this host left one of that number, as a reboot may
        except Exception as error:  # a store that speaks nonsense for a while is one that fails for a while
            self.trouble = str(error)
            return False
        return True
