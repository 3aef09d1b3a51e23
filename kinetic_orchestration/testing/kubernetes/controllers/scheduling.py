"""The scheduler: which node a pod goes to, and in its words why there is none. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import (
    condition,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    phase_of,
    quantity,
    requests_of,
    selected_by,
    with_condition,
    with_spec,
)
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, Replace, Tell, View

COMPONENT = "default-scheduler"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_AFFINITY = "node(s) didn't match Pod's node affinity/selector"
_TAINT = "node(s) had untolerated taint(s)"
_ANTI = "node(s) didn't match pod anti-affinity rules"
_TOGETHER = "node(s) didn't match pod affinity rules"
_CLOSED = "node(s) were unschedulable"
_ENDED = ("Succeeded", "Failed")
# Reasons that another pod's eviction could change.
_CROWDED = ("Insufficient", "Too many pods", _ANTI)


def step(view: View) -> Iterator[Change]:
    pods = [*view.all(kinds.PODS)]
    nodes = view.all(kinds.NODES)
    for index, pod in enumerate(pods):
        if pod["spec"].get("nodeName") or is_deleting(pod) or phase_of(pod) in _ENDED:
            continue
        placed = [one for one in pods if one["spec"].get("nodeName") and phase_of(one) not in _ENDED]
        reasons = {name_of(node): list(_lacks(pod, node, placed, nodes)) for node in nodes}
        fitting = next((node for node in nodes if not reasons[name_of(node)]), None)
        if fitting is not None:
            pods[index] = _bound(pod, name_of(fitting))
            yield Replace(kinds.PODS, pods[index])
            told = f"Successfully assigned {namespace_of(pod)}/{name_of(pod)} to {name_of(fitting)}"
            yield Tell(pod, "Normal", "Scheduled", told, COMPONENT)
        else:
            yield from _refused(pod, sentence(reasons))


def _bound(pod: Object, node: str) -> Object:
    pod = with_condition(with_spec(pod, nodeName=node), "PodScheduled", "True", "", "", lastProbeTime=None)
    [*others, last] = pod["status"]["conditions"]
    kept = {key: value for key, value in last.items() if key not in ("reason", "message")}
    return {**pod, "status": {**pod["status"], "conditions": [*others, kept]}}


def _refused(pod: Object, why: str) -> Iterator[Change]:
    before = condition(pod, "PodScheduled")
    if before is not None and before.get("message") == why:
        return
    yield Replace(kinds.PODS, with_condition(pod, "PodScheduled", "False", "Unschedulable", why, lastProbeTime=None))
    yield Tell(pod, "Warning", "FailedScheduling", why, COMPONENT)


def sentence(reasons: Mapping[str, Sequence[str]]) -> str:
    """Return why no node fits. `reasons`: what each node lacks."""
    if not reasons:
        return "no nodes available to schedule pods"
    total = len(reasons)
    counted = Counter(reason for lacks in reasons.values() for reason in lacks)
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counted.items()))
    crowded = sum(1 for lacks in reasons.values() if all(lack.startswith(_CROWDED) for lack in lacks))
    parts = [(crowded, "No preemption victims found for incoming pod")] if crowded else []
    parts += [(total - crowded, "Preemption is not helpful for scheduling")] if crowded < total else []
    victims = ", ".join(f"{count} {what}" for count, what in parts)
    return (
        f"0/{total} nodes are available: {listed}. no new claims to deallocate, preemption: 0/{total} nodes are "
        f"available: {victims}."
    )


def _lacks(pod: Object, node: Object, placed: Sequence[Object], nodes: Sequence[Object]) -> Iterator[str]:
    """Yield the reasons that keep a pod from a node: the first of several filters, and all resources that are short."""
    if node["spec"].get("unschedulable"):
        yield _CLOSED
    elif not _is_wanted(pod["spec"], labels_of(node)):
        yield _AFFINITY
    elif not tolerates_all(pod["spec"], node["spec"].get("taints") or ()):
        yield _TAINT
    else:
        short = list(_short(pod, node, [one for one in placed if one["spec"]["nodeName"] == name_of(node)]))
        yield from short
        if not short:
            yield from _beside_others(pod, node, placed, nodes)


def _short(pod: Object, node: Object, there: Sequence[Object]) -> Iterator[str]:
    has = {name: quantity(told) for name, told in (node["status"].get("allocatable") or {}).items()}
    if len(there) + 1 > has.get("pods", 0):
        yield "Too many pods"
    for resource, asked in requests_of(pod["spec"]).items():
        used = sum(requests_of(one["spec"]).get(resource, 0.0) for one in there)
        if used + asked > has.get(resource, 0.0):
            yield f"Insufficient {resource}"


def _is_wanted(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    chosen = spec.get("nodeSelector") or {}
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get(_REQUIRED, {}).get("nodeSelectorTerms")
    return all(labels.get(key) == value for key, value in chosen.items()) and (
        terms is None or any(all(selected_by(one, labels) for one in term["matchExpressions"]) for term in terms)
    )


def tolerates_all(spec: Mapping[str, Any], taints: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if no taint of a node keeps new pods of this spec away."""
    return all(tolerates(spec, taint) for taint in taints if taint["effect"] != "PreferNoSchedule")


def tolerates(spec: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    return any(
        one.get("key") in (None, taint["key"])
        and one.get("effect") in (None, taint["effect"])
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in spec.get("tolerations") or ()
    )


def _beside_others(pod: Object, node: Object, placed: Sequence[Object], nodes: Sequence[Object]) -> Iterator[str]:
    """Pods that have to be, or must not be, in one domain with this one; those that are there say so, too."""
    affinity = pod["spec"].get("affinity") or {}
    own = labels_of(pod)
    where = {name_of(one): labels_of(one) for one in nodes}
    if any(
        _meets(term, labels_of(other)) and _is_near(term, node, other, where)
        for term in affinity.get("podAntiAffinity", {}).get(_REQUIRED, ())
        for other in placed
    ) or any(
        _meets(term, own) and _is_near(term, node, other, where)
        for other in placed
        for term in (other["spec"].get("affinity") or {}).get("podAntiAffinity", {}).get(_REQUIRED, ())
    ):
        yield _ANTI
    for term in affinity.get("podAffinity", {}).get(_REQUIRED, ()):
        company = [other for other in placed if _meets(term, labels_of(other))]
        alone = not company and _meets(term, own) and term["topologyKey"] in labels_of(node)
        if not alone and not any(_is_near(term, node, other, where) for other in company):
            yield _TOGETHER


def _meets(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(selected_by(one, labels) for one in term["labelSelector"].get("matchExpressions", ()))


def _is_near(term: Mapping[str, Any], node: Object, other: Object, where: Mapping[str, Mapping[str, str]]) -> bool:
    domain = term["topologyKey"]
    there = where.get(other["spec"]["nodeName"], {}).get(domain)
    return there is not None and labels_of(node).get(domain) == there


def node_for(spec: Mapping[str, Any], labels: Mapping[str, str], taints: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if pods of this spec go to nodes of these labels and taints, as far as these decide it."""
    return _is_wanted(spec, labels) and tolerates_all(spec, taints)
