"""Jobs of one deployment share what they learn of capacity: a zone that has nothing is tried by one at a time."""

from __future__ import annotations

from collections import Counter

from tests.simulation import choice_scenario
from tests.simulation.choice_scenario import play

SEEDS = 40
REACHED = {
    "a zone had nothing",
    "a zone had some again",
    "an aged place was tried again",
    "the answer to a create was lost",
    "the answer to a swap was lost",
    "what is known could not be read",
}


def test_a_zone_without_capacity_is_asked_by_one_at_a_time_and_found_again_when_it_has_some() -> None:
    """120 jobs make few calls where nothing is free: each size is tried once in ten minutes, and by those that were on
    their way when the first was refused."""
    reached = Counter[str]()
    for seed in range(SEEDS):
        deployment = play(seed)
        reached.update(deployment.world.reached)
        dry = [ask for ask in deployment.asks if deployment.dry_from <= ask.began < deployment.dry_until]
        ages = (deployment.dry_until - deployment.dry_from) / choice_scenario.AGE
        assert len(dry) <= 2 * (ages + 1) + 8
    assert set(reached) == REACHED


def test_a_seed_is_one_execution() -> None:
    assert play(7).world.trace == play(7).world.trace
