"""The fields that an API server and its webhooks fill in where an object has none. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.objects import labels_of, uid_of, with_spec, with_status

QUEUE = "kueue.x-k8s.io/queue-name"
ENDLESS = 2**31 - 1  # failures, where each index has a limit of its own
_JOB_LABELS = ("batch.kubernetes.io/", "")
_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_ABSENCE = 300  # seconds for which a pod tolerates a node that is away


def defaulted(kind: Kind, found: Object) -> Object:
    """Return an object that is created with all defaults of its kind."""
    fill = _OF.get(kind)
    return found if fill is None else fill(found)


def _namespace(found: Object) -> Object:
    labels = {"kubernetes.io/metadata.name": found["metadata"]["name"], **labels_of(found)}
    found = {**found, "metadata": {**found["metadata"], "labels": labels}, "spec": {"finalizers": ["kubernetes"]}}
    return with_status(found, phase="Active")


def _secret(found: Object) -> Object:
    import base64

    written = {key: base64.b64encode(value.encode()).decode() for key, value in found.get("stringData", {}).items()}
    plain = {key: value for key, value in found.items() if key != "stringData"}
    return {"type": "Opaque", **plain, "data": {**found.get("data", {}), **written}}


def pod_spec(spec: Mapping[str, Any]) -> Object:
    """Return the spec of a pod, or of a template of pods, with its defaults."""
    return {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        **spec,
        "containers": [_container(one) for one in spec.get("containers", ())],
    }


def _container(container: Mapping[str, Any]) -> Object:
    resources = container.get("resources", {})
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    asked = {**limits, **requests}
    env = [_variable(one) for one in container.get("env", ())]
    return {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always" if ":" not in container.get("image", "") else "IfNotPresent",
        **container,
        "resources": {**resources, **({"requests": asked} if asked else {})},
        **({"env": env} if env else {}),
    }


def _variable(variable: Mapping[str, Any]) -> Object:
    source = variable.get("valueFrom", {})
    if "fieldRef" not in source:
        return dict(variable)
    return {**variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", **source["fieldRef"]}}}


def _pod(found: Object) -> Object:
    account = found["spec"].get("serviceAccountName") or "default"
    tolerated = [*found["spec"].get("tolerations", ())]
    for key in _TOLERATED:
        if not any(one.get("key") in (key, None) and one.get("effect") in ("NoExecute", None) for one in tolerated):
            effect = {"effect": "NoExecute", "tolerationSeconds": _ABSENCE}
            tolerated.append({"key": key, "operator": "Exists", **effect})
    spec = {
        "enableServiceLinks": True, "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
        **pod_spec(found["spec"]), "serviceAccountName": account, "serviceAccount": account, "tolerations": tolerated,
    }  # fmt: skip
    return with_status({**found, "spec": spec}, phase="Pending", qosClass=_quality(spec))


def _quality(spec: Mapping[str, Any]) -> str:
    resources = [container.get("resources", {}) for container in spec["containers"]]
    return "Burstable" if any(one.get("requests") or one.get("limits") for one in resources) else "BestEffort"


def _job(found: Object) -> Object:
    """The labels of its pods are those of the Job itself, which has a UID by now."""
    spec = found["spec"]
    parallelism = spec.get("parallelism", 1)
    alone = 1 if "parallelism" not in spec else None  # for a Job that says neither
    endless = spec.get("backoffLimitPerIndex") is not None
    filled = {
        "parallelism": parallelism,
        "completions": parallelism if spec.get("completionMode") != "Indexed" else spec.get("completions", alone),
        "backoffLimit": ENDLESS if endless else 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed",
        "manualSelector": False,
        **spec,
        "template": {**spec["template"], "spec": pod_spec(spec["template"]["spec"])},
    }
    return {**found, "spec": filled, "status": {}}


def identified(job: Object) -> Object:
    """Return a Job whose pods are known by its UID."""
    told = {"controller-uid": uid_of(job), "job-name": job["metadata"]["name"]}
    labels = {f"{prefix}{name}": value for prefix in _JOB_LABELS for name, value in told.items()}
    template = job["spec"]["template"]
    metadata = template.get("metadata") or {}
    metadata = {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}
    selector = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid_of(job)}}
    return with_spec(job, selector=selector, template={**template, "metadata": metadata})


def _jobset(found: Object) -> Object:
    """As JobSet's webhook has it, and Kueue's, which holds back what names a queue."""
    spec = found["spec"]
    filled = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, **spec.get("network", {})},
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "successPolicy": {"operator": "All"},
        **spec,
        "replicatedJobs": [_replicated(one) for one in spec.get("replicatedJobs", ())],
        **({"suspend": True} if QUEUE in labels_of(found) else {}),
    }
    return {**{key: value for key, value in found.items() if key != "status"}, "spec": filled}


def _replicated(one: Mapping[str, Any]) -> Object:
    template = one["template"]
    job = {"completionMode": "Indexed", **template["spec"]}
    pods = job["template"]
    job["template"] = {**pods, "spec": {"restartPolicy": "OnFailure", **pods["spec"]}}
    return {"groupName": "default", "replicas": 1, **one, "template": {**template, "spec": job}}


def _local_queue(found: Object) -> Object:
    return with_spec(found, stopPolicy=found["spec"].get("stopPolicy", "None"))


def _provisioning(found: Object) -> Object:
    retries = {"backoffLimitCount": 3, "backoffBaseSeconds": 60, "backoffMaxSeconds": 1800}
    return with_spec(found, retryStrategy={**retries, **(found["spec"].get("retryStrategy") or {})})


def _node(found: Object) -> Object:
    """It takes no pods until its kubelet has reported it."""
    spec = found.get("spec") or {}
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    return {**found, "spec": {**spec, "taints": [*spec.get("taints", ()), taint]}, "status": {}}


def _quota(found: Object) -> Object:
    hard = {name: str(value) for name, value in found["spec"].get("hard", {}).items()}
    return with_spec(found, hard=hard)


_OF: Mapping[Kind, Callable[[Object], Object]] = {
    kinds.NAMESPACES: _namespace,
    kinds.SECRETS: _secret,
    kinds.PODS: _pod,
    kinds.JOBS: _job,
    kinds.JOBSETS: _jobset,
    kinds.LOCAL_QUEUES: _local_queue,
    kinds.PROVISIONING_CONFIGS: _provisioning,
    kinds.NODES: _node,
    kinds.QUOTAS: _quota,
}
