"""The checks of Compute Engine before a job is submitted, and those of `kinor doctor`, against the emulated one."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.cli import codes, doctor, main
from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import Compute
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.platforms.google import preflight as google
from kinetic_orchestration.platforms.google import vms
from kinetic_orchestration.platforms.google.compute import request
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.platforms.google.compute.client import Instances
from kinetic_orchestration.platforms.google.compute.preflight import (
    OF_SLICES,
    PERMISSIONS,
    SET_TAGS,
    USE_ADDRESS,
    USE_IMAGE,
    USE_SUBNETWORK,
)
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding
from kinetic_orchestration.testing import Emulator, Refusal

ROOT = Path(__file__).parents[5]
ZONES = "us-central1-a,us-west4-a"
IMAGE, IMAGES = "ubuntu-accelerator-2204-amd64-with-nvidia-580", "ubuntu-os-accelerator-images"


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


def test_doctor_checks_the_accelerator_that_is_named_as_spot_if_that_is_asked(
    cloud: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.compute.quota("PREEMPTIBLE_NVIDIA_A100_GPUS", 0, "us-central1")
    cloud.compute.lack("us-central1-a", "n1-standard-4")
    cloud.compute.lack("us-west4-a", "n1-standard-4")
    assert main(["doctor", "--accelerator", "t4"]) == codes.ENVIRONMENT
    assert "none of us-central1-a, us-west4-a offers n1-standard-4, the machine of t4" in capsys.readouterr().out
    assert main(["doctor", "--accelerator", "a100"]) == codes.OK
    assert "  NVIDIA_A100_GPUS: " in capsys.readouterr().out
    assert main(["doctor", "--accelerator", "a100", "--spot"]) == codes.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "PREEMPTIBLE_NVIDIA_A100_GPUS: 0 in us-central1" in shown and "a100 needs 1 of PREEMPTIBLE" in shown
    assert main(["doctor", "--accelerator", "h100"]) == codes.ENVIRONMENT
    assert "h100 (a3-highgpu-1g) does not come on demand: add spot=True" in capsys.readouterr().out
    assert main(["doctor", "--accelerator", "h100", "--spot"]) == codes.OK
    assert main(["doctor", "--spot"]) == codes.USAGE
    assert "--spot asks how an accelerator comes: name it, too" in capsys.readouterr().err


def test_a_project_without_quota_for_accelerators_is_refused_before_anything_is_created(cloud: Emulator) -> None:
    cloud.compute.quota("GPUS_ALL_REGIONS", 0)
    said = refused()
    assert "GPUS_ALL_REGIONS of emulated is 0, so that it can have neither GPUs nor TPUs. Ask for some at" in said
    assert "instances.insert" not in [method for method, _ in cloud.requests]


def test_a_quota_refuses_no_job_that_may_take_something_else(cloud: Emulator) -> None:
    """It is told as late as by the create call, when the next choice follows."""
    cloud.compute.quota("GPUS_ALL_REGIONS", 0)
    here = settings.load()
    plan = make_plan(JobSpec("train", Options(accelerator=["l4", "a100"])), here)
    for one in plan.each():
        ComputeBackend(here).require(one)
    assert "GPUS_ALL_REGIONS of emulated is 0" in refused("a100"), "what has passed for a choice has not for a job"


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
    assert hint.fix.startswith("l4x4 needs 4 of NVIDIA_L4_GPUS in us-central1: ask for more at ")


@pytest.mark.filterwarnings("ignore:the 2 hosts of a100 are joined over plain TCP")
def test_processors_and_disks_that_are_short_are_told_beside_the_quota_of_the_gpus(cloud: Emulator) -> None:
    told = found("a100")["regional quota"]
    assert (told.state, "A2_CPUS" in told.found, "SSD_TOTAL_GB" in told.found) == (OK, False, False)
    cloud.compute.quota("A2_CPUS", 12, "us-central1")
    assert found("a100")["regional quota"].state == OK
    hint = found("a100", cloud=Compute(hosts=2))["regional quota"]
    assert (
        "NVIDIA_A100_GPUS: 1000 in us-central1, 0 used; " in hint.found and "A2_CPUS: 12 in us-central1" in hint.found
    )
    assert hint.fix.startswith("a100 on 2 VMs needs 24 of A2_CPUS in us-central1: ask for more at ")
    cloud.compute.quota("SSD_TOTAL_GB", 500, "us-west4")
    hint = found("h100x8", cloud=Compute(disk_gib=600))["regional quota"]
    assert hint.found.startswith("that of h100 is shown nowhere") and "SSD_TOTAL_GB: 500 in us-west4" in hint.found
    assert hint.fix.startswith("h100x8 needs 600 of SSD_TOTAL_GB in us-west4: ask for more at ")
    assert found("b200x8", cloud=Compute(disk_gib=600))["regional quota"].state == OK, "its disk is no PD"


def test_the_quota_of_newer_gpus_is_shown_nowhere_and_taken_for_nothing(cloud: Emulator) -> None:
    assert found("h100x8")["regional quota"].found.startswith("that of h100 is shown nowhere")


def test_an_image_family_that_is_gone_is_named_with_what_helps(cloud: Emulator) -> None:
    cloud.compute.retire(IMAGE)
    said = refused()
    assert (
        f"image: there is no image family projects/{IMAGES}/global/images/family/{IMAGE}, or not for you. Name" in said
    )
    assert f"gcloud compute images list --project {IMAGES} --show-deprecated" in said
    said = refused(cloud=Compute(image="family/mine"))
    assert "gcloud compute images list --project emulated --show-deprecated" in said


def test_a_machine_that_no_zone_has_is_refused_and_one_zone_is_enough(cloud: Emulator) -> None:
    cloud.compute.lack("us-central1-a", "g2-standard-4")
    assert found()["machine type"].found == "g2-standard-4 is offered in us-west4-a"
    cloud.compute.lack("us-west4-a", "g2-standard-4")
    assert "none of us-central1-a, us-west4-a offers g2-standard-4, the machine of l4. Name zones" in refused()


def test_a_zone_that_is_none_is_told_as_that(cloud: Emulator) -> None:
    cloud.compute.lack("us-west4-a", "g2-standard-4")
    said = refused(cloud=Compute(zones=["us-west4-a", "us-central1-x"]))
    assert (
        "none of us-west4-a, us-central1-x offers g2-standard-4, the machine of l4; us-central1-x is no zone. " in said
    )


def test_gpus_that_are_attached_are_asked_for_apart_from_the_machine_which_every_zone_has(cloud: Emulator) -> None:
    assert found("t4")["machine type"].found == "n1-standard-4 with nvidia-tesla-t4 is offered in us-central1-a"
    cloud.compute.lack("us-central1-a", "nvidia-tesla-t4")
    assert found("t4")["machine type"].found == "n1-standard-4 with nvidia-tesla-t4 is offered in us-west4-a"
    cloud.compute.lack("us-west4-a", "nvidia-tesla-t4")
    said = refused("t4")
    assert "none of us-central1-a, us-west4-a offers nvidia-tesla-t4, the GPUs of t4" in said
    assert "gcloud compute accelerator-types list --filter=name=nvidia-tesla-t4" in said


def test_a_disk_smaller_than_the_image_is_refused_with_the_images_size(cloud: Emulator) -> None:
    cloud.compute.add_image("emulated", "mine", disk_gib=60, driver="580")
    said = refused(cloud=Compute(image="family/mine", disk_gib=50))
    assert "takes 60 GiB, and the disk has 50" in said
    assert said.endswith("Name a disk of 60 GiB or more with cloud=Compute(disk_gib=…), or leave it out")


def test_a_disk_that_is_too_small_by_default_is_not_advised(cloud: Emulator) -> None:
    cloud.compute.add_image("emulated", "large", disk_gib=500, driver="580")
    for options in ({}, {"disk_gib": 200}):
        said = refused(cloud=Compute(image="family/large", **options))
        assert said.endswith("Name a disk of 500 GiB or more with cloud=Compute(disk_gib=…)")


def test_an_image_for_other_processors_is_refused(cloud: Emulator) -> None:
    cloud.compute.add_image("emulated", "arm", disk_gib=10, driver="580", arm=True)
    said = refused(cloud=Compute(image="family/arm"))
    assert "is for Arm processors, and those of g2-standard-4 are x86. Name an image for x86" in said


def test_a_subnetwork_of_another_region_is_refused(cloud: Emulator) -> None:
    cloud.compute.add_network("emulated", "own", "europe-west4")
    said = refused(cloud=Compute(subnetwork="own"))
    assert (
        "there is no projects/emulated/regions/us-central1/subnetworks/own, which a VM in us-central1-a would" in said
    )
    assert "would need; of that name there is one in europe-west4, for zones of that region" in said
    cloud.compute.add_network("emulated", "own", "asia-east1")
    assert "of that name there are some in asia-east1, europe-west4, each for zones of its region" in refused(
        cloud=Compute(subnetwork="own")
    )


def test_a_subnetwork_that_no_region_has_is_told_as_such_and_one_that_may_not_be_looked_for_is_not(
    cloud: Emulator,
) -> None:
    at = "there is no projects/emulated/regions/us-central1/subnetworks/own, which a VM in us-central1-a would need"
    assert f"{at}; no region has one of that name" in refused(cloud=Compute(subnetwork="own"))
    cloud.deny("client", "compute.subnetworks.list")
    said = refused(cloud=Compute(subnetwork="own"))
    assert at in said and "that name" not in said


@pytest.mark.parametrize(
    "path", ["regions/us-central1/subnetworks/own", "projects/emulated/regions/us-central1/subnetworks/own"]
)
def test_a_subnetwork_by_a_path_is_the_projects_own_if_that_names_no_other(cloud: Emulator, path: str) -> None:
    cloud.compute.add_network("emulated", "own", "us-central1")
    seen = found(cloud=Compute(subnetwork=path, zones=["us-central1-a"]))["subnetwork"]
    assert seen == Finding("subnetwork", OK, "projects/emulated/regions/us-central1/subnetworks/own")
    cloud.deny("client", "compute.subnetworks.use")
    assert "compute.subnetworks.use missing" in refused(cloud=Compute(subnetwork=path, zones=["us-central1-a"]))


def test_a_network_that_gives_a_vm_no_subnetwork_is_refused_before_anything_is_created(cloud: Emulator) -> None:
    cloud.compute.add_network("emulated", "own", "us-central1")
    said = refused(cloud=Compute(network="own"))
    assert "projects/emulated/global/networks/own has no subnetworks but those that somebody made, and a VM" in said
    assert "Name one of the zone's region with cloud=Compute(subnetwork=…), or KINETIC_SUBNETWORK" in said
    assert "instances.insert" not in [method for method, _ in cloud.requests]


def test_a_network_that_is_not_there_is_refused_with_the_list_of_those_that_are(cloud: Emulator) -> None:
    """Also the usual one, which new projects of some organizations do not have."""
    said = refused(cloud=Compute(network="none"))
    assert "there is no projects/emulated/global/networks/none, and each VM needs a network. Name one that is" in said
    assert "gcloud compute networks list" in said
    cloud.fail("networks.get", 5)
    assert "there is no projects/emulated/global/networks/default, and each VM needs a network" in refused()
    assert found()["subnetwork"].found == "that of projects/emulated/global/networks/default in each zone's region"


def test_a_network_that_may_not_be_looked_at_refuses_nothing(cloud: Emulator) -> None:
    cloud.deny("client", "compute.networks.get")
    seen = found(cloud=Compute(network="own"))["subnetwork"]
    assert seen.state == OK and "cannot be looked at" in seen.found


def test_vms_without_addresses_take_subnetworks_from_which_the_bucket_is_reached(cloud: Emulator) -> None:
    """Else they boot, cost money and never speak. A subnetwork of Google's is made without that access."""
    inside = Compute(external_ips=False)
    cloud.compute.enable_private_access("emulated", "us-central1")
    seen = found(cloud=inside)["subnetwork"]
    assert seen.state == WARNING
    assert "projects/emulated/regions/us-west4/subnetworks/default has no Private Google Access, by which" in seen.found
    assert "subnets update default --project=emulated --region=us-west4 --enable-private-ip-google-access" in seen.fix
    cloud.compute.enable_private_access("emulated", "us-west4")
    assert found(cloud=inside)["subnetwork"].state == OK
    cloud.compute.add_network("emulated", "own", "us-central1", "us-west4")
    seen = found(cloud=Compute(external_ips=False, subnetwork="own"))["subnetwork"]
    assert seen.state == WARNING and "--region=us-central1" in seen.fix
    assert found(cloud=Compute(subnetwork="own"))["subnetwork"].state == OK  # VMs with addresses need no such access


def test_a_quota_of_all_regions_that_is_smaller_than_a_job_refuses_it_and_one_that_is_in_use_is_a_hint(
    cloud: Emulator,
) -> None:
    """Else the job would ask for its VMs for hours, and none could ever be made."""
    cloud.compute.quota("GPUS_ALL_REGIONS", 3)
    assert "GPUS_ALL_REGIONS of emulated is 3, and l4x4 needs 4. Name fewer, or ask for more at" in refused("l4x4")
    with pytest.warns(UserWarning, match="joined over plain TCP"):
        said = refused("l4x2", cloud=Compute(hosts=2))
    assert "GPUS_ALL_REGIONS of emulated is 3, and l4x2" in said and "needs 4" in said
    cloud.compute.quota("GPUS_ALL_REGIONS", 5)
    assert found("l4x4")["quota"].state == OK
    here = settings.load()
    plan = make_plan(JobSpec("other", Options(accelerator="l4x2")), here)
    placement = ComputeBackend(here).place(plan, "job-000000000000", 1)
    (body,) = request.render(vms.would_submit(plan, placement))
    Instances(here).insert(f"{request.zone_of(placement)}/instances", body, str(uuid.uuid4()))
    hint = found("l4x4")["quota"]
    assert (hint.state, hint.found) == (WARNING, "GPUS_ALL_REGIONS of emulated is 5, of which 2 are used")
    assert hint.fix.startswith("l4x4 needs 4: wait until some are free, or ask for more at ")


def reserved(name: str = "mine", *, bound: bool = False) -> Compute:
    return Compute(reservation=name, reservation_bound=bound)


def test_a_reservation_that_was_booked_for_a_time_is_asked_for_vms_that_end_with_it(cloud: Emulator) -> None:
    cloud.compute.add_reservation("emulated", "us-central1-a", "mine", "a3-ultragpu-8g", 2, bound=True)
    said = refused("h200x8", cloud=reserved())
    assert "mine was booked for a time (its deployment is DENSE), and gives no VM that may outlive it" in said
    assert "Say cloud=Compute(reservation_bound=True)" in said
    told = found("h200x8", cloud=reserved(bound=True))["reservation"]
    assert told.state == OK
    assert told.found == "projects/emulated/zones/us-central1-a/reservations/mine, of which 2 are free"


def test_a_reservation_is_looked_at_before_anything_is_created(cloud: Emulator) -> None:
    said = refused("h100x8", cloud=reserved())
    assert "there is no projects/emulated/zones/us-central1-a/reservations/mine" in said
    cloud.compute.add_reservation("emulated", "us-central1-a", "mine", "a3-megagpu-8g", 1)
    assert "mine has machines of type a3-megagpu-8g, and h100x8 is a3-highgpu-8g" in refused("h100x8", cloud=reserved())
    cloud.compute.add_reservation("emulated", "us-central1-a", "mine", "a3-highgpu-8g", 1, status="CREATING")
    told = found("h100x8", cloud=reserved())["reservation"]
    assert (told.state, "is CREATING, and gives VMs once it is READY" in told.found) == (WARNING, True)
    cloud.compute.add_reservation("emulated", "us-central1-a", "mine", "a3-highgpu-8g", 0)
    told = found("h100x8", cloud=reserved())["reservation"]
    assert (told.state, "has 0 free of 1: the job waits for the others" in told.found) == (WARNING, True)
    assert "instances.insert" not in [method for method, _ in cloud.requests]


def test_a_reservation_is_looked_at_where_its_path_says_also_in_another_project(cloud: Emulator) -> None:
    cloud.compute.add_reservation("owner", "us-east4-a", "theirs", "g2-standard-4", 3)
    findings = found(cloud=reserved("projects/owner/zones/us-east4-a/reservations/theirs"))
    assert findings["reservation"].state == OK
    assert findings["machine type"].found == "g2-standard-4 is offered in us-east4-a"
    cloud.deny("client", "compute.reservations.get")
    told = found(cloud=reserved("projects/owner/zones/us-east4-a/reservations/theirs"))["reservation"]
    assert (told.state, "compute.reservations.get" in told.found) == (WARNING, True)


SCOPELESS = Refusal(
    7, "Request had insufficient authentication scopes.",
    {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT"},
)  # fmt: skip


@pytest.mark.parametrize("account", ["", "trainer@emulated.iam.gserviceaccount.com"])
def test_a_missing_scope_is_told_as_what_it_is_and_no_role_is_blamed(
    cloud: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: str
) -> None:
    monkeypatch.setenv("KINETIC_SERVICE_ACCOUNT", account)
    cloud.fail("*", refusal=SCOPELESS, times=None)
    told = {name: finding for name, finding in found().items() if finding.state != OK}
    checks = doctor.examine({**environ_of(cloud, tmp_path), "KINETIC_SERVICE_ACCOUNT": account}).checks
    said = [f"{finding.found} {finding.fix}" for finding in told.values()]
    said += [f"{check.found} {check.fix}" for check in checks if check.state != OK]
    refusal = refused()
    cloud.clear_faults()
    assert told["permissions"].state == FAILED
    assert "permissions, machine type, image: Request had insufficient authentication scopes" in refusal
    assert refusal.count("insufficient authentication scopes") == refusal.count("have not the scope") == 1
    for text in (refusal, told["permissions"].fix, told["service account"].fix):
        assert "have not the scope https://www.googleapis.com/auth/cloud-platform" in text
    for text in (refusal, *said):
        assert not re.search(r"roles/|actAs", text), text


def test_each_right_that_is_missing_is_named_with_the_role_that_has_it(cloud: Emulator) -> None:
    for permission in PERMISSIONS:
        google._passed.clear()
        cloud.deny("client", permission)
        said = refused()
        assert f"{permission} missing in emulated" in said
        assert "gcloud projects add-iam-policy-binding emulated" in said
        cloud.allow("client", permission)


def test_credentials_without_the_scope_are_told_so_and_not_to_ask_for_a_role(cloud: Emulator) -> None:
    """As those of a VM that was created with narrow scopes: no role helps."""
    cloud.fail("TestIamPermissions", times=None, refusal=without_scope())
    said = refused()
    assert "these credentials have not the scope https://www.googleapis.com/auth/cloud-platform" in said.lower()
    assert "gcloud auth application-default login" in said and "add-iam-policy-binding" not in said
    assert "instances.insert" not in [method for method, _ in cloud.requests]


def without_scope() -> Refusal:
    """The answer of any of Google's APIs to a token that has not the scope."""
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "ACCESS_TOKEN_SCOPE_INSUFFICIENT",
        "domain": "googleapis.com", "metadata": {"service": "cloudresourcemanager.googleapis.com"},
    }  # fmt: skip
    return Refusal(7, "Request had insufficient authentication scopes.", info)


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
    used = {*PERMISSIONS, *OF_SLICES, *USE_IMAGE, USE_SUBNETWORK, USE_ADDRESS, SET_TAGS}
    named = ("machineTypes", "acceleratorTypes", "projects", "regions", "networks", "subnetworks", "reservations")
    reads = {f"compute.{kind}.get" for kind in named} | {"compute.subnetworks.list"}
    assert used | reads | {"compute.instances.getSerialPortOutput"} <= granted
