"""Reads what the hosts of an attempt have logged."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from kinetic_orchestration.errors import Corrupt
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.plan.records import fields_of
from kinetic_orchestration.plan.values import Event, Glimpse, Intent, Metrics, Output, Progress
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.report import frames

Emit = Callable[[Event], object]
Positions = tuple[tuple[int, int], ...]

READ_BYTES = 1 << 20
LONGEST_FRAME = frames.LONGEST_LINE + (2 << 20)  # a line, what came with its end, and a header
FEW_HOSTS = 16  # hosts whose records are read without a listing first


class Printed(NamedTuple):
    """A line of a host's log."""

    time: float
    host: int
    text: str


class LogReader:
    """Reads the logs of one attempt's hosts. A position is a segment and an offset in it, one for each host."""

    __slots__ = ("_attempt", "_hosts", "_job_id", "_store")

    def __init__(self, job: Job, attempt: int, intent: Intent | None = None) -> None:
        """`intent`: that of the attempt, if it was read already."""
        self._store = job.store
        self._job_id = job.job_id
        self._hosts = job.policy_of(attempt, intent).hosts
        self._attempt = attempt

    def read(self, positions: Positions, seen: Glimpse | None = None) -> Iterator[tuple[list[Event], Positions]]:
        """Yield what comes after the positions, read by read, with the positions behind it.

        Args:
            positions: Where to go on; () for the beginning.
            seen: On a store where each try is a request, only what the hosts' beats in it tell of is read; None to
                read all there is.
        """
        moved = list(self._all(positions))
        there = self.hosts_there() if seen is None else None
        for host, position in enumerate(self._all(positions)):
            if there is not None and host not in there:
                continue
            for found, reached, _ in self._read_log(host, position, seen):
                moved[host] = reached
                yield found, tuple(moved)

    def of_host(self, host: int) -> Iterator[Event]:
        """Yield what one host has recorded so far. On files, up to the first read that came to its end: a slow reader
        would see one host's log go on that grows, and not another's.
        """
        for found, _, at_end in self._read_log(host, (0, 0)):
            yield from found
            if at_end:
                return

    def last(self, lines: int, hosts: Iterable[int]) -> list[Printed]:
        """Return the newest lines that some hosts have printed, by time. Of each log only the end is read.

        Args:
            lines: How many there may be.
            hosts: The hosts; those that the attempt does not have are left out.
        """
        found: list[Printed] = []
        for host in sorted({host for host in hosts if host < self._hosts}):
            folder = names.host(self._job_id, self._attempt, host, "log/")
            numbers = (entry.name.removeprefix(folder) for entry in self._store.list(folder))
            newest = max((int(number) for number in numbers if number.isdecimal() and len(number) < 10), default=0)
            printed: deque[Printed] = deque(maxlen=lines)
            for events, _, at_end in self._read_log(host, (max(0, newest - 1), 0)):
                for event in events:
                    if isinstance(event, Output):
                        text = event.text.decode("utf-8", "backslashreplace")
                        printed.extend(Printed(event.time, host, line) for line in text.splitlines())
                if at_end:
                    break
            found += printed
        return sorted(found, key=lambda line: line.time)[-lines:]

    def _read_log(
        self, host: int, position: tuple[int, int], seen: Glimpse | None = None
    ) -> Iterator[tuple[list[Event], tuple[int, int], bool]]:
        """Yield the events of one read after the other, the position behind each, and whether there was no more."""
        attempt = self._attempt
        while True:
            segment, offset = position
            if seen is not None and self._store.metered and not _has_written(seen, host, segment):
                return
            name = names.segment(self._job_id, attempt, host, segment)
            record = self._store.read(name, offset, offset + READ_BYTES)
            if record is None or not record.data:
                return
            found, used = frames.decode(record.data, segment, offset)
            if not used and (length := frames.length_of(record.data)) > READ_BYTES:  # a frame longer than one read
                if length > LONGEST_FRAME:  # than any host writes: nothing of it is taken, nor of what follows
                    text = f"host {host}: its log ends here: {name} has a frame of {length} bytes, which no host has\n"
                    note = Output(host, frames.NOTE, record.updated, text.encode(), attempt, segment, offset)
                    yield [note], (segment + 1, 0), False
                    position = segment + 1, 0
                    continue
                whole = self._store.read(name, offset, offset + length)
                found, used = frames.decode(whole.data if whole else b"", segment, offset)
            if not used and self._is_over(host, segment):  # what is left of it is no frame, and never will be
                size = len(record.data)
                position = (segment, offset + size - 100) if size == READ_BYTES else (segment + 1, 0)
                hole = frames.damaged(size, record.updated, segment, offset)
                yield [_event(hole, host, attempt)], position, False
                continue
            if not used:
                return
            over = any(frame.kind == frames.NEXT for frame in found)
            position = (segment + 1, 0) if over else (segment, offset + used)
            at_end = len(record.data) < READ_BYTES and not over and used >= len(record.data)
            yield [_event(frame, host, attempt) for frame in found if frame.kind != frames.NEXT], position, at_end

    def _is_over(self, host: int, segment: int) -> bool:
        """Return whether nothing more comes into a segment: an object is never written to again, a file not once
        another one follows.
        """
        following = names.segment(self._job_id, self._attempt, host, segment + 1)
        return not self._store.can_append or self._store.read(following, 0, 1) is not None

    def cut_logs(self, positions: Positions) -> Iterator[Output]:
        """Yield a note for each host of an attempt that is over that could not write its last lines itself."""
        if self._store.read(names.intent(self._job_id, self._attempt)) is None:
            return
        there = self.hosts_there()
        for host, (segment, offset) in enumerate(self._all(positions)):
            if there is not None and host not in there:
                continue
            done = self._said(host, "done.json")
            if done is None and self._said(host, "started.json") is None:
                continue  # it was never there
            if done is None or _was_cut(done, names.host(self._job_id, self._attempt, host, "done.json")):
                text = f"host {host}: its agent was killed, so its log may be cut here\n".encode()
                yield Output(host, frames.NOTE, self._store.now(), text, self._attempt, segment, offset)

    def hosts_there(self) -> set[int] | None:
        """List those of many hosts that have written anything, by one listing; None for few. The number of hosts that a
        spec states must not decide how many requests are made.
        """
        if self._hosts <= FEW_HOSTS:
            return None
        prefix = names.hosts(self._job_id, self._attempt)
        found = (entry.name.removeprefix(prefix).partition("/")[0] for entry in self._store.list(prefix))
        return {int(host) for host in found if host.isdecimal() and len(host) < 8}

    def _said(self, host: int, what: str) -> Record | None:
        return self._store.read(names.host(self._job_id, self._attempt, host, what))

    def _all(self, positions: Positions) -> Positions:
        return positions or ((0, 0),) * self._hosts


def _was_cut(done: Record, name: str) -> bool:
    try:
        return bool(fields_of(done.data, wire.DONE_RECORD, name).get("cut"))
    except Corrupt:  # it is unknown whether it is complete
        return True


def _has_written(seen: Glimpse, host: int, segment: int) -> bool:
    beat = seen.beats[host] if host < len(seen.beats) else None
    return beat is not None and segment < beat.segment


def sampled(seen: Glimpse) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the newest sample of what its devices do, of each host that runs."""
    for host, beat in enumerate(seen.beats):
        if beat is None or beat.state != wire.RUNNING or not beat.devices:
            continue
        at = beat.devices.get("at")
        if isinstance(at, float) and math.isfinite(at):  # any writer of the store may have written it
            yield host, beat.devices


def _event(frame: frames.Frame, host: int, attempt: int) -> Event:
    """Return a frame as an event. A malformed frame, which any process that can write to the store may have written, is
    shown as it is.
    """
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        if frame.kind == frames.METRICS:
            fields = json.loads(frame.payload)
            values = {str(name): float(value) for name, value in fields["values"].items()}
            step = fields["step"]
            return Metrics(host, frame.time, None if step is None else int(step), values, attempt)
        if frame.kind == frames.PROGRESS:
            fields = json.loads(frame.payload)
            done, total, unit = float(fields["done"]), float(fields["total"]), str(fields["unit"])
            return Progress(host, frame.time, done, total, unit, attempt, float(fields.get("rate", 0.0)))
    kind = frame.kind if frame.kind in (frames.OUT, frames.ERR) else frames.NOTE
    return Output(host, kind, frame.time, frame.payload, attempt, frame.segment, frame.offset)
