"""The release of VMs of Compute Engine, on the emulated one."""

from __future__ import annotations

from typing import Any

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import Freed, Intent, Plan, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.testing import Emulator
from tests.support.jobs import WITHIN

JOB = "job-000000000001"


def made(cloud: Emulator) -> tuple[ComputeBackend, dict[str, Any]]:
    """A backend, and the placement of a VM that runs."""
    here = settings.load()
    backend, plan = ComputeBackend(here), make_plan(JobSpec("train", Options(accelerator="l4")), here)
    placement = backend.place(plan, JOB, 1)
    assert backend.submit(submission(plan, placement)) == ""
    cloud.wait_until(lambda: cloud.compute.chosen(placement["name"]).status == "RUNNING", WITHIN)
    return backend, placement


def submission(plan: Plan, placement: dict[str, Any]) -> Submission:
    staged = Staged(None, "", "", (), (), (), (), None, "")
    return Submission(plan, staged, JOB, "0" * 64, Intent(1, "0" * 16, placement, 2_000_000_000.0, 0.0), {})


def test_a_vm_that_stops_by_itself_is_deleted_and_not_taken_for_deleted(cloud: Emulator) -> None:
    """It would stay TERMINATED, with a disk that is billed."""
    backend, placement = made(cloud)
    cloud.compute.shut_down(placement["name"], 0.5)
    assert backend.release(placement) is Freed.UNDER_WAY
    cloud.wait_until_empty(WITHIN)


def test_a_disk_that_is_left_and_may_not_be_deleted_is_asked_for_again(cloud: Emulator) -> None:
    backend, placement = made(cloud)
    cloud.compute.chosen(placement["name"]).disks[0].auto_delete = False  # as nobody asks for, and a person may set
    cloud.deny("client", "compute.disks.delete")
    assert not backend.release(placement)
    cloud.wait_until(lambda: not cloud.compute.instances, WITHIN)
    assert backend.release(placement) is Freed.REFUSED
    cloud.allow("client", "compute.disks.delete")
    assert backend.release(placement) is Freed.UNDER_WAY
