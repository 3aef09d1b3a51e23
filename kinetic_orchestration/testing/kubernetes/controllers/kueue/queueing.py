"""Kueue: sets that name a queue are held back until it has quota for all of their pods, and out again for others. Pure.

One flavor is chosen for each resource, within one cluster queue; cohorts and fair sharing are not known here. What has
quota begins once the admission checks of its queue are passed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import (
    amount,
    annotations_of,
    condition,
    holds,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    phase_of,
    quantity,
    reference_to,
    requests_of,
    seconds,
    selected_by,
    uid_of,
    with_condition,
    with_spec,
    with_status,
)
from kinetic_orchestration.testing.kubernetes.api.rules.defaults import QUEUE, pod_spec
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, Create, Delete, Replace, Tell, View
from kinetic_orchestration.testing.kubernetes.controllers.jobsets import is_over
from kinetic_orchestration.testing.kubernetes.controllers.kueue import provisioning
from kinetic_orchestration.testing.kubernetes.controllers.scheduling import tolerates

PRIORITY = "kueue.x-k8s.io/priority-class"
_JOB = "kueue.x-k8s.io/job-uid"
_SET = "jobset.sigs.k8s.io/jobset-name"
COMPONENT = "jobset.x-k8s.io/jobset-kueue-controller"
_ADMISSION = "kueue-admission"
_OF_WORKLOADS = "kueue-workload-controller"
_BY_CHECK = "AdmissionCheck"
_ENDED = ("Succeeded", "Failed")


class _Verdict(NamedTuple):
    """The answer of a cluster queue to a workload: its flavors by resource, or why it has none now."""

    flavors: Mapping[str, str]
    why: str = ""
    reason: str = "Pending"
    short: Mapping[tuple[str, str], float] = {}  # flavor and resource → what is missing of it


def step(view: View) -> Iterator[Change]:
    workloads = {uid: found[0] for uid, found in view.controlled(kinds.WORKLOADS).items()}
    sets = {uid_of(one): one for one in view.all(kinds.JOBSETS) if QUEUE in labels_of(one) and not is_deleting(one)}
    for uid, one in sets.items():
        if uid not in workloads:
            yield from _enqueued(view, one)
    yield from _ownerless(view)
    pairs = [(sets[uid], workload) for uid, workload in workloads.items() if uid in sets]
    waiting: list[tuple[Object, Object]] = []
    for one, workload in pairs:
        if is_over(one):
            yield from _finished(one, workload)
        elif _is_evicted(workload) and holds(workload, "QuotaReserved"):
            yield from _stopped(view, one, workload)
        elif holds(workload, "QuotaReserved"):
            yield from _checked(view, one, workload)
        elif workload["spec"].get("active", True) and not _backs_off(workload, view.now):
            waiting.append((one, _asking(view, workload)))
    yield from _admitted(view, waiting, [workload for _, workload in pairs])
    yield from _counted(view)


def pending(view: View, namespace: str, queue: str) -> Object:
    """Return the workloads that wait in a queue, with their places, as its visibility tells them."""
    local = view.get(kinds.LOCAL_QUEUES, namespace, queue)
    cluster_queue = local["spec"]["clusterQueue"] if local is not None else ""
    listed: list[Object] = []
    places: dict[tuple[str, str], int] = {}
    for position, workload in enumerate(_in_order(_waiting_in(view, cluster_queue))):
        own = namespace_of(workload), workload["spec"]["queueName"]
        places[own] = places.get(own, -1) + 1
        if own != (namespace, queue):
            continue
        metadata = workload["metadata"]
        owners = [
            {key: value for key, value in owner.items() if key in ("apiVersion", "kind", "name", "uid")}
            for owner in metadata["ownerReferences"]
        ]
        told = {key: metadata[key] for key in ("name", "namespace", "creationTimestamp")}
        listed.append(
            {
                "metadata": {**told, "ownerReferences": owners},
                "priority": workload["spec"]["priority"],
                "localQueueName": queue,
                "positionInClusterQueue": position,
                "positionInLocalQueue": places[own],
            }
        )
    about = {"kind": "PendingWorkloadsSummary", "apiVersion": f"{kinds.VISIBILITY}/v1beta2"}
    return {**about, "metadata": {}, "items": listed}


# ---- a workload for each set


def _ownerless(view: View) -> Iterator[Change]:
    """The workload of a set that was deleted without what is its own goes with it all the same."""
    there = {uid_of(one) for one in view.all(kinds.JOBSETS)}
    for workload in view.all(kinds.WORKLOADS):
        of = labels_of(workload).get(_JOB)
        if of is not None and of not in there and not workload["metadata"].get("ownerReferences"):
            yield Delete(kinds.WORKLOADS, workload)


def _enqueued(view: View, one: Object) -> Iterator[Change]:
    named = labels_of(one).get(PRIORITY)
    priority = view.get(kinds.PRIORITIES, "", named) if named else None
    if named and priority is None:
        return
    digest = hashlib.sha1(uid_of(one).encode(), usedforsecurity=False).hexdigest()[:5]
    chosen = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": named}
    notes = {key: told for key, told in annotations_of(one).items() if key.startswith(provisioning.PARAMETERS)}
    workload = {
        "metadata": {
            "name": f"jobset-{name_of(one)}-{digest}", "namespace": namespace_of(one), "labels": {_JOB: uid_of(one)},
            "ownerReferences": [reference_to(one)], **({"annotations": notes} if notes else {}),
        },
        "spec": {
            "active": True, "queueName": labels_of(one)[QUEUE], "priority": priority["value"] if priority else 0,
            **({"priorityClassRef": chosen} if priority else {}),
            "podSets": [_pod_set(each) for each in one["spec"]["replicatedJobs"]],
        },
    }  # fmt: skip
    told = f"Created Workload: {namespace_of(one)}/{name_of(workload)}"
    yield Create(kinds.WORKLOADS, workload, one, done=("CreatedWorkload", told), component=COMPONENT)


def _pod_set(each: Object) -> Object:
    job = each["template"]["spec"]
    count = each["replicas"] * min(job.get("parallelism", 1), job.get("completions", 1))
    return {"name": each["name"], "count": count, "template": job["template"]}


def _asked(workload: Object) -> dict[str, float]:
    found: dict[str, float] = {}
    for pods in workload["spec"]["podSets"]:
        for resource, each in requests_of(pod_spec(pods["template"]["spec"])).items():
            found[resource] = found.get(resource, 0.0) + each * pods["count"]
    return found


def _is_evicted(workload: Object) -> bool:
    return holds(workload, "Evicted")


# ---- who gets quota


def _waiting_in(view: View, cluster_queue: str) -> list[Object]:
    def leads(workload: Object) -> bool:
        local = view.get(kinds.LOCAL_QUEUES, namespace_of(workload), workload["spec"]["queueName"])
        return local is not None and local["spec"]["clusterQueue"] == cluster_queue

    return [
        workload
        for workload in view.all(kinds.WORKLOADS)
        if not holds(workload, "QuotaReserved")
        and not holds(workload, "Finished")
        and leads(workload)
        and workload["spec"].get("active", True)
    ]


def _in_order(workloads: Sequence[Object]) -> list[Object]:
    def key(workload: Object) -> tuple[int, str, str]:
        return -int(workload["spec"]["priority"]), workload["metadata"]["creationTimestamp"], uid_of(workload)

    return sorted(workloads, key=key)


def _admitted(view: View, waiting: Sequence[tuple[Object, Object]], all_: Sequence[Object]) -> Iterator[Change]:
    reserved = [workload for workload in all_ if holds(workload, "QuotaReserved") and not holds(workload, "Finished")]
    by_uid = {uid_of(workload): one for one, workload in waiting}
    for workload in _in_order([workload for _, workload in waiting]):
        verdict = _verdict(view, workload, reserved)
        if not verdict.why:
            admitted = _with_quota(view, workload, verdict.flavors)
            reserved.append(admitted)
            yield Replace(kinds.WORKLOADS, admitted)
            continue
        victims = _victims(view, workload, verdict, reserved)
        why = verdict.why + (f". Pending the preemption of {len(victims)} workload(s)" if victims else "")
        held = with_condition(workload, "QuotaReserved", "False", verdict.reason, why, observedGeneration=1)
        asked = {resource: amount(count) for resource, count in _asked(workload).items()}
        requests = [{"name": pods["name"], "resources": asked} for pods in workload["spec"]["podSets"]]
        yield Replace(kinds.WORKLOADS, with_status(held, resourceRequests=requests))
        for victim in victims:
            told = _preemption(workload, by_uid[uid_of(workload)], victim)
            evicted = _evicted(victim, told)
            reserved[reserved.index(victim)] = evicted  # with its quota until its pods are gone
            yield Replace(kinds.WORKLOADS, evicted)
            yield Tell(victim, "Normal", "EvictedDueToPreempted", told, _ADMISSION)
            yield Tell(victim, "Normal", "Preempted", told, _ADMISSION)


def _queue_of(workload: Object) -> str:
    return str(workload["status"]["admission"]["clusterQueue"])


def _verdict(view: View, workload: Object, reserved: Sequence[Object]) -> _Verdict:
    name = workload["spec"]["queueName"]
    local = view.get(kinds.LOCAL_QUEUES, namespace_of(workload), name)
    if local is None:
        return _Verdict({}, f"LocalQueue {name} doesn't exist", "Inadmissible")
    if local["spec"].get("stopPolicy", "None") != "None":
        return _Verdict({}, f"LocalQueue {name} is inactive", "Inadmissible")
    queue = view.get(kinds.CLUSTER_QUEUES, "", local["spec"]["clusterQueue"])
    if queue is None:
        return _Verdict({}, f"ClusterQueue {local['spec']['clusterQueue']} doesn't exist", "Inadmissible")
    if queue["spec"].get("stopPolicy", "None") != "None" or provisioning.inactive(view, queue) is not None:
        return _Verdict({}, f"ClusterQueue {name_of(queue)} is inactive", "Inadmissible")
    namespace = view.get(kinds.NAMESPACES, "", namespace_of(workload))
    if not _serves(queue["spec"].get("namespaceSelector"), labels_of(namespace) if namespace else {}):
        return _Verdict({}, "Workload namespace doesn't match ClusterQueue selector", "Inadmissible")
    return _assigned(view, workload, queue, reserved)


def _serves(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    exact = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in exact.items()) and all(
        selected_by(one, labels) for one in selector.get("matchExpressions") or ()
    )


def _assigned(view: View, workload: Object, queue: Object, reserved: Sequence[Object]) -> _Verdict:
    flavors: dict[str, str] = {}
    used = _used(queue, reserved)
    [pods, *_] = workload["spec"]["podSets"]
    about = f"couldn't assign flavors to pod set {pods['name']}: "
    for resource, asked in _asked(workload).items():
        group = next(
            (one for one in queue["spec"].get("resourceGroups") or () if resource in one["coveredResources"]), None
        )
        if group is None:
            return _Verdict({}, f"{about}resource {resource} unavailable in ClusterQueue")
        told: list[str] = []
        short: dict[tuple[str, str], float] = {}
        for flavor in group["flavors"]:
            nominal = next(quantity(one["nominalQuota"]) for one in flavor["resources"] if one["name"] == resource)
            name = flavor["name"]
            if (unfit := _unfit(view.get(kinds.FLAVORS, "", name), name, pods["template"]["spec"])) is not None:
                told.append(unfit)
            elif asked > nominal:
                total = f"current podset request ({amount(asked)}) > maximum capacity ({amount(nominal)})"
                told.append(
                    f"insufficient quota for {resource} in flavor {name}, previously considered podsets requests (0) + "
                    f"{total}"
                )
            elif (lacks := used.get((name, resource), 0.0) + asked - nominal) > 0:
                short[name, resource] = lacks
                told.append(f"insufficient unused quota for {resource} in flavor {name}, {amount(lacks)} more needed")
            else:
                flavors[resource] = name
                break
        if resource not in flavors:
            return _Verdict({}, about + ", ".join(told), short=short)
    return _Verdict(flavors)


def _unfit(flavor: Object | None, name: str, spec: Mapping[str, Any]) -> str | None:
    """Return why pods cannot use a flavor; None if they can."""
    if flavor is None:
        return f"flavor {name} not found"
    told = flavor.get("spec") or {}
    for taint in told.get("nodeTaints") or ():
        if not tolerates(spec, taint):
            value = taint.get("value", "")
            return f"untolerated taint {{{taint['key']} {value} {taint['effect']} <nil>}} in flavor {name}"
    labels = told.get("nodeLabels") or {}
    chosen = spec.get("nodeSelector") or {}
    if any(key in labels and labels[key] != value for key, value in chosen.items()):
        return f"flavor {name} doesn't match node affinity"
    return None


def _used(queue: Object, reserved: Sequence[Object]) -> dict[tuple[str, str], float]:
    used: dict[tuple[str, str], float] = {}
    for workload in reserved:
        if _queue_of(workload) != name_of(queue):
            continue
        for pods in workload["status"]["admission"]["podSetAssignments"]:
            for resource, flavor in pods["flavors"].items():
                key = flavor, resource
                used[key] = used.get(key, 0.0) + quantity(pods["resourceUsage"][resource])
    return used


def _victims(view: View, workload: Object, verdict: _Verdict, reserved: Sequence[Object]) -> list[Object]:
    """Return the workloads of less priority that are enough for this one, if its cluster queue lets it take them."""
    local = view.get(kinds.LOCAL_QUEUES, namespace_of(workload), workload["spec"]["queueName"])
    queue = view.get(kinds.CLUSTER_QUEUES, "", local["spec"]["clusterQueue"]) if local else None
    policy = ((queue or {}).get("spec", {}).get("preemption") or {}).get("withinClusterQueue", "Never")
    if not verdict.short or policy == "Never" or queue is None:
        return []
    staying = [one for one in reserved if not _is_evicted(one)]  # the others are about to free their quota
    if not _assigned(view, workload, queue, staying).why:
        return []
    mine = int(workload["spec"]["priority"])
    less = [one for one in staying if _queue_of(one) == name_of(queue) and int(one["spec"]["priority"]) < mine]
    chosen: list[Object] = []
    for victim in reversed(_in_order(less)):
        chosen.append(victim)
        if not _assigned(view, workload, queue, [one for one in staying if one not in chosen]).why:
            return chosen
    return []


# ---- what becomes of workloads


def _with_quota(view: View, workload: Object, flavors: Mapping[str, str]) -> Object:
    local = view.get(kinds.LOCAL_QUEUES, namespace_of(workload), workload["spec"]["queueName"])
    assert local is not None
    queue = local["spec"]["clusterQueue"]
    asked = {resource: amount(count) for resource, count in _asked(workload).items()}
    assignments = [
        {"name": pods["name"], "count": pods["count"], "flavors": dict(flavors), "resourceUsage": asked}
        for pods in workload["spec"]["podSets"]
    ]
    admission = {"clusterQueue": queue, "podSetAssignments": assignments}
    found = with_status(workload, admission=admission, resourceRequests=None)
    reserved = f"Quota reserved in ClusterQueue {queue}"
    found = with_condition(found, "QuotaReserved", "True", "QuotaReserved", reserved, observedGeneration=1)
    for kind in ("Evicted", "Preempted"):
        if holds(found, kind):
            before = f"Previously: {(condition(found, kind) or {})['message']}"
            found = with_condition(found, kind, "False", "QuotaReserved", before, observedGeneration=1)
    return found if provisioning.states_of(found) else _let_in(found)


def _let_in(workload: Object) -> Object:
    return with_condition(workload, "Admitted", "True", "Admitted", "The workload is admitted", observedGeneration=1)


def _asking(view: View, workload: Object) -> Object:
    """Return a workload that may be admitted, with the checks of its queue."""
    local = view.get(kinds.LOCAL_QUEUES, namespace_of(workload), workload["spec"]["queueName"])
    queue = view.get(kinds.CLUSTER_QUEUES, "", local["spec"]["clusterQueue"]) if local is not None else None
    found = provisioning.with_checks(workload, provisioning.checks_of(queue) if queue is not None else [])
    if (condition(found, "Requeued") or {}).get("reason") == _BY_CHECK:
        told = "The workload backoff was finished"
        found = with_condition(found, "Requeued", "True", "BackoffFinished", told, observedGeneration=1)
    return found


def _backs_off(workload: Object, now: float) -> bool:
    """Tell whether an admission check has a workload wait before it asks for quota again."""
    evicted = condition(workload, "Evicted") or {}
    pause = max((state.get("requeueAfterSeconds", 0) for state in provisioning.states_of(workload)), default=0)
    return evicted.get("reason") == _BY_CHECK and now < seconds(evicted["lastTransitionTime"]) + pause


def _checked(view: View, one: Object, workload: Object) -> Iterator[Change]:
    """Start the workloads that have quota and have passed their checks; take the quota back where a check fails."""
    states = provisioning.states_of(workload)
    if rejected := _named(states, provisioning.REJECTED):
        told = f"The workload is deactivated due to {rejected}"
        yield Tell(workload, "Warning", "AdmissionCheckRejected", f"Deactivated due to {rejected}", _OF_WORKLOADS)
        workload = with_spec(workload, active=False)
        yield from _out(workload, f"DeactivatedDueTo{_BY_CHECK}", told)
    elif again := _named(states, provisioning.RETRY):
        yield from _out(workload, _BY_CHECK, f"Evicted due to {again}")
    elif holds(workload, "Admitted"):
        yield from _started(view, one, workload)
    elif all(state["state"] == provisioning.READY for state in states):
        yield Replace(kinds.WORKLOADS, _let_in(workload))


def _named(states: Sequence[Object], wanted: str) -> str:
    """Return a sentence about the checks in a state; "" if there is none."""
    found = [one for one in states if one["state"] == wanted]
    parts = [f'"{one["name"]}" ({one["message"]})' if one["message"] else f'"{one["name"]}"' for one in found]
    return f"AdmissionCheck{'s' if len(found) > 1 else ''} in {wanted} state: {'; '.join(parts)}" if found else ""


def _out(workload: Object, reason: str, told: str) -> Iterator[Change]:
    found = with_condition(provisioning.reset(workload), "Evicted", "True", reason, told, observedGeneration=1)
    yield Replace(kinds.WORKLOADS, found)
    yield Tell(workload, "Normal", f"EvictedDueTo{reason}", told, _OF_WORKLOADS)


def _preemption(by: Object, its_set: Object, victim: Object) -> str:
    path = f"/{_queue_of(victim)}"
    return (
        f"Preempted to accommodate a workload (UID: {uid_of(by)}, JobUID: {uid_of(its_set)}) due to prioritization in "
        f"the ClusterQueue; preemptor path: {path}; preemptee path: {path}"
    )


def _evicted(victim: Object, told: str) -> Object:
    found = with_condition(victim, "Evicted", "True", "Preempted", told, observedGeneration=1)
    return with_condition(found, "Preempted", "True", "InClusterQueue", told)


def _stopped(view: View, one: Object, workload: Object) -> Iterator[Change]:
    """The set of an evicted workload is held back; once its pods are gone, its quota is free."""
    evicted = next(found for found in workload["status"]["conditions"] if found["type"] == "Evicted")
    if not one["spec"].get("suspend"):
        yield Replace(kinds.JOBSETS, with_spec(_with_nodes(one, workload, {}, {}), suspend=True))
        yield Tell(one, "Normal", "Stopped", evicted["message"], COMPONENT)
        return
    pods = view.all(kinds.PODS, namespace_of(one))
    if any(labels_of(pod).get(_SET) == name_of(one) and phase_of(pod) not in _ENDED for pod in pods):
        return
    found = with_status(workload, admission=None)
    found = with_condition(found, "QuotaReserved", "False", "Pending", evicted["message"], observedGeneration=1)
    if condition(found, "Admitted") is not None:
        has_checks = bool(provisioning.states_of(found))
        reason = "NoReservationUnsatisfiedChecks" if has_checks else "NoReservation"
        told = f"The workload has no reservation{' and not all checks ready' if has_checks else ''}"
        found = with_condition(found, "Admitted", "False", reason, told, observedGeneration=1)
    again = "True" if evicted["reason"] == "Preempted" else "False"
    requeued = evicted["reason"], evicted["message"]
    yield Replace(kinds.WORKLOADS, with_condition(found, "Requeued", again, *requeued, observedGeneration=1))


def _started(view: View, one: Object, workload: Object) -> Iterator[Change]:
    if not one["spec"].get("suspend"):
        return
    labels: dict[str, str] = {}
    for pods in workload["status"]["admission"]["podSetAssignments"]:
        for name in pods["flavors"].values():
            flavor = view.get(kinds.FLAVORS, "", name) or {}
            labels |= (flavor.get("spec") or {}).get("nodeLabels") or {}
    updates = [update for state in provisioning.states_of(workload) for update in state.get("podSetUpdates", ())]
    notes = {update["name"]: update.get("annotations") or {} for update in updates}
    yield Replace(kinds.JOBSETS, with_spec(_with_nodes(one, workload, labels, notes), suspend=False))
    yield Tell(one, "Normal", "Started", f"Admitted by clusterQueue {_queue_of(workload)}", COMPONENT)


def _with_nodes(
    one: Object, workload: Object, labels: Mapping[str, str], notes: Mapping[str, Mapping[str, str]]
) -> Object:
    """Return a set whose pods go to the nodes that they asked for, to those of a flavor, and have these notes."""
    asked = {pods["name"]: pods["template"]["spec"].get("nodeSelector") or {} for pods in workload["spec"]["podSets"]}
    return with_spec(
        one,
        replicatedJobs=[
            _on_nodes(each, {**asked[each["name"]], **labels}, notes.get(each["name"], {}))
            for each in one["spec"]["replicatedJobs"]
        ],
    )


def _on_nodes(each: Object, chosen: Mapping[str, str], notes: Mapping[str, str]) -> Object:
    template = each["template"]
    pods = template["spec"]["template"]
    spec = {key: value for key, value in pods["spec"].items() if key != "nodeSelector"}
    spec |= {"nodeSelector": dict(chosen)} if chosen else {}
    metadata = pods.get("metadata") or {}
    before = (metadata.get("annotations") or {}).items()
    own = {key: value for key, value in before if not key.startswith(provisioning.OF_REQUESTS)}
    pods = {**pods, "metadata": {**metadata, "annotations": {**own, **notes}}, "spec": spec}
    return {**each, "template": {**template, "spec": {**template["spec"], "template": pods}}}


def _finished(one: Object, workload: Object) -> Iterator[Change]:
    if not holds(workload, "Finished"):
        succeeded = holds(one, "Completed")
        reason = "Succeeded" if succeeded else "Failed"
        told = next(
            found["message"]
            for found in one["status"]["conditions"]
            if found["type"] == ("Completed" if succeeded else "Failed")
        )
        yield Replace(kinds.WORKLOADS, with_condition(workload, "Finished", "True", reason, told, observedGeneration=1))


# ---- what queues say of themselves


def _counted(view: View) -> Iterator[Change]:
    workloads = [one for one in view.all(kinds.WORKLOADS) if not holds(one, "Finished")]
    for local in view.all(kinds.LOCAL_QUEUES):
        mine = [
            one
            for one in workloads
            if (namespace_of(one), one["spec"]["queueName"]) == (namespace_of(local), name_of(local))
        ]
        queue = view.get(kinds.CLUSTER_QUEUES, "", local["spec"]["clusterQueue"])
        status, reason, message = "False", "ClusterQueueDoesNotExist", "Can't submit new workloads to clusterQueue"
        if queue is not None and provisioning.inactive(view, queue) is not None:
            reason = "ClusterQueueIsInactive"
        elif queue is not None:
            status, reason, message = "True", "Ready", "Can submit new workloads to localQueue"
        told = with_condition(local, "Active", status, reason, message, observedGeneration=1)
        flavors = _taken_of(queue, [one for one in mine if holds(one, "QuotaReserved")]) if queue is not None else None
        found = with_status(told, **_numbers(mine), flavorsReservation=flavors, flavorsUsage=flavors)
        yield Replace(kinds.LOCAL_QUEUES, found)
    for queue in view.all(kinds.CLUSTER_QUEUES):
        waiting = _waiting_in(view, name_of(queue))
        reserved = [one for one in workloads if holds(one, "QuotaReserved") and _queue_of(one) == name_of(queue)]
        stopped = provisioning.inactive(view, queue)
        status, words = ("True", ("Ready", "Can admit new workloads")) if stopped is None else ("False", stopped)
        told = with_condition(queue, "Active", status, *words, observedGeneration=1)
        yield Replace(kinds.CLUSTER_QUEUES, with_status(told, **_numbers([*waiting, *reserved])))


def _taken_of(queue: Object, reserved: Sequence[Object]) -> list[Object] | None:
    """Return what some workloads have of each flavor of their cluster queue; None if it has no flavors."""
    used = _used(queue, reserved)
    found = [
        {
            "name": flavor["name"],
            "resources": [
                {"name": resource, "total": amount(used.get((flavor["name"], resource), 0.0))}
                for resource in sorted(group["coveredResources"])
            ],
        }
        for group in queue["spec"].get("resourceGroups") or ()
        for flavor in group["flavors"]
    ]
    return found or None


def _numbers(workloads: Sequence[Object]) -> dict[str, int]:
    reserved = sum(1 for one in workloads if holds(one, "QuotaReserved"))
    admitted = sum(1 for one in workloads if holds(one, "Admitted"))
    return {
        "admittedWorkloads": admitted, "pendingWorkloads": len(workloads) - reserved, "reservingWorkloads": reserved,
    }  # fmt: skip
