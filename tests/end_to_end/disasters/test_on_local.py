"""A few seeds of the random driver on this machine; many more by hand, with `python -m tests.end_to_end.disasters`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.disasters import __main__ as program
from tests.end_to_end.disasters import test_on_compute, test_on_emulator, work
from tests.end_to_end.disasters.__main__ import main
from tests.end_to_end.disasters.run import Told, play, were_made
from tests.end_to_end.disasters.schedule import (
    BACKENDS,
    FROZEN,
    GROUPS,
    KEEP,
    KEEPING,
    KINDS,
    LASTING,
    LONG,
    MODELS,
    QUOTA,
    RACES,
    REAL,
    SHARED,
    STOCKOUT,
    schedule,
)

SEEDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.turn(seed % 5)) for seed in SEEDS])
def test_two_to_four_faults_at_once_leave_one_result_and_nothing_else(
    seed: int, own_home: Path, tmp_path: Path, whole: dict[int, Told]
) -> None:
    print(f"seed {seed}: {schedule(seed, 'local')}")
    whole[seed] = play(seed, "local", tmp_path, own_home)
    print(whole[seed])


@pytest.mark.slow
@pytest.mark.turn(6)
@pytest.mark.timeout(1200)
def test_full_disks_of_the_home_and_of_single_hosts_were_among_them(
    own_home: Path, tmp_path: Path, whole: dict[int, Told]
) -> None:
    for seed in SEEDS:
        if seed not in whole and schedule(seed, "local").disks:  # where this test is asked for alone
            whole[seed] = play(seed, "local", tmp_path, own_home)
    were_made(whole)


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.timeout(300)
def test_a_follower_that_stood_still_was_among_them(own_home: Path, tmp_path: Path, whole: dict[int, Told]) -> None:
    (seed,) = [seed for seed in SEEDS if schedule(seed, "local").freezes_a_follower]
    told = whole[seed] if seed in whole else play(seed, "local", tmp_path, own_home)
    assert FROZEN in told.hit


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.timeout(300)
def test_where_nothing_can_be_mounted_each_fault_that_could_not_be_made_is_told_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def shared_disk(folder: Path) -> Iterator[Path]:
        (folder / "home").mkdir(parents=True, mode=0o700)
        yield folder / "home"

    monkeypatch.setattr(program, "own_disk", shared_disk)
    monkeypatch.setattr(sys, "argv", ["disasters", "--seed", "2", "--runs", "1"])
    assert main() == 0
    said = capsys.readouterr().out
    assert "hit: kill submitter; COULD NOT BE MADE HERE: full disk of one host, full disk of one host\n" in said
    assert said.endswith("1 runs from 2 on, 0 broken, 2 faults could not be made on this machine\n")
    one = Told(1, ["kill submitter"], ["full disk of one host"])
    with pytest.raises(pytest.skip.Exception, match="no small file system can be mounted here"):
        were_made({2: one})
    with pytest.raises(AssertionError, match="were hit by none"):
        were_made({2: one._replace(unmade=[])})
    were_made({2: one._replace(hit=["full disk of one host"])})


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "mistake", "told"),
    [
        (58, work.ANOTHER_JOB, "the results are"),
        (8, work.NOT_AGAIN, "a job that has attempts left has ended"),
        (2, work.ITS_OWN, "the function is said to have failed"),
    ],
)
def test_a_mistake_is_found_and_its_seed_is_told(
    seed: int, mistake: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test the driver: its jobs get another key each time, or no retries; without the mistake the same run is a good
    one."""
    monkeypatch.setenv(work.PLANTED, mistake)
    monkeypatch.setattr(sys, "argv", ["disasters", "--seed", str(seed), "--runs", "1"])
    assert main() == 1
    said = capsys.readouterr().out
    assert f"seed {seed}: {schedule(seed, 'local')}\n  BROKEN: Broken: {told}" in said
    assert f"1 runs from {seed} on, 1 broken" in said


def test_a_seed_draws_the_same_faults_each_time_and_seeds_draw_all_there_are() -> None:
    for backend in BACKENDS:
        drawn, kinds = [schedule(seed, backend) for seed in range(300)], KINDS[backend.removesuffix(REAL)]
        assert drawn == [schedule(seed, backend.removesuffix(REAL)) for seed in range(300)]
        has_slices, has_choices = backend == "compute", backend == "emulator"
        # One more of a slice or of processes that share a VM; of choices a lack, and a preemption by which it is met.
        more = [5] if has_slices else [5, 6] if has_choices else []
        assert {len(found.faults) for found in drawn} == {2, 3, 4, *more}
        faults = [fault for found in drawn for fault in found.faults]
        assert {fault.what for fault in faults} == {
            *kinds,
            *((*GROUPS, *SHARED) if has_slices else ()),
            *((STOCKOUT, QUOTA) if has_choices else ()),
        }
        assert {fault.what for fault in faults if fault.lasts >= LONG[0]} == set(LASTING) & set(kinds)
        is_cluster = backend.startswith("kubernetes")
        hosts = {1, 2, 4} if is_cluster or has_slices else {1, 4}
        assert {found.hosts for found in drawn} == hosts
        assert len({found.accelerator for found in drawn}) == (3 if has_slices else len(hosts))
        assert any(found.others for found in drawn) == any(found.share for found in drawn) == has_choices
        assert {found.keep for found in drawn} == ({"", KEEP} if backend in KEEPING else {""})
        races = [schedule(seed, backend, races=True) for seed in range(300)]
        assert {found.race for found in races} == ({2} if backend in RACES else {1})
        assert {found.model for found in drawn} == (set(MODELS) if has_slices else {""})
        assert len({(found.is_spot, found.in_queue) for found in drawn}) == (4 if is_cluster else 1)
        assert any(len(set(found.skews)) == 4 for found in drawn) == (backend in ("emulator", "compute"))


def test_each_turn_plays_jobs_that_keep_their_slices_and_jobs_that_race() -> None:
    played = (("emulator", test_on_emulator), ("compute", test_on_compute))
    keeping = {seed % 5 for seed in test_on_emulator.SEEDS if schedule(seed, "emulator").keep}
    racing = {seed % 5 for _, of in played for seed in of.RACED}
    assert keeping == racing == {*range(5)}
    assert any(schedule(seed, backend, races=True).keep for backend, of in played for seed in of.RACED), "both at once"
