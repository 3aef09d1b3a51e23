"""What users hold: `JobHandle`, a durable reference to a job, good in any process that reaches the store."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

from kinetic_orchestration import act, lifecycle, settings
from kinetic_orchestration.act import Job
from kinetic_orchestration.agent import names
from kinetic_orchestration.backends import Backend, open_backend
from kinetic_orchestration.cost import Estimate, estimate
from kinetic_orchestration.errors import JobNotFound, StoreError, UsageError
from kinetic_orchestration.follow import Emit, Follower, Printer, follow, prefixed
from kinetic_orchestration.notices import warn
from kinetic_orchestration.results import collect
from kinetic_orchestration.stores import Store, open_store
from kinetic_orchestration.values import Attempt, Cursor, Event, JobStatus, Outcome, Output, Peek
from kinetic_orchestration.watch import look, verdict_of

R = TypeVar("R")


class JobHandle(Generic[R]):
    """One job. Every question looks at the records anew; any number of processes may hold the same job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._follower = Follower(job)
        self._lock = threading.Lock()
        spec = job.spec()
        self.job_id = job.job_id
        self.func_name: str = spec["name"]
        self.backend: str = spec["plan"]["backend"]
        self.accelerator: str = spec["plan"]["slice"]["name"]
        self.created_at = _iso(job.policy.created)
        self.group_id: str | None = None  # of a batch's job, with its place among the inputs
        self.group_index: int | None = None

    def __repr__(self) -> str:
        return f"<JobHandle {self.job_id} {self.func_name} on {self.accelerator} ({self.backend})>"

    def __reduce__(self) -> Any:
        return attach, (self.job_id, None, None, os.path.dirname(self._job.store.url), self._deployment())

    def _deployment(self) -> str:
        return str(self._job.spec()["plan"]["deployment"])

    def status(self) -> JobStatus:
        """What the job does now. Asking also moves it on: a lost attempt is followed by the next one."""
        with self._lock:
            try:
                self._follower.step()
            except JobNotFound:
                return JobStatus.NOT_FOUND
            return self._follower.status

    def peek(self) -> Peek:
        """What the records say now. Unlike `status()`, asking changes nothing: no attempt is made or closed."""
        job, cursor = self._job, Cursor()
        while True:
            seen = look(job.store, job.backend, job.job_id, cursor.attempt, job.policy.hosts)
            step = lifecycle.advance(cursor, seen, job.policy)
            if step.outcome is not None or step.cursor.attempt == cursor.attempt:
                break
            cursor = step.cursor
        beat = next(iter(seen.beats), None)
        return Peek(
            status=lifecycle.status(step.cursor, seen, step.outcome),
            attempt=step.cursor.attempt,
            phase=step.cursor.phase,
            message=next((action.reason for action in step.actions if isinstance(action, lifecycle.Close)), ""),
            done=beat.done if beat is not None else 0.0,
            total=beat.total if beat is not None else 0.0,
            unit=beat.unit if beat is not None else "",
            outcome=step.outcome,
        )

    def history(self) -> list[Attempt]:
        """Every attempt with its times and its end, as the records have them."""
        found = []
        for number in range(1, self._last_attempt() + 1):
            intent, record = (self._job.store.read(name(self.job_id, number)) for name in (names.intent, names.verdict))
            verdict = None if record is None else verdict_of(record.data)
            began = intent.updated if intent is not None else None
            found.append(Attempt(number, began, record.updated if record is not None else None, verdict))
        return found

    def logs(self, follow: bool = False) -> str | None:
        """All lines so far; with `follow`, printed as they come until the job ends."""
        if not follow:
            return "".join(self._lines())
        with self._detaching():
            self._watch(Printer(self.hosts, _write))
        return None

    def tail(self, n: int = 100) -> str:
        """The last `n` lines."""
        lines = "".join(self._lines()).splitlines(keepends=True)
        return "".join(lines[-n:]) if n > 0 else ""

    def events(self) -> Iterator[Event]:
        """Everything recorded so far, attempt by attempt: output, metrics, progress."""
        last = self._last_attempt()
        for attempt in range(1, last + 1):
            reader = Follower(self._job)
            reader.cursor = reader.cursor._replace(attempt=attempt)
            found: list[Event] = []
            reader.read_logs(found.append)
            yield from sorted(found, key=lambda event: getattr(event, "time", 0.0))

    def result(
        self,
        timeout: float | None = None,
        cleanup: bool | None = True,
        cleanup_timeout: float = 180,
        cleanup_poll_interval: float = 2,
        stream_logs: bool | None = False,
        on_status_change: Callable[[JobStatus], object] | None = None,
    ) -> R:
        """Wait for the value, or raise what the job raised. Ctrl-C detaches: the job goes on."""
        settings.seconds("timeout", timeout)
        del cleanup_timeout, cleanup_poll_interval  # Keras Kinetic's; releasing here is bounded anyway
        emit = Printer(self.hosts, _write) if stream_logs else None
        with self._detaching():
            outcome = self._watch(emit, on_status_change, timeout=timeout)
        if outcome is None:
            raise TimeoutError(
                f"job {self.job_id} has not ended within {timeout:g} s; it goes on, and may be asked again"
            )
        if cleanup:
            self.cleanup(gcs=False)
        return cast(R, collect(self._job, outcome))

    def follow(
        self,
        emit: Emit | None = None,
        *,
        timeout: float | None = None,
        stop: threading.Event | None = None,
        on_step: Callable[[Follower], object] | None = None,
    ) -> Outcome | None:
        """Hand every event to `emit`, from the first line on, until the job ends, time is up or `stop` is set.

        `on_step` sees the follower after each of its looks, for those who want no lines. Ctrl-C detaches.
        """
        with self._detaching():
            return follow(Follower(self._job), emit, timeout=timeout, stop=stop, on_step=on_step)

    def cancel(self, reason: str = "", cleanup_timeout: float = 180, cleanup_poll_interval: float = 2) -> None:
        """Ask the job to end and wait until it has, and its hosts are gone."""
        del cleanup_poll_interval
        if self.peek().outcome is not None:
            return
        act.cancel(self._job, reason or "cancelled by its user", f"{socket.gethostname()}:{os.getpid()}")
        follow(Follower(self._job), timeout=cleanup_timeout)

    def cleanup(
        self, k8s: bool = True, gcs: bool = True, cleanup_timeout: float = 180, cleanup_poll_interval: float = 2
    ) -> None:
        """Release what the job holds of compute. Its records (Keras Kinetic's `gcs`) live on by retention."""
        del gcs, cleanup_timeout, cleanup_poll_interval
        if k8s and self.status().final:
            for attempt in range(1, self._last_attempt() + 1):
                act.release(self._job, attempt)

    def cost(self) -> Estimate:
        """What the job's attempts have cost so far, by the prices in `cost`."""
        plan = self._job.plan()
        return estimate(plan.slice, self.seconds(), emulated=plan.backend == "local")

    def seconds(self) -> float:
        """How long its hosts were held, over all attempts."""
        held, store = 0.0, self._job.store
        for attempt in range(1, self._last_attempt() + 1):
            intent, verdict = (store.read(name(self.job_id, attempt)) for name in (names.intent, names.verdict))
            if intent is not None:
                held += (verdict.updated if verdict is not None else store.now()) - intent.updated
        return held

    def attempts(self) -> int:
        """How many attempts there were."""
        return self._last_attempt()

    @property
    def output_dir(self) -> str:
        return str(self._job.spec()["task"]["output_dir"])

    @property
    def hosts(self) -> int:
        """How many hosts each attempt has."""
        return self._job.policy.hosts

    def age(self) -> float:
        """Seconds since the job was made, by the store's clock."""
        return self._job.store.now() - self._job.policy.created

    def _last_attempt(self) -> int:
        attempt = 1
        while self._job.store.read(names.intent(self.job_id, attempt + 1)) is not None:
            attempt += 1
        return attempt

    def _lines(self) -> Iterator[str]:
        return (prefixed(event, self.hosts) for event in self.events() if isinstance(event, Output))

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
        """Ctrl-C leaves the job alone, and says how to end it."""
        try:
            yield
        except KeyboardInterrupt:
            say(f"detached; job {self.job_id} goes on. To end it: kinetic-orchestration cancel {self.job_id}")
            raise


def submitted(job: Job) -> JobHandle[Any]:
    """The handle of a job that this process has just launched; says what it became, with its resolved topology."""
    plan = job.plan()
    say(f"{job.job_id} runs {plan.name} on {plan.slice}")
    return JobHandle(job)


def check_terminal() -> None:
    """A blocking call that waits for a debugger needs somebody who attaches one."""
    if settings.load().no_tty_debug or (sys.stdin is not None and sys.stdin.isatty()):
        return
    raise UsageError(
        "debug=True makes the call wait for a debugger, and there is no terminal here (stdin is not a TTY). Leave "
        "debug out, call run_async() and attach when the log says where, or set KINETIC_NO_TTY_DEBUG=1"
    )


def run_to_end(job: Job) -> Any:
    """What a blocking call does: every host's lines as they come, the cost, the value. Ctrl-C cancels."""
    handle: JobHandle[Any] = submitted(job)
    try:
        outcome = handle._watch(Printer(handle.hosts, _write, changes=_write_error))
    except KeyboardInterrupt:
        say(f"cancelling {job.job_id}")
        handle.cancel("interrupted by Ctrl-C", cleanup_timeout=60)
        raise
    assert outcome is not None
    say(str(handle.cost()))
    return collect(job, outcome)


def attach(
    job_id: str,
    project: str | None = None,
    cluster: str | None = None,
    store: str | None = None,
    deployment: str | None = None,
) -> JobHandle[Any]:
    """The handle of a job, from any process or machine that reaches its store."""
    opened, backend = open_place(project=project, cluster=cluster, store=store, deployment=deployment)
    return JobHandle(act.open_job(job_id, opened, backend))


def list_jobs(
    project: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    namespace: str | None = None,
    store: str | None = None,
    deployment: str | None = None,
) -> list[JobHandle[Any]]:
    """All jobs of the deployment that have not ended, the newest first, as in Keras Kinetic."""
    handles = all_jobs(
        project=project, zone=zone, cluster=cluster, namespace=namespace, store=store, deployment=deployment
    )
    return [handle for handle in handles if not handle.peek().status.final]


def all_jobs(**place: str | None) -> list[JobHandle[Any]]:
    """All jobs that the store still knows, the newest first."""
    opened, backend = open_place(**place)
    specs = [entry.name for entry in opened.list(names.JOBS) if entry.name.endswith("/in/spec.json")]
    handles: list[JobHandle[Any]] = []
    for name in specs:
        try:
            handles.append(JobHandle(act.open_job(name.split("/")[1], opened, backend)))
        except JobNotFound:
            pass  # removed since it was listed
        except StoreError as error:
            warn(f"{error}; job {name.split('/')[1]} is left out")
    return sorted(handles, key=lambda handle: handle._job.policy.created, reverse=True)


def find_job(text: str, **place: str | None) -> JobHandle[Any]:
    """The job of an id, or of the beginning of one, that no other job shares; `job-` may be left out."""
    opened, backend = open_place(**place)
    wanted = text.strip().removeprefix(names.JOBS)
    wanted = wanted if wanted.startswith("job-") else f"job-{wanted}"
    if not wanted.replace("-", "").isalnum():
        raise JobNotFound(act.missing(text, opened))
    if opened.read(names.spec(wanted)) is None:
        found = sorted({entry.name.split("/")[1] for entry in opened.list(names.JOBS + wanted)})
        if len(found) > 1:
            some = ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
            raise UsageError(f"{text!r} begins the ids of {len(found)} jobs: {some}. Give a letter more.")
        wanted = found[0] if found else text
    if not wanted.startswith("job-"):
        raise JobNotFound(act.missing(text, opened))
    return JobHandle(act.open_job(wanted, opened, backend))


def open_place(**arguments: str | None) -> tuple[Store, Backend]:
    here = settings.load(None, **arguments)
    return open_store(here.store, here.deployment), open_backend(here.backend, here)


def _iso(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """A line about a job, beside its output."""
    _write_error(f"kinetic: {text}\n")


def _write_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
