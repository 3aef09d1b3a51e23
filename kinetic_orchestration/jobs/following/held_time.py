"""Limits how long an attempt's hosts are held, and remembers how long they were: a job may have a limit of cost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.job import ME, Job
from kinetic_orchestration.jobs.watching import usage
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.plan.values import PRESENT, Glimpse, Intent, Plan
from kinetic_orchestration.platforms.backend import Races
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire

DEADLINE_ALLOWANCE = 15 * 60.0
HEARD_SOON = 2.0  # seconds in which host 0 may report its own start
HELD_STEP = 30.0  # seconds that hosts are there longer than what is remembered of it


def held_before(job: Job, plan: Plan, attempt: int) -> float:
    """Return for how many seconds the hosts of other attempts than this one were there: of each the most that was ever
    seen of it, by its records or by the cloud's word. Removing records gives no money back, and no record counts for
    more than the plan's deadline, at which machines end themselves.

    `plan`: that of the attempt. Hosts of another candidate count for so many seconds as its own cost as much.
    """
    stays = usage.stays(job.store, job.job_id, attempt - 1) if attempt > 1 else []
    rates = {stay.attempt: _rate(plan, stay.choice) for stay in stays}
    most = {stay.attempt: longest(_at(plan, stay.choice), _at(plan, stay.choice).affordable) for stay in stays}
    told = {stay.attempt: min(stay.ready, most[stay.attempt]) + _beside(plan, stay) for stay in stays}
    for number, seconds in told.items():
        job.trust.saw_held(job.store, job.job_id, number, seconds)
    return _counted(plan, told, job.trust.held(job.store, job.job_id), rates)


def seen_held(job: Job, plan: Plan, attempt: int) -> float:
    """Return the same by what was seen alone, and not by records, which may be forged."""
    held = {number: seconds for number, seconds in job.trust.held(job.store, job.job_id).items() if number != attempt}
    if not plan.choices:
        return sum(held.values())
    return _counted(plan, {}, held, {number: _rate(plan, job.choice_of(number)) for number in held})


def _counted(plan: Plan, told: Mapping[int, float], seen: Mapping[int, float], rates: Mapping[int, float]) -> float:
    dearest = max(_rate(plan, number) for number in range(max(1, len(plan.choices))))  # of one that no record tells of
    return sum(
        max(told.get(number, 0.0), seen.get(number, 0.0)) * rates.get(number, dearest) for number in {*told, *seen}
    )


def _beside(plan: Plan, stay: usage.Stay) -> float:
    """Return what the other places of a race have cost, in seconds of the hosts that won it."""
    own, longest_of = _rate(plan, stay.choice), longest(plan, plan.affordable)
    return sum(min(one.ready, longest_of) * _rate(plan, one.choice) / own for one in stay.beside)


def _at(plan: Plan, choice: int) -> Plan:
    return plan.at(choice) if choice < len(plan.choices) else plan


def _rate(plan: Plan, choice: int) -> float:
    """Return how many times as much a second of a candidate's hosts costs as one of the plan's own."""
    theirs = _at(plan, choice).affordable
    return plan.affordable / theirs if theirs else 1.0


def longest(plan: Plan, affordable: float = 0.0) -> float:
    """Return for how many seconds an attempt's hosts may be waited for and be there; 0 for ever."""
    run = min(filter(None, (float(plan.limits.run or 0.0), affordable)), default=0.0)
    return run + float(plan.limits.provision or 0.0) + DEADLINE_ALLOWANCE if run else 0.0


def _until(plan: Plan, affordable: float = 0.0) -> float:
    """Return the seconds from an attempt's promise to its deadline; 0 for none: a queue that is not ours may take as
    long as it takes, and its own limit of time ends what it starts."""
    queued = plan.traits.share_files and not plan.traits.share_machine
    return 0.0 if queued and not plan.limits.provision else longest(plan, affordable)


def promised(job: Job, plan: Plan, placement: Mapping[str, Any], attempt: int, left: float) -> tuple[float, float]:
    """Return for how many seconds the hosts of an attempt may be there, and for how many they may be held with what is
    `left` of the money. A race counts what its places cost until all but one are released, and has one deadline."""
    if not placement.get("rivals"):
        return _until(plan, left), left
    from kinetic_orchestration.capacity.races.rules import affordable

    rivals = [_at(plan, choice_in(place)) for place in placement["rivals"]]
    least = min([left, *(one.affordable - held_before(job, one, attempt) for one in rivals if one.affordable)])
    seconds = affordable(least, 1 + len(rivals), lifecycle.SILENT_START) if left else 0.0
    return max(longest(one, seconds) for one in (plan, *rivals)), seconds


def choice_in(placement: Mapping[str, Any]) -> int:
    """Return the number of the candidate that a placement is of."""
    return int(placement.get("choice", 0))


def last_of(plan: Plan, intent: Intent, affordable: float = 0.0) -> float:
    """Return the latest deadline that the plan leads to for the attempt of an intent, over all places of a race."""
    return intent.created + max(_until(_at(plan, choice_in(place)), affordable) for place in intent.places)


def may_last(plan: Plan, intent: Intent) -> bool:
    """Tell whether the deadline is one that the plan leads to: an intent lies where others may write."""
    return 0 < intent.deadline <= last_of(plan, intent) + 1.0


def remember_held(job: Job, attempt: int, seen: Glimpse, cache: AttemptCache | None = None) -> None:
    """Remember, for a job with a limit of cost, for how long the cloud reports that the attempt's hosts exist. Nothing
    is remembered for a job in doubt: its limit and its attempts are known from its records only.

    If hosts are charged for and the first one does not report, the store gets a record of when the charges began.
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
    if seen.intent is not None and seen.intent.races:  # of each place by itself
        if isinstance(job.backend, Races):
            job.backend.note_held(seen.intent, job.job_id)
        return
    if not present or seen.now - charged > HEARD_SOON:
        record_held(job.store, job.job_id, attempt, charged)
        cache.charge_recorded = True


def record_held(store: Store, job_id: str, attempt: int, since: float) -> None:
    """Record when an attempt's hosts can first have been charged for, for later computations of a job's cost."""
    with suppress(StoreError):  # an account that may only read gets the error at the next action
        store.create(names.ready(job_id, attempt), wire.encode({"since": since, "writer": ME}))
