"""Many jobs of one function: `BatchHandle`, and the thread that keeps so many of them running at once.

A child's identity is its group and its place in it, so a batch can be attached to from its group id alone,
whatever became of the process that was submitting it.
"""

from __future__ import annotations

import collections
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from kinetic_orchestration import act
from kinetic_orchestration.agent import names, wire
from kinetic_orchestration.backends import Backend
from kinetic_orchestration.errors import JobNotFound, KineticError, UsageError
from kinetic_orchestration.identity import Identity, job_id
from kinetic_orchestration.job import JobHandle, open_place
from kinetic_orchestration.launch import launch, settings_for
from kinetic_orchestration.spec import JobSpec
from kinetic_orchestration.stores import Store, open_store
from kinetic_orchestration.values import JobStatus
from kinetic_orchestration.watch import decoded, watcher_of

R = TypeVar("R")

INPUT_MODES = ("auto", "single", "args", "kwargs")


class BatchError(KineticError):
    """Some jobs of a batch failed; `partial_results` has what the others returned, and None in the gaps."""

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
            "Their exceptions: results(return_exceptions=True); their logs: kinetic-orchestration logs ID"
        )


class BatchHandle(Generic[R]):
    """The jobs of one group, in the order of their inputs. A place is None until its job is submitted."""

    def __init__(self, group_id: str, name: str | None, tags: Mapping[str, str], size: int, store: Store) -> None:
        self.group_id = group_id
        self.name = name
        self.tags = dict(tags)
        self.jobs: list[JobHandle[R] | None] = [None] * size
        self.submission_failures: dict[int, Exception] = {}
        self._store = store
        self._submitted = threading.Event()
        self._cancelled = threading.Event()

    def __repr__(self) -> str:
        return f"<BatchHandle {self.group_id} {self.name or ''} {self.status_counts()}>"

    def statuses(self) -> list[tuple[int, JobStatus]]:
        """The state of every submitted job, by its place."""
        return [(index, job.status()) for index, job in enumerate(self.jobs) if job is not None]

    def status_counts(self) -> dict[str, int]:
        return dict(collections.Counter(status.value for _, status in self.statuses()))

    def wait(self, timeout: float | None = None) -> None:
        """Until every job has ended, well or not. The jobs go on when the timeout passes."""
        for _ in self.as_completed(timeout=timeout):
            pass

    def as_completed(self, poll_interval: float | None = None, timeout: float | None = None) -> Iterator[JobHandle[R]]:
        """Jobs as they end, while others are still being submitted."""
        del poll_interval  # Keras Kinetic's: here the end of a job is an event
        deadline = None if timeout is None else time.monotonic() + timeout
        seen: set[int] = set()
        with watcher_of(self._store).following(self.group_id) as rung:
            look_at_all = 0.0
            while True:
                heard = rung.clear()
                everything = time.monotonic() >= look_at_all
                if everything:
                    look_at_all = time.monotonic() + self._pace()
                complete = self._submitted.is_set()
                for index, job in enumerate(self.jobs):
                    if job is None or index in seen:
                        continue
                    rung.follow(job.job_id)
                    if (everything or job.job_id in heard) and job.status().final:
                        seen.add(index)
                        rung.unfollow(job.job_id)
                        yield job
                if complete and len(seen) == sum(job is not None for job in self.jobs):
                    return
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(
                        f"batch {self.group_id}: {len(seen)} of {len(self.jobs)} jobs have ended after {timeout:g} s; "
                        "the others go on"
                    )
                if self.group_id in heard:
                    look_at_all = 0.0 if complete else look_at_all
                rung.wait(min(0.5, self._pace() if left is None else left))

    def results(
        self,
        timeout: float | None = None,
        ordered: bool = True,
        cleanup: bool = True,
        return_exceptions: bool = False,
    ) -> list[R]:
        """Every value, in the order of the inputs (or, with `ordered=False`, of their ends)."""
        order = [self.jobs.index(job) for job in self.as_completed(timeout=timeout)]
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
        if (failures or self.submission_failures) and not return_exceptions:
            raise BatchError(self.group_id, failures, values, self.submission_failures)
        if ordered:
            return values
        rest = [index for index in range(len(values)) if index not in order]
        return [values[index] for index in [*order, *rest]]

    def failures(self) -> list[JobHandle[R]]:
        return [job for job in self.jobs if job is not None and job.status() is JobStatus.FAILED]

    def cancel(self) -> None:
        """Submit no more, and cancel what has not ended."""
        self._cancelled.set()
        self._submitted.wait(60.0)
        for job in self.jobs:
            if job is not None and not job.status().final:
                act.cancel(job._job, f"batch {self.group_id} was cancelled", act.ME)
        for job in self.jobs:
            if job is not None:
                job.cancel(f"batch {self.group_id} was cancelled")

    def cleanup(self, k8s: bool = True, gcs: bool = True) -> None:
        """Release what the jobs hold of compute; their records live on by retention."""
        for job in self.jobs:
            if job is not None:
                job.cleanup(k8s=k8s, gcs=gcs)

    def _pace(self) -> float:
        return max(watcher_of(self._store).pace(), len(self.jobs) / 50)


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
    """One job for each input; what `run_async_map` does."""
    if max_concurrent is not None and max_concurrent < 1:
        raise UsageError(f"max_concurrent is {max_concurrent}: at least one job must be able to run, or None for all")
    if retries < 0:
        raise UsageError(f"retries is {retries}: it cannot be negative")
    if input_mode not in INPUT_MODES:
        raise UsageError(f"input_mode is {input_mode!r}; it can be {', '.join(INPUT_MODES)}")
    calls = [arguments(item, input_mode) for item in inputs]
    if not calls:
        raise UsageError("inputs is empty: there is nothing to run")
    specs = [_retrying(spec_of(args, kwargs), retries) for args, kwargs in calls]
    here = settings_for(specs[0])
    store = open_store(here.store, here.deployment)
    group_id = f"grp-{secrets.token_hex(6)}"
    record = {"name": name, "tags": dict(tags or {}), "size": len(specs), "deployment": here.deployment}
    store.create(names.group(group_id), wire.encode(record))
    batch: BatchHandle[Any] = BatchHandle(group_id, name, tags or {}, len(specs), store)
    driver = _Driver(batch, specs, here.deployment, max_concurrent or len(specs), fail_fast, cancel_running_on_fail)
    if len(specs) <= driver.width and not fail_fast and not cancel_running_on_fail:
        driver.run()
    else:
        threading.Thread(target=driver.run, name=f"kinetic-{group_id}").start()
    return batch


class _Driver:
    """Submits the jobs of a batch, so many at once, until all are, or one failed, or somebody cancels."""

    def __init__(
        self, batch: BatchHandle[Any], specs: list[JobSpec], deployment: str, width: int, fail_fast: bool, cancel: bool
    ) -> None:
        self.batch = batch
        self.specs = specs
        self.width = width
        self._deployment = deployment
        self._fail_fast = fail_fast or cancel
        self._cancel_running = cancel

    def run(self) -> None:
        try:
            self._submit()
        finally:
            self.batch._submitted.set()
            _ring(self.batch._store, self.batch.group_id)

    def _submit(self) -> None:
        running: list[JobHandle[Any]] = []
        with watcher_of(self.batch._store).following(self.batch.group_id) as rung:
            for index, spec in enumerate(self.specs):
                while len(running) >= self.width and not self._stopped():
                    rung.clear()
                    running = self._still_running(running)
                    if len(running) >= self.width:
                        rung.wait(0.5)
                if self._stopped():
                    return
                try:
                    job: JobHandle[Any] = JobHandle(launch(spec, child(self._deployment, self.batch.group_id, index)))
                except Exception as error:
                    self.batch.submission_failures[index] = error
                    self._failed = self._fail_fast
                    continue
                self.batch.jobs[index] = job
                rung.follow(job.job_id)
                running.append(job)
                _ring(self.batch._store, self.batch.group_id)
            while self._fail_fast and running and not self._stopped():
                rung.clear()
                running = self._still_running(running)
                rung.wait(0.5)

    _failed = False

    def _stopped(self) -> bool:
        return self._failed or self.batch._cancelled.is_set()

    def _still_running(self, running: list[JobHandle[Any]]) -> list[JobHandle[Any]]:
        ended = {job.job_id: status for job in running if (status := job.status()).final}
        if self._fail_fast and JobStatus.FAILED in ended.values():
            self._failed = True
            if self._cancel_running:
                for job in running:
                    if job.job_id not in ended:
                        act.cancel(job._job, f"another job of batch {self.batch.group_id} failed", act.ME)
        return [job for job in running if job.job_id not in ended]


def arguments(item: Any, input_mode: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """How one input becomes a call."""
    if input_mode == "args" and not isinstance(item, (list, tuple)):
        raise UsageError(f"input_mode='args' takes lists and tuples, and one input is a {type(item).__name__}")
    if input_mode == "kwargs" and not isinstance(item, dict):
        raise UsageError(f"input_mode='kwargs' takes dicts, and one input is a {type(item).__name__}")
    if input_mode in ("auto", "kwargs") and isinstance(item, dict) and all(isinstance(key, str) for key in item):
        return (), item
    if input_mode in ("auto", "args") and isinstance(item, (list, tuple)):
        return tuple(item), {}
    return (item,), {}


def child(deployment: str, group_id: str, index: int) -> Identity:
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
    """The handle of a batch, from any process. If its submitter still submits, the places fill as it does."""
    del poll_interval
    opened, backend = open_place(project=project, cluster=cluster, store=store, deployment=deployment)
    record = opened.read(names.group(group_id))
    if record is None:
        raise JobNotFound(f"there is no batch {group_id!r} in {opened.url}")
    fields = decoded(record.data, names.group(group_id))
    batch: BatchHandle[Any] = BatchHandle(group_id, fields["name"], fields["tags"], fields["size"], opened)
    if _fill(batch, backend, fields["deployment"]):
        batch._submitted.set()
    else:
        watch = threading.Thread(
            target=_fill_on,
            args=(batch, backend, fields["deployment"], poll_timeout),
            daemon=True,
            name=f"kinetic-{group_id}",
        )
        watch.start()
    return batch


def _fill(batch: BatchHandle[Any], backend: Backend, deployment: str) -> bool:
    for index, job in enumerate(batch.jobs):
        if job is None:
            name = job_id(child(deployment, batch.group_id, index), 1)
            if batch._store.read(names.spec(name), 0, 1) is not None:
                batch.jobs[index] = JobHandle(act.open_job(name, batch._store, backend))
    return None not in batch.jobs


def _fill_on(batch: BatchHandle[Any], backend: Backend, deployment: str, patience: float | None) -> None:
    began = time.monotonic()
    with watcher_of(batch._store).following(batch.group_id) as rung:
        while not _fill(batch, backend, deployment) and (patience is None or time.monotonic() - began < patience):
            rung.clear()
            rung.wait(0.5)
    missing = sum(job is None for job in batch.jobs)
    if missing:
        warnings.warn(f"batch {batch.group_id}: {missing} of its inputs were never submitted", stacklevel=1)
    batch._submitted.set()


def _retrying(spec: JobSpec, retries: int) -> JobSpec:
    retry = replace(spec.options.retry, user=max(spec.options.retry.user, retries))
    return replace(spec, options=replace(spec.options, retry=retry))


def _ring(store: Store, text: str) -> None:
    ring = getattr(store, "ring", None)
    if ring is not None:
        cast(Any, ring)(text)
