"""Objects as rows of a table, which is what `kubectl get` asks for and prints. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import condition, holds, is_deleting, phase_of, seconds

_NONE, _UNKNOWN = "<none>", "<unknown>"
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400


class _Column(NamedTuple):
    name: str
    cell: Callable[[Object, float], Any]  # of an object, at a time
    priority: int = 0  # 1: only in a wide table
    type: str = "string"

    def to_json(self) -> Object:
        told = {"type": self.type, "format": "name" if self.name == "Name" else "", "priority": self.priority}
        return {"name": self.name, "description": "", **told}


def table(kind: Kind, found: Object, now: float, include: str) -> Object:
    """Return a table of the objects of a list, or of one object.

    Args:
        kind: Theirs.
        found: The list, or the object.
        now: The time.
        include: What each row has of its object: `Object`, `Metadata`, or `None`.
    """
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    items, metadata = (found["items"], found["metadata"]) if "items" in found else ([found], version)
    columns = _OF_KINDS.get(kind, (_NAME, _AGE._replace(type="date") if kind.is_custom else _AGE))
    rows = [{"cells": [column.cell(one, now) for column in columns], "object": _part(one, include)} for one in items]
    told = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return {**told, "columnDefinitions": [column.to_json() for column in columns], "rows": rows}


def _part(one: Object, include: str) -> Object | None:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": one["metadata"]}
    return {"Object": one, "None": None}.get(include, partial)


def _at(*path: str) -> Callable[[Object, float], Any]:
    """The field at a path; None if there is none."""

    def cell(one: Object, now: float) -> Any:
        value: Any = one
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    return cell


def _text(*path: str) -> Callable[[Object, float], Any]:
    """The field as text, as it is printed where a CRD says so."""

    def cell(one: Object, now: float) -> Any:
        value = _at(*path)(one, now)
        return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    return cell


def _met(kind: str) -> Callable[[Object, float], Any]:
    return lambda one, now: (condition(one, kind) or {}).get("status")


def _since(moment: str | None, now: float) -> str:
    return _UNKNOWN if not moment else duration(now - seconds(moment))


def duration(passed: float) -> str:
    """Return a number of seconds as it is printed: in one or two units, coarser the longer it is."""
    total = max(int(passed), 0)
    for below, unit, large, fine, small in (
        (2 * _MINUTE, 1, "s", 0, ""), (10 * _MINUTE, _MINUTE, "m", 1, "s"), (3 * _HOUR, _MINUTE, "m", 0, ""),
        (8 * _HOUR, _HOUR, "h", _MINUTE, "m"), (2 * _DAY, _HOUR, "h", 0, ""), (8 * _DAY, _DAY, "d", _HOUR, "h"),
        (2 * _YEAR, _DAY, "d", 0, ""), (8 * _YEAR, _YEAR, "y", _DAY, "d"),
    ):  # fmt: skip
        if total < below:
            rest = total % unit // fine if fine else 0
            return f"{total // unit}{large}{f'{rest}{small}' if rest else ''}"
    return f"{total // _YEAR}y"


# ---- pods


def _containers(pod: Object) -> Sequence[Object]:
    return (pod.get("status") or {}).get("containerStatuses") or ()


def _pod_ready(pod: Object, now: float) -> str:
    ready = sum(1 for one in _containers(pod) if one.get("ready"))
    return f"{ready}/{len(pod['spec'].get('containers', ()))}"


def _pod_status(pod: Object, now: float) -> str:
    status = pod.get("status") or {}
    found = str(status.get("reason") or status.get("phase", ""))
    for one in _containers(pod):
        state = one.get("state") or {}
        told = (state.get("waiting") or {}).get("reason") or (state.get("terminated") or {}).get("reason")
        found = str(told or found)
    return "Terminating" if is_deleting(pod) and phase_of(pod) not in ("Succeeded", "Failed") else found


def _pod_restarts(pod: Object, now: float) -> str:
    count = sum(one.get("restartCount", 0) for one in _containers(pod))
    ends = [((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for one in _containers(pod)]
    last = max((end for end in ends if end), default=None)
    return f"{count} ({_since(last, now)} ago)" if count and last else str(count)


# ---- Jobs


def _job_status(job: Object, now: float) -> str:
    if is_deleting(job) and not holds(job, "Complete") and not holds(job, "Failed"):
        return "Terminating"
    known = ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((kind for kind in known if holds(job, kind)), "Running")


def _job_duration(job: Object, now: float) -> str:
    status = job.get("status") or {}
    if not status.get("startTime"):
        return ""
    end = status.get("completionTime")
    return duration((seconds(end) if end else now) - seconds(status["startTime"]))


def _of_templates(field: str) -> Callable[[Object, float], Any]:
    return lambda job, now: ",".join(one[field] for one in job["spec"]["template"]["spec"].get("containers", ()))


# ---- others


def _node_status(node: Object, now: float) -> str:
    ready = "Ready" if holds(node, "Ready") else "NotReady" if condition(node, "Ready") else "Unknown"
    return f"{ready},SchedulingDisabled" if node["spec"].get("unschedulable") else ready


def _node_address(node: Object, now: float) -> str:
    told = (node.get("status") or {}).get("addresses") or ()
    return next((str(one["address"]) for one in told if one["type"] == "InternalIP"), _NONE)


def _event_object(event: Object, now: float) -> str:
    about = event.get("involvedObject") or {}
    return "/".join(filter(None, (str(about.get("kind", "")).lower(), about.get("name"))))


def _event_source(event: Object, now: float) -> str:
    source = event.get("source") or {}
    named = source.get("component") or event.get("reportingComponent"), source.get("host")
    return ", ".join(filter(None, named))


def _event_time(*fields: str) -> Callable[[Object, float], str]:
    return lambda event, now: _since(next((event[name] for name in fields if event.get(name)), None), now)


def _size(one: Object, now: float) -> int:
    return len(one.get("data") or {})


_NAME = _Column("Name", _at("metadata", "name"))
_AGE = _Column("Age", lambda one, now: _since(one["metadata"].get("creationTimestamp"), now))
_OF_KINDS: dict[Kind, tuple[_Column, ...]] = {
    kinds.PODS: (
        _NAME, _Column("Ready", _pod_ready), _Column("Status", _pod_status), _Column("Restarts", _pod_restarts), _AGE,
        _Column("IP", lambda pod, now: (pod.get("status") or {}).get("podIP") or _NONE, 1),
        _Column("Node", lambda pod, now: pod["spec"].get("nodeName") or _NONE, 1),
        _Column("Nominated Node", lambda pod, now: _NONE, 1), _Column("Readiness Gates", lambda pod, now: _NONE, 1),
    ),
    kinds.JOBS: (
        _NAME, _Column("Status", _job_status),
        _Column(
            "Completions",
            lambda job, now: f"{(job.get('status') or {}).get('succeeded', 0)}/{job['spec'].get('completions') or 1}",
        ),
        _Column("Duration", _job_duration), _AGE, _Column("Containers", _of_templates("name"), 1),
        _Column("Images", _of_templates("image"), 1),
        _Column(
            "Selector",
            lambda job, now: ",".join(map("=".join, job["spec"].get("selector", {}).get("matchLabels", {}).items())),
            1,
        ),
    ),
    kinds.NODES: (
        _NAME, _Column("Status", _node_status), _Column("Roles", lambda node, now: _NONE), _AGE,
        _Column("Version", lambda node, now: _at("status", "nodeInfo", "kubeletVersion")(node, now) or ""),
        _Column("Internal-IP", _node_address, 1), _Column("External-IP", lambda node, now: _NONE, 1),
        *(_Column(name, lambda node, now: _UNKNOWN, 1) for name in ("OS-Image", "Kernel-Version", "Container-Runtime")),
    ),
    kinds.EVENTS: (
        _Column("Last Seen", _event_time("lastTimestamp", "firstTimestamp", "eventTime")), _Column("Type", _at("type")),
        _Column("Reason", _at("reason")), _Column("Object", _event_object),
        _Column("Subobject", lambda event, now: _at("involvedObject", "fieldPath")(event, now) or "", 1),
        _Column("Source", _event_source, 1),
        _Column("Message", lambda event, now: str(event.get("message", "")).strip()),
        _Column("First Seen", _event_time("firstTimestamp", "eventTime"), 1),
        _Column("Count", lambda event, now: event.get("count") or 1, 1), _NAME._replace(priority=1),
    ),
    kinds.NAMESPACES: (_NAME, _Column("Status", _at("status", "phase")), _AGE),
    kinds.CONFIG_MAPS: (_NAME, _Column("Data", _size), _AGE),
    kinds.SECRETS: (_NAME, _Column("Type", _at("type")), _Column("Data", _size), _AGE),
    kinds.LEASES: (_NAME, _Column("Holder", _at("spec", "holderIdentity")), _AGE),
    kinds.JOBSETS: (
        _NAME, _Column("TerminalState", _text("status", "terminalState")),
        _Column("Restarts", _text("status", "restarts")), _Column("Completed", _met("Completed")),
        _Column("Suspended", _text("spec", "suspend")), _AGE._replace(type="date"),
    ),
    kinds.WORKLOADS: (
        _NAME, _Column("Queue", _text("spec", "queueName")),
        _Column("Reserved in", _text("status", "admission", "clusterQueue")), _Column("Admitted", _met("Admitted")),
        _Column("Finished", _met("Finished")), _AGE._replace(type="date"),
    ),
    kinds.LOCAL_QUEUES: (
        _NAME, _Column("ClusterQueue", _text("spec", "clusterQueue")),
        _Column("Pending Workloads", _at("status", "pendingWorkloads"), 0, "integer"),
        _Column("Admitted Workloads", _at("status", "admittedWorkloads"), 0, "integer"),
    ),
    kinds.CLUSTER_QUEUES: (
        _NAME, _Column("Cohort", _text("spec", "cohortName")),
        _Column("Strategy", _text("spec", "queueingStrategy"), 1),
        _Column("Pending Workloads", _at("status", "pendingWorkloads"), 0, "integer"),
        _Column("Admitted Workloads", _at("status", "admittedWorkloads"), 1, "integer"),
    ),
}  # fmt: skip
