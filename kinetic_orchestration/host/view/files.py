"""A host's view of its attempt on files, where every read is cheap.

`bucket.BucketView` has the same methods for a remote store. Neither decides what follows from what it reads.
"""

from __future__ import annotations

import functools
import time
from _thread import allocate_lock

from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import TooLarge, read_bounded
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.system.lock import mark_full, path_of

TYPE_CHECKING = False  # typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from kinetic_orchestration.host.view.retrying_records import RetryingRecords
    from kinetic_orchestration.host.view.view import Log
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.records.base import Record
    from kinetic_orchestration.protocol.records.files import FileRecords
    from kinetic_orchestration.protocol.schema import Fields


class LogWriter:
    """Appends frames to this host's segments and rings the bell. For stores that can append; else `segments`."""

    full = False

    def __init__(self, records: FileRecords, job: str, attempt: int, host: int) -> None:
        self._records = records
        self._key = (job, attempt, host)
        self.segment = 0
        self.offset = 0
        self._time = 0.0
        self._lock = allocate_lock()  # the preparation writes notes from its own thread

    def write(self, kind: str, payload: bytes) -> None:
        with self._lock:
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


class FileView:
    """Reads and writes on request, without a thread."""

    def __init__(self, records: RetryingRecords, at: Assignment, log: Log | None = None) -> None:
        """`log`: of this host; by default it is written to the records."""
        records.waits = functools.partial(mark_full, path_of(at))
        self.records = records
        self.log: Log = LogWriter(records, at.job, at.attempt, at.host) if log is None else log
        self.at = at

    def open(self) -> None:
        """Do nothing: this view needs no thread."""

    def verdict(self) -> bytes | None:
        return read_bounded(self.records, names.verdict(self.at.job, self.at.attempt))

    def cancel(self) -> bytes | None:
        return read_bounded(self.records, names.cancel(self.at.job))

    def owner(self) -> tuple[Record, float] | None:
        moment, beat = self.records.now(), self.records.read(names.owner(self.at.job))
        return None if beat is None else (beat, moment)

    def keeper(self) -> tuple[Record, float] | None:
        moment, kept = self.records.now(), self.records.read(names.keeper(self.at.job))
        return None if kept is None else (kept, moment)

    def started(self, host: int) -> Mapping[str, object] | None:
        return self._told(host, "started.json", wire.STARTED)

    def exit(self, host: int) -> int | None:
        told = self._told(host, "exit.json", wire.EXIT)
        return None if told is None else int(told["code"])

    def beat_of(self, host: int) -> tuple[int, wire.Beat | None]:
        try:
            record = self.records.read(names.beat(self.at.job, self.at.attempt, host))
        except TooLarge:
            return 0, None
        return (0, None) if record is None else (record.generation, wire.Beat.read(record.data))

    def shows_notice(self) -> bool:
        """Return False: hosts on files are not ended by a cluster."""
        return False

    def beats_read_at(self) -> float:
        return time.monotonic()

    def cadence(self) -> float:
        return 0.0

    def beat(self, compose: Callable[[], wire.Beat], *, changed: bool) -> None:
        """Write a beat, and notify the processes that wait for it if it has news."""
        self.records.put(names.beat(self.at.job, self.at.attempt, self.at.host), compose().encode())
        if changed:
            self.records.ring(self.at.job)

    def denied(self) -> tuple[str, str]:
        """Return no reason: on files, a beat that cannot be written ends the host at once."""
        return "", ""

    def poll_soon(self) -> None:
        """Do nothing: on files no process reads beats alone."""

    def close(self) -> None:
        """Ring, as this host's last beat is written."""
        self.records.ring(self.at.job)

    def write_exit(self, data: bytes) -> None:
        self.records.create(self.at.own("exit.json"), data)

    def deliver(self, what: str, path: str, *, digest: str, size: int, keep: bool) -> None:
        from kinetic_orchestration.protocol.content import digest as of

        if size < of.LARGE:
            self.records.upload(self.at.own(what), path, move=True)
            return
        from kinetic_orchestration.protocol.content import verified

        verified.deliver(self.records, self.at.own(what), path, digest, self.at.home)

    def patience_with(self, error: OSError) -> float:
        """Return none: the records themselves ask again."""
        return 0.0

    def _told(self, host: int, what: str, kind: Fields) -> dict[str, Any] | None:
        """Return a host's record, if it can be read, else None."""
        name = names.host(self.at.job, self.at.attempt, host, what)
        data = read_bounded(self.records, name)
        try:
            return None if data is None else wire.fields_of(data, kind, name)
        except wire.Unreadable:
            return None
