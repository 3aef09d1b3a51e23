"""Pools of nodes on GKE: the line that makes one, for a cluster that was found by its name."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.values import Observation, Plan
from kinetic_orchestration.platforms.google.gke import GkeClusters
from kinetic_orchestration.platforms.kubernetes import preflight
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.shared.findings import Finding
from kinetic_orchestration.testing import Cluster, Emulator
from kinetic_orchestration.testing.emulator import PROJECT
from tests.core.platforms.kubernetes.attempts import JOB, attempt_of, plan_of
from tests.support.waits import wait_until


class Google:
    """An emulated Google Cloud with one cluster that makes no nodes by itself, and a submitter's backend."""

    def __init__(self, emulator: Emulator, cluster: Cluster) -> None:
        self._emulator = emulator
        self.cluster = cluster
        self.has()
        self._settings = settings.load(
            backend="gke", store="gs://bucket/kinetic", deployment="Production EU", project=PROJECT, cluster="prod"
        )
        self.backend = KubernetesBackend(self._settings, GkeClusters(self._settings), None, "gke")

    def has(self, **cluster: Any) -> None:
        """Let the container API say this of the cluster."""
        encoded = base64.b64encode(self.cluster.authority.encode()).decode()
        reached = {"endpoint": self.cluster.endpoint, "masterAuth": {"clusterCaCertificate": encoded}}
        self._emulator.neighbours.add_cluster(PROJECT, "us-west4-a", {"name": "prod", **reached, **cluster})

    def plan(self, accelerator: str, cloud: Kubernetes | None = None, **fields: Any) -> Plan:
        return plan_of(accelerator, cloud=cloud, zone="prod/default", backend="gke", project=PROJECT, **fields)

    def finding(self, name: str, plan: Plan) -> Finding:
        [found] = [one for one in self.backend.examine(plan) if one.name == name]
        return found

    def waiting(self, plan: Plan) -> str:
        """Submit an attempt that finds no node, and return what is said of it."""
        placement = self.backend.place(plan, JOB, 1)
        asked = attempt_of(plan)
        assert self.backend.submit(replace(asked, intent=asked.intent._replace(placement=placement))) == ""

        def look() -> list[Observation]:
            return self.backend.observe([placement])

        [seen] = wait_until(lambda: [one for one in look() if "node" in one.message], look, within=8)
        return seen.message


@pytest.fixture
def google(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    monkeypatch.setattr(preflight, "_passed", {})
    with Emulator(hosts=False) as emulator, Cluster(tmp_path / "cluster") as cluster:
        for name, value in emulator.environ().items():
            monkeypatch.setenv(name, value)
        yield Google(emulator, cluster)


PLACE = f"--project={PROJECT} --cluster=prod --location=us-west4-a --node-locations=us-west4-a "


@pytest.mark.parametrize("accelerator", ["l4", "v5e-16"])
def test_the_line_that_makes_a_pool_has_no_word_to_replace(google: Google, accelerator: str) -> None:
    plan = google.plan(accelerator)
    assert f"ko-{accelerator} {PLACE}" in google.finding("nodes", plan).fix
    assert f"ko-{accelerator} {PLACE}" in google.waiting(plan)


def test_each_slice_of_several_hosts_has_a_pool_of_its_own(google: Google) -> None:
    plan = google.plan("v5e-16", slices=2)
    for told in (google.finding("nodes", plan).fix, google.waiting(plan)):
        assert f"ko-v5e-16-1 {PLACE}" in told and f"ko-v5e-16-2 {PLACE}" in told
