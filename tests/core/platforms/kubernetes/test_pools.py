"""Pools of nodes on GKE, as its API lists them: what has none is refused, with the line that makes one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.values import Observation, Past, Plan
from kinetic_orchestration.platforms.google.credentials import handed_in
from kinetic_orchestration.platforms.google.rest.gke import GkeClusters
from kinetic_orchestration.platforms.kubernetes import preflight
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.emulator import PROJECT
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node, NodeGroup, tpu_pool
from tests.core.platforms.kubernetes.attempts import JOB, attempt_of, plan_of, pod_of
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import on_both
from tests.support.waits import wait_until

pytestmark = on_both(pytest.mark.slow, pytest.mark.turn(1))


class Google:
    """An emulated Google Cloud with one cluster that makes no nodes by itself, and a submitter's backend."""

    def __init__(self, emulator: Emulator, plane: ControlPlane | EmulatedPlane) -> None:
        self._emulator, self._plane, self.api = emulator, plane, plane.api
        self.namespace = "default"
        self.has()
        self.settings = settings.load(
            backend="gke", store="gs://bucket/kinetic", deployment="Production EU", project=PROJECT, cluster="prod"
        )
        self.backend = KubernetesBackend(self.settings, GkeClusters(self.settings), None, "gke")

    def has(self, **cluster: Any) -> None:
        """Let the container API say this of the cluster."""
        at = json.loads(self._plane.kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
        authority = {"clusterCaCertificate": at["certificate-authority-data"]}
        reached = {"endpoint": at["server"].removeprefix("https://"), "masterAuth": authority}
        self._emulator.neighbours.add_cluster(PROJECT, "us-west4-a", {"name": "prod", **reached, **cluster})

    def plan(self, accelerator: str, cloud: Kubernetes | None = None, **fields: Any) -> Plan:
        fields = {"zones": (f"prod/{self.namespace}",), "backend": "gke", "project": PROJECT, **fields}
        return plan_of(accelerator, cloud=cloud, **fields)

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

        [seen] = wait_until(lambda: [one for one in look() if "node" in one.message], look, pause=0.1)
        return seen.message


@pytest.fixture
def google(home: Path, plane: ControlPlane | EmulatedPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    """Return the platform of a cluster in which nothing is created."""
    monkeypatch.setattr(preflight, "_passed", {})
    with Emulator(hosts=False) as emulator, handed_in(Credentials(plane.token)):
        for name, value in emulator.environ().items():
            monkeypatch.setenv(name, value)
        yield Google(emulator, plane)


@pytest.fixture
def asking(google: Google, namespace: str) -> Google:
    """The same, of a namespace of this test alone."""
    google.namespace = namespace
    return google


PLACE = f"--project={PROJECT} --cluster=prod --location=us-west4-a --node-locations=us-west4-a "


@pytest.mark.parametrize("accelerator", ["l4", "v5e-16"])
def test_the_line_that_makes_a_pool_has_no_word_to_replace(asking: Google, accelerator: str) -> None:
    plan = asking.plan(accelerator)
    assert f"ko-{accelerator} {PLACE}" in asking.finding("nodes", plan).fix
    assert f"ko-{accelerator} {PLACE}" in asking.waiting(plan)


def test_each_slice_of_several_hosts_has_a_pool_of_its_own(asking: Google) -> None:
    plan = asking.plan("v5e-16", slices=2)
    for told in (asking.finding("nodes", plan).fix, asking.waiting(plan)):
        assert f"ko-v5e-16-1 {PLACE}" in told and f"ko-v5e-16-2 {PLACE}" in told


# ---- a job that no pool can serve ------------------------------------------------------------------------------


SCALES = {"autoscaling": {"enabled": True, "maxNodeCount": 8}}
TPUS = {"machineType": "ct5lp-hightpu-4t"}
WHOLE = {**SCALES, "name": "whole", "config": TPUS, "placementPolicy": {"type": "COMPACT", "tpuTopology": "4x4"}}
OTHER = {**WHOLE, "name": "other", "placementPolicy": {"type": "COMPACT", "tpuTopology": "2x4"}}
L4 = {"machineType": "g2-standard-4", "accelerators": [{"acceleratorCount": "1", "acceleratorType": "nvidia-l4"}]}
GPUS = {**SCALES, "name": "gpus", "config": L4}
PLAIN = {"name": "plain", "config": {"machineType": "e2-standard-4"}, "initialNodeCount": 1}
TAINT = {"key": "team", "value": "vision", "effect": "NO_SCHEDULE"}
OWNED = {**GPUS, "config": {**L4, "taints": [TAINT]}}
ONE_HOST = {**SCALES, "name": "one", "config": {"machineType": "ct5lp-hightpu-8t"}}
BY_POLICY = {
    **SCALES, "name": "cubes", "config": {"machineType": "tpu7x-standard-4t"},
    "placementPolicy": {"policyName": "p"},
}  # fmt: skip
RESERVED = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["quarter"]}


@pytest.mark.parametrize(
    ("accelerator", "cloud", "pools"),
    [
        ("v5e-16", {}, [PLAIN, WHOLE]),
        ("v5e-8", {}, [ONE_HOST]),
        ("tpu7x-16", {}, [BY_POLICY]),
        ("l4", {}, [GPUS]),
        ("gpu:1", {}, [GPUS]),
        ("cpu:4", {}, [PLAIN]),
        ("l4", {"tolerations": ["team=vision"]}, [OWNED]),
        ("l4", {"node_selector": {"team": "a"}}, [{**GPUS, "config": {**L4, "labels": {"team": "a"}}}]),
        ("l4", {"reservation": "quarter"}, [{**GPUS, "config": {**L4, "reservationAffinity": RESERVED}}]),
        ("l4", {"node_selector": {"cloud.google.com/compute-class": "training"}}, []),
        ("l4", {"node_selector": {"cloud.google.com/machine-family": "g2"}}, [GPUS]),
    ],
)  # fmt: skip
def test_a_job_is_sent_if_a_pool_can_have_its_nodes(
    google: Google, accelerator: str, cloud: dict[str, Any], pools: list[dict[str, Any]]
) -> None:
    google.has(nodePools=pools)
    google.backend.require(google.plan(accelerator, Kubernetes(**cloud)))


@pytest.mark.parametrize(
    ("hosts", "pool", "told"),
    [
        (
            1,
            OTHER,
            "other has 8 such chips on 2 hosts, as Keras Kinetic makes them: ask for them with cloud=Kubernetes(h",
        ),
        (2, ONE_HOST, "one has 8 such chips on 1 host: ask for them without hosts="),
    ],
)
def test_who_has_eight_chips_on_another_number_of_hosts_hears_how_to_ask_for_them(
    asking: Google, hosts: int, pool: dict[str, Any], told: str
) -> None:
    plan, other = asking.plan("v5e-8"), accelerators.otherwise(accelerators.parse("v5e-8"))
    asked, has = (plan, replace(plan, slice=other)) if hosts == 1 else (replace(plan, slice=other), plan)
    asking.has(nodePools=[PLAIN, pool])
    with pytest.raises(BackendError, match="no pool of prod can run a host of v5e-8") as refused:
        asking.backend.require(asked)
    assert told in str(refused.value)
    asking.backend.require(has)
    asking.has(nodePools=[])
    assert f"ko-v5e-8{'' if hosts == 1 else '-on-2'} {PLACE}" in asking.waiting(asked)


@pytest.mark.parametrize(
    ("accelerator", "cloud", "pools"),
    [
        ("v5e-16", {}, []),
        ("v5e-16", {}, [PLAIN, OTHER, GPUS]),
        ("v5e-8", {}, [OTHER]),
        ("v5e-4", {}, [WHOLE]),
        ("l4", {}, [OWNED]),
        ("l4x2", {}, [GPUS]),
        ("t4", {}, [GPUS]),
        ("cpu:4", {}, [GPUS, WHOLE]),
        ("l4", {"node_selector": {"team": "a"}}, [GPUS]),
        ("l4", {"reservation": "quarter"}, [GPUS]),
        ("l4", {"flex_start": True}, [GPUS]),
        ("l4", {}, [{**GPUS, "status": "STOPPING"}]),
        ("l4", {}, [{**GPUS, "autoscaling": {"enabled": True}}]),
    ],
)
def test_a_job_that_no_pool_can_ever_serve_is_refused_before_anything_is_sent(
    google: Google, accelerator: str, cloud: dict[str, Any], pools: list[dict[str, Any]]
) -> None:
    google.has(nodePools=pools)
    plan = google.plan(accelerator, Kubernetes(**cloud))
    with pytest.raises(BackendError, match=f"no pool of prod can run a host of {accelerator}") as refused:
        google.backend.require(plan)
    line = f"node-pools create ko-{accelerator}" if "cpu" not in accelerator else "any machine"
    assert "nothing was submitted" in str(refused.value) and line in str(refused.value)
    assert google.finding("nodes", plan).state == FAILED
    google.has(nodePools=pools, autopilot={"enabled": True})
    google.backend.require(plan)


@pytest.mark.parametrize("cluster", [{}, {"autopilot": {"enabled": True}}])
def test_a_pool_that_a_job_names_and_that_is_not_there_is_told_in_place_of_a_pool_to_make(
    asking: Google, cluster: dict[str, Any]
) -> None:
    asking.has(nodePools=[GPUS, PLAIN], **cluster)
    named = asking.plan("l4", Kubernetes(node_selector={"cloud.google.com/gke-nodepool": "nosuch"}))
    told = "There is no pool nosuch, which node_selector= names (there are: gpus, plain)"
    with pytest.raises(BackendError) as refused:
        asking.backend.require(named)
    found = asking.finding("nodes", named)
    assert found.state == FAILED
    for text in (str(refused.value), found.fix):
        assert told in text and "node-pools create" not in text
    seen = asking.waiting(named)
    assert "there is no pool nosuch" in seen and "node-pools create" not in seen


def test_a_label_that_no_pool_has_is_named_with_the_pool_to_make(google: Google) -> None:
    google.has(nodePools=[GPUS])
    found = google.finding("nodes", google.plan("l4", Kubernetes(node_selector={"team": "a"})))
    assert (
        "No pool has the label team=a: correct node_selector=, or make a pool with --node-labels=team=a." in found.fix
    )
    assert "node-pools create ko-l4 " in found.fix


def test_another_accelerator_than_the_one_that_passed_is_looked_at(google: Google) -> None:
    google.has(nodePools=[GPUS])
    google.backend.require(google.plan("l4"))
    with pytest.raises(BackendError, match="no pool of prod can run a host of t4"):
        google.backend.require(google.plan("t4"))


def test_a_node_that_is_there_counts_whatever_the_list_of_pools_says(google: Google, nodes: NodeGroup) -> None:
    nodes.add(*tpu_pool("pool", 4, topology="4x4"))
    google.backend.require(google.plan("v5e-16"))


def test_pools_may_be_made_for_a_default_compute_class(google: Google) -> None:
    google.has(autoscaling={"defaultComputeClassConfig": {"enabled": True}})
    google.backend.require(google.plan("v5e-16"))


def test_doctor_counts_an_autoscaler_only_of_a_pool_that_fits(google: Google) -> None:
    google.has(nodePools=[WHOLE])
    assert "the autoscaler of whole may make some" in google.finding("nodes", google.plan("v5e-16")).found
    google.has(nodePools=[PLAIN])
    assert google.finding("nodes", google.plan("v5e-16")).state == FAILED


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        ({"autoscaling": {"enabled": True, "minNodeCount": 2, "maxNodeCount": 8}}, "whole keeps 2 nodes"),
        ({"autoscaling": {"enabled": True, "totalMinNodeCount": 3, "totalMaxNodeCount": 8}}, "whole keeps 3 nodes"),
        ({"autoscaling": {}}, "whole has no autoscaling"),
        ({"autoscaling": {"enabled": True, "maxNodeCount": 2}}, "2 nodes at most, and the job has 4 hosts"),
        ({"config": {**TPUS, "maxRunDuration": "3600s"}}, "taken away after 3600 s, and limits.run is 86400 s"),
    ],
)
def test_doctor_warns_of_a_pool_that_costs_or_ends_a_job_early(google: Google, pool: dict[str, Any], told: str) -> None:
    google.has(nodePools=[WHOLE])
    assert google.finding("pools", google.plan("v5e-16")).state == OK
    google.has(nodePools=[{**WHOLE, **pool}])
    found = google.finding("pools", google.plan("v5e-16"))
    assert found.state == WARNING and told in found.found


def node(name: str, **labels: str) -> Node:
    own = {"cloud.google.com/gke-accelerator": "nvidia-l4", **labels}
    return Node(name, own, (), {"nvidia.com/gpu": "1", "cpu": "4"}, {})


def test_doctor_does_not_count_nodes_that_are_taken_away_for_a_job_on_demand(google: Google, nodes: NodeGroup) -> None:
    nodes.add(node("a", **{"cloud.google.com/gke-spot": "true"}))
    nodes.add(node("b", **{"cloud.google.com/gke-flex-start": "true"}))
    found = google.finding("nodes", google.plan("l4"))
    assert found.state == WARNING and "only 2 of spot capacity or flex-start can run a host of l4" in found.found
    assert "node-pools create ko-l4 " in found.fix and "for ever" not in found.fix
    assert google.finding("nodes", google.plan("l4", spot=True)).state == OK
    nodes.add(node("c"))
    assert "1 of 3 can run a host of l4" in google.finding("nodes", google.plan("l4")).found


# ---- who pods are


IDENTITIES = {"workloadIdentityConfig": {"workloadPool": "emulated.svc.id.goog"}}


def test_doctor_says_where_pods_are_whoever_their_node_is(google: Google) -> None:
    google.has(nodePools=[GPUS])
    found = google.finding("identity", google.plan("l4"))
    assert found.state == WARNING
    assert "clusters update prod --project=emulated --location=us-west4-a --workload-pool=emulated.svc" in found.fix
    google.has(nodePools=[GPUS], **IDENTITIES)
    found = google.finding("identity", google.plan("l4"))
    assert found.state == WARNING and "pods in gpus have none of their own" in found.found
    assert "node-pools update gpus --cluster=prod --project=emulated --location=us-west4-a --work" in found.fix
    config = {**L4, "workloadMetadataConfig": {"mode": "GKE_METADATA"}}
    google.has(nodePools=[{**GPUS, "config": config}], **IDENTITIES)
    assert google.finding("identity", google.plan("l4")).state == OK


# ---- Autopilot


AUTOPILOT = {"autopilot": {"enabled": True}}


@pytest.mark.parametrize(("cluster", "disk"), [(AUTOPILOT, "9Gi"), ({}, None)])
def test_an_attempt_in_an_autopilot_cluster_asks_for_disk(
    asking: Google, cluster: dict[str, Any], disk: str | None
) -> None:
    asking.has(**cluster)
    plan = asking.plan("l4")
    placement = asking.backend.place(plan, JOB, 1)
    asked = attempt_of(plan)
    assert asking.backend.submit(replace(asked, intent=asked.intent._replace(placement=placement))) == ""
    [made] = asking.api.get(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{asking.namespace}/jobsets")["items"]
    assert pod_of(made)["containers"][0]["resources"]["requests"].get("ephemeral-storage") == disk


def test_doctor_warns_of_the_little_disk_of_pods_in_a_queue_on_autopilot(google: Google) -> None:
    google.has(**AUTOPILOT)
    found = google.finding("disk", google.plan("l4", Kubernetes(queue="research")))
    assert (found.state, "1 GiB" in found.found, "LimitRange" in found.fix) == (WARNING, True, True)
    assert "disk" not in {one.name for one in google.backend.examine(google.plan("l4"))}
    google.has()
    queued = google.plan("l4", Kubernetes(queue="research"))
    assert "disk" not in {one.name for one in google.backend.examine(queued)}


# ---- several places


def test_of_several_places_doctor_names_the_one_that_lacks_something(google: Google) -> None:
    both = google.plan("cpu:2", zones=("prod/default", "prod/lost"))
    failed = [one for one in google.backend.examine(both) if one.name == "namespace" and one.state == FAILED]
    [found] = failed
    assert found.found.startswith("prod/lost: prod has no namespace lost")
    assert "kubectl --context=gke_emulated_us-west4-a_prod create namespace lost" in found.fix


def test_a_cluster_that_is_no_more_is_left_out_if_there_is_another_one(google: Google) -> None:
    google.has(nodePools=[GPUS])
    plan = google.plan("l4", zones=("gone/default", "prod/default"))
    google.backend.require(plan)
    with pytest.raises(BackendError, match="nothing was submitted: emulated has no cluster gone"):
        google.backend.require(google.plan("l4", zones=("gone/default",)))
    assert {one.found[:5] for one in google.backend.examine(plan)} == {"gone/", "prod/"}
    placement = google.backend.place(plan, JOB, 1)
    asked = attempt_of(plan)
    with pytest.raises(BackendError) as refused:
        google.backend.submit(replace(asked, intent=asked.intent._replace(placement=placement)))
    past = Past(placement, refused.value.cause, str(refused.value), 1.0)
    following = google.backend.place(plan, JOB, 2, past)
    assert (following["zone"], following["dropped"]) == ("prod/default", ["gone/default"])
