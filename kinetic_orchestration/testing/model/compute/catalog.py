"""Catalogue of Compute Engine: machine types with accelerators, disks and ways of buying; images; zones. Pure.

Written down from Google's pages apart from the planner's own table, so that each is a check of the other: a machine
that does not exist here is refused in Google's words. It knows neither requests nor instances.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from kinetic_orchestration.plan.hardware.regions import region_of

PD: Final = ("pd-standard", "pd-balanced", "pd-ssd")
HYPERDISK: Final = ("hyperdisk-balanced", "hyperdisk-extreme", "hyperdisk-ml", "hyperdisk-throughput")
STANDARD, SPOT, FLEX_START, RESERVATION_BOUND = "STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"
ANY: Final = (STANDARD, SPOT, FLEX_START, RESERVATION_BOUND)
GIB: Final = 1024


class MachineType(NamedTuple):
    """A machine type. `gpu`: the model of those that it always has."""

    name: str
    cpus: int
    memory_gib: int
    gpu: str = ""
    accelerators: int = 0  # GPUs or TPU chips
    tpu: str = ""  # the generation of its chips
    disks: tuple[str, ...] = PD
    models: tuple[str, ...] = ANY
    arm: bool = False
    takes_gpus: bool = False  # that are attached to it


class Gpu(NamedTuple):
    """A model of GPU: as `nvidia-smi` calls it, its MiB, and its names in quotas, with spot and without."""

    shown: str
    memory_mib: int
    quota: str
    spot_quota: str
    family: str = ""  # of GPUS-PER-GPU-FAMILY, which the newer models have in place of a quota of their own


GPUS: Final = {
    "nvidia-tesla-t4": Gpu("Tesla T4", 15360, "NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS"),
    "nvidia-tesla-p4": Gpu("Tesla P4", 7680, "NVIDIA_P4_GPUS", "PREEMPTIBLE_NVIDIA_P4_GPUS"),
    "nvidia-tesla-p100": Gpu("Tesla P100-PCIE-16GB", 16384, "NVIDIA_P100_GPUS", "PREEMPTIBLE_NVIDIA_P100_GPUS"),
    "nvidia-tesla-v100": Gpu("Tesla V100-SXM2-16GB", 16384, "NVIDIA_V100_GPUS", "PREEMPTIBLE_NVIDIA_V100_GPUS"),
    "nvidia-l4": Gpu("NVIDIA L4", 23034, "NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS"),
    "nvidia-tesla-a100": Gpu("NVIDIA A100-SXM4-40GB", 40960, "NVIDIA_A100_GPUS", "PREEMPTIBLE_NVIDIA_A100_GPUS"),
    "nvidia-a100-80gb": Gpu(
        "NVIDIA A100-SXM4-80GB", 81920, "NVIDIA_A100_80GB_GPUS", "PREEMPTIBLE_NVIDIA_A100_80GB_GPUS"
    ),
    "nvidia-h100-80gb": Gpu(
        "NVIDIA H100 80GB HBM3", 81559, "GPUS_PER_GPU_FAMILY", "PREEMPTIBLE_NVIDIA_H100_GPUS", "NVIDIA_H100"
    ),
    "nvidia-h100-mega-80gb": Gpu(
        "NVIDIA H100 80GB HBM3", 81559, "GPUS_PER_GPU_FAMILY", "PREEMPTIBLE_NVIDIA_H100_MEGA_GPUS", "NVIDIA_H100_MEGA"
    ),
    "nvidia-h200-141gb": Gpu(
        "NVIDIA H200", 143771, "GPUS_PER_GPU_FAMILY", "PREEMPTIBLE_NVIDIA_H200_GPUS", "NVIDIA_H200"
    ),
    "nvidia-b200": Gpu("NVIDIA B200", 183359, "GPUS_PER_GPU_FAMILY", "PREEMPTIBLE_NVIDIA_B200_GPUS", "NVIDIA_B200"),
    "nvidia-gb200": Gpu("NVIDIA GB200", 189471, "GPUS_PER_GPU_FAMILY", "PREEMPTIBLE_NVIDIA_GB200_GPUS", "NVIDIA_GB200"),
    "nvidia-rtx-pro-6000": Gpu(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "GPUS_PER_GPU_FAMILY",
        "PREEMPTIBLE_NVIDIA_RTX_PRO_6000_GPUS", "NVIDIA_RTX_PRO_6000",
    ),
}  # fmt: skip


def _machines() -> Iterable[MachineType]:
    """https://cloud.google.com/compute/docs/accelerator-optimized-machines, …/general-purpose-machines#n1_machines"""
    no_flex = (STANDARD, SPOT, RESERVATION_BOUND)
    for cpus in (1, 2, 4, 8, 16, 32, 64, 96):
        yield MachineType(f"n1-standard-{cpus}", cpus, int(cpus * 3.75), models=no_flex, takes_gpus=True)
    for cpus in (2, 4, 8, 16, 32):
        yield MachineType(f"e2-standard-{cpus}", cpus, cpus * 4, models=no_flex)
    for cpus, gpus in ((4, 1), (8, 1), (12, 1), (16, 1), (32, 1), (24, 2), (48, 4), (96, 8)):
        yield MachineType(f"g2-standard-{cpus}", cpus, cpus * 4, "nvidia-l4", gpus)
    for gpus in (1, 2, 4, 8):
        yield MachineType(f"a2-highgpu-{gpus}g", 12 * gpus, 85 * gpus, "nvidia-tesla-a100", gpus)
        yield MachineType(f"a2-ultragpu-{gpus}g", 12 * gpus, 170 * gpus, "nvidia-a100-80gb", gpus)
    yield MachineType("a2-megagpu-16g", 96, 1360, "nvidia-tesla-a100", 16)
    both = ("pd-balanced", "pd-ssd", *HYPERDISK)
    for gpus in (1, 2, 4):
        small = MachineType(f"a3-highgpu-{gpus}g", 26 * gpus, 234 * gpus, "nvidia-h100-80gb", gpus)
        yield small._replace(disks=both, models=(SPOT, FLEX_START))
    for name, gpu in (("high", "nvidia-h100-80gb"), ("edge", "nvidia-h100-80gb"), ("mega", "nvidia-h100-mega-80gb")):
        yield MachineType(f"a3-{name}gpu-8g", 208, 1872, gpu, 8, disks=both)
    yield MachineType("a3-ultragpu-8g", 224, 2952, "nvidia-h200-141gb", 8, disks=HYPERDISK)
    yield MachineType("a4-highgpu-8g", 224, 3968, "nvidia-b200", 8, disks=HYPERDISK)
    arm = MachineType("a4x-highgpu-4g", 140, 884, "nvidia-gb200", 4, disks=HYPERDISK, models=(RESERVATION_BOUND,))
    yield arm._replace(arm=True)
    for gpus in (1, 2, 4, 8):
        large = MachineType(f"g4-standard-{48 * gpus}", 48 * gpus, 180 * gpus, "nvidia-rtx-pro-6000", gpus)
        yield large._replace(disks=("hyperdisk-balanced",))
    # "TPU machines in accelerator-optimized machine family"; v5p's disks differ between two of Google's pages.
    yield MachineType("ct5p-hightpu-4t", 208, 448, tpu="v5p", accelerators=4, disks=("pd-balanced", *HYPERDISK))
    for chips, cpus, memory in ((1, 44, 176), (4, 180, 720), (8, 360, 1440)):
        yield MachineType(
            f"ct6e-standard-{chips}t", cpus, memory, tpu="v6e", accelerators=chips, disks=("hyperdisk-balanced",)
        )
    yield MachineType(
        "tpu7x-standard-4t", 224, 960, tpu="tpu7x", accelerators=4, disks=("hyperdisk-balanced", "hyperdisk-ml")
    )


MACHINES: Final = {machine.name: machine for machine in _machines()}
NOT_ALLOWED: Final = "ct5lp-"  # TPU v5e, which the API lists and refuses to whoever is not GKE
# GPUs that go with an N1 machine: how many there may be, and the most processors for each number.
ATTACHED: Final = {
    "nvidia-tesla-t4": {1: 48, 2: 48, 4: 96},
    "nvidia-tesla-p4": {1: 24, 2: 48, 4: 96},
    "nvidia-tesla-p100": {1: 16, 2: 32, 4: 96},
    "nvidia-tesla-v100": {1: 12, 2: 24, 4: 48, 8: 96},
}


class Image(NamedTuple):
    project: str
    family: str
    disk_gib: int = 10
    arm: bool = False
    driver: str = ""  # of NVIDIA, that it brings
    docker: bool = False

    @property
    def name(self) -> str:
        return f"{self.family}-v20261118"

    @property
    def path(self) -> str:
        return f"projects/{self.project}/global/images/{self.name}"


def _images() -> Iterable[Image]:
    accelerators = "ubuntu-os-accelerator-images"
    for driver, version in (("550", "550.163.01"), ("570", "570.195.03"), ("580", "580.159.04")):
        yield Image(accelerators, f"ubuntu-accelerator-2204-amd64-with-nvidia-{driver}", 10, driver=version)
        if driver != "550":
            family = f"ubuntu-accelerator-2404-arm64-with-nvidia-{driver}"
            yield Image(accelerators, family, 10, arm=True, driver=version)
    yield Image(accelerators, "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e")
    yield Image(accelerators, "ubuntu-accel-2404-amd64-tpu-tpu7x")
    for project in ("ml-images", "deeplearning-platform-release"):
        yield Image(project, "common-cu129-ubuntu-2204-nvidia-580", 50, driver="580.159.04", docker=True)
        yield Image(project, "pytorch-2-7-cu128-ubuntu-2404-nvidia-570", 50, driver="570.195.03", docker=True)
    yield Image("cos-cloud", "cos-121-lts", docker=True)
    yield Image("debian-cloud", "debian-12")
    yield Image("ubuntu-os-cloud", "ubuntu-2404-lts-amd64")


IMAGES: Final = tuple(_images())

# Zones with GPUs, besides those of the TPUs: https://cloud.google.com/compute/docs/gpus/gpu-regions-zones
ZONES: Final = (
    "asia-northeast1-b", "asia-southeast1-b", "asia-southeast1-c", "europe-west1-b", "europe-west4-a", "europe-west4-b",
    "europe-west4-c", "us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east1-c", "us-east1-d",
    "us-east4-a", "us-east4-c", "us-east5-a", "us-east5-b", "us-west1-a", "us-west1-b", "us-west4-a", "us-west4-b",
)  # fmt: skip


def regions(zones: Iterable[str]) -> list[str]:
    return sorted({region_of(zone) for zone in zones})


# What slices there are of which machines: "TPU machines in accelerator-optimized machine family"; of GPUs, "workload
# policies in MIGs". Two ct6e-standard-4t as one 2x4 are GKE's alone.
TOPOLOGIES: Final = {
    "ct5p-hightpu-4t": "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16",
    "ct6e-standard-1t": "1x1",
    "ct6e-standard-4t": "2x2 4x4 4x8 8x8 8x16 16x16",
    "ct6e-standard-8t": "2x4",
    "tpu7x-standard-4t": "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16",
    "a4x-highgpu-4g": "1x72",
}


def hosts(machine: MachineType, topology: str) -> int:
    """Return the number of machines of a slice of that topology; 0 if there is none."""
    if topology not in TOPOLOGIES.get(machine.name, "").split():
        return 0
    return math.prod(map(int, topology.split("x"))) // machine.accelerators
