"""The meaning of an attempt's JobSet, Jobs and pods for it: pure.

Kubernetes tells less than one would think: the pods of a set that has failed are gone, a pod that a person deleted
looks like one that crashed, and a node that is lost looks well for minutes. What hosts say in the store comes first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from kinetic_orchestration.plan.values import ABSENT, GONE, PARTIAL, PRESENT, PROVISIONING, QUEUED, WOUNDED, Observation
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError, escaped
from kinetic_orchestration.platforms.kubernetes.observing import waiting
from kinetic_orchestration.platforms.kubernetes.observing.waiting import Wanted, Why, condition
from kinetic_orchestration.protocol import wire

Object = Mapping[str, Any]

_CODES = {code: cause for cause, code in wire.EXIT_CODES.items()}
_EXIT = re.compile(r"failed with exit code (\d+)")
_RULE = re.compile(r" matching FailJob rule at index \d+")
_DISRUPTED = "has condition DisruptionTarget"
_NODE_GONE = "DeletionByPodGC"  # its node was lost: a spot node, to whoever owns the machine; another one broke
_DISK = "the job and its environment may need more disk than the node has: a pool with a larger one (--disk-size) helps"
_LIMIT = (
    "Autopilot limits the disk of each pod, to 1 GiB in a queue, and so may a LimitRange of the namespace: an image "
    "that has the job's packages (container_image=) leaves more of it, and a Standard cluster has no limit"
)
# The reason of a pod that its node ended, and the cause: the first pod of a set to fail is left.
_ENDED = {
    "DeadlineExceeded": wire.DEADLINE,
    "Evicted": wire.INFRASTRUCTURE,
    "NodeLost": wire.INFRASTRUCTURE,
    **dict.fromkeys(("Terminated", "NodeShutdown"), wire.PREEMPTION),
}


class Seen(NamedTuple):
    """All that was read of one placement."""

    set: Object | None
    pods: Sequence[Object] = ()
    jobs: Sequence[Object] = ()  # read only of a set that has failed
    workload: Object | None = None  # Kueue's, of a set that is suspended
    events: Sequence[Object] = ()  # of controllers about its Jobs and itself, of an autoscaler about its pods
    unread: ApiError | None = None  # why no workload could be read
    position: int | None = None  # in the queue, from 1
    now: float = 0.0  # when it was read, by the clock of the server


class Judged(NamedTuple):
    """An observation, and why hosts are waited for, if they are."""

    observation: Observation
    why: Why | None = None


def judge(placement: Mapping[str, Any], seen: Seen, wanted: Wanted = Wanted()) -> Judged:  # noqa: B008 - frozen
    """Return what was seen of a placement. `wanted`: what its pods ask of their nodes, for users."""
    hint = f"kubectl describe jobset {placement['name']} -n {namespace_of(placement)}"
    if seen.set is None:
        if any(map(_is_alive, seen.pods)):
            return Judged(Observation(PRESENT, "its JobSet was deleted, and pods of it are still there", hint=hint))
        return Judged(Observation(ABSENT, hint="nobody of this job deleted it: ask the cluster's audit log"))
    began = (seconds(pod.get("status", {}).get("startTime")) for pod in seen.pods)
    charged = min(filter(None, began), default=0.0)
    failed = condition(seen.set, "Failed")
    if failed is not None and is_true(failed):
        return Judged(Observation(GONE, *_death(failed, seen), charged=charged))
    if is_true(condition(seen.set, "Completed")):
        return Judged(Observation(GONE, "all its pods have ended", charged=charged))
    judged = _held(placement, seen, wanted) if seen.set["spec"].get("suspend") else _begun(placement, seen, wanted)
    return Judged(judged.observation._replace(charged=charged, hint=hint), judged.why)


def _held(placement: Mapping[str, Any], seen: Seen, wanted: Wanted) -> Judged:
    if seen.workload is not None:
        why = waiting.of_workload(seen.workload, seen.position, wanted)
    else:
        labels = (seen.set or {}).get("metadata", {}).get("labels", {})
        named = labels.get(manifest.QUEUE, ""), labels.get(manifest.PRIORITY, "")
        why = waiting.of_none(waited(seen), *named, unread=seen.unread, namespace=namespace_of(placement))
    return Judged(Observation(QUEUED, f"{placement['zone']}: {why.message}"), why)


def _begun(placement: Mapping[str, Any], seen: Seen, wanted: Wanted) -> Judged:
    if dead := [pod for pod in seen.pods if _is_dead(pod)]:
        return Judged(Observation(WOUNDED, *_fate(dead[0], seen.set)))
    alive = [pod for pod in seen.pods if _phase(pod) in ("Running", "Succeeded")]
    if len(alive) >= placement["hosts"]:
        return Judged(Observation(PRESENT))
    pending = [pod for pod in seen.pods if _phase(pod) == "Pending"]
    if any(_lacks_secret(pod, placement["name"]) for pod in pending):  # its submitter died in between
        return Judged(Observation(PARTIAL, "the pods wait for the Secret of their set, which is made once more"))
    creating = len(seen.pods) < placement["hosts"]  # else what once kept pods from being created is over
    events = [event for event in seen.events if creating or waiting.is_of_autoscaler(event)]
    why = waiting.of_set(pending, events, wanted)
    if alive and any(map(waiting.is_unscheduled, pending)) and (why is None or not why.cause):
        said = f"; {why.message}" if why else ""
        why = Why(f"hosts that run hold chips while others have no node{said}", wire.STOCKOUT, waiting.GANG)
    state = PROVISIONING if alive or any(map(_has_node, pending)) else QUEUED
    counted = f"{placement['zone']}: {len(alive)} of {placement['hosts']} pods run"
    return Judged(Observation(state, f"{counted}; {why.message}" if why else counted), why)


def all_run(placement: Mapping[str, Any], seen: Seen) -> bool:
    """Return True if a set has all of its pods, and no other, and they run: nothing is to be explained."""
    running = [pod for pod in seen.pods if _phase(pod) == "Running"]
    return seen.set is not None and len(seen.pods) == len(running) == placement["hosts"]


def is_true(found: Object | None) -> bool:
    """Return True if there is such a condition and it holds."""
    return found is not None and found.get("status") == "True"


def namespace_of(placement: Mapping[str, Any]) -> str:
    return str(placement["zone"]).rpartition("/")[2]


def _death(failed: Object, seen: Seen) -> tuple[str, str]:
    """Return what a set died of, and its cause. A pod that is left says most, then a Job, then the set."""
    told = next((found for job in seen.jobs if (found := condition(job, "Failed")) is not None), failed)
    said = _RULE.sub("", escaped(told.get("message")))
    if (known := _of_left(seen.pods, said)) is not None:
        return known
    if _DISRUPTED in said:
        by, why = _by_whom(seen.pods, seen.set)
        return f"a pod was taken away{by}: {said}", why
    if told.get("reason") == "DeadlineExceeded":
        return said, wire.DEADLINE
    match, words = _EXIT.search(said), _last_words(seen.pods, said)
    if match is not None and (cause := _CODES.get(int(match[1]))) is not None:
        return f"{said}{words}", cause
    tells = "a pod died" if words else "a pod died or was deleted, of which Kubernetes tells no more"
    return f"{tells}: {said}{words}", wire.INFRASTRUCTURE


def _of_left(pods: Sequence[Object], said: str) -> tuple[str, str] | None:
    """Return what a pod that is left says of its own end, and the cause; None if it says nothing."""
    if any(state.get("reason") == "OOMKilled" for pod in pods for state in _terminated(pod)):
        return f"the node ended a pod that took more memory than there is (OOMKilled): {said}", wire.USER
    for pod in pods:
        status = pod.get("status", {})
        reason, words = str(status.get("reason", "")), escaped(status.get("message")).rstrip(". ")
        if reason in _ENDED:
            advice = f"; {_LIMIT if 'limit' in words else _DISK}" if "storage" in words else ""
            return f"pod {pod['metadata']['name']} ended ({reason}): {words}{advice}", _ENDED[reason]
    return None


def _by_whom(pods: Sequence[Object], of: Object | None) -> tuple[str, str]:
    """Return who took a pod of a set away, where it is still there to say so, and the cause."""
    told = [found for pod in pods if is_true(found := condition(pod, "DisruptionTarget")) and found is not None]
    if not told:
        return "", wire.PREEMPTION
    accelerator = str((of or {}).get("metadata", {}).get("annotations", {}).get(manifest.ACCELERATOR, ""))
    broke = all(one.get("reason") == _NODE_GONE for one in told) and not accelerator.endswith(manifest.ON_SPOT)
    by = f" ({told[0].get('reason', '')}: {escaped(told[0].get('message')).rstrip('. ')})"
    return by, wire.INFRASTRUCTURE if broke else wire.PREEMPTION


def _fate(pod: Object, of: Object | None) -> tuple[str, str]:
    """Return what a pod died of whose set goes on, and its cause."""
    code = next((int(state.get("exitCode", 0)) for state in _terminated(pod)), 0)
    said = f"pod {pod['metadata']['name']} died with exit code {code}"
    if (known := _of_left([pod], said)) is not None:
        return known
    by, cause = _by_whom([pod], of)
    if by:
        return f"{said}, as it was taken away{by}", cause
    return f"{said}{_last_words([pod], said)}", _CODES.get(code, wire.INFRASTRUCTURE)


def _last_words(pods: Sequence[Object], said: str) -> str:
    """Return the last words of a pod that is left, as the end of a sentence: of the one that Kubernetes names, if that
    one left some, else of another, by its name; "" for none. They are in one line, since of several only the last would
    be told.
    """
    left = {
        str(pod["metadata"]["name"]): words
        for pod in pods
        for state in _terminated(pod)
        if (words := " ".join(escaped(state.get("message")).split()))
    }
    for name, words in left.items():
        if name in said:
            return f"; it said: {words}"
    return next((f"; {name} said: {words}" for name, words in left.items()), "")


def _lacks_secret(pod: Object, name: str) -> bool:
    """Return True if a pod waits for the Secret that is made with its set."""
    waits = (one.get("state", {}).get("waiting", {}) for one in pod.get("status", {}).get("containerStatuses", ()))
    return any(f'secret "{name}" not found' in one.get("message", "") for one in waits)


def _terminated(pod: Object) -> list[Object]:
    containers = pod.get("status", {}).get("containerStatuses", ())
    return [state for one in containers if (state := one.get("state", {}).get("terminated"))]


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _is_dead(pod: Object) -> bool:
    """Return True for a pod that died, and not for one that was taken back before it had begun."""
    return _phase(pod) == "Failed" and (bool(_terminated(pod)) or "deletionTimestamp" not in pod["metadata"])


def _is_alive(pod: Object) -> bool:
    return _phase(pod) not in ("Succeeded", "Failed")


def _has_node(pod: Object) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def waited(seen: Seen) -> float:
    """Return the seconds since a set was created, or evicted by Kueue; 0 for none, and while evicted pods end."""
    if seen.set is None or (seen.set["spec"].get("suspend") and any(map(_is_alive, seen.pods))):
        return 0.0
    evicted = condition(seen.workload or {}, "Evicted")
    began = seconds(evicted.get("lastTransitionTime")) if is_true(evicted) and evicted is not None else 0.0
    return max(0.0, seen.now - max(began, seconds(seen.set["metadata"].get("creationTimestamp"))))


def seconds(moment: str | None) -> float:
    """Return a time of the API as seconds; 0 for none."""
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0
