"""`JobHandle`: a durable reference to a job, valid in any process that can reach the store.

Users hold a `JobHandle`. It wraps a `jobs.job.Job`, which is what the modules of `jobs` pass to each other.
"""

from __future__ import annotations

import contextlib
import datetime
import heapq
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from kinetic_orchestration.api import links
from kinetic_orchestration.api.opening import describe_differences, open_job_at, place_of, reopened, runs, split_address
from kinetic_orchestration.api.printer import Printer, prefixed, say, write, write_error
from kinetic_orchestration.capacity import choosing, prices
from kinetic_orchestration.errors import (
    Corrupt,
    JobNotFound,
    KineticError,
    NewerWire,
    StoreError,
    Unreachable,
    UsageError,
)
from kinetic_orchestration.jobs.following import actions, placing
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.following.logs import Emit, LogReader
from kinetic_orchestration.jobs.following.snapshot import snapshot, snapshot_after
from kinetic_orchestration.jobs.following.verdicts import seen_end
from kinetic_orchestration.jobs.job import Job, how_it_ended, missing, without_spec
from kinetic_orchestration.jobs.lifecycle import Policies
from kinetic_orchestration.jobs.request import Request
from kinetic_orchestration.jobs.results import collect
from kinetic_orchestration.jobs.watching import attempts, live_index, usage
from kinetic_orchestration.packaging.bundle import unread_requirements
from kinetic_orchestration.plan.configuration import settings as configuration
from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.profile import EVERY_HOST
from kinetic_orchestration.plan.hardware.cost import Estimate, times
from kinetic_orchestration.plan.messages import command, warn
from kinetic_orchestration.plan.records import verdict_at
from kinetic_orchestration.plan.values import Attempt, Event, JobStatus, Outcome, Output, Peek, Plan
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.report import curves, job_report, timeline
from kinetic_orchestration.protocol.system import escaping
from kinetic_orchestration.protocol.system.parallel import side_by_side

R = TypeVar("R")

PICTURE_LIMIT = 4 << 20
UNREADABLE = (Corrupt, NewerWire)  # of one job's records, and nothing that concerns others


class JobHandle(Generic[R]):
    """A job. Every method reads its records again, and any number of processes may hold handles of the same job.

    Attributes:
        job_id: Id of the job.
        func_name: Name of its function or command.
        origin: The orchestrator's names for what submitted it.
        created_at: Time of submission, in UTC.
        release: Version of this package that submitted it; "" for 0.1.
        group_id: Batch that it belongs to, or None.
        group_index: Its position among the inputs of the batch, or None.
    """

    def __init__(self, job: Job) -> None:
        spec = job.spec()
        self._job = job = without_spec(job)
        self._follower = Follower(job)
        self._lock = threading.Lock()
        self.job_id = job.job_id
        self.func_name: str = spec["name"]
        self._backend: str = spec["plan"]["backend"]
        self._accelerator: str = spec["plan"]["slice"]["name"]
        self.origin: dict[str, str] = dict(spec.get("origin", {}))  # who launched it, by an orchestrator's own names
        created = datetime.datetime.fromtimestamp(job.policy.created, datetime.UTC)
        self.created_at = created.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.release: str = spec.get("release", "")
        self.group_id: str | None = None  # of a batch's job, with its place among the inputs
        self.group_index: int | None = None

    def __repr__(self) -> str:
        others = " or another" if self._chooses else ""
        return f"<JobHandle {self.job_id} {self.func_name} on {self._accelerator}{others} ({self._backend})>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return the job for a notebook: what `kinor ui` shows of it, without what notebooks drop."""
        del include, exclude
        told = {"text/plain": repr(self)}
        with contextlib.suppress(KineticError):  # of its store: a name says more than an exception in every cell
            peek = self.peek()
            again = f", attempt {peek.attempts}" if peek.attempts > 1 else ""
            line = f"{self.func_name} on {self.accelerator} ({self.backend}): {peek.status.value}{again}"
            pictures = filter(None, (drawn_attempts(self), drawn_curves(self)))
            told["text/html"] = timeline.in_notebook(self.job_id, line, [*pictures])
        return told

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            from kinetic_orchestration.plan.declare.keras_kinetic import without

            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(without("JobHandle", name, said), name=name, obj=self)

    def __reduce__(self) -> Any:
        spec_digest = "" if self._job.doubt else self._job.spec_digest
        place = {"group_id": self.group_id, "group_index": self.group_index}
        store, ended = os.path.dirname(self._job.store.url), seen_end(self._job)
        return _attached, (self.job_id, store, self._deployment(), spec_digest, ended), place

    def _deployment(self) -> str:
        return str(self._job.spec()["plan"]["deployment"])

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> JobHandle[Any]:
        """Return the handle that `to_dict` described. Only the address is used, as by `attach`.

        Args:
            d: A result of `to_dict`.

        Raises:
            UsageError: This is not a description of a job of this package.
            JobNotFound: The store has no such job.
        """
        told = [d.get(key) for key in ("store", "deployment", "job_id")]
        if not all(isinstance(value, str) and value for value in told):
            raise UsageError(
                "this is no handle of a job here: to_dict() gives one with a store, a deployment and a job_id. A job "
                "that Keras Kinetic runs is looked after by Keras Kinetic"
            )
        store, deployment, job_id = told
        handle = attach(f"{store}/{deployment}/jobs/{job_id}")
        group, index = d.get("group_id"), d.get("group_index")
        if isinstance(group, str) and isinstance(index, int):
            handle.group_id, handle.group_index = group, index
        return handle

    def to_dict(self) -> dict[str, Any]:
        """Return the job's address and its description as JSON, without entries that are None."""
        told = {
            "job_id": self.job_id, "store": os.path.dirname(self._job.store.url), "deployment": self._deployment(),
            "backend": self.backend, "project": self.project, "bucket_name": self.bucket_name,
            "image_uri": self.image_uri, "accelerator": self.accelerator, "func_name": self.func_name,
            "display_name": self.display_name, "created_at": self.created_at, "group_id": self.group_id,
            "group_kind": self.group_kind, "group_index": self.group_index, "debug": self.debug,
        }  # fmt: skip
        return {name: value for name, value in told.items() if value is not None}

    @property
    def _chooses(self) -> bool:
        """True if each attempt takes one of several choices."""
        return isinstance(self._job.policy, Policies)

    @property
    def _plan(self) -> Plan:
        """The plan of the newest attempt, which may take one of several choices."""
        return self._job.plan_of(self._newest()) if self._chooses else self._job.plan()

    @property
    def backend(self) -> str:
        """Backend on which it runs; of a job with a choice, its newest attempt."""
        return self._plan.backend if self._chooses else self._backend

    @property
    def accelerator(self) -> str:
        """Name of its slice; of a job with a choice, that of its newest attempt."""
        return self._plan.slice.name if self._chooses else self._accelerator

    @property
    def project(self) -> str:
        """Google Cloud project in which the job runs; "" on this machine."""
        return self._job.plan().project

    @property
    def zone(self) -> str:
        """Zone in which the newest attempt has or awaits hosts; "" before there is one, and on this machine."""
        return self.peek().zone

    @property
    def bucket_name(self) -> str:
        """Bucket of the store; "" if the store is a folder."""
        return (store_address.bucket_path(self._job.store.url) or "").partition("/")[0]

    @property
    def image_uri(self) -> str:
        """Container image of the job; "" if it has none."""
        return self._job.plan().image

    @property
    def display_name(self) -> str:
        """Name of the job for people."""
        return f"kinetic-{self.func_name}-{self.job_id}"

    @property
    def group_kind(self) -> str | None:
        """Kind of the batch: "map", or None for a job of no batch."""
        return None if self.group_id is None else "map"

    @property
    def debug(self) -> bool:
        """True if the function waits for a debugger."""
        return self._job.plan().debug_port != 0

    def status(self) -> JobStatus:
        """Return the job's status. Also advances the job: a lost attempt is followed by the next one."""
        return self._stepped(self._follower.step)

    def _awaited(self) -> JobStatus:
        """The same for those who wait for its end: a store that is away is waited for as well."""
        return self._stepped(self._follower.step_if_reachable)

    def _stepped(self, step: Callable[[], object]) -> JobStatus:
        with self._lock:
            try:
                step()
            except JobNotFound:
                return JobStatus.NOT_FOUND
            return self._follower.status

    def peek(self) -> Peek:
        """Return what the records say, without advancing the job: no attempt is created or closed."""
        return snapshot(self._job)

    def history(self, *, all: bool = True) -> list[Attempt]:
        """Return the attempts with their times and verdicts.

        Args:
            all: Include attempts that never had hosts. Otherwise only the newest of these is included.
        """
        store, times = self._job.store, attempts.times(self._job.store, self.job_id)
        wanted = set(times)
        if not all and times:
            last = max((number for number in times if times[number].began is not None), default=1)
            wanted &= {*attempts.with_hosts(store, self.job_id, last), max(times)}
        ended = sorted(number for number in wanted if times[number].ended is not None)
        read = [names.verdict(self.job_id, number) for number in ended]
        records = dict(zip(ended, side_by_side(store.read, read, store.parallel), strict=True))
        return [
            Attempt(
                number,
                times[number].began,
                times[number].ended,
                verdict_at(record.data, names.verdict(self.job_id, number)) if record else None,
            )
            for number, record in ((number, records.get(number)) for number in sorted(wanted))
        ]

    def logs(self, follow: bool = False) -> str | None:
        """Return all lines so far, or print them until the job ends.

        Args:
            follow: Print the lines as they arrive, and return None when the job has ended.
        """
        if not follow:
            return "".join(self._lines())
        with self._detaching():
            self._watch(Printer(self._job.policy.most, write, job_id=self.job_id))
        show_cause(self)
        return None

    def tail(self, n: int = 100) -> str:
        """Return the last `n` lines."""
        return "".join(deque((line for text in self._lines() for line in text.splitlines(keepends=True)), max(0, n)))

    def events(self) -> Iterator[Event]:
        """Return everything that was recorded so far, attempt by attempt: output, metrics and progress."""
        for attempt in attempts.with_hosts(self._job.store, self.job_id, self._newest()):
            logs = map(LogReader(self._job, attempt).of_host, self._hosts_there(attempt))
            yield from heapq.merge(*logs, key=lambda event: getattr(event, "time", 0.0))

    def result(
        self,
        timeout: float | None = None,
        cleanup: bool | None = True,
        cleanup_timeout: float = 180,
        cleanup_poll_interval: float = 2,
        stream_logs: bool | None = False,
        on_status_change: Callable[[JobStatus], object] | None = None,
    ) -> R:
        """Wait for the job and return its value. Ctrl-C detaches: the job continues.

        Args:
            timeout: Seconds to wait; None for no limit.
            cleanup: Release what earlier attempts still hold.
            cleanup_timeout: Without effect; releasing is bounded.
            cleanup_poll_interval: Without effect.
            stream_logs: Print the hosts' lines as they arrive.
            on_status_change: Called with each new status.

        Returns:
            Host 0's value.

        Raises:
            TimeoutError: The job did not end within `timeout`, and continues.
            JobError: The job ended without a value. An exception of the job's own code is raised as itself.
            StoreError: The store refused, or did not answer.
        """
        timeout = configuration.seconds("timeout", timeout)
        del cleanup_timeout, cleanup_poll_interval  # Keras Kinetic's; releasing here is bounded anyway
        emit = Printer(self._job.policy.most, write, job_id=self.job_id) if stream_logs else None
        with self._detaching():
            outcome = self._watch(emit, on_status_change, timeout=timeout)
        if outcome is None:
            raise TimeoutError(
                f"job {self.job_id} has not ended within {timeout:g} s; it goes on, and may be asked again"
            )
        if cleanup and outcome.attempt > 1:  # the hosts of the last attempt were freed before it was reported
            try:
                actions.release_all(self._job, outcome.attempt)
            except KineticError as error:  # no reason to keep its value back
                warn(f"what may be left of {self.job_id} was not freed ({error}): {command('reap')} does that")
        return cast(R, collect(self._job, outcome))

    def follow(
        self,
        emit: Emit | None = None,
        *,
        timeout: float | None = None,
        stop: threading.Event | None = None,
        on_step: Callable[[Follower], object] | None = None,
    ) -> Outcome | None:
        """Pass every event to `emit`, from the first line on, until the job ends. Ctrl-C detaches.

        Args:
            emit: Called with each event. None reads no lines.
            timeout: Seconds after which to stop; None for no limit.
            stop: Event that ends the wait when it is set.
            on_step: Called with the follower after each poll.

        Returns:
            The job's outcome, or None if it has not ended.
        """
        with self._detaching():
            return follow(Follower(self._job), emit, timeout=timeout, stop=stop, on_step=on_step)

    def cancel(self, reason: str = "", cleanup_timeout: float = 180, cleanup_poll_interval: float = 2) -> None:
        """Cancel the job and wait until it has ended and its hosts are released.

        Args:
            reason: Text for the job's verdict.
            cleanup_timeout: Seconds to wait at most.
            cleanup_poll_interval: Without effect.
        """
        del cleanup_poll_interval
        reason, by = reason or "cancelled by its user", f"{socket.gethostname()}:{os.getpid()}"
        try:
            if self.peek().outcome is not None:
                return
        except UNREADABLE:  # here; its hosts heed a cancel all the same
            actions.cancel(self._job, reason, by)
            raise
        actions.cancel(self._job, reason, by)
        follower = Follower(self._job)
        follow(follower, timeout=cleanup_timeout)
        if any(refused.holds for refused in follower.refused):
            warn(
                f"job {self.job_id} is cancelled, and its hosts could not be freed from here: they end by themselves, "
                "at the latest at their deadline, or by a kinetic-orchestration reap of somebody who may delete them"
            )

    def cleanup(
        self, k8s: bool = True, gcs: bool = True, cleanup_timeout: float = 180, cleanup_poll_interval: float = 2
    ) -> None:
        """Release the hosts of a job that has ended. Its records stay until their retention passes.

        Args:
            k8s: False does nothing.
            gcs: Without effect.
            cleanup_timeout: Without effect; releasing is bounded.
            cleanup_poll_interval: Without effect.
        """
        del gcs, cleanup_timeout, cleanup_poll_interval
        if k8s and self.status().final:
            actions.release_all(self._job, self._newest())

    def cost(self) -> Estimate:
        """Estimate what the job's attempts have used and cost so far, by list prices or the prices in the settings."""
        return self._cost(configuration.load(deployment=self._job.plan().deployment))

    def _cost(self, settings: Settings) -> Estimate:
        plan = self._job.plan()
        stays = usage.stays(self._job.store, self.job_id, kept=plan.keep is not None)
        charged = self._job.backend.charges
        priced = prices.in_force(settings, self._job.store)
        return usage.estimate_of(plan, stays, priced.prices, priced.listed, charged=charged)

    def seconds(self) -> float:
        """Return the seconds for which hosts were held, over all attempts."""
        return usage.ready_seconds(usage.stays(self._job.store, self.job_id))

    def attempts(self) -> int:
        """Return the number of attempts that had hosts, as `peek`, `cost` and `kinor status` count them."""
        return self.peek().attempts

    @property
    def chosen(self) -> str:
        """Text that says which of several choices or warm slices the newest attempt takes; "" if there was one way."""
        return self._job.taken(self._newest())

    def choices(self) -> list[choosing.Line]:
        """Return the choices in the order in which one more attempt would try them now, by what the deployment knows,
        each with its price and the reason; none if there is one only.
        """
        return placing.lines(self._job, self._newest())

    def _newest(self) -> int:
        """The last attempt by the number of its records, those count too that got no hosts."""
        return max(1, attempts.newest(self._job.store, self.job_id))

    @property
    def checkpoint_dir(self) -> str:
        """Folder of the job's checkpoints, the same for all attempts."""
        return self._job.task().checkpoint_dir

    @property
    def output_dir(self) -> str:
        """Folder of the job's outputs, for all attempts and hosts."""
        return self._job.task().output_dir

    @property
    def where(self) -> str:
        """Text that says where the job runs, such as "Cloud TPU v5litepod-8" or "emulated on this machine's CPU"."""
        return self._plan.where

    @property
    def emulated(self) -> bool:
        """True if ordinary processors stand in for the accelerator."""
        return self._plan.stands_in

    @property
    def hosts(self) -> int:
        """Number of hosts of each attempt; of a job with a choice, of the newest one."""
        return self._job.policy_of(self._newest()).hosts if self._chooses else self._job.policy.hosts

    @property
    def crew(self) -> str:
        """Text that counts the hosts, such as "4 hosts" or "1 host, 2 processes"."""
        return self._plan.crew if self._chooses else self._job.policy.crew

    def zones(self) -> list[str]:
        """Return the zones in which attempts had hosts, in order; empty on this machine."""
        stays = usage.stays(self._job.store, self.job_id)
        return list(dict.fromkeys(stay.zone for stay in stays if stay.zone and stay.had_hosts))

    def links(self) -> dict[str, str]:
        """Return the addresses of the console's pages of the records and of what runs the hosts; empty without a
        project of Google Cloud."""
        plan = self._plan
        if not plan.project:
            return {}
        return links.of_job(self._job.store.url, self.job_id, plan.project, plan.traits.options)

    def picture(self) -> bytes | None:
        """Return the job report (SVG) with its metrics and devices, or None as long as there is none."""
        found = self._job.store.read(names.picture(self.job_id), limit=PICTURE_LIMIT)
        return None if found is None else bytes(found.data)

    def picture_url(self) -> str:
        """Return the address of the job report, or "" as long as there is none."""
        name = names.picture(self.job_id)
        return links.view(self._job.store.url, name) if self._job.store.find(name) is not None else ""

    def profile_dir(self) -> str:
        """Return the folder with what `profile=` captured, for `xprof --logdir`, or "" as long as there is nothing."""
        plan, store = self._job.plan(), self._job.store
        for attempt in attempts.with_hosts(store, self.job_id, self._newest()) if plan.profile else ():
            hosts = self._hosts_there(attempt) if plan.profile.get("hosts") == EVERY_HOST else [0]
            if any(store.read_all([names.host(self.job_id, attempt, host, "profile.json") for host in hosts])):
                return names.profile(self.output_dir)
        return ""

    def age(self) -> float:
        """Return the seconds since the job was submitted, by the store's clock."""
        return self._job.store.now() - self._job.policy.created

    def _hosts_there(self, attempt: int) -> list[int]:
        """The hosts that may have written files in an attempt."""
        there = LogReader(self._job, attempt).hosts_there()
        return list(range(self._job.policy_of(attempt).hosts)) if there is None else sorted(there)

    def _lines(self) -> Iterator[str]:
        return (prefixed(event, self._job.policy.most) for event in self.events() if isinstance(event, Output))

    def _watch(
        self,
        emit: Emit | None,
        on_status_change: Callable[[JobStatus], object] | None = None,
        *,
        timeout: float | None = None,
    ) -> Outcome | None:
        told: list[JobStatus] = []

        def tell(follower: Follower) -> None:
            if on_status_change is None or (told and told[-1] is follower.status):
                return
            told.append(follower.status)
            try:
                on_status_change(follower.status)
            except Exception as error:
                warn(f"on_status_change raised {error!r}; the job is not affected")

        return follow(Follower(self._job), emit, timeout=timeout, on_step=tell)

    @contextlib.contextmanager
    def _detaching(self) -> Iterator[None]:
        """Ctrl-C within the block leaves the job running, and prints how to end it."""
        try:
            yield
        except KeyboardInterrupt:
            say(f"detached; job {self.job_id} goes on. To end it: {command('cancel', self.job_id)}")
            raise


def show_cause(handle: JobHandle[Any]) -> None:
    """End a log on stdout with what the job failed of, in bold on a terminal; with nothing, if it did not."""
    if cause := escaping.log(_cause_of(handle)):
        write(f"\x1b[1m{cause}\x1b[0m\n" if sys.stdout.isatty() else f"{cause}\n")


def _cause_of(handle: JobHandle[Any]) -> str:
    """The failure of a job, and its host, with the traceback; "" of one that did not fail, or has not ended."""
    try:
        outcome = handle.peek().outcome
    except KineticError:  # the log has been shown; a query of the job's state reports it
        return ""
    if outcome is None or outcome.status is not JobStatus.FAILED:
        return ""
    verdict = outcome.verdict
    where = f" on host {verdict.host}" if verdict.host is not None and handle.hosts > 1 else ""
    trace = verdict.failure.traceback.rstrip() if verdict.failure is not None else ""
    said = f"\n{trace}" if trace else f" {verdict.reason.strip()}"
    return f"kinetic: job {handle.job_id} failed{where} ({outcome.cause}):{said}"


def drawn_attempts(handle: JobHandle[Any]) -> str:
    """Return the attempts of a job as a time line (SVG, a part of the page that it is in); "" before there is one."""
    job = handle._job
    return timeline.draw(usage.lanes(job.store, job.job_id, kept=job.keeps))


def drawn_curves(handle: JobHandle[Any]) -> str:
    """Return the newest job report likewise, drawn from its data and not from its picture; "" if there is none."""
    state = report_of(handle._job.store, handle.job_id)
    return curves.themed(job_report.draw(state, "", keep=False)) if state else ""


def report_of(store: Store, job_id: str) -> job_report.State:
    """Return the data of the job report; {} if there is none, or one that cannot be trusted to be one."""
    found = store.read(names.picture(job_id), limit=PICTURE_LIMIT)
    return {} if found is None else job_report.read(bytes(found.data), job_id)


def announced(job: Job, settings: Settings) -> JobHandle[Any]:
    """Return the handle of a job that this process has just launched, and print where it runs."""
    verb = "runs" if job.written else "was submitted before, by the same key, and is"
    say(f"{job.job_id} {verb} {runs(job, settings)}")
    return JobHandle(job)


def profile_of(job: Job) -> str:
    """Return the folder of a job's profile, or "" if there is none or the store does not answer."""
    try:
        return JobHandle[Any](job).profile_dir()
    except KineticError:  # it is worth no step
        return ""


def launched(request: Request) -> Job:
    """Launch the job of a call, and tell what its user may not expect: the settings of a job that was found by its key,
    and a requirements file that is not read.
    """
    from kinetic_orchestration.jobs.launch import launch

    job = launch(request)
    warn_of_differences(request, job)
    report_unread_requirements(request, job)
    return job


def warn_of_differences(request: Request, job: Job) -> None:
    """Warn about the differences between a job that was found by its key and this request."""
    told, ended = describe_differences(request, job)
    if told and ended:
        warn(
            f"this key names job {job.job_id}, which was submitted before with {told}, and has ended: its old value is "
            "returned. To have what is asked for now, give another key; on_conflict='error' refuses such a call"
        )
    elif told:
        warn(
            f"this key names job {job.job_id}, which was submitted before with {told}, and goes on as it is. To have "
            f"what is asked for now, end it (kinetic-orchestration cancel {job.job_id}) and give another key"
        )


_told: set[Path] = set()


def report_unread_requirements(request: Request, job: Job) -> None:
    """Print once that a requirements file beside the program is not read, if hosts elsewhere do not get it.

    Only for programs and notebooks: an orchestrator's project has such a file for other reasons.
    """
    plan = request.plan
    unsent = request.spec.options.requirements is None and not plan.traits.share_files and not plan.image
    if not (unsent and job.written):
        return
    if (found := unread_requirements(request.spec)) is None or found in _told:
        return
    _told.add(found)
    relative = os.path.relpath(found)
    named = str(found) if relative.startswith("..") else relative
    say(
        f"{named} is not read: hosts get what the program imports, at the versions installed here. "
        f'To have them install what it lists instead: requirements="{named}"'
    )


def check_terminal(settings: Settings) -> None:
    """Raise UsageError if a blocking call waits for a debugger and has no terminal."""
    if settings.no_tty_debug or (sys.stdin is not None and sys.stdin.isatty()):
        return
    raise UsageError(
        "debug=True makes the call wait for a debugger, and there is no terminal here (stdin is not a TTY). Leave "
        "debug out, call run_async() and attach when the log says where, or set KINETIC_NO_TTY_DEBUG=1"
    )


def run_to_end(job: Job, settings: Settings) -> Any:
    """Run a job to its end: print all hosts' lines, print the cost, wait a moment until its slice is offered if that is
    kept, return the value. Ctrl-C cancels the job.
    """
    handle: JobHandle[Any] = announced(job, settings)
    try:
        outcome = handle._watch(Printer(handle.hosts, write, job_id=handle.job_id, changes=write_error))
    except KeyboardInterrupt:
        say(f"cancelling {job.job_id}")
        try:
            handle.cancel("interrupted by Ctrl-C", cleanup_timeout=60)
            say(how_it_ended(job, handle.peek().outcome))
        except KineticError as error:  # Ctrl-C stays what it is
            say(f"it may go on: {error}")
        raise
    except KineticError as error:  # of its store: what the job itself raises comes later
        error.add_note(f"Job {job.job_id} goes on; to wait for it: {command('result', job.job_id)}")
        raise
    assert outcome is not None
    try:
        cost = handle._cost(settings)
    except KineticError as error:  # no reason to keep its value back
        say(f"what it cost is not known: {error}")
    else:
        say(f"{times(cost)}; {cost}")
    if job.plan().keep:
        from kinetic_orchestration.jobs.cleanup import kept_slices

        kept_slices.wait_until_offered(job, outcome)
    return collect(job, outcome)


def attach(
    job_id: str,
    project: str | None = None,
    cluster: str | None = None,
    store: str | None = None,
    deployment: str | None = None,
) -> JobHandle[Any]:
    """Return the handle of a job, in any process that can reach its store.

    Args:
        job_id: Id of the job, or the address of the job or of one of its objects in a store, as
            `gs://bucket/kinetic/production/jobs/job-…`.
        project: Project of Google Cloud; by default the setting.
        cluster: Without effect.
        store: Folder or address of the store; by default the setting.
        deployment: Prefix in the store; by default the setting.

    Raises:
        JobNotFound: The store has no such job.
        ConflictingSettings: The address is in another store than the one given.
    """
    job_id, place = split_address(job_id, project=project, cluster=cluster, store=store, deployment=deployment)
    return JobHandle(open_job_at(job_id, "", "", **place))


def _attached(job_id: str, store: str, deployment: str, spec_digest: str, ended: str = "") -> JobHandle[Any]:
    """A handle that was pickled: it carries what it takes to go on with its job."""
    return JobHandle(open_job_at(job_id, spec_digest, ended, store=store, deployment=deployment))


def list_jobs(
    project: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    namespace: str | None = None,
    store: str | None = None,
    deployment: str | None = None,
) -> list[JobHandle[Any]]:
    """Return the handles of all jobs of the deployment that have not ended, the newest first.

    Args:
        project: Project of Google Cloud; by default the setting.
        zone: Zone; by default the setting.
        cluster: Without effect.
        namespace: Without effect.
        store: Folder or address of the store; by default the setting.
        deployment: Prefix in the store; by default the setting.

    Raises:
        StoreError: The store refused, or did not answer.
    """
    place = {"project": project, "zone": zone, "cluster": cluster, "namespace": namespace}
    return [handle for handle, _ in live_jobs(warn, **place, store=store, deployment=deployment)]


def job_behind(handle: JobHandle[Any]) -> Job:
    """Return the job of a handle, for commands that lead to its hosts."""
    return handle._job


def status_and_peek(handle: JobHandle[Any]) -> tuple[JobStatus, Peek]:
    """Return what `status` and then `peek` of a handle do, from one look. Raises JobNotFound for a job that is gone."""
    follower = handle._follower
    with handle._lock:
        follower.step(devices=True)
        peek = snapshot_after(handle._job, follower.cursor, follower.seen)
        if follower.waiting and peek.outcome is None:  # its place in the line, or another wait that no record has
            peek = peek._replace(phase="queued", message=follower.waiting)
        return follower.status, peek


def live_jobs(tell: Callable[[str], object], **place: str | None) -> list[tuple[JobHandle[Any], Peek]]:
    """Return all jobs that have not ended, each with its snapshot, the newest first.

    Args:
        tell: Called with the reason for each job that is left out because its records cannot be read.
        **place: Settings of the place.
    """
    opened, backend, settings = place_of(**place)
    backends = {settings.backend: backend}

    def look(job_id: str) -> tuple[JobHandle[Any], Peek] | KineticError | None:
        try:
            handle = JobHandle[Any](reopened(job_id, opened, backends, settings))
            peek = handle.peek()
        except JobNotFound:  # removed since it was listed, or not submitted yet
            live_index.remove_if_never_submitted(opened, job_id)
            return None
        except Unreachable:
            raise
        except (StoreError, UsageError) as error:  # one damaged record must not hide all other jobs
            return error
        if not peek.status.final:
            return handle, peek
        if not handle._job.doubt:
            live_index.remove(opened, job_id)
        return None

    listed = live_index.live_jobs(opened, lambda job_id: look(job_id) is not None)
    found: list[tuple[JobHandle[Any], Peek]] = []
    for job_id, seen in zip(listed, side_by_side(look, listed, opened.parallel), strict=True):
        if isinstance(seen, KineticError):
            tell(f"{job_id} is left out: {seen}")
        elif seen is not None:
            found.append(seen)
    return sorted(found, key=lambda each: each[0]._job.policy.created, reverse=True)


def all_jobs(
    newest: int | None = None, after: str = "", within: float | None = None, **place: str | None
) -> list[JobHandle[Any]]:
    """Return all jobs that the store still has, the newest first.

    Args:
        newest: Maximum number of jobs; None for all.
        after: Only jobs that follow this one in the order.
        within: Only jobs that were submitted within this many seconds.
        **place: Settings of the place.
    """
    opened, backend, settings = place_of(**place)
    written = live_index.submitted(opened)
    listed = sorted(written, key=lambda job_id: (-written[job_id], job_id))
    if within is not None:
        since = opened.now() - within
        listed = [job_id for job_id in listed if written[job_id] >= since]
    if after:
        listed = listed[listed.index(after) + 1 :] if after in written else []
    backends = {settings.backend: backend}

    def opened_one(job_id: str) -> JobHandle[Any] | None:
        try:
            return JobHandle(reopened(job_id, opened, backends, settings))
        except JobNotFound:
            return None  # removed since it was listed
        except (StoreError, UsageError) as error:  # also one on a backend that this version does not know
            warn(f"{job_id} is left out: {error}")
            return None

    handles = side_by_side(opened_one, listed[:newest], opened.parallel)
    return [handle for handle in handles if handle is not None]


def find_job(text: str, **place: str | None) -> JobHandle[Any]:
    """Return the job with this id or this beginning of an id.

    Args:
        text: Id, beginning of an id (`job-` may be left out), or an address as `attach` takes it.
        **place: Settings of the place.

    Raises:
        JobNotFound: There is none.
        UsageError: Several jobs have this beginning.
    """
    wanted, opened, backend, settings = _looked_up(text, **place)
    return JobHandle(reopened(wanted, opened, {settings.backend: backend}, settings))


class UnreadableJob:
    """A job whose spec cannot be read. It can still be cancelled, by its names alone."""

    def __init__(self, text: str, why: str, **place: str | None) -> None:
        self.job_id, self._store, self._backend, _ = _looked_up(text, **place)
        self.why = why

    def cancel(self, reason: str, patience: float) -> bool:
        """Cancel the job and return True if nothing of it is left."""
        by = f"{socket.gethostname()}:{os.getpid()}"
        return actions.abandon(self._store, self._backend, self.job_id, f"{reason}: {self.why}", by, patience=patience)

    def attempts(self) -> list[tuple[int, str]]:
        """Return the attempts, each with the cause of its verdict or "not yet"."""
        told = []
        for number, when in attempts.times(self._store, self.job_id).items():
            record = self._store.read(name := names.verdict(self.job_id, number)) if when.ended else None
            verdict = None if record is None else verdict_at(record.data, name)
            told.append((number, "not yet" if verdict is None else verdict.cause or verdict.kind))
        return told

    def leftovers(self) -> list[str]:
        """Return the places that still hold something of the job, as text."""
        left = [place for place in self._backend.leftovers() if "unread" not in place and place["job"] == self.job_id]
        return [", ".join(filter(None, (str(it.get("zone", "")), str(it.get("name") or it.get("run"))))) for it in left]


def _looked_up(text: str, **place: str | None) -> tuple[str, Store, Backend, Settings]:
    text, place = split_address(text, **place)
    opened, backend, settings = place_of(**place)
    wanted = text.strip().removeprefix(names.JOBS)
    wanted = wanted if wanted.startswith("job-") else f"job-{wanted}"
    if not wanted.replace("-", "").isalnum():
        raise JobNotFound(missing(text, opened))
    if opened.read(names.spec(wanted)) is None:
        found = sorted({entry.name.split("/")[1] for entry in opened.list(names.JOBS + wanted)})
        if len(found) > 1:
            some = ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
            raise UsageError(f"{text!r} begins the ids of {len(found)} jobs: {some}. Give a letter more.")
        wanted = found[0] if found else text
    if not wanted.startswith("job-"):
        raise JobNotFound(missing(text, opened))
    return wanted, opened, backend, settings
