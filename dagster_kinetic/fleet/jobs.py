"""Many jobs from one step: submitted a limited number at a time, followed on one event loop, reported in the step's
thread.

Dagster interrupts the main thread of a step, so nothing there waits for more than a queue: the loop that follows the
jobs runs in a separate thread. `step` decides the end of the jobs when the step must end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.fleet.summary import FleetSummary
from dagster_kinetic.step.events import describe, step_name, write
from dagster_kinetic.step.host_logs import HostLogs
from dagster_kinetic.step.rate_limit import Paced
from dagster_kinetic.step.step import LeftJob, detach_or_cancel, origin_of, owner_of, request_of, step_call_of
from dagster_kinetic.step.summary import headline
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.opening import describe_differences
from kinetic_orchestration.api.printer import prefixed
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.jobs.following.drivers import afollow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.launch import find, launch
from kinetic_orchestration.jobs.request import Draft, Request, draft
from kinetic_orchestration.jobs.results import collect
from kinetic_orchestration.plan import emulation
from kinetic_orchestration.plan.declare.spec import JobSpec
from kinetic_orchestration.plan.identity import of
from kinetic_orchestration.plan.values import Change, Event, Metrics, Output
from kinetic_orchestration.protocol.system import escaping

SUBMITTERS = 4  # jobs that are on their way at the same moment
WAITING_EVENTS = 1000  # then the readers of the jobs' logs wait for the step
SUBMIT_SECONDS = 30.0  # the time that an interrupted step waits for the list of its jobs
LONGEST_SLEEP = 0.5
COUNT_SECONDS = 1.0
STAGES_AT_ONCE = 2  # of launches: all messages of a single one, one a second of many
WAITING_AGAIN = ("resuming", "queued")  # phases of a job that has no hosts now
MOST_FAILURES = 20  # failures that the log lists one by one; also the burst of failures that jobs survive


@dataclass(frozen=True)
class MapResult:
    """Result of one input: its value, or the error of its job or submission."""

    input: Any
    job: JobHandle[Any] | None  # none if it could not be submitted
    value: Any = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    def get(self) -> Any:
        """The value, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.value


MapResult.__module__ = "dagster_kinetic"  # pickles refer to it by this name, independent of this module's

Future = concurrent.futures.Future[Any]


class Launched(NamedTuple):
    number: int
    job: JobHandle[Any]
    other: str = ""  # its differences from this launch
    of: str = ""  # the run whose job it is by its identity


class JobEvent(NamedTuple):
    number: int
    event: Event


class LaunchEvent(NamedTuple):
    """A message of one input's launch while it is in progress."""

    number: int
    text: str


class JobEnded(NamedTuple):
    number: int
    job: JobHandle[Any] | None
    value: Any
    error: Exception | None


News = LaunchEvent | Launched | JobEvent | JobEnded


def map_in_step(
    specs: Sequence[JobSpec],
    inputs: Sequence[Any],
    names: Sequence[str],
    context: _compat.Context,
    call: str,
    width: int,
) -> list[MapResult]:
    """Run all the jobs as this step, and return what became of each, in the order of their inputs."""
    if not specs:
        return []
    origin = origin_of(context)
    specs = [replace(spec, origin=origin) for spec in specs]
    asked = draft(specs[0])  # what refuses one of them refuses all
    plan, here = asked.plan, asked.settings
    log = dg.get_dagster_logger() if context is None else context.log  # none of a map outside of any step
    log.info(f"{len(specs)} jobs run {plan.name}, each on {plan.hardware}{emulation.remark(plan, here)}")
    fleet: Fleet | None = None
    narrator: FleetNarrator | None = None
    ends: dict[int, JobEnded] = {}
    try:
        fleet = Fleet(_requests(asked, specs, names, context, call), len(specs), width)
        narrator = FleetNarrator(context, specs[0].name, call, len(specs))
        with fleet:
            for news in fleet.news():
                narrator(news)
                if isinstance(news, JobEnded):
                    ends[news.number] = news
        narrator.end()
    except (dg.DagsterExecutionInterruptedError, KeyboardInterrupt):
        with _compat.uninterrupted():
            left, unseen = (fleet.left(), fleet.unseen) if fleet is not None else ([], [])
            detach_or_cancel(left, context, unseen=unseen)
        raise
    finally:
        if narrator is not None:
            narrator.close()
    results = [ends[index] for index in range(len(specs))]
    return [MapResult(item, end.job, end.value, end.error) for item, end in zip(inputs, results, strict=True)]


class FleetNarrator:
    """Reports many jobs to a step: each line with its job's number, and in a log of that job alone; the jobs that were
    interrupted or failed; and their counts about once a second.
    """

    def __init__(self, context: _compat.Context, name: str, call: str, size: int) -> None:
        self._context = context
        self._what = f"{call} {name}".lstrip()
        self._hosts: dict[int, int] = {}
        self._owners: set[str] = set()  # earlier runs that were already reported
        self._live: dict[int, bool] = {}  # whether its hosts run
        self._ran: set[int] = set()
        self._summary = FleetSummary(context, name, call, size)
        self._counts = Paced(self._count, lambda: COUNT_SECONDS)
        self._counted = ""  # the counts reported last
        self._stages: Paced[str] = Paced(partial(self._more, "info"), lambda: COUNT_SECONDS, STAGES_AT_ONCE)
        self._troubles: Paced[str] = Paced(partial(self._more, "warning"), lambda: COUNT_SECONDS, MOST_FAILURES)
        self._logs = HostLogs(context, lambda index: f"{step_name(context, call)} [{index}]")

    def __call__(self, news: News) -> None:
        if isinstance(news, JobEvent):
            self._job_event(news.number, news.event)
        elif isinstance(news, LaunchEvent):
            self._stages(f"input {news.number}: {news.text}")
        elif isinstance(news, Launched):
            self._live[news.number] = False
            self._hosts[news.number] = news.job.hosts
            self._summary.launched(news.number, news.job)
            self._report_owner(news)
            if news.other:
                self._troubles(
                    f"input {news.number} goes on with job {news.job.job_id}, which was submitted before with "
                    f"{news.other}. To have what is asked for now: kinetic-orchestration cancel {news.job.job_id}, and "
                    "map it anew"
                )
            self._counts(None)
        else:
            self._live.pop(news.number, None)
            self._summary.ended(news.number, news.job, news.error)
            if news.error is not None and self._summary.counts.failed <= MOST_FAILURES:
                which = f"job {news.job.job_id} " if news.job is not None else ""
                self._log("warning", f"{which}of input {news.number} failed: {headline(news.error)}")
            self._counts(None)

    def _report_owner(self, news: Launched) -> None:
        """Once: what holds of the first job of a run before this one holds of the others of that run."""
        if self._context is not None and news.of not in self._owners:
            owner = owner_of(news.job._job, news.of, self._context)
            if owner:
                self._owners.add(news.of)
                self._log(
                    "info", f"this step goes on with jobs of a run before it, of input {news.number} with {owner}"
                )

    def _job_event(self, index: int, event: Event) -> None:
        if isinstance(event, Output):
            hosts = self._hosts[index]
            write(escaping.log(prefixed(event, hosts, f"[{index}] ")))
            self._logs.write(index, prefixed(event, hosts).encode("utf-8", "backslashreplace"))
        elif isinstance(event, Metrics):
            self._summary.reported(index, event)
        elif isinstance(event, Change):
            level, text = describe(event, index in self._ran)
            if level == "warning":
                self._troubles(f"input {index} is {text}")
            if event.phase == "running":
                self._ran.add(index)
            if event.phase in ("running", *WAITING_AGAIN):
                self._live[index] = event.phase == "running"
                self._counts(None)

    def end(self) -> None:
        """All jobs have ended."""
        self._flush()
        self._summary.end()

    def close(self) -> None:
        with contextlib.suppress(Exception):  # `end` has reported all of it, or another error is raised
            self._flush()
        self._logs.close()

    def _flush(self) -> None:
        self._stages.flush()
        self._troubles.flush()
        self._counts.flush()
        self._summary.flush()

    def _count(self, _: None, missed: int) -> None:
        del missed
        counts, running = self._summary.counts, sum(list(self._live.values()))
        failed = f", {counts.failed} of them failed" if counts.failed else ""
        text = (
            f"{self._what}: {counts.ended} of {counts.jobs} have ended{failed}; {running} run, "
            f"{len(self._live) - running} wait"
        )
        if text != self._counted:  # a delayed report may have been equal
            self._log("info", text)
            self._counted = text

    def _more(self, level: str, text: str, missed: int) -> None:
        self._log(level, text + (f" (and {missed} more like this)" if missed else ""))

    def _log(self, level: str, text: str) -> None:
        if self._context is None:
            write(f"kinetic: {text}\n")
        else:
            getattr(self._context.log, level)(text)


def _requests(
    asked: Draft, specs: Sequence[JobSpec], names: Sequence[str], context: _compat.Context, call: str
) -> Callable[[int], Request]:
    """Return what opens the request of one input, in the thread that submits it.

    The job of each input is independent of the results of the others in an earlier try of the step.
    """
    deployment = asked.settings.deployment
    own = None if _compat.is_direct(context) else step_call_of(context, call)

    def request(index: int) -> Request:
        name = f"{call}[{names[index]}]"
        mine = replace(asked, spec=specs[index])
        if own is None:
            return mine.open(of(deployment, name if call else None))
        return request_of(mine, own._replace(call=name))

    return request


class Fleet:
    """The jobs of one step. As a context manager, it submits and follows them in threads of its own."""

    def __init__(self, request: Callable[[int], Request], jobs: int, width: int) -> None:
        self._request = request
        self._count = jobs
        self._width = width
        self._jobs: dict[int, JobHandle[Any]] = {}
        self._begun: dict[int, Request] = {}
        self.unseen: list[KineticError] = []  # errors due to which the existence of some is unknown
        self._news: queue.Queue[News | BaseException | None] = queue.Queue(WAITING_EVENTS)
        self._stop = threading.Event()  # stop submitting and reporting
        self._gate = asyncio.Semaphore(min(SUBMITTERS, width))
        self._submissions: list[Future] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kinetic-fleet", daemon=True)

    def __enter__(self) -> Fleet:
        self._all = self._loop.create_task(self._follow_all())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop following the jobs; they continue to run."""
        self._stop.set()
        with contextlib.suppress(RuntimeError):  # it has come to its end already
            self._loop.call_soon_threadsafe(self._all.cancel)
        self._thread.join(SUBMIT_SECONDS)

    def news(self) -> Iterator[News]:
        """Yield news until all jobs have ended."""
        while True:
            try:
                found = self._news.get(timeout=LONGEST_SLEEP)
            except queue.Empty:
                continue
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            yield found

    def left(self) -> list[LeftJob]:
        """The jobs there are when the step is interrupted, with those that were on their way."""
        concurrent.futures.wait(self._submissions, SUBMIT_SECONDS)
        begun, jobs = self._begun.copy(), self._jobs.copy()  # a thread that has not answered may still add to them
        for index in begun.keys() - jobs.keys():
            try:
                job = find(begun[index])
            except KineticError as error:
                self.unseen.append(error)
            else:
                if job is not None:
                    jobs[index] = JobHandle(job)
        return [LeftJob(jobs[index], begun[index].identity.run) for index in sorted(jobs)]

    # ---- in the thread of the loop ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._all)
            self._put(None)
        except BaseException as error:  # any error is reported to the step
            self._put(error)
        finally:
            self._loop.close()

    async def _follow_all(self) -> None:
        gate = asyncio.Semaphore(self._width)
        async with asyncio.TaskGroup() as group:
            for index in range(self._count):
                await gate.acquire()
                group.create_task(self._one(index)).add_done_callback(lambda _: gate.release())

    async def _one(self, index: int) -> None:
        job: JobHandle[Any] | None = None
        try:
            job = await self._in_thread(self._submit, index)
            outcome = await afollow(Follower(job._job), lambda event: self._put(JobEvent(index, event)))
            end = JobEnded(index, job, await self._in_thread(collect, job._job, outcome), None)
        except Exception as error:
            end = JobEnded(index, job, None, error)
        await self._in_thread(self._put, end)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run the work in a thread of its own: those of an executor would keep the process until a store that is away
        has answered."""
        async with self._gate:
            future: Future = concurrent.futures.Future()
            future.set_running_or_notify_cancel()
            if work == self._submit:
                self._submissions.append(future)
            call = partial(work, *arguments)
            threading.Thread(target=_settle, args=(future, call), name="kinetic-submit", daemon=True).start()
            return await asyncio.wrap_future(future)

    # ---- in other threads ------------------------------------------------------------------------------------

    def _submit(self, index: int) -> JobHandle[Any]:
        request = self._begun[index] = self._request(index)
        job = launch(request, say=lambda text: self._put(LaunchEvent(index, text)))
        handle = self._jobs[index] = JobHandle(job)
        other, _ = describe_differences(request, job)
        self._put(Launched(index, handle, other, request.identity.run))
        return self._jobs[index]

    def _put(self, news: News | BaseException | None) -> None:
        """Wait while the step's queue is full, but not after the step has stopped listening."""
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._news.put(news, timeout=LONGEST_SLEEP)
                return


def _settle(future: Future, work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
