"""The node of a Kubernetes cluster that suits one host of a slice, and the pool of GKE that has such nodes. Pure.

A slice becomes a `Node`: the resource a pod requests, the labels it selects, the machine whose shape it may fill. This
module does not know a cluster, a queue or a manifest, nor whether capacity is free.

Sources. Labels and topologies of TPUs: the page "Plan TPUs in GKE", AI-Hypercomputer/xpk, keras-team/kinetic. Machines:
Compute Engine's pages on accelerator-optimized machines and on TPU machines, and the API's own list, which
Cyclenerd/google-cloud-pricing-cost-calculator publishes as `tools/machinetypes.csv`. Reservations of a node:
kubernetes/autoscaler, `cloudprovider/gce/reserved.go`, which is GKE's published formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from kinetic_orchestration.errors import UnknownAccelerator, UsageError
from kinetic_orchestration.plan.hardware.accelerators import Slice, joined, parse
from kinetic_orchestration.plan.hardware.regions import region_of

TPU = "google.com/tpu"
GPU = "nvidia.com/gpu"
GPU_PRODUCT = "nvidia.com/gpu.product"  # a label by NVIDIA's GPU feature discovery
TPU_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
GPU_ACCELERATOR = "cloud.google.com/gke-accelerator"
ARCHITECTURE = "kubernetes.io/arch"
SPOT = ("cloud.google.com/gke-spot", "true")  # label of GKE's nodes, and taint of those of our pools
FLEX_START = ("cloud.google.com/gke-flex-start", "true")  # as well

GpuDirect = Literal["", "tcpx", "tcpxo", "rdma"]


@dataclass(frozen=True, slots=True)
class Node:
    """The needs of one host of a slice. Fields about a machine are empty where no machine of GKE is known."""

    resource: str  # that the pod requests; "" for a slice without accelerators
    count: int  # of the resource
    labels: Mapping[str, str]  # that GKE gives its nodes
    products: tuple[str, ...] = ()  # values of GPU_PRODUCT on any other cluster; empty if any GPU will do
    machine: str = ""
    cpus: int = 0
    memory_gib: int = 0
    arm: bool = False
    gpudirect: GpuDirect = ""  # what its machines use between hosts, with networks and an installer of their own
    on_demand: bool = True  # if not, its machines come by flex-start or as spot alone, or by reservation alone
    flex_start: bool = False

    @property
    def only_by_flex_start(self) -> bool:
        """True if what is not spot comes by flex-start."""
        return not self.on_demand and self.flex_start

    @property
    def taints(self) -> tuple[str, ...]:
        """The keys of the taints that a pod must tolerate: GKE's of accelerators, and of nodes with Arm processors."""
        return (*([self.resource] if self.resource else []), *([ARCHITECTURE] if self.arm else []))


class _Machine(NamedTuple):
    """A machine type; Compute Engine's GB is a GiB."""

    name: str
    cpus: int
    memory_gib: int


class _TpuNodes(NamedTuple):
    """The nodes of one TPU generation."""

    label: str
    machines: Mapping[int, _Machine]  # by chips of a slice of one host
    several_label: str  # of slices of several hosts
    several: _Machine
    flex_start: bool
    workload_policy: bool  # a slice of several hosts has one in place of --tpu-topology


class _GpuNodes(NamedTuple):
    """The nodes of one GPU model."""

    label: str
    machines: Mapping[int, _Machine]  # by GPUs
    products: tuple[str, ...]
    gpudirect: GpuDirect = ""
    flex_start: bool = False
    on_demand: tuple[int, ...] = (1, 2, 4, 8, 16)  # the counts that are
    arm: bool = False
    policy_topology: str = ""  # of the workload policy that its pools need
    driver: str = "latest"  # of those that GKE offers


_CT5LP = _Machine("ct5lp-hightpu-4t", 112, 192)
_CT6E = _Machine("ct6e-standard-4t", 180, 720)
_TPU7X = _Machine("tpu7x-standard-4t", 224, 960)
_CT4P = _Machine("ct4p-hightpu-4t", 240, 407)
_CT5P = _Machine("ct5p-hightpu-4t", 208, 448)

# fmt: off
_TPU_NODES: dict[str, _TpuNodes] = {
    # Kinetic writes tpu-v3-podslice; GKE's autoscaler has tpu-v3-device for one host and tpu-v3-slice for several.
    "v3": _TpuNodes("tpu-v3-device", {4: _Machine("ct3-hightpu-4t", 96, 340)},
                    "tpu-v3-slice", _Machine("ct3p-hightpu-4t", 48, 340), False, False),
    "v4": _TpuNodes("tpu-v4-podslice", {4: _CT4P}, "tpu-v4-podslice", _CT4P, False, False),
    "v5e": _TpuNodes("tpu-v5-lite-podslice", {1: _Machine("ct5lp-hightpu-1t", 24, 48), 4: _CT5LP,
                                              8: _Machine("ct5lp-hightpu-8t", 224, 384)},
                     "tpu-v5-lite-podslice", _CT5LP, True, False),
    "v5p": _TpuNodes("tpu-v5p-slice", {4: _CT5P}, "tpu-v5p-slice", _CT5P, True, False),
    # The API lists 360 processors for 8t; it runs one thread to a core, so its nodes have half of them.
    "v6e": _TpuNodes("tpu-v6e-slice", {1: _Machine("ct6e-standard-1t", 44, 176), 4: _CT6E,
                                       8: _Machine("ct6e-standard-8t", 180, 1440)},
                     "tpu-v6e-slice", _CT6E, True, False),
    # Of 1t only the memory is published.
    "tpu7x": _TpuNodes("tpu7x", {1: _Machine("tpu7x-standard-1t", 0, 240), 4: _TPU7X}, "tpu7x", _TPU7X, True, True),
}

# Products: the driver's name with dashes for spaces (NVIDIA/k8s-device-plugin, internal/lm/resource.go), each found as
# a label of a node or in a selector of one in public files. Shared GPUs and slices of MIG have suffixes: not meant.
_H100_SXM = "NVIDIA-H100-80GB-HBM3"
_GPU_NODES: dict[str, _GpuNodes] = {
    "gb200": _GpuNodes("nvidia-gb200", {4: _Machine("a4x-highgpu-4g", 140, 884)}, ("NVIDIA-GB200",),
                       "rdma", on_demand=(), arm=True, policy_topology="1x72"),
    "b200": _GpuNodes("nvidia-b200", {8: _Machine("a4-highgpu-8g", 224, 3968)}, ("NVIDIA-B200",), "rdma", True),
    "h200": _GpuNodes("nvidia-h200-141gb", {8: _Machine("a3-ultragpu-8g", 224, 2952)},
                      ("NVIDIA-H200", "NVIDIA-H200-NVL"), "rdma", True),
    "h100-mega": _GpuNodes("nvidia-h100-mega-80gb", {8: _Machine("a3-megagpu-8g", 208, 1872)}, (_H100_SXM,),
                           "tcpxo", True),
    "h100": _GpuNodes("nvidia-h100-80gb",
                      {1: _Machine("a3-highgpu-1g", 26, 234), 2: _Machine("a3-highgpu-2g", 52, 468),
                       4: _Machine("a3-highgpu-4g", 104, 936), 8: _Machine("a3-highgpu-8g", 208, 1872)},
                      (_H100_SXM, "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"), "tcpx", True, on_demand=(8,)),
    "a100-80gb": _GpuNodes("nvidia-a100-80gb",
                           {1: _Machine("a2-ultragpu-1g", 12, 170), 2: _Machine("a2-ultragpu-2g", 24, 340),
                            4: _Machine("a2-ultragpu-4g", 48, 680), 8: _Machine("a2-ultragpu-8g", 96, 1360)},
                           ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"), "", True),
    "a100": _GpuNodes("nvidia-tesla-a100",
                      {1: _Machine("a2-highgpu-1g", 12, 85), 2: _Machine("a2-highgpu-2g", 24, 170),
                       4: _Machine("a2-highgpu-4g", 48, 340), 8: _Machine("a2-highgpu-8g", 96, 680),
                       16: _Machine("a2-megagpu-16g", 96, 1360)},
                      ("NVIDIA-A100-SXM4-40GB", "A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"), "", True),
    "rtx-pro-6000": _GpuNodes("nvidia-rtx-pro-6000",
                              {1: _Machine("g4-standard-48", 48, 180), 2: _Machine("g4-standard-96", 96, 360),
                               4: _Machine("g4-standard-192", 192, 720), 8: _Machine("g4-standard-384", 384, 1440)},
                              ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
                               "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition"), "", True),
    "l4": _GpuNodes("nvidia-l4",
                    {1: _Machine("g2-standard-4", 4, 16), 2: _Machine("g2-standard-24", 24, 96),
                     4: _Machine("g2-standard-48", 48, 192), 8: _Machine("g2-standard-96", 96, 384)},
                    ("NVIDIA-L4",), "", True),
    # GPUs of N1 machines go with several sizes of them; these are the ones of Kinetic's pools. Drivers after 580 leave
    # out what is older than the T4.
    "v100": _GpuNodes("nvidia-tesla-v100",
                      {1: _Machine("n1-standard-8", 8, 30), 2: _Machine("n1-standard-16", 16, 60),
                       4: _Machine("n1-standard-32", 32, 120), 8: _Machine("n1-standard-64", 64, 240)},
                      ("Tesla-V100-SXM2-16GB", "Tesla-V100-PCIE-16GB", "Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-32GB",
                       "Tesla-V100S-PCIE-32GB"), driver="default"),
    "t4": _GpuNodes("nvidia-tesla-t4",
                    {1: _Machine("n1-standard-4", 4, 15), 2: _Machine("n1-standard-8", 8, 30),
                     4: _Machine("n1-standard-16", 16, 60)}, ("Tesla-T4",)),
    "p100": _GpuNodes("nvidia-tesla-p100",
                      {1: _Machine("n1-standard-4", 4, 15), 2: _Machine("n1-standard-8", 8, 30),
                       4: _Machine("n1-standard-16", 16, 60)}, ("Tesla-P100-PCIE-16GB", "Tesla-P100-SXM2-16GB"),
                      driver="default"),
    "p4": _GpuNodes("nvidia-tesla-p4",
                    {1: _Machine("n1-standard-4", 4, 15), 2: _Machine("n1-standard-8", 8, 30),
                     4: _Machine("n1-standard-16", 16, 60)}, ("Tesla-P4",), driver="default"),
}
# fmt: on


def node(slice: Slice) -> Node:
    """Return what a node must have for one host of the slice. Raises UnknownAccelerator if no cluster has such."""
    if slice.kind == "cpu":
        return Node("", 0, {})
    if slice.kind == "gpu":
        return _gpu_node(slice)
    known = _TPU_NODES.get(slice.generation)
    if known is None:
        raise UnknownAccelerator(
            f"No Kubernetes cluster has {slice.name}: GKE's TPUs are {', '.join(_TPU_NODES)}. "
            f"Cloud TPU has it, as {slice.accelerator_type}."
        )
    several = slice.hosts > 1
    machine = known.several if several else known.machines[slice.chips]
    return Node(
        resource=TPU,
        count=slice.chips_per_host,
        labels={TPU_ACCELERATOR: known.several_label if several else known.label, TPU_TOPOLOGY: slice.topology},
        machine=machine.name,
        cpus=machine.cpus,
        memory_gib=machine.memory_gib,
        flex_start=known.flex_start,
    )


def _gpu_node(slice: Slice) -> Node:
    known, each = _GPU_NODES.get(slice.generation), slice.chips // slice.machines
    if known is None:  # any model
        return Node(GPU, each, {})
    machine = known.machines.get(each, _Machine("", 0, 0))
    return Node(
        resource=GPU,
        count=each,
        labels={GPU_ACCELERATOR: known.label},
        products=known.products,
        machine=machine.name,
        cpus=machine.cpus,
        memory_gib=machine.memory_gib,
        arm=known.arm,
        gpudirect=known.gpudirect,
        on_demand=each in known.on_demand,
        flex_start=known.flex_start,
    )


GPUDIRECT: Mapping[GpuDirect, str] = {"tcpx": "GPUDirect-TCPX", "tcpxo": "GPUDirect-TCPXO", "rdma": "GPUDirect RDMA"}


def between_hosts(slice: Slice) -> str:
    """Return by what hosts of GPUs are joined that could be faster, for users; "" if nothing is known to be."""
    direct = node(slice).gpudirect if slice.kind == "gpu" and slice.machines > 1 else ""
    if not direct:
        return ""
    return (
        f"the {slice.machines} hosts of {slice.name} are joined over plain TCP. {GPUDIRECT[direct]}, which their "
        "machines have on GKE, takes networks and an installer in the cluster, which this package does not set up, so "
        "steps that wait for the network are slower than they could be"
    )


def elsewhere(node: Node) -> Node:
    """The same node on a cluster that is not GKE's: found by its product, of a machine of unknown shape."""
    return replace(node, labels={}, machine="", cpus=0, memory_gib=0)


# ---- requests of processor and memory --------------------------------------------------------------------------------

# Of a machine of unknown shape: so that the pod is not BestEffort, which is evicted first and refused by some quotas.
LEAST = {"cpu": "1", "memory": "4Gi"}
# On Autopilot, where it is also the limit, and 1 GiB without a request. Its admission gives pods without accelerators
# 10 GiB at most, those of all containers together: one is left to a container that a service mesh adds.
DISK = "9Gi"
# Of what fits into a node's memory, on Autopilot: a pod that asks for more than its own maximum is refused, and that is
# not known of every machine. A pod that asks for too little loses little, one that is refused all.
_SHARE_ON_AUTOPILOT = 0.85
# Left to the pods of every node: GKE's own (logs, metrics, metadata server, network, device plugin) and a cluster's.
# Their requests are not published; image streaming takes more of larger nodes.
_CPUS_OF_DAEMONS = 1
_GIB_OF_DAEMONS = 2
_SHARE_OF_DAEMONS = 0.02
_GIB_OF_EVICTION = 0.1  # the kubelet evicts pods when less is free
_SHARE_OF_KERNEL = 1 / 64  # of memory, before the kubelet counts what there is
_GIB_OF_KERNEL = 0.08
_CPUS_RESERVED = ((1, 0.06), (2, 0.01), (4, 0.005), (math.inf, 0.0025))  # up to so many, that share of each
_GIB_RESERVED = ((4, 0.25), (8, 0.2), (16, 0.1), (128, 0.06), (math.inf, 0.02))


def requests(node: Node, *, autopilot: bool = False) -> dict[str, str]:
    """Return the processors and memory that a pod requests to fill an otherwise empty node of the machine.

    They are rounded down, so that the pod fits. Not they but the accelerators, all of which it requests as well, keep
    other jobs off the node. The pod should have no limit of either: then its program uses all that the node has, and
    as the kubelet confines all pods to what is not reserved, one that takes too much memory is ended in any case.
    """
    memory = node.memory_gib
    if not node.cpus or not memory:
        return dict(LEAST)
    cpus = node.cpus - _reserved(node.cpus, _CPUS_RESERVED) - _CPUS_OF_DAEMONS
    gib = memory * (1 - _SHARE_OF_KERNEL - _SHARE_OF_DAEMONS) - _reserved(memory, _GIB_RESERVED)
    gib -= _GIB_OF_KERNEL + _GIB_OF_EVICTION + _GIB_OF_DAEMONS
    gib *= _SHARE_ON_AUTOPILOT if autopilot else 1.0
    return {"cpu": str(math.floor(cpus)), "memory": f"{math.floor(gib)}Gi"}


def _reserved(amount: float, brackets: tuple[tuple[float, float], ...]) -> float:
    total, below = 0.0, 0.0
    for limit, share in brackets:
        total += max(0.0, min(amount, limit) - below) * share
        below = limit
    return total


# ---- a pool of such nodes --------------------------------------------------------------------------------------------


def pool_command(
    slice: Slice,
    *,
    cluster: str,
    location: str,
    zone: str,
    project: str,
    slices: int = 1,
    flex_start: bool = False,
    queued_provisioning: bool = False,
    reservation: str = "",
) -> str:
    """Return the `gcloud` commands, one to a line, that make pools of GKE for slices, empty until a pod needs them.

    A pool of a TPU slice of several hosts is one slice: each has its own. Takes the cluster's location and the zone of
    the nodes. Their capacity is spot if the slice's is; with `queued_provisioning`, flex-start makes all of them at
    once, for a ProvisioningRequest. Raises UnknownAccelerator if GKE has no such machine, and UsageError if the machine
    is not given that way.
    """
    needed = node(slice)
    if not needed.machine:
        raise UnknownAccelerator(no_machine(slice))
    flex_start = _is_by_flex_start(needed, slice.spot, flex_start, reservation)
    flags = [
        f"--project={project}",
        f"--cluster={cluster}",
        f"--location={location}",
        f"--node-locations={zone}",
        f"--machine-type={needed.machine}",
    ]
    policy, commands = _policy_topology(slice), []
    if slice.kind == "gpu":
        known = _GPU_NODES[slice.generation]
        flags.append(f"--accelerator=type={known.label},count={needed.count},gpu-driver-version={known.driver}")
    elif slice.hosts > 1 and not policy:
        flags += ["--placement-type=COMPACT", f"--tpu-topology={slice.topology}"]
    if policy:
        policy_name = f"ko-{slice.generation}-{policy}"
        commands.append(
            f"gcloud compute resource-policies create workload-policy {policy_name} --project={project} "
            f"--region={region_of(zone)} --type=HIGH_THROUGHPUT --accelerator-topology={policy}"
        )
        flags.append(f"--placement-policy={policy_name}")
    one_each = slice.kind == "tpu" and slice.hosts > 1
    most = slice.machines if one_each else slice.machines * slices
    flags += ["--num-nodes=0", "--enable-autoscaling", "--min-nodes=0", f"--max-nodes={most}"]
    capacity, how = _capacity(slice.spot, flex_start, queued_provisioning, reservation)
    divided = f"-on-{slice.hosts}" if slice.kind == "tpu" and parse(slice.name).hosts != slice.hosts else ""
    numbers = [f"-{number}" for number in range(1, slices + 1)] if one_each and slices > 1 else [""]
    create = f"gcloud container node-pools create ko-{slice.name}{divided}{capacity}"
    commands += [f"{create}{number} {' '.join([*flags, *how])}" for number in numbers]
    return "\n".join(commands)


def _is_by_flex_start(needed: Node, spot: bool, flex_start: bool, reservation: str) -> bool:
    """Return True if a machine is to be had by flex-start, as asked or as it is given no other way.

    Raises:
        UsageError: It is not given that way.
    """
    if spot + flex_start + bool(reservation) > 1:
        raise UsageError("A node pool has spot capacity, flex-start or a reservation: name one of them.")
    if not needed.on_demand:
        if not needed.flex_start and not reservation:
            raise UsageError(f"{needed.machine} is given by reservation alone: name one.")
        if needed.flex_start and reservation:
            raise UsageError(f"{needed.machine} is given as spot or by flex-start alone: leave out the reservation.")
        flex_start = needed.only_by_flex_start and not spot
    if flex_start and not needed.flex_start:
        raise UsageError(f"{needed.machine} is not given by flex-start: use spot capacity or a reservation.")
    return flex_start


def _capacity(spot: bool, flex_start: bool, queued_provisioning: bool, reservation: str) -> tuple[str, list[str]]:
    """Return the end of a pool's name that tells how its nodes are to be had, and the flags that ask for it."""
    if spot:
        return "-spot", ["--spot", _keeping_others_off(SPOT)]
    if flex_start:
        queued = ["--enable-queued-provisioning"] if queued_provisioning else []
        asked = ["--flex-start", "--location-policy=ANY", "--reservation-affinity=none", "--no-enable-autorepair"]
        return "-flex", [_keeping_others_off(FLEX_START), *asked, *queued]
    if reservation:
        return "-reserved", ["--reservation-affinity=specific", f"--reservation={reservation}"]
    return "", []


def _keeping_others_off(label: tuple[str, str]) -> str:
    """Return the flag of a taint by which pods that do not ask for such machines never get one."""
    return f"--node-taints={'='.join(label)}:NoSchedule"


def _policy_topology(slice: Slice) -> str:
    if slice.kind == "gpu":
        return _GPU_NODES[slice.generation].policy_topology
    return slice.topology if slice.hosts > 1 and _TPU_NODES[slice.generation].workload_policy else ""


def no_machine(slice: Slice) -> str:
    """Return why Google Cloud has no machine for a slice of none, for users."""
    if slice.kind == "cpu":
        return "A pool of GKE for cpu has any machine: no accelerator names one."
    if slice.generation not in _GPU_NODES:
        return f"{slice.name} is of any model, and a pool of GKE has one: name it, as in l4 or a100x4."
    known = sorted(_GPU_NODES[slice.generation].machines)
    *fewer, last = map(str, known)
    counts = f"{', '.join(fewer)} or {last}" if fewer else last
    near = max((count for count in known if count <= slice.chips), default=known[0])
    take = f"take {slice.generation}" if near == 1 else f"take {slice.generation}x{near}"
    hosts, rest = divmod(slice.chips, near)
    take += f" with {joined(hosts)}" if hosts > 1 and not rest else ""
    return f"No machine of Google Cloud has {slice.name}: {slice.generation} comes {counts} to a machine: {take}."
