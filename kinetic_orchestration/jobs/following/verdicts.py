"""Decides which verdicts and values of a job are believed, and remembers how a job was seen to end."""

from __future__ import annotations

from kinetic_orchestration.errors import Corrupt
from kinetic_orchestration.jobs.job import Job, keep_damaged
from kinetic_orchestration.jobs.trust import ENDED, Ended, gist
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.jobs.watching.look import look, of_its_claim
from kinetic_orchestration.jobs.watching.poll import Poll
from kinetic_orchestration.plan.records import verdict_of
from kinetic_orchestration.plan.values import Glimpse, JobStatus, Outcome
from kinetic_orchestration.protocol import names, wire


def glimpse(job: Job, attempt: int, cache: AttemptCache | None = None, poll: Poll | None = None) -> Glimpse:
    """Look at an attempt. Raises Corrupt if its verdict has to be signed and is not."""
    seen = look(job.store, job.backend, job.job_id, attempt, job.policy, cache=cache, poll=poll)
    if seen.verdict is not None:
        check_seal(job, attempt, seen.verdict)
    elif seen.intent is not None and "lease" in seen.intent.placement:
        return of_its_claim(job.store, job.job_id, seen, cache)
    return seen


def check_seal(job: Job, attempt: int, verdict: wire.Verdict) -> None:
    """Raise Corrupt if the verdict has to be signed and is not."""
    if not job.is_sealed or job.trust.has_sealed(job.store, job.job_id, attempt, verdict):
        return
    raise Corrupt(
        f"{names.verdict(job.job_id, attempt)} in {job.store.url} is not signed by who may have written it, and all "
        "verdicts of this job are: somebody has changed it. Nothing follows from it, and the job is not run again. "
        "Find out who can write to the bucket; to have it run anew, give another key, or start another run"
    )


def lacks_key(job: Job) -> str:
    """Return why this process can neither start nor close an attempt of a signed job, or ""."""
    if not job.signed or job.is_sealed:
        return ""
    if job.doubt:
        return job.doubt
    return (
        f"job {job.job_id} is signed with a signing_key that this process does not have, so its hosts could not sign "
        "what they come to: let both processes have the same KINETIC_SIGNING_KEY"
    )


def doubt_of_value(job: Job, outcome: Outcome) -> str:
    """Return why a job's value or exception is not unpickled here, or "": then the job's end is known from now on. A
    signed verdict was trusted as a whole.
    """
    if job.doubt or not job.trust.checks:
        return job.doubt
    if job.is_sealed:
        return ""
    plan, verdict = job.plan_of(outcome.attempt), outcome.verdict
    if outcome.status is JobStatus.SUCCEEDED:
        role, value = names.VALUE, verdict.digest
    else:
        role, value = names.EXCEPTION, verdict.failure.digest if verdict.failure is not None else ""
    doubt = job.trust.doubt_of_value(
        job.store, job.job_id, outcome.attempt, value, verdict.proof, role=role,
        account=str(plan.cloud.get("service_account") or ""), project=plan.project,
    )  # fmt: skip
    if not doubt and not job.trust.everything:
        seen, found = job.trust.ended(job.store, job.job_id), _end_of(outcome, 0.0)
        if seen is not None and not seen.proven and not seen.is_other(found):
            job.trust.remember(job.store, job.job_id, ENDED, seen._replace(proven=True).line())
    return doubt


def conclude(job: Job, outcome: Outcome, at: float, *, remember: bool = True) -> str:
    """Return the job's end, as other processes may be told it, and remember it. Raises Corrupt if the job was seen to
    end otherwise, unless that end was never proven, and this one is.
    """
    if outcome.cause == wire.DAMAGED:
        return _conclude_damaged(job, outcome, remember=remember)
    if job.doubt or not job.trust.checks:
        return job.ended
    found = _end_of(outcome, at)._replace(proven=job.is_sealed)
    known = _known_end(job)
    if known is not None and known.is_other(found):
        if known.proven or not (found.proven or (not job.trust.everything and not doubt_of_value(job, outcome))):
            raise Corrupt(_other_end(job, known))
        known, found = None, found._replace(proven=True)
    if known is None and remember:
        job.trust.remember(job.store, job.job_id, ENDED, found.line())
    return str(known or found)


def _conclude_damaged(job: Job, outcome: Outcome, *, remember: bool) -> str:
    """Conclude a job whose verdict cannot be read, without remembering an end. Raises Corrupt if the job was seen to
    succeed, so that it is not run again.
    """
    known = None if job.doubt else _known_end(job)
    if known is not None and known.status == JobStatus.SUCCEEDED.value:
        raise Corrupt(_other_end(job, known))
    if remember:
        keep_damaged(job, names.verdict(job.job_id, outcome.attempt))
    return job.ended


def _end_of(outcome: Outcome, at: float) -> Ended:
    return Ended(outcome.attempt, outcome.status.value, gist(outcome.verdict.raw), at)


def has_ended(job: Job, following: int = 0) -> bool:
    """Tell whether the job was seen to end, so that nothing more is to be begun of it. Raises Corrupt if the verdict by
    which it did is not there any more.

    `following`: the attempt that is to be looked at next. If others have begun it, and the end that was seen was never
    proven, it may be looked at: there may be the proof of another end.
    """
    known = _known_end(job)
    if known is None:
        return False
    record = job.store.read(names.verdict(job.job_id, known.attempt))
    if record is None or gist(verdict_of(record.data).raw) != known.verdict:
        begun = following and job.store.read(names.intent(job.job_id, following)) is not None
        if known.proven or not begun:
            raise Corrupt(_other_end(job, known))
    return True


def seen_end(job: Job) -> str:
    """Return the end that the job was seen to have, to be handed on with its handle; "" for none."""
    known = None if job.doubt else _known_end(job)
    return "" if known is None else str(known)


def _known_end(job: Job) -> Ended | None:
    """Return the end that this home saw; only without one, the end that it was handed, which could be forged."""
    if not job.trust.checks:
        return None
    seen = job.trust.ended(job.store, job.job_id)
    if seen is None:
        told = Ended.of(job.ended)
        return None if told is None else told._replace(proven=False)
    if seen.at < job.policy.created and job.trust.may_be_forgotten(job.store, seen):
        return None  # it was of a life before this one
    return seen


def _other_end(job: Job, known: Ended) -> str:
    seen = job.trust.home is not None and job.trust.ended(job.store, job.job_id) is not None
    memory = (
        f". If it is the end that was seen that was false, and not what the records say now: delete "
        f"{job.trust.memory_of(job.store, job.job_id)}, in which it is remembered"
    )
    return (
        f"job {job.job_id} in {job.store.url} ended in attempt {known.attempt} ({known.status}), as was seen "
        f"{'here' if seen else 'by who handed it over'}, and its records do not say so any more: somebody has changed "
        "them. It is not run again. Find out who can write to the bucket; to have it run anew, give another key, or "
        f"start another run{memory if seen and not known.proven else ''}"
    )
