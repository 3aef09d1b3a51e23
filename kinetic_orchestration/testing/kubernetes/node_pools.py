"""A pool of nodes of an emulated cluster, as Google's container API tells it. Pure.

Of a pool's labels GKE gives its nodes some because of what the pool is: those are told as that, the others as labels.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.errors import UnknownAccelerator
from kinetic_orchestration.plan.hardware import accelerators, nodes
from kinetic_orchestration.testing.kubernetes.api.objects import quantity
from kinetic_orchestration.testing.kubernetes.controllers.scaling import ZONE, NodePool

Json = dict[str, Any]

_QUEUED = "cloud.google.com/gke-queued"
_RESERVATION = "cloud.google.com/reservation-name"
_EFFECTS = {"NoSchedule": "NO_SCHEDULE", "NoExecute": "NO_EXECUTE", "PreferNoSchedule": "PREFER_NO_SCHEDULE"}
_OWN = {
    nodes.TPU_ACCELERATOR, nodes.TPU_TOPOLOGY, nodes.GPU_ACCELERATOR, nodes.SPOT[0], nodes.FLEX_START[0], _QUEUED,
    _RESERVATION, ZONE,
}  # fmt: skip
_SIZES = (2, 4, 8, 16, 32)  # processors of plain machines


def told(pool: NodePool, cluster: str) -> Json:
    """Return what the API says of a pool. `cluster`: `projects/P/locations/L/clusters/C`."""
    zone = pool.labels.get(ZONE, pool.zone)
    found: Json = {
        "name": pool.name, "status": "RUNNING", "version": "1.36.3-gke.1", "config": _config(pool),
        "locations": [zone], "management": {"autoUpgrade": True, "autoRepair": True},
        "autoscaling": {"enabled": True, "maxNodeCount": pool.most},
        "selfLink": f"https://container.googleapis.com/v1/{cluster}/nodePools/{pool.name}",
    }  # fmt: skip
    if pool.autoprovisioned:
        found["autoscaling"]["autoprovisioned"] = True
    if pool.hosts > 1 and (topology := pool.labels.get(nodes.TPU_TOPOLOGY)):
        found["placementPolicy"] = {"type": "COMPACT", "tpuTopology": topology}
    if pool.labels.get(_QUEUED) == "true":
        found["queuedProvisioning"] = {"enabled": True}
    return found


def _config(pool: NodePool) -> Json:
    gpus = pool.allocatable.get(nodes.GPU)
    model = pool.labels.get(nodes.GPU_ACCELERATOR, "")
    taints = [
        {"key": taint["key"], "value": taint.get("value", ""), "effect": _EFFECTS[taint["effect"]]}
        for taint in pool.taints
    ]
    given: Json = {
        "labels": {key: value for key, value in pool.labels.items() if key not in _OWN},
        "taints": taints,
        "accelerators": [{"acceleratorType": model, "acceleratorCount": gpus}] if gpus else [],
        "spot": pool.labels.get(nodes.SPOT[0]) == nodes.SPOT[1],
        "flexStart": pool.labels.get(nodes.FLEX_START[0]) == nodes.FLEX_START[1],
    }
    if name := pool.labels.get(_RESERVATION):
        key = "compute.googleapis.com/reservation-name"
        given["reservationAffinity"] = {
            "consumeReservationType": "SPECIFIC_RESERVATION", "key": key, "values": [name],
        }  # fmt: skip
    return {
        "machineType": pool.machine or _machine(pool), "imageType": "COS_CONTAINERD", "serviceAccount": "default",
        "workloadMetadataConfig": {"mode": "GKE_METADATA"},
        **{name: value for name, value in given.items() if value},  # as JSON of Google's has no empty field
    }  # fmt: skip


def _machine(pool: NodePool) -> str:
    """Return the type of a pool's machines, by their accelerators or else by their size."""
    for labels, (resource, count), machine in _machines():
        if labels.items() <= pool.labels.items() and quantity(pool.allocatable.get(resource, 0)) == count:
            return machine
    cpus = quantity(pool.allocatable.get("cpu", 0))
    return f"e2-standard-{next((size for size in _SIZES if size >= cpus), _SIZES[-1])}"


@functools.cache
def _machines() -> list[tuple[Mapping[str, str], tuple[str, int], str]]:
    """The labels of nodes with accelerators, how many they have, and what their machine is."""
    found = []
    known = accelerators.catalogue()
    for slice in (*known, *filter(None, map(accelerators.otherwise, known))):
        try:
            node = nodes.node(slice)
        except UnknownAccelerator:
            continue
        if node.machine:
            found.append((node.labels, (node.resource, node.count), node.machine))
    return found
