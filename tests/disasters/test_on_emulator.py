"""A few seeds of the random driver on an emulated cloud, and what all of them were told that they cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disasters.run import ALIKE_WHEN_BUSY, Told, play, ratio
from tests.disasters.schedule import schedule

SEEDS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10)


@pytest.fixture(scope="module")
def costs() -> Iterator[list[Told]]:
    """Of each run that was whole."""
    runs: list[Told] = []
    yield runs
    if len(runs) == len(SEEDS):
        assert ALIKE_WHEN_BUSY[0] <= ratio(runs) <= ALIKE_WHEN_BUSY[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_two_to_four_faults_at_once_leave_one_result_and_nothing_else_and_cost_what_was_charged_for(
    seed: int, own_home: Path, tmp_path: Path, costs: list[Told]
) -> None:
    print(f"seed {seed}: {schedule(seed, 'emulator')}")
    costs.append(play(seed, "emulator", tmp_path, own_home))
    print(costs[-1])
