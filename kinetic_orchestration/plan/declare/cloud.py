"""The options that only one kind of cloud has, as the user gives them in `cloud=`. Their effect, it does not know."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from kinetic_orchestration.errors import UsageError

_Named = TypeVar("_Named", bound=Collection[Any])

OF_ANY_BACKEND = ("accelerator_type", "num_slices", "labels")  # of `cloud=`

# Options that there were, and what to do instead.
_GONE: Mapping[str, str] = {
    "data_disks": "no disk is mounted on the hosts, so a program would find nothing of it. Put what it reads into a "
    "bucket, and give Data('gs://my-bucket/folder/') as an argument or in volumes=; what does not fit on a host's own "
    "disk is read from gs:// by the program itself",
}


def refuse_gone(whose: str, given: _Named) -> _Named:
    """Return the given names, unless one is an option that was removed.

    Args:
        whose: Name of the object that had the option.
        given: Names, or a mapping of names.

    Raises:
        UsageError: One was removed. The message says what to do instead.
    """
    for name in given:
        if name in _GONE:
            raise UsageError(f"{whose}({name}=…): {_GONE[str(name)]}")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOptions:
    """Base of the classes whose objects `cloud=` takes. Their other fields are JSON as well."""

    num_slices: int = 1
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TpuVm(CloudOptions):
    """Options that only Cloud TPU has.

    Attributes:
        zones: Zones to try, in order; by default all that have the slice.
        num_slices: Number of slices that are requested together and joined (multislice).
        accelerator_type: Cloud TPU's own name of the slice, such as `v5p-8`, in place of `accelerator`. It counts cores
            for v2 to v5p.
        reservation: Reservation to take the slice from, by name or whole path.
        network: Network of the hosts.
        subnetwork: Subnetwork of the hosts.
        external_ips: False creates hosts without public addresses.
        secure_boot: Create shielded hosts with secure boot.
        runtime_version: Image of the hosts; by default the one for the generation.
        service_account: Account of the hosts.
        tags: Network tags, for firewall rules.
        labels: Further labels of everything that is created, for the billing export.
        quota_project: Project that API requests are counted against.
    """

    zones: Sequence[str] = ()
    accelerator_type: str = ""
    reservation: str = ""
    network: str = ""
    subnetwork: str = ""  # of a shared VPC: projects/HOST/regions/REGION/subnetworks/NAME
    external_ips: bool = True
    secure_boot: bool = False
    runtime_version: str = ""  # "": the one that suits the generation
    service_account: str = ""
    tags: Sequence[str] = ()
    quota_project: str = ""
    data_disks: InitVar[object] = None  # no field: it is refused by name

    def __post_init__(self, data_disks: object) -> None:
        if data_disks:
            refuse_gone("TpuVm", ("data_disks",))

    # A pickle has the values in this order, also one of 0.1.

    def __getstate__(self) -> list[Any]:
        return [getattr(self, name) for name in _PICKLED]

    def __setstate__(self, state: Sequence[Any]) -> None:
        for name, value in zip(_PICKLED, state, strict=True):
            object.__setattr__(self, name, value)


_PICKLED = (
    *("zones", "num_slices", "accelerator_type", "reservation", "network", "subnetwork", "external_ips", "secure_boot"),
    *("runtime_version", "service_account", "tags", "labels", "quota_project"),
)


@dataclass(frozen=True, slots=True)
class Kubernetes(CloudOptions):
    """Options that only Kubernetes has.

    Attributes:
        clusters: Clusters to try, in order: contexts of the kubeconfig. By default `cluster`, else the current context.
        namespaces: Namespaces to try in each of them, in order. By default `namespace`, else that of the context.
        num_slices: Number of slices of TPUs that are requested together and joined (multislice).
        hosts: Number of nodes that have the accelerator's GPUs each, requested together and joined over TCP. Of v5e-8
            and v6e-8, 2 asks for a slice of two hosts with four chips each, as Keras Kinetic's pools of v6e-8 have.
        queue: Kueue's local queue that admits the pods, or several to try, in order, which each of the namespaces has;
            by default that of the settings, else pods are scheduled at once. As text, several have commas between them.
        priority_class: Kueue's priority class in that queue.
        reservation: Reservation of GKE to take machines from: its name, or its whole path if another project shares it.
        flex_start: Take machines of GKE by flex-start: Google gives them when it has some, for 7 days at most.
        queued_provisioning: Take all machines of flex-start at once: an admission check of the queue asks for them.
        service_account: Kubernetes service account of the pods.
        node_selector: Labels that nodes must have. For GPUs of a named model they replace the labels that are looked
            for otherwise.
        tolerations: Taints that the pods tolerate besides those of accelerators: `key`, `key=value` or
            `key=value:NoSchedule`.
        env_from: Secrets of the namespace whose entries become variables of the pods, such as the credentials of a
            store on S3.
        image_pull_secrets: Secrets of the namespace with which a private image is pulled.
        run_as_user: Number of the user as whom pods run, with no right to become another, as namespaces of the Pod
            Security Standard "restricted" want it: that of the image's own user, or any, such as 1000, for an image
            that lets all users run its Python. By default the image says who.
        labels: Further labels of everything that is created.
    """

    clusters: Sequence[str] = ()
    namespaces: Sequence[str] = ()
    hosts: int = 1
    queue: str | Sequence[str] = ""
    priority_class: str = ""
    reservation: str = ""
    flex_start: bool = False
    queued_provisioning: bool = False
    service_account: str = ""
    node_selector: Mapping[str, str] | None = None
    tolerations: Sequence[str] = ()
    env_from: Sequence[str] = ()
    image_pull_secrets: Sequence[str] = ()
    run_as_user: int = 0


@dataclass(frozen=True, slots=True)
class Compute(CloudOptions):
    """Options that only VMs of Compute Engine have.

    Attributes:
        zones: Zones to try, in order; by default those that are published for the hardware.
        num_slices: Number of slices of TPUs that are requested together and joined (multislice).
        hosts: Number of VMs that have the accelerator's GPUs each, requested together and joined over TCP.
        reservation: Reservation to take the VMs from, by name or whole path. Without one, none is used.
        reservation_bound: The VMs end with the reservation, as those of one that was booked for a time must.
        flex_start: Take the VMs by flex-start: Google gives them when it has some, for 7 days at most.
        network: Network of the VMs.
        subnetwork: Subnetwork of the VMs.
        external_ips: False creates VMs without public addresses.
        secure_boot: Create shielded VMs with secure boot, which loads no unsigned driver.
        image: Image of the boot disk, as `family/NAME` or `NAME` of the project, or by its path; by default the one for
            the hardware.
        disk_gib: Size of the boot disk in GiB; by default one for the hardware.
        disk_type: Type of the boot disk; by default the first that the machine takes.
        service_account: Account of the VMs.
        tags: Network tags, for firewall rules.
        labels: Further labels of everything that is created, for the billing export.
        quota_project: Project that API requests are counted against.
    """

    zones: Sequence[str] = ()
    hosts: int = 1
    reservation: str = ""
    flex_start: bool = False
    network: str = ""
    subnetwork: str = ""  # of a shared VPC: projects/HOST/regions/REGION/subnetworks/NAME
    external_ips: bool = True
    secure_boot: bool = False
    image: str = ""  # "": the one that suits the hardware
    disk_gib: int = 0  # 0: what suits the hardware
    service_account: str = ""
    tags: Sequence[str] = ()
    quota_project: str = ""
    reservation_bound: bool = False
    disk_type: str = ""  # "": the one that suits the hardware


@dataclass(frozen=True, slots=True)
class Slurm(CloudOptions):
    """Options that only a cluster of Slurm has.

    Attributes:
        partition: Partition, or several with commas between them; by default that of the cluster.
        account: Account that the job is counted for.
        qos: Quality of service.
        gres: Generic resources of each node, as this cluster names them, such as `gpu:a100:4`. By default the GPUs of
            the accelerator: `gpu:1` for "gpu", `gpu:h100:8` for "h100x8".
        constraint: Features that nodes must have.
        time: Time limit of an attempt as sbatch takes it, such as `12:00:00`. By default it follows from `limits.run`,
            else it is the partition's. An attempt that reaches it is followed by another one, from its checkpoint.
        folder: Folder that this machine and all nodes mount under the same path, in which hosts work; by default
            `KINETIC_HOME`.
        hosts: Number of nodes that have the accelerator each, requested together and joined over TCP.
        cpus: CPUs of each node; by default what Slurm gives, one on many clusters.
        memory: Memory of each node, such as `64G`; by default what Slurm gives.
        labels: Further labels of the job, which Slurm does not show.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    gres: str = ""
    constraint: str = ""
    time: str = ""
    folder: str = ""
    hosts: int = 1
    cpus: int = 0
    memory: str = ""


class Reservation(NamedTuple):
    """A reservation, as it is named: "" for what its path leaves out."""

    name: str
    project: str = ""
    zone: str = ""


_RESERVATION = (  # compiled when it is first asked
    r"(?:projects/(?P<project>[a-z0-9.:-]+)/(?:(?:zones|locations)/(?P<zone>[a-z0-9-]+)/)?reservations/)?"
    r"(?P<name>[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
)


def reservation_of(given: str) -> Reservation | None:
    """Return the reservation that a name or a path names; None if it names none, or a part of one."""
    match = re.fullmatch(_RESERVATION, given)
    return Reservation(match["name"], match["project"] or "", match["zone"] or "") if match is not None else None


# Options that mean the same to Cloud TPU and to Compute Engine.
_OF_ANY_VMS = ["zones", "labels", "network", "subnetwork", "external_ips", "service_account", "tags", "quota_project"]


def as_compute(cloud: CloudOptions | None) -> Compute | None:
    """Return options as those of VMs of Compute Engine; None if they are of another cloud.

    `TpuVm` counts if it names no more than what both have, as an orchestrator's resource does, whatever the hardware.
    """
    if isinstance(cloud, TpuVm):
        same: dict[str, Any] = {name: getattr(cloud, name) for name in _OF_ANY_VMS}
        return Compute(**same) if cloud == TpuVm(**same) else None
    return cloud if isinstance(cloud, Compute) else None


def queues_of(asked: str | Sequence[str]) -> tuple[str, ...]:
    """Return the queues that the option `queue` names, in the order in which they are tried."""
    names = asked.split(",") if isinstance(asked, str) else asked
    return tuple(dict.fromkeys(filter(None, map(str.strip, names))))


_EVERYWHERE = ("zones", "clusters", *OF_ANY_BACKEND)  # fields of a plan of their own
_OF_KUBERNETES = ("namespaces", "hosts")
_OF_COMPUTE = ("hosts",)


def fields_of(cloud: Any) -> dict[str, Any]:
    """Return the options of `cloud=` as JSON, without those that a plan has for every backend."""
    own = (*_EVERYWHERE, *(_OF_KUBERNETES if isinstance(cloud, Kubernetes) else ()))
    own += _OF_COMPUTE if isinstance(cloud, Compute | Slurm) else ()
    found = {entry.name: getattr(cloud, entry.name) for entry in fields(cloud) if entry.name not in own}
    if isinstance(cloud, Kubernetes):
        found["queue"] = ",".join(queues_of(cloud.queue))
    return {name: _as_json(value) for name, value in found.items()}


def kind_with(names: Collection[str]) -> type[TpuVm] | type[Compute] | type[Kubernetes] | type[Slurm]:
    """Return the class of options that has all these names; if none has, the one that has more of them."""
    found = {kind: {entry.name for entry in fields(kind)} for kind in (TpuVm, Kubernetes, Compute, Slurm)}
    if (fitting := next((kind for kind, known in found.items() if set(names) <= known), None)) is not None:
        return fitting
    return TpuVm if found[Kubernetes].difference(found[TpuVm]).isdisjoint(names) else Kubernetes


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
