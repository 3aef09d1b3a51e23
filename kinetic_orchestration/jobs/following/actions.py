"""Carries out what the lifecycle decided. Each action is idempotent; records decide between two that act at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.capacity.races import known as with_winner
from kinetic_orchestration.capacity.shares.line import give_back, is_covered, leave_slice, note_gone
from kinetic_orchestration.errors import BackendError, Corrupt, JobNotFound, KineticError, NoPlace, StoreError
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following.held_time import held_before, last_of, may_last, promised, seen_held
from kinetic_orchestration.jobs.following.placing import choose, given, join, learn_from_end, past_of, turn_of, warm
from kinetic_orchestration.jobs.following.verdicts import check_seal, has_ended, lacks_key
from kinetic_orchestration.jobs.job import ME, Job, keep_damaged, missing, set_aside
from kinetic_orchestration.jobs.trust import HOSTS
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.jobs.watching.decode import find_placement, read_intent
from kinetic_orchestration.packaging.requirements import indexes
from kinetic_orchestration.plan.records import fields_of, intent_of, plan_of, verdict_at, verdict_of
from kinetic_orchestration.plan.values import (
    ABSENT,
    GONE,
    Before,
    Freed,
    Glimpse,
    Intent,
    Past,
    Plan,
    Staged,
)
from kinetic_orchestration.platforms.backend import Backend, KeepsBootLog, KeepsSlices, Races, Submission
from kinetic_orchestration.platforms.shared.places import WITHOUT_HOSTS
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.wire.lease import OF_RUN

if TYPE_CHECKING:
    from kinetic_orchestration.capacity.warm import releasing

SECRETS_PATIENCE = 60.0  # seconds without a start by another process, after which one without secrets ends an attempt
OWN_PATIENCE = 60.0  # seconds for which a retry waits until its job's own slice is clean
TRUST_PATIENCE = 1800.0  # so does one that may not start it


def perform(action: lifecycle.Action, job: Job, attempt: int, seen: Glimpse, environ: Mapping[str, str]) -> str:
    """Perform an action. Returns a sentence if the job has to wait. A release is requested by `release`."""
    if not isinstance(action, lifecycle.Interrupt) and has_ended(job):
        return ""
    if job.doubt and isinstance(action, lifecycle.Intend | lifecycle.Submit):
        return leave_to_others(job, attempt, seen)
    if isinstance(action, lifecycle.Intend | lifecycle.Submit) and (why := _must_wait(action, job, attempt, seen.now)):
        return why
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
        if seen.intent is not None and isinstance(job.backend, Races):
            job.backend.note_ends(seen.intent, job.job_id)
        if action.after_refusal:
            reason = lifecycle.answered(reason, refusal(job, attempt - 1))
        return close(job, attempt, action.cause, reason, host=action.host, unplaced=action.unplaced)
    line = job.lines.get(attempt)
    return line.says if line is not None else ""


def _must_wait(action: lifecycle.Action, job: Job, attempt: int, now: float) -> str:
    """Return why this process does not place or start an attempt now, as a sentence; "" if it does."""
    if why := lacks_key(job):
        return f"attempt {attempt} waits for a process that may start it: {why}"
    if isinstance(action, lifecycle.Intend) and job.keeps and attempt > 1:
        return _cleaning(job, attempt - 1, now)
    return ""


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
    placed = _before_claims(job, attempt, past)
    try:
        if job.shared and attempt not in job.lines:
            join(job, attempt, placed, before)
            if waits(job, attempt):
                return None
        turn = given(job, attempt)
        chosen = warm(job, attempt, past, before, turn) or choose(job, job.plan(), attempt, placed, before, turn)
        plan = chosen.plan
        left = plan.affordable
        if left:
            left -= held_before(job, plan, attempt)
            if left <= 0:
                if job.store.read(names.intent(job.job_id, attempt)) is None:  # otherwise another process has begun it
                    _close_as_spent(job, plan, attempt, left, unplaced=True)
                return None
        placement = chosen.placement(job, attempt, past if chosen.warm else placed)
        allowed, left = promised(job, plan, placement, attempt, left)
    except NoPlace as error:
        close(job, attempt, wire.CONFIGURATION, str(error), unplaced=True)
        return None
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


def _with_winner(job: Job, intent: Intent) -> Intent:
    return with_winner(job.store, job.job_id, intent, job.believes)


def _cleaning(job: Job, before: int, now: float) -> str:
    """Return a sentence while the hosts of the attempt before clean their slice, which the next one may then take: that
    takes seconds, and other hosts minutes."""
    promised = job.store.read(names.intent(job.job_id, before))
    if promised is None:
        return ""
    try:
        intent = _with_winner(job, intent_of(promised, job.job_id, before, job.within))
    except Corrupt:
        return ""
    from kinetic_orchestration.capacity.warm import releasing

    use = _use_of(job, before, intent, intent.placement)
    if not use.may_be_offered or now - use.ended > OWN_PATIENCE or not releasing.is_undecided(job.store, use):
        return ""
    if _is_lost(job.backend, intent.placement):  # as somebody has deleted it, or it was taken away
        releasing.free_each(job.store, job.backend, use._replace(lost=True))
        return ""
    return f"attempt {before + 1} waits for the slice of attempt {before}, which is being cleaned"


def _is_lost(backend: Backend, placement: Mapping[str, Any]) -> bool:
    """Return True if a slice that was there is seen to be gone; False also if it is too early to look again."""
    limit = backend.rate_limit(placement)
    return (limit is None or limit.take()) and backend.observe([placement])[0].state in (ABSENT, GONE)


def _before_claims(job: Job, attempt: int, past: Past | None) -> Past | None:
    """Return how the last attempt was placed and ended for which hosts were requested, if all since then were to claim
    kept slices that others took first: the next request goes on from there."""
    if not job.keeps:
        return past
    from kinetic_orchestration.capacity.warm.choosing import lost_claims

    while lost_claims(past):
        attempt -= 1
        past = _past(job, attempt - 1)[0] if attempt > 1 else None
    return past


def waits(job: Job, attempt: int, intent: Intent | None = None) -> str:
    """Return why an attempt has to wait for its turn, as a sentence; "" if it has it, or needs none.

    The answer binds others only after the attempt's intent is written, so it is asked for again with that before
    anything is requested. Two processes may have wanted the turn of different choices: an intent that the turn which
    was given does not cover is closed, and the next attempt gets in line.
    """
    turn = turn_of(job, attempt, intent)
    if not turn.granted or intent is None or turn.of is None or is_covered(job.plan_of(attempt, intent), turn.of):
        return turn.says or ("" if intent is None or not turn.after else _make_way(job, intent, turn.after))
    reason = f"its turn is for {turn.of.chips} chips of {turn.of.generation}, and another choice was to take it"
    return close(job, attempt, wire.INTERNAL, reason) or reason


def _make_way(job: Job, intent: Intent, idle: Sequence[str]) -> str:
    """Release the slices that serve nobody and have the chips of an attempt's turn, but for one that it takes. Returns
    a sentence until none of them is there."""
    from kinetic_orchestration.capacity.warm import releasing

    own, why = intent.placement.get("lease", {}).get("slice"), f"{job.job_id} waits for its chips"
    opened = {one.backend for one in job.plan().each()}
    for name in idle:
        if name != own and not releasing.make_way(job.store, job.backend, name, why, writer=ME, opened=opened):
            return f"waiting for the chips of {name}, a warm slice that serves nobody and is being released"
    return ""


def _past(job: Job, attempt: int) -> tuple[Past | None, Before | None]:
    """Return how an attempt was placed and ended, and the sum of all attempts up to it; None for what is not known."""
    intended = job.store.read(names.intent(job.job_id, attempt))
    ended = job.store.read(names.verdict(job.job_id, attempt))
    if intended is None or ended is None:
        return None, None
    verdict = verdict_of(ended.data, names.verdict(job.job_id, attempt))
    check_seal(job, attempt, verdict)
    try:
        intent = _with_winner(job, intent_of(intended, job.job_id, attempt, job.within))
        cause = lifecycle.classify(verdict)
    except Corrupt:  # then it is placed as a first one is, and all attempts are read again
        return None, None
    past = past_of(job, intent, cause, verdict.reason)
    if intent.before is None:
        return past, None
    budget, _ = lifecycle.rule_of(cause)
    if budget is None:  # what ends a job has no successor that could count on it
        return past, None
    ran = intent.before.ran
    if budget != lifecycle.FREE or _had_hosts(job, intent):
        ran = (*ran, attempt)
    return past, Before(lifecycle.spend(intent.before.spent, budget), ran)


def _had_hosts(job: Job, intent: Intent) -> bool:
    """Return True if an attempt may have had hosts: one of them has begun, or it has claimed those of a kept slice."""
    if job.store.read(names.host(job.job_id, intent.attempt, 0, "started.json")) is not None:
        return True
    if "lease" not in intent.placement:
        return False
    from kinetic_orchestration.capacity.warm.records import is_claimed

    return is_claimed(job.store, intent.placement["lease"]["slice"], job.job_id, intent.attempt)


def refusal(job: Job, attempt: int) -> str:
    """Return why an attempt got no hosts; "" if it had some, or cannot be read, for texts that do without it."""
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
        intent = intent._replace(deadline=min(intent.deadline, last_of(plan, intent, left)))
    if job.backend.charges and not may_last(plan, seen.intent):
        named = f"{names.intent(job.job_id, attempt)} names a deadline that the job's plan does not have"
        close(job, attempt, wire.CONFIGURATION, f"{named}: somebody has changed it, and nothing was made by it")
        return ""
    if plan.secrets and not plan.traits.share_files:
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
        staged = Staged.from_json(spec["staged"])
        staged = staged if intent.races else staged.at(intent.choice)
        secrets = {name: environ[name] for name in plan.secrets}
        key = job.trust.key(HOSTS, job.store, job.job_id, attempt) if job.is_sealed else ""
        installer = indexes.uv_settings(environ) if plan.isolated and plan.traits.share_files else {}
        is_warm = "lease" in intent.placement
        lease_key = job.trust.new_slice_key(job.store, job.job_id, attempt) if plan.keep and not is_warm else ""
        asked = Submission(plan, staged, job.job_id, job.spec_digest, intent, secrets, key, installer, lease_key)
        return _claim(job, asked, seen.now) if is_warm else job.backend.submit(asked)
    except BackendError as error:
        close(job, attempt, error.cause, str(error))
        return ""
    except StoreError:  # it is not known whether the slice is claimed: that is found by who asks again
        raise
    except KineticError as error:
        close(job, attempt, wire.CONFIGURATION, str(error))
        raise


def _claim(job: Job, asked: Submission, now: float) -> str:
    """Claim the kept slice that is the attempt's place, with the orders for its hosts. Of one that others have, or that
    has ended, the attempt is closed, and the next one is placed anew. Returns a sentence if the job has to wait.
    """
    from kinetic_orchestration.capacity.warm.records import OTHER_KEY, Claim, claim

    intent, backend = asked.intent, job.backend
    lease, attempt = intent.placement["lease"], intent.attempt
    name = str(lease["slice"])
    key = job.trust.slice_key(job.store, names.job_of_slice(name), names.attempt_of_slice(name)[0])
    if not key or not isinstance(backend, KeepsSlices):
        return _lacks_slice_key(job, asked, now, name)
    try:
        orders = backend.hand_over(asked)
    except BackendError as error:
        if error.cause in WITHOUT_HOSTS:  # an error of Secret Manager, which no other place helps against
            return f"waiting: {error}"
        raise
    origin = {what: str(text) for what, text in job.spec().get("origin", {}).items() if what in OF_RUN}
    by = Claim(job.job_id, attempt, intent.deadline, origin, orders, key, ME)
    lost = claim(job.store, name, int(lease["epoch"]), by)
    if lost == OTHER_KEY:
        return _lacks_slice_key(job, asked, now, name)
    if lost:
        return close(job, attempt, wire.INTERNAL, f"the warm slice {name} was not to be had: {lost}")
    with suppress(wire.Unreadable, wire.Newer):  # then whoever decides of turns finds out who has it
        if job.shared and (held := leases.read(job.store, name)) is not None and held.lease.idle:
            leave_slice(job.store, (held.lease.idle[-1].job, held.lease.idle[-1].attempt))
    return ""


def _lacks_slice_key(job: Job, asked: Submission, now: float, name: str) -> str:
    """Leave a claim to a process that has the key of the slice; close the attempt if none has made it for long."""
    if now - asked.intent.created < SECRETS_PATIENCE:
        return f"waiting for a process that has the key of the warm slice {name}"
    reason = f"nobody who has the key of the warm slice {name} has claimed it"
    return close(job, asked.intent.attempt, wire.INTERNAL, reason)


def close(job: Job, attempt: int, cause: str, reason: str, *, host: int | None = None, unplaced: bool = False) -> str:
    """Write the verdict that closes the attempt. Returns why this process may not do so, else "".

    `host`: whose failure it is, if it is one's. `unplaced`: no place was ever promised to the attempt.
    """
    if why := lacks_key(job):
        return f"attempt {attempt} is over ({reason}), and waits for a process that may say so: {why}"
    if job.store.read(names.spec(job.job_id)) is None:  # forgotten, and its verdicts with it
        raise JobNotFound(missing(job.job_id, job.store))
    verdict = wire.Verdict(wire.CLOSED, ME, job.store.now(), cause=cause, host=host, reason=reason, unplaced=unplaced)
    if job.is_sealed:
        verdict = job.trust.seal(job.store, job.job_id, attempt, verdict)
    job.store.create(names.verdict(job.job_id, attempt), verdict.encode())
    job.store.ring(job.job_id)
    return ""


def cancel(job: Job, reason: str, by: str, *, anew: bool = False, leaves: bool = False) -> None:
    """Request the end of a job. The process that runs the job sees the record; it stays, so a later attempt sees it
    too.

    `anew`: only this run of it is unwanted. A later request for the same identity gets a new job.
    `leaves`: only its program is unwanted. Its hosts may offer their slice to the next job, if it has `keep`.
    """
    flags = {name: True for name, asked in (("anew", anew), ("leaves", leaves)) if asked}
    fields = {"reason": reason, "by": by, "writer": ME, **flags}
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
    freed = _freed(job, attempt, intent, placement) if placement else Freed.DONE
    if job.shared and freed and freed is not Freed.KEPT:  # what serves nobody still has its chips
        give_back(job.store, (job.job_id, attempt))
    return freed


def release_losers(job: Job, intent: Intent) -> Freed:
    """Release the places that have not won the race of an attempt."""
    freed = job.backend.release_losers(intent.placement) if isinstance(job.backend, Races) else Freed.DONE
    return _noted(job, intent.attempt, freed)


def _noted(job: Job, attempt: int, freed: Freed) -> Freed:
    if job.shared and freed is Freed.DONE:
        note_gone(job.store, (job.job_id, attempt))
    return freed


def give_up(job: Job, intent: Intent, ended: Mapping[int, tuple[str, str]]) -> Freed:
    """Release the places of a race that cannot win it any more, with the cause and the reason of each."""
    freed = job.backend.give_up(intent, job.job_id, ended) if isinstance(job.backend, Races) else Freed.DONE
    return _noted(job, intent.attempt, freed)


def _freed(job: Job, attempt: int, intent: Intent | None, placement: dict[str, Any]) -> Freed:
    """Free a placement, unless its slice is kept for the next attempt, of whatever job, or serves that already."""
    if not job.keeps or job.doubt:
        return job.backend.release(placement)
    from kinetic_orchestration.capacity.warm import releasing

    return releasing.free_each(job.store, job.backend, _use_of(job, attempt, intent, placement))


def _use_of(job: Job, attempt: int, intent: Intent | None, placement: dict[str, Any]) -> releasing.Use:
    """Return what an attempt has of its slice, by its verdict."""
    from kinetic_orchestration.capacity.warm import releasing

    ended = job.store.read(names.verdict(job.job_id, attempt))
    verdict = None if ended is None else verdict_at(ended.data, names.verdict(job.job_id, attempt))
    leaves = verdict is not None and verdict.leaves_slice(lifecycle.classify(verdict))
    at = 0.0 if ended is None else ended.updated
    try:
        plan = job.plan_of(attempt, intent)
    except (Corrupt, JobNotFound):  # its spec is gone, or changed
        plan = None
    return releasing.Use(job.job_id, attempt, plan, placement, leaves, at, ME, believes=job.believes)


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
    from kinetic_orchestration.capacity.warm import releasing

    deadline = time.monotonic() + patience
    while True:
        left = [place for place in backend.leftovers() if "unread" not in place and place["job"] == job_id]
        left = [place for place in left if not releasing.free_found(store, backend, place, writer=ME)]
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
                    _freed(job, placement["attempt"], None, placement)


def forget_secrets(job: Job) -> None:
    """Remove the secrets of a job that has ended. The reaper or their expiry removes any that cannot be removed now."""
    if not job.kept:
        return
    with suppress(KineticError, OSError):
        for project in dict.fromkeys(one.project for one in job.plan().each()):
            for name in job.kept:
                job.backend.forget(f"projects/{project}/secrets/{name}", job.job_id)
