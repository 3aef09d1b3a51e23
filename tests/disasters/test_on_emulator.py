"""A few seeds of the random driver on an emulated cloud, and what all of them were told that they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disasters.run import ALIKE_WHEN_BUSY, Told, play, ratio
from tests.disasters.schedule import schedule

SEEDS = range(10)


@pytest.fixture(scope="module")
def costs() -> dict[int, Told]:
    """Of each run that was whole."""
    return {}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_two_to_four_faults_at_once_leave_one_result_and_nothing_else_and_cost_what_was_charged_for(
    seed: int, own_home: Path, tmp_path: Path, costs: dict[int, Told]
) -> None:
    print(f"seed {seed}: {schedule(seed, 'emulator')}")
    costs[seed] = play(seed, "emulator", tmp_path, own_home)
    print(costs[seed])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_runs_together_were_told_what_they_were_charged_for(
    own_home: Path, tmp_path: Path, costs: dict[int, Told]
) -> None:
    for seed in SEEDS:
        if seed not in costs:  # where this test is asked for alone
            costs[seed] = play(seed, "emulator", tmp_path, own_home)
    assert ALIKE_WHEN_BUSY[0] <= ratio([*costs.values()]) <= ALIKE_WHEN_BUSY[1]
