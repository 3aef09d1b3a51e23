"""GKE: a cluster that is found through Google's container API, and then asked like any other."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import BackendError, UsageError
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.platforms.google.credentials import handed_in
from kinetic_orchestration.platforms.registry import open_backend
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.emulator import PROJECT
from kinetic_orchestration.testing.kubernetes.pods.nodes import NodeGroup, tpu_pool
from tests.end_to_end.kubernetes.cases import token_for_all
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane

pytestmark = [pytest.mark.slow, pytest.mark.turn(6)]


def test_a_function_runs_on_a_cluster_that_is_found_by_its_name(
    plane: ControlPlane | EmulatedPlane,
    google: Emulator,
    nodes: NodeGroup,
    namespace: str,
    jobs: Any,
    machine: dict[str, str],
) -> None:
    nodes.add(*tpu_pool("pool", 1, topology="2x4", chips=8, **machine, KINETIC_EMULATOR=os.environ["KINETIC_EMULATOR"]))
    google.add_secret("token", "the token")
    with handed_in(Credentials(token_for_all(plane, namespace))):
        job = kinetic.run(accelerator="v5e-8", secrets={"TOKEN": "token"})(jobs.of_host_0).run_async()
        assert job.result(timeout=100) == "of host 0"


AUTOMATIC = {"autoscaling": {"enableNodeAutoprovisioning": True, "resourceLimits": [{"resourceType": "cpu"}]}}
WITH_L4 = {"autoscaling": {**AUTOMATIC["autoscaling"], "resourceLimits": [{"resourceType": "nvidia-l4"}]}}
CLASS = {"cloud.google.com/compute-class": "training"}


@pytest.mark.parametrize(
    ("cluster", "options", "state", "told"),
    [
        ({}, {}, FAILED, "gcloud container node-pools create ko-l4 "),
        ({"autopilot": {"enabled": True}}, {}, OK, "Autopilot may make some"),
        (WITH_L4, {}, OK, "the cluster's auto-provisioning may make some"),
        (AUTOMATIC, {}, WARNING, "; or give auto-provisioning a limit for nvidia-l4, which it has none for"),
        (AUTOMATIC, {"accelerator": "cpu:4"}, OK, "the cluster's auto-provisioning may make some"),
        ({}, {"cloud": kinetic.Kubernetes(node_selector=CLASS)}, WARNING, "There is no compute class training"),
    ],
)
def test_a_cluster_that_makes_nodes_by_itself_counts_as_one_that_has_a_pool(
    plane: ControlPlane | EmulatedPlane,
    google: Emulator,
    cluster: dict[str, Any],
    options: dict[str, Any],
    state: str,
    told: str,
) -> None:
    at = json.loads(plane.kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    own: dict[str, Any] = {"endpoint": at["server"].removeprefix("https://")}
    own["masterAuth"] = {"clusterCaCertificate": at["certificate-authority-data"]}
    google.neighbours.add_cluster(PROJECT, "us-central1", {"name": "tests", **own, **cluster})
    settings = load()
    plan = make_plan(JobSpec("a job", Options(**{"accelerator": "l4", **options})), settings)
    with handed_in(Credentials(plane.token)):
        backend = open_backend("gke", settings)
        found = {one.name: one for one in backend.examine(backend.resolve(plan))}["nodes"]
    assert found.state == state, found
    assert told in f"{found.found} {found.fix}"


def test_an_account_that_may_not_be_looked_at_is_never_ok(
    plane: ControlPlane | EmulatedPlane, google: Emulator, namespace: str
) -> None:
    config = json.loads(plane.account_kubeconfig(namespace, "default").read_text(encoding="utf-8"))
    at = json.loads(plane.kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    own: dict[str, Any] = {"endpoint": at["server"].removeprefix("https://")}
    own["masterAuth"] = {"clusterCaCertificate": at["certificate-authority-data"]}
    own["workloadIdentityConfig"] = {"workloadPool": f"{PROJECT}.svc.id.goog"}
    google.neighbours.add_cluster(PROJECT, "us-central1", {"name": "tests", **own})
    settings = load()
    plan = make_plan(JobSpec("a job", Options(accelerator="cpu:4")), settings)
    with handed_in(Credentials(config["users"][0]["user"]["token"])):
        backend = open_backend("gke", settings)
        found = {one.name: one for one in backend.examine(backend.resolve(plan))}["service account"]
    assert found.state == WARNING
    assert found.found.startswith("pods run as default, which you may not look at: what it may do with gs://")
    assert (
        f"kubectl get serviceaccount default -n {namespace} -o yaml; gcloud storage buckets get-iam-policy gs://"
        in found.fix
    )


def test_a_cluster_that_does_not_exist_is_told_with_those_that_do(google: Emulator, jobs: Any) -> None:
    with pytest.raises(BackendError, match=r"has no cluster test; it has tests\. Name one with cluster="):
        kinetic.run(accelerator="v5e-8", cluster="test")(jobs.of_host_0)()


def test_a_cluster_has_to_be_named(google: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETIC_CLUSTER")
    with pytest.raises(UsageError, match="needs a cluster: name it with cluster= or KINETIC_CLUSTER"):
        kinetic.run(accelerator="v5e-8")(jobs.of_host_0)()
