"""Which pools of GKE can have the nodes that pods ask for, by what its API says of them. Pure.

What the API does not say is taken to suit: only what no pool can ever run is refused. It knows no client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.plan.hardware.nodes import Node
from kinetic_orchestration.platforms.kubernetes import gke, manifest
from kinetic_orchestration.platforms.shared.cluster_access import Access, Pool

Object = Mapping[str, Any]

KEEPS_AWAY = ("NoSchedule", "NoExecute")  # effects of taints
_BY_COMMAND = {nodes.SPOT[0], gke.FLEX_START[0], gke.QUEUED[0], gke.RESERVATION, gke.RESERVATION_PROJECT}
_MACHINE = "node.kubernetes.io/instance-type"
_OF_TPUS = ("ct", "tpu")  # how the types of machines with TPUs begin; their nodes have a taint
_OF_CLOUDS = (".google.com", "kubernetes.io", "k8s.io")  # domains of labels that nodes have of themselves


def fits(pool: Pool, node: Node, pod: Object) -> bool:
    """Return True unless no node of a pool can ever run the pod.

    Args:
        pool: Of the cluster.
        node: What a host of the slice needs.
        pod: The spec of its pod.
    """
    chosen = pod.get("nodeSelector", {})
    return (
        (pool.most > 0 or not pool.scales)
        and _has_accelerators(pool, node, chosen)
        and all(_has_label(pool, key, value) for key, value in chosen.items() if key not in node.labels)
        and all(
            tolerates(pod, {"key": key, "value": value, "effect": effect})
            for key, value, effect in pool.taints
            if effect in KEEPS_AWAY
        )
    )


def of_no_pool(access: Access, node: Node, pod: Object) -> str:
    """Return which of the labels that a user selects no pool has, with what helps; "" if there is none.

    Labels are left out that a new pool for the slice has, and, where pools are made as they are needed, all but a
    pool's name.

    Args:
        access: To the cluster; its pools may be unknown.
        node: What a host of the slice needs.
        pod: The spec of its pod.
    """
    known, chosen = access.pools, pod.get("nodeSelector", {})
    if known is None:
        return ""
    if names_none(access, pod):
        there = ", ".join(pool.name for pool in known) or "none"
        return f"there is no pool {chosen[manifest.NODE_POOL]}, which node_selector= names (there are: {there})"
    lacks = [
        f"{key}={value}"
        for key, value in chosen.items()
        if key not in _BY_COMMAND | node.labels.keys() and not any(_has_label(pool, key, value) for pool in known)
    ]
    if access.provisions or not lacks:
        return ""
    told = ",".join(lacks)
    return f"no pool has the label {told}: correct node_selector=, or make a pool with --node-labels={told}"


def names_none(access: Access, pod: Object) -> bool:
    """Return True if the pod selects a pool by its name, and there is none of that name. None is made for it."""
    name = pod.get("nodeSelector", {}).get(manifest.NODE_POOL)
    return name is not None and access.pools is not None and all(pool.name != name for pool in access.pools)


def tolerates(pod: Object, taint: Object) -> bool:
    """Return True if a pod's spec tolerates the taint of a node."""
    return any(
        one["key"] == taint["key"]
        and one.get("effect") in (None, taint["effect"])
        and (one["operator"] == "Exists" or one.get("value") == taint.get("value", ""))
        for one in pod.get("tolerations", ())
    )


def _has_accelerators(pool: Pool, node: Node, chosen: Mapping[str, str]) -> bool:
    if not node.resource:
        return not pool.gpus and not pool.machine.startswith(_OF_TPUS)
    if node.resource == nodes.GPU:
        model = chosen.get(nodes.GPU_ACCELERATOR)
        has = any(count >= node.count and model in (None, name) for name, count in pool.gpus)
        return has or (not pool.gpus and pool.machine == node.machine != "")
    topology = chosen.get(nodes.TPU_TOPOLOGY, "")
    is_whole = pool.topology == topology or (not pool.topology and (bool(pool.policy) or _of_one_host(node, topology)))
    return pool.machine == node.machine and is_whole


def _of_one_host(node: Node, topology: str) -> bool:
    chips = 1
    for side in topology.split("x"):
        chips *= int(side or 1)
    return chips <= node.count


def _has_label(pool: Pool, key: str, value: str) -> bool:
    given = dict(pool.labels)
    own = {
        manifest.NODE_POOL: (pool.name,),
        _MACHINE: (pool.machine,),
        gke.ZONE: pool.zones or (value,),
        nodes.SPOT[0]: ("true",) if pool.spot else (),
        gke.FLEX_START[0]: ("true",) if pool.flex_start else (),
        gke.QUEUED[0]: ("true",) if pool.queued_provisioning else (),
        gke.RESERVATION: tuple(name.rpartition("/")[2] for name in pool.reservations),
    }
    if key in own or key in given:
        return value in (*own.get(key, ()), given.get(key))
    return key.partition("/")[0].endswith(_OF_CLOUDS)
