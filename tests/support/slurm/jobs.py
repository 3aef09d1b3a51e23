"""Jobs that tests run on a Slurm of their own: submitted, followed into their programs, and gone without a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.platforms.slurm.script import FOLDER
from tests.support.slurm.cluster import Cluster
from tests.support.waits import wait_until

WITHIN = 90.0


def conformance(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test for `-m conformance`; of these the gate plays a tenth at each commit."""
    marked: Callable[..., None] = pytest.mark.conformance(pytest.mark.slow(pytest.mark.turn(test)))
    return marked


def submitted(function: Callable[..., Any], *arguments: Any, **options: Any) -> kinetic.JobHandle[Any]:
    return kinetic.run(**{"accelerator": "cpu", **options})(function).run_async(*arguments)


def begun(programs: ModuleType, folder: Path, **options: Any) -> kinetic.JobHandle[Any]:
    """Submit a job that waits in its first attempt, and return it once the program runs on each host."""
    job = submitted(programs.waits_in, str(folder), **options)
    cloud = options.get("cloud")
    for host in range(cloud.hosts if cloud is not None else 1):
        wait_until((folder / f"runs-1-{host}").exists, "the program runs", within=WITHIN)
    return job


def run_of(home: Path) -> Path:
    """Return the folder of the one attempt that there is."""
    (run,) = (home / FOLDER).glob("kinetic-*")
    return run


def job_of(slurm: Cluster) -> str:
    """Return the id of the one job that Slurm has."""
    (line,) = slurm.jobs()
    return line.split()[0]


def check_nothing_left(slurm: Cluster, home: Path) -> None:
    """Wait until neither Slurm nor the shared folder has anything of a job."""

    def left() -> list[str]:
        return [*slurm.jobs(), *map(str, (home / FOLDER).glob("kinetic-*"))]

    wait_until(lambda: not left(), lambda: f"left behind: {left()}", within=WITHIN)
