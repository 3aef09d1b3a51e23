"""Tests what a cluster says of a server that does not come: when to wait, when to stop, and in which words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kinetic_orchestration.models.serving import smoke, waiting
from kinetic_orchestration.models.serving.declaration import Serving, model_of
from kinetic_orchestration.models.serving.manifests import render
from kinetic_orchestration.models.serving.waiting import Limits, Verdict

LIMITS = Limits(node=600.0, controller=60.0, pull=90.0)
BEGAN = 1_796_000_000.0
STAMP = datetime.fromtimestamp(BEGAN, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def deployment(generation: int = 2, **status: Any) -> dict[str, Any]:
    metadata = {"name": "ranker", "generation": generation}
    return {
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 2, **status},
    }


def pod(condition: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": [condition] if condition else []}
    if container:
        status["containerStatuses"] = [container]
    return {"metadata": {"name": "ranker-1", "creationTimestamp": STAMP}, "status": status}


def unscheduled() -> dict[str, Any]:
    told = {"reason": "Unschedulable", "message": "0/3 nodes are available", "lastTransitionTime": STAMP}
    return pod({"type": "PodScheduled", "status": "False", **told})


def waits(reason: str) -> dict[str, Any]:
    return pod(state={"waiting": {"reason": reason, "message": "why\x1b]0;"}}, restartCount=0)


def ended(restarts: int) -> dict[str, Any]:
    last = {"exitCode": 137, "reason": "OOMKilled", "message": "one\ntwo\x1b[2J"}
    return pod(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": last}, restartCount=restarts)


def seen(found: dict[str, Any], *pods: dict[str, Any], after: float = 10.0) -> Verdict:
    return waiting.of_deployment(found, pods, BEGAN + after, BEGAN, LIMITS)


def test_a_server_serves_once_no_earlier_pod_is_left() -> None:
    counts = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    assert seen(deployment(**counts)).ready
    assert not seen(deployment(**{**counts, "replicas": 3})).ready
    assert not seen(deployment(generation=3, **counts)).ready  # what is told is of the one before


@pytest.mark.parametrize(
    ("one", "after", "failed"),
    [
        (unscheduled(), 599, ""),
        (unscheduled(), 601, "pod ranker-1 has no node: 0/3 nodes are available"),
        (waits("ErrImagePull"), 80, ""),
        (waits("ImagePullBackOff"), 91, r"pod ranker-1 does not start: ImagePullBackOff: why\x1b]0;"),
        (waits("InvalidImageName"), 1, r"pod ranker-1 does not start: InvalidImageName: why\x1b]0;"),
        (waits("ContainerCreating"), 5000, ""),
        (ended(1), 10, ""),
        (
            ended(2), 10,
            (
                "the server in pod ranker-1 ends again and again, with exit code 137 (OOMKilled). Its last lines:\n"
                "    one\n    two\\x1b[2J\n"
            ),
        ),
    ],
)  # fmt: skip
def test_a_pod_that_does_not_come(one: dict[str, Any], after: float, failed: str) -> None:
    assert seen(deployment(), one, after=after).failed == failed


def test_a_server_that_runs_is_not_judged_by_what_ended_before() -> None:
    last = {"exitCode": 137, "reason": "OOMKilled"}
    runs = pod(state={"running": {}}, ready=True, lastState={"terminated": last}, restartCount=7)
    counts = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 1}  # one more was asked for
    assert seen(deployment(**counts), runs).failed == ""
    starts = pod(state={"running": {}}, ready=False, lastState={"terminated": last}, restartCount=7)
    assert "ends again and again" in seen(deployment(**counts), starts).failed


def test_what_was_said_of_the_set_before_does_not_count() -> None:
    before = datetime.fromtimestamp(BEGAN - 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "too late"}
    assert not seen(deployment(conditions=[{**late, "lastUpdateTime": before}])).failed
    assert seen(deployment(conditions=[{**late, "lastUpdateTime": STAMP}]), after=600).failed
    said = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1}
    found = {"kind": "HTTPRoute", "metadata": {"name": "ranker", "generation": 2}}
    old = {**found, "status": {"parents": [{"conditions": [said]}]}}
    assert not waiting.of_parents(old, BEGAN + 10, BEGAN, LIMITS).ready
    assert "nobody answers for HTTPRoute ranker" in waiting.of_parents(old, BEGAN + 61, BEGAN, LIMITS).failed
    new = {**found, "status": {"parents": [{"conditions": [{**said, "observedGeneration": 2}]}]}}
    assert waiting.of_parents(new, BEGAN + 10, BEGAN, LIMITS).ready


def test_what_controllers_say() -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "too late"}
    assert seen(deployment(conditions=[late])).failed == "Deployment ranker: too late"
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
    assert not seen(deployment(conditions=[refused]), after=59).failed
    assert seen(deployment(conditions=[refused]), after=61).failed.endswith("no pods of ranker: exceeded quota")
    assert not seen(deployment(generation=3), after=59).failed
    assert "nobody answers for Deployment ranker" in seen(deployment(generation=3), after=61).failed


def test_a_router_that_refuses_is_told_after_a_while() -> None:
    said = {"type": "Accepted", "status": "False", "reason": "NoMatchingParent", "message": "no listener"}
    found = {"kind": "HTTPRoute", "metadata": {"name": "ranker"}, "status": {"parents": [{"conditions": [said]}]}}
    assert not waiting.of_parents(found, BEGAN + 59, BEGAN, LIMITS).failed
    verdict = waiting.of_parents(found, BEGAN + 61, BEGAN, LIMITS)
    assert verdict.failed == "HTTPRoute ranker is not accepted: NoMatchingParent no listener"


def test_an_accelerator_that_is_not_there_is_told_with_what_is() -> None:
    asked = render(Serving("ranker", "l4", image="i:1"), model_of("gs://m/1"))[0]["spec"]["template"]["spec"]
    labels = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    gpu = {"metadata": {"labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "1"}}}
    plain = {"metadata": {}, "spec": {"unschedulable": True}, "status": {"allocatable": {"cpu": "4", "memory": "16Gi"}}}
    said = waiting.lacking(asked, [gpu, gpu, plain], 600)
    assert "asks for cloud.google.com/gke-accelerator=nvidia-l4 or nvidia.com/gpu.product=NVIDIA-L4" in said
    assert "2 × cloud.google.com/gke-accelerator=nvidia-tesla-t4, 1 of nvidia.com/gpu" in said
    assert "1 × a node with 4 processors and 16Gi, closed to new pods" in said
    assert "The cluster has no nodes." in waiting.lacking(asked, [], 600)
    assert "the right to list nodes" in waiting.lacking(asked, None, 600)


@pytest.mark.parametrize(
    ("expected", "said", "share"), [("abcd", "abcd", 1.0), ("abcd", "abxx", 0.5), ("ab", "abcd", 0.5), ("a", "", 0.0)]
)
def test_answers_agree_up_to_the_first_letter_that_differs(expected: str, said: str, share: float) -> None:
    assert smoke.agreement(expected, said) == share
