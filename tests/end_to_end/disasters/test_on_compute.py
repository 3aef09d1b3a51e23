"""A few seeds of the random driver on an emulated Compute Engine; many more by hand, with
`python -m tests.end_to_end.disasters --backend compute`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.disasters.run import TICK_WHEN_BUSY, play
from tests.end_to_end.disasters.schedule import schedule

SEEDS = (
    0,
    1,
    2,
    5,
    10,
    13,
    32,
    58,
    64,
)  # 32 and 64 on slices, 2 and 58 with several processes on each VM; 5 keeps its VMs
RACED = (0, 1, 3)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.turn(seed % 5)) for seed in SEEDS])
def test_two_to_four_faults_at_once_on_vms_leave_one_result_and_nothing_else_and_cost_what_they_ran(
    seed: int, own_home: Path, tmp_path: Path
) -> None:
    print(f"seed {seed}: {schedule(seed, 'compute')}")
    print(play(seed, "compute", tmp_path, own_home, TICK_WHEN_BUSY))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.turn(seed % 5)) for seed in RACED])
def test_jobs_that_ask_two_zones_at_once_leave_one_result_and_nothing_else_and_cost_what_both_ran(
    seed: int, own_home: Path, tmp_path: Path
) -> None:
    print(f"seed {seed}: {schedule(seed, 'compute', races=True)}")
    print(play(seed, "compute", tmp_path, own_home, TICK_WHEN_BUSY, races=True))
