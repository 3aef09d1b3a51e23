"""Judges by what a cluster says of objects that were applied: do they serve, will they never, and why. Pure.

Its words come from controllers and from other people's containers, so they are bounded and escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.api.answers import escaped

Object = Mapping[str, Any]

CONTROLLER_SECONDS: Final = 60.0  # in which a controller that is there has said something
PULL_SECONDS: Final = 90.0  # in which a registry that was away may be back
RESTARTS: Final = 2  # of a container that ends: after it, it ends always
_LINES: Final = 12
_PULLS: Final = (
    "ImagePullBackOff",
    "ErrImagePull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_NEVER: Final = ("InvalidImageName",)


class Verdict(NamedTuple):
    """The judgement of what was seen.

    Attributes:
        ready: It serves.
        failed: Why it never will; "": it may.
        says: What it waits for.
        lacks_node: It is a node that never came.
    """

    ready: bool = False
    failed: str = ""
    says: str = ""
    lacks_node: bool = False


class Limits(NamedTuple):
    """Seconds of patience."""

    node: float  # until a pod has one
    controller: float  # until one has said something
    pull: float  # until an image is there


def of_deployment(found: Object, pods: Sequence[Object], now: float, since: float, limits: Limits) -> Verdict:
    """Return the verdict on a Deployment.

    Args:
        found: As the server has it.
        pods: Those of its newest template.
        now: The time by the server's clock.
        since: When it was applied.
        limits: How long each thing may take.
    """
    status, name, wanted = found.get("status") or {}, found["metadata"]["name"], found["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < found["metadata"]["generation"]:
        return _unseen(
            f"Deployment {name}", "the controller of Deployments, a part of every cluster", now - since, limits
        )
    counts = [status.get(each, 0) for each in ("replicas", "updatedReplicas", "availableReplicas")]
    if counts == [wanted] * 3:
        return Verdict(ready=True, says=f"{wanted} of {wanted} ready")
    for pod in pods:
        verdict = _of_pod(pod, now, limits)
        if verdict.failed or verdict.lacks_node:
            return verdict
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    progress = conditions.get("Progressing", {})
    # One of the rollout before stays until this one has begun.
    if progress.get("reason") == "ProgressDeadlineExceeded" and _time(progress.get("lastUpdateTime"), since) >= since:
        return Verdict(failed=f"Deployment {name}: {escaped(progress.get('message'))}")
    refused = conditions.get("ReplicaFailure", {})
    if refused.get("status") == "True" and now - since > limits.controller:
        return Verdict(failed=f"the cluster creates no pods of {name}: {escaped(refused.get('message'))}")
    words = [said for pod in pods if (said := _of_pod(pod, now, limits).says)]
    return Verdict(says=f"{counts[2]} of {wanted} ready" + (f": {words[0]}" if words else ""))


def of_parents(found: Object, now: float, since: float, limits: Limits) -> Verdict:
    """Return the verdict on an InferencePool or an HTTPRoute, of which the controllers of gateways speak."""
    name, status = f"{found['kind']} {found['metadata']['name']}", found.get("status") or {}
    parents = [one for one in status.get("parents") or () if not _is_default(one)]
    generation = found["metadata"].get("generation", 0)
    said_of_all = [each for parent in parents for each in parent.get("conditions") or ()]
    conditions = [one for one in said_of_all if one.get("observedGeneration", generation) >= generation]
    if not parents or (said_of_all and not conditions):
        return _unseen(name, f"the gateway's controller, which has to know {found['kind']}s", now - since, limits)
    if any(one["type"] == "Accepted" and one["status"] == "True" for one in conditions):
        return Verdict(ready=True, says="accepted")
    said: Object = next((one for one in conditions if one["type"] == "Accepted"), {})
    words = f"{name} is not accepted: {escaped(said.get('reason'))} {escaped(said.get('message'))}".rstrip()
    return Verdict(failed=words) if now - since > limits.controller else Verdict(says=words)


def _is_default(parent: Object) -> bool:
    """Return True for the parent that the definition of an InferencePool fills in where no controller is."""
    return (parent.get("parentRef") or {}).get("kind") == "Status"


def of_llm_inference_service(found: Object, now: float, since: float, limits: Limits) -> Verdict:
    """Return the verdict on KServe's object."""
    name, status = found["metadata"]["name"], found.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    if not conditions or status.get("observedGeneration", 0) < found["metadata"]["generation"]:
        return _unseen(f"LLMInferenceService {name}", "KServe's controller", now - since, limits)
    ready = conditions.get("Ready", {})
    if ready.get("status") == "True":
        return Verdict(ready=True, says="ready")
    return Verdict(says=f"{escaped(ready.get('reason'))} {escaped(ready.get('message'))}".strip() or "not ready")


def _unseen(what: str, who: str, passed: float, limits: Limits) -> Verdict:
    if passed <= limits.controller:
        return Verdict(says=f"nobody has said anything of {what} yet")
    return Verdict(
        failed=f"nobody answers for {what}: the cluster knows its kind, and in {passed:.0f} s no controller has said "
        f"anything of it. Is {who}, installed and running?"
    )


def _of_pod(pod: Object, now: float, limits: Limits) -> Verdict:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False" and one.get("reason") == "Unschedulable":
            waited = now - _time(one.get("lastTransitionTime"), pod["metadata"].get("creationTimestamp"), now)
            words = f"pod {name} has no node: {escaped(one.get('message'))}"
            return Verdict(failed=words, lacks_node=True) if waited > limits.node else Verdict(says=words)
    for container in status.get("containerStatuses") or ():
        verdict = _of_container(
            name, container, now - _time(None, pod["metadata"].get("creationTimestamp"), now), limits
        )
        if verdict.failed or verdict.says:
            return verdict
    return Verdict()


def _of_container(pod: str, container: Object, age: float, limits: Limits) -> Verdict:
    if container.get("ready"):  # its restarts were before
        return Verdict()
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, message = str(waiting.get("reason", "")), escaped(waiting.get("message"))
    if reason in _NEVER or (reason in _PULLS and age > limits.pull):
        return Verdict(failed=f"pod {pod} does not start: {reason}: {message}")
    if reason in _PULLS:
        return Verdict(says=f"pod {pod}: {reason}: {message}")
    ended = _ended(container)
    if ended and container.get("restartCount", 0) >= RESTARTS:
        return Verdict(failed=f"the server in pod {pod} ends again and again, {ended}")
    return Verdict(says=f"the server in pod {pod} has ended, {ended}, and starts again") if ended else Verdict()


def _ended(container: Object) -> str:
    """Return how a container ended the last time, with its last lines, which its termination message has."""
    found = (container.get("state") or {}).get("terminated") or (container.get("lastState") or {}).get("terminated")
    if not found:
        return ""
    lines = escaped(found.get("message", "")[-1000:]).splitlines()[-_LINES:]
    last = "".join(f"\n    {line}" for line in lines)
    return f"with exit code {int(found.get('exitCode', 0))} ({escaped(found.get('reason'))})" + (
        f". Its last lines:{last}\n" if last else ""
    )


def _time(*candidates: Any) -> float:
    for text in candidates:
        if isinstance(text, float):
            return text
        try:
            return datetime.fromisoformat(str(text)).timestamp()
        except ValueError:
            continue
    raise ValueError("no time")


# ---- an accelerator that never came ----------------------------------------------------------------------------------


def lacking(pod: Object, known: Iterable[Object] | None, seconds: float) -> str:
    """Return a sentence about a pod that found no node.

    Args:
        pod: Its spec.
        known: All nodes of the cluster; None if this client may not list them.
        seconds: How long it waited.
    """
    asked = manifest.wanted(dict(pod)) or "any node"
    resources = pod["containers"][0].get("resources") or {}
    amount = ", ".join(f"{value} of {name}" for name, value in (resources.get("requests") or {}).items())
    return (
        f"in {seconds:.0f} s no node was found for it. It asks for {asked}, with {amount} free. {_has(known)} Have "
        "such a "
        "node (a pool of nodes, or capacity for one that scales), free one, or choose another accelerator"
    )


def _has(known: Iterable[Object] | None) -> str:
    if known is None:
        return "What the cluster has could not be listed: that takes the right to list nodes."
    counts = Counter(_shape(node) for node in known)
    if not counts:
        return "The cluster has no nodes."
    told = "; ".join(f"{count} × {shape}" for shape, count in counts.most_common(8))
    return f"The cluster has {told}{'; …' if len(counts) > 8 else ''}."


def _shape(node: Object) -> str:
    labels, has = node["metadata"].get("labels") or {}, (node.get("status") or {}).get("allocatable") or {}
    kept = [f"{key}={labels[key]}" for key in (nodes.TPU_ACCELERATOR, nodes.TPU_TOPOLOGY, nodes.GPU_ACCELERATOR,
    nodes.GPU_PRODUCT) if key in labels]  # fmt: skip
    amounts = [f"{has[name]} of {name}" for name in (nodes.TPU, nodes.GPU) if name in has]
    closed = ["closed to new pods"] if (node.get("spec") or {}).get("unschedulable") else []
    usual = [f"a node with {has.get('cpu', '?')} processors and {has.get('memory', '?')}"] if not amounts else []
    return escaped(", ".join([*kept, *amounts, *usual, *closed]))
