"""Many jobs of one function: `BatchHandle`, and the thread that keeps a limited number of them running.

A child's identity is its group and its index in it, so a batch can be attached to from its group id alone, even if the
process that was submitting it is gone. The id contains the number of jobs: a writer of the store cannot hide results of
a batch.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kinetic_orchestration.api.handle import UNREADABLE, JobHandle, report_unread_requirements
from kinetic_orchestration.api.opening import place_of, reopened
from kinetic_orchestration.api.printer import say
from kinetic_orchestration.errors import Corrupt, JobNotFound, KineticError, Unreachable, UsageError
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.job import ME, set_aside
from kinetic_orchestration.jobs.launch import launch
from kinetic_orchestration.jobs.request import Request, draft
from kinetic_orchestration.jobs.watching.watchers.base import Wakeups
from kinetic_orchestration.jobs.watching.watchers.registry import watcher_of
from kinetic_orchestration.plan import emulation
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.spec import JobSpec
from kinetic_orchestration.plan.identity import Identity, job_id
from kinetic_orchestration.plan.messages import command, warn, warn_once
from kinetic_orchestration.plan.records import GROUP, GROUP_END, MOST_JOBS, fields_of
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.registry import open_backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.report import timeline
from kinetic_orchestration.protocol.system import processes

R = TypeVar("R")

INPUT_MODES = ("auto", "single", "args", "kwargs")


class BatchError(KineticError):
    """Some jobs of a batch failed.

    Attributes:
        group_id: Id of the batch.
        failures: Handles of the jobs that failed.
        partial_results: Values of the other jobs in the order of the inputs, with None in the gaps.
        submission_failures: Exceptions of jobs that could not be submitted, by the position of their input.
    """

    def __init__(
        self,
        group_id: str,
        failures: list[JobHandle[Any]],
        partial_results: list[Any],
        submission_failures: Mapping[int, Exception] | None = None,
    ) -> None:
        self.group_id = group_id
        self.failures = failures
        self.partial_results = partial_results
        self.submission_failures = dict(submission_failures or {})
        failed = len(failures) + len(self.submission_failures)
        ids = ", ".join(job.job_id for job in failures[:5]) + (", …" if len(failures) > 5 else "")
        super().__init__(
            f"batch {group_id}: {failed} of {len(partial_results)} jobs failed ({ids or 'none was submitted'}). "
            f"Their exceptions: results(return_exceptions=True); their logs: {command('logs', 'ID')}"
        )

    def __reduce__(self) -> Any:
        """Pickle by the arguments: an exception that cannot be unpickled breaks the pool of processes that it came
        from."""
        given = (self.group_id, self.failures, self.partial_results, self.submission_failures)
        return type(self), given, self.__dict__.copy()


class BatchHandle(Generic[R]):
    """The jobs of one batch, in the order of their inputs.

    Attributes:
        group_id: Id of the batch.
        name: Its name, or None.
        tags: JSON that was stored with it.
        jobs: Handles by position; None until the job is submitted.
        submission_failures: Exceptions of jobs that could not be submitted, by position.
    """

    def __init__(
        self,
        group_id: str,
        name: str | None,
        tags: Mapping[str, str],
        size: int,
        store: Store,
        backend: Backend,
    ) -> None:
        self.group_id = group_id
        self.name = name
        self.tags = dict(tags)
        self.jobs: list[JobHandle[R] | None] = [None] * size
        self.submission_failures: dict[int, Exception] = {}
        self._store = store
        self._watcher = watcher_of(store, backend)
        self._failures: list[JobHandle[R]] | None = None
        self._submitted = threading.Event()
        self._submits = False  # whether it is this process that does
        self._unseen = ""  # why this process does not know whether all are submitted

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Any:
            from kinetic_orchestration.plan.declare.keras_kinetic import without

            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(without("BatchHandle", name, said), name=name, obj=self)

    def __repr__(self) -> str:
        return f"<BatchHandle {self.group_id} {self.name or ''} {self.status_counts()}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return the batch for a notebook: how many of its jobs are in which state, as a bar and in words."""
        del include, exclude
        told = {"text/plain": repr(self)}
        with contextlib.suppress(KineticError):  # of its store: a name says more than an exception in every cell
            counts = {status: count for status, count in self.status_counts().items() if count}
            line = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no job yet"
            title = " ".join(filter(None, (self.group_id, self.name)))
            told["text/html"] = timeline.in_notebook(title, line, [timeline.shares(counts)] if counts else [])
        return told

    def statuses(self) -> list[tuple[int, JobStatus]]:
        """Return position and status of every submitted job."""
        return [(index, job.status()) for index, job in enumerate(self.jobs) if job is not None]

    def status_counts(self) -> dict[str, int]:
        """Return the number of submitted jobs with each status."""
        return dict(collections.Counter(status.value for _, status in self.statuses()))

    def wait(self, timeout: float | None = None) -> None:
        """Wait until every job has ended, successfully or not.

        Args:
            timeout: Seconds to wait; None for no limit.

        Raises:
            TimeoutError: Some jobs have not ended, and continue.
        """
        for _ in self.as_completed(timeout=timeout):
            pass

    def as_completed(self, poll_interval: float | None = None, timeout: float | None = None) -> Iterator[JobHandle[R]]:
        """Return the jobs as they end, also while others are still being submitted.

        Args:
            poll_interval: Without effect; the end of a job is an event.
            timeout: Seconds to wait for all of them; None for no limit.

        Raises:
            TimeoutError: Some jobs have not ended, and continue.
        """
        del poll_interval  # Keras Kinetic's: here the end of a job is an event
        deadline = None if timeout is None else time.monotonic() + timeout
        seen: set[int] = set()
        with self._watcher.wakeups(self.group_id) as wakeups:
            look_at_all = 0.0
            while True:
                heard = wakeups.clear()
                everything = time.monotonic() >= look_at_all
                if everything:
                    look_at_all = time.monotonic() + self._pace()
                complete = self._submitted.is_set()
                for index, job in enumerate(self.jobs):
                    if job is None or index in seen:
                        continue
                    self._follow(wakeups, job)
                    if (everything or job.job_id in heard) and _has_ended(job):
                        seen.add(index)
                        wakeups.unfollow(job.job_id)
                        yield job
                    if job._follower.unreachable:  # nor can the others be asked
                        break
                if complete and len(seen) == sum(job is not None for job in self.jobs):
                    self._tell_what_is_missing()
                    return
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(
                        f"batch {self.group_id}: {len(seen)} of {len(self.jobs)} jobs have ended after {timeout:g} s; "
                        "the others go on"
                    )
                if self.group_id in heard:
                    look_at_all = 0.0 if complete else look_at_all
                wakeups.wait(min(0.5, self._pace() if left is None else left))

    def results(
        self,
        timeout: float | None = None,
        ordered: bool = True,
        cleanup: bool = True,
        return_exceptions: bool = False,
    ) -> list[R]:
        """Wait for all jobs and return their values.

        Args:
            timeout: Seconds to wait; None for no limit.
            ordered: Return the values in the order of the inputs, else in the order in which the jobs ended.
            cleanup: Release what earlier attempts still hold.
            return_exceptions: Return the exception of a job in place of its value.

        Raises:
            BatchError: A job failed or could not be submitted, and `return_exceptions` is False.
            TimeoutError: Some jobs have not ended, and continue.
        """
        try:
            order = [self.jobs.index(job) for job in self.as_completed(timeout=timeout)]
        except KeyboardInterrupt:
            others = self._submits and not self._submitted.is_set()
            say(
                f"detached; the jobs of batch {self.group_id} go on"
                f"{', and this process submits the others before it ends' if others else ''}. "
                f"To end them: kinetic.attach_batch({self.group_id!r}).cancel()"
            )
            raise
        values: list[Any] = [None] * len(self.jobs)
        failures: list[JobHandle[Any]] = []
        for index in sorted(order):
            job = self.jobs[index]
            assert job is not None
            try:
                values[index] = job.result(cleanup=cleanup)
            except Exception as error:
                failures.append(job)
                values[index] = error if return_exceptions else None
        for index, failure in self.submission_failures.items():
            values[index] = failure if return_exceptions else None
        self._failures = failures
        if (failures or self.submission_failures) and not return_exceptions:
            raise BatchError(self.group_id, failures, values, self.submission_failures)
        if ordered:
            return values
        rest = [index for index in range(len(values)) if index not in order]
        return [values[index] for index in [*order, *rest]]

    def failures(self) -> list[JobHandle[R]]:
        """Return the jobs that failed; after `results()`, those without a value."""
        if self._failures is not None:
            return list(self._failures)
        return [job for job in self.jobs if job is not None and job.status() is JobStatus.FAILED]

    def cancel(self) -> None:
        """Stop submitting, in whatever process, and cancel all jobs that have not ended."""
        _end(self, CANCELLED)
        self._submitted.wait(60.0)
        reason = f"batch {self.group_id} was cancelled"
        live: list[JobHandle[R]] = []
        unreadable = [error for error in list(self.submission_failures.values()) if isinstance(error, UNREADABLE)]
        for job in filter(None, self.jobs):  # all are asked before the first is waited for
            try:
                if job.peek().status.final:
                    continue
                live.append(job)
            except UNREADABLE as error:  # its hosts heed a cancel all the same, and so do the others
                unreadable.append(error)
            actions.cancel(job._job, reason, ME)
        for job in live:
            job.cancel(reason)
        if unreadable:
            raise unreadable[0]

    def cleanup(self, k8s: bool = True, gcs: bool = True) -> None:
        """Release the hosts of jobs that have ended. Their records stay until their retention passes.

        Args:
            k8s: False does nothing.
            gcs: Without effect.
        """
        for job in self.jobs:
            if job is not None:
                job.cleanup(k8s=k8s, gcs=gcs)

    def _tell_what_is_missing(self) -> None:
        missing = sum(job is None for job in self.jobs) - len(self.submission_failures)
        if self.submission_failures:
            warn(
                f"batch {self.group_id}: {len(self.submission_failures)} of its inputs could not be submitted; "
                "submission_failures says why"
            )
        elif missing and self._unseen:
            warn(f"batch {self.group_id}: whether {missing} of its inputs were submitted is not known: {self._unseen}")
        elif missing and _why_over(self._store, self.group_id) == "":
            warn(
                f"batch {self.group_id}: {missing} of its inputs have not been submitted, and nobody may do it any more"
            )

    def _follow(self, wakeups: Wakeups, job: JobHandle[Any]) -> None:
        wakeups.follow(job.job_id)
        self._watcher.subscribe(job.job_id, job._follower, reads=False)

    def _pace(self) -> float:
        return max(self._watcher.sleep_seconds(), len(self.jobs) / 50)


def submit_all(
    spec_of: Callable[[tuple[Any, ...], Mapping[str, Any]], JobSpec],
    inputs: Iterable[Any],
    *,
    input_mode: str = "auto",
    max_concurrent: int | None = 64,
    retries: int = 0,
    fail_fast: bool = False,
    cancel_running_on_fail: bool = False,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> BatchHandle[Any]:
    """Submit one job for each input, as `RemoteCallable.run_async_map` does, which describes the other parameters.

    Args:
        spec_of: Makes the spec of a call from its positional and keyword arguments.

    Raises:
        UsageError: An option or an input is invalid. No job was submitted.
    """
    if max_concurrent is not None and max_concurrent < 1:
        raise UsageError(f"max_concurrent is {max_concurrent}: at least one job must be able to run, or None for all")
    if retries < 0:
        raise UsageError(f"retries is {retries}: it cannot be negative")
    if input_mode not in INPUT_MODES:
        raise UsageError(f"input_mode is {input_mode!r}; it can be {', '.join(INPUT_MODES)}")
    calls = [arguments(item, input_mode) for item in inputs]
    if not calls:
        raise UsageError("inputs is empty: there is nothing to run")
    specs = [_retrying(_checked(spec_of, index, *call), retries) for index, call in enumerate(calls)]
    if cancel_running_on_fail and not fail_fast:
        warn("cancel_running_on_fail has no effect without fail_fast=True")
    if specs[0].options.key is not None:
        warn_once(
            "key= names one job and has no meaning for a batch: whoever submits it again has new jobs. To find these "
            "again: kinetic.attach_batch(batch.group_id)"
        )
    group_id = f"grp-{secrets.token_hex(6)}x{len(specs)}"
    asked = draft(specs[0])
    settings, plan = asked.settings, asked.plan
    request = asked.open(child(settings.deployment, group_id, 0))
    me = processes.find(os.getpid())
    record = {
        "name": name,
        "tags": dict(tags or {}),
        "size": len(specs),
        "deployment": settings.deployment,
        "backend": plan.runs_on,
        "submitter": {"machine": processes.machine(), "pid": os.getpid(), "started": me.started if me else ""},
    }
    try:
        encoded = wire.encode(record)
    except (TypeError, ValueError) as error:
        raise UsageError(f"name= and tags= are kept as JSON, which these cannot be: {error}") from None
    request.store.create(names.group(group_id), encoded)
    batch: BatchHandle[Any] = BatchHandle(group_id, name, tags or {}, len(specs), request.store, request.backend)
    say(f"batch {group_id} runs {plan.name} {len(specs)} times on {plan.hardware}{emulation.remark(plan, settings)}")
    driver = _Driver(
        batch, request, specs, max_concurrent or len(specs),
        fail_fast=fail_fast, cancel_running=fail_fast and cancel_running_on_fail,
    )  # fmt: skip
    batch._submits = True
    if len(specs) <= driver.width and not driver.cancel_running:
        driver.run()
    else:
        threading.Thread(target=driver.run, name=f"kinetic-{group_id}").start()
    return batch


class _Driver:
    """Submits the jobs of a batch, a limited number at a time, until all are, one failed, or the batch is cancelled."""

    def __init__(
        self, batch: BatchHandle[Any], request: Request, specs: list[JobSpec], width: int,
        *, fail_fast: bool, cancel_running: bool,
    ) -> None:  # fmt: skip
        self.batch = batch
        self.specs = specs
        self.width = width
        self.cancel_running = cancel_running
        self._request = request
        self._fail_fast = fail_fast
        self._running: list[JobHandle[Any]] = []

    def run(self) -> None:
        batch = self.batch
        try:
            self._submit()
        except KeyboardInterrupt:
            there = sum(job is not None for job in batch.jobs)
            say(
                f"{there} of {len(batch.jobs)} jobs of batch {batch.group_id} are submitted, and go on. "
                f"To end them: kinetic.attach_batch({batch.group_id!r}).cancel()"
            )
            raise
        except Exception as error:  # a caller that waits for the batch gets it, as the error of the remaining inputs
            failed = batch.submission_failures
            left = [index for index, job in enumerate(batch.jobs) if job is None and index not in failed]
            failed.update(dict.fromkeys(left, error))
            if not left:
                warn(f"batch {batch.group_id} is watched no more, so this process cancels nothing of it: {error}")
        finally:
            try:
                with contextlib.suppress(KineticError):  # others see that this process is gone
                    _end(batch, SUBMITTED)
            finally:
                batch._submitted.set()
            batch._store.ring(batch.group_id)

    def _submit(self) -> None:
        with self.batch._watcher.wakeups(self.batch.group_id) as wakeups:
            for index, spec in enumerate(self.specs):
                while len(self._running) >= self.width and not self._stopped():
                    wakeups.clear()
                    self._look()
                    if len(self._running) >= self.width and not self._stopped():
                        wakeups.wait(0.5)
                if self._stopped():
                    return
                me = child(self._request.settings.deployment, self.batch.group_id, index)
                request = self._request.another_call(spec, me)
                try:
                    launched = launch(request)
                    job: JobHandle[Any] = JobHandle(launched)
                except Unreachable:  # nor would the others come through
                    raise
                except Exception as error:
                    self.batch.submission_failures[index] = error
                    self._one_failed()
                    continue
                if not self._running:
                    report_unread_requirements(request, launched)
                _place(self.batch, index, job)
                self.batch._follow(wakeups, job)
                self._running.append(job)
                self.batch._store.ring(self.batch.group_id)
            while self.cancel_running and self._running and not self._stopped():
                wakeups.clear()
                self._look()
                wakeups.wait(0.5)
        if _why_over(self.batch._store, self.batch.group_id) == CANCELLED:
            self._cancel_running(f"batch {self.batch.group_id} was cancelled")  # jobs that were launched in between

    def _stopped(self) -> bool:
        try:
            return _why_over(self.batch._store, self.batch.group_id) != ""
        except Unreachable:  # the jobs are polled as well, which bounds the time without a store
            return False

    def _look(self) -> None:
        ended: list[JobHandle[Any]] = []
        for job in self._running:
            if _has_ended(job):
                ended.append(job)
            if job._follower.unreachable:  # nor can the others be asked
                break
        self._running = [job for job in self._running if job not in ended]
        if any(job._follower.status is JobStatus.FAILED for job in ended):
            self._one_failed()

    def _one_failed(self) -> None:
        if not self._fail_fast:
            return
        _end(self.batch, FAILED)
        if self.cancel_running:
            self._cancel_running(f"another job of batch {self.batch.group_id} failed")

    def _cancel_running(self, reason: str) -> None:
        for job in self._running:
            actions.cancel(job._job, reason, ME)


def _has_ended(job: JobHandle[Any]) -> bool:
    """Return True if a waiting caller may treat the job as ended; a job whose records cannot be read is."""
    try:
        return job._awaited().final
    except UNREADABLE:
        return True


SUBMITTED, FAILED, CANCELLED = "submitted", "failed", "cancelled"


def _end(batch: BatchHandle[Any], why: str) -> None:
    """Record that no more jobs of this batch are to be submitted. The first reason stays."""
    batch._store.create(names.group_end(batch.group_id), wire.encode({"why": why, "size": len(batch.jobs)}))
    batch._store.ring(batch.group_id)


def _why_over(store: Store, group_id: str) -> str:
    record = store.read(names.group_end(group_id))
    return "" if record is None else str(_told_of_end(store, group_id, record)["why"])


def _told_of_end(store: Store, group_id: str, record: Record) -> dict[str, Any]:
    """The record of why a batch is over, and of its number of jobs. A damaged one is set aside: the batch is over all
    the same."""
    try:
        return fields_of(record.data, GROUP_END, names.group_end(group_id))
    except Corrupt:
        _set_aside(store, names.group_end(group_id), record)
        return {"why": SUBMITTED}


def _told_of_group(store: Store, group_id: str, record: Record, settings: Settings) -> dict[str, Any]:
    """A batch's own record. If it is damaged and set aside, the id gives the number of jobs of the batch."""
    try:
        return fields_of(record.data, GROUP, names.group(group_id))
    except Corrupt:
        if (told := _SIZE.search(group_id)) is None or not 0 < int(told[1]) <= MOST_JOBS:
            raise
        _set_aside(store, names.group(group_id), record)
        return {"name": None, "tags": {}, "size": int(told[1]), "deployment": settings.deployment}


def _set_aside(store: Store, name: str, record: Record) -> None:
    told = set_aside(store, name, record.data)
    warn_once(f"{name} in {store.url} is damaged: what it said of the batch is not known. {told}")


def _place(batch: BatchHandle[Any], index: int, job: JobHandle[Any]) -> None:
    job.group_id, job.group_index = batch.group_id, index
    batch.jobs[index] = job


def _checked(spec_of: Any, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobSpec:
    """Check all inputs before the first is submitted."""
    try:
        spec: JobSpec = spec_of(args, kwargs)
    except TypeError as error:
        raise TypeError(f"input {index}: {error}") from None
    return spec


def arguments(item: Any, input_mode: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the positional and the keyword arguments of the call for one input.

    Raises:
        UsageError: The input does not fit `input_mode`.
    """
    if input_mode == "args" and not isinstance(item, (list, tuple)):
        raise UsageError(f"input_mode='args' takes lists and tuples, and one input is a {type(item).__name__}")
    if input_mode == "kwargs" and not _is_named(item):
        raise UsageError(f"input_mode='kwargs' takes dicts of names to values, and one input is {item!r:.200}")
    if input_mode in ("auto", "kwargs") and _is_named(item):
        return (), item
    if input_mode in ("auto", "args") and isinstance(item, (list, tuple)):
        return tuple(item), {}
    return (item,), {}


def _is_named(item: Any) -> bool:
    return isinstance(item, dict) and all(isinstance(key, str) for key in item)


def child(deployment: str, group_id: str, index: int) -> Identity:
    """Return the identity of a batch's job."""
    return Identity(deployment, "group", group_id, "", str(index))


def attach_batch(
    group_id: str,
    project: str | None = None,
    cluster: str | None = None,
    poll_interval: float = 10.0,
    poll_timeout: float | None = 1800.0,
    store: str | None = None,
    deployment: str | None = None,
) -> BatchHandle[Any]:
    """Return the handle of a batch, in any process that can reach its store.

    Args:
        group_id: Id of the batch.
        project: Project of Google Cloud; by default the setting.
        cluster: Without effect.
        poll_interval: Without effect.
        poll_timeout: Seconds for which to look for jobs that the submitter has not submitted yet; None for no limit.
        store: Folder or address of the store; by default the setting.
        deployment: Prefix in the store; by default the setting.

    Raises:
        JobNotFound: The store has no such batch.
        Corrupt: The batch's record was changed.
    """
    del poll_interval
    opened, backend, settings = place_of(project=project, cluster=cluster, store=store, deployment=deployment)
    is_one = isinstance(group_id, str) and group_id.replace("-", "").isalnum()
    record = opened.read(names.group(group_id)) if is_one else None
    if record is None:
        raise JobNotFound(
            f"there is no batch {group_id!r} in {opened.url}: check that KINETIC_STORE and KINETIC_DEPLOYMENT are "
            "those of the submitter"
        )
    fields = _told_of_group(opened, group_id, record, settings)
    name, tags, size, group_deployment = (fields[key] for key in ("name", "tags", "size", "deployment"))
    submitter = fields.get("submitter") or {}
    runs_on = str(fields.get("backend") or settings.backend)
    if group_deployment != settings.deployment:
        found = f"{names.group(group_id)} in {opened.url} is of the deployment {group_deployment!r}"
        raise Corrupt(f"{found}, and lies in {settings.deployment!r}: somebody has changed it")
    _check_size(opened, group_id, group_deployment, size)
    backends = {settings.backend: backend}  # the backend of new jobs here
    if runs_on not in backends:
        backends[runs_on] = open_backend(runs_on, settings)
    batch: BatchHandle[Any] = BatchHandle(group_id, name, tags, size, opened, backends[runs_on])
    place = _Place(backends, group_deployment, settings)
    over = _is_over(batch, submitter)  # before the jobs are listed, or the last one could be missed
    if _fill(batch, place) or over:
        batch._submitted.set()
    else:
        threading.Thread(
            target=_fill_on, args=(batch, place, submitter, poll_timeout), daemon=True,
            name=f"kinetic-{group_id}",
        ).start()  # fmt: skip
    return batch


def _check_size(store: Store, group_id: str, deployment: str, size: int) -> None:
    """Raise if results could be missing. A group's id contains its size; for one without, its end record and the member
    that would be the next one are checked.
    """
    told = _SIZE.search(group_id)
    ended = store.read(names.group_end(group_id))
    counts = [int(told[1])] if told else []
    if ended is not None:
        counts.append(_told_of_end(store, group_id, ended).get("size") or size)
    if store.read(names.spec(job_id(child(deployment, group_id, size), 1)), 0, 1) is not None:
        counts.append(size + 1)
    for count in counts:
        if count != size:
            raise Corrupt(
                f"{names.group(group_id)} in {store.url} says that the batch has {size} jobs, and it has {count!r:.20} "
                "or more: somebody has changed it. Find out who can write to the store; each job is still there by "
                "itself (kinetic.attach)"
            )


_SIZE = re.compile(r"x(\d+)$")


class _Place(NamedTuple):
    """The parameters to open the jobs of a batch."""

    backends: dict[str, Backend]
    deployment: str
    settings: Settings


def _fill(batch: BatchHandle[Any], place: _Place) -> bool:
    for index, job in enumerate(batch.jobs):
        if job is None and index not in batch.submission_failures:
            name = job_id(child(place.deployment, batch.group_id, index), 1)
            if batch._store.read(names.spec(name), 0, 1) is not None:
                try:
                    _place(batch, index, JobHandle(reopened(name, batch._store, place.backends, place.settings)))
                except UNREADABLE as error:
                    batch.submission_failures[index] = error
    return sum(job is None for job in batch.jobs) == len(batch.submission_failures)


def _fill_on(batch: BatchHandle[Any], place: _Place, submitter: Mapping[str, Any], patience: float | None) -> None:
    began = time.monotonic()
    try:
        with batch._watcher.wakeups(batch.group_id) as wakeups:
            over = False
            while not over:
                wakeups.clear()
                if patience is not None and time.monotonic() - began > patience:
                    over, batch._unseen = True, f"poll_timeout={patience:g} s passed, and its submitter may go on"
                with contextlib.suppress(Unreachable):  # asked again, as long as there is patience
                    over = _is_over(batch, submitter) or over
                    if _fill(batch, place):
                        break
                if not over:
                    wakeups.wait(0.5)
    except Exception as error:
        batch._unseen = str(error)
    finally:
        batch._submitted.set()


def _is_over(batch: BatchHandle[Any], submitter: Mapping[str, Any]) -> bool:
    """Return True if no more jobs will come: the batch was ended, or the process that submitted it was on this machine
    and is gone."""
    if _why_over(batch._store, batch.group_id):
        return True
    is_local = bool(submitter) and submitter["machine"] == processes.machine()
    return is_local and not processes.alive(submitter["pid"], submitter["started"])


def _retrying(spec: JobSpec, retries: int) -> JobSpec:
    retry = replace(spec.options.retry, user=max(spec.options.retry.user, retries))
    return replace(spec, options=replace(spec.options, retry=retry))
