"""A few seeds of the random driver on an emulated cloud, and what all of them were told that they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.disasters.run import ALIKE_WHEN_BUSY, TICK_WHEN_BUSY, Told, play, ratio, were_made
from tests.end_to_end.disasters.schedule import ANOTHER, FROZEN, QUOTA, WARM, schedule

SEEDS = (0, 1, 3, 4, 5, 6, 7, 8, 9, 12, 31, 42, 69, 75)  # 3, 8, 12, 31, 69 and 75 keep their slices
RACED = (0, 1, 4, 7, 8)  # of which 8 also keeps its slices


def played(seed: int, home: Path, root: Path, *, races: bool = False) -> Told:
    return play(seed, "emulator", root, home, TICK_WHEN_BUSY, races=races)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.turn(seed % 5)) for seed in SEEDS])
def test_two_to_four_faults_at_once_leave_one_result_and_nothing_else_and_cost_what_was_charged_for(
    seed: int, own_home: Path, tmp_path: Path, whole: dict[int, Told]
) -> None:
    print(f"seed {seed}: {schedule(seed, 'emulator')}")
    whole[seed] = played(seed, own_home, tmp_path)
    print(whole[seed])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.turn(seed % 5)) for seed in RACED])
def test_jobs_that_ask_two_places_at_once_leave_one_result_and_nothing_else_and_cost_what_both_were_charged_for(
    seed: int, own_home: Path, tmp_path: Path
) -> None:
    print(f"seed {seed}: {schedule(seed, 'emulator', races=True)}")
    print(played(seed, own_home, tmp_path, races=True))


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.timeout(300)
def test_a_job_that_took_the_slice_of_the_one_before_was_among_them(
    own_home: Path, tmp_path: Path, whole: dict[int, Told]
) -> None:
    told = whole[8] if 8 in whole else played(8, own_home, tmp_path)
    assert WARM in told.hit


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.timeout(1200)
def test_all_runs_together_were_told_what_they_were_charged_for(
    own_home: Path, tmp_path: Path, whole: dict[int, Told]
) -> None:
    for seed in SEEDS:
        if seed not in whole:  # where this test is asked for alone
            whole[seed] = played(seed, own_home, tmp_path)
    assert ALIKE_WHEN_BUSY[0] <= ratio([*whole.values()]) <= ALIKE_WHEN_BUSY[1]


@pytest.mark.slow
@pytest.mark.turn(0)
@pytest.mark.timeout(1200)
def test_full_disks_of_single_hosts_were_among_them(own_home: Path, tmp_path: Path, whole: dict[int, Told]) -> None:
    for seed in SEEDS:
        if seed not in whole and schedule(seed, "emulator").disks:
            whole[seed] = played(seed, own_home, tmp_path)
    were_made(whole)


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.timeout(600)
def test_a_job_that_took_another_choice_and_one_whose_chips_are_shared_were_among_them(
    own_home: Path, tmp_path: Path, whole: dict[int, Told]
) -> None:
    drawn = {seed: schedule(seed, "emulator") for seed in SEEDS}
    (seed,) = [seed for seed, one in drawn.items() if one.share and QUOTA in [fault.what for fault in one.faults]]
    told = whole[seed] if seed in whole else played(seed, own_home, tmp_path)
    assert ANOTHER in told.hit


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.timeout(300)
def test_a_follower_that_stood_still_was_among_them(own_home: Path, tmp_path: Path, whole: dict[int, Told]) -> None:
    (seed,) = [seed for seed in SEEDS if schedule(seed, "emulator").freezes_a_follower]
    told = whole[seed] if seed in whole else played(seed, own_home, tmp_path)
    assert FROZEN in told.hit
