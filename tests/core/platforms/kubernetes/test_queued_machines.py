"""A job whose queue asks for machines by ProvisioningRequests is told each answer that a script can give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.values import GONE, PRESENT, QUEUED, Observation
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.kubernetes import boot
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.kubernetes.observing import observer
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing.kubernetes.pods.nodes import NodeGroup
from tests.core.platforms.kubernetes.attempts import attempt_of, plan_of
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import on_both
from tests.support.kubernetes.machines import Machines, machines_of
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, on_both(pytest.mark.turn(4))]

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
OPTIONS = Kubernetes(queue="dws", flex_start=True, queued_provisioning=True)


class Placed:
    """A namespace whose queue `dws` asks for machines, and tries once more, and attempts there."""

    def __init__(self, plane: ControlPlane | EmulatedPlane, namespace: str, machines: Machines) -> None:
        self.api, self.machines, self._namespace = plane.api, machines, namespace
        self.has_quota = f"it waits in the queue dws, which has quota for it, for the admission check {namespace}"
        settings = Settings(
            home=Path("/nowhere"), store="gs://bucket/kinetic", deployment="Production EU", backend="kubernetes"
        )
        self.backend = KubernetesBackend(settings, KubeconfigClusters())
        self._made: list[str] = []

    def make_queue(self) -> None:
        reference = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": self._namespace}
        resources = [{"name": "google.com/tpu", "nominalQuota": "8"}]
        group = {
            "coveredResources": ["google.com/tpu"], "flavors": [{"name": self._namespace, "resources": resources}],
        }  # fmt: skip
        self._make("resourceflavors", "ResourceFlavor")
        self._make(
            "provisioningrequestconfigs", "ProvisioningRequestConfig",
            provisioningClassName="queued-provisioning.gke.io",
            retryStrategy={"backoffLimitCount": 1, "backoffBaseSeconds": 1},
        )  # fmt: skip
        self._make(
            "admissionchecks",
            "AdmissionCheck",
            controllerName="kueue.x-k8s.io/provisioning-request",
            parameters=reference,
        )
        checks = {"admissionChecks": [{"name": self._namespace}]}
        self._make(
            "clusterqueues", "ClusterQueue",
            namespaceSelector={}, resourceGroups=[group], admissionChecksStrategy=checks,
        )  # fmt: skip
        self._create(f"namespaces/{self._namespace}/localqueues", "LocalQueue", "dws", clusterQueue=self._namespace)

    def _make(self, plural: str, kind: str, **spec: Any) -> None:
        """Make what belongs to no namespace."""
        self._create(plural, kind, self._namespace, **spec)
        self._made.append(f"{KUEUE}/{plural}/{self._namespace}")

    def _create(self, plural: str, kind: str, name: str, **spec: Any) -> None:
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.api.create(f"{KUEUE}/{plural}", body)

    def close(self) -> None:
        for path in reversed(self._made):
            self.api.delete(path)
        for api in self.backend._apis.values():
            api.close()

    def nodes(self) -> list[Any]:
        return list(self.api.get("/api/v1/nodes")["items"])

    def submit(self) -> Submission:
        attempt = attempt_of(plan_of("v5p-8", zone=f"tests/{self._namespace}", cloud=OPTIONS))
        assert self.backend.submit(attempt) == ""
        return attempt

    def await_told(self, attempt: Submission, words: str, state: str = QUEUED) -> Observation:
        found: list[Observation] = []

        def seen() -> bool:
            found.extend(self.backend.observe([attempt.intent.placement]))
            return found[-1].state == state and words in found[-1].message

        wait_until(seen, lambda: found[-1], within=60, pause=0.1)
        return found[-1]


@pytest.fixture
def placed(
    plane: ControlPlane | EmulatedPlane, namespace: str, nodes: NodeGroup, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Placed]:
    monkeypatch.setattr(observer, "EXPLAINED_SECONDS", 0.1)
    monkeypatch.setattr(boot, "LOADER", "import time; time.sleep(600)")
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    with machines_of(plane, nodes) as machines:
        placed = Placed(plane, namespace, machines)
        placed.make_queue()
        yield placed
        placed.close()


def test_machines_come_all_at_once_after_a_while_that_is_told(placed: Placed) -> None:
    placed.machines.answer_requests("Waiting", "Expected within 5 minutes.")
    attempt = placed.submit()
    placed.await_told(attempt, f"{placed.has_quota}: Expected within 5 minutes.")
    placed.machines.answer_requests()
    placed.await_told(attempt, "", PRESENT)
    nodes = placed.nodes()
    assert len(nodes) == 2
    assert {"key": "cloud.google.com/gke-queued", "value": "true", "effect": "NoSchedule"} in nodes[0]["spec"]["taints"]
    placed.backend.release(attempt.intent.placement)
    wait_until(lambda: not placed.nodes(), "nobody else has its machines", pause=0.1)


def test_a_stockout_is_told_while_a_request_waits(placed: Placed) -> None:
    placed.machines.stockout()
    attempt = placed.submit()
    placed.await_told(attempt, f"{placed.has_quota}: Provisioning Request wasn't provisioned. GCE out of resources")
    placed.machines.restock()
    placed.await_told(attempt, "", PRESENT)


@pytest.mark.parametrize(
    ("answer", "again"), [("Failed", "Retrying after failure"), ("BookingExpired", "Retrying after booking expired")]
)
def test_machines_that_are_not_to_be_had_are_asked_for_again_and_then_no_more(
    placed: Placed, answer: str, again: str
) -> None:
    placed.machines.answer_requests(answer, "There are none.")
    attempt = placed.submit()
    placed.await_told(attempt, f"{again}: There are none.")
    found = placed.await_told(attempt, "(There are none.); the machines were not to be had", GONE)
    assert found.cause == wire.STOCKOUT


def test_machines_that_are_taken_back_are_told(placed: Placed) -> None:
    attempt = placed.submit()
    placed.await_told(attempt, "", PRESENT)
    placed.machines.answer_requests("CapacityRevoked", "The machines are taken back.")
    placed.await_told(attempt, "(The machines are taken back.)", GONE)
    wait_until(lambda: not placed.nodes(), "the machines are gone", pause=0.1)


def test_an_answer_that_there_is_not_is_refused(placed: Placed) -> None:
    with pytest.raises(ValueError, match="no request is answered with Lost: there are Waiting, Failed, BookingExpired"):
        placed.machines.answer_requests("Lost")
