"""Tests what attempts met in a place, and what follows from it: pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from kinetic_orchestration.capacity import facts, records
from kinetic_orchestration.capacity.facts import (
    AGE,
    AGED,
    GOOD,
    GOT,
    MOST,
    OUTCOMES,
    PREEMPTED_YOUNG,
    PROBE_LASTS,
    PROBED,
    QUOTA,
    QUOTA_LASTS,
    STOCKOUT,
    UNKNOWN,
    WINDOW,
    Attempted,
    Fact,
    FactKey,
    Judgement,
    Probe,
)
from kinetic_orchestration.protocol import wire
from tests.support import choices

pytestmark = pytest.mark.fast

NOW = 1_700_000_000.0
KEY = FactKey("tpu-vm", "us-east5-a", "v6e", 16, "spot")


def met(*outcomes: str, ago: float = 0.0) -> Fact:
    """One attempt a second, the last one that long ago, each of a job of its own."""
    fact = Fact()
    for number, outcome in enumerate(outcomes):
        at = NOW - ago - (len(outcomes) - 1 - number)
        fact = facts.after(fact, Attempted(at, outcome, f"job-{number}-1"))
    return fact


def judged(fact: Fact, key: FactKey = KEY, of: FactKey = KEY, now: float = NOW, token: str = "job-x-1") -> Judgement:
    return facts.judge({key: fact}, (of,), now, token)[of]


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ((), UNKNOWN),
        ((GOT,), GOOD),
        ((STOCKOUT,), STOCKOUT),
        ((GOT, STOCKOUT), STOCKOUT),
        ((GOT, GOT, STOCKOUT), GOOD),
        ((*[GOT] * 12, STOCKOUT), GOOD),
        ((*[GOT] * 12, STOCKOUT, STOCKOUT), STOCKOUT),
        ((*[STOCKOUT] * 12, GOT), GOOD),
        ((*[STOCKOUT] * 12, GOT, STOCKOUT), STOCKOUT),
        ((GOT, PREEMPTED_YOUNG), STOCKOUT),
        ((QUOTA,), QUOTA),
        ((GOT, GOT, GOT, QUOTA), QUOTA),
        ((QUOTA, GOT), GOOD),
        ((QUOTA, STOCKOUT), QUOTA),
    ],
)
def test_a_window_of_the_last_attempts_decides(outcomes: tuple[str, ...], state: str) -> None:
    assert judged(met(*outcomes)).state == state
    assert judged(met(*outcomes)).behind is (state in (STOCKOUT, QUOTA))


def test_a_stockout_is_fresh_for_ten_minutes_then_tried_again_by_one_and_forgotten_after_half_an_hour() -> None:
    states = [judged(met(STOCKOUT, STOCKOUT, ago=ago)).state for ago in (0, AGE - 1, AGE, WINDOW - 1, WINDOW)]
    assert states == [STOCKOUT, STOCKOUT, AGED, AGED, UNKNOWN]


def test_while_one_attempt_tries_again_the_place_is_behind_for_all_others_but_not_for_it() -> None:
    aged = met(STOCKOUT, ago=AGE)._replace(probe=Probe("job-7-2", NOW + PROBE_LASTS))
    assert judged(aged, token="job-8-1").state == PROBED
    assert judged(aged, token="job-8-1").behind
    assert judged(aged, token="job-7-2").state == AGED
    assert judged(aged, token="job-8-1", now=NOW + PROBE_LASTS).state == AGED, "it was killed, and another one tries"


def test_what_the_one_meets_decides_for_all() -> None:
    aged = met(STOCKOUT, ago=AGE)._replace(probe=Probe("job-7-2", NOW + PROBE_LASTS))
    lost = facts.after(aged, Attempted(NOW, STOCKOUT, "job-7-2"))
    assert (lost.probe, judged(lost).state, judged(lost).at) == (None, STOCKOUT, NOW)
    won = facts.after(aged, Attempted(NOW, GOT, "job-7-2"))
    assert (won.probe, judged(won).state) == (None, GOOD)
    assert facts.after(aged, Attempted(NOW, STOCKOUT, "job-8-1")).probe == aged.probe


def test_quota_holds_for_five_minutes_and_ends_by_one_success() -> None:
    assert judged(met(QUOTA, ago=QUOTA_LASTS - 1)).state == QUOTA
    assert judged(met(QUOTA, ago=QUOTA_LASTS)).state == UNKNOWN
    assert judged(met(STOCKOUT, QUOTA, ago=QUOTA_LASTS)).state == STOCKOUT, "it says nothing of capacity"
    assert judged(met(QUOTA, GOT)).state == GOOD


@pytest.mark.parametrize("outcome", [STOCKOUT, QUOTA])
def test_what_a_small_size_meets_counts_for_a_large_one_and_not_the_reverse(outcome: str) -> None:
    small, large = KEY._replace(size=4), KEY._replace(size=256)
    assert judged(met(outcome), small, large)[:] == (outcome, NOW, outcome, 1, 4)
    assert judged(met(outcome), large, small) == facts.NOTHING


def test_a_large_slice_that_was_had_since_outweighs_a_small_ones_stockout() -> None:
    small, large = KEY._replace(size=4), KEY._replace(size=256)
    for ago, state in ((60.0, GOOD), (180.0, STOCKOUT)):
        known = {small: met(STOCKOUT, ago=120.0), large: met(GOT, ago=ago)}
        assert facts.judge(known, (large,), NOW)[large].state == state


@pytest.mark.parametrize(
    "other",
    [
        KEY._replace(place="us-east5-b"), KEY._replace(generation="v5p"), KEY._replace(way="on-demand"),
        KEY._replace(backend="compute"), KEY._replace(project="other"), KEY._replace(reservation="ours"),
    ],
)  # fmt: skip
def test_no_other_place_hardware_way_or_control_plane_is_meant(other: FactKey) -> None:
    assert judged(met(STOCKOUT), of=other) == facts.NOTHING


def test_a_success_elsewhere_wipes_nothing() -> None:
    elsewhere = KEY._replace(place="us-east5-b")
    known = {KEY: met(STOCKOUT), elsewhere: met(GOT)}
    assert [each.state for each in facts.judge(known, (KEY, elsewhere), NOW).values()] == [STOCKOUT, GOOD]


def test_an_attempt_counts_once_whoever_reports_it_and_by_what_it_met_last() -> None:
    once = facts.after(Fact(), Attempted(NOW, GOT, "job-1-1"))
    assert facts.after(once, Attempted(NOW + 5, GOT, "job-1-1")) is once
    lost = facts.after(once, Attempted(NOW + 9, PREEMPTED_YOUNG, "job-1-1"))
    assert lost.attempts == ((NOW + 9, PREEMPTED_YOUNG, "job-1-1"),)
    assert facts.after(lost, Attempted(NOW, GOT, "job-1-1")) is lost, "whoever learns later of its start"


def test_jobs_are_counted_and_not_their_attempts() -> None:
    fact = Fact()
    for number, token in enumerate(("job-1-1", "job-1-2", "job-2-1", "job-3-1")):
        fact = facts.after(fact, Attempted(NOW + number, STOCKOUT, token))
    assert judged(fact, now=NOW + 4).jobs == 3


def test_a_fact_is_small_whatever_happens() -> None:
    assert len(met(*[STOCKOUT] * 1000).attempts) == MOST
    assert len(facts.after(met(STOCKOUT), Attempted(NOW + WINDOW, GOT, "job-9-1")).attempts) == 1


def test_a_clock_that_is_wrong_makes_no_fact_that_lasts() -> None:
    assert judged(Fact((Attempted(NOW + 86400, STOCKOUT, "job-1-1"),))).state == UNKNOWN
    forever = met(STOCKOUT, ago=AGE)._replace(probe=Probe("job-7-2", NOW + 1e9))
    assert judged(forever).state == AGED


@pytest.mark.parametrize(
    ("cause", "way", "held", "outcome"),
    [
        (wire.STOCKOUT, "spot", None, STOCKOUT),
        (wire.STOCKOUT, "flex-start", None, ""),
        (wire.QUOTA, "flex-start", None, QUOTA),
        (wire.INTERNAL, "spot", None, ""),
        (wire.PREEMPTION, "spot", 60.0, PREEMPTED_YOUNG),
        (wire.PREEMPTION, "spot", 3600.0, ""),
        (wire.USER, "spot", 60.0, ""),
    ],
)
def test_what_an_end_teaches(cause: str, way: str, held: float | None, outcome: str) -> None:
    assert facts.outcome_of(cause, way, held) == outcome


@pytest.mark.parametrize("way", facts.WAYS)
def test_the_way_of_buying_is_what_users_write(way: str) -> None:
    assert facts.way_of(choices.candidate("v6e-16", way)) == way
    assert facts.way_of(choices.plan(choices.candidate("v6e-16", way))) == way
    reserved = "ours" if way == "reservation" else ""
    assert facts.key_of(choices.candidate("v6e-16", way), "us-east5-a") == KEY._replace(way=way, reservation=reserved)


def test_two_reservations_and_two_projects_share_no_fact() -> None:
    def key(project: str, reservation: str) -> FactKey:
        one = choices.candidate("v6e-16", "on-demand", reservation=reservation)
        return facts.key_of(replace(one, project=project), "us-east5-a")

    apart = [("p", ""), ("q", ""), ("p", "ours"), ("p", "theirs"), ("p", "projects/q/reservations/ours")]
    assert len({key(*one) for one in apart}) == len(apart)
    assert len({records.name_of(key(*one)) for one in apart}) == len(apart)
    path = "projects/p/zones/us-east5-a/reservations/ours"
    assert key("p", path) == key("p", "ours"), "one reservation has one name"


def test_the_order_in_which_reports_arrive_decides_nothing() -> None:
    attempts = [Attempted(NOW - 3 + at, outcome, f"job-{at}-1") for at, outcome in enumerate((GOT, STOCKOUT, GOT))]
    found = {_after_all(order) for order in itertools.permutations(attempts)}
    assert len({fact.attempts for fact in found}) == 1


@pytest.mark.parametrize("seed", range(50))
def test_no_history_makes_a_place_bad_for_longer_than_its_age(seed: int) -> None:
    chance = random.Random(seed)
    attempts = [
        Attempted(NOW - chance.random() * 4000, chance.choice(OUTCOMES), f"job-{chance.randrange(9)}-{number}")
        for number in range(40)
    ]
    fact = _after_all(sorted(attempts))
    for passed in (AGE, WINDOW):
        assert not judged(fact, now=NOW + passed).behind
    assert fact == _after_all(sorted(attempts))


def _after_all(attempts: Iterable[Attempted]) -> Fact:
    fact = Fact()
    for attempt in attempts:
        fact = facts.after(fact, attempt)
    return fact
