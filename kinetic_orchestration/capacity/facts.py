"""Facts about capacity: what attempts met in a place, and what follows from it now. Pure.

A fact is a window of the last attempts for hardware of one size, bought in one way, in one place of one backend. It is
a hint, by which places are put in an order, and never drops one. A place is behind the others while its last attempt
found nothing, and at least half of its last four. Ten minutes after the last of them one attempt tries again, the
`Probe`, and the others wait for what it meets. Quota is apart: it holds for five minutes, or until one attempt gets its
hosts. A success in one place says nothing of another.

Not this module's: how facts are kept (`records`), and what is chosen by them (`choosing`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kinetic_orchestration.plan.declare.cloud import reservation_of
from kinetic_orchestration.plan.values import Candidate, Plan
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.protocol import wire

ON_DEMAND, SPOT, FLEX_START, RESERVATION = WAYS = ("on-demand", "spot", "flex-start", "reservation")
GOT, STOCKOUT, PREEMPTED_YOUNG, QUOTA = OUTCOMES = ("got", "stockout", "preempted-young", "quota")
UNKNOWN, GOOD, AGED, PROBED = "unknown", "good", "aged", "probed"  # states of a fact, beside STOCKOUT and QUOTA

YOUNG = 300.0  # seconds: spot slices that live as short were hardly there
WINDOW, MOST = 1800.0, 16  # seconds, and attempts, that a fact remembers
LAST = 4  # attempts that decide
AGE = 600.0  # seconds after which one attempt tries a place again; five minutes were too short for Iris (marin#5976)
QUOTA_LASTS = 300.0
PROBE_LASTS = 300.0  # seconds from its request on, after which another attempt may try instead
LONGEST_PROBE = PROBE_LASTS + places.LONGEST_WAIT * (1 + places.JITTER)
SKEW = 60.0  # seconds by which clocks of a store may differ: what is later is nobody's


class FactKey(NamedTuple):
    """The subject of a fact. `size` counts the chips of all slices together; a reservation and a project's quota are
    capacity of their own."""

    backend: str
    place: str
    generation: str
    size: int
    way: str
    project: str = ""
    reservation: str = ""

    @property
    def kin(self) -> Kin:
        """The part that it shares with facts about other sizes."""
        return Kin(self.backend, self.place, self.generation, self.way, self.project, self.reservation)


class Kin(NamedTuple):
    """The part of a key that facts about several sizes have in common."""

    backend: str
    place: str
    generation: str
    way: str
    project: str
    reservation: str


class Attempted(NamedTuple):
    """The outcome of one attempt, and its time. The token is its id, by which it counts once."""

    at: float
    outcome: str
    token: str = ""

    @property
    def job(self) -> str:
        return self.token.rpartition("-")[0] or self.token


class Probe(NamedTuple):
    """The attempt that alone tries a place again, and until when the others leave that to it."""

    token: str
    until: float


class Fact(NamedTuple):
    """The last attempts, oldest first, and the one that tries again now."""

    attempts: tuple[Attempted, ...] = ()
    probe: Probe | None = None


class Judgement(NamedTuple):
    """The sum of what facts say of a place now.

    Attributes:
        state: UNKNOWN, GOOD, AGED, PROBED, STOCKOUT or QUOTA.
        at: The time of the attempt that decides.
        outcome: Of that attempt.
        jobs: How many jobs met that lately.
        size: Chips for which they asked.
    """

    state: str = UNKNOWN
    at: float = 0.0
    outcome: str = ""
    jobs: int = 0
    size: int = 0

    @property
    def behind(self) -> bool:
        """True if other places come first."""
        return self.state in (STOCKOUT, QUOTA, PROBED)


NOTHING = Judgement()


def way_of(candidate: Candidate | Plan) -> str:
    """Return how a candidate is bought, as users write it in `capacity=`."""
    cloud = candidate.cloud
    if cloud.get("reservation"):
        return RESERVATION
    if cloud.get("flex_start") or cloud.get("queued_provisioning"):
        return FLEX_START
    return SPOT if candidate.spot or candidate.slice.spot else ON_DEMAND


def key_of(candidate: Candidate | Plan, place: str) -> FactKey:
    """Return what a fact about a candidate in a place is about."""
    size = candidate.slice.chips * candidate.slices
    return FactKey(
        candidate.backend, place, candidate.slice.generation, size, way_of(candidate), candidate.project,
        _reserved(candidate),
    )  # fmt: skip


def _reserved(candidate: Candidate | Plan) -> str:
    """The reservation that a candidate takes, by one name however it was written; "" for none."""
    given = str(candidate.cloud.get("reservation") or "")
    named = reservation_of(given)
    if named is None:
        return given
    return named.name if named.project in ("", candidate.project) else f"{named.project}/{named.name}"


def outcome_of(cause: str, way: str, held: float | None = None) -> str:
    """Return what an attempt's end teaches; "" for nothing.

    Flex-start that got nothing in its time teaches nothing: its requests wait, and are not refused.

    Args:
        cause: The cause of the end: one of the wire's.
        way: How its hosts were bought.
        held: Seconds for which it had its hosts; None if it never had them.
    """
    if held is not None:
        return PREEMPTED_YOUNG if cause == wire.PREEMPTION and held < YOUNG else ""
    if cause == wire.QUOTA:
        return QUOTA
    return STOCKOUT if cause == wire.STOCKOUT and way != FLEX_START else ""


def after(fact: Fact, attempt: Attempted) -> Fact:
    """Return the fact after an attempt. The same attempt counts once, by what it met last: hosts that were preempted
    young are no hosts. A probe that it was is over."""
    same = [known for known in fact.attempts if attempt.token and known.token == attempt.token]
    if any(known.outcome == attempt.outcome or known.at > attempt.at for known in same):
        return fact
    kept = [known for known in fact.attempts if not attempt.token or known.token != attempt.token]
    fresh = sorted(one for one in (*kept, attempt) if one.at > attempt.at - WINDOW)
    is_over = fact.probe is not None and (fact.probe.token == attempt.token or fact.probe.until <= attempt.at)
    return Fact(tuple(fresh[-MOST:]), None if is_over else fact.probe)


def judge(
    facts: Mapping[FactKey, Fact], wanted: Iterable[FactKey], now: float, token: str = ""
) -> dict[FactKey, Judgement]:
    """Return what the facts say of each of these keys.

    What a smaller size meets counts for a larger one of the same hardware, place and way, unless that had its hosts
    since; what a larger one meets says nothing of a smaller one, and no way says anything of another.

    Args:
        facts: All that is known.
        wanted: What is asked about.
        now: The store's time.
        token: The attempt that asks: its own probe does not keep it waiting.
    """
    own = {key: _alone(key, fact, now, token) for key, fact in facts.items()}
    sizes: dict[Kin, list[FactKey]] = defaultdict(list)
    for key in own:
        sizes[key.kin].append(key)
    found = {}
    for key in wanted:
        smaller = [own[other] for other in sizes.get(key.kin, ()) if other.size < key.size]
        found[key] = _together(own.get(key, NOTHING), smaller, _is_probed(facts.get(key), now, token))
    return found


def _together(own: Judgement, smaller: Sequence[Judgement], is_probed: bool) -> Judgement:
    """The worst of what counts; of what is equally bad, the newest."""
    since = own.at if own.outcome == GOT else 0.0
    counting = [own, *(one for one in smaller if one.state not in (UNKNOWN, GOOD) and one.at > since)]
    worst = max(counting, key=lambda one: (_BADNESS[one.state], one.at))
    return worst._replace(state=PROBED) if worst.state == AGED and is_probed else worst


_BADNESS = {UNKNOWN: 0, GOOD: 1, AGED: 2, PROBED: 3, QUOTA: 4, STOCKOUT: 4}


def _alone(key: FactKey, fact: Fact, now: float, token: str) -> Judgement:
    """The judgement of one fact about its own key."""
    recent = sorted(one for one in fact.attempts if now - WINDOW < one.at <= now + SKEW)
    if not recent:
        return NOTHING
    limited = [one for one in recent if one.outcome == QUOTA and now - one.at < QUOTA_LASTS]
    if limited and not any(one.outcome == GOT and one.at >= limited[-1].at for one in recent):
        return Judgement(QUOTA, limited[-1].at, QUOTA, _jobs(limited), key.size)
    recent = [one for one in recent if one.outcome != QUOTA]
    if not recent:
        return NOTHING
    last, deciding = recent[-1], recent[-LAST:]
    bad = [one for one in deciding if one.outcome != GOT]
    if last.outcome == GOT or 2 * len(bad) < len(deciding):
        return Judgement(GOOD, last.at, last.outcome, 1, key.size)
    state = STOCKOUT if now - last.at < AGE else PROBED if _is_probed(fact, now, token) else AGED
    return Judgement(
        state, last.at, last.outcome, _jobs(one for one in recent if one.outcome == last.outcome), key.size
    )


def _is_probed(fact: Fact | None, now: float, token: str) -> bool:
    """True if another attempt tries now."""
    probe = None if fact is None else fact.probe
    return probe is not None and is_live(probe, now) and probe.token != token


def is_live(probe: Probe, now: float) -> bool:
    """True if a probe has not ended, and no clock but its own could have made it."""
    return now < probe.until <= now + LONGEST_PROBE + SKEW


def _jobs(attempts: Iterable[Attempted]) -> int:
    return len({one.job for one in attempts})
