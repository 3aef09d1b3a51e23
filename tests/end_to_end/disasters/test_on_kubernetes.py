"""A few seeds of the random driver on an emulated cluster of Kubernetes; many more by hand, and on a real control plane
with `python -m tests.end_to_end.disasters --backend kubernetes-real`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.disasters.run import TICK_WHEN_BUSY, play
from tests.end_to_end.disasters.schedule import schedule

SEEDS = (7, 8, 9, 12, 13, 20, 21, 24, 35, 36)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.turn(seed % 5)) for seed in SEEDS])
def test_two_to_four_faults_at_once_in_a_cluster_leave_one_result_and_nothing_else_and_cost_what_pods_held(
    seed: int, own_home: Path, tmp_path: Path
) -> None:
    print(f"seed {seed}: {schedule(seed, 'kubernetes')}")
    print(play(seed, "kubernetes", tmp_path, own_home, TICK_WHEN_BUSY))
