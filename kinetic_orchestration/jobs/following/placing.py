"""Places an attempt: in a job with a choice, which candidate it takes and where; and tells the deployment what it met.

Where chips are shared the choice is made first, and the attempt waits for the turn of that candidate. Once it has it,
the choice is made again, by what is known by then, among the candidates that this turn covers.

An attempt has one candidate and one place. What is known of capacity only puts them in an order (`capacity.choosing`);
the backend of the candidate makes the placement. A job of one way is placed by its backend alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from kinetic_orchestration.capacity import choosing, facts, records
from kinetic_orchestration.capacity.shares import line
from kinetic_orchestration.capacity.shares.line import Turn
from kinetic_orchestration.capacity.shares.rules import Want
from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.jobs.following.held_time import longest
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.lifecycle import Policies
from kinetic_orchestration.plan.records import intent_of
from kinetic_orchestration.plan.values import Before, Candidate, Glimpse, Intent, Past, Plan
from kinetic_orchestration.platforms.several import refusal_of
from kinetic_orchestration.platforms.shared.places import Refusal
from kinetic_orchestration.protocol import names, wire

ANY = "any"  # of turns: the candidate is not bound by one yet


def join(job: Job, attempt: int, past: Past | None, before: Before | None) -> None:
    """Put an attempt into the line for its turn, where chips are shared. Raises NoPlace.

    Of several choices it waits for the one that it would take now, or for the one that another process has it wait for.
    """
    plan = job.plan()
    if plan.choices:
        asked = line.asked_for(job.store, (job.job_id, attempt))
        same = [one for one in plan.each() if asked and line.is_exactly(one, asked)]
        plan = same[0] if same else choose(job, plan, attempt, past, before, is_early=True).plan
    _stand(job, attempt, plan)


def turn_of(job: Job, attempt: int, intent: Intent | None = None) -> Turn:
    """Return whether an attempt has its turn, or needs none. `intent`: what has been promised, if anything has."""
    if not job.shared:
        return Turn(True)
    if intent is not None:
        plan = job.plan_of(attempt, intent)
        if line.is_covered(plan, None):
            return Turn(True)
        if job.lines.get(attempt) is None:
            _stand(job, attempt, plan)
    place = job.lines[attempt]
    if place is None:
        return Turn(True)
    return place.turn() if intent is None else place.use()


def given(job: Job, attempt: int) -> Want | str | None:
    """Return what the turn was given for that an attempt was just told to have, as `choose` takes it."""
    if not job.shared:
        return ANY
    place = job.lines.get(attempt)
    return None if place is None else place.given


def _stand(job: Job, attempt: int, plan: Plan) -> None:
    created = job.policy.created
    job.lines[attempt] = line.line_of(job.store, plan, job.job_id, attempt, created, longest(plan))


def choose(
    job: Job,
    plan: Plan,
    attempt: int,
    past: Past | None,
    before: Before | None,
    turn: Want | str | None = ANY,
    *,
    is_early: bool = False,
) -> Chosen:
    """Return the plan of the attempt and, if there is a choice, what was chosen of it. Raises NoPlace.

    Args:
        job: The job.
        plan: Its plan.
        attempt: The attempt.
        past: How the one before was placed and ended.
        before: The sum of all before.
        turn: What its turn was given for: it takes what that covers. None if it has none; ANY where that is no matter.
        is_early: It is not to begin yet, so that it does not probe either.
    """
    if not plan.choices:
        return Chosen(plan)
    seed, resumes = _token(job, attempt), _covered(plan, turn, _resumes(job, plan, before))
    refusal = Refusal() if past is None else refusal_of(job.backend, plan.at(choice_of(past.placement)), past)

    def by_what_is(known: Mapping[facts.FactKey, facts.Fact], now: float) -> choosing.Selection:
        if past is None:
            return choosing.first(plan, known, now, seed=seed, resumes=resumes)
        return choosing.following(plan, known, now, past, seed, refusal, resumes=resumes)

    if is_early:
        found = by_what_is(records.known(job.store, choosing.keys(plan)), job.store.now())
    else:
        found = records.decide(job.store, plan, seed, by_what_is)
    return Chosen(found.plan(plan), found)


def _covered(plan: Plan, turn: Want | str | None, resumes: choosing.Resumes) -> choosing.Resumes:
    """Return which candidates can be taken with a turn, of those that `resumes` allows."""
    if isinstance(turn, str):
        return resumes
    covered = [one for number, one in enumerate(plan.choices) if line.is_covered(plan.at(number), turn)]
    given = f"its turn is for {turn.chips} chips of {turn.generation}" if turn is not None else "it takes no turn"

    def allows(candidate: Candidate) -> str:
        return resumes(candidate) if candidate in covered else given

    return allows


class Chosen(NamedTuple):
    """The plan of an attempt, and the selection that led to it; None for a job of one way."""

    plan: Plan
    selection: choosing.Selection | None = None

    def placement(self, job: Job, attempt: int, past: Past | None) -> dict[str, Any]:
        """Return the placement of the attempt. Raises NoPlace."""
        if self.selection is None:
            return job.backend.place(self.plan, job.job_id, attempt, past)
        return job.backend.place(self.plan, job.job_id, attempt) | self.selection.history()


def lines(job: Job, newest: int) -> list[choosing.Line]:
    """Return the choices of a job in the order in which one more attempt would try them now, then those that cannot
    resume its checkpoint; none if it has one only.

    Args:
        job: The job.
        newest: The number of its newest attempt.
    """
    plan = job.plan()
    if not plan.choices:
        return []
    record = job.store.read(names.intent(job.job_id, newest))
    before = None if record is None else intent_of(record, job.job_id, newest, job.within).before
    ran = (*(before.ran if before is not None else ()), *((newest,) if _started(job, newest) else ()))
    known = records.known(job.store, choosing.keys(plan))
    return choosing.table(plan, known, job.store.now(), resumes=_resumes(job, plan, Before(ran=ran)))


def _resumes(job: Job, plan: Plan, before: Before | None) -> choosing.Resumes:
    """Return which candidates can go on from the job's checkpoint, if it has one by now."""
    ran = before.ran if before is not None else ()
    if not ran or len({one.hosts for one in plan.each()}) == 1:
        return choosing.anything
    prefix = names.checkpoint_dir(str(job.spec()["identity"]))
    if next(iter(job.store.list(f"{prefix}/")), None) is None:
        return choosing.anything
    return choosing.of_hosts(job.plan_of(ran[-1]).hosts, plan, reshard=plan.reshard)


def choice_of(placement: Mapping[str, Any]) -> int:
    """Return the number of the candidate that a placement is of."""
    return int(placement.get("choice", 0))


def learn_from_end(job: Job, plan: Plan, attempt: int, past: Past) -> None:
    """Record what an attempt has met that another one follows. Whoever has written that one's intent does so. Raises no
    StoreError: it is a hint to others."""
    if not plan.choices or job.doubt:
        return
    one, held = plan.at(choice_of(past.placement)), None
    if past.cause == wire.QUOTA and refusal_of(job.backend, one, past).later:
        return  # of requests, which says nothing of hardware
    with suppress(StoreError):
        verdict = job.store.read(names.verdict(job.job_id, attempt)) if past.cause == wire.PREEMPTION else None
        started = _started(job, attempt) if verdict is not None else 0.0
        if verdict is not None and started:
            held = max(0.0, verdict.updated - started)
        outcome = facts.outcome_of(past.cause, facts.way_of(one), held)
        if outcome:
            key = facts.key_of(one, str(past.placement.get("zone", "")))
            records.learn(job.store, key, outcome, job.store.now(), _token(job, attempt))


def learn_start(job: Job, seen: Glimpse, was: str, now: str) -> None:
    """Record that an attempt has got its hosts, once its phase is that they run. Any number of processes may: it counts
    once. Raises no StoreError: it is a hint to others."""
    if now != "running" or was == now or seen.intent is None or job.doubt or not isinstance(job.policy, Policies):
        return
    attempt, placement = seen.intent.attempt, seen.intent.placement
    with suppress(StoreError):
        if started := _started(job, attempt):
            key = facts.key_of(job.plan_of(attempt, seen.intent), str(placement.get("zone", "")))
            records.learn(job.store, key, facts.GOT, started, _token(job, attempt))


def _started(job: Job, attempt: int) -> float:
    """Return when the first host of an attempt has begun; 0 if it has not."""
    record = job.store.read(names.host(job.job_id, attempt, 0, "started.json"))
    return 0.0 if record is None else record.updated


def _token(job: Job, attempt: int) -> str:
    return f"{job.job_id}-{attempt}"
