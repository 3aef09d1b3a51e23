"""Carries out what the lifecycle decided. Each action is idempotent; records decide between two that act at once."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from kinetic_orchestration.errors import BackendError, Corrupt, JobNotFound, KineticError, NoPlace, StoreError
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.trust import ALONE, HOSTS, Ended, Trust, gist
from kinetic_orchestration.jobs.watching import attempts, usage
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.jobs.watching.decode import find_placement, read_intent
from kinetic_orchestration.jobs.watching.look import look
from kinetic_orchestration.jobs.watching.poll import Poll
from kinetic_orchestration.packaging.requirements import indexes
from kinetic_orchestration.plan.records import Within, fields_of, intent_of, plan_of, spec_of, verdict_of, within
from kinetic_orchestration.plan.values import (
    PRESENT,
    Before,
    Freed,
    Glimpse,
    Intent,
    JobStatus,
    Outcome,
    Past,
    Plan,
    Staged,
)
from kinetic_orchestration.platforms.backend import Backend, Submission
from kinetic_orchestration.platforms.read_only import Onlooker
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.wire.task import Task

ME = f"{os.getpid()}-{secrets.token_hex(6)}"  # this process, as a writer of records

DEADLINE_ALLOWANCE = 15 * 60.0
SECRETS_PATIENCE = 60.0  # a process without them only ends an attempt that nobody else has started for so long
TRUST_PATIENCE = 1800.0  # so does one that may not start it
HEARD_SOON = 2.0  # seconds in which host 0 may say itself since when it is there
HELD_STEP = 30.0  # seconds that hosts are there longer than what is remembered of it


@dataclass(frozen=True, slots=True)
class Job:
    """A job as every process can rebuild it from the store: its spec, and where it lies and runs."""

    job_id: str
    store: Store
    backend: Backend
    policy: lifecycle.Policy
    spec_digest: str
    trust: Trust = ALONE
    doubt: str = ""  # why nothing of it is started or unpickled here
    kept: tuple[str, ...] = ()  # what Secret Manager keeps for it until it has ended
    runs_on: str = ""  # the name of the backend that its plan names
    within: Within | None = None  # which places its attempts may be in, by its plan
    written: bytes = field(default=b"", repr=False)  # its spec, while the process that wrote it submits it
    signed: str = ""  # the name of the key that its verdicts are signed with; "" for none
    ended: str = ""  # what it was seen to come to by whoever handed it over
    limited: bool = False  # by a cost

    def spec(self) -> dict[str, Any]:
        if self.written:
            return spec_of(self.written, self.job_id)
        record = self.store.read(names.spec(self.job_id))
        if record is None:
            raise JobNotFound(missing(self.job_id, self.store))
        if self.store.remote and digest.of_bytes(record.data) != self.spec_digest:
            raise Corrupt(f"{names.spec(self.job_id)} in {self.store.url} was changed while the job was followed")
        return spec_of(record.data, self.job_id)

    def task(self) -> Task:
        return Task.from_json(self.spec()["task"])

    def plan(self) -> Plan:
        return plan_of(self.spec(), self.job_id)

    def on(self, backend: Backend) -> Job:
        """The same job with the backend that it runs on; for one in doubt, with an onlooker's."""
        return replace(self, backend=Onlooker(backend) if self.doubt else backend)


def open_job(
    job_id: str, store: Store, backend: Backend, trust: Trust = ALONE, spec_digest: str = "",
    written: Record | None = None, ended: str = "",
) -> Job:  # fmt: skip
    """`spec_digest`: that of the job's spec, if it is known by another way than the store, as what it has `ended` in;
    `written`: the spec, if it was written here just now.
    """
    record = written
    if record is None and isinstance(job_id, str) and job_id.replace("-", "").isalnum():
        record = store.read(names.spec(job_id))
    if record is None:
        raise JobNotFound(missing(job_id, store))
    found = digest.of_bytes(record.data)
    doubt = "" if written is not None else trust.doubt_of_spec(store, job_id, found, spec_digest)
    spec = spec_of(record.data, job_id)
    plan = plan_of(spec, job_id)
    policy = policy_of(plan, record.updated)
    kept = tuple(names.secret(job_id, variable) for variable in plan.secrets) if plan.remote else ()
    runs_on = sys.intern(plan.backend)
    data = b"" if written is None else written.data
    signed = sys.intern(spec.get("signed", "")) if store.remote else ""
    job = Job(
        sys.intern(job_id), store, backend, policy, found, trust, doubt, kept, runs_on, within(plan), data, signed,
        ended, plan.affordable > 0,
    )  # fmt: skip
    return job.on(backend)


def at_rest(job: Job) -> Job:
    """The same job, without what only its submission needed: of a thousand handles, each would keep its own."""
    return replace(job, written=b"") if job.written else job


def vouched(job: Job, spec_digest: str, ended: str = "") -> Job:
    """The same job, by what came with a handle or a cursor. Raises Corrupt if its spec is another one."""
    job = replace(job, ended=ended) if ended else job
    if not spec_digest or not job.doubt:
        return job
    backend = job.backend.backend if isinstance(job.backend, Onlooker) else job.backend
    known = replace(job, doubt=job.trust.doubt_of_spec(job.store, job.job_id, job.spec_digest, spec_digest))
    return known.on(backend)


def doubt_of_value(job: Job, outcome: Outcome) -> str:
    """Tell why what came of a job, its value or its exception, is not unpickled here, or "": then it is known from now
    on that the job came to this. A verdict that is signed was believed as a whole.
    """
    if job.doubt or not job.store.remote:
        return job.doubt
    if is_sealed(job):
        return ""
    plan, verdict = job.plan(), outcome.verdict
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
            job.trust.saw_end(job.store, job.job_id, seen._replace(proven=True))
    return doubt


def is_sealed(job: Job) -> bool:
    """Tell whether a verdict of the job counts here only with the seal of its key's holder, and the key is ours."""
    return bool(job.signed) and not job.doubt and job.signed == job.trust.key_id


def lacks_key(job: Job) -> str:
    """Why this process can neither start nor close an attempt of a signed job, or ""."""
    if not job.signed or is_sealed(job):
        return ""
    if job.doubt:
        return job.doubt
    return (
        f"job {job.job_id} is signed with a signing_key that this process does not have, so its hosts could not sign "
        "what they come to: let both processes have the same KINETIC_SIGNING_KEY"
    )


def glimpse(job: Job, attempt: int, cache: AttemptCache | None = None, poll: Poll | None = None) -> Glimpse:
    """One look at an attempt. Raises Corrupt where its verdict has to be signed and is not."""
    seen = look(job.store, job.backend, job.job_id, attempt, job.policy.hosts, cache=cache, poll=poll)
    if seen.verdict is not None:
        believe(job, attempt, seen.verdict)
    return seen


def believe(job: Job, attempt: int, verdict: wire.Verdict) -> None:
    if not is_sealed(job) or job.trust.has_sealed(job.store, job.job_id, attempt, verdict):
        return
    raise Corrupt(
        f"{names.verdict(job.job_id, attempt)} in {job.store.url} is not signed by who may have written it, and all "
        "verdicts of this job are: somebody has changed it. Nothing follows from it, and the job is not run again. "
        "Find out who can write to the bucket; to have it run anew, give another key, or start another run"
    )


def conclude(job: Job, outcome: Outcome, at: float, *, remember: bool = True) -> str:
    """Return what the job came to, as others may be told, and hold this process to it from now on. Raises Corrupt if it
    was seen to come to something else, unless that was never proven, and this is.
    """
    if outcome.cause == wire.DAMAGED:
        return _conclude_damaged(job, outcome, remember=remember)
    if not job.store.remote or job.doubt:
        return job.ended
    found = _end_of(outcome, at)._replace(proven=is_sealed(job))
    known = _known_end(job)
    if known is not None and known.is_other(found):
        if known.proven or not (found.proven or _is_proven(job, outcome)):
            raise Corrupt(_other_end(job, known))
        known, found = None, found._replace(proven=True)
    if known is None and remember:
        job.trust.saw_end(job.store, job.job_id, found)
    return str(known or found)


def _conclude_damaged(job: Job, outcome: Outcome, *, remember: bool) -> str:
    """Of a verdict that cannot be read nothing is remembered. A job that was seen to succeed is not run again by it."""
    known = _known_end(job) if job.store.remote and not job.doubt else None
    if known is not None and known.status == JobStatus.SUCCEEDED.value:
        raise Corrupt(_other_end(job, known))
    if remember:
        _keep_damaged(job, names.verdict(job.job_id, outcome.attempt))
    return job.ended


def _end_of(outcome: Outcome, at: float) -> Ended:
    return Ended(outcome.attempt, outcome.status.value, gist(outcome.verdict.raw), at)


def _is_proven(job: Job, outcome: Outcome) -> bool:
    return not job.trust.everything and not doubt_of_value(job, outcome)


def has_ended(job: Job, following: int = 0) -> bool:
    """Tell whether the job was seen to end, so that nothing more is to be begun of it. Raises Corrupt if the verdict by
    which it did is not there any more.

    `following`: the attempt that is to be looked at next. If others have begun it, and the end that was seen was never
    proven, it may be looked at: there may be the proof of another end.
    """
    known = _known_end(job) if job.store.remote else None
    if known is None:
        return False
    record = job.store.read(names.verdict(job.job_id, known.attempt))
    if record is None or gist(verdict_of(record.data).raw) != known.verdict:
        begun = following and job.store.read(names.intent(job.job_id, following)) is not None
        if known.proven or not begun:
            raise Corrupt(_other_end(job, known))
    return True


def seen_end(job: Job) -> str:
    """Return the end that the job was seen to come to, to go along with a handle of it; "" for none."""
    known = _known_end(job) if job.store.remote and not job.doubt else None
    return "" if known is None else str(known)


def _known_end(job: Job) -> Ended | None:
    """Return the end that this home saw; only without one, the end that it was told, which anybody may have made up."""
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


def how_it_ended(job: Job, outcome: Outcome | None) -> str:
    """Of one that was cancelled: it may have been quicker."""
    if outcome is None:
        return f"not ended yet; to look again: kinetic-orchestration status {job.job_id}"
    return outcome.status.value.lower()


def missing(job_id: str, store: Store) -> str:
    return (
        f"there is no job {job_id!r} in {store.url}: look at `kinetic-orchestration jobs`, and check that "
        "KINETIC_STORE and KINETIC_DEPLOYMENT are those of the submitter; records go when they are older than "
        "KINETIC_RETENTION"
    )


def policy_of(plan: Plan, created: float) -> lifecycle.Policy:
    limits = plan.limits
    return lifecycle.Policy(
        hosts=plan.hosts,
        crew=plan.crew,
        user=plan.retry.user,
        preemption=plan.retry.preemption,
        infra=plan.retry.infra,
        provision=float(limits.provision or 0.0),
        total=float(limits.total or 0.0),
        created=created,
        silence=lifecycle.SILENT_BEATS if plan.remote else 0.0,
        affordable=plan.affordable,
        usd=float(limits.cost or 0.0),
    )


def perform(action: lifecycle.Action, job: Job, attempt: int, seen: Glimpse, environ: Mapping[str, str]) -> str:
    """Do it; returns a sentence when the job has to wait for something. A release is asked for by `release`."""
    if not isinstance(action, lifecycle.Interrupt) and has_ended(job):
        return ""
    if job.doubt and isinstance(action, lifecycle.Intend | lifecycle.Submit):
        return leave_to_others(job, attempt, seen)
    if isinstance(action, lifecycle.Intend | lifecycle.Submit) and (why := lacks_key(job)):
        return f"attempt {attempt} waits for a process that may start it: {why}"
    if isinstance(action, lifecycle.Intend):
        intend(job, attempt)
    elif isinstance(action, lifecycle.Submit):
        return submit(job, attempt, seen, environ)
    elif isinstance(action, lifecycle.Interrupt):
        assert seen.intent is not None
        job.backend.cancel(seen.intent.placement)
    elif isinstance(action, lifecycle.Close):
        reason = action.reason
        if seen.intent is not None and seen.intent.damage:
            reason += f". {_keep_damaged(job, names.intent(job.job_id, attempt))}"
        return close(job, attempt, action.cause, reason, unplaced=action.unplaced)
    return ""


def set_aside(store: Store, name: str, data: bytes) -> str:
    """Keep the bytes of a damaged record beside it, whatever becomes of it. Returns the sentence that says so."""
    store.create(kept := f"{name}.damaged", data)
    return f"Its bytes are kept in {kept}"


def _keep_damaged(job: Job, name: str) -> str:
    record = job.store.read(name)
    return "" if record is None else set_aside(job.store, name, record.data)


def leave_to_others(job: Job, attempt: int, seen: Glimpse) -> str:
    """An attempt that this process must not start. It is closed when nobody has started it for long, so that whoever
    waits hears of it; asked for again, the job then begins anew, with the same checkpoints, by who asks.
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
    """The intent, if it is the one that was written here."""
    plan = job.plan()
    past, before = _past(job, attempt - 1) if attempt > 1 else (None, Before())
    left = plan.affordable
    if left:
        left -= _held(job, plan, attempt)
        if left <= 0:
            if job.store.read(names.intent(job.job_id, attempt)) is None:  # else somebody was faster, and it has begun
                _close_as_spent(job, plan, attempt, left, unplaced=True)
            return None
    allowed = _longest(plan, left)
    try:
        placement = job.backend.place(plan, job.job_id, attempt, past)
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
            "before": before._asdict() if before is not None else None,  # so that nobody need read it all again
            "writer": ME,
        }
    )
    generation = job.store.create(names.intent(job.job_id, attempt), data)
    if generation is None:
        return None
    record = Record(data, generation, job.store.written_at(generation))
    return intent_of(record, job.job_id, attempt, job.within)


def _past(job: Job, attempt: int) -> tuple[Past | None, Before | None]:
    """How an attempt was placed and ended, and what all came to with it."""
    promised = job.store.read(names.intent(job.job_id, attempt))
    ended = job.store.read(names.verdict(job.job_id, attempt))
    if promised is None or ended is None:
        return None, None
    verdict = verdict_of(ended.data, names.verdict(job.job_id, attempt))
    believe(job, attempt, verdict)
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


def _held(job: Job, plan: Plan, attempt: int) -> float:
    """For how long the hosts of other attempts than this one were there: of each the most that was ever seen of it, by
    its records or by the cloud's word. Whoever removes records gives no money back; and none tells of more than the
    plan's deadline allows, at which machines end themselves.
    """
    stays, most = (
        usage.stays(job.store, job.job_id, attempt - 1) if attempt > 1 else [],
        _longest(plan, plan.affordable),
    )
    told = {stay.attempt: min(stay.ready, most) for stay in stays}
    for number, seconds in told.items():
        job.trust.saw_held(job.store, job.job_id, number, seconds)
    seen = job.trust.held(job.store, job.job_id)
    return sum(max(told.get(number, 0.0), seen.get(number, 0.0)) for number in {*told, *seen})


def _close_as_spent(job: Job, plan: Plan, attempt: int, left: float, *, unplaced: bool = False) -> None:
    used, usd = plan.affordable - left, plan.limits.cost or 0.0
    reason = f"its slices were held for {used:.0f} s, its cost limit of ${usd:,.2f}"
    close(job, attempt, wire.DEADLINE, reason, unplaced=unplaced)


def submit(job: Job, attempt: int, seen: Glimpse, environ: Mapping[str, str]) -> str:
    assert seen.intent is not None
    spec = job.spec()
    plan = plan_of(spec, job.job_id)
    intent = seen.intent
    if plan.affordable:  # by what was seen, not by records: whatever these say, the machines keep their deadline
        held = job.trust.held(job.store, job.job_id)
        left = plan.affordable - sum(seconds for number, seconds in held.items() if number != attempt)
        if left <= 0:
            _close_as_spent(job, plan, attempt, left)
            return ""
        intent = intent._replace(deadline=min(intent.deadline, intent.created + _longest(plan, left)))
    if plan.remote and not _may_last(plan, seen.intent):
        named = f"{names.intent(job.job_id, attempt)} names a deadline that the job's plan does not have"
        close(job, attempt, wire.CONFIGURATION, f"{named}: somebody has changed it, and nothing was made by it")
        return ""
    if plan.remote and plan.secrets:
        environ = {**environ, **indexes.for_hosts(environ)[1]}
    unset = [name for name in plan.secrets if name not in environ]
    if unset:
        if seen.now - seen.intent.created < SECRETS_PATIENCE:  # whoever has them may be about to submit
            return f"waiting for a process that has {', '.join(unset)} in its environment"
        reason = (
            f"{', '.join(unset)} must come from the environment of the process that starts attempt {attempt}, and is "
            "not set there"
        )
        close(job, attempt, wire.CONFIGURATION, reason)
        return ""
    try:
        staged = Staged.from_json(spec["staged"])
        secrets = {name: environ[name] for name in plan.secrets}
        key = job.trust.key(HOSTS, job.store, job.job_id, attempt) if is_sealed(job) else ""
        installer = indexes.uv_settings(environ) if plan.isolated and not plan.remote else {}
        return job.backend.submit(
            Submission(plan, staged, job.job_id, job.spec_digest, intent, secrets, key, installer)
        )
    except BackendError as error:
        close(job, attempt, error.cause, str(error))
        return ""
    except KineticError as error:
        close(job, attempt, wire.CONFIGURATION, str(error))
        raise


def _may_last(plan: Plan, intent: Intent) -> bool:
    """Tell whether the deadline is one that the plan leads to: an intent lies where others may write."""
    return 0 < intent.deadline <= intent.created + _longest(plan) + 1.0


def _longest(plan: Plan, affordable: float = 0.0) -> float:
    """How long an attempt's hosts may at most be there; 0: for ever."""
    run = min(filter(None, (float(plan.limits.run or 0.0), affordable)), default=0.0)
    return run + float(plan.limits.provision or 0.0) + DEADLINE_ALLOWANCE if run else 0.0


def see_held(job: Job, attempt: int, seen: Glimpse, cache: AttemptCache | None = None) -> None:
    """Remember, for a job with a limit of cost, how long the cloud itself says that the attempt's hosts are there. Of a
    job in doubt nothing is remembered: its limit, and that it has an attempt of that number, only its records say.

    Of hosts that are charged for and of which the first one does not speak, the store is told since when they are.
    """
    charged, present = seen.charged or seen.since, seen.observation.state == PRESENT
    if job.doubt or seen.verdict is not None or not charged:
        return
    if job.limited and (present or (cache is not None and cache.charged_since)):
        job.trust.saw_held(job.store, job.job_id, attempt, seen.now - charged, HELD_STEP if present else 0.0)
    if cache is None or cache.charge_recorded or not cache.charged_since:
        return
    if any(beat is not None for beat in seen.beats[:1]):
        return
    if not present or seen.now - charged > HEARD_SOON:
        tell_held(job.store, job.job_id, attempt, charged)
        cache.charge_recorded = True


def tell_held(store: Store, job_id: str, attempt: int, since: float) -> None:
    """Tell those who ask what the job cost since when its hosts can have been charged for."""
    with suppress(StoreError):  # whoever may only read is told so when there is more to be done
        store.create(names.ready(job_id, attempt), wire.encode({"since": since, "writer": ME}))


def close(job: Job, attempt: int, cause: str, reason: str, *, unplaced: bool = False) -> str:
    """Write the verdict that closes the attempt. Returns why this process may not do so, else "".

    `unplaced`: no place was ever promised to the attempt.
    """
    if why := lacks_key(job):
        return f"attempt {attempt} is over ({reason}), and waits for a process that may say so: {why}"
    if job.store.read(names.spec(job.job_id)) is None:  # forgotten, and its verdicts with it
        raise JobNotFound(missing(job.job_id, job.store))
    verdict = wire.Verdict(wire.CLOSED, ME, job.store.now(), cause=cause, reason=reason, unplaced=unplaced)
    if is_sealed(job):
        verdict = job.trust.seal(job.store, job.job_id, attempt, verdict)
    job.store.create(names.verdict(job.job_id, attempt), verdict.encode())
    ring(job)
    return ""


def cancel(job: Job, reason: str, by: str, *, anew: bool = False) -> None:
    """Ask for the end. Whoever runs the job sees the record; it stays, so a later attempt sees it too.

    `anew`: only this run of it is unwanted. Whoever asks for the same identity again gets a new one.
    """
    fields = {"reason": reason, "by": by, "writer": ME, **({"anew": True} if anew else {})}
    job.store.create(names.cancel(job.job_id), wire.encode(fields))
    ring(job)


def may_begin_anew(job: Job) -> bool:
    """Whether the job was called back by somebody who may want it again."""
    record = job.store.read(names.cancel(job.job_id))
    try:
        return record is not None and fields_of(record.data, wire.CANCEL, names.cancel(job.job_id)).get("anew") is True
    except Corrupt:  # it must not block its key for good
        return True


def release(job: Job, attempt: int, known: Intent | None = None) -> Freed:
    """`known`: an intent that was read already, of this attempt or of another one."""
    intent = known if known is not None and known.attempt == attempt else None
    if intent is None:
        record = job.store.read(names.intent(job.job_id, attempt))
        if record is None:
            return Freed.DONE
        intent = read_intent(record, job.backend, job.job_id, attempt, job.within)
    placement: dict[str, Any] | None = intent.placement
    if intent.damage and not placement:
        placement = find_placement(job.backend, job.job_id, attempt)
        if placement is None:  # nobody could say what is left of it
            return Freed.REFUSED
    return job.backend.release(placement) if placement else Freed.DONE


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
    """Whatever is left of a job that has ended: by name of its last attempts, and of others what a listing shows."""
    for attempt in range(max(1, last - 1), last + 1):
        release(job, attempt)
    if last > 2:
        with suppress(KineticError):  # whoever may not list everything leaves that to the reaper
            for placement in job.backend.leftovers():
                if placement.get("job") == job.job_id and placement["attempt"] < last - 1:
                    job.backend.release(placement)


def forget_secrets(job: Job) -> None:
    """The job has ended, and nobody needs them any more. What cannot be removed now, the reaper or its expiry will."""
    if not job.kept:
        return
    with suppress(KineticError, OSError):
        project = job.plan().project
        for name in job.kept:
            job.backend.forget(f"projects/{project}/secrets/{name}", job.job_id)


def ring(job: Job) -> None:
    job.store.ring(job.job_id)
