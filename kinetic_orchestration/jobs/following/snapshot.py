"""Reads the state of a job at one moment from its records. Creates and closes nothing: a `follower` advances jobs."""

from __future__ import annotations

from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following.actions import refusal
from kinetic_orchestration.jobs.following.logs import sampled
from kinetic_orchestration.jobs.following.verdicts import conclude, glimpse
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.plan.values import Cursor, Glimpse, Intent, Peek


def snapshot(job: Job) -> Peek:
    """Return what a job's records say. Raises StoreError, and JobNotFound for a job that is gone."""
    return _peek(job, *_looked(job))


def placed(job: Job) -> tuple[Peek, Intent | None]:
    """Return the same, and the newest attempt's intent, which has its place; None if there is none. Raises likewise."""
    step, seen = _looked(job)
    return _peek(job, step, seen), seen.intent


def _looked(job: Job) -> tuple[lifecycle.Step, Glimpse]:
    cursor, cache = Cursor(), AttemptCache(job.within, job.believes)
    while True:
        seen = glimpse(job, cursor.attempt, cache)
        step = lifecycle.advance(cursor, seen, job.policy)
        if step.outcome is not None:
            conclude(job, step.outcome, seen.now - seen.verdict_age, remember=False)
        if step.outcome is not None or step.cursor.attempt == cursor.attempt:
            break
        ahead = attempts.ahead(job.store, job.job_id, 1, all_with_hosts=False) if cursor.attempt == 1 else ()
        cursor = step.cursor._replace(attempt=ahead[0]) if ahead else step.cursor
    return step, seen


def snapshot_after(job: Job, cursor: Cursor, seen: Glimpse | None) -> Peek:
    """Return the same after a follower's step, from what it saw last: that is not read again, unless the step did
    something about it. Raises as `snapshot` does.

    Args:
        job: The job.
        cursor: Where the step has led.
        seen: What it saw last; None for nothing.
    """
    if seen is not None and seen.intent is not None and seen.intent.attempt == cursor.attempt:
        step = lifecycle.advance(cursor, seen, job.policy)
        if step.outcome is not None or not step.actions:
            return _peek(job, step, seen)
    return snapshot(job)


def _peek(job: Job, step: lifecycle.Step, seen: Glimpse) -> Peek:
    beat = next(iter(seen.beats), None)
    place = seen.intent.placement if seen.intent is not None else {}
    zone = str(place.get("zone", ""))
    return Peek(
        status=lifecycle.status(step.cursor, seen, step.outcome),
        attempt=step.cursor.attempt,
        phase=step.cursor.phase,
        message=next(
            (action.reason for action in step.actions if isinstance(action, lifecycle.Close)),
            lifecycle.waits(seen),
        ),
        done=beat.done if beat is not None else 0.0,
        total=beat.total if beat is not None else 0.0,
        unit=beat.unit if beat is not None else "",
        outcome=step.outcome,
        attempts=lifecycle.shown(step.cursor, seen),
        zone=zone,
        resource=str(place.get("name", "")) if zone else "",
        said=_pause(job, seen) or lifecycle.unheard(seen, job.policy) or seen.observation.message,
        rate=beat.rate if beat is not None else 0.0,
        devices=tuple(sampled(seen)),
    )


def _pause(job: Job, seen: Glimpse) -> str:
    """Return when hosts are requested again after all requests were refused, and the last answer; "" at other times."""
    intent = seen.intent
    if intent is None or seen.verdict is not None or not lifecycle.must_wait(seen):
        return ""
    again = f"the next request follows in {max(1.0, intent.created + intent.wait - seen.now):.0f} s"
    return lifecycle.answered(again, refusal(job, intent.attempt - 1))
