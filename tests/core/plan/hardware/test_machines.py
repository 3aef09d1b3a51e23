"""The VM of Compute Engine for each accelerator, and the one sentence about what there is not."""

from __future__ import annotations

import pickle

import pytest

from kinetic_orchestration import Gpu
from kinetic_orchestration.errors import UnknownAccelerator, Unsupported
from kinetic_orchestration.plan.hardware import machines
from kinetic_orchestration.plan.hardware.accelerators import (
    FLEX_START,
    ON_DEMAND,
    RESERVATION,
    SPOT,
    catalogue,
    on_hosts,
    parse,
)
from kinetic_orchestration.plan.hardware.machines import machine_of, refusal
from kinetic_orchestration.testing.model.compute import catalog

pytestmark = pytest.mark.fast

ALL = (ON_DEMAND, SPOT, FLEX_START, RESERVATION)


def test_each_accelerator_has_the_machine_that_google_lists_for_it() -> None:
    """By the pages "Accelerator-optimized machines" and "TPU machines", with the disk that the family takes."""
    found = {
        one.name: (machine_of(one).machine_type, machine_of(one).disk_types[0])
        for one in catalogue()
        if machines.serves(one)
    }
    assert found == {
        **{f"v5p-{4 << power}": ("ct5p-hightpu-4t", "pd-balanced") for power in range(10)},
        "v6e-1": ("ct6e-standard-1t", "hyperdisk-balanced"),
        "v6e-4": ("ct6e-standard-4t", "hyperdisk-balanced"),
        "v6e-8": ("ct6e-standard-8t", "hyperdisk-balanced"),
        **{f"v6e-{16 << power}": ("ct6e-standard-4t", "hyperdisk-balanced") for power in range(5)},
        **{f"tpu7x-{4 << power}": ("tpu7x-standard-4t", "hyperdisk-balanced") for power in range(10)},
        "b200x8": ("a4-highgpu-8g", "hyperdisk-balanced"),
        "h200x8": ("a3-ultragpu-8g", "hyperdisk-balanced"),
        "h100-megax8": ("a3-megagpu-8g", "pd-balanced"),
        "h100": ("a3-highgpu-1g", "pd-balanced"),
        "h100x2": ("a3-highgpu-2g", "pd-balanced"),
        "h100x4": ("a3-highgpu-4g", "pd-balanced"),
        "h100x8": ("a3-highgpu-8g", "pd-balanced"),
        "a100-80gb": ("a2-ultragpu-1g", "pd-balanced"),
        "a100-80gbx2": ("a2-ultragpu-2g", "pd-balanced"),
        "a100-80gbx4": ("a2-ultragpu-4g", "pd-balanced"),
        "a100-80gbx8": ("a2-ultragpu-8g", "pd-balanced"),
        "a100": ("a2-highgpu-1g", "pd-balanced"),
        "a100x2": ("a2-highgpu-2g", "pd-balanced"),
        "a100x4": ("a2-highgpu-4g", "pd-balanced"),
        "a100x8": ("a2-highgpu-8g", "pd-balanced"),
        "a100x16": ("a2-megagpu-16g", "pd-balanced"),
        "rtx-pro-6000": ("g4-standard-48", "hyperdisk-balanced"),
        "rtx-pro-6000x2": ("g4-standard-96", "hyperdisk-balanced"),
        "rtx-pro-6000x4": ("g4-standard-192", "hyperdisk-balanced"),
        "rtx-pro-6000x8": ("g4-standard-384", "hyperdisk-balanced"),
        "l4": ("g2-standard-4", "pd-balanced"),
        "l4x2": ("g2-standard-24", "pd-balanced"),
        "l4x4": ("g2-standard-48", "pd-balanced"),
        "l4x8": ("g2-standard-96", "pd-balanced"),
        "t4": ("n1-standard-4", "pd-balanced"),
        "t4x2": ("n1-standard-8", "pd-balanced"),
        "t4x4": ("n1-standard-16", "pd-balanced"),
    }  # fmt: skip


def test_slices_of_several_hosts_are_those_that_compute_engine_links() -> None:
    """Two ct6e-standard-4t as 2x4 are GKE's alone, and a group of one zone has 1000 VMs at most."""
    for one in catalogue():
        if one.kind == "tpu" and machines.serves(one) and one.hosts > 1:
            assert one.topology in catalog.TOPOLOGIES[machine_of(one).machine_type].split()
            assert machine_of(one).count == 4 and one.hosts < 1000
    assert "as 2x4, which no group of VMs links: take v6e-8" in refusal(on_hosts(parse("v6e-8"), 2), SPOT)
    assert machine_of(parse("v6e-16")) == machine_of(parse("v6e-4"))


def test_a_machine_boots_from_disks_that_it_takes_and_of_hyperdisk_from_balanced_alone() -> None:
    """Written down twice, here and in the emulator, from Google's pages."""
    served = [machine_of(one) for one in catalogue() if machines.serves(one)]
    for one in served:
        assert set(one.disk_types) <= set(catalog.MACHINES[one.machine_type].disks), one.machine_type
    named = {kind for one in served for kind in one.disk_types}
    assert named == {"pd-balanced", "pd-ssd", "pd-standard", "hyperdisk-balanced"}
    assert machine_of(parse("v5p-4")).disk_types == ("pd-balanced", "hyperdisk-balanced"), "two pages differ"
    usual = machines.boot_disk(machine_of(parse("h100x8")))
    assert usual == ("pd-balanced", 200)
    assert machines.boot_disk(machine_of(parse("h100x8")), type="pd-ssd", gib=300) == ("pd-ssd", 300)


def test_only_n1_machines_are_given_their_gpus_apart() -> None:
    with_their_own = {one.generation for one in catalogue() if machines.serves(one) and not machine_of(one).accelerator}
    assert machine_of(parse("t4x2")).accelerator == "nvidia-tesla-t4" and machine_of(parse("t4x2")).count == 2
    assert "t4" not in with_their_own and "l4" in with_their_own


def test_the_image_suits_the_hardware() -> None:
    families = {name: machine_of(parse(name)).image_family for name in ("l4", "v6e-8", "v5p-4", "tpu7x-4")}
    assert families == {
        "l4": "ubuntu-accelerator-2204-amd64-with-nvidia-580",
        "v6e-8": "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        "v5p-4": "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        "tpu7x-4": "ubuntu-accel-2404-amd64-tpu-tpu7x",
    }
    assert machine_of(parse("v6e-8")).threads_per_core == 1 and machine_of(parse("v6e-4")).threads_per_core == 0
    assert (machine_of(parse("l4")).vcpus, machine_of(parse("l4")).memory_gib) == (4, 16)
    assert machine_of(parse("l4")).disk_gib < machine_of(parse("h100x8")).disk_gib


def test_several_hosts_are_as_many_of_the_same_machine() -> None:
    assert machine_of(on_hosts(parse("a100x8"), 2)) == machine_of(parse("a100x8"))
    assert machines.between_hosts(parse("a100x8")) == ""
    assert machines.between_hosts(on_hosts(parse("l4"), 2)) == (
        "the 2 hosts of l4 are joined over plain TCP and one network interface each, so steps that wait for the network "
        "are slow"
    )
    assert "GPUDirect-TCPX, which their machines have," in machines.between_hosts(on_hosts(parse("h100x8"), 2))


REFUSED = {
    "h100": (ON_DEMAND, "h100 (a3-highgpu-1g) does not come on demand: add spot=True or cloud=Compute(flex_start=True); h100x8 comes on demand, too"),
    "h100x4": (RESERVATION, "h100x4 (a3-highgpu-4g) does not come by cloud=Compute(reservation='NAME'): take spot=True or cloud=Compute(flex_start=True)"),
    "t4x4": (FLEX_START, "t4x4 (n1-standard-16) does not come by cloud=Compute(flex_start=True): take spot=True or cloud=Compute(reservation='NAME'), or leave it out for one on demand"),
    "v5e-8": (SPOT, "v5e-8 cannot be a VM of Compute Engine, whose API refuses the machines of v5e: Cloud TPU has it, with backend='tpu-vm', and GKE, with backend='gke'"),
    "v4-4": (SPOT, "v4-4 cannot be a VM of Compute Engine, which begins with v5p: Cloud TPU has it, with backend='tpu-vm'"),
    "v5p-192": (SPOT, "v5p-192 is 48 VMs of 4 chips as 4x4x12, which no group of VMs links: take v5p-128 or v5p-256; Cloud TPU has it, with backend='tpu-vm', and GKE has it, with backend='gke' and a cluster"),
    "v5p-4096": (SPOT, "v5p-4096 is 1024 VMs of 4 chips as 16x16x16, which no group of VMs links: take v5p-2048; Cloud TPU has it, with backend='tpu-vm', and GKE has it, with backend='gke' and a cluster"),
    "tpu7x-192": (SPOT, "tpu7x-192 is 48 VMs of 4 chips as 4x4x12, which no group of VMs links: take tpu7x-128 or tpu7x-256; GKE has it, with backend='gke' and a cluster"),
    "tpu7x-1": (SPOT, "tpu7x-1 is a part of a machine of Compute Engine, and GKE alone divides it: take tpu7x-4, or backend='gke'"),
    "gb200x4": (RESERVATION, "gb200x4 has Arm processors, for which no packages are locked: run it on GKE with backend='gke' and a container_image= for arm64, or take b200x8"),
    "v100x2": (ON_DEMAND, "v100x2 needs a driver for GPUs older than the T4, which the images of the compute backend (driver 580, open kernel modules) do not have: take t4 or l4, or a node pool of GKE with backend='gke'"),
    "a100-80gbx16": (
        SPOT,
        (
            "No machine of Google Cloud has a100-80gbx16: a100-80gb comes 1, 2, 4 or 8 to a machine: take a100-80gbx8 "
            "with cloud=Compute(hosts=2) or Kubernetes(hosts=2)."
        ),
    ),
    "gpu:4": (ON_DEMAND, "gpu:4 is of any model, and a VM of Compute Engine has one: name it, as in l4x4 or a100x4"),
    "cpu": (ON_DEMAND, "cpu names no accelerator, and the compute backend makes VMs with GPUs or TPUs alone: name one, such as l4, or run it on this machine's CPU with backend='local'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_there_is_not_is_refused_in_a_sentence_that_says_what_there_is(name: str) -> None:
    model, told = REFUSED[name]
    assert refusal(parse(name), model) == told


def test_everything_else_comes_in_every_way() -> None:
    for one in catalogue():
        if not machines.serves(one):
            with pytest.raises(Unsupported):
                machine_of(one)
        elif one.generation not in ("h100", "t4") or one.name == "h100x8":
            assert [refusal(one, model) for model in ALL] == [""] * 4
    assert refusal(parse("h100"), SPOT) == refusal(parse("h100x2"), FLEX_START) == ""


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a100-80gb x8", "a100-80gbx8"), ("h100 x 8", "h100x8"), ("H100 X8 :spot", "h100x8"),
        ("rtx-pro-6000x2", "rtx-pro-6000x2"), ("rtx-pro-6000", "rtx-pro-6000"), ("gpu:l4 x4", "l4x4"),
    ],
)  # fmt: skip
def test_gpus_are_read_as_they_are_written(written: str, name: str) -> None:
    assert parse(written).name == name


@pytest.mark.parametrize("written", ["x8", "l4 4", "l 4x2", "rtx-pro-6000 2", "v5e -8"])
def test_other_gaps_are_no_names(written: str) -> None:
    with pytest.raises(UnknownAccelerator):
        parse(written)


def test_a_gpu_is_its_name() -> None:
    eight = Gpu("h100", 8)
    assert eight == "h100x8" and parse(eight).name == "h100x8" and Gpu("l4") == "l4" and Gpu("l4x4") == "l4x4"
    assert type(pickle.loads(pickle.dumps(eight))) is Gpu and pickle.loads(pickle.dumps(eight)) == eight
    assert Gpu("nvidia-l4", 2) == "l4x2" and Gpu("l4:spot") == "l4:spot"
    assert Gpu("gpu", 4) == "gpu:4" and parse(Gpu("gpu", 4)).chips == 4 and Gpu("gpu") == "gpu"


@pytest.mark.parametrize(
    ("model", "count", "told"),
    [
        ("l4", 3, "l4 comes 1, 2, 4 or 8 to a host"),
        ("v5e-8", 1, "v5e-8 is no GPU. Write accelerator='v5e-8'"),
        ("l4", 0, "the number of GPUs is a whole number from 1"),
        ("l4", True, "the number of GPUs is a whole number from 1"),
        ("l5", 1, "No accelerator 'l5'"),
        ("gpu", 65, "No accelerator 'gpu:65': gpu:N is 1 to 64 GPUs of any model"),
    ],
)
def test_no_gpu_is_made_of_what_there_is_not(model: str, count: int, told: str) -> None:
    with pytest.raises(UnknownAccelerator) as refused:
        Gpu(model, count)
    assert told in str(refused.value)
