"""Places an attempt: in a job with a choice, which candidate it takes and where; and tells the deployment what it met.

Where chips are shared the choice is made first, and the attempt waits for the turn of that candidate. Once it has it,
the choice is made again, by what is known by then, among the candidates that this turn covers.

An attempt has one candidate and one place. What is known of capacity only puts them in an order (`capacity.choosing`);
the backend of the candidate makes the placement. A job of one way is placed by its backend alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.capacity import choosing, facts, records
from kinetic_orchestration.capacity.shares import line
from kinetic_orchestration.capacity.shares.line import Turn
from kinetic_orchestration.capacity.shares.rules import Want
from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.jobs.following.held_time import choice_in, longest
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.lifecycle import Policies, was_free
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.plan.planner import places_of
from kinetic_orchestration.plan.records import intent_of, plan_of, within
from kinetic_orchestration.plan.values import Before, Candidate, Glimpse, Intent, Past, Plan
from kinetic_orchestration.platforms.several import refusal_of
from kinetic_orchestration.platforms.shared.places import WITHOUT_HOSTS, Refusal
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.program.checkpoints import commits
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Entry
from kinetic_orchestration.protocol.wire.lease import FREE, Lease, key_name

if TYPE_CHECKING:
    from kinetic_orchestration.capacity.warm.choosing import Warm

_NOT_YET = "job-000000000000"  # stands for one that has no id yet
TRIES = 8  # commits that are read, until one can be
ANY = "any"  # of turns: the candidate is not bound by one yet


def join(job: Job, attempt: int, past: Past | None, before: Before | None) -> None:
    """Put an attempt into the line for its turn, where chips are shared. Raises NoPlace.

    Of several choices it waits for the one that it would take now, or for the one that another process has it wait for.
    """
    plan, kept = job.plan(), warm(job, attempt, past, before)
    if kept is not None:
        plan = kept.plan
    elif plan.choices:
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
    seed, resumes = _token(job, attempt), _covered(plan, turn, _resumes_of(job, attempt, plan, before))
    refusal = Refusal() if past is None else refusal_of(job.backend, plan.at(choice_in(past.placement)), past)

    rivals = list[choosing.Selection]()

    def by_what_is(known: Mapping[facts.FactKey, facts.Fact], now: float) -> choosing.Selection:
        if past is None:
            found = choosing.first(plan, known, now, seed=seed, resumes=resumes)
        else:
            found = choosing.following(plan, known, now, past, seed, refusal, resumes=resumes)
        rivals[:] = choosing.beside(plan, known, now, found, seed=seed, resumes=resumes)
        return found

    if is_early:
        found = by_what_is(records.known(job.store, choosing.keys(plan)), job.store.now())
    else:
        found = records.decide(job.store, plan, seed, by_what_is)
    return Chosen(found.plan(plan), found, tuple(one.plan(plan) for one in rivals), tuple(rivals))


def _covered(plan: Plan, turn: Want | str | None, resumes: choosing.Resumes) -> choosing.Resumes:
    """Return which candidates can be taken with a turn, of those that `resumes` allows."""
    if isinstance(turn, str):
        return resumes
    covered = [one for number, one in enumerate(plan.choices) if line.is_covered(plan.at(number), turn)]
    given = f"its turn is for {turn.chips} chips of {turn.generation}" if turn is not None else "it takes no turn"

    def allows(candidate: Candidate) -> str:
        return resumes(candidate) if candidate in covered else given

    return allows


def warm(
    job: Job, attempt: int, past: Past | None, before: Before | None, turn: Want | str | None = ANY
) -> Chosen | None:
    """Return the kept slice that an attempt takes, before all that would have to be created; None if there is none, if
    others were faster with the last ones, or if no host of the last one lived.

    Args:
        job: The job.
        attempt: The attempt.
        past: How the one before was placed and ended.
        before: The sum of all before.
        turn: As of `choose`.
    """
    if not job.keeps or job.within is None:
        return None
    from kinetic_orchestration.capacity.warm.choosing import MOST_LOST, best, fitting, lost_claims, was_unserved
    from kinetic_orchestration.capacity.warm.records import lately_offered

    if lost_claims(past) >= MOST_LOST:
        return None
    offered = lately_offered(job.store)
    if not offered or was_unserved(offered, past, job.job_id, attempt):
        return None
    spec = job.spec()
    plan = plan_of(spec, job.job_id)
    resumes = _covered(plan, turn, _resumes_of(job, attempt, plan, before))

    def fits(number: int) -> bool:
        if plan.choices:
            return not resumes(plan.choices[number])
        return isinstance(turn, str) or line.is_covered(plan, turn)

    origin = spec.get("origin", {})
    fit = fitting(
        offered, plan, job.within, job.store.now(), job_id=job.job_id, attempt=attempt, origin=origin,
        fits=fits, lasts=longest,
    )  # fmt: skip
    found = best(fit, job.job_id, attempt, origin, lambda lease: has_key(job.trust, job.store, lease))
    return None if found is None else Chosen(plan.at(found.choice), warm=found)


class Kept(NamedTuple):
    """The slices that are kept now, as the first attempt of a job would find them.

    Attributes:
        now: The store's time.
        fit: Those that it can take, the first one first.
        obeys: Of these, those to which this process can give orders.
        others: How many are free besides: of other hardware, elsewhere, or about to end.
    """

    now: float
    fit: tuple[Warm, ...]
    obeys: tuple[Warm, ...]
    others: int


def kept_for(plan: Plan, store: Store, trust: Trust) -> Kept:
    """Return the kept slices that a job which is not submitted yet would find now: one listing, and some reads. Raises
    StoreError."""
    from kinetic_orchestration.capacity.warm.choosing import fitting
    from kinetic_orchestration.capacity.warm.records import lately_offered

    offered, now = lately_offered(store), store.now()
    free = [held for held in offered if held.lease.state == FREE and held.lease.until > now]
    found = fitting(
        free, plan, within(plan), now, job_id=_NOT_YET, attempt=1, origin={}, fits=lambda number: True, lasts=longest
    )
    obeys = tuple(one for one in found if has_key(trust.at(store), store, one.lease))
    return Kept(now, tuple(found), obeys, len(free) - len(found))


def has_key(trust: Trust, store: Store, lease: Lease) -> bool:
    """Return True if this process can give orders to a kept slice."""
    key = trust.slice_key(store, lease.made_for, lease.made_at)
    return bool(key) and lease.key in ("", key_name(key))


class Chosen(NamedTuple):
    """The plan of an attempt, and the selection that led to it; None for a job of one way, and for a kept slice."""

    plan: Plan
    selection: choosing.Selection | None = None
    rivals: tuple[Plan, ...] = ()  # of the other places of a race
    beside: tuple[choosing.Selection, ...] = ()
    warm: Warm | None = None

    def placement(self, job: Job, attempt: int, past: Past | None) -> dict[str, Any]:
        """Return the placement of the attempt, with those of the other places of a race. Raises NoPlace."""
        if self.warm is not None:
            return self.warm.placement(past)
        if self.selection is None:
            first = job.backend.place(self.plan, job.job_id, attempt, past)
            return _entered(first, _placed(job, attempt, _elsewhere(self.plan, first)))
        first = job.backend.place(self.plan, job.job_id, attempt) | self.selection.history()
        others = _placed(job, attempt, self.rivals)
        return _entered(first, [place | one.history() for place, one in zip(others, self.beside, strict=True)])


def _entered(first: dict[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the placement of an attempt, which may ask other places as well."""
    if not others:
        return first
    from kinetic_orchestration.capacity.races.rules import entered

    return entered(first, others)


def _elsewhere(plan: Plan, first: Mapping[str, Any]) -> list[Plan]:
    """Return the plans of the places that an attempt of one way asks beside its first: of the zones that come next, and
    that this round has not tried."""
    zones = list(places_of(plan)) if plan.race > 1 else []
    at = zones.index(first["zone"]) + 1 if first.get("zone") in zones else 0
    over = {first.get("zone"), *first.get("tried", ()), *first.get("dropped", ())}
    left = [zone for zone in (*zones[at:], *zones[:at]) if zone not in over]
    return [replace(plan, zones=(zone,)) for zone in left[: plan.race - 1]]


def _placed(job: Job, attempt: int, plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """Return the placements of the other places of a race, each with a name of its own."""
    return [
        job.backend.place(plan, job.job_id, attempt)
        | {"name": names.slice_of(plan.store, plan.deployment, job.job_id, attempt, number)}
        for number, plan in enumerate(plans, 1)
    ]


def past_of(job: Job, intent: Intent, cause: str, reason: str) -> Past:
    """Return how an attempt was placed and ended: of a race, with what each of its places has answered.

    It was in the place that has won, or in the first one whose end has ended the attempt.
    """
    past = Past(intent.placement, cause, reason, intent.created)
    if not intent.placement.get("rivals"):
        return past
    from kinetic_orchestration.capacity.races.records import failures

    plan, places = job.plan(), intent.places
    failed = failures(job.store, job.job_id, intent.attempt, range(len(places)))
    tried, dropped = list(intent.placement.get("tried", ())), list(intent.placement.get("dropped", ()))
    for number, ended in failed.items():
        answer = Past({**places[number], "dropped": dropped}, *ended, intent.created)
        gone = refusal_of(job.backend, plan.at(choice_in(places[number])), answer).gone
        names_of_gone = (_option(plan, {**places[number], "zone": zone}) for zone in gone)
        dropped += [name for name in names_of_gone if name not in dropped]
    if not intent.races:  # where hosts were, there is something, whatever was said of its whole region
        dropped = [name for name in dropped if name != _option(plan, intent.placement)]
        return past._replace(placement={**intent.placement, "dropped": dropped})
    same = [number for number, ended in failed.items() if ended.cause == cause]
    own = 0 if cause in WITHOUT_HOSTS or not same else same[0]
    if cause in WITHOUT_HOSTS:
        tried += [_option(plan, place) for place in places[1:]]
        if _option(plan, places[own]) in dropped:  # by what another place has said of both
            cause = wire.QUOTA
        elif own in failed:  # by its own answer; another place's is of that one alone
            cause, reason = failed[own] if failed[own].cause in WITHOUT_HOSTS else (wire.STOCKOUT, failed[own].reason)
    else:
        dropped = [name for name in dropped if name != _option(plan, places[own])]
    history = {name: value for name, value in intent.placement.items() if name not in places[own]}
    return Past({**history, **places[own], "tried": tried, "dropped": dropped}, cause, reason, intent.created)


def _option(plan: Plan, place: Mapping[str, Any]) -> str:
    """Return the name of a place in the history of placements."""
    return choosing.option_of(place) if plan.choices else str(place.get("zone", ""))


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


def _resumes_of(job: Job, attempt: int, plan: Plan, before: Before | None) -> choosing.Resumes:
    """Return the same for an attempt, which is looked for once: those before it save nothing more."""
    if attempt not in job.resumes:
        job.resumes[attempt] = _resumes(job, plan, before)
    return job.resumes[attempt]


def _resumes(job: Job, plan: Plan, before: Before | None) -> choosing.Resumes:
    """Return which candidates can go on from the job's checkpoint, if there is one by now: of an attempt before this
    one, or of an earlier job of the same key."""
    if plan.reshard or len({(one.hosts, one.devices) for one in plan.each()}) == 1:
        return choosing.anything
    folder = f"{names.checkpoint_dir(str(job.spec()['identity']))}/"
    if (wrote := _newest_commit(job, job.store.list(folder, last=commits.COMMIT))) is not None:
        return choosing.of_hosts(wrote.hosts, plan, devices=wrote.devices, is_part=wrote.is_of_part)
    ran = before.ran if before is not None else ()
    if not ran or next(iter(job.store.list(folder)), None) is None:  # of which the first page is enough
        return choosing.anything
    return choosing.of_hosts(job.plan_of(ran[-1]).hosts, plan)


def _newest_commit(job: Job, there: Iterable[Entry]) -> commits.Commit | None:
    """Return the newest checkpoint of a listing, as its hosts have committed it; None if none can be read, as where a
    program stores its own. It only says what is worth a try: hosts check what they restore."""
    for entry in sorted(filter(lambda one: commits.is_commit(one.name), there), key=lambda one: -one.updated)[:TRIES]:
        with suppress(wire.Unreadable, wire.Newer, StoreError):
            if (record := job.store.read(entry.name)) is not None:
                return commits.Commit.decode(record.data, entry.name)
    return None


def learn_from_end(job: Job, plan: Plan, attempt: int, past: Past) -> None:
    """Record what an attempt has met that another one follows, also that of a job of one way: others may choose by it.
    Whoever has written that one's intent does so. Raises no StoreError: it is a hint to others."""
    if (plan.traits.share_files and not plan.choices) or job.doubt or "lease" in past.placement:
        return  # what was kept says nothing of what can be had
    learn_from_rivals(job, attempt, past.placement)
    one, held = plan.at(choice_in(past.placement)), None
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


def learn_from_rivals(job: Job, attempt: int, placement: Mapping[str, Any]) -> None:
    """Record what the other places of a race have met: those that failed, each by its own answer. It counts once, and
    raises no StoreError."""
    if not (rivals := placement.get("rivals")):
        return
    from kinetic_orchestration.capacity.races.records import failures

    with suppress(StoreError):
        plan = job.plan()
        for place in rivals if plan.choices else ():
            number, one = int(place.get("rival", 0)), plan.at(choice_in(place))
            for failed in failures(job.store, job.job_id, attempt, [number]).values():
                ended = Past(place, failed.cause, failed.reason, 0.0)
                limited = failed.cause == wire.QUOTA and refusal_of(job.backend, one, ended).later
                outcome = "" if limited else facts.outcome_of(failed.cause, facts.way_of(one), None)
                if outcome:
                    key, token = facts.key_of(one, str(place.get("zone", ""))), f"{_token(job, attempt)}-{number}"
                    records.learn(job.store, key, outcome, job.store.now(), token)


def learn_start(job: Job, seen: Glimpse, was: str, now: str) -> bool:
    """Record that an attempt of a job with a choice has got its hosts, once its phase is that they run, or it is over
    before it was seen to run. Any number of processes may: it counts once. Raises no StoreError: it is a hint.

    A job of one way does not: a write at each start is for others alone, and what they would learn ages by itself.

    Returns False while its hosts may still come, or begin.
    """
    is_over = seen.verdict is not None
    if seen.intent is None or was == "running" or not (is_over or now == "running"):
        return False
    attempt, placement = seen.intent.attempt, seen.intent.placement
    is_late = is_over and (was_free(seen) or seen.verdict_age > facts.WINDOW)
    if is_late or "lease" in placement or job.doubt or not isinstance(job.policy, Policies):
        return True
    with suppress(StoreError):
        if started := _started(job, attempt):
            key = facts.key_of(job.plan_of(attempt, seen.intent), str(placement.get("zone", "")))
            records.learn(job.store, key, facts.GOT, started, _token(job, attempt))
    return True


def _started(job: Job, attempt: int) -> float:
    """Return when the first host of an attempt has begun; 0 if it has not."""
    record = job.store.read(names.host(job.job_id, attempt, 0, "started.json"))
    return 0.0 if record is None else record.updated


def _token(job: Job, attempt: int) -> str:
    return f"{job.job_id}-{attempt}"
