"""One job as the page shows it: its facts, its attempts as a time line, its curves, and its hosts' lines.

Everything comes from its handle, as `kinor status` and a notebook have it. Texts are as their writers left them:
`server` escapes all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from kinetic_orchestration.api.handle import JobHandle, drawn_attempts, drawn_curves, report_of
from kinetic_orchestration.jobs.following.logs import LogReader, Positions
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.plan.hardware.cost import times, went_to
from kinetic_orchestration.plan.messages import command
from kinetic_orchestration.plan.values import Event, Glimpse, JobStatus, Metrics, Output, Peek
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.report import curves, frames, job_report
from kinetic_orchestration.protocol.wire import Beat

TAIL: Final = 256 << 10  # bytes of a host's log that are shown of what was there before
TAIL_OF_FIRST: Final = 4 << 20  # of host 0, which has the metrics
MOST_LINES: Final = 5000  # that one message waits for, so that those of several hosts are in the order of their times
LONGEST_LINE: Final = 4000  # letters
MOST_DEVICES: Final = 8
_KINDS: Final = {frames.OUT: "", frames.ERR: "e"}
_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]*m")


def of_job(handle: JobHandle[Any]) -> dict[str, Any]:
    """Return all about a job but its log. Raises KineticError."""
    peek, cost = handle.peek(), handle.cost()
    failure = _failure(peek)
    facts = [
        *((name, said) for name, said in handle.origin.items()),
        ("accelerator", f"{handle.accelerator} on {handle.backend}, {handle.crew}"),
        ("where", handle.where),
        ("place", f"{peek.zone}, {peek.resource}" if peek.zone else ""),
        ("chosen", handle.chosen),
        ("submitted", handle.created_at),
        ("devices", "; ".join(_devices(peek))),
        ("time", times(cost)),
        ("went to", went_to(cost)),
        ("cost", str(cost).removeprefix("cost: ")),
        ("output", handle.output_dir),
        ("profile", handle.profile_dir()),
    ]
    return {
        "id": handle.job_id,
        "name": handle.func_name,
        "state": peek.status.value,
        "phase": peek.phase,
        "message": peek.message or (peek.said if peek.outcome is None else ""),
        "progress": [peek.done, peek.total, peek.unit, peek.rate],
        "final": peek.status.final,
        "attempts": peek.attempts,
        "hosts": handle.hosts,
        "facts": [(name, said) for name, said in facts if said],
        "failure": failure,
        "timeline": drawn_attempts(handle),
        "curves": drawn_curves(handle),
        "commands": _commands(handle, peek),
        "links": handle.links(),
    }


def _commands(handle: JobHandle[Any], peek: Peek) -> list[str]:
    if peek.status.final:
        return [command("logs", handle.job_id), command("result", handle.job_id)]
    return [command("logs", "-f", handle.job_id), command("cancel", handle.job_id)]


def _failure(peek: Peek) -> str:
    outcome = peek.outcome
    if outcome is None or outcome.status is JobStatus.SUCCEEDED:
        return ""
    failure = outcome.verdict.failure or wire.Failure()
    return failure.traceback.rstrip() or outcome.verdict.reason.strip() or outcome.cause


def _devices(peek: Peek) -> Iterator[str]:
    if peek.outcome is not None:
        return
    for host, sample in peek.devices[:MOST_DEVICES]:
        yield f"{f'host {host}: ' if len(peek.devices) > 1 else ''}{job_report.brief(sample)}"
    if len(peek.devices) > MOST_DEVICES:
        yield f"and {len(peek.devices) - MOST_DEVICES} more hosts"


Line = tuple[int, str, float, str]  # host, kind, time and text


class Tail:
    """The lines that the hosts of a job write, from the end of what is there on, attempt by attempt.

    Its mark names the place behind what was read, so that another tail goes on there.
    """

    def __init__(self, handle: JobHandle[Any], mark: str = "") -> None:
        self._job, self._store = handle._job, handle._job.store
        self.hosts = handle.hosts
        self.attempt, self._positions = _read_mark(mark)
        if not self.attempt or len(self._positions) not in (0, self._job.policy_of(self.attempt).hosts):
            self.attempt = max(1, attempts.newest(self._store, self._job.job_id))
            self._positions = self._near_the_end()
        self._state: job_report.State = {}
        self._curves: curves.Curves | None = None
        self._is_whole = not any(segment or offset for segment, offset in self._positions)
        self._is_new = True  # of this attempt all there is is read first
        self._told = False

    @property
    def mark(self) -> str:
        return f"{self.attempt};{','.join(f'{segment}.{offset}' for segment, offset in self._positions)}"

    @property
    def begins_late(self) -> bool:
        """True if there is more before what it reads."""
        return not self._is_whole

    def read(self, *, ended: bool = False) -> Iterator[list[Line]]:
        """Yield what was written since: lines (host, kind, time, text), some at a time. Raises StoreError.

        Where each try is a request, only what the hosts' beats tell of is read, which come with one listing; but all
        there is at first, and of an attempt that has `ended`.
        """
        reader = LogReader(self._job, self.attempt)
        lines: list[Line] = []
        hinted = self._store.metered and not self._is_new and not ended
        self._is_new = False
        for found, reached in reader.read(self._positions, self._heard() if hinted else None):
            self._positions = reached
            lines += (line for event in found for line in self._lines(event))
            if len(lines) >= MOST_LINES:
                yield sorted(lines, key=lambda line: line[2])
                lines = []
        if lines:
            yield sorted(lines, key=lambda line: line[2])

    def next_attempt(self) -> int:
        """Return the attempt after this one, by its number; 0 if there is none."""
        newest = attempts.newest(self._store, self._job.job_id)
        if newest <= self.attempt:
            return 0
        after = attempts.with_hosts(self._store, self._job.job_id, newest)
        return next((number for number in after if number > self.attempt), newest)

    def go_on(self, attempt: int) -> None:
        """Turn to a later attempt."""
        self.attempt, self._positions, self._is_new = attempt, (), True

    def _heard(self) -> Glimpse:
        """Return what the hosts' beats tell: how much each has written."""
        prefix = names.beats_in(self._job.job_id, self.attempt)
        told = {signal.name.removeprefix(prefix): Beat.read(signal.data) for signal in self._store.signals(prefix)}
        hosts = range(self._job.policy_of(self.attempt).hosts)
        return Glimpse(0.0, beats=tuple(told.get(str(host)) for host in hosts))

    def drawn(self) -> str:
        """Return the picture of the metrics that came since the last call; "" if none did."""
        if not self._told or self._curves is None:
            return ""
        job_id = self._job.job_id
        if not self._is_whole and not self._state:
            self._state = report_of(self._store, job_id)
            if not self._state:  # no picture is better than one that begins in the middle
                return ""
        self._told = False
        state = job_report.joined(self._state, job_report.state_of(job_id, self._curves))
        return curves.themed(job_report.draw(state, "", keep=False))

    def _lines(self, event: Event) -> Iterator[Line]:
        if isinstance(event, Metrics) and event.host == 0:
            if self._curves is None:
                self._curves = curves.Curves()
            self._curves.add(event.step, event.values, event.attempt)
            self._told = True
        elif isinstance(event, Output):
            kind = _KINDS.get(event.kind, "n")
            for text in event.text.decode("utf-8", "replace").split("\n")[: -1 if event.text.endswith(b"\n") else None]:
                shown = _COLOURS.sub("", text.rstrip("\r").rpartition("\r")[2])
                cut = f"{shown[:LONGEST_LINE]} … and {len(shown) - LONGEST_LINE} more letters"
                yield event.host, kind, round(event.time, 2), shown if len(shown) <= LONGEST_LINE else cut

    def _near_the_end(self) -> Positions:
        """Return the beginning of the segments with the last lines of each host."""
        prefix = names.hosts(self._job.job_id, self.attempt)
        sizes: dict[int, list[tuple[int, int]]] = {}
        for entry in self._store.list(prefix):
            host, _, what = entry.name.removeprefix(prefix).partition("/")
            segment = what.removeprefix("log/")
            if host.isdecimal() and segment != what and segment.isdecimal() and len(segment) < 9:
                sizes.setdefault(int(host), []).append((int(segment), entry.size))
        hosts = range(self._job.policy_of(self.attempt).hosts)
        return tuple((_first(sizes.get(host, []), TAIL if host else TAIL_OF_FIRST), 0) for host in hosts)


def _first(segments: list[tuple[int, int]], left: int) -> int:
    """Return the segment from which on there is enough, and all that is in the newest one."""
    first = 0
    for number, size in sorted(segments, reverse=True):
        first = number
        left -= size
        if left <= 0:
            break
    return first


_MARK: Final = re.compile(r"(?P<attempt>\d{1,6});(?P<places>(\d{1,8}\.\d{1,12}(,|$)){0,4096})", re.ASCII)


def _read_mark(text: str) -> tuple[int, Positions]:
    """Return attempt and positions of a mark, which any client may have sent; (0, ()) for one that is none."""
    found = _MARK.fullmatch(text)
    if found is None or not int(found["attempt"]):
        return 0, ()
    places = [place.partition(".") for place in found["places"].split(",") if place]
    return int(found["attempt"]), tuple((int(segment), int(offset)) for segment, _, offset in places)
