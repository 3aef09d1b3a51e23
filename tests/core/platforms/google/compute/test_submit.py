"""Tests what a submitter makes of VMs that it asked for and does not find, against the emulated Compute Engine."""

from __future__ import annotations

from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import Intent, Staged
from kinetic_orchestration.platforms.backend import Freed, Submission
from kinetic_orchestration.platforms.google.compute import states
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import Emulator
from tests.support.jobs import WITHIN

JOB = "job-000000000001"


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("l4", {}, ("pd-balanced", 100)),
        ("l4", {"disk_type": "pd-ssd", "disk_gib": 60}, ("pd-ssd", 60)),
        ("v5p-4", {"disk_type": "hyperdisk-balanced"}, ("hyperdisk-balanced", 100)),
    ],
)
def test_a_vm_boots_from_a_disk_of_the_type_that_its_job_names(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, Any], found: tuple[str, int]
) -> None:
    here = settings.load()
    options = Options(name, backend="compute", cloud=kinetic.Compute(zones=["us-central1-a"], **given))
    backend, plan = ComputeBackend(here), make_plan(JobSpec("train", options), here)
    intent = Intent(1, "0" * 16, backend.place(plan, JOB, 1), 2_000_000_000.0, 0.0)
    asked = Submission(plan, Staged(None, "", "", (), (), (), (), None, ""), JOB, "0" * 64, intent, {})
    assert backend.submit(asked) == ""
    (instance,) = cloud.compute.instances.values()
    assert [(disk.kind, disk.size_gib) for disk in instance.disks] == [found]
    cloud.wait_until(lambda: backend.release(dict(intent.placement)) is Freed.DONE, WITHIN)


def test_a_flex_start_request_that_vanished_unseen_was_a_stockout_whoever_looks_first(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a failure of hosts, which would spend the job's retries: a submit may come before the next observation."""
    cloud.compute.speed_up(7200 * 10.0)
    cloud.compute.stockout()
    here = settings.load()
    options = Options("l4", cloud=kinetic.Compute(flex_start=True), limits=kinetic.Limits(run=3600))
    backend, plan = ComputeBackend(here), make_plan(JobSpec("train", options), here)
    intent = Intent(1, "0" * 16, backend.place(plan, JOB, 1), 2_000_000_000.0, 0.0)
    asked = Submission(plan, Staged(None, "", "", (), (), (), (), None, ""), JOB, "0" * 64, intent, {})
    assert backend.submit(asked) == ""
    cloud.wait_until(lambda: not cloud.compute.instances, WITHIN)
    assert backend.submit(asked).startswith("waiting: us-central1-a has taken the request and not shown")
    monkeypatch.setattr(states, "UNSHOWN", 0.0)
    with pytest.raises(BackendError, match="nothing became free in us-central1-a while the request") as raised:
        backend.submit(asked)
    assert raised.value.cause == wire.STOCKOUT
