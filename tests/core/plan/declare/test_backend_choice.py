"""Tests which platform serves a call: what is named, and else a rule by the hardware that says its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration.settings import Settings, load
from kinetic_orchestration.plan.declare.backend_choice import chosen, may_run_on
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.cloud import Compute, Kubernetes, TpuVm
from kinetic_orchestration.plan.declare.limits import Limits
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.values import Plan

pytestmark = pytest.mark.fast

CLOUD = {"KINETIC_PROJECT": "p", "KINETIC_STORE": "gs://b/k", "KINETIC_DEPLOYMENT": "d"}


def settings(home: Path, **environ: str) -> Settings:
    return load({"KINETIC_HOME": str(home), "KINETIC_PROFILE_FILE": "/none", **environ})


def planned(home: Path, options: Options, **environ: str) -> Plan:
    spec = JobSpec("train", check_options(options))
    return planner.make_plan(spec, settings(home, **{**CLOUD, "KINETIC_ZONES": "us-central1-a", **environ}), {})


BY_RULE = {
    "v5e-8": ("tpu-vm", "v5e has the Cloud TPU API"),
    "v6e-8": ("tpu-vm", "v6e has the Cloud TPU API; backend='compute' also serves it"),
    "v6e-16": ("tpu-vm", "v6e has the Cloud TPU API; backend='compute' also serves it"),
    "l4": ("compute", "GPUs have no Cloud TPU API; backend='gke' with a cluster also serves them"),
    "h100x8": ("compute", "GPUs have no Cloud TPU API; backend='gke' with a cluster also serves them"),
    "tpu7x-4": ("compute", "TPU7x has no Cloud TPU API; backend='gke' with a cluster also serves them"),
    "tpu7x-64": ("compute", "TPU7x has no Cloud TPU API; backend='gke' with a cluster also serves them"),
}


@pytest.mark.parametrize("accelerator", BY_RULE)
def test_the_hardware_decides_if_nothing_else_does(accelerator: str, home: Path) -> None:
    assert tuple(chosen(Options(accelerator), settings(home, **CLOUD))) == BY_RULE[accelerator]
    assert planned(home, Options(accelerator)).backend == BY_RULE[accelerator][0]


@pytest.mark.parametrize(
    ("options", "environ", "backend", "reason"),
    [
        ({"accelerator": "l4", "backend": "tpu-vm"}, {}, "tpu-vm", ""),
        ({"accelerator": "v6e-8", "backend": "compute"}, {}, "compute", ""),
        ({"accelerator": "v6e-8"}, {"KINETIC_BACKEND": "compute"}, "compute", ""),
        ({"accelerator": "l4"}, {"KINETIC_BACKEND": "gke"}, "gke", ""),
        ({"accelerator": "v6e-8", "cloud": Compute()}, {}, "compute", "cloud=Compute(…) is given"),
        ({"accelerator": "v6e-8", "cloud": TpuVm()}, {"KINETIC_CLUSTER": "c"}, "tpu-vm", "cloud=TpuVm(…) is given"),
        ({"accelerator": "l4"}, {"KINETIC_CLUSTER": "prod"}, "gke", "the cluster prod is named"),
        ({"accelerator": "v5e-8"}, {"KINETIC_CLUSTER": "prod"}, "gke", "the cluster prod is named"),
        ({"accelerator": "l4", "cloud": Kubernetes(clusters=["a", "b"])}, {}, "gke", "the cluster a, b is named"),
        ({"accelerator": "l4"}, {"KINETIC_STORE": "", "KINETIC_PROJECT": "", "KINETIC_DEPLOYMENT": ""}, "local", ""),
    ],
)  # fmt: skip
def test_what_is_named_counts_more_than_the_hardware(
    options: dict[str, Any], environ: dict[str, str], backend: str, reason: str, home: Path
) -> None:
    assert tuple(chosen(Options(**options), settings(home, **{**CLOUD, **environ}))) == (backend, reason)


def test_leftovers_are_looked_for_wherever_the_rule_may_have_put_a_job(home: Path) -> None:
    assert may_run_on(settings(home, **CLOUD)) == ("tpu-vm", "compute")
    assert may_run_on(settings(home, **CLOUD, KINETIC_CLUSTER="c")) == ("tpu-vm", "compute", "gke")
    assert may_run_on(settings(home, **CLOUD, KINETIC_BACKEND="compute")) == ("compute",)
    assert may_run_on(settings(home)) == ("local",)


# ---- options of VMs ----------------------------------------------------------------------------------------------


def test_a_plan_for_vms_has_what_only_they_know(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinetic_orchestration.plan.messages._shown", set())  # another test may have met the warning
    given = Compute(hosts=2, disk_gib=300, tags=["ml"], labels={"team": "rank"})
    with pytest.warns(UserWarning, match=r"the 2 hosts of l4x4 are joined over plain TCP"):
        plan = planned(home, Options("l4x4", cloud=given, spot=True), KINETIC_NETWORK="lab", USER="me")
    assert (plan.hosts, plan.slice.chips, plan.zones, plan.spot) == (2, 8, ("us-central1-a",), True)
    assert plan.cloud == {
        "reservation": "", "reservation_bound": False, "flex_start": False, "network": "lab", "subnetwork": "", "external_ips": True,
        "secure_boot": False, "image": "", "disk_gib": 300, "disk_type": "", "service_account": "", "tags": ["ml"],
        "quota_project": "", "owner": "",
    }  # fmt: skip
    assert plan.labels == {"team": "rank"}
    assert Plan.from_json(plan.to_json()) == plan
    assert "Compute Engine l4x4" in plan.hardware


def test_slices_of_several_hosts_and_several_slices_are_planned_for_vms(home: Path) -> None:
    plan = planned(home, Options("v6e-16", cloud=Compute(num_slices=2)))
    assert (plan.backend, plan.slices, plan.hosts) == ("compute", 2, 8)
    assert "num_slices" not in plan.cloud and Plan.from_json(plan.to_json()) == plan
    assert "2 slices of v6e-16" in planner.describe(plan)
    assert planned(home, Options("tpu7x-64")).hosts == 16
    assert planned(home, Options("v6e-8", backend="compute", cloud=TpuVm(zones=["us-east5-a"]))).hosts == 1


@pytest.mark.parametrize("options", [Options("l4"), Options("tpu7x-4"), Options("v6e-8", backend="compute")])
def test_what_a_resource_says_of_any_vms_is_taken_by_those_of_compute_engine(options: Options, home: Path) -> None:
    """Its options are of Cloud TPU, by their class, and mean the same there."""
    given = {
        "network": "lan", "subnetwork": "train", "external_ips": False, "service_account": "vm@p.iam.gserviceaccount.com",
        "tags": ["ml"], "quota_project": "bill",
    }  # fmt: skip
    plan = planned(home, replace(options, cloud=TpuVm(zones=["us-central1-b"], labels={"team": "rank"}, **given)))
    assert (plan.backend, plan.zones, plan.labels) == ("compute", ("us-central1-b",), {"team": "rank"})
    assert {name: plan.cloud[name] for name in given} == given


@pytest.mark.parametrize("other", [{"reservation": "r"}, {"runtime_version": "x"}, {"num_slices": 2}])
def test_what_means_something_else_on_cloud_tpu_is_not_taken_by_vms(other: dict[str, Any], home: Path) -> None:
    cloud = TpuVm(**other)
    with pytest.raises(UsageError, match=r"l4 (is no TPU|has GPUs)"):
        planned(home, Options("l4", cloud=cloud))
    with pytest.raises(UsageError, match=r"cloud=TpuVm\(…\) has options of tpu-vm, and this job runs on compute"):
        planned(home, Options("v6e-8", backend="compute", cloud=cloud))


def test_the_dry_run_says_how_vms_are_got(home: Path) -> None:
    for cloud, spot, told in (
        (Compute(flex_start=True), False, "capacity     flex-start"),
        (Compute(reservation="mine"), False, "capacity     reservation mine"),
        (Compute(reservation="mine", reservation_bound=True), False, "reservation mine, with which its VMs end"),
        (Compute(), True, "capacity     spot"),
    ):
        assert told in planner.describe(planned(home, Options("l4", cloud=cloud, spot=spot)))
    shown = planner.describe(planned(home, Options("l4")), "GPUs have no Cloud TPU API")
    assert "backend      compute (emulated by one process; GPUs have no Cloud TPU API)" in shown


REFUSED: dict[str, tuple[Options, str]] = {
    "two ways": (
        Options("l4", spot=True, cloud=Compute(flex_start=True)),
        "flex_start=True and spot=True name two kinds of capacity: keep one",
    ),
    "two other ways": (
        Options("l4", cloud=Compute(flex_start=True, reservation="r")),
        "flex_start=True and reservation='r' name two kinds of capacity: keep one",
    ),
    "flex-start of several": (
        Options("l4", cloud=Compute(flex_start=True, hosts=2)),
        "flex_start=True gives each VM by itself, and the first of hosts=2 would cost money while it waits",
    ),
    "flex-start of several slices": (
        Options("tpu7x-8", cloud=Compute(flex_start=True, num_slices=2)),
        "flex_start=True gives each slice by itself, and the first of num_slices=2 would cost money while it waits",
    ),
    "a reservation of another zone": (
        Options("l4", cloud=Compute(zones=["us-central1-a"], reservation="projects/p/zones/us-east4-a/reservations/r")),
        "and zones=['us-central1-a'] say where: leave out the latter, as a reservation is of one zone",
    ),
    "a reservation of another zone than the job": (
        Options("l4", zone="us-central1-a", cloud=Compute(reservation="projects/p/zones/us-east4-a/reservations/r")),
        "and zone='us-central1-a' say where",
    ),
    "a block of a reservation": (
        Options("l4", cloud=Compute(reservation="projects/p/reservations/R/reservationBlocks/B")),
        "names no reservation: a block of one is none: write its name, projects/PROJECT/reservations/NAME for one that",
    ),
    "no path of a reservation": (
        Options("l4", cloud=Compute(reservation="p/us-east4-a/r")),
        "cloud=Compute(reservation='p/us-east4-a/r') names no reservation: write its name, projects/PROJECT",
    ),
    "bound to nothing": (
        Options("l4", cloud=Compute(reservation_bound=True)),
        "cloud=Compute(reservation_bound=True) names no reservation: add reservation='NAME'",
    ),
    "spot of a reservation": (
        Options("l4", spot=True, cloud=Compute(reservation="r")),
        "spot=True and the reservation 'r' exclude each other",
    ),
    "hosts of a TPU": (
        Options("v6e-8", cloud=Compute(hosts=2)),
        "cloud=Compute(hosts=2) is for VMs with GPUs, and v6e-8 has 1 host: leave hosts out; num_slices= joins several",
    ),
    "no host": (Options("l4", cloud=Compute(hosts=0)), "cloud=Compute(hosts=0): it is a number of VMs, from 1 to"),
    "slices of GPUs": (
        Options("l4", cloud=Compute(num_slices=2)),
        "cloud=Compute(num_slices=2) joins slices of TPUs, and l4 is none: hosts= joins VMs with GPUs",
    ),
    "no slice": (Options("v6e-8", cloud=Compute(num_slices=0)), "num_slices is 0: it is a number of slices, from 1 to"),
    "more slices than a job has hosts": (
        Options("v5p-2048", cloud=Compute(num_slices=200)),
        "num_slices is 200, and so many slices of v5p-2048 have 102400 hosts: a job has 65536 at most, so choose 128 or",
    ),
    "half a slice of Cloud TPU": (Options("v6e-8", cloud=TpuVm(num_slices=1.5)), "num_slices is 1.5: it is a number of"),  # type: ignore[arg-type]
    "a disk smaller than the image": (
        Options("l4", cloud=Compute(disk_gib=5)),
        "cloud=Compute(disk_gib=5): the image alone takes 10 GiB",
    ),
    "a type of disks that its machine does not take": (
        Options("l4", cloud=Compute(disk_type="hyperdisk-balanced")),
        ("cloud=Compute(disk_type='hyperdisk-balanced'): l4 (g2-standard-4) boots from pd-balanced or pd-ssd: name one of "
        "these, or leave it out for pd-balanced"),
    ),
    "a type of disks that no VM boots from": (
        Options("v6e-16", backend="compute", cloud=Compute(disk_type="hyperdisk-ml")),
        ("cloud=Compute(disk_type='hyperdisk-ml'): v6e-16 (ct6e-standard-4t) boots from hyperdisk-balanced: name that, or "
        "leave it out for hyperdisk-balanced"),
    ),
    "no type of disks": (
        Options("v5p-4", backend="compute", cloud=Compute(disk_type=["pd-ssd"])),  # type: ignore[arg-type]
        "cloud=Compute(disk_type=['pd-ssd']): v5p-4 (ct5p-hightpu-4t) boots from pd-balanced or hyperdisk-balanced: name",
    ),
    "secure boot of GPUs": (
        Options("l4", cloud=Compute(secure_boot=True)),
        "cloud=Compute(secure_boot=True): NVIDIA's modules are not signed, so l4 would not work",
    ),
    "secure boot of TPU7x": (
        Options("tpu7x-4", cloud=Compute(secure_boot=True)),
        "cloud=Compute(secure_boot=True): the image for TPU7x refuses it, so tpu7x-4 would not work",
    ),
    "a region for a zone": (
        Options("l4", cloud=Compute(zones=["us-central1"])),
        ("cloud=Compute(zones=…) has 'us-central1', which is no zone: it is a region, so name zones of it, such as "
        "'us-central1-a'"),
    ),
    "a text for a list": (
        Options("l4", cloud=Compute(zones="us-central1-a")),
        "cloud=Compute(zones='us-central1-a') is a list: write ['us-central1-a']",
    ),
    "two places": (
        Options("l4", zone="us-central1-a", cloud=Compute(zones=["us-central1-b"])),
        "both zone='us-central1-a' and cloud=Compute(zones=['us-central1-b']) say where: keep one",
    ),
    "no zone at all": (
        Options("l4", cloud=Compute(zones=["lab"])),
        "cloud=Compute(zones=…) has 'lab', which is no zone: zones have names such as 'us-central1-a', and `gcloud",
    ),
    "a name that is too long": (
        Options("l4", cloud=Compute(image=f"family/{'i' * 64}")),
        "and is 63 letters long at most; this one has 64",
    ),
    "a reservation's name": (
        Options("l4", cloud=Compute(reservation="My GPUs")),
        "cloud=Compute(reservation='My GPUs') names no reservation: write its name, projects/PROJECT/reservations/NAME",
    ),
    "a network's name": (Options("l4", cloud=Compute(network="n" * 70)), "cloud=Compute(network=…) has 'nnn"),
    "a subnetwork's name": (Options("l4", cloud=Compute(subnetwork="n" * 70)), "cloud=Compute(subnetwork=…) has 'nnn"),
    "half a path of a network": (
        Options("l4", cloud=Compute(network="host/lab")),
        "cloud=Compute(network='host/lab') is neither a name nor a path: write projects/HOST/global/networks/NAME",
    ),
    "half an account": (
        Options("l4", cloud=Compute(service_account="kinetic-gpu")),
        ("cloud=Compute(service_account=…) has 'kinetic-gpu', which is the address of no account: write it whole, as in "
        "NAME@PROJECT.iam.gserviceaccount.com"),
    ),
    "a tag": (Options("l4", cloud=Compute(tags=["ML nodes"])), "cloud=Compute(tags=…) has 'ML nodes': a tag has"),
    "half a path": (
        Options("l4", cloud=Compute(subnetwork="lab/train")),
        "cloud=Compute(subnetwork='lab/train') is neither a name nor a path",
    ),
    "a folder for a store": (
        Options("l4", backend="compute", store="/tmp/store"),
        "backend='compute' runs on other machines, and the store /tmp/store is a folder of this one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_options_of_vms_that_cannot_be_are_refused_when_they_are_written(case: str) -> None:
    options, told = REFUSED[case]
    with pytest.raises((UsageError, ConflictingSettings)) as refused:
        check_options(options)
    assert told in str(refused.value)


ELSEWHERE = "projects/host/regions/us-east5/subnetworks/lab"
NOT_PLANNED: dict[str, tuple[Options, dict[str, str], str]] = {
    "a subnet of another region": (
        Options("l4", cloud=Compute(subnetwork=ELSEWHERE)), {},
        f"the subnetwork {ELSEWHERE} is of us-east5, and no VM in us-central1-a can use it: name zones of its region",
    ),
    "that of the settings": (
        Options("l4"), {"KINETIC_SUBNETWORK": ELSEWHERE},
        f"the subnetwork {ELSEWHERE} is of us-east5, and no VM in us-central1-a can use it: name zones of its region",
    ),
    "a network of the settings": (
        Options("l4"), {"KINETIC_NETWORK": "n" * 64}, "KINETIC_NETWORK has 'nnn",
    ),
    "a subnetwork of the settings": (
        Options("l4"), {"KINETIC_SUBNETWORK": "Lab"}, "KINETIC_SUBNETWORK has 'Lab', which Compute Engine never accepts",
    ),
    "an account of the settings": (
        Options("l4"), {"KINETIC_SERVICE_ACCOUNT": "me"}, "KINETIC_SERVICE_ACCOUNT has 'me', which is the address of no",
    ),
    "a region for a zone of the settings": (
        Options("l4"), {"KINETIC_ZONES": "us-central1"},
        "KINETIC_ZONES has 'us-central1', which is no zone: it is a region, so name zones of it, such as 'us-central1-a'",
    ),
    "that on Cloud TPU": (
        Options("v5e-8"), {"KINETIC_ZONES": "us-west4-a,us-west4"}, "KINETIC_ZONES has 'us-west4', which is no zone",
    ),
    "that of one zone": (
        Options("v5e-8"), {"KINETIC_ZONES": "", "KINETIC_ZONE": "us-west4"}, "KINETIC_ZONE has 'us-west4', which is no",
    ),
    "a word for a zone": (Options("v5e-8"), {"KINETIC_ZONES": "mars"}, "`gcloud compute zones list` shows them"),
    "no zone": (
        Options("l4"), {"KINETIC_ZONES": ""},
        ("no zone is named, and none is known to have l4: name some, in the order in which they are tried, with "
        "KINETIC_ZONES=us-central1-a,… or cloud=Compute(zones=[…]). `gcloud compute machine-types list "
        "--filter=name=g2-standard-4` shows those that have it"),
    ),
    "no zone of N1": (
        Options("t4"), {"KINETIC_ZONES": ""}, "`gcloud compute accelerator-types list --filter=name=nvidia-tesla-t4`"
    ),
    "too long for flex-start": (
        Options("l4", cloud=Compute(flex_start=True), limits=Limits(run="8d")), {},
        "limits.run is 8d, and flex-start gives a VM for 10 minutes to 7 days",
    ),
    "too short for flex-start": (
        Options("l4", cloud=Compute(flex_start=True), limits=Limits(run="5m")), {},
        "limits.run is 5m, and flex-start gives a VM for 10 minutes to 7 days",
    ),
    "too long for any VM": (
        Options("l4", limits=Limits(run="120d")), {}, "limits.run is 120d, and Compute Engine ends a VM after 120"
    ),
    "processes in a container": (
        Options("l4x4", processes="gpu", container_image="r/train:1"), {},
        ("processes= with container_image= is not possible on the compute backend: a container is one process that sees "
        "all GPUs of its VM. Leave container_image out, and the processes get locked packages; or leave processes out"),
    ),
    "processes that are more than the GPUs": (
        Options("l4x4", processes=8), {},
        "processes is 8: it is 'gpu', one process for each GPU (4 for l4x4), or None, one process for all of them",
    ),
    "processes that are half of the GPUs": (Options("l4x4", processes=2), {}, "processes is 2: it is 'gpu', one process"),
    "processes of a TPU": (
        Options("v6e-8", backend="compute", processes=8), {},
        "processes=8 is for GPUs, and a host of v6e-8 is one process with all its chips: leave processes out",
    ),
    "a container without docker": (
        Options("l4", container_image="r/train:1"), {},
        "container_image= is not possible on the compute backend: its default image has no docker",
    ),
    "a container on a TPU": (
        Options("v6e-8", backend="compute", container_image="r/train:1"), {},
        "name an image of your own with cloud=Compute(image=…): one for these TPUs, with docker added",
    ),
    "a container on Google's image without docker": (
        Options(
            "l4", container_image="r/train:1",
            cloud=Compute(image="projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2204-x"),
        ), {},
        ("family/ubuntu-accelerator-2204-x has no docker. Leave it out, and the hosts get locked packages; or name an "
        "image that has docker and NVIDIA's container toolkit, with cloud=Compute(image='projects/ml-images/"),
    ),
    "an h100 on demand": (Options("h100"), {}, "h100 (a3-highgpu-1g) does not come on demand: add spot=True or"),
    "t4 by flex-start": (
        Options("t4", cloud=Compute(flex_start=True)), {}, "t4 (n1-standard-4) does not come by cloud=Compute(flex_start"
    ),
    "options of Cloud TPU": (
        Options("l4", backend="compute", cloud=TpuVm(reservation="r")), {},
        "cloud=TpuVm(…) has options of tpu-vm, and this job runs on compute",
    ),
    "options of VMs on Cloud TPU": (
        Options("v6e-8", backend="tpu-vm", cloud=Compute()), {},
        "cloud=Compute(…) has options of compute, and this job runs on tpu-vm: name backend='compute'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_PLANNED)
def test_what_no_vm_can_be_is_refused_before_anything_is_sent(case: str, home: Path) -> None:
    options, environ, told = NOT_PLANNED[case]
    with pytest.raises(UsageError) as refused:
        planned(home, options, **environ)
    assert told in str(refused.value)


@pytest.mark.filterwarnings("ignore:the 2 hosts of l4x4 are joined over plain TCP")
def test_a_process_for_each_gpu_is_for_this_machine_and_for_vms(home: Path) -> None:
    for options, hosts, each in (
        (Options("l4x4", processes="gpu"), 4, 4),
        (Options("l4x4", processes=4, cloud=Compute(hosts=2)), 8, 4),
        (Options("l4", processes="gpu"), 1, 1),
        (Options("l4x4"), 1, 1),
    ):
        plan = planned(home, options)
        assert (plan.backend, plan.hosts, plan.processes) == ("compute", hosts, each)
        assert Plan.from_json(plan.to_json()).hosts == hosts
    told = "it is for GPUs of this machine, and of VMs with backend='compute'"
    with pytest.raises(UsageError, match=told):
        planned(home, Options("l4x4", processes="gpu", backend="kubernetes"), KINETIC_STORE="s3://bucket/prefix")


def test_known_zones_are_those_of_the_subnetworks_region(home: Path) -> None:
    given = Compute(subnetwork="regions/us-east5/subnetworks/lab")
    assert planned(home, Options("v6e-8", cloud=given), KINETIC_ZONES="").zones == ("us-east5-a", "us-east5-b")
    image = Compute(image="projects/p/global/images/with-docker")
    assert planned(home, Options("l4", cloud=image, container_image="r/train:1")).image == "r/train:1"


def test_zones_mean_the_same_wherever_the_rule_leads(home: Path) -> None:
    """An orchestrator's zones are TpuVm's, before it is known which accelerator a job has."""
    zones = TpuVm(zones=["us-east5-a"], labels={"team": "rank"})
    for accelerator, backend in (("l4", "compute"), ("tpu7x-4", "compute"), ("v6e-8", "tpu-vm")):
        plan = planned(home, Options(accelerator, cloud=zones))
        assert (plan.backend, plan.zones, plan.labels) == (backend, ("us-east5-a",), {"team": "rank"})
    assert planned(home, Options("v6e-8", backend="compute", cloud=zones)).zones == ("us-east5-a",)


def test_a_reservation_by_its_path_says_where_it_is(home: Path) -> None:
    path = "projects/p/zones/us-east5-a/reservations/r"
    for elsewhere in ("", "us-central1-a,us-central1-b"):  # what only a setting says is not meant for it
        plan = planned(home, Options("l4", cloud=Compute(reservation=path)), KINETIC_ZONES=elsewhere)
        assert plan.zones == ("us-east5-a",)
        assert "us-central1" not in planner.describe(plan)
    assert planned(home, Options("l4", cloud=Compute(reservation=path, zones=["us-east5-a"]))).zones == ("us-east5-a",)
    named = planned(home, Options("l4", cloud=Compute(reservation="projects/p/reservations/r")))
    assert named.zones == ("us-central1-a",)
    assert planned(home, Options("v5e-8", cloud=TpuVm(reservation=path))).zones == ("us-east5-a",)
