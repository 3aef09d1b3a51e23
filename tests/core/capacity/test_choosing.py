"""The candidate and the place of the next attempt: pure, with the reason that users read."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kinetic_orchestration.capacity import choosing, facts
from kinetic_orchestration.capacity.choosing import LOST, REFUSED, UNFIT, Line, Selection
from kinetic_orchestration.capacity.facts import (
    AGE,
    AGED,
    GOT,
    PROBED,
    QUOTA,
    STOCKOUT,
    Attempted,
    Fact,
    FactKey,
    Probe,
)
from kinetic_orchestration.capacity.taken import taken
from kinetic_orchestration.errors import NoPlace
from kinetic_orchestration.plan.values import Candidate, Past, Plan
from kinetic_orchestration.platforms.shared.places import Refusal
from kinetic_orchestration.protocol import schema, wire
from tests.support import choices
from tests.support.choices import ZONES, candidate

pytestmark = pytest.mark.fast

NOW = 1_700_000_000.0
A, B, C = ZONES
SPOT = candidate("v6e-16", "spot", ZONES[:2])
OTHER = candidate("v5p-16", "spot", ZONES[:1])
DEMAND = candidate("v6e-16", "on-demand", ZONES[:2])
PLAN = choices.plan(SPOT, OTHER, DEMAND)


def known(*met: tuple[Candidate, str, str, float]) -> dict[FactKey, Fact]:
    """Return what one job met: the candidate, the place, the outcome, and how long ago that was."""
    found: dict[FactKey, Fact] = {}
    for number, (one, place, outcome, ago) in enumerate(met):
        key = facts.key_of(one, place)
        found[key] = facts.after(found.get(key, Fact()), Attempted(NOW - ago, outcome, f"job-{number}-1"))
    return found


def order(lines: list[Line]) -> list[tuple[int, str]]:
    return [(line.choice, line.place) for line in lines]


@dataclass
class Walk:
    """A job that goes from option to option, each time with its placement read from a record."""

    plan: Plan = PLAN
    facts: Mapping[FactKey, Fact] = field(default_factory=dict)
    now: float = NOW
    resumes: Callable[[Candidate], str] = choosing.anything
    steps: list[Selection] = field(default_factory=list)

    def begins(self) -> Selection:
        self.steps.append(choosing.first(self.plan, self.facts, self.now, resumes=self.resumes))
        return self.steps[-1]

    def ends(self, cause: str, refusal: Refusal = Refusal(), reason: str = "why") -> Selection:  # noqa: B008
        last = self.steps[-1]
        placement = {"backend": "tpu-vm", "zone": last.place, "queue": last.queue, **last.history()}
        wire.PLACEMENT(placement)
        past = Past(placement, cause, reason, self.now)
        seed = f"job-1-{len(self.steps) + 1}"
        self.steps.append(
            choosing.following(self.plan, self.facts, self.now, past, seed, refusal, resumes=self.resumes)
        )
        return self.steps[-1]

    @property
    def way(self) -> list[tuple[int, str]]:
        return [(step.choice, step.place) for step in self.steps]


# ---- the order ---------------------------------------------------------------------------------------------------


def test_the_order_is_the_users_with_the_zones_innermost() -> None:
    lines = choosing.table(PLAN, {}, NOW)
    assert order(lines) == [(0, A), (0, B), (1, A), (2, A), (2, B)]
    assert [line.way for line in lines] == ["spot", "spot", "spot", "on-demand", "on-demand"]
    assert [line.reason for line in lines[:3]] == [
        "first in your order", "number 2 in your order", "number 3 in your order",
    ]  # fmt: skip


def test_spot_first_and_on_demand_when_it_must_be() -> None:
    met = known((SPOT, A, STOCKOUT, 240), (SPOT, B, STOCKOUT, 60), (OTHER, A, STOCKOUT, 0))
    lines = choosing.table(PLAN, met, NOW)
    assert order(lines) == [(2, A), (2, B), (0, A), (0, B), (1, A)]
    assert [line.reason for line in lines[2:]] == ["stockout 4 min ago", "stockout 1 min ago", "stockout just now"]
    assert choosing.first(PLAN, met, NOW).choice == 2


def test_a_placement_carries_why_it_was_chosen_for_all_who_did_not_choose() -> None:
    met = known((SPOT, A, STOCKOUT, 240), (SPOT, B, STOCKOUT, 240))
    walk = Walk(facts=met)
    begun = walk.begins()
    assert (begun.choice, begun.place) == (1, A)
    assert begun.history()["why"] == f"v6e-16 spot in {A}: stockout 4 min ago"
    assert taken(PLAN, {"zone": A, **begun.history()}) == (
        f"v5p-16 spot in {A}, the first that was tried of 3 choices (when it was chosen: v6e-16 spot in {A}: stockout "
        "4 min ago)"
    )
    walk = Walk()
    assert walk.begins().history()["why"] == "", "the user's order needs no words"
    assert walk.ends(wire.STOCKOUT).history()["why"] == f"v6e-16 spot in {A}: stockout just now"
    usd = {A: 10.0}
    cheap = choices.plan(candidate("v6e-16", zones=(A,), usd=usd), candidate("v5p-16", zones=(A,)), by="price")
    assert choosing.first(cheap, {}, NOW).history()["why"] == "$10.00 an hour"


def test_a_request_waits_as_long_as_it_may_where_nothing_else_is_left() -> None:
    """A queue is left for the sake of others alone: those that were refused for good, or cannot resume, are none."""
    flex, other = (replace(candidate("v6e-16", way, (A,)), zone_patience=900.0) for way in ("flex-start", "spot"))
    plan = choices.plan(flex, other)
    walk = Walk(plan)
    assert walk.begins().history()["patience"] == 900.0
    assert walk.ends(wire.STOCKOUT).choice == 1
    assert walk.ends(wire.QUOTA, Refusal(gone=(A,))).choice == 0
    assert walk.steps[-1].history()["patience"] == 0.0
    walk = Walk(plan)
    walk.begins()
    said = walk.ends(wire.STOCKOUT).history()["why"]
    assert said == f"v6e-16 flex-start in {A}: no hosts in its time in the queue just now", "a queue is no stockout"
    alone = choosing.first(plan, {}, NOW, resumes=lambda one: "" if one is flex else "cannot")
    assert alone.history()["patience"] == 0.0


def test_by_price_the_cheapest_purchase_is_first_and_an_unknown_price_is_last_and_said_so() -> None:
    plan = choices.plan(
        candidate("v6e-16", "on-demand", (A, B, C), {A: 43.2, B: 47.52}),
        candidate("v6e-16", "spot", (A, B, C), {A: 22.4528, B: 0.0, C: float("inf")}),
        candidate("v6e-16", "flex-start", (A,), {A: 21.6}),
        by="price",
    )
    lines = choosing.table(plan, {}, NOW)
    assert order(lines) == [(2, A), (1, A), (0, A), (0, B), (0, C), (1, B), (1, C)]
    assert [line.usd for line in lines] == [21.6, 22.4528, 43.2, 47.52, None, None, None]
    assert [line.reason for line in lines[:2]] == ["$21.60 an hour", "$22.45 an hour"]
    assert {line.reason for line in lines[4:]} == {"price unknown"}


def test_between_equal_prices_the_place_near_the_bucket_decides_and_then_the_users_order() -> None:
    usd = {A: 10.0, C: 10.0}
    plan = choices.plan(
        candidate("v6e-16", zones=(A, C), usd=usd), candidate("v5p-16", zones=(A, C), usd=usd), by="price"
    )
    assert order(choosing.table(plan, {}, NOW)) == [(0, A), (0, C), (1, A), (1, C)]
    near = replace(plan, choices=tuple(replace(one, near=(C,)) for one in plan.choices))
    for by in ("price", "start"):
        assert order(choosing.table(replace(near, by=by), {}, NOW)) == [(0, C), (1, C), (0, A), (1, A)]
    own = choosing.table(replace(near, by="order"), {}, NOW)
    assert order(own) == [(0, A), (0, C), (1, A), (1, C)], "the user's order has no equals"


def test_by_start_comes_what_was_had_lately_then_what_is_unknown_then_queues_then_stockouts() -> None:
    flex = candidate("v6e-16", "flex-start", (A,))
    plan = choices.plan(flex, SPOT, DEMAND, by="start")
    met = known((SPOT, A, STOCKOUT, 120), (DEMAND, B, GOT, 300))
    lines = choosing.table(plan, met, NOW)
    assert order(lines) == [(2, B), (1, B), (2, A), (0, A), (1, A)]
    assert [line.reason for line in lines] == [
        "hosts were had 5 min ago", "nothing is known of it", "nothing is known of it", "it waits in a queue",
        "stockout 2 min ago",
    ]  # fmt: skip


def test_the_reason_says_who_saw_it_and_for_what_size() -> None:
    small = candidate("v6e-4", "spot", (A,))
    met = known(*[(small, A, STOCKOUT, ago) for ago in (480, 300, 240)])
    assert choosing.table(PLAN, met, NOW)[-1].reason == (
        "stockout 4 min ago on a smaller slice (4 chips), so here as well, seen by 3 jobs"
    )
    assert choosing.table(PLAN, known((candidate("v6e-1", "spot", (A,)), A, STOCKOUT, 0)), NOW)[-1].reason == (
        "stockout just now on a smaller slice (1 chip), so here as well"
    )
    assert choosing.table(PLAN, known((SPOT, A, QUOTA, 60)), NOW)[-1].reason == "quota was used up 1 min ago"
    assert (
        choosing.table(PLAN, known((SPOT, A, GOT, 0)), NOW)[0].reason == "first in your order; hosts were had just now"
    )


# ---- facts that age ------------------------------------------------------------------------------------------------


def test_an_aged_stockout_is_tried_again_by_one_attempt_which_has_to_claim_it() -> None:
    met = known((SPOT, A, STOCKOUT, AGE))
    selection = choosing.first(PLAN, met, NOW, seed="job-1-1")
    assert (selection.choice, selection.place, selection.probe) == (0, A, facts.key_of(SPOT, A))
    assert selection.reason == "stockout 10 min ago: one attempt tries again"
    key = facts.key_of(SPOT, A)
    claimed = {key: met[key]._replace(probe=Probe("job-1-1", NOW + 300))}
    assert choosing.first(PLAN, claimed, NOW, seed="job-1-1")[:2] == selection[:2]
    other = choosing.first(PLAN, claimed, NOW, seed="job-2-1")
    assert (other.choice, other.place, other.probe) == (0, B, None)
    line = choosing.table(PLAN, claimed, NOW, seed="job-2-1")[-1]
    assert (line.state, line.reason) == (PROBED, "stockout 10 min ago: another attempt tries now")


def test_no_fact_drops_a_place() -> None:
    met = known(*[(one, place, STOCKOUT, 0) for one in PLAN.choices for place in ZONES])
    walk = Walk(facts=met)
    walk.begins()
    for _ in range(4):
        assert walk.ends(wire.STOCKOUT).wait == 0
    assert sorted(walk.way) == sorted(order(choosing.table(PLAN, {}, NOW)))
    assert 22 < walk.ends(wire.STOCKOUT).wait < 38


def test_a_round_goes_on_with_the_best_that_it_has_not_tried_and_not_with_the_next_in_a_circle() -> None:
    walk = Walk(facts=known((SPOT, A, STOCKOUT, 0), (SPOT, B, STOCKOUT, 0)))
    walk.begins()
    walk.facts = {}  # they were forgotten meanwhile
    walk.ends(wire.STOCKOUT)
    assert walk.way == [(1, A), (0, A)]


# ---- what the attempt before leads to --------------------------------------------------------------------------------


def test_after_a_preemption_what_was_launched_comes_after_the_others() -> None:
    walk = Walk()
    walk.begins()
    walk.ends(wire.STOCKOUT)
    walk.ends(wire.PREEMPTION)
    assert walk.way == [(0, A), (0, B), (0, A)], "it was launched in the second place, not in the first one asked for"
    walk = Walk(facts=known((SPOT, A, STOCKOUT, 0)))
    walk.begins()
    walk.ends(wire.PREEMPTION)
    assert walk.way == [(0, B), (1, A)]
    last = walk.steps[0]
    past = Past({"zone": last.place, **last.history()}, wire.PREEMPTION, "", NOW)
    line = choosing.table(PLAN, walk.facts, NOW, past)[-1]
    assert (line.choice, line.place, line.state) == (0, B, LOST)


def test_what_was_preempted_is_tried_again_after_a_round_and_at_once_where_there_is_nothing_else() -> None:
    walk = Walk()
    walk.begins()
    for _ in range(4):
        walk.ends(wire.PREEMPTION if len(walk.steps) == 1 else wire.STOCKOUT)
    assert (0, A) not in walk.way[1:]
    assert walk.ends(wire.STOCKOUT).wait > 0
    assert walk.way[-1] == (0, A)
    alone = Walk(choices.plan(candidate("v6e-16", "spot", (A,)), by="price"))
    alone.begins()
    assert alone.ends(wire.PREEMPTION)[:2] == (0, A)
    assert alone.steps[-1].wait == 0


@pytest.mark.parametrize("cause", [wire.INFRASTRUCTURE, wire.USER, wire.STALL])
def test_hosts_that_were_lost_otherwise_are_requested_where_they_were(cause: str) -> None:
    walk = Walk()
    walk.begins()
    walk.ends(wire.STOCKOUT)
    walk.facts = known((SPOT, B, STOCKOUT, 0))
    assert walk.ends(cause)[:2] == (0, B)
    assert (walk.steps[-1].wait, walk.steps[-1].reason) == (0, "its hosts were there")


def test_internal_errors_are_met_twice_in_place_and_a_limited_rate_always() -> None:
    walk = Walk()
    walk.begins()
    for _ in range(3):
        walk.ends(wire.INTERNAL)
    assert walk.way == [(0, A), (0, A), (0, A), (0, B)]
    for _ in range(3):
        assert walk.ends(wire.QUOTA, Refusal(later=True))[:2] == (0, B)


def test_a_refusal_for_good_drops_the_candidate_there_and_no_other() -> None:
    walk = Walk()
    walk.begins()
    walk.ends(wire.QUOTA, Refusal(gone=(A, B)))
    assert walk.way[-1] == (1, A)
    placement = {"zone": A, **walk.steps[-1].history()}
    lines = choosing.table(PLAN, {}, NOW, Past(placement, wire.STOCKOUT, "", NOW))
    assert [line.choice for line in lines if line.state == REFUSED] == [0, 0]
    for _ in range(12):
        walk.ends(wire.STOCKOUT)
    assert {choice for choice, _ in walk.way[1:]} == {1, 2}


def test_when_nothing_is_left_the_last_answer_is_told_with_what_was_tried() -> None:
    plan = choices.plan(candidate("v6e-16", "spot", (A,)), candidate("v5p-16", "on-demand", (A,)))
    walk = Walk(plan)
    walk.begins()
    walk.ends(wire.QUOTA, Refusal(gone=(A,)))
    with pytest.raises(NoPlace, match=r"v6e-16 spot in us-east5-a, v5p-16 on-demand in us-east5-a.*Limit: 0 in region"):
        walk.ends(wire.QUOTA, Refusal(gone=(A,)), "Limit: 0 in region us-east5")


def test_no_zone_at_all_is_no_place() -> None:
    with pytest.raises(NoPlace, match="KINETIC_ZONES"):
        choosing.first(choices.plan(candidate("v6e-16", zones=())), {}, NOW)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_shape_that_cannot_resume_the_checkpoint_is_not_chosen_unless_the_program_reshards() -> None:
    plan = choices.plan(candidate("v6e-16", zones=(A,)), candidate("v6e-8", zones=(A,)), by="price")
    resumes = choosing.of_hosts(1, plan)
    lines = choosing.table(plan, {}, NOW, resumes=resumes)
    assert order(lines) == [(1, A), (0, A)]
    assert (lines[1].state, lines[1].reason) == (
        UNFIT,
        "cannot resume the checkpoint: it has 4 hosts, and 1 host wrote it",
    )
    walk = Walk(plan, resumes=resumes)
    assert walk.begins().choice == 1
    assert walk.ends(wire.PREEMPTION).choice == 1
    assert order(choosing.table(plan, {}, NOW, resumes=choosing.of_hosts(1, plan, reshard=True))) == [(0, A), (1, A)]


def test_a_shape_with_as_many_hosts_and_other_devices_cannot_resume_what_depends_on_these() -> None:
    """JAX lays arrays out over devices: a checkpoint of eight is refused by four."""
    plan = choices.plan(candidate("v6e-4", zones=(A,)), candidate("v6e-8", zones=(A,)), candidate("v5e-8", zones=(A,)))
    lines = choosing.table(plan, {}, NOW, resumes=choosing.of_hosts(1, plan, devices=8))
    assert order(lines) == [(1, A), (2, A), (0, A)]
    assert (lines[2].state, lines[2].reason) == (
        UNFIT,
        "cannot resume the checkpoint: it has 4 devices, and 8 devices wrote it",
    )
    for any_ in ({}, {"devices": 2}, {"devices": 8, "reshard": True}):  # a number of no choice is the program's own
        lines = choosing.table(plan, {}, NOW, resumes=choosing.of_hosts(1, plan, **any_))
        assert order(lines) == [(0, A), (1, A), (2, A)]


def test_what_a_part_of_the_hosts_wrote_any_slice_with_as_many_resumes() -> None:
    plan = choices.plan(
        candidate("v6e-16", zones=(A,)), candidate("v6e-8", zones=(A,)), candidate("v6e-32", zones=(A,))
    )
    lines = choosing.table(plan, {}, NOW, resumes=choosing.of_hosts(2, plan, devices=8, is_part=True))
    assert [(line.choice, line.state) for line in lines][2] == (1, UNFIT)
    assert order(lines)[:2] == [(0, A), (2, A)]


def test_if_no_choice_can_resume_it_each_says_why() -> None:
    plan = choices.plan(candidate("v6e-16"), candidate("v5p-16", "on-demand"))
    with pytest.raises(NoPlace, match=r"v6e-16 spot: cannot resume.*4 hosts.*; v5p-16 on-demand: cannot resume"):
        choosing.first(plan, {}, NOW, resumes=choosing.of_hosts(2, plan))


def test_a_place_that_became_unfit_is_left() -> None:
    plan = choices.plan(candidate("v6e-16", zones=(A,)), candidate("v6e-8", zones=(A,)))
    walk = Walk(plan)
    walk.begins()
    walk.resumes = choosing.of_hosts(1, plan)
    for cause in (wire.INFRASTRUCTURE, wire.INTERNAL, wire.PREEMPTION):
        assert walk.ends(cause).choice == 1


# ---- placements ------------------------------------------------------------------------------------------------------


def test_what_was_selected_is_a_plan_of_one_candidate_in_one_place() -> None:
    walk = Walk(facts=known((SPOT, A, STOCKOUT, 0), (SPOT, B, STOCKOUT, 0), (OTHER, A, STOCKOUT, 0)))
    plan = walk.begins().plan(PLAN)
    assert (plan.slice.name, plan.spot, plan.zones) == ("v6e-16", False, (A,))


def test_each_queue_of_a_namespace_is_an_option() -> None:
    both = replace(candidate("v6e-16", zones=("c/team",)), backend="kubernetes", cloud={"queue": "one,two"})
    plan = choices.plan(both, replace(both, cloud={"queue": ""}), by="order")
    assert order(choosing.table(plan, {}, NOW)) == [(0, "c/team:one"), (0, "c/team:two"), (1, "c/team")]
    walk = Walk(plan)
    walk.begins()
    assert walk.ends(wire.STOCKOUT).plan(plan).cloud["queue"] == "two"
    assert walk.steps[-1].plan(plan).zones == ("c/team",)
    assert walk.ends(wire.QUOTA, Refusal(gone=("c/team:two",)))[:2] == (1, "c/team")


def test_a_job_with_one_way_has_its_zones_as_options() -> None:
    plan = replace(choices.plan(SPOT), choices=())
    assert order(choosing.table(plan, {}, NOW)) == [(0, A), (0, B)]
    assert choosing.keys(plan) == [facts.key_of(SPOT, A), facts.key_of(SPOT, B)]


# ---- over random histories -------------------------------------------------------------------------------------------


def history(chance: random.Random, plan: Plan) -> dict[FactKey, Fact]:
    found: dict[FactKey, Fact] = {}
    for key in choosing.keys(plan):
        fact = Fact()
        for number in range(chance.randrange(6)):
            attempt = Attempted(NOW - chance.random() * 2400, chance.choice(facts.OUTCOMES), f"job-{number}-1")
            fact = facts.after(fact, attempt)
        if chance.random() < 0.2:
            fact = fact._replace(probe=Probe("job-9-1", NOW + chance.random() * 600))
        found[key] = fact
    return found


def drawn(seed: int) -> tuple[Plan, dict[FactKey, Fact], random.Random]:
    chance = random.Random(seed)
    own = []
    for _ in range(chance.randint(1, 4)):
        zones = chance.sample(ZONES, chance.randint(1, 3))
        usd = {zone: chance.choice((0.0, 1.0, 2.0, float("inf"))) for zone in zones}
        own.append(candidate(chance.choice(("v6e-4", "v6e-16", "v5p-8")), chance.choice(facts.WAYS[:3]), zones, usd))
    plan = choices.plan(*own, by=chance.choice(("order", "price", "start")))
    return plan, history(chance, plan), chance


@pytest.mark.parametrize("seed", range(100))
def test_every_option_without_a_refusal_is_tried_within_one_round_whatever_is_known(seed: int) -> None:
    plan, met, chance = drawn(seed)
    walk = Walk(plan, met)
    walk.begins()
    everything = set(order(choosing.table(plan, {}, NOW)))
    duplicates = len(choosing.table(plan, {}, NOW))
    for _ in range(3):
        asked = set(walk.way[-1:])
        while not (step := walk.ends(wire.STOCKOUT)).wait:
            asked.add((step.choice, step.place))
            walk.facts = history(chance, plan)  # what is known changes all the time
            assert len(asked) <= duplicates
        assert asked == everything


@pytest.mark.parametrize("seed", range(100))
def test_the_same_input_leads_to_the_same_choice_and_the_table_begins_with_it(seed: int) -> None:
    plan, met, _ = drawn(seed)
    lines = choosing.table(plan, met, NOW, seed="job-1-1")
    assert lines == choosing.table(plan, dict(reversed(met.items())), NOW, seed="job-1-1")
    selection = choosing.first(plan, met, NOW, seed="job-1-1")
    assert (selection.choice, selection.place) == order(lines)[0]
    behind = [line.state in (STOCKOUT, QUOTA, PROBED) for line in lines]
    assert behind == sorted(behind), "what is behind is behind everything else"
    assert (selection.probe is not None) == (lines[0].state == AGED)
    assert all(line.reason and len(line.reason) < 100 for line in lines)
    schema.many(schema.place, 1000)(selection.history()["tried"])


def test_80_options_are_decided_within_5_ms() -> None:
    plan, met = large()
    assert len(choosing.table(plan, met, NOW)) == 80
    past = Past({"zone": "r0-z0-a", **choosing.first(plan, met, NOW).history()}, wire.STOCKOUT, "", NOW)
    for work in (
        lambda: choosing.first(plan, met, NOW),
        lambda: choosing.table(plan, met, NOW),
        lambda: choosing.following(plan, met, NOW, past, "job-1-2"),
    ):
        assert min(map(cpu_seconds, [work] * 9)) < 0.005


def large() -> tuple[Plan, dict[FactKey, Fact]]:
    """20 zones with 4 candidates, and a full window of attempts for each."""
    zones = [f"r{number}-z{number}-a" for number in range(20)]
    usd = {zone: 1.0 + number for number, zone in enumerate(zones)}
    ways = [("v6e-16", "spot"), ("v5p-16", "spot"), ("v6e-16", "on-demand"), ("v6e-16", "flex-start")]
    plan = choices.plan(*(candidate(name, way, zones, usd) for name, way in ways), by="price")
    window = tuple(
        Attempted(NOW - 900 + 50 * number, STOCKOUT if number % 3 else GOT, f"job-{number}-1")
        for number in range(facts.MOST)
    )
    return plan, {key: Fact(window) for key in choosing.keys(plan)}


def cpu_seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
