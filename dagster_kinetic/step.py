"""One job seen from one Dagster step: which job the step means, and what becomes of it when the step is interrupted.

Knows runs, steps, tags and interrupts. What a job tells while it runs is the matter of `events`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import dagster as dg

from dagster_kinetic import _compat
from dagster_kinetic.events import Narrator
from kinetic_orchestration.errors import JobCancelled
from kinetic_orchestration.identity import Identity
from kinetic_orchestration.job import JobHandle
from kinetic_orchestration.launch import find, launch, settings_for
from kinetic_orchestration.results import collect
from kinetic_orchestration.spec import JobSpec

LONGEST_ANCESTRY = 64
CANCEL_SECONDS = 60.0


class Place(NamedTuple):
    """Where a call stands in Dagster."""

    run: str
    step: str
    partition: str = ""
    call: str = ""  # "" for the first of the step, then its number, or the key that the user gave it
    resumes: tuple[str, ...] = ()  # the runs that this one goes on with, the nearest first

    def identity(self, deployment: str, run: str = "") -> Identity:
        index = f"{self.partition}#{self.call}" if self.call else self.partition
        return Identity(deployment, "dagster", run or self.run, self.step, index, 0)


def place_of(context: _compat.Context, call: str = "") -> Place:
    run, step, partition = _compat.run_id(context), _compat.step_key(context), _compat.partition_of(context)
    return Place(run, step, partition, call, tuple(_resumed(context)))


def identity_of(spec: JobSpec, place: Place) -> Identity:
    """The job of a resumed run, if it left one; else this step's own."""
    deployment = settings_for(spec).deployment
    for run in place.resumes:
        left = place.identity(deployment, run)
        if find(spec, left) is not None:
            return left
    return place.identity(deployment)


def run_in_step(spec: JobSpec, context: _compat.Context, call: str = "") -> Any:
    """Run the job as this step: its lines in the step's log, its value returned, its failure raised."""
    identity = None if _compat.is_direct(context) else identity_of(spec, place_of(context, call))
    handle: JobHandle[Any] | None = None
    try:
        job = launch(spec, identity)
        handle = JobHandle(job)
        narrator = Narrator(context, handle, call)
        narrator.begin(job.plan())
        outcome = handle.follow(narrator)
        narrator.end()
        assert outcome is not None
        return collect(job, outcome)
    except JobCancelled as error:
        raise dg.Failure(str(error), metadata={"kinetic/job_id": error.job_id}, allow_retries=False) from None
    except (dg.DagsterExecutionInterruptedError, KeyboardInterrupt):
        with _compat.uninterrupted():
            if handle is None and identity is not None and (left := find(spec, identity)) is not None:
                handle = JobHandle(left)
            if handle is not None:
                _leave(handle, context)
        raise


def _leave(handle: JobHandle[Any], context: _compat.Context) -> None:
    """The step must end now. Its job ends too if somebody wants that, or if nobody can come back for it."""
    terminated = _is_terminated(context)
    if not terminated and not context.instance.is_ephemeral:
        context.log.info(
            f"detached: job {handle.job_id} goes on, and a retry of this step finds it again. "
            f"To watch it: kinetic-orchestration logs -f {handle.job_id}. "
            f"To end it: kinetic-orchestration cancel {handle.job_id}"
        )
        return
    context.log.info(f"cancelling job {handle.job_id}")
    handle.cancel("its Dagster run was terminated" if terminated else "interrupted", cleanup_timeout=CANCEL_SECONDS)
    if terminated:  # a retry policy would run the step again, so it must hear that this is the end
        raise dg.Failure(f"job {handle.job_id} was cancelled with its run", allow_retries=False) from None


def _is_terminated(context: _compat.Context) -> bool:
    """Whether the run is to end; a worker that is only moved elsewhere leaves it as it was."""
    if _compat.is_direct(context):
        return False
    run = context.instance.get_run_by_id(_compat.run_id(context))
    return run is not None and run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)


def _resumed(context: _compat.Context) -> Iterator[str]:
    run = context.run
    for _ in range(LONGEST_ANCESTRY):
        if run is None or run.tags.get(_compat.RESUME_TAG) != "true" or not run.parent_run_id:
            return
        yield run.parent_run_id
        run = context.instance.get_run_by_id(run.parent_run_id)
