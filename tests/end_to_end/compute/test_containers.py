"""A container image on a VM with GPUs: used where docker knows GPUs, else refused with the reason and what helps."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration import Compute
from kinetic_orchestration.cli import doctor
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware.machines import WITH_DOCKER
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import instances, run
from tests.support.jobs import told

IMAGE = "us-docker.pkg.dev/acme/images/train:7"


def test_a_function_runs_in_its_container_with_the_gpus_of_its_vm(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.variables, "EMULATED_", container_image=IMAGE, cloud=Compute(image=WITH_DOCKER))
    assert job.result(timeout=60) == {"EMULATED_GPUS": "True", "EMULATED_IMAGE": IMAGE}


def test_a_docker_without_nvidias_runtime_ends_the_job_with_its_words_and_an_image_that_has_it(
    cloud: Emulator, jobs: Any
) -> None:
    """It is the image's fault, and the same on every host: no further one is made."""
    cloud.compute.drivers(toolkit=False)
    job = run(jobs.variables, "EMULATED_", container_image=IMAGE, cloud=Compute(image=WITH_DOCKER))
    told(job)
    with pytest.raises(JobError, match=r"could not select device driver") as ended:
        job.result(timeout=60)
    said = str(ended.value)
    assert "could not select device driver" in said
    assert (
        "cloud=Compute(image=…) name one with docker and NVIDIA's toolkit for it, such as family common-cu129" in said
    )
    assert len(job.history()) == 1
    cloud.wait_until_empty(60)
    assert instances(cloud, job) == []


@pytest.mark.parametrize(
    ("image", "state", "found"),
    [
        (WITH_DOCKER, "ok", "has docker and NVIDIA's container toolkit, for us-docker.pkg.dev/acme"),
        ("projects/acme/global/images/family/ours", "warning", "nobody sees before it boots whether projects/acme"),
    ],
)
def test_doctor_says_of_which_images_it_is_known(cloud: Emulator, image: str, state: str, found: str) -> None:
    spec = JobSpec("f", Options("l4", container_image=IMAGE, cloud=Compute(image=image)))
    report = doctor.examine(copies.environ(), spec)
    (check,) = (check for check in report.checks if check.name == "containers")
    assert (check.state, found in check.found) == (state, True)
    assert ("common-cu129-ubuntu-2204-nvidia-580" in (check.fix or check.found)) is True
