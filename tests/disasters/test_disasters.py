"""A few seeds of the random driver; many more by hand, with `python -m tests.disasters`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disasters.__main__ import play, schedule


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("backend", "seed"), [("local", 1), ("local", 2), ("emulator", 1), ("emulator", 2)])
def test_two_to_four_faults_at_once_leave_one_result_and_nothing_else(
    backend: str, seed: int, home: Path, tmp_path: Path
) -> None:
    print(f"seed {seed} on {backend}: {schedule(seed, backend)}")
    play(seed, backend, tmp_path, home)


def test_a_seed_draws_the_same_faults_each_time() -> None:
    for backend in ("local", "emulator"):
        drawn = [schedule(seed, backend) for seed in range(200)]
        assert drawn == [schedule(seed, backend) for seed in range(200)]
        assert {len(found.faults) for found in drawn} == {2, 3, 4}
