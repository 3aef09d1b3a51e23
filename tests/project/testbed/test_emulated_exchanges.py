"""Requests and answers of the emulated cluster, held against the OpenAPI documents of a real server and of its CRDs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.values import GONE, PRESENT
from kinetic_orchestration.platforms.kubernetes import backend as kubernetes
from kinetic_orchestration.platforms.kubernetes import preflight
from kinetic_orchestration.platforms.kubernetes.api import client
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.kubernetes.observing import observer
from kinetic_orchestration.testing.kubernetes.pods.nodes import tpu_pool
from tests.core.platforms.kubernetes.attempts import attempt_of, plan_of
from tests.support.exchanges.recorder import Recorder, told
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import CONFORMANCE
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, *CONFORMANCE, pytest.mark.turn(2)]

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WAITS = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)); time.sleep(600)"


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[EmulatedPlane]:
    with EmulatedPlane(tmp_path / "plane") as plane:
        yield plane


def test_all_that_is_said_of_jobs_and_queues_is_in_the_documents(
    built: Path, recorder: Recorder, emulated: EmulatedPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(emulated.kubeconfig))
    monkeypatch.setattr(observer, "EXPLAINED_SECONDS", 0.1)
    monkeypatch.setattr(kubernetes.manifest.boot, "LOADER", WAITS)
    queues(emulated)
    backend = KubernetesBackend(
        Settings(home=Path("/nowhere"), store="gs://bucket/kinetic", deployment="Production EU", backend="kubernetes"),
        KubeconfigClusters(),
    )
    assert not recorder.findings()
    heard, before = list[client.Exchange](), recorder.checked
    with client.listening(heard.append):
        plans = [
            plan_of("v5e-16", zone="tests/default", cloud=Kubernetes(queue=queue), secrets=("TOKEN",))
            for queue in ("", "queue", "nowhere")
        ]
        for plan in plans:
            assert list(
                preflight.examine(plan, "tests/default", lambda _: client.Api(KubeconfigClusters().access("tests")))
            )
        attempts = [attempt_of(plan, number, secrets={"TOKEN": "x"}) for number, plan in enumerate(plans, 1)]
        assert [backend.submit(attempt) for attempt in attempts] == [""] * 3
        placements = [attempt.intent.placement for attempt in attempts]
        wait_until(lambda: "no node for pod" in backend.observe(placements)[0].message, pause=0.1)
        wait_until(lambda: "nowhere doesn't exist" in backend.observe(placements)[2].message, pause=0.1)
        emulated.cluster.nodes.add(*(replace(node) for node in tpu_pool("pool", 4, topology="4x4")))
        wait_until(
            lambda: backend.observe(placements)[0].state == PRESENT, lambda: backend.observe(placements), pause=0.1
        )
        pods = emulated.api.get("/api/v1/namespaces/default/pods")["items"]
        running = next(pod for pod in pods if pod["status"]["phase"] == "Running")
        emulated.cluster.nodes.end(running, "Error")
        wait_until(lambda: backend.observe(placements)[0].state == GONE, pause=0.1)
        for placement in placements:
            backend.release(placement)
        wait_until(lambda: all(one.state == "absent" for one in backend.observe(placements)), pause=0.1)
    asked = {one.target.partition("?")[0].rpartition("/")[2] for one in heard}
    assert {"jobsets", "pods", "jobs", "events", "workloads", "secrets", "nodes", "selfsubjectrulesreviews"} <= asked
    assert not (wrong := recorder.findings()), told(wrong)
    assert recorder.checked - before >= len(heard)


def queues(plane: EmulatedPlane) -> None:
    """A queue with quota for one slice."""
    resources = [{"name": "google.com/tpu", "nominalQuota": "16"}]
    groups = [{"coveredResources": ["google.com/tpu"], "flavors": [{"name": "any", "resources": resources}]}]
    spec = {"namespaceSelector": {}, "resourceGroups": groups}
    for path, found in (
        ("resourceflavors", named("ResourceFlavor", "any", spec={})),
        ("clusterqueues", named("ClusterQueue", "all", spec=spec)),
        ("namespaces/default/localqueues", named("LocalQueue", "queue", spec={"clusterQueue": "all"})),
    ):
        plane.api.create(f"{KUEUE}/{path}", found)


def named(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **fields}
