"""The parts of one host's VM for which Google charges: GPUs or TPUs, the machine's cores and memory, disks. Pure.

Each part has the name under which a price list has its price for an hour: of one GPU, one core, or one GiB. This module
knows no prices.

Sources: Compute Engine's pages "Accelerator-optimized machines pricing" and "GPU pricing"; for the local SSDs that come
with a machine SkyPilot's `sky/provision/gcp/constants.py`. The rows of B200 are for a slice of the whole machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.hardware.machines import BootDisk, boot_disk, machine_of

LOCAL_SSD = "local-ssd"
_LOCAL_SSD_GIB = 375  # of one
# By the beginning of a machine type's name, the longest first.
FAMILIES: Mapping[str, str] = {
    "a3-ultragpu": "a3ultra", "a3-megagpu": "a3plus", "a3-highgpu": "a3", "a2-ultragpu": "a2", "a4-": "a4", "a2-": "a2",
    "g2-": "g2", "g4-": "g4", "n1-": "n1",
}  # fmt: skip
WHOLE = ("a4",)
"""Families of which the price of a GPU is that of its share of the whole machine, but for the boot disk."""
# Local SSDs that come with a machine, by its GPUs: how many for each. No row of those of a3-ultragpu is known, so they
# are counted at the price of the others.
_SSDS_FOR_EACH = {"a2-ultragpu": 1, "a3-highgpu": 2, "a3-megagpu": 2, "a3-ultragpu": 4}


class Part(NamedTuple):
    """A part of one VM.

    Attributes:
        name: The name of its price.
        amount: How many GPUs, cores or GiB of it the VM has.
        words: The same for users.
        is_disk: It has one price, however the VM is got.
    """

    name: str
    amount: float
    words: str
    is_disk: bool = False


def core(family: str) -> str:
    return f"{family} core"


def memory(family: str) -> str:
    return f"{family} memory"


def parts_of(slice_: Slice, disk: BootDisk | None = None) -> tuple[Part, ...]:
    """Return the parts of the VM of one host, the GPUs or chips first.

    Of a TPU the price of a chip contains its machine. Only a boot disk that is given is a part beside it.

    Args:
        slice_: The slice.
        disk: The boot disk. If none is given, GPUs have the usual one of their machine.

    Raises:
        Unsupported: It has GPUs, and Compute Engine has no VM for it.
    """
    if slice_.kind == "tpu":
        chips = Part(slice_.generation, slice_.chips_per_host, "a chip")
        return (chips, _disk(disk)) if disk is not None else (chips,)
    machine = machine_of(slice_)
    prefix, family = next((one, name) for one, name in FAMILIES.items() if machine.machine_type.startswith(one))
    found = [Part(slice_.generation, machine.count, "GPU" if machine.count == 1 else f"{machine.count} GPUs")]
    if family not in WHOLE:
        found.append(Part(core(family), machine.vcpus, f"{machine.vcpus} cores"))
        found.append(Part(memory(family), machine.memory_gib, f"{machine.memory_gib} GiB of memory"))
        if each := _SSDS_FOR_EACH.get(prefix):
            gib = each * machine.count * _LOCAL_SSD_GIB
            found.append(Part(LOCAL_SSD, gib, f"{gib} GiB of local SSDs"))
    return (*found, _disk(disk or boot_disk(machine)))


def _disk(disk: BootDisk) -> Part:
    return Part(disk.type, disk.gib, f"a boot disk of {disk.gib} GiB", is_disk=True)
