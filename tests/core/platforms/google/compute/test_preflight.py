"""The checks of Compute Engine before a job is submitted, and those of `ko doctor`, against the emulated one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.cli import doctor
from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import Compute
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.platforms.google import preflight as google
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.platforms.google.compute.preflight import (
    OF_SLICES,
    PERMISSIONS,
    SET_TAGS,
    USE_ADDRESS,
    USE_SUBNETWORK,
)
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding
from kinetic_orchestration.testing import Emulator

ROOT = Path(__file__).parents[5]
ZONES = "us-central1-a,us-west4-a"
IMAGE = "ubuntu-accelerator-2204-amd64-with-nvidia-580"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.PAUSES", (0.01,))
    monkeypatch.setattr(google, "_passed", {})
    with Emulator(tmp_path / "cloud", hosts=False) as running:
        for name, value in environ_of(running, tmp_path).items():
            monkeypatch.setenv(name, value)
        yield running


def environ_of(cloud: Emulator, home: Path) -> dict[str, str]:
    return {**cloud.environ(backend="compute"), "KINETIC_ZONES": ZONES, "KINETIC_HOME": str(home / "home")}


def found(accelerator: str = "l4", **options: Any) -> dict[str, Finding]:
    """The findings of a diagnosis, by their names."""
    here = settings.load()
    plan = make_plan(JobSpec("train", Options(accelerator=accelerator, **options)), here)
    return {finding.name: finding for finding in ComputeBackend(here).examine(plan)}


def refused(accelerator: str = "l4", **options: Any) -> str:
    """The refusal of a job."""
    here = settings.load()
    with pytest.raises(BackendError) as caught:
        ComputeBackend(here).require(make_plan(JobSpec("train", Options(accelerator=accelerator, **options)), here))
    assert caught.value.cause == "configuration"
    return str(caught.value)


def test_a_project_that_is_ready_passes_and_what_can_be_known_is_told(cloud: Emulator) -> None:
    findings = found()
    assert list(findings) == [
        "credentials", "permissions", "machine type", "image", "subnetwork", "quota", "service account", "bucket",
        "egress", "Secret Manager", "regional quota",
    ]  # fmt: skip
    assert {finding.state for finding in findings.values()} <= {OK, WARNING}, findings
    assert findings["machine type"].found == "g2-standard-4 is offered in us-central1-a"
    assert IMAGE in findings["image"].found
    assert "GPUS_ALL_REGIONS of emulated is" in findings["quota"].found
    assert "NVIDIA_L4_GPUS" in findings["regional quota"].found


def test_doctor_checks_compute_engine_when_it_is_the_backend(cloud: Emulator, tmp_path: Path) -> None:
    checks = doctor.examine(environ_of(cloud, tmp_path)).checks
    names = [check.name for check in checks]
    assert names.count("bucket") == 1
    assert "store" not in names
    assert {"machine type", "image", "quota", "regional quota"} <= set(names)
    assert not [check for check in checks if check.state == FAILED]


def test_doctor_checks_it_for_a_job_that_the_rule_puts_there(cloud: Emulator, tmp_path: Path) -> None:
    environ = environ_of(cloud, tmp_path)
    del environ["KINETIC_BACKEND"]
    cloud.compute.retire(IMAGE)
    checks = doctor.examine(environ, JobSpec("train", Options(accelerator="l4"))).checks
    assert [check.name for check in checks if check.state == FAILED] == ["image"]


def test_a_project_without_quota_for_accelerators_is_refused_before_anything_is_created(cloud: Emulator) -> None:
    cloud.compute.quota("GPUS_ALL_REGIONS", 0)
    said = refused()
    assert "GPUS_ALL_REGIONS of emulated is 0, so that it can have neither GPUs nor TPUs. Ask for some at" in said
    assert "instances.insert" not in [method for method, _ in cloud.requests]


def test_a_quota_that_cannot_be_read_refuses_nothing(cloud: Emulator) -> None:
    cloud.deny("client", "compute.projects.get")
    cloud.deny("client", "compute.regions.get")
    findings = found()
    assert findings["quota"].state == findings["regional quota"].state == OK
    assert "not readable" in findings["quota"].found
    assert "not readable in us-central1" in findings["regional quota"].found


def test_the_quota_of_a_region_is_a_hint_that_names_what_is_short(cloud: Emulator) -> None:
    cloud.compute.quota("NVIDIA_L4_GPUS", 1, "us-central1")
    hint = found("l4x4")["regional quota"]
    assert hint.state == WARNING
    assert "1 in us-central1" in hint.found
    assert hint.fix.startswith("l4x4 needs 4 in us-central1: ask for more at ")


def test_the_quota_of_newer_gpus_is_shown_nowhere_and_taken_for_nothing(cloud: Emulator) -> None:
    assert found("h100x8")["regional quota"].found.startswith("that of h100 is shown nowhere")


def test_an_image_family_that_is_gone_is_named_with_what_helps(cloud: Emulator) -> None:
    cloud.compute.retire(IMAGE)
    assert f"there is no image family projects/ubuntu-os-accelerator-images/global/images/family/{IMAGE}" in refused()


def test_a_machine_that_no_zone_has_is_refused_and_one_zone_is_enough(cloud: Emulator) -> None:
    cloud.compute.lack("us-central1-a", "g2-standard-4")
    assert found()["machine type"].found == "g2-standard-4 is offered in us-west4-a"
    cloud.compute.lack("us-west4-a", "g2-standard-4")
    assert "none of us-central1-a, us-west4-a offers g2-standard-4, the machine of l4" in refused()


def test_a_disk_smaller_than_the_image_is_refused_with_the_images_size(cloud: Emulator) -> None:
    cloud.compute.add_image("emulated", "mine", disk_gib=60, driver="580")
    said = refused(cloud=Compute(image="family/mine", disk_gib=50))
    assert "takes 60 GiB, and the disk has 50" in said


def test_an_image_for_other_processors_is_refused(cloud: Emulator) -> None:
    cloud.compute.add_image("emulated", "arm", disk_gib=10, driver="580", arm=True)
    said = refused(cloud=Compute(image="family/arm"))
    assert "is for Arm processors, and those of g2-standard-4 are x86. Name an image for x86" in said


def test_a_subnetwork_of_another_region_is_refused(cloud: Emulator) -> None:
    cloud.compute.add_network("emulated", "own", "europe-west4")
    said = refused(cloud=Compute(subnetwork="own"))
    assert "there is no projects/emulated/regions/us-central1/subnetworks/own" in said


def test_each_right_that_is_missing_is_named_with_the_role_that_has_it(cloud: Emulator) -> None:
    for permission in PERMISSIONS:
        google._passed.clear()
        cloud.deny("client", permission)
        said = refused()
        assert f"{permission} missing in emulated" in said
        assert "gcloud projects add-iam-policy-binding emulated" in said
        cloud.allow("client", permission)


def test_slices_need_rights_of_groups_too_and_other_jobs_do_not(cloud: Emulator) -> None:
    for permission in OF_SLICES:
        google._passed.clear()
        cloud.deny("client", permission)
        said = refused("v6e-16", backend="compute")
        assert f"{permission} missing in emulated" in said
        if permission.endswith(".delete"):
            assert "they could be made and not be deleted" in said
        assert found()["permissions"].state == OK
        cloud.allow("client", permission)
    google._passed.clear()
    assert found("v6e-16", backend="compute")["permissions"].state == OK


def test_any_zone_of_the_project_may_be_looked_at_and_nothing_else(cloud: Emulator) -> None:
    backend = ComputeBackend(settings.load())
    placement = {"backend": "compute", "project": "emulated", "zone": "europe-west4-a", "name": "n", "hosts": 1}
    assert backend.names_place(placement)
    assert backend.names_place({**placement, "zone": "us-south1-ai1b"})
    assert not backend.names_place({**placement, "project": "another"})
    for zone in ("", "europe-west4", "us-central1-a/instances/other?x=", "../zones/us-central1-a"):
        assert not backend.names_place({**placement, "zone": zone})


def test_a_subnetwork_that_one_of_the_zones_lacks_is_refused_though_the_first_has_it(cloud: Emulator) -> None:
    """Else one stockout in the first zone would end the job."""
    cloud.compute.add_network("emulated", "own", "us-central1")
    said = refused(cloud=Compute(subnetwork="own"))
    assert "there is no projects/emulated/regions/us-west4/subnetworks/own, which a VM in us-west4-a would need" in said


def test_the_role_of_the_page_has_every_right_that_is_asked_for_or_used() -> None:
    page = (ROOT / "docs" / "cloud" / "compute.md").read_text(encoding="utf-8")
    told = page.partition("gcloud iam roles create kineticVms")[2].partition("gcloud projects add-iam")[0]
    granted = set(re.findall(r"[a-z]+(?:\.[a-zA-Z]+)+", told.partition("--permissions=")[2].replace("\\\n", "")))
    used = {*PERMISSIONS, *OF_SLICES, USE_SUBNETWORK, USE_ADDRESS, SET_TAGS}
    reads = {"compute.machineTypes.get", "compute.projects.get", "compute.regions.get"}
    assert used | reads | {"compute.instances.getSerialPortOutput"} <= granted
