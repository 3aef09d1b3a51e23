"""Jobs on machines that GKE's flex-start gives: nodes by their labels, and all at once by the request of a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.plan.values import QUEUED
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing.kubernetes.pods.nodes import tpu_pool
from tests.end_to_end.kubernetes.cases import KUEUE, ONE_HOST, Cluster, run, verdict_of, wait_for_verdict
from tests.support.jobs import WITHIN, placements, wait_running
from tests.support.kubernetes.api import Object
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(3)]

REQUESTS = "/apis/autoscaling.x-k8s.io/v1"
TWO_HOSTS = "v5p-8"
FLEX, TAKEN = "cloud.google.com/gke-flex-start", "cloud.google.com/gke-queued"
V5P = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice"}
PATIENCE = 2.0


def flexible(cluster: Cluster, count: int, label: str, taint: str = "", **pool: Any) -> None:
    """Add nodes of flex-start, as GKE labels and taints them."""
    labels, name = pool.pop("labels", {}), f"{cluster.namespace}-flex"
    taints = ({"key": taint, "value": "true", "effect": "NoSchedule"},) if taint else ()
    for node in tpu_pool(name, count, **pool, **cluster.machine):
        cluster.add(replace(node, labels={**node.labels, **labels, label: "true"}, taints=(*node.taints, *taints)))


def test_a_job_of_flex_start_waits_for_a_node_of_it_beyond_the_patience_of_its_place(
    cluster: Cluster,
    jobs: Any,
    queue: Callable[..., kinetic.Kubernetes],
    second: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KINETIC_ZONE_PATIENCE", f"{PATIENCE:g}s")
    cluster.single()
    options = kinetic.Kubernetes(queue=["queue", second], flex_start=True)
    job = run(jobs.attempt, accelerator=ONE_HOST, cloud=options)
    wait_until(lambda: f"{FLEX}=true" in job.peek().said, lambda: f"its labels: {job.peek()}", pause=0.2)
    began = time.monotonic()
    wait_until(lambda: job.status() and time.monotonic() > began + 2 * PATIENCE, "time", pause=0.2)
    assert job.peek().attempt == 1
    flexible(cluster, 1, FLEX, FLEX, topology="1x1", chips=1)
    assert job.result(timeout=WITHIN) == 1
    assert len(placements(job)) == 1


@pytest.fixture
def requesting(cluster: Cluster, queue: Callable[..., kinetic.Kubernetes]) -> Iterator[str]:
    """A queue whose admission check makes a ProvisioningRequest, once."""
    api, name = cluster.api, f"{cluster.namespace}-requesting"
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "metadata": {"name": name}}
    config = {
        "provisioningClassName": "queued-provisioning.gke.io", "managedResources": ["google.com/tpu"],
        "retryStrategy": {"backoffLimitCount": 0},
    }  # fmt: skip
    reference = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": name}
    check = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": reference}
    api.create(f"{KUEUE}/provisioningrequestconfigs", {**kind, "kind": "ProvisioningRequestConfig", "spec": config})
    api.create(f"{KUEUE}/admissionchecks", {**kind, "kind": "AdmissionCheck", "spec": check})
    resources = [{"name": "google.com/tpu", "nominalQuota": "8"}]
    flavors = [{"name": cluster.namespace, "resources": resources}]
    spec = {
        "namespaceSelector": {}, "admissionChecksStrategy": {"admissionChecks": [{"name": name}]},
        "resourceGroups": [{"coveredResources": ["google.com/tpu"], "flavors": flavors}],
    }  # fmt: skip
    api.create(f"{KUEUE}/clusterqueues", {**kind, "kind": "ClusterQueue", "spec": spec})
    local = {**kind, "kind": "LocalQueue", "metadata": {"name": "requesting"}, "spec": {"clusterQueue": name}}
    api.create(f"{KUEUE}/namespaces/{cluster.namespace}/localqueues", local)
    yield "requesting"
    for each in ("clusterqueues", "admissionchecks", "provisioningrequestconfigs"):
        api.delete(f"{KUEUE}/{each}/{name}")


def request(cluster: Cluster) -> Object:
    """The one ProvisioningRequest of the namespace, once it is there."""
    return wait_until(
        lambda: next(iter(cluster.list("provisioningrequests", REQUESTS)), None), "a ProvisioningRequest", pause=0.1
    )


def answer(cluster: Cluster, kind: str, reason: str, message: str) -> None:
    """Say of the request what Google's autoscaler would."""
    asked = request(cluster)
    told = asked.get("status", {}).get("conditions", [])
    one = {
        "type": kind, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    path = f"{REQUESTS}/namespaces/{cluster.namespace}/provisioningrequests/{asked['metadata']['name']}/status"
    cluster.api.patch(path, {"status": {"conditions": [*told, one]}})


def test_a_queue_asks_for_all_machines_at_once_and_no_patience_ends_its_request(
    cluster: Cluster, jobs: Any, requesting: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ZONE_PATIENCE", f"{PATIENCE:g}s")
    options = kinetic.Kubernetes(queue=[requesting, second], flex_start=True, queued_provisioning=True)
    job = run(jobs.attempt, accelerator=TWO_HOSTS, cloud=options, limits=kinetic.Limits(run="2h"))
    spec = request(cluster)["spec"]
    assert spec["provisioningClassName"] == "queued-provisioning.gke.io"
    assert spec["parameters"] == {"maxRunDurationSeconds": str(3 * 3600)}
    assert [one["count"] for one in spec["podSets"]] == [2]
    began = time.monotonic()
    wait_until(lambda: job.status() and time.monotonic() > began + 2 * PATIENCE, "time", pause=0.2)
    seen = job.peek()
    assert (seen.attempt, seen.phase) == (1, QUEUED)
    check = f"{cluster.namespace}-requesting"
    assert f"the queue requesting, which has quota for it, for the admission check {check}" in seen.said
    assert not cluster.pods(job)
    answer(cluster, "Provisioned", "Provisioned", "Provisioning request was successfully provisioned.")
    flexible(cluster, 2, TAKEN, TAKEN, topology="2x2x2", labels=V5P)
    assert job.result(timeout=WITHIN) == 1
    assert [placement["queue"] for placement in placements(job)] == [requesting]


@pytest.mark.parametrize("kind", ["Failed", "CapacityRevoked"])
def test_machines_that_are_refused_or_taken_back_before_pods_run_are_asked_for_in_the_next_queue(
    cluster: Cluster, jobs: Any, requesting: str, second: str, kind: str
) -> None:
    options = kinetic.Kubernetes(queue=[requesting, second], flex_start=True, queued_provisioning=True)
    job = run(jobs.attempt, accelerator=TWO_HOSTS, cloud=options)
    request(cluster)
    if kind == "CapacityRevoked":
        answer(cluster, "Provisioned", "Provisioned", "Provisioning request was successfully provisioned.")
        wait_until(lambda: cluster.pods(job), "its pods", pause=0.1)
    answer(cluster, kind, kind, "There are no such machines.")
    wait_until(lambda: job.status() and verdict_of(job), lambda: f"its first verdict: {job.peek()}", pause=0.2)
    first = verdict_of(job)
    assert first is not None
    assert (first.kind, first.cause) == (wire.CLOSED, wire.STOCKOUT)
    assert "(There are no such machines.); the machines were not to be had" in first.reason
    flexible(cluster, 2, TAKEN, TAKEN, topology="2x2x2", labels=V5P)
    assert job.result(timeout=WITHIN) == 1
    assert [placement["queue"] for placement in placements(job)] == [requesting, second]


def test_machines_that_are_taken_back_from_a_running_job_are_a_preemption_and_asked_for_again(
    cluster: Cluster, jobs: Any, tmp_path: Path, requesting: str
) -> None:
    flexible(cluster, 2, TAKEN, TAKEN, topology="2x2x2", labels=V5P)
    options = kinetic.Kubernetes(queue=requesting, flex_start=True, queued_provisioning=True)
    job = run(jobs.until, str(tmp_path / "go"), accelerator=TWO_HOSTS, cloud=options)
    answer(cluster, "Provisioned", "Provisioned", "Provisioning request was successfully provisioned.")
    wait_running(job)
    before = request(cluster)["metadata"]["name"]
    answer(cluster, "CapacityRevoked", "CapacityRevoked", "The machines are taken back.")
    first = wait_for_verdict(job)
    assert (first.kind, first.cause) == (wire.ABORTED, wire.PREEMPTION)
    wait_until(
        lambda: (
            job.status()
            and all(one["metadata"]["name"] != before for one in cluster.list("provisioningrequests", REQUESTS))
        ),
        "its request is gone",
        pause=0.2,
    )
    answer(cluster, "Provisioned", "Provisioned", "Provisioning request was successfully provisioned.")
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
