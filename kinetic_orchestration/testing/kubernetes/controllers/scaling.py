"""GKE's autoscaler: pools that grow for pods without a node, what it says of those it cannot help, and idle nodes.

A pool of a slice of several hosts has none of its nodes or all. With auto-provisioning, a pool is made for pods that no
pool is for. It decides, and makes no node itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import (
    amount,
    annotations_of,
    condition,
    is_deleting,
    labels_of,
    name_of,
    phase_of,
    quantity,
    requests_of,
    uid_of,
)
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, Join, Leave, Tell, View
from kinetic_orchestration.testing.kubernetes.controllers.kueue.provisioning import REQUEST
from kinetic_orchestration.testing.kubernetes.controllers.scheduling import node_for
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node

COMPONENT = "cluster-autoscaler"
STOCKOUT = "GCE out of resources"
QUOTA = "GCE quota exceeded"
POOL = "cloud.google.com/gke-nodepool"
ZONE = "topology.kubernetes.io/zone"
_QUEUED = "cloud.google.com/gke-queued"
_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
_TPU, _GPU = "google.com/tpu", "nvidia.com/gpu"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_BACKOFF = 300.0  # seconds in which a pool is not asked for again that could not be had
_READY = 10.0  # seconds in which new nodes take their pods
_IN_BACKOFF = "in backoff after failed scale-up"
_MAY_COME = {_IN_BACKOFF}  # a pool is there that is right, and cannot be had now
_ROOM = {"cpu": "256", "memory": "2Ti"}


@dataclass(frozen=True)
class NodePool:
    """A pool of nodes that GKE makes as they are needed.

    Attributes:
        name: Its name, a label of its nodes.
        labels: Further labels of its nodes.
        taints: Of its nodes.
        allocatable: What a node has for pods: chips, processors.
        hosts: The number of nodes that come and go together.
        most: The largest number of nodes.
        zone: Where they are.
        machine: The type of its machines, as the container API tells it; "" for the one that suits the rest.
        autoprovisioned: True if it was made for a pod.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    allocatable: Mapping[str, str] = field(default_factory=dict)
    hosts: int = 1
    most: int = 1000
    zone: str = "us-central1-a"
    machine: str = ""
    autoprovisioned: bool = False

    def node(self, number: int, environment: Mapping[str, str], identities: str) -> Node:
        labels = {ZONE: self.zone, POOL: self.name, **self.labels}
        return Node(f"{self.name}-{number}", labels, self.taints, self.allocatable, environment, identities)

    def fits(self, pod: Object) -> bool:
        """Return True if a new node of it is one for the pod."""
        labels = {ZONE: self.zone, POOL: self.name, **self.labels}
        return node_for(pod["spec"], labels, self.taints)

    def has_room(self, pod: Object) -> bool:
        has = {name: quantity(told) for name, told in {**_ROOM, **self.allocatable}.items()}
        return all(has.get(name, 0.0) >= asked for name, asked in requests_of(pod["spec"]).items())


@dataclass(frozen=True)
class _Order:
    """Nodes that are being made for a pod."""

    due: float
    pool: NodePool
    pod: Object


class Autoscaler:
    """Decides on the nodes of pools.

    Args:
        environment: What the machines of its nodes give to their pods.
        provision: Seconds until nodes are there.
        idle: Seconds after which nodes go that no pod uses, and so long again until a pool of its own goes.
        provisions: Make pools of its own for what no pool is for.
        identities: The workload identity pool of their pods; "": they have no identity.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        provision: float = 0.1,
        idle: float = 600.0,
        provisions: bool = False,
        identities: str = "",
    ) -> None:
        self.pools: dict[str, NodePool] = {}
        self.lacks: dict[str, str] = {}  # a pool, or "*" → why its nodes cannot be had: STOCKOUT or QUOTA
        self.environment = environment
        self.identities = identities
        self.provision = provision
        self.idle = idle
        self.provisions = provisions
        self._orders: list[_Order] = []
        self._backoff: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._helped: dict[str, float] = {}  # pods for which nodes have just been made → until when that counts
        self._own: dict[str, float] = {}  # pools that it made → when they last had nodes
        self._made = 0

    def forgive(self) -> None:
        """Ask again for what could not be had."""
        self._backoff.clear()

    def step(self, view: View) -> Iterator[Change]:
        nodes: dict[str, list[Object]] = {}
        for node in view.all(kinds.NODES):
            nodes.setdefault(labels_of(node).get(POOL, ""), []).append(node)
        self._forget(view, nodes)
        yield from self._delivered(view, nodes)
        ordered = {uid_of(order.pod) for order in self._orders}
        for pod in view.all(kinds.PODS):
            if _is_stuck(pod) and uid_of(pod) not in ordered and self._helped.get(uid_of(pod), 0.0) <= view.now:
                yield from self._considered(pod, nodes, view.now)
        yield from self._shrunk(view, nodes)

    def _forget(self, view: View, nodes: Mapping[str, Sequence[Object]]) -> None:
        """Forget pods and nodes that are gone, and what holds no longer."""
        pods = {uid_of(pod) for pod in view.all(kinds.PODS)}
        here = {name_of(node) for group in nodes.values() for node in group}
        self._said = {uid: said for uid, said in self._said.items() if uid in pods}
        self._helped = {uid: until for uid, until in self._helped.items() if until > view.now}
        self._backoff = {pool: until for pool, until in self._backoff.items() if until > view.now}
        joining = {name for name, since in self._since.items() if view.now - since <= _READY}
        self._since = {name: since for name, since in self._since.items() if name in here | joining}

    # ---- growing

    def _considered(self, pod: Object, nodes: Mapping[str, Sequence[Object]], now: float) -> Iterator[Change]:
        refusals: Counter[str] = Counter()
        for pool in [*self.pools.values()]:
            why = self._refusal(pool, pod, len(nodes.get(pool.name, ())), now)
            if why is None:
                yield from self._ordered(pool, pod, len(nodes.get(pool.name, ())), now)
                return
            refusals[why] += 1
        if self.provisions and not refusals.keys() & _MAY_COME and (made := self._provisioned(pod)) is not None:
            self.pools[made.name] = made
            self._own[made.name] = now
            return
        told = ", ".join(f"{count} {why}" for why, count in sorted(refusals.items()))
        yield from self._say(pod, "NotTriggerScaleUp", f"pod didn't trigger scale-up: {told}" if told else "")

    def _refusal(self, pool: NodePool, pod: Object, there: int, now: float) -> str | None:
        if not pool.fits(pod):
            return "node(s) didn't match Pod's node affinity/selector"
        if not pool.has_room(pod):
            has = {name: quantity(told) for name, told in {**_ROOM, **pool.allocatable}.items()}
            short = next(name for name, asked in requests_of(pod["spec"]).items() if has.get(name, 0.0) < asked)
            return f"Insufficient {short}"
        if now < self._backoff.get(pool.name, 0.0):
            return _IN_BACKOFF
        ordered = sum(order.pool.hosts for order in self._orders if order.pool.name == pool.name)
        if there + ordered + pool.hosts > pool.most:
            return "max node group size reached"
        return None

    def _ordered(self, pool: NodePool, pod: Object, there: int, now: float) -> Iterator[Change]:
        self._orders.append(_Order(now + self.provision, pool, pod))
        group = f"https://www.googleapis.com/compute/v1/projects/emulated/zones/{pool.zone}/instanceGroups/gke-{pool.name}-grp"
        told = f"pod triggered scale-up: [{{{group} {there}->{there + pool.hosts} (max: {pool.most})}}]"
        yield from self._say(pod, "TriggeredScaleUp", told)

    def _delivered(self, view: View, nodes: Mapping[str, list[Object]]) -> Iterator[Change]:
        due = [order for order in self._orders if order.due <= view.now]
        self._orders = [order for order in self._orders if order.due > view.now]
        taken = {name_of(node) for group in nodes.values() for node in group}
        for order in due:
            pool = order.pool
            why = self.lacks.get(pool.name) or self.lacks.get("*")
            if why is not None:
                self._backoff[pool.name] = view.now + _BACKOFF
                told = f"Node scale up in zones {pool.zone} associated with this pod failed: {why}. "
                yield from self._say(order.pod, "FailedScaleUp", f"{told}Pod is at risk of not being scheduled.")
                continue
            self._helped[uid_of(order.pod)] = view.now + _READY
            free = [number for number in range(pool.most + pool.hosts) if f"{pool.name}-{number}" not in taken]
            for number in free[: pool.hosts]:
                node = pool.node(number, self.environment, self.identities)
                taken.add(node.name)
                self._since[node.name] = view.now
                yield Join(node)

    def _say(self, pod: Object, reason: str, message: str) -> Iterator[Change]:
        if message and self._said.get(uid_of(pod)) != message:
            self._said[uid_of(pod)] = message
            yield Tell(pod, "Warning" if reason == "FailedScaleUp" else "Normal", reason, message, COMPONENT)

    def _provisioned(self, pod: Object) -> NodePool | None:
        """Return a pool for a pod that names an accelerator, or only processors; None if no machine is one for it."""
        spec = pod["spec"]
        chosen = dict(_chosen(spec))
        name = chosen.pop(POOL, "")
        if name:  # it follows a host whose pool is there
            return None
        asked = requests_of(spec)
        taints = [{"key": key, "value": "present", "effect": "NoSchedule"} for key in (_TPU, _GPU) if key in asked]
        if chosen.get("cloud.google.com/gke-spot") == "true":
            taints.append({"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"})
        if chosen.get(_QUEUED) == "true":
            taints.append({"key": _QUEUED, "value": "true", "effect": "NoSchedule"})
        self._made += 1
        pool = NodePool(
            f"nap-{self._made}",
            chosen,
            tuple(taints),
            {name: amount(count) for name, count in asked.items()},
            autoprovisioned=True,
        )
        chips = asked.get(_TPU)
        if chips and _TOPOLOGY in chosen:
            whole = prod(map(int, re.findall(r"\d+", chosen[_TOPOLOGY])))
            hosts = max(1, int(whole // chips))
            pool = replace(pool, hosts=hosts, most=hosts)
        return pool if pool.fits(pod) else None

    def order(self, pod: Object, count: int, view: View) -> list[Node] | str:
        """Return new nodes for so many pods, all or none; or why there are none now."""
        pool = next((one for one in self.pools.values() if one.fits(pod) and one.has_room(pod)), None)
        if pool is None and self.provisions and (pool := self._provisioned(pod)) is not None:
            self.pools[pool.name] = pool
            self._own[pool.name] = view.now
        if pool is None:
            return "no pool of the cluster has such nodes"
        if (why := self.lacks.get(pool.name) or self.lacks.get("*")) is not None:
            return why
        taken = {name_of(node) for node in view.all(kinds.NODES)}
        names = (f"{pool.name}-{number}" for number in range(pool.most))
        free = [number for number, name in enumerate(names) if name not in taken]
        wanted = -(-count // pool.hosts) * pool.hosts
        if len(free) < wanted:
            return f"max cluster limit reached: {pool.name}"
        nodes = [pool.node(number, self.environment, self.identities) for number in free[:wanted]]
        self._since |= {node.name: view.now for node in nodes}
        return nodes

    # ---- shrinking

    def _shrunk(self, view: View, nodes: Mapping[str, Sequence[Object]]) -> Iterator[Change]:
        used = {pod["spec"].get("nodeName") for pod in view.all(kinds.PODS) if phase_of(pod) in ("Pending", "Running")}
        for name, pool in [*self.pools.items()]:
            group = nodes.get(name, ())
            for node in group:
                if name_of(node) in used:
                    self._since[name_of(node)] = view.now
            quiet = [node for node in group if view.now - self._since.get(name_of(node), view.now) > self.idle]
            if pool.hosts > 1 and len(quiet) < len(group):
                continue
            yield from (Leave(name_of(node)) for node in quiet)
        ordered = {order.pool.name for order in self._orders}
        for name, since in [*self._own.items()]:
            if nodes.get(name) or name in ordered:
                self._own[name] = view.now
            elif view.now - since > self.idle:
                self._own.pop(name)
                self.pools.pop(name, None)


def _chosen(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The labels that nodes for a pod have: those it selects, and those of the first way it offers."""
    yield from (spec.get("nodeSelector") or {}).items()
    terms = (spec.get("affinity") or {}).get("nodeAffinity", {}).get(_REQUIRED, {}).get("nodeSelectorTerms") or ()
    for one in terms[0].get("matchExpressions", ()) if terms else ():
        if one["operator"] == "In":
            yield one["key"], one["values"][0]


def _is_stuck(pod: Object) -> bool:
    told = condition(pod, "PodScheduled")
    if REQUEST in annotations_of(pod):  # the nodes of its request are all that there will be
        return False
    return told is not None and told["status"] == "False" and not is_deleting(pod) and phase_of(pod) == "Pending"
