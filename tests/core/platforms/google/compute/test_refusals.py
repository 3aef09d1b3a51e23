"""Tests what a submit is refused for at its call, against the emulated Compute Engine: rights of other projects, and rates."""

from __future__ import annotations

import os

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import Intent, Plan, Staged
from kinetic_orchestration.platforms.backend import Backend, Submission
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.platforms.google.tpu.backend import TpuVmBackend
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import Emulator

JOB = "job-000000000001"


@pytest.mark.parametrize(
    ("right", "project", "role"),
    [("subnetworks.use", "network", "networkUser"), ("images.useReadOnly", "images", "imageUser")],
)
def test_what_another_project_does_not_let_a_vm_use_is_told_with_the_grant_in_that_project(
    cloud: Emulator, right: str, project: str, role: str
) -> None:
    cloud.compute.add_network("network", "shared", "us-central1")
    cloud.compute.add_image("images", "own", driver="580")
    cloud.deny("client", f"compute.{right}")
    here = settings.load()
    subnetwork = "projects/network/regions/us-central1/subnetworks/shared"
    other = kinetic.Compute(subnetwork=subnetwork, image="projects/images/global/images/family/own")
    backend, plan = ComputeBackend(here), make_plan(JobSpec("train", Options("l4", cloud=other)), here)
    with pytest.raises(BackendError) as raised:
        backend.submit(asked_for(backend, plan))
    assert raised.value.cause == wire.CONFIGURATION
    grant = f"gcloud projects add-iam-policy-binding {project} --member=user:YOU --role=roles/compute.{role}"
    assert f"the permission compute.{right} is missing: {grant}" in str(raised.value)


def asked_for(backend: Backend, plan: Plan) -> Submission:
    """Return what a client submits of a plan's first attempt."""
    intent = Intent(1, "0" * 16, backend.place(plan, JOB, 1), 2_000_000_000.0, 0.0)
    return Submission(plan, Staged(None, "", "", (), (), (), (), None, ""), JOB, "0" * 64, intent, {})


def test_a_rate_of_compute_engine_that_is_used_up_slows_no_call_of_cloud_tpu(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may have the same project, zone and accelerator."""
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries._throttled", {})
    here = settings.load({**os.environ, "KINETIC_BACKEND": ""})
    backends = {"compute": ComputeBackend(here), "tpu-vm": TpuVmBackend(here)}
    plans = {name: make_plan(JobSpec("train", Options("v6e-4", backend=name)), here) for name in backends}
    cloud.compute.request_rate(0)
    told = {name: backend.submit(asked_for(backend, plans[name])) for name, backend in backends.items()}
    assert told["compute"].startswith("waiting: Quota exceeded for quota group 'ReadGroup'"), told
    assert backends["compute"].submit(asked_for(backends["compute"], plans["compute"])).startswith("waiting: the rate")
    assert told["tpu-vm"] == "" and cloud.count("CreateQueuedResource") == 1
    paces = {backend.rate_limit(backend.place(plans[name], JOB, 1)) for name, backend in backends.items()}
    assert len(paces) == 2 and None not in paces
    cloud.compute.request_rate(None)
    backends["tpu-vm"].release(backends["tpu-vm"].place(plans["tpu-vm"], JOB, 1))
