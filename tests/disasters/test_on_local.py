"""A few seeds of the random driver on this machine; many more by hand, with `python -m tests.disasters`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.disasters import work
from tests.disasters.__main__ import main
from tests.disasters.run import play
from tests.disasters.schedule import BACKENDS, CLOUD, FREEZES, KINDS, LONG, schedule

SEEDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_two_to_four_faults_at_once_leave_one_result_and_nothing_else(
    seed: int, own_home: Path, tmp_path: Path
) -> None:
    print(f"seed {seed}: {schedule(seed, 'local')}")
    print(play(seed, "local", tmp_path, own_home))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "mistake", "told"),
    [(6, work.ANOTHER_JOB, "the results are"), (8, work.NOT_AGAIN, "a job that has attempts left has ended")],
)
def test_a_mistake_is_found_and_its_seed_is_told(
    seed: int, mistake: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who watches the driver: its jobs get another key each time, or no retries; else the same run is a good one."""
    monkeypatch.setenv(work.PLANTED, mistake)
    monkeypatch.setattr(sys, "argv", ["disasters", "--seed", str(seed), "--runs", "1"])
    assert main() == 1
    said = capsys.readouterr().out
    assert f"seed {seed}: {schedule(seed, 'local')}\n  BROKEN: Broken: {told}" in said
    assert said.endswith(f"1 runs from {seed} on, 1 broken\n")


def test_a_seed_draws_the_same_faults_each_time_and_seeds_draw_all_there_are() -> None:
    for backend in BACKENDS:
        drawn = [schedule(seed, backend) for seed in range(200)]
        assert drawn == [schedule(seed, backend) for seed in range(200)]
        assert {len(found.faults) for found in drawn} == {2, 3, 4}
        faults = [fault for found in drawn for fault in found.faults]
        assert {fault.what for fault in faults} == set(KINDS[backend])
        assert {fault.what for fault in faults if fault.lasts >= LONG[0]} == set(FREEZES)
        assert len({found.accelerator for found in drawn}) == 2
        assert any(len(set(found.skews)) == 4 for found in drawn) == (CLOUD[0] in KINDS[backend])
