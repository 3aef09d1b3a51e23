"""A job's events as records of the task's log, on a worker and on a triggerer alike.

Airflow sorts a task's records by time and drops a record that is equal to the one before it. So each line
carries the time of its host, made strictly later than that host's line before: order and repeated lines are
kept, and a trigger that reads again after a restart writes equal records, which are dropped. It sorts by whole
milliseconds, though, and what it finds in one of them by the line of the file, of which each trigger writes its own:
lines that share one would come in another order then, and twice. So each has one for itself, and hosts take turns.

A triggerer writes the logs of all its tasks on one event loop, which stands still for all of them when a single one
pours. So they share a budget of lines, and what is beyond it stays in the store, counted. What a trigger finds when it
begins is held back until it has all of that: of many lines the newest are written, for those may be shown nowhere yet.
"""

from __future__ import annotations

import contextvars
import datetime
import functools
import heapq
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from airflow_kinetic._compat import substitutes
from airflow_kinetic.shared.configuration import log_lines_per_second
from kinetic_orchestration.api.printer import Printer, SecondaryErrors
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.jobs.following.logs import LogReader
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.plan.values import Change, Event, Metrics, Outcome, Output, Progress
from kinetic_orchestration.protocol.system import escaping

BURST_SECONDS = 10.0
LINES_READ = 100.0  # a second, by an Airflow that is busy, of what its triggers write
PAUSE_SECONDS = 1.0  # after a refusal, else every line would be followed by one about omitted lines
PROGRESS_SECONDS = 1.0
TURNS = 64  # hosts that are kept apart: a host has every 64th millisecond
MOST_MOVED = 1_000_000  # microseconds: beyond that, lines of one host share a time
MOST_CHARACTERS = 16_384  # of a line; the store has lines of megabytes
MOST_AGAIN = 2_000  # lines of what was there before, and may have been written before
LEAST_AGAIN = 20  # of them, though the budget be spent
LAST_LINES = 50  # that are repeated
LAST_HOSTS = 8  # whose lines may be among them, beside the one that failed
MOST_METRICS = 32  # names; they are sent in an event and stored in Airflow's database


class Budget:
    """A shared limit of lines per second, with a burst of ten seconds' worth."""

    def __init__(self, per_second: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate = per_second
        self._most = per_second * BURST_SECONDS
        self._left = self._most
        self._unread = 0.0
        self._now = now
        self._since = now()
        self._lock = threading.Lock()

    def take(self, *, again: bool = False) -> bool:
        """Take room for one line and return True if there is any; `again`: the caller was refused last time."""
        enough = max(1.0, self._rate * PAUSE_SECONDS) if again else 1.0
        with self._lock:
            self._catch_up()
            if self._left < enough:
                return False
            self._left -= 1.0
            self._unread += 1.0
            return True

    def take_up_to(self, lines: int) -> int:
        """Take room for up to `lines` lines, leave some for the next second, and return their number."""
        with self._lock:
            self._catch_up()
            taken = max(0, min(lines, int(self._left - self._rate)))
            self._left -= taken
            self._unread += taken
            return taken

    def seconds_to_read(self) -> float:
        """The seconds until Airflow has read what was written, in the worst case."""
        with self._lock:
            self._catch_up()
            return self._unread / LINES_READ

    def _catch_up(self) -> None:
        now = self._now()
        passed, self._since = now - self._since, now
        self._left = min(self._most, self._left + passed * self._rate)
        self._unread = min(self._most, max(0.0, self._unread - passed * LINES_READ))


@functools.cache
def line_budget() -> Budget:
    """Return the budget of this process, with the lines per second from Airflow's configuration."""
    return Budget(log_lines_per_second())


def repeat_last_lines(job: Job, outcome: Outcome | None) -> None:
    """Write the last lines of the hosts to the log of the worker's leg, in a group that the page folds: what a trigger
    writes may be shown no more once it has ended (apache/airflow issues 70314, 70317), or not until then (58676).
    """
    failed = 0 if outcome is None else outcome.verdict.host or 0
    log = substitutes.log_of("kinetic.job")
    try:
        attempt = outcome.attempt if outcome is not None else attempts.newest(job.store, job.job_id)
        printed = LogReader(job, attempt).last(LAST_LINES, {failed, *range(LAST_HOSTS)})
    except KineticError as error:  # the task has ended all the same
        log.warning(f"The last lines of job {job.job_id} could not be read: {error}")
        return
    if not printed:
        return
    several = job.policy_of(attempt).hosts > 1
    log.info(f"::group::The last {len(printed)} lines of job {job.job_id}, which its trigger has written, too")
    for line in printed:
        where = f"[host {line.host}] " if several else ""
        text = escaping.log(line.text).replace("::", ": :")  # of no group of its own
        log.info(f"{_shown(round(line.time * 1e6))} {where}{_short(text)}")
    log.info("::endgroup::")


class TaskLog:
    """An `emit` of the core, usable in any thread: a triggerer finds the task by the context of its caller.

    Without `lines` only changes of the job are logged. `metrics`: those that an earlier process logged. `since`: the
    start of the task's own part; no host record may be older, because the page would sort it into a collapsed group. A
    line that was printed long before has the field `said`.
    """

    __slots__ = (
        "_budget", "_changes", "_context", "_ended", "_held", "_hosts", "_latest", "_left_out", "_lines",
        "_lock", "_log", "_passed", "_progressed", "_resumed", "_secondary", "_since", "_whole_log", "metrics",
    )  # fmt: skip

    def __init__(
        self,
        hosts: int,
        job_id: str,
        *,
        budget: Budget | None = None,
        whole_log: str = "",
        lines: bool = True,
        metrics: dict[str, float | str] | None = None,
        since: float = 0.0,
    ) -> None:
        self._since = round(since * 1e6)
        self.metrics = dict(metrics or {})
        self._hosts = hosts
        self._secondary = SecondaryErrors(hosts, job_id)
        self._budget = budget
        self._whole_log = whole_log
        self._lines = lines
        self._left_out = 0
        self._held: list[tuple[str, int, str, dict[str, Any]]] | None = None  # a heap, by time
        self._passed = 0  # older ones than are held
        self._latest: dict[int, int] = {}
        self._resumed: tuple[int, ...] = ()  # attempts that followed one which had hosts
        self._progressed = -math.inf
        self._ended = False
        self._lock = threading.Lock()  # the waiting thread may give up while a step on another thread still logs
        self._context = contextvars.copy_context()
        self._log = substitutes.log_of("kinetic.host")
        self._changes = substitutes.log_of("kinetic.job")

    def __call__(self, event: Event) -> None:
        with self._lock:
            if not self._ended:
                self._context.run(self._write, event)

    def hold(self) -> None:
        """Hold records back: the following ones are old, and may have been written before."""
        self._held = []

    def let_go(self) -> None:
        """Write the records that were held back."""
        with self._lock:
            self._context.run(self._write_held)

    def end(self) -> None:
        """Write the remaining records and report how many lines were left out."""
        self._ended = True
        with self._lock:
            self._context.run(self._write_held)
            self._context.run(self._tell_left_out)

    def _write(self, event: Event) -> None:
        if isinstance(event, Metrics) and event.host == 0:
            self._note(event)
        if isinstance(event, Change):
            if event.phase == "resuming" and event.attempt not in self._resumed:  # it may be reported twice
                self._resumed = (*self._resumed, event.attempt)
            for text in _texts(event):
                self._changes.info(text)
            return
        if not self._lines or (isinstance(event, Progress) and not self._is_due(event)):
            return
        where: dict[str, Any] = {"host": event.host} if self._hosts > 1 else {}
        where |= {"said": _shown(round(event.time * 1e6))} if self._since - event.time * 1e6 > MOST_MOVED else {}
        if again := sum(attempt <= event.attempt for attempt in self._resumed):
            where["attempt"] = again + 1  # as the job counts them for users: a zone without capacity is no attempt
        shown = self._secondary(event)
        for text in _texts(shown) if shown is not None else ():
            moment = self._time(event.host, event.time)
            if self._held is not None:
                entry = (moment, len(self._held) + self._passed, text, where)
                if len(self._held) < MOST_AGAIN:
                    heapq.heappush(self._held, entry)
                else:
                    heapq.heappushpop(self._held, entry)
                    self._passed += 1
                continue
            if self._budget is not None and not self._budget.take(again=self._left_out > 0):
                self._left_out += 1
                continue
            if self._left_out:
                self._tell_left_out()
            self._write_line(text, moment, where)

    def _write_line(self, text: str, moment: str, where: dict[str, Any]) -> None:
        """Write a line. All lines are logged from here, which is part of the record: Airflow hides only equal
        records."""
        self._log.info(text, timestamp=moment, **where)

    def _write_held(self) -> None:
        if self._held is None:
            return
        held, self._held = self._held, None
        room = len(held) if self._budget is None else max(LEAST_AGAIN, self._budget.take_up_to(len(held)))
        passed = self._passed + max(0, len(held) - room)
        if passed:
            lines = f"{passed} earlier line{'s are' if passed > 1 else ' is'} not written"
            self._changes.info(f"{lines} again. All of them, also any that was not shown before: {self._whole_log}")
        for moment, _, text, where in sorted(held)[-room:]:
            self._write_line(text, moment, where)

    def _note(self, event: Metrics) -> None:
        """The newest value of each, as JSON has it."""
        told: dict[str, float | str] = {} if event.step is None else {"step": event.step}
        told |= {name: value if math.isfinite(value) else str(value) for name, value in event.values.items()}
        for name, value in told.items():
            if name in self.metrics or len(self.metrics) < MOST_METRICS:
                self.metrics[name] = value

    def _is_due(self, event: Progress) -> bool:
        """Limit the rate of metrics, as a loop may report each step. Uses the host's time, so that a second reading
        logs the same."""
        if event.host or (event.done < event.total and event.time - self._progressed < PROGRESS_SECONDS):
            return False
        self._progressed = event.time
        return True

    def _tell_left_out(self) -> None:
        if self._left_out:
            lines = f"{self._left_out} line{'s were' if self._left_out > 1 else ' was'} left out here, because this "
            self._changes.warning(f"{lines}triggerer writes no more at once. All of them: {self._whole_log}")
            self._left_out = 0

    def _time(self, host: int, seconds: float) -> str:
        said = max(round(seconds * 1e6), self._since)
        at_least = max(said, self._latest.get(host, 0) + 1)
        millisecond = -(-at_least // 1000)
        moment = 1000 * (millisecond + (host - millisecond) % min(self._hosts, TURNS))
        if moment - said > MOST_MOVED:
            moment = at_least
        self._latest[host] = moment
        return _shown(moment)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _shown(microseconds: int) -> str:
    moment = _EPOCH + datetime.timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _texts(event: Event) -> Iterator[str]:
    """The text of an event, line by line; of a line that was overwritten on a terminal, its final content."""
    if isinstance(event, Output):
        text = event.text.decode("utf-8", "backslashreplace")
    else:
        written: list[str] = []
        write: Callable[[str], object] = written.append
        Printer(1, write, job_id="")(event)
        text = "".join(written)
    for line in text.removesuffix("\n").split("\n") if text else ():
        yield _short(line.rstrip("\r").rpartition("\r")[2])


def _short(line: str) -> str:
    return f"{line[:MOST_CHARACTERS]}… ({len(line)} characters)" if len(line) > MOST_CHARACTERS else line
