"""Carries out what the lifecycle decided. Each action is idempotent; records decide between two that act at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kinetic_orchestration.capacity.shares.line import give_back, is_covered
from kinetic_orchestration.errors import BackendError, Corrupt, JobNotFound, KineticError, NoPlace
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following.held_time import held_before, longest, may_last, seen_held
from kinetic_orchestration.jobs.following.placing import choose, given, join, learn_from_end, turn_of
from kinetic_orchestration.jobs.following.verdicts import check_seal, has_ended, is_sealed, lacks_key
from kinetic_orchestration.jobs.job import ME, Job, keep_damaged, missing, set_aside
from kinetic_orchestration.jobs.trust import HOSTS
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.jobs.watching.decode import find_placement, read_intent
from kinetic_orchestration.packaging.requirements import indexes
from kinetic_orchestration.plan.records import fields_of, intent_of, plan_of, verdict_of
from kinetic_orchestration.plan.values import (
    Before,
    Freed,
    Glimpse,
    Intent,
    Past,
    Plan,
    Staged,
)
from kinetic_orchestration.platforms.backend import Backend, KeepsBootLog, Submission
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record

SECRETS_PATIENCE = 60.0  # seconds without a start by another process, after which one without secrets ends an attempt
TRUST_PATIENCE = 1800.0  # so does one that may not start it


def perform(action: lifecycle.Action, job: Job, attempt: int, seen: Glimpse, environ: Mapping[str, str]) -> str:
    """Perform an action. Returns a sentence if the job has to wait. A release is requested by `release`."""
    if not isinstance(action, lifecycle.Interrupt) and has_ended(job):
        return ""
    if job.doubt and isinstance(action, lifecycle.Intend | lifecycle.Submit):
        return leave_to_others(job, attempt, seen)
    if isinstance(action, lifecycle.Intend | lifecycle.Submit) and (why := lacks_key(job)):
        return f"attempt {attempt} waits for a process that may start it: {why}"
    if isinstance(action, lifecycle.Intend):
        intend(job, attempt)
    elif isinstance(action, lifecycle.Submit):
        return waits(job, attempt, seen.intent) or submit(job, attempt, seen, environ)
    elif isinstance(action, lifecycle.Interrupt):
        assert seen.intent is not None
        job.backend.cancel(seen.intent.placement)
    elif isinstance(action, lifecycle.Close):
        reason = action.reason
        if seen.intent is not None and seen.intent.damage:
            reason += f". {keep_damaged(job, names.intent(job.job_id, attempt))}"
        if action.unheard and seen.intent is not None and isinstance(job.backend, KeepsBootLog):
            # The reason itself comes last: it is what a line about the attempt shows.
            machines = machines_of(job.plan_of(attempt, seen.intent), action.unheard)
            words = job.backend.last_words(seen.intent.placement, machines)
            reason = "\n".join(filter(None, (words, reason)))
        if action.after_refusal:
            reason = lifecycle.answered(reason, _refusal(job, attempt - 1))
        return close(job, attempt, action.cause, reason, host=action.host, unplaced=action.unplaced)
    line = job.lines.get(attempt)
    return line.says if line is not None else ""


def machines_of(plan: Plan, hosts: Sequence[int]) -> list[int]:
    """Return the numbers of the machines of some hosts, of which several may share one."""
    return sorted({host * plan.machines // plan.hosts for host in hosts})


def leave_to_others(job: Job, attempt: int, seen: Glimpse) -> str:
    """Leave an attempt to processes that may start it. It is closed when none has started it for long, so that waiting
    clients are told; a new request for the job then starts it again, with the same checkpoints, from the process that
    makes it.
    """
    since = job.policy.created
    if seen.intent is not None:
        since = seen.intent.created + seen.intent.wait
    elif (before := job.store.read(names.verdict(job.job_id, attempt - 1))) is not None:
        since = before.updated
    if seen.now - since < TRUST_PATIENCE:
        return f"attempt {attempt} waits for a process that may start it: {job.doubt}"
    reason = f"nobody who may start attempt {attempt} did so for {seen.now - since:.0f} s, and this process may not: "
    return close(job, attempt, wire.CONFIGURATION, reason + job.doubt, unplaced=seen.intent is None)


def intend(job: Job, attempt: int) -> Intent | None:
    """Write the attempt's intent; return it if it is the one that was written here. It is not before its turn."""
    if attempt in job.lines and waits(job, attempt):
        return None
    past, before = _past(job, attempt - 1) if attempt > 1 else (None, Before())
    try:
        if job.shared and attempt not in job.lines:
            join(job, attempt, past, before)
            if waits(job, attempt):
                return None
        chosen = choose(job, job.plan(), attempt, past, before, given(job, attempt))
        plan = chosen.plan
        left = plan.affordable
        if left:
            left -= held_before(job, plan, attempt)
            if left <= 0:
                if job.store.read(names.intent(job.job_id, attempt)) is None:  # otherwise another process has begun it
                    _close_as_spent(job, plan, attempt, left, unplaced=True)
                return None
        placement = chosen.placement(job, attempt, past)
    except NoPlace as error:
        close(job, attempt, wire.CONFIGURATION, str(error), unplaced=True)
        return None
    allowed = longest(plan, left)
    data = wire.encode(
        {
            "attempt": attempt,
            "boot": secrets.token_hex(8),
            "placement": placement,
            "allowed": allowed,  # seconds from this record's own time to the attempt's deadline; 0: none
            "affordable": left,  # seconds for which the hosts may be held, for the money that is left; 0: no limit
            "before": before._asdict() if before is not None else None,  # so that these need not be read again
            "writer": ME,
        }
    )
    name = names.intent(job.job_id, attempt)
    generation = job.store.create(name, data)
    if generation is None:
        return None
    if past is not None:
        learn_from_end(job, plan, attempt - 1, past)
    record = Record(data, generation, job.store.written_at(name, generation))
    return intent_of(record, job.job_id, attempt, job.within)


def waits(job: Job, attempt: int, intent: Intent | None = None) -> str:
    """Return why an attempt has to wait for its turn, as a sentence; "" if it has it, or needs none.

    The answer binds others only after the attempt's intent is written, so it is asked for again with that before
    anything is requested. Two processes may have wanted the turn of different choices: an intent that the turn which
    was given does not cover is closed, and the next attempt gets in line.
    """
    turn = turn_of(job, attempt, intent)
    if not turn.granted or intent is None or turn.of is None or is_covered(job.plan_of(attempt, intent), turn.of):
        return turn.says
    reason = f"its turn is for {turn.of.chips} chips of {turn.of.generation}, and another choice was to take it"
    return close(job, attempt, wire.INTERNAL, reason) or reason


def _past(job: Job, attempt: int) -> tuple[Past | None, Before | None]:
    """Return how an attempt was placed and ended, and the sum of all attempts up to it; None for what is not known."""
    promised = job.store.read(names.intent(job.job_id, attempt))
    ended = job.store.read(names.verdict(job.job_id, attempt))
    if promised is None or ended is None:
        return None, None
    verdict = verdict_of(ended.data, names.verdict(job.job_id, attempt))
    check_seal(job, attempt, verdict)
    try:
        intent, cause = intent_of(promised, job.job_id, attempt, job.within), lifecycle.classify(verdict)
    except Corrupt:  # then it is placed as a first one is, and all attempts are read again
        return None, None
    past = Past(intent.placement, cause, verdict.reason, promised.updated)
    if intent.before is None:
        return past, None
    budget, _ = lifecycle.rule_of(cause)
    if budget is None:  # what ends a job has no successor that could count on it
        return past, None
    ran = intent.before.ran
    if budget != lifecycle.FREE or job.store.read(names.host(job.job_id, attempt, 0, "started.json")) is not None:
        ran = (*ran, attempt)
    return past, Before(lifecycle.spend(intent.before.spent, budget), ran)


def _refusal(job: Job, attempt: int) -> str:
    """Return why an attempt got no hosts; "" if it had some, or cannot be read: a limit ends a job anyway."""
    try:
        past = _past(job, attempt)[0] if attempt else None
    except Corrupt:
        return ""
    return past.reason if past is not None and lifecycle.rule_of(past.cause)[0] == lifecycle.FREE else ""


def _close_as_spent(job: Job, plan: Plan, attempt: int, left: float, *, unplaced: bool = False) -> None:
    used, usd = plan.affordable - left, plan.limits.cost or 0.0
    reason = f"its slices were held for {used:.0f} s, its cost limit of ${usd:,.2f}"
    close(job, attempt, wire.DEADLINE, reason, unplaced=unplaced)


def submit(job: Job, attempt: int, seen: Glimpse, environ: Mapping[str, str]) -> str:
    assert seen.intent is not None
    spec = job.spec()
    plan, intent = plan_of(spec, job.job_id), seen.intent
    plan = plan.at(intent.choice) if plan.choices else plan
    if plan.affordable:  # by what was seen, not by records, which may be forged: machines keep this deadline
        left = plan.affordable - seen_held(job, plan, attempt)
        if left <= 0:
            _close_as_spent(job, plan, attempt, left)
            return ""
        intent = intent._replace(deadline=min(intent.deadline, intent.created + longest(plan, left)))
    if job.backend.charges and not may_last(plan, seen.intent):
        named = f"{names.intent(job.job_id, attempt)} names a deadline that the job's plan does not have"
        close(job, attempt, wire.CONFIGURATION, f"{named}: somebody has changed it, and nothing was made by it")
        return ""
    if plan.secrets and not plan.traits.share_machine:
        environ = {**environ, **indexes.for_hosts(environ)[1]}
    unset = [name for name in plan.secrets if name not in environ]
    if unset:
        # A process that has them may be about to submit.
        if seen.now - seen.intent.created - seen.intent.wait < SECRETS_PATIENCE:
            return f"waiting for a process that has {', '.join(unset)} in its environment"
        reason = (
            f"{', '.join(unset)} must come from the environment of the process that starts attempt {attempt}, and is "
            "not set there"
        )
        close(job, attempt, wire.CONFIGURATION, reason)
        return ""
    try:
        staged = Staged.from_json(spec["staged"]).at(intent.choice)
        secrets = {name: environ[name] for name in plan.secrets}
        key = job.trust.key(HOSTS, job.store, job.job_id, attempt) if is_sealed(job) else ""
        installer = indexes.uv_settings(environ) if plan.isolated and plan.traits.share_machine else {}
        return job.backend.submit(
            Submission(plan, staged, job.job_id, job.spec_digest, intent, secrets, key, installer)
        )
    except BackendError as error:
        close(job, attempt, error.cause, str(error))
        return ""
    except KineticError as error:
        close(job, attempt, wire.CONFIGURATION, str(error))
        raise


def close(job: Job, attempt: int, cause: str, reason: str, *, host: int | None = None, unplaced: bool = False) -> str:
    """Write the verdict that closes the attempt. Returns why this process may not do so, else "".

    `host`: whose failure it is, if it is one's. `unplaced`: no place was ever promised to the attempt.
    """
    if why := lacks_key(job):
        return f"attempt {attempt} is over ({reason}), and waits for a process that may say so: {why}"
    if job.store.read(names.spec(job.job_id)) is None:  # forgotten, and its verdicts with it
        raise JobNotFound(missing(job.job_id, job.store))
    verdict = wire.Verdict(wire.CLOSED, ME, job.store.now(), cause=cause, host=host, reason=reason, unplaced=unplaced)
    if is_sealed(job):
        verdict = job.trust.seal(job.store, job.job_id, attempt, verdict)
    job.store.create(names.verdict(job.job_id, attempt), verdict.encode())
    job.store.ring(job.job_id)
    return ""


def cancel(job: Job, reason: str, by: str, *, anew: bool = False) -> None:
    """Request the end of a job. The process that runs the job sees the record; it stays, so a later attempt sees it
    too.

    `anew`: only this run of it is unwanted. A later request for the same identity gets a new job.
    """
    fields = {"reason": reason, "by": by, "writer": ME, **({"anew": True} if anew else {})}
    job.store.create(names.cancel(job.job_id), wire.encode(fields))
    job.store.ring(job.job_id)


def may_begin_anew(job: Job) -> bool:
    """Return True if the request to cancel the job allows it to be started again. A damaged request allows it."""
    record = job.store.read(names.cancel(job.job_id))
    try:
        return record is not None and fields_of(record.data, wire.CANCEL, names.cancel(job.job_id)).get("anew") is True
    except Corrupt:  # it must not block its key for good
        return True


def release(job: Job, attempt: int, known: Intent | None = None) -> Freed:
    """Release the hosts of an attempt. `known`: an intent that was read already, of this attempt or of another one."""
    intent = known if known is not None and known.attempt == attempt else None
    if intent is None:
        record = job.store.read(names.intent(job.job_id, attempt))
        if record is None:
            return Freed.DONE
        intent = read_intent(record, job.backend, job.job_id, attempt, job.within)
    placement: dict[str, Any] | None = intent.placement
    if intent.damage and not placement:
        placement = find_placement(job.backend, job.job_id, attempt)
        if placement is None:  # it is unknown what is left of it
            return Freed.REFUSED
    freed = job.backend.release(placement) if placement else Freed.DONE
    if job.shared and freed is Freed.DONE:
        give_back(job.store, (job.job_id, attempt))
    return freed


def abandon(store: Store, backend: Backend, job_id: str, why: str, by: str, *, patience: float) -> bool:
    """End a job whose spec cannot be read: by the records that its hosts heed, and by the names of its places. Returns
    whether nothing of it is left.
    """
    spec = store.read(names.spec(job_id))
    kept = set_aside(store, names.spec(job_id), spec.data) if spec is not None else ""
    reason = f"{why}. {kept}" if kept else why
    store.create(names.cancel(job_id), wire.encode({"reason": reason, "by": by, "writer": ME, "anew": True}))
    last = attempts.newest(store, job_id) or 1
    closed = wire.Verdict(wire.CLOSED, ME, store.now(), cause=wire.CANCELLED, reason=reason)
    store.create(names.verdict(job_id, last), closed.encode())
    store.ring(job_id)
    deadline = time.monotonic() + patience
    while True:
        left = [place for place in backend.leftovers() if "unread" not in place and place["job"] == job_id]
        left = [place for place in left if not backend.release(place)]
        if not left or time.monotonic() > deadline:
            return not left
        time.sleep(0.5)


def release_all(job: Job, last: int) -> None:
    """Release all that is left of a job that has ended: its last attempts by name, earlier ones by a listing."""
    for attempt in range(max(1, last - 1), last + 1):
        release(job, attempt)
    if last > 2:
        with suppress(KineticError):  # an account that may not list everything leaves that to the reaper
            for placement in job.backend.leftovers():
                if placement.get("job") == job.job_id and placement["attempt"] < last - 1:
                    job.backend.release(placement)


def forget_secrets(job: Job) -> None:
    """Remove the secrets of a job that has ended. The reaper or their expiry removes any that cannot be removed now."""
    if not job.kept:
        return
    with suppress(KineticError, OSError):
        for project in dict.fromkeys(one.project for one in job.plan().each()):
            for name in job.kept:
                job.backend.forget(f"projects/{project}/secrets/{name}", job.job_id)
