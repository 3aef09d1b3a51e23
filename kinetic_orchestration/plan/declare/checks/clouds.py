"""The checks of the options that only one kind of cloud has, beside the others of a job. Pure."""

from __future__ import annotations

import re
from typing import Any

from kinetic_orchestration.errors import ConflictingSettings, UsageError
from kinetic_orchestration.plan.configuration import cluster_names
from kinetic_orchestration.plan.declare.cloud import (
    CloudOptions,
    Compute,
    Kubernetes,
    Slurm,
    TpuVm,
    queues_of,
    reservation_of,
)
from kinetic_orchestration.plan.declare.spec import DEFAULT_ACCELERATOR, Options, is_spot, slice_of
from kinetic_orchestration.plan.hardware import accelerators, regions
from kinetic_orchestration.protocol.schema import MOST_HOSTS, MOST_SLICES


def check_cloud(options: Options, cloud: CloudOptions) -> None:
    """Refuse invalid options of a cloud, and those that contradict others of the job.

    Raises:
        UsageError: An option is invalid, or two exclude each other.
    """
    _check_slices(options, cloud.num_slices)
    if isinstance(cloud, Kubernetes):
        _check_pods(options, cloud)
    if isinstance(cloud, Compute):
        _check_vms(options, cloud)
    if isinstance(cloud, Slurm):
        _check_nodes(cloud)
    named = cloud.accelerator_type if isinstance(cloud, TpuVm) else ""
    if named and options.accelerator != DEFAULT_ACCELERATOR:
        raise ConflictingSettings(
            f"both accelerator={options.accelerator!r} and cloud=TpuVm(accelerator_type={named!r}) name the slice: "
            "keep one"
        )
    if isinstance(cloud, TpuVm | Compute) and options.zone and cloud.zones:
        given = f"cloud={type(cloud).__name__}(zones={list(cloud.zones)!r})"
        raise ConflictingSettings(f"both zone={options.zone!r} and {given} say where: keep one")
    if isinstance(cloud, TpuVm | Compute) and cloud.reservation:
        _check_reservation(options, cloud)
    if isinstance(cloud, TpuVm | Compute | Kubernetes) and cloud.reservation and is_spot(options):
        raise ConflictingSettings(
            f"spot=True and the reservation {cloud.reservation!r} exclude each other: reserved hardware is never a "
            "spot slice; keep one"
        )


_OF_SLURM = {  # what sbatch takes: a value with anything else in it would be another option, or none
    "partition": r"[\w.,+-]*",
    "account": r"[\w.@+-]*",
    "qos": r"[\w.@+-]*",
    "gres": r"[\w.:,=/+-]*",
    "constraint": r"[\w.,&|()\[\]*!:+-]*",
    "time": r"(?:\d+-\d+(?::\d+){0,2}|\d+(?::\d+){0,2}|)",
    "memory": r"\d*[KMGTkmgt]?",
}


def _check_nodes(cloud: Slurm) -> None:
    for name, pattern in _OF_SLURM.items():
        given = getattr(cloud, name)
        if not isinstance(given, str) or not re.fullmatch(pattern, given, re.ASCII) or given.startswith("-"):
            raise UsageError(f"cloud=Slurm({name}={given!r}) is nothing that sbatch takes: see `man sbatch`, --{name}")
    if not isinstance(cloud.folder, str) or (cloud.folder and not cloud.folder.startswith(("/", "~"))):
        raise UsageError(f"cloud=Slurm(folder={cloud.folder!r}) is the whole path of a folder, as all nodes see it")
    for name, least in (("hosts", 1), ("cpus", 0)):
        number = getattr(cloud, name)
        if type(number) is not int or not least <= number <= MOST_HOSTS:
            raise UsageError(f"cloud=Slurm({name}={number!r}): it is a number from {least} to {MOST_HOSTS}")


def _check_reservation(options: Options, cloud: TpuVm | Compute) -> None:
    """Refuse what names no reservation, and a place that is not the reservation's own."""
    given = f"cloud={type(cloud).__name__}(reservation={cloud.reservation!r})"
    named = reservation_of(cloud.reservation)
    if named is None:
        part = "a block of one is none: " if "/reservationBlocks/" in cloud.reservation else ""
        raise UsageError(
            f"{given} names no reservation: {part}write its name, projects/PROJECT/reservations/NAME for one that "
            "another project shares, or projects/PROJECT/zones/ZONE/reservations/NAME, which says where it is as well"
        )
    zones = (cloud.zones,) if isinstance(cloud.zones, str) else cloud.zones
    others = [zone for zone in (*zones, options.zone or "") if zone and zone != named.zone]
    if named.zone and others:
        said = f"zone={options.zone!r}" if options.zone else f"zones={list(zones)!r}"
        raise ConflictingSettings(
            f"both {given} and {said} say where: leave out the latter, as a reservation is of one zone"
        )


def _check_slices(options: Options, slices: Any) -> None:
    if type(slices) is not int or not 1 <= slices <= MOST_SLICES:
        raise UsageError(f"num_slices is {slices!r}: it is a number of slices, from 1 to {MOST_SLICES}")
    one = slice_of(options)
    if slices > 1 and one.hosts * slices > MOST_HOSTS:
        raise UsageError(
            f"num_slices is {slices}, and so many slices of {one.name} have {one.hosts * slices} hosts: a job has "
            f"{MOST_HOSTS} at most, so choose {MOST_HOSTS // one.hosts} or less"
        )


def _check_pods(options: Options, cloud: Kubernetes) -> None:
    for name in ("clusters", "namespaces", "env_from", "image_pull_secrets", "tolerations"):
        several = getattr(cloud, name)
        if isinstance(several, str):
            raise UsageError(f"cloud=Kubernetes({name}={several!r}) is a list: write [{several!r}]")
    for name in ("clusters", "namespaces"):
        one, several = getattr(options, name[:-1]), getattr(cloud, name)
        if one and several:
            raise ConflictingSettings(
                f"both {name[:-1]}={one!r} and cloud=Kubernetes({name}={list(several)!r}) say where: keep one"
            )

    _check_cluster_names(cloud)
    if type(cloud.hosts) is not int or not 1 <= cloud.hosts <= MOST_HOSTS:
        raise UsageError(f"cloud=Kubernetes(hosts={cloud.hosts!r}): it is a number of nodes, from 1 to {MOST_HOSTS}")
    asked = slice_of(options)
    if cloud.hosts > 1 and not accelerators.may_be_on(asked, cloud.hosts):
        other = "; num_slices= joins several slices" if asked.kind == "tpu" else ""
        may = accelerators.otherwise(asked)
        also = f", or hosts={may.hosts} with {may.chips_per_host} chips each" if may is not None else ""
        raise UsageError(
            f"cloud=Kubernetes(hosts={cloud.hosts}) is for nodes with GPUs, and {asked.name} has {asked.crew()}{also}: "
            f"leave hosts out{other}"
        )
    _check_purchase(options, cloud)
    if cloud.queued_provisioning and not cloud.flex_start:
        raise UsageError("queued_provisioning=True is a way of flex-start: add flex_start=True")


def _check_purchase(options: Options, cloud: Compute | Kubernetes) -> None:
    """Refuse flex-start beside another kind of capacity."""
    given = {"spot=True": is_spot(options), f"reservation={cloud.reservation!r}": cloud.reservation}
    if cloud.flex_start and any(given.values()):
        other = next(name for name, value in given.items() if value)
        raise ConflictingSettings(f"flex_start=True and {other} name two kinds of capacity: keep one")


_SUBNETWORK = r"(?:projects/[^/]+/)?regions/(?P<region>[^/]+)/subnetworks/[^/]+"
_NETWORK = r"(?:^|/)global/networks/[^/]+$"
_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"  # of any resource of Compute Engine, and of a tag
_ACCOUNT = r"[^@\s/]+@[^@\s/]+\.[^@\s/]+"
LEAST_DISK, LARGEST_DISK = 10, 65536  # GiB: of the images, and of any disk


def region_of_subnetwork(subnetwork: str) -> str:
    """Return the region of a subnetwork that is given by its path; "" for a name."""
    found = re.fullmatch(_SUBNETWORK, subnetwork)
    return found["region"] if found is not None else ""


def _check_vms(options: Options, cloud: Compute) -> None:
    for name in ("zones", "tags"):
        several = getattr(cloud, name)
        if isinstance(several, str):
            raise UsageError(f"cloud=Compute({name}={several!r}) is a list: write [{several!r}]")
    for zone in cloud.zones:
        regions.check_zone("cloud=Compute(zones=…)", zone)
    for tag in cloud.tags:
        if not re.fullmatch(_NAME, tag):
            raise UsageError(
                f"cloud=Compute(tags=…) has {tag!r}: a tag has small letters, digits and '-', begins with a letter, "
                "and is 63 letters long at most"
            )
    for name in ("image", "network", "subnetwork"):
        check_resource(f"cloud=Compute({name}=…)", getattr(cloud, name))
    check_account("cloud=Compute(service_account=…)", cloud.service_account)
    _check_machines(options, cloud)
    _check_purchase(options, cloud)
    if cloud.reservation_bound and not cloud.reservation:
        raise UsageError("cloud=Compute(reservation_bound=True) names no reservation: add reservation='NAME'")
    several = f"hosts={cloud.hosts}" if cloud.hosts > 1 else f"num_slices={cloud.num_slices}"
    if cloud.flex_start and (cloud.hosts > 1 or cloud.num_slices > 1):
        each, one = ("VM", "host") if cloud.hosts > 1 else ("slice", "slice")
        raise ConflictingSettings(
            f"flex_start=True gives each {each} by itself, and the first of {several} would cost money while it waits "
            f"for the others, for hours if need be: take one {one}, spot=True or a reservation; or all at once "
            "from GKE, with Kubernetes(flex_start=True, queued_provisioning=True)"
        )
    if "/" in cloud.network and not re.search(_NETWORK, cloud.network):
        raise UsageError(
            f"cloud=Compute(network={cloud.network!r}) is neither a name nor a path: write "
            "projects/HOST/global/networks/NAME"
        )
    if "/" in cloud.subnetwork and not region_of_subnetwork(cloud.subnetwork):
        raise UsageError(
            f"cloud=Compute(subnetwork={cloud.subnetwork!r}) is neither a name nor a path: write "
            "projects/HOST/regions/REGION/subnetworks/NAME"
        )


_LONGEST_NAME = 63


def check_resource(option: str, given: str) -> None:
    """Refuse a name, or a path that ends in one, that nothing on Compute Engine can have.

    Args:
        option: Where it was declared, for the message.
        given: The name or the path; "" if there is none.

    Raises:
        UsageError: It can be no name.
    """
    name = given.rpartition("/")[2]
    if given and not re.fullmatch(_NAME, name):
        raise UsageError(
            f"{option} has {given!r}, which Compute Engine never accepts: such a name has small letters, digits and "
            "'-', begins with a letter, and is 63 letters long at most"
            + (f"; this one has {len(name)}" if len(name) > _LONGEST_NAME else "")
        )


def check_account(option: str, given: str) -> None:
    """Refuse what is no address of an account.

    Args:
        option: Where it was declared, for the message.
        given: The address; "" if there is none.

    Raises:
        UsageError: It is no address.
    """
    if given and given != "default" and not re.fullmatch(_ACCOUNT, given):
        raise UsageError(
            f"{option} has {given!r}, which is the address of no account: write it whole, as in "
            "NAME@PROJECT.iam.gserviceaccount.com"
        )


def _check_machines(options: Options, cloud: Compute) -> None:
    asked = slice_of(options)
    if type(cloud.hosts) is not int or not 1 <= cloud.hosts <= MOST_HOSTS:
        raise UsageError(f"cloud=Compute(hosts={cloud.hosts!r}): it is a number of VMs, from 1 to {MOST_HOSTS}")
    if cloud.hosts > 1 and asked.kind != "gpu":
        other = "; num_slices= joins several slices" if asked.kind == "tpu" else ""
        raise UsageError(
            f"cloud=Compute(hosts={cloud.hosts}) is for VMs with GPUs, and {asked.name} has {asked.crew()}: leave "
            f"hosts out{other}"
        )
    if cloud.num_slices != 1 and asked.kind != "tpu":
        raise UsageError(
            f"cloud=Compute(num_slices={cloud.num_slices!r}) joins slices of TPUs, and {asked.name} is none: hosts= "
            "joins VMs with GPUs"
        )
    _check_disk(asked, cloud)
    why = {"gpu": "NVIDIA's modules are not signed", "tpu7x": "the image for TPU7x refuses it"}
    told = why.get(asked.kind) or why.get(asked.generation)
    if cloud.secure_boot and not cloud.image and told:
        raise UsageError(
            f"cloud=Compute(secure_boot=True): {told}, so {asked.name} would not work: leave it out, or name an image "
            "of your own with image="
        )


def _check_disk(asked: accelerators.Slice, cloud: Compute) -> None:
    if type(cloud.disk_gib) is not int or (cloud.disk_gib and not LEAST_DISK <= cloud.disk_gib <= LARGEST_DISK):
        raise UsageError(
            f"cloud=Compute(disk_gib={cloud.disk_gib!r}): the image alone takes {LEAST_DISK} GiB, with the packages on "
            f"top, and no disk has more than {LARGEST_DISK}: give a whole number of GiB, or leave it out"
        )
    if not cloud.disk_type:
        return
    from kinetic_orchestration.plan.hardware import machines  # whose tables few declarations need

    if not machines.serves(asked):
        return
    machine = machines.machine_of(asked)
    if cloud.disk_type not in machine.disk_types:
        raise UsageError(
            f"cloud=Compute(disk_type={cloud.disk_type!r}): {asked.name} ({machine.machine_type}) boots from "
            f"{' or '.join(machine.disk_types)}: name {'one of these' if machine.disk_types[1:] else 'that'}, or leave "
            f"it out for {machine.disk_types[0]}"
        )


def _check_cluster_names(cloud: Kubernetes) -> None:
    named = (
        ("namespaces", cloud.namespaces, cluster_names.NAMESPACE),
        ("queue", queues_of(cloud.queue), cluster_names.OF_QUEUE),
        ("priority_class", (cloud.priority_class,), cluster_names.OF_QUEUE),
        ("service_account", (cloud.service_account,), cluster_names.OBJECT),
        ("env_from", cloud.env_from, cluster_names.OBJECT),
        ("image_pull_secrets", cloud.image_pull_secrets, cluster_names.OBJECT),
    )
    for option, given, rule in named:
        for name in given:
            if name or option not in ("priority_class", "service_account"):  # "" is none
                cluster_names.check(f"cloud=Kubernetes({option}=…)", name, rule)
    for key, value in (cloud.node_selector or {}).items():
        cluster_names.check_label_key("cloud=Kubernetes(node_selector=…)", key)
        cluster_names.check("cloud=Kubernetes(node_selector=…)", value, cluster_names.LABEL_VALUE)
