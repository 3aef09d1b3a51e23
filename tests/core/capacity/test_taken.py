"""The choice that an attempt took, as its users read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinetic_orchestration.capacity import choosing
from kinetic_orchestration.capacity.taken import taken
from kinetic_orchestration.plan.values import Past
from tests.support.choices import candidate, plan

ASKED = plan(candidate("v6e-16"), candidate("v5p-16", "on-demand", ("us-east5-a",)))


def test_the_first_is_told_as_the_first_and_a_later_one_with_what_was_tried_before() -> None:
    chosen = choosing.first(ASKED, {}, 1000.0)
    placement = {**chosen.history(), "zone": chosen.place, "backend": "tpu-vm"}
    assert taken(ASKED, placement) == "v6e-16 spot in us-east5-a, the first that was tried of 2 choices"
    told = []
    for _ in range(3):
        past = Past(placement, "stockout", "nothing there", 1000.0)
        chosen = choosing.following(ASKED, {}, 1000.0, past, "job-1")
        placement = {**chosen.history(), "zone": chosen.place, "backend": "tpu-vm"}
        told.append(taken(ASKED, placement))
    assert told[0] == (
        "v6e-16 spot in us-east5-b, after v6e-16 spot in us-east5-a "
        "(when it was chosen: v6e-16 spot in us-east5-a: stockout just now)"
    )
    assert told[2] == (
        "v5p-16 on-demand in us-east5-a, after v6e-16 spot in us-east5-a, v6e-16 spot in us-east5-b, "
        "v6e-16 spot in europe-west4-a (when it was chosen: v6e-16 spot in us-east5-a: tried before)"
    )


def test_what_is_tried_in_another_round_is_not_told_as_the_first() -> None:
    chosen = choosing.first(ASKED, {}, 1000.0)
    placement = {**chosen.history(), "zone": chosen.place, "backend": "tpu-vm"}
    for _ in range(4):
        chosen = choosing.following(ASKED, {}, 1000.0, Past(placement, "stockout", "nothing there", 1000.0), "job-1")
        placement = {**chosen.history(), "zone": chosen.place, "backend": "tpu-vm"}
    assert taken(ASKED, placement).startswith("v6e-16 spot in us-east5-a, tried again after all of 2 choices")


@pytest.mark.parametrize("placement", [{}, {"choice": 7, "zone": "", "tried": ["x", "9:somewhere", ""]}])
def test_a_placement_that_says_little_is_no_error(placement: dict[str, object]) -> None:
    assert taken(ASKED, placement)


def test_many_that_were_tried_before_are_counted() -> None:
    tried = [f"0:zone-{number}" for number in range(8)]
    assert taken(ASKED, {"choice": 1, "zone": "us-east5-a", "tried": tried}).endswith(
        "v6e-16 spot in zone-7 and 3 more"
    )


def test_a_warm_slice_is_told_with_whose_it_was_also_of_a_job_of_one_way() -> None:
    kept = {"zone": "us-east5-a", "lease": {"slice": "s", "epoch": 1}, "why": "it is warm: job-2 has left it 9 s ago"}
    assert taken(replace(ASKED, choices=()), kept) == (
        "v6e-16 spot in us-east5-a: it is warm: job-2 has left it 9 s ago"
    )
    assert "it is warm: job-2 has left it 9 s ago" in taken(ASKED, kept)


def test_a_job_of_one_way_has_no_choice_to_tell() -> None:
    assert taken(replace(ASKED, choices=()), {"zone": "us-east5-a"}) == ""
