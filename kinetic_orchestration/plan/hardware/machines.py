"""The VMs of Compute Engine for the hosts of a slice: machine, boot disk and image, and the ways to get them. Pure.

Machines, their processors and their memory are those of `nodes`, since GKE's nodes are the same VMs. Added here is what
whoever creates a VM has to say. This module does not know zones, prices, or what is free.

Sources, read in November 2026: Compute Engine's pages "Accelerator-optimized machines", "TPU machines in the
accelerator-optimized machine family", "Create a MIG with multi-host TPU slice", "GPU machine types" and "Provisioning
models"; for families of images those of the project `ubuntu-os-accelerator-images`; for disks SkyPilot's table of
machines, and "About Hyperdisk Balanced", by which no other Hyperdisk of one zone can be a boot disk.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from kinetic_orchestration.errors import UnknownAccelerator, Unsupported, UsageError
from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.plan.hardware.accelerators import FLEX_START, ON_DEMAND, RESERVATION, SPOT, Slice, Way

_ALL: tuple[Way, ...] = (ON_DEMAND, SPOT, FLEX_START, RESERVATION)
_NO_FLEX_START: tuple[Way, ...] = (ON_DEMAND, SPOT, RESERVATION)
_FEW_H100: tuple[Way, ...] = (SPOT, FLEX_START)  # of a3-highgpu with fewer than eight

# How a user asks for each.
_ASKED: dict[Way, str] = {
    ON_DEMAND: "neither",
    SPOT: "spot=True",
    FLEX_START: "cloud=Compute(flex_start=True)",
    RESERVATION: "cloud=Compute(reservation='NAME')",
}

FLEX_START_RUN = (600.0, 7 * 86400.0)
"""The shortest and the longest run of a VM by flex-start, in seconds."""
FLEX_START_SPARE = 3600.0
"""The part of its longest run that the VM's boot and the end of its program take, in seconds."""
FLEX_START_WAIT = 2 * 3600.0
"""The longest that flex-start lets one VM wait, in seconds."""

PD_BALANCED, PD_SSD, PD_STANDARD, HYPERDISK = "pd-balanced", "pd-ssd", "pd-standard", "hyperdisk-balanced"

IMAGES = "ubuntu-os-accelerator-images"
"""The project of Ubuntu images that have a driver of GPUs, or are made for TPUs."""
WITH_DOCKER = "projects/ml-images/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
"""An image with a driver of GPUs that has docker and NVIDIA's container toolkit as well."""
_DOCKER_BY_PROJECT = {IMAGES: False, "ml-images": True, "deeplearning-platform-release": True, "debian-cloud": False}
_NVIDIA_580 = "ubuntu-accelerator-2204-amd64-with-nvidia-580"
_OLDER_TPUS = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
_TPU7X = "ubuntu-accel-2404-amd64-tpu-tpu7x"


@dataclass(frozen=True, slots=True)
class Machine:
    """The VM of one host.

    Attributes:
        machine_type: Its name.
        accelerator: The type of the GPUs that are added to an N1 machine; "" for a machine that has its own.
        count: Number of GPUs or chips.
        disk_types: Types that its boot disk may have. The first is that of a job that names none.
        image_project: Project of its image.
        image_family: Family of its image.
        models: Ways to get it.
        vcpus: Number of its processors.
        memory_gib: Size of its memory.
        threads_per_core: Number of threads that a core has to run; 0 for any.
        disk_gib: Size of its boot disk, unless the job names another.
    """

    machine_type: str
    accelerator: str
    count: int
    disk_types: tuple[str, ...]
    image_project: str
    image_family: str
    models: tuple[Way, ...]
    vcpus: int
    memory_gib: int
    threads_per_core: int = 0
    disk_gib: int = 0


class BootDisk(NamedTuple):
    """The boot disk of a VM: its type, and its size in GiB."""

    type: str
    gib: int


class _Family(NamedTuple):
    """Facts that all machines of one accelerator share."""

    disk_types: tuple[str, ...]
    models: tuple[Way, ...] = _ALL
    image: str = _NVIDIA_580
    accelerator: str = ""


_OF_A3 = (PD_BALANCED, PD_SSD, HYPERDISK)
_ANY_PD = (PD_BALANCED, PD_SSD, PD_STANDARD)
_FAMILIES: dict[str, _Family] = {
    "b200": _Family((HYPERDISK,)),
    "h200": _Family((HYPERDISK,)),
    "h100-mega": _Family(_OF_A3),
    "h100": _Family(_OF_A3),
    "a100-80gb": _Family(_ANY_PD),
    "a100": _Family(_ANY_PD),
    "rtx-pro-6000": _Family((HYPERDISK,)),
    "l4": _Family((PD_BALANCED, PD_SSD)),
    "t4": _Family(_ANY_PD, _NO_FLEX_START, accelerator="nvidia-tesla-t4"),
    "v5p": _Family((PD_BALANCED, HYPERDISK), image=_OLDER_TPUS),  # one page of Google has the first, another the second
    "v6e": _Family((HYPERDISK,), image=_OLDER_TPUS),
    "tpu7x": _Family((HYPERDISK,), image=_TPU7X),
}

# Of TPUs: those that are made as one VM, and the topologies in which one group links VMs of four chips each. Two of
# v6e's as 2x4 are GKE's alone, and a group of one zone has 1000 VMs at most, so v5p's 16x16x16 is not among them.
# Of the ways to get them, "Create a multi-host TPU slice" shows on demand and "Request TPU Spot VMs" spot, while
# "Create a MIG that uses the bulk mode" names flex-start and reservations alone: none is refused here.
_SIZES_ON_ONE = {"v5p": (4,), "v6e": (1, 4, 8), "tpu7x": (4,)}
_CUBES = "2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16"
_LINKED = {"v5p": _CUBES.split(), "v6e": ["4x4", "4x8", "8x8", "8x16", "16x16"], "tpu7x": _CUBES.split()}
_BEFORE_TURING = ("v100", "p100", "p4")  # whose driver is closed, which the images do not have
_THREADS_PER_CORE = {"ct6e-standard-8t": 1}  # else the API refuses it
_MANY_GPUS = 8
_DISK = 100
_DISK_OF_MANY_GPUS = 200  # their programs bring larger models, and local SSDs are not mounted


def machine_of(slice_: Slice) -> Machine:
    """Return the VM of one host of the slice.

    Raises:
        Unsupported: Compute Engine has none, as `refusal` says.
    """
    if reason := _none_for(slice_):
        raise Unsupported(reason)
    known, node = _FAMILIES[slice_.generation], nodes.node(slice_)
    few_h100 = slice_.generation == "h100" and node.count < _MANY_GPUS
    many = slice_.kind == "gpu" and node.count >= _MANY_GPUS
    return Machine(
        machine_type=node.machine,
        accelerator=known.accelerator,
        count=node.count,
        disk_types=known.disk_types,
        image_project=IMAGES,
        image_family=known.image,
        models=_FEW_H100 if few_h100 else known.models,
        vcpus=node.cpus,
        memory_gib=node.memory_gib,
        threads_per_core=_THREADS_PER_CORE.get(node.machine, 0),
        disk_gib=_DISK_OF_MANY_GPUS if many else _DISK,
    )


def boot_disk(machine: Machine, *, type: str = "", gib: int = 0) -> BootDisk:
    """Return the boot disk of a VM; what is not named is the usual one of its machine."""
    return BootDisk(type or machine.disk_types[0], gib or machine.disk_gib)


def serves(slice_: Slice) -> bool:
    """Return True if Compute Engine has the slice, in whatever way."""
    return not _none_for(slice_)


def are_grouped(slice_: Slice, slices: int) -> bool:
    """Return True if the VMs of so many slices are made by groups, which link or join TPUs, and not one by one."""
    return slice_.kind == "tpu" and slice_.hosts * slices > 1


def platforms(slice_: Slice) -> tuple[str, ...]:
    """Return the backends on Google Cloud that can have the slice, in the order in which the rule prefers them."""
    found = ["tpu-vm"] if slice_.accelerator_type else []
    found += ["compute"] if serves(slice_) else []
    with contextlib.suppress(UnknownAccelerator):
        found += ["gke"] if slice_.kind == "cpu" or slice_.whichever or nodes.node(slice_).machine else []
    return tuple(found)


def refusal(slice_: Slice, model: Way) -> str:
    """Return why the slice's hosts cannot be VMs that are got in this way, and what to do instead; "" if they can."""
    if reason := _none_for(slice_):
        return reason
    machine = machine_of(slice_)
    if model in machine.models:
        return ""
    ways = " or ".join(_ASKED[way] for way in machine.models if way != ON_DEMAND)
    if model == ON_DEMAND:
        more = ""
        if machine.models == _FEW_H100:
            more = f"; {slice_.generation}x{_MANY_GPUS} comes on demand, too"
        return f"{slice_.name} ({machine.machine_type}) does not come on demand: add {ways}{more}"
    leave = "" if ON_DEMAND not in machine.models else ", or leave it out for one on demand"
    return f"{slice_.name} ({machine.machine_type}) does not come by {_ASKED[model]}: take {ways}{leave}"


def has_docker(image: str) -> bool | None:
    """Return True if an image, by its path, is one of Google's that run containers with GPUs, False if it is one that
    has no docker, and None if that is not known."""
    parts = image.split("/")
    return _DOCKER_BY_PROJECT.get(parts[1]) if len(parts) > 2 and parts[0] == "projects" else None


def driver_of(image: str) -> int:
    """Return the branch of NVIDIA's driver that an image has, as Google's are named by it; 0 if the name has none."""
    found = re.search(r"nvidia-(\d{3})\b", image)
    return int(found[1]) if found else 0


def between_hosts(slice_: Slice) -> str:
    """Return by what the VMs of several hosts are joined, for users; "" for one host."""
    if slice_.machines == 1:
        return ""
    direct = nodes.GPUDIRECT.get(nodes.node(slice_).gpudirect, "")
    unused = (
        f". {direct}, which their machines have, takes networks that this package does not set up" if direct else ""
    )
    return (
        f"the {slice_.machines} hosts of {slice_.name} are joined over plain TCP and one network interface each, so "
        f"steps that wait for the network are slow{unused}"
    )


def check_flex_start(run: float, shown: str) -> None:
    """Refuse a run that flex-start does not give.

    Args:
        run: The limit of the run in seconds.
        shown: The same for users.

    Raises:
        UsageError: It is shorter or longer than flex-start lets a VM run.
    """
    shortest, longest = FLEX_START_RUN
    if not shortest <= run <= longest - FLEX_START_SPARE:
        raise UsageError(
            f"limits.run is {shown}, and flex-start gives a VM for 10 minutes to 7 days, of which its boot and its end "
            "take a part: choose a limit from 10m to 167h, "
            "or another way to get it (spot=True, a reservation, or on demand)"
        )


def _none_for(slice_: Slice) -> str:
    """Return why Compute Engine has no VM for a host of the slice, and what to do instead; "" if it has one."""
    if slice_.kind == "cpu":
        return (
            f"{slice_.name} names no accelerator, and the compute backend makes VMs with GPUs or TPUs alone: name one, "
            "such as l4, or run it on this machine's CPU with backend='local'"
        )
    if slice_.kind == "tpu":
        return _no_tpu(slice_)
    if slice_.whichever:
        counted = "" if slice_.chips == 1 else f"x{slice_.chips}"
        return (
            f"{slice_.name} is of any model, and a VM of Compute Engine has one: name it, as in l4{counted} or "
            f"a100{counted}"
        )
    if slice_.generation in _BEFORE_TURING:
        return (
            f"{slice_.name} needs a driver for GPUs older than the T4, which the images of the compute backend (driver "
            "580, open kernel modules) do not have: take t4 or l4, or a node pool of GKE with backend='gke'"
        )
    node = nodes.node(slice_)
    if node.arm:
        return (
            f"{slice_.name} has Arm processors, for which no packages are locked: run it on GKE with backend='gke' and "
            "a container_image= for arm64, or take b200x8"
        )
    return "" if node.machine else nodes.no_machine(slice_)


def _no_tpu(slice_: Slice) -> str:
    name, generation = slice_.name, slice_.generation
    if generation == "v5e":
        return (
            f"{name} cannot be a VM of Compute Engine, whose API refuses the machines of v5e: Cloud TPU has it, with "
            "backend='tpu-vm', and GKE, with backend='gke'"
        )
    if generation not in _SIZES_ON_ONE:
        return (
            f"{name} cannot be a VM of Compute Engine, which begins with v5p: Cloud TPU has it, with backend='tpu-vm'"
        )
    alone = _SIZES_ON_ONE[generation]
    if slice_.topology in _LINKED[generation] or (slice_.hosts == 1 and slice_.chips in alone):
        return ""
    if slice_.hosts == 1:
        sizes = " or ".join(f"{generation}-{chips}" for chips in alone)
        return (
            f"{name} is a part of a machine of Compute Engine, and GKE alone divides it: take {sizes}, or backend='gke'"
        )
    there = "GKE has it, with backend='gke' and a cluster"
    if slice_.accelerator_type:
        there = f"Cloud TPU has it, with backend='tpu-vm', and {there}"
    linked = (math.prod(map(int, topology.split("x"))) for topology in _LINKED[generation])
    known = sorted({*alone, *linked})
    near = [size for size in known if size <= slice_.chips][-1:] + [size for size in known if size > slice_.chips][:1]
    return (
        f"{name} is {slice_.hosts} VMs of {slice_.chips_per_host} chips as {slice_.topology}, which no group of VMs "
        f"links: take {' or '.join(f'{generation}-{size}' for size in near)}; {there}"
    )
