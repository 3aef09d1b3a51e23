"""The controller of Jobs: the pods of each, what their ends mean for it, and its own end. Pure.

Jobs are Indexed, as JobSet makes them. A pod that has ended is counted once, and then let go.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import (
    annotations_of,
    condition,
    holds,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    owner_of,
    phase_of,
    reference_to,
    seconds,
    stamp,
    uid_of,
    with_condition,
    with_status,
    without_finalizer,
)
from kinetic_orchestration.testing.kubernetes.api.rules.admission import INDEX
from kinetic_orchestration.testing.kubernetes.controllers.changes import (
    Change,
    Create,
    Delete,
    LetGo,
    Replace,
    Tell,
    View,
)

TRACKING = "batch.kubernetes.io/job-tracking"
COMPONENT = "job-controller"
BATCH = 1.0  # seconds in which the ends of pods are gathered
AGAIN = 1.0  # seconds before pods are created that were refused
_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_DISRUPTED = "has condition DisruptionTarget matching FailJob rule"


class Jobs:
    """The controller. It remembers when it may try again what was refused, and when it saw that a pod has ended."""

    def __init__(self) -> None:
        self._waits: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def step(self, view: View) -> Iterator[Change]:
        pods = view.controlled(kinds.PODS)
        jobs = view.all(kinds.JOBS)
        known = {uid_of(job) for job in jobs}
        every = view.all(kinds.PODS)
        there = {uid_of(pod) for pod in every}
        self._waits = {uid: until for uid, until in self._waits.items() if uid in known}
        self._ended = {uid: since for uid, since in self._ended.items() if uid in there}
        for pod in every:
            owner = owner_of(pod)
            if _is_tracked(pod) and (owner is None or owner["uid"] not in known):
                yield LetGo(kinds.PODS, without_finalizer(pod, TRACKING))
        for job in jobs:
            yield from self._advanced(job, pods.get(uid_of(job), []), view.now)

    def refused(self, job: Object, now: float) -> None:
        """Let a Job wait whose pods were refused."""
        self._waits[uid_of(job)] = now + AGAIN

    def _advanced(self, job: Object, pods: Sequence[Object], now: float) -> Iterator[Change]:
        if is_deleting(job) or _is_over(job):
            yield from (LetGo(kinds.PODS, without_finalizer(pod, TRACKING)) for pod in pods if _is_tracked(pod))
            if not is_deleting(job):
                yield from (_deleted(pod) for pod in pods if _is_active(pod))
            return
        fresh = [pod for pod in pods if _is_tracked(pod) and _has_ended(pod) and self._is_due(pod, now)]
        tally = _tally(job, pods, fresh)
        job = with_status(job, **tally.status)
        if condition(job, "FailureTarget") is not None or condition(job, "SuccessCriteriaMet") is not None:
            yield from _finishing(job, pods)
        elif (failure := _failure(job, fresh, tally, now)) is not None:
            yield Replace(kinds.JOBS, with_condition(job, "FailureTarget", "True", *failure))
            yield from (_deleted(pod) for pod in pods if _is_active(pod))
        elif len(tally.succeeded) >= job["spec"]["completions"]:
            met = with_condition(
                job, "SuccessCriteriaMet", "True", "CompletionsReached", "Reached expected number of succeeded pods"
            )
            yield Replace(kinds.JOBS, met)
        elif job["spec"].get("suspend"):
            yield from _suspended(job, pods)
        else:
            yield from self._running(job, pods, tally, now)
        yield from (LetGo(kinds.PODS, without_finalizer(pod, TRACKING)) for pod in fresh)

    def _is_due(self, pod: Object, now: float) -> bool:
        """Return True for the end of a pod that is looked at by now: several that end at once are one matter."""
        return now - self._ended.setdefault(uid_of(pod), now) >= BATCH

    def _running(self, job: Object, pods: Sequence[Object], tally: _Tally, now: float) -> Iterator[Change]:
        if holds(job, "Suspended"):
            job = with_condition(job, "Suspended", "False", "JobResumed", "Job resumed", lastProbeTime=stamp())
            job = with_status(job, startTime=stamp())
            yield Tell(job, "Normal", "Resumed", "Job resumed", COMPONENT)
        if "startTime" not in job["status"]:
            job = with_status(job, startTime=stamp())
        yield Replace(kinds.JOBS, job)
        if now < self._waits.get(uid_of(job), 0.0):
            return
        taken = (
            {_index(pod) for pod in pods if not _has_ended(pod) or _is_tracked(pod)} | tally.succeeded | tally.failed
        )
        for index in range(job["spec"]["completions"]):
            if index not in taken:
                pod = _pod(job, index)
                done = "SuccessfulCreate", f"Created pod: {name_of(pod)}"
                yield Create(kinds.PODS, pod, job, done, ("FailedCreate", "Error creating: "), COMPONENT)


class _Tally(NamedTuple):
    """The indexes of a Job that are over, and its status by all of its pods."""

    succeeded: set[int]
    failed: set[int]
    status: Object


def _tally(job: Object, pods: Sequence[Object], fresh: Sequence[Object]) -> _Tally:
    status = job["status"]
    succeeded = set(_indexes(status.get("completedIndexes", "")))
    failed = set(_indexes(status.get("failedIndexes") or ""))
    succeeded |= {_index(pod) for pod in fresh if phase_of(pod) == "Succeeded"}
    lost = [pod for pod in fresh if phase_of(pod) != "Succeeded"]
    per_index = job["spec"].get("backoffLimitPerIndex")
    if per_index is not None:
        failed |= {_index(pod) for pod in lost if int(annotations_of(pod).get(_FAILURES, "0")) >= per_index} - succeeded
    active = [pod for pod in pods if _is_active(pod)]
    counts = {
        "active": len(active) or None,
        "succeeded": len(succeeded) or None,
        "failed": (status.get("failed", 0) + len(lost)) or None,
    }
    told: Object = {
        **counts,
        "terminating": sum(1 for pod in pods if is_deleting(pod) and not _has_ended(pod)),
        "ready": sum(1 for pod in active if holds(pod, "Ready")),
        "uncountedTerminatedPods": {},
        "completedIndexes": _listed(succeeded) or None,
        **({"failedIndexes": _listed(failed)} if per_index is not None else {}),
    }
    return _Tally(succeeded, failed, told)


def _failure(job: Object, fresh: Sequence[Object], tally: _Tally, now: float) -> tuple[str, str] | None:
    """Return why a Job fails: a reason and a sentence; None if it does not."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules", ())
    for pod in fresh:
        if phase_of(pod) != "Succeeded" and (told := _matched(pod, rules)):
            return "PodFailurePolicy", told
    limit, since = job["spec"].get("activeDeadlineSeconds"), job["status"].get("startTime")
    if limit is not None and since and not job["spec"].get("suspend") and now - seconds(since) >= limit:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    if tally.failed and len(tally.failed | tally.succeeded) >= job["spec"]["completions"]:
        return "FailedIndexes", "Job has failed indexes"
    if tally.status["failed"] and tally.status["failed"] > job["spec"]["backoffLimit"]:
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    return None


def _matched(pod: Object, rules: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence of the first rule by which a failed pod ends its Job; "" for none."""
    who = f"{namespace_of(pod)}/{name_of(pod)}"
    for index, rule in enumerate(rules):
        if any(holds(pod, wanted["type"]) for wanted in rule.get("onPodConditions") or ()):
            return f"Pod {who} {_DISRUPTED} at index {index}" if rule["action"] == "FailJob" else ""
        codes = rule.get("onExitCodes") or {}
        for container in (pod["status"].get("containerStatuses") or ()) if codes else ():
            code = (container["state"].get("terminated") or {}).get("exitCode", 0)
            named = codes.get("containerName") in (None, container["name"])
            if code and named and (code in codes["values"]) is (codes["operator"] == "In"):
                if rule["action"] != "FailJob":
                    return ""
                what = f"Container {container['name']} for pod {who}"
                return f"{what} failed with exit code {code} matching FailJob rule at index {index}"
    return ""


def _finishing(job: Object, pods: Sequence[Object]) -> Iterator[Change]:
    """Once none of its pods is about to end, it has."""
    yield from (_deleted(pod) for pod in pods if _is_active(pod))
    if any(not _has_ended(pod) for pod in pods):
        yield Replace(kinds.JOBS, job)
        return
    target = condition(job, "FailureTarget")
    if target is None:
        met = condition(job, "SuccessCriteriaMet") or {}
        done = with_condition(job, "Complete", "True", met["reason"], met["message"])
        yield Replace(kinds.JOBS, with_status(done, completionTime=stamp()))
        yield Tell(job, "Normal", "Completed", "Job completed", COMPONENT)
        return
    yield Replace(kinds.JOBS, with_condition(job, "Failed", "True", target["reason"], target["message"]))
    yield Tell(job, "Warning", target["reason"], target["message"], COMPONENT)


def _suspended(job: Object, pods: Sequence[Object]) -> Iterator[Change]:
    """Its pods go without being counted."""
    for pod in filter(_is_active, pods):
        yield LetGo(kinds.PODS, without_finalizer(pod, TRACKING))
        yield _deleted(pod)
    if not holds(job, "Suspended"):
        yield Tell(job, "Normal", "Suspended", "Job suspended", COMPONENT)
        job = with_condition(job, "Suspended", "True", "JobSuspended", "Job suspended", lastProbeTime=stamp())
    yield Replace(kinds.JOBS, with_status(job, startTime=None))


def _pod(job: Object, index: int) -> Object:
    template = job["spec"]["template"]
    metadata = template["metadata"]
    prefix = f"{name_of(job)}-{index}-"
    number = {INDEX: str(index)}
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
    containers = [{**one, "env": [*one.get("env", ()), variable]} for one in template["spec"]["containers"]]
    return {
        "metadata": {
            "name": prefix + "".join(random.choices(_LETTERS, k=5)),
            "generateName": prefix,
            "namespace": namespace_of(job),
            "labels": {**metadata["labels"], **number},
            "annotations": {**(metadata.get("annotations") or {}), **number, _FAILURES: "0"},
            "ownerReferences": [reference_to(job)],
            "finalizers": [TRACKING],
        },
        "spec": {**template["spec"], "hostname": f"{name_of(job)}-{index}", "containers": containers},
    }


def _is_over(job: Object) -> bool:
    return holds(job, "Complete") or holds(job, "Failed")


def _is_tracked(pod: Object) -> bool:
    return TRACKING in (pod["metadata"].get("finalizers") or ())


def _has_ended(pod: Object) -> bool:
    """Return True for a pod that has come to an end, or was taken away by force."""
    forced = is_deleting(pod) and not pod["metadata"].get("deletionGracePeriodSeconds")
    return phase_of(pod) in ("Succeeded", "Failed") or forced


def _is_active(pod: Object) -> bool:
    return not _has_ended(pod) and not is_deleting(pod)


def _deleted(pod: Object) -> Change:
    return Delete(kinds.PODS, pod)


def _index(pod: Object) -> int:
    return int(labels_of(pod)[INDEX])


def _indexes(text: str) -> Iterator[int]:
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def _listed(indexes: set[int]) -> str:
    """Return indexes as a Job's status has them: 0-2,5."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 2 else ",".join(map(str, part)) for part in parts)
