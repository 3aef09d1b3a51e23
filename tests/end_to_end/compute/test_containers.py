"""A container image on a VM with GPUs: used where docker knows GPUs, else refused with the reason and what helps."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration import Compute
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.cli import doctor
from kinetic_orchestration.errors import JobCancelled, JobError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware.machines import WITH_DOCKER
from kinetic_orchestration.platforms.google.compute.client import Instances
from kinetic_orchestration.protocol import attempt_rules, wire
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import NONE, ZONES, instances, run, vm
from tests.support.jobs import lines, told, verdicts, wait_running
from tests.support.waits import wait_until

IMAGE = "us-docker.pkg.dev/acme/images/train:7"
OLD_PYTHON = "the agent needs Python 3.10 or later, and this is 3.8"
NO_PYTHON = 'docker: Error response from daemon: exec: "python3": executable file not found in $PATH: unknown.'
DENIED = 'denied: Permission "artifactregistry.repositories.downloadArtifacts" denied on resource'
UNKNOWN = "Error response from daemon: manifest for us-docker.pkg.dev/acme/images/train:7 not found: manifest unknown"


def contained(function: Any, *arguments: Any, **options: Any) -> JobHandle[Any]:
    """A job in a container, on a VM that can have some."""
    cloud = Compute(image=WITH_DOCKER, **options.pop("cloud", {}))
    return run(function, *arguments, container_image=IMAGE, cloud=cloud, **options)


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


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.parametrize(
    ("docker", "says"),
    [
        ({"refuses": DENIED}, "roles/artifactregistry.reader"),
        ({"refuses": UNKNOWN}, f"there is no image {IMAGE}"),
        ({"exits": 127, "says": NO_PYTHON}, "name an image that has Python 3.10 or later as python3"),
        ({"exits": 126, "says": OLD_PYTHON}, "name an image that has Python 3.10 or later as python3"),
    ],
    ids=["a pull that is denied", "no such image", "no Python", "an old Python"],
)
def test_an_image_that_no_host_can_run_ends_the_job_with_what_docker_said_and_what_helps(
    cloud: Emulator, jobs: Any, docker: dict[str, Any], says: str
) -> None:
    cloud.compute.docker(**docker)
    job = contained(jobs.attempt)
    told(job)
    with pytest.raises(JobError) as ended:
        job.result(timeout=60)
    assert says in str(ended.value) and docker.get("refuses", docker.get("says")) in str(ended.value)
    assert [verdict.cause for verdict in verdicts(job)] == [wire.CONFIGURATION]
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn(2)
def test_a_pull_that_fails_in_passing_is_made_again(cloud: Emulator, jobs: Any) -> None:
    cloud.compute.docker(refuses="error pulling image: net/http: TLS handshake timeout", times=2)
    job = contained(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert len(job.history()) == 1


@pytest.mark.slow
@pytest.mark.turn(0)
def test_a_container_that_dies_is_told_with_its_code_and_another_attempt_follows(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = contained(jobs.until, str(end))
    wait_running(job)
    assert vm(cloud, job).kill("^kinetic-guard"), "the container's first process ends with it"
    end.touch()
    assert job.result(timeout=90) == 2
    first = verdicts(job)[0]
    assert first.cause == wire.INFRASTRUCTURE
    assert f"has lost its container: docker run {IMAGE} ended with exit code 137" in first.reason


@pytest.mark.slow
@pytest.mark.turn(0)
def test_the_program_of_a_container_that_ignores_every_request_is_ended_by_a_cancel(cloud: Emulator, jobs: Any) -> None:
    job = contained(jobs.stubborn, 300.0)
    wait_running(job)
    began = time.monotonic()
    job.cancel()
    with pytest.raises(JobCancelled):
        job.result(timeout=90)
    assert time.monotonic() - began < attempt_rules.GRACE[wire.CANCELLED] + 30.0
    assert len(verdicts(job)) == 1
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn(1)
@pytest.mark.filterwarnings("ignore:the 2 hosts of l4 are joined over plain TCP")
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("did", ["deleted", "stopped"])
def test_whoever_ends_the_vm_of_a_container_is_named(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts: int, did: str
) -> None:
    """Its guest is shut down first, and the container with it: of that the job did not die."""
    job = contained(jobs.until, str(tmp_path / "never"), cloud={"hosts": hosts})
    wait_running(job)
    name = sorted(instances(cloud, job))[-1]
    with ThreadPoolExecutor(1) as follower:
        value = follower.submit(job.result, timeout=90)
        if did == "stopped":
            cloud.compute.stop(name)
        else:
            Instances(settings.load()).delete(next(path for path in cloud.compute.instances if path.endswith(name)))
        with pytest.raises(JobCancelled, match=rf"{name} in {ZONES[0]} is .*: user@emulated\.example {did} it"):
            value.result()
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn(9)
def test_a_program_in_a_container_is_told_of_a_preemption_and_its_last_lines_arrive(cloud: Emulator, jobs: Any) -> None:
    job = contained(jobs.has_last_words, spot=True, retry=NONE)
    wait_running(job)
    wait_until(lambda: "ready" in (job.logs() or ""), "its first line")
    cloud.compute.preempt(*instances(cloud, job))
    assert lines(told(job)).endswith("last word 99\nand the very last")
    assert verdicts(job)[0].cause == wire.PREEMPTION


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
