"""The controllers of nodes that fall silent, are tainted, or are gone, and of the pods there. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import (
    condition,
    is_deleting,
    name_of,
    phase_of,
    seconds,
    stamp,
    uid_of,
    with_condition,
    with_spec,
    with_status,
)
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, Delete, Replace, View
from kinetic_orchestration.testing.kubernetes.controllers.scheduling import tolerates

SILENT = 15.0  # seconds after which a node without a heartbeat counts as lost
_LEASES = "kube-node-lease"
_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_ENDED = ("Succeeded", "Failed")


class Nodes:
    """The controllers; all that they remember is since when a pod has borne a taint."""

    def __init__(self) -> None:
        self._borne: dict[tuple[str, str], float] = {}

    def step(self, view: View) -> Iterator[Change]:
        nodes = {name_of(node): node for node in view.all(kinds.NODES)}
        for node in nodes.values():
            yield from _watched(node, view)
        pods = view.all(kinds.PODS)
        living = set(map(uid_of, pods))
        self._borne = {key: since for key, since in self._borne.items() if key[0] in living}
        for pod in pods:
            there = pod["spec"].get("nodeName")
            if not there or phase_of(pod) in _ENDED:
                continue
            if there not in nodes:
                yield from _orphaned(pod)
            elif not is_deleting(pod):
                yield from self._evicted(pod, nodes[there], view.now)

    def _evicted(self, pod: Object, node: Object, now: float) -> Iterator[Change]:
        for taint in node["spec"].get("taints") or ():
            if taint["effect"] != "NoExecute":
                continue
            bearable = [
                one.get("tolerationSeconds") for one in pod["spec"].get("tolerations") or () if _bears(one, taint)
            ]
            if None in bearable:
                continue
            key = uid_of(pod), taint["key"]
            since = self._borne.setdefault(key, now)
            if now - since >= max(bearable, default=0.0):
                yield from _taken(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
                return


def _bears(toleration: Object, taint: Object) -> bool:
    return tolerates({"tolerations": [toleration]}, taint)


def _taken(pod: Object, reason: str, message: str) -> Iterator[Change]:
    pod = with_condition(pod, "DisruptionTarget", "True", reason, message, lastProbeTime=None)
    yield Replace(kinds.PODS, pod)
    yield Delete(kinds.PODS, pod)


def _orphaned(pod: Object) -> Iterator[Change]:
    """The pod of a node that is gone has failed, as nobody else will say so."""
    pod = with_condition(
        pod, "DisruptionTarget", "True", "DeletionByPodGC", "PodGC: node no longer exists", lastProbeTime=None
    )
    yield Replace(kinds.PODS, with_status(pod, phase="Failed"))
    yield Delete(kinds.PODS, with_status(pod, phase="Failed"), grace=0)


def _watched(node: Object, view: View) -> Iterator[Change]:
    lease = view.get(kinds.LEASES, _LEASES, name_of(node))
    beat = seconds(lease["spec"].get("renewTime")) if lease is not None else 0.0
    ready = condition(node, "Ready")
    kept = [one for one in node["spec"].get("taints") or () if one["key"] not in (_NOT_READY, _UNREACHABLE)]
    if ready is None:
        return
    if beat and view.now - beat > SILENT:
        node = with_condition(
            node, "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.",
            lastHeartbeatTime=ready.get("lastHeartbeatTime"),
        )  # fmt: skip
        known = [one for one in node["spec"].get("taints") or () if one["key"] == _UNREACHABLE]
        away = [{"key": _UNREACHABLE, "effect": "NoSchedule"}, {"key": _UNREACHABLE, "effect": "NoExecute"}]
        away[1]["timeAdded"] = stamp()
        yield Replace(kinds.NODES, with_spec(node, taints=[*kept, *(known or away)]))
        for pod in view.all(kinds.PODS):
            running = pod["spec"].get("nodeName") == name_of(node) and phase_of(pod) == "Running"
            told = condition(pod, "Ready")
            if running and told is not None and told["status"] == "True":
                yield Replace(kinds.PODS, with_condition(pod, "Ready", "False", "", "", lastProbeTime=None))
    elif ready["status"] == "True":
        yield Replace(kinds.NODES, with_spec(node, taints=kept or None))
