"""Two places at once on an emulated Compute Engine: VMs that are made one by one, and slices of TPUs by groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import ZONES, instances, run
from tests.support.jobs import placements, verdicts, wait_running
from tests.support.waits import wait_until

TWO_ZONES = ZONES[:2]


def started(job: Any) -> list[str]:
    found = job._job.store.list(f"{names.job(job.job_id)}out/")
    return [one.name for one in found if one.name.endswith("started.json")]


def test_a_vm_of_the_second_zone_runs_while_the_first_has_none(cloud: Emulator, jobs: Any) -> None:
    cloud.compute.stockout(ZONES[0])
    job = run(jobs.attempt, race=2, cloud=kinetic.Compute(zones=list(TWO_ZONES)))
    assert job.result(timeout=150) == 1
    assert job.zone == ZONES[1]
    (placement,) = placements(job)
    assert [placement["zone"], *(one["zone"] for one in placement["rivals"])] == list(TWO_ZONES)
    assert [one.kind for one in verdicts(job)] == [wire.COMMITTED]


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize(
    ("accelerator", "hosts"), [("l4", 1), ("v6e-16", 4)], ids=["one VM each", "a group of four each"]
)
def test_both_have_their_hosts_and_one_program_runs(
    cloud: Emulator, jobs: Any, tmp_path: Path, accelerator: str, hosts: int
) -> None:
    job = run(
        jobs.until, str(tmp_path / "go"), accelerator=accelerator, race=2, cloud=kinetic.Compute(zones=list(TWO_ZONES))
    )
    wait_running(job)
    wait_until(lambda: job.status() is not JobStatus.FAILED and len(instances(cloud, job)) == hosts, "one is left")
    (tmp_path / "go").touch()
    assert job.result(timeout=150) == 1
    assert len(started(job)) == hosts
    assert [one.kind for one in verdicts(job)] == [wire.COMMITTED]


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.filterwarnings("ignore:the 2 hosts of l4 are joined over plain TCP")
def test_several_hosts_with_gpus_race(cloud: Emulator, jobs: Any) -> None:
    options = kinetic.Compute(zones=list(TWO_ZONES), hosts=2)
    job = run(jobs.writes_lines, 2, race=2, cloud=options)
    assert job.result(timeout=150) == 2
    assert len(started(job)) == 2


@pytest.mark.slow
@pytest.mark.turn
def test_a_cancel_withdraws_both(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    job = run(jobs.until, str(tmp_path / "never"), race=2, cloud=kinetic.Compute(zones=list(TWO_ZONES)))
    wait_running(job)
    job.cancel()
    assert job.status() is JobStatus.CANCELLED
    wait_until(lambda: not instances(cloud, job), "nothing is left")
