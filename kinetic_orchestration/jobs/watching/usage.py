"""Computes the usage of a job's attempts: for how long they queued, held their hosts and were productive.

Uses the records alone, so it works after the fact and from any process. The terms, for one attempt and by the store's
clock:

- **queued**: from its intent until its hosts existed, or until its verdict if they never did. Attempts that only
  asked in a zone without capacity count, too.
- **READY**, for which chips are charged: from the boot of host 0, as it reported when its agent began, until host 0's
  last beat, the verdict or the delete call of its hosts, whichever was latest. With neither, until now, but not
  beyond the attempt's deadline, at which slices delete themselves. If host 0 did not report soon, from what a
  client saw of the slice and recorded: since the last look at which it was not READY, or since it was created. If
  it was not freed at once, until it was, unless its hosts were shutting down already, which is not charged for; as
  long as that is refused, and no host has had itself deleted, until now. So if no client saw it, the result is more
  than was charged, and never less.
  Of an attempt that has claimed a kept slice, from that claim on, whether its hosts have followed it or were dead.
- **beside**: of an attempt that raced, the same of its other places: from the boot of their host 0, as it reported
  when it had lost, or from what a client saw, until they were gone. It is told apart, and counts for the cost alone.
- **productive**: from the start of the program to its end on host 0, as its last record says; for a running one,
  until now. Hosts that were killed without a record count none. `parts_of` says which part were steps that counted.
- **kept idle**, charged for and no part of READY: how long its slice was kept and served nobody, from its lease, which
  names the attempt that had left it; of one that is offered now, until now, but no longer than hosts keep it.

Prices are known to `cost` only, and no backend is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kinetic_orchestration.capacity.races import known as with_winner
from kinetic_orchestration.errors import Corrupt
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.plan.declare.cloud import Compute
from kinetic_orchestration.plan.hardware.cost import Estimate, estimate, together
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, PriceList
from kinetic_orchestration.plan.records import READY, fields_of, intent_of, verdict_at
from kinetic_orchestration.plan.values import Intent, Plan
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.report.timeline import Lane
from kinetic_orchestration.protocol.schema import Fields
from kinetic_orchestration.protocol.system.parallel import side_by_side
from kinetic_orchestration.protocol.wire import Beat
from kinetic_orchestration.protocol.wire.lease import ARMED, FREE, Lease

# In the order in which they come; all but the first are of the time that the hardware was held.
PARTS = ("queue", "provision", "prepare", "restore", "compile", "steps", "redone", "checkpoint", "program", "teardown")


class Took(NamedTuple):
    """Parts of the time that an attempt's hosts were held, from its records, in seconds."""

    provision: float = 0.0  # from READY, or the boot of host 0 if that is earlier, until its agent began
    prepare: float = 0.0  # until the program began
    teardown: float = 0.0  # from its end on
    trainings: Mapping[str, Sequence[float]] = {}  # as `wire.SPENT` has them


class Beside(NamedTuple):
    """The cost of a place of a race that did not win: where, by which candidate, and for how many seconds."""

    zone: str
    choice: int
    ready: float


@dataclass(frozen=True, slots=True)
class Stay:
    """Times of one attempt, in seconds."""

    attempt: int
    zone: str  # "" of one of which it was not worth reading
    queued: float
    ready: float
    productive: float
    took: Took = field(default=Took(), compare=False)  # what the time that was held went to
    shown: int = 1  # its number as people count them; 0: not known
    moved: bool = False  # people do not count it once the next one follows, although it may have had hosts
    choice: int = 0  # the number of the candidate of its plan
    beside: tuple[Beside, ...] = ()  # of the other places of its race
    idle: float = 0.0  # for which its slice was kept and served nobody
    is_offered: bool = False  # its slice is kept now, and `idle` goes on

    @property
    def had_hosts(self) -> bool:
        return self.ready > 0


def stays(store: Store, job_id: str, last: int | None = None, *, kept: bool = False) -> list[Stay]:
    """Return the stay of each attempt up to `last`: reads for those that may have had hosts, listings for the rest.

    kept: the job keeps its slices, so their leases are read, too.
    """
    began = {
        number: times
        for number, times in attempts.times(store, job_id).items()
        if times.began is not None and (last is None or number <= last)
    }
    if not began:
        return []
    seen = {number for number, times in began.items() if times.ready}
    read = sorted(number for number in {*attempts.with_hosts(store, job_id, max(began)), *seen} if number in began)
    found = side_by_side(lambda number: _stay(store, job_id, number, began[number], kept), read, store.parallel)
    told = dict(zip(read, found, strict=True))
    return [told.get(number) or _queued(number, times) for number, times in began.items()]


def _queued(number: int, times: attempts.Times) -> Stay:
    assert times.began is not None
    return Stay(number, "", max(0.0, (times.ended or times.began) - times.began), 0.0, 0.0, shown=0)


class Phase(NamedTuple):
    """A part of an attempt's time, by the store's clock: its name in `TIMELINE`, its beginning and its end."""

    name: str
    began: float
    ended: float


TIMELINE = ("queued", "provisioning", "preparing", "running", "ending")


def phases_of(stay: Stay, began: float) -> list[Phase]:
    """Return what an attempt's time went to, in order, from its intent on, which was written when it `began`. Parts
    that took none are left out; of hosts that were killed, all that follows their preparation counts as running."""
    took = stay.took
    ready = began + stay.queued
    ended = ready + stay.ready
    prepared = min(ended, ready + took.provision)
    started = min(ended, prepared + took.prepare) if stay.productive or took.prepare else ended
    stopped = max(started, ended - took.teardown)
    marks = (began, ready, prepared, started, stopped, ended)
    each = zip(TIMELINE, marks, marks[1:], strict=False)
    return [Phase(name, start, end) for name, start, end in each if end > start]


def lanes(store: Store, job_id: str, *, kept: bool = False) -> list[Lane]:
    """Return the time line of a job's attempts that had hosts, and of the newest; numbered as people count them.

    kept: the job keeps its slices, as of `stays`.
    """
    times = attempts.times(store, job_id)
    found = stays(store, job_id, kept=kept)
    shown = [stay for stay in found if stay.had_hosts or stay is found[-1]]
    ended = [names.verdict(job_id, stay.attempt) for stay in shown]
    verdicts = zip(ended, store.read_all(ended), strict=True)
    told = [None if record is None else verdict_at(record.data, name) for name, record in verdicts]
    return [
        Lane(
            f"attempt {number}",
            phases_of(stay, times[stay.attempt].began or 0.0) if stay.attempt in times else (),
            "" if verdict is None else _ENDS.get(verdict.cause, verdict.cause) or verdict.kind,
            goes_on=verdict is None,
        )
        for number, (stay, verdict) in enumerate(zip(shown, told, strict=True), 1)
    ]


_ENDS = {"": "succeeded", wire.USER: "failed"}


def ready_seconds(found: Sequence[Stay]) -> float:
    return sum(stay.ready for stay in found)


def have_cost(found: Sequence[Stay]) -> bool:
    """Return True if hosts of one of the attempts were charged for."""
    return any(stay.had_hosts or stay.beside for stay in found)


def estimate_of(
    plan: Plan,
    found: Sequence[Stay],
    prices: Mapping[str, float],
    listed: PriceList = BUILT_IN,
    *,
    charged: bool = True,
) -> Estimate:
    """Estimate the cost of the attempts, each of its candidate and in its zone. `charged`: the backend's hosts cost
    money."""

    def of(seconds: float, zone: str, choice: int) -> Estimate:
        one = plan.at(choice) if choice < len(plan.choices) else plan
        return estimate(
            one.purchase, seconds, zone=zone, overrides=prices, uncharged=one.emulated or not charged, listed=listed,
            service=one.traits.service if one.traits.options is Compute else "",
            here="this machine" if not one.traits.share_files else one.traits.service or "this machine",
        )  # fmt: skip

    beside = [of(one.ready, one.zone, one.choice) for stay in found for one in stay.beside]
    parts = [of(stay.ready + stay.idle, stay.zone, stay.choice) for stay in found if stay.had_hosts]
    held = [(stay.queued, stay.ready, stay.took) for stay in found]
    last = found[-1] if found else Stay(0, "", 0.0, 0.0, 0.0)
    return together(
        parts or [of(0.0, last.zone, last.choice)],
        attempts=max([sum(stay.had_hosts and not stay.moved for stay in found), *(stay.shown for stay in found)]),
        queued=sum(stay.queued for stay in found),
        ready=ready_seconds(found),
        productive=sum(stay.productive for stay in found),
        parts=parts_of(held),
        beside=beside,
        idle=sum(stay.idle for stay in found),
    )


def parts_of(every: Sequence[tuple[float, float, Took]]) -> dict[str, float]:
    """Return the parts of a job's time, from its attempts, oldest first, each with its queued and held time; {} if none
    of them told of steps. Pure.

    Goodput, as the field has it, is the time of steps that were not done again, of the time the hardware was held. Time
    of a program that is not accounted for is its program time.
    """
    if not any(took.trainings for _, _, took in every):
        return {}
    found = dict.fromkeys(PARTS, 0.0)
    for number, (queued, held, took) in enumerate(every):
        found["queue"] += queued
        found["provision"] += took.provision
        found["prepare"] += took.prepare
        found["teardown"] += took.teardown
        known = took.provision + took.prepare + took.teardown
        for name, (begun, done, steps, first, restoration, stall) in took.trainings.items():
            later = [other.trainings[name][0] for _, _, other in every[number + 1 :] if name in other.trainings]
            again = min(steps, steps / max(1.0, done - begun - 1) * max(0.0, done - min(later, default=done)))
            found["steps"] += steps - again
            found["redone"] += again
            found["compile"] += first
            found["restore"] += restoration
            found["checkpoint"] += stall
            known += steps + first + restoration + stall
        found["program"] += max(0.0, held - known)
    return {name: round(seconds, 3) for name, seconds in found.items()}


def _stay(store: Store, job_id: str, number: int, times: attempts.Times, kept: bool) -> Stay:
    record = store.read(names.intent(job_id, number))
    if record is None:  # forgotten since it was listed
        return Stay(number, "", 0.0, 0.0, 0.0, shown=0)
    try:
        intent = with_winner(store, job_id, intent_of(record, job_id, number))
    except Corrupt as error:  # where it was is not known: it has no rate, and its time counts
        intent = Intent(number, "", {}, 0.0, record.updated, damage=str(error))
    verdict = store.read(names.verdict(job_id, number))
    told = None if verdict is None else verdict_at(verdict.data, names.verdict(job_id, number))
    unplaced = told is not None and told.unplaced
    shown = 0 if intent.before is None or unplaced else lifecycle.count(number, intent.before.spent)
    moved = told is not None and lifecycle.rule_of(lifecycle.classify(told))[0] == lifecycle.FREE
    idle, is_offered = _idle(store, job_id, number, intent) if kept and verdict is not None else (0.0, False)
    stay = _stay_of(store, job_id, number, intent, times, verdict)
    beside = tuple(_beside(store, job_id, intent, verdict))
    return replace(
        stay, shown=shown, moved=moved, choice=intent.choice, beside=beside, idle=idle, is_offered=is_offered
    )


def _beside(store: Store, job_id: str, intent: Intent, verdict: Record | None) -> Iterator[Beside]:
    """Yield what the other places of a race have cost, or all of one that none has won: from when one of their hosts,
    or a client, says that they were charged for, until they were gone, or until the end of all."""
    for place in intent.places if intent.races else intent.placement.get("rivals", ()):
        number = int(place.get("rival", 0))
        held = _told(store, names.held(job_id, intent.attempt, number), READY)
        if held is None:
            continue
        gone = store.read(names.gone(job_id, intent.attempt, number))
        end = gone.updated if gone is not None else verdict.updated if verdict is not None else store.now()
        end = min(end, intent.deadline) if intent.deadline else end
        since = max(intent.created, min(float(held[0]["since"]), held[1]))
        yield Beside(str(place.get("zone", "")), int(place.get("choice", 0)), max(0.0, end - since))


def _idle(store: Store, job_id: str, number: int, intent: Intent) -> tuple[float, bool]:
    """Return for how long the attempt's slice served nobody after it, and whether it still is offered."""
    name = str(intent.placement.get("name", ""))
    try:
        held = leases.read(store, name) if name else None  # on this machine nothing has one
    except (wire.Unreadable, wire.Newer):  # a damaged record is ignored
        return 0.0, False
    if held is None:
        return 0.0, False
    own = (job_id, number)
    return idle_seconds(held.lease, store.now(), own), _is_offered(held.lease, own)


def idle_seconds(lease: Lease, now: float, after: tuple[str, int] | None = None) -> float:
    """Return for how long a kept slice has served nobody so far; `after`: the attempt that had left it, if only its
    times count."""
    seconds = sum(
        max(0.0, ended - began) for began, ended, job, attempt in lease.idle if after in (None, (job, attempt))
    )
    if _is_offered(lease, after):
        seconds += max(0.0, min(now, lease.until + ARMED) - lease.since)
    return seconds


def _is_offered(lease: Lease, after: tuple[str, int] | None) -> bool:
    return lease.state == FREE and after in (None, (lease.job, lease.attempt))


def _stay_of(
    store: Store, job_id: str, number: int, intent: Intent, times: attempts.Times, verdict: Record | None
) -> Stay:
    zone = str(intent.placement.get("zone", ""))
    end = verdict.updated if verdict is not None else store.now()
    started = _told(store, names.host(job_id, number, 0, "started.json"), wire.STARTED)
    seen = _told(store, names.ready(job_id, number), READY) if times.ready else None
    if started is not None and intent.placement.get("won"):  # that may have been seen of another place
        seen = None
    since = []
    if claimed := _claimed(store, job_id, number, intent):
        since.append(claimed)
    if started is not None:
        since.append(started[1] - float(started[0].get("up", 0.0)))
    if seen is not None:
        since.append(min(float(seen[0]["since"]), seen[1]))
    if not since:
        return Stay(number, zone, max(0.0, end - intent.created), 0.0, 0.0)
    there = max(intent.created, min(since))
    began = started[1] if started is not None else end  # of a host that never spoke, all is provision
    done = _told(store, names.host(job_id, number, 0, "done.json"), wire.DONE_RECORD)
    if done is not None:
        end = max(end, done[1]) if verdict is not None else done[1]
    if times.left is not None:
        end = max(end, times.left) if verdict is not None else times.left
    if times.freed is not None:
        end = max(end, times.freed)
    elif times.refused and times.left is None:  # a host does not stop before its hardware goes: nobody else has to
        end = max(end, store.now())
    if intent.deadline and started is not None:  # otherwise no host keeps it
        end = min(end, intent.deadline)
    last = {} if done is None else done[0]
    if done is None:
        beat = _beat(store, job_id, number)
        last = {"began": beat.began, "ended": end if verdict is None else beat.began, "spent": beat.spent or {}}
    run = (float(last.get("began", 0.0)), float(last.get("ended", 0.0)))
    ran = run[1] - run[0] if run[0] else 0.0
    ready = max(0.0, end - there)
    took = Took(
        provision=min(max(0.0, began - there), ready),
        prepare=max(0.0, min(run[0], end) - began) if run[0] else 0.0,
        teardown=max(0.0, end - max(run[1], began)) if done is not None else 0.0,
        trainings=last.get("spent") or {},
    )
    return Stay(number, zone, there - intent.created, ready, min(max(0.0, ran), ready), took)


def _claimed(store: Store, job_id: str, number: int, intent: Intent) -> float:
    """Return when an attempt has claimed the kept slice that is its place; 0.0 if it has not, or has none."""
    lease = intent.placement.get("lease")
    if not lease:
        return 0.0
    try:
        held = leases.read(store, str(lease["slice"]))
    except (wire.Unreadable, wire.Newer):  # a damaged record is ignored
        return 0.0
    return held.lease.claim_of(job_id, number, int(lease["epoch"])) if held is not None else 0.0


def _beat(store: Store, job_id: str, number: int) -> Beat:
    record = store.read(names.beat(job_id, number, 0))
    return (Beat.read(record.data) if record is not None else None) or Beat("")


def _told(store: Store, name: str, kind: Fields) -> tuple[dict[str, Any], float] | None:
    record = store.read(name)
    try:
        return None if record is None else (fields_of(record.data, kind, name), record.updated)
    except Corrupt:  # a damaged record is ignored
        return None
