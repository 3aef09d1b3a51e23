"""The checks of a cluster before a job is submitted, against a real control plane."""

from __future__ import annotations

import json
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import BackendError, CredentialsError
from kinetic_orchestration.plan.configuration.settings import Settings, load
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.kubernetes import preflight, rights
from kinetic_orchestration.platforms.kubernetes.api import client, kueue
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding
from kinetic_orchestration.testing.kubernetes.pods.nodes import tpu_pool
from tests.core.platforms.kubernetes.api.scripted_server import Authority
from tests.support.kubernetes.api import Refused
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import Lingering, only_real
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(5)]

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Submitter:
    """A user of a kubeconfig, who asks for jobs in one namespace."""

    def __init__(self, kubeconfig: Path, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        self.settings: Settings = load(
            {
                "KINETIC_STORE": "gs://a-bucket/prefix", "KINETIC_DEPLOYMENT": "prod", "KINETIC_BACKEND": "kubernetes",
                "KINETIC_NAMESPACE": namespace,
            }
        )  # fmt: skip
        self.backend = KubernetesBackend(self.settings, KubeconfigClusters())
        self.refs: dict[str, str] = {}  # secrets that its jobs name

    def plan(self, accelerator: str = "v5e-16", **cloud: Any) -> Plan:
        spec = JobSpec("a job", Options(accelerator=accelerator, cloud=Kubernetes(**cloud), secrets=self.refs))
        return self.backend.resolve(make_plan(spec, self.settings))

    def require(self, **cloud: Any) -> None:
        self.backend.require(self.plan(**cloud))

    def refusal(self, **cloud: Any) -> str:
        with pytest.raises(BackendError) as caught:
            self.require(**cloud)
        assert caught.value.cause == "configuration"
        return str(caught.value)

    def findings(self, accelerator: str = "v5e-16", **cloud: Any) -> dict[str, Finding]:
        found = list(self.backend.examine(self.plan(accelerator, **cloud)))
        named = {finding.name: finding for finding in found}
        assert len(named) == len(found)
        return named


@pytest.fixture(autouse=True)
def nothing_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_passed", {})


@pytest.fixture
def admin(plane: Any, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Submitter:
    return Submitter(plane.kubeconfig, namespace, monkeypatch)


@pytest.fixture
def kubeconfig(plane: Any, tmp_path: Path) -> Callable[..., Path]:
    """Returns the administrator's kubeconfig with a change to its cluster, or under another context's name."""

    def changed(context: str = "tests", **cluster: str) -> Path:
        config = json.loads(plane.kubeconfig.read_text(encoding="utf-8"))
        config["clusters"][0]["cluster"].update(cluster)
        config["contexts"][0]["name"] = config["current-context"] = context
        path = tmp_path / f"kubeconfig-{context}"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    return changed


@pytest.fixture
def queue(plane: Any, namespace: str) -> Iterator[Callable[[str, str], None]]:
    """Makes a local queue of a cluster queue, and waits until Kueue has looked at it."""

    def make(name: str, cluster_queue: str) -> None:
        path = f"{KUEUE}/namespaces/{namespace}/localqueues"
        kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue"}
        plane.api.create(path, {**kind, "metadata": {"name": name}, "spec": {"clusterQueue": cluster_queue}})
        wait_until(lambda: plane.api.get(f"{path}/{name}").get("status", {}).get("conditions"))

    made = plane.api.create(
        f"{KUEUE}/clusterqueues",
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": f"all-{namespace}"},
            "spec": {"namespaceSelector": {}},
        },
    )  # fmt: skip
    yield make
    plane.api.delete(f"{KUEUE}/clusterqueues/{made['metadata']['name']}")


def grant(plane: Any, namespace: str, who: str, granted: Any) -> None:
    role, binding = rights.role(granted, namespace, who)
    plane.api.create(f"{RBAC}/namespaces/{namespace}/roles", role)
    plane.api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)


# ---- a cluster that is ready -----------------------------------------------------------------------------------


def test_a_cluster_that_is_ready_passes_and_nothing_is_stored(admin: Submitter, nodes: Any, plane: Any) -> None:
    nodes.add(*tpu_pool("pool", 4, topology="4x4"))
    found = admin.findings()
    assert list(found) == [
        "cluster", "JobSet", "namespace", "rights", "service account", "dry run", "pod", "nodes",
    ]  # fmt: skip
    assert {finding.state for finding in found.values()} == {OK}, found
    assert "Kubernetes v1." in found["cluster"].found
    assert "as admin" in found["cluster"].found
    assert "4 of 4 can run a host of v5e-16" in found["nodes"].found
    admin.require()
    where = admin.settings.namespace
    assert not plane.api.get(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{where}/jobsets")["items"]
    assert not plane.api.get(f"/api/v1/namespaces/{where}/pods")["items"]


def test_a_submit_costs_two_requests_three_with_a_queue_and_none_for_a_while(
    admin: Submitter, queue: Callable[[str, str], None]
) -> None:
    queue("ours", f"all-{admin.settings.namespace}")
    asked: list[Any] = []
    with client.listening(asked.append):
        admin.require()
        admin.require()
        assert len(asked) == 2
        admin.require(queue="ours")
        admin.require(queue="ours")
        assert len(asked) == 5


# ---- what is refused -------------------------------------------------------------------------------------------


def test_a_user_without_rights_is_refused_with_the_command_that_grants_them(
    plane: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = Submitter(plane.user_kubeconfig("nobody"), namespace, monkeypatch)
    told = nobody.refusal()
    assert "nothing was submitted" in told
    assert "create jobsets.jobset.x-k8s.io: hosts cannot be requested" in told
    assert "delete jobsets.jobset.x-k8s.io: hosts could be requested and not be released" in told
    assert f"KINETIC_NAMESPACE={namespace} kinor doctor --role user:nobody | kubectl apply -f -" in told
    found = nobody.findings()
    assert {name for name, finding in found.items() if finding.state == FAILED} == {"rights", "dry run"}, found


def test_the_printed_role_is_enough_and_each_right_that_is_missing_is_named(
    plane: Any, namespace: str, queue: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue("ours", f"all-{namespace}")
    every = rights.of(secrets=False, queue=True)
    grant(plane, namespace, f"serviceaccount:{namespace}/default", every)
    worker = Submitter(plane.account_kubeconfig(namespace, "default"), namespace, monkeypatch)

    def missing() -> Finding:
        return worker.findings(queue="ours")["rights"]

    wait_until(lambda: missing().state == OK, missing)  # the server hears of a Role a moment later
    worker.require(queue="ours")
    for right in every:
        role, _ = rights.role([one for one in every if one != right], namespace, "user:x")
        plane.api.patch(f"{RBAC}/namespaces/{namespace}/roles/{rights.ROLE}", {"rules": role["rules"]})
        told = f"missing in {namespace}: {right}: {right.lack}"
        wait_until(lambda told=told: missing().found == told, missing)  # type: ignore[misc]
        assert missing().state == (FAILED if right.is_needed else WARNING)
        preflight._passed.clear()
        if right.is_needed:
            assert str(right) in worker.refusal(queue="ours")
        else:
            worker.require(queue="ours")


def test_a_namespace_that_is_not_there(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Submitter(plane.kubeconfig, "nowhere", monkeypatch)
    assert "tests has no namespace nowhere. Make it: kubectl create namespace nowhere" in lost.refusal()
    found = lost.findings()
    assert found["namespace"].state == found["pod"].state == FAILED
    assert [name for name, finding in found.items() if "kubectl create" in finding.fix] == ["namespace"]


def test_a_namespace_that_is_being_deleted_is_told_once_and_in_place_of_what_it_has_lost(
    plane: Any, lingering: Lingering, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Submitter(plane.kubeconfig, lingering.name, monkeypatch)
    lingering.delete()
    told = late.refusal()
    assert f"namespace: {lingering.name} is being deleted. Name another with KINETIC_NAMESPACE or namespace=" in told
    assert len(told.splitlines()) == 2
    found = {name: finding for name, finding in late.findings().items() if finding.state != OK}
    fixes = {name for name, finding in found.items() if finding.fix}
    assert fixes == {"namespace", "nodes"}
    assert found["pod"].found == found["service account"].found == f"the namespace {lingering.name} is being deleted"


def test_secrets_that_are_not_there_are_told_and_what_is_in_them_is_not_read(
    plane: Any, namespace: str, admin: Submitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    admin.refs = {"HF_TOKEN": "hf/token"}
    told = admin.refusal(env_from=["s3"])
    assert f"{namespace} has no Secret hf, s3. Make it" in told
    assert f"kubectl create secret generic hf -n {namespace} --from-literal=KEY=…" in told
    for name in ("hf", "s3"):
        plane.api.create(path, {"metadata": {"name": name}, "stringData": {"token": "the-value"}})
    heard: list[client.Exchange] = []
    with client.listening(heard.append):
        assert admin.findings(env_from=["s3"])["secrets"] == Finding(
            "secrets", OK, "hf, s3; what they hold is not looked at"
        )
    if not isinstance(plane, EmulatedPlane):  # which sends whole objects
        assert b"the-value" not in b"".join(one.answer for one in heard)
    admin.require(env_from=["s3"])
    admin.refs = {}
    assert "secrets" not in admin.findings()
    plane.api.delete(f"{path}/s3")
    grant(plane, namespace, f"serviceaccount:{namespace}/default", rights.of(secrets=False, queue=False))
    worker = Submitter(plane.account_kubeconfig(namespace, "default"), namespace, monkeypatch)
    wait_until(lambda: worker.findings()["rights"].state == OK)
    found = worker.findings(env_from=["s3"])["secrets"]
    assert (found.state, found.found) == (OK, "s3: not looked at: you have no right to read them")
    worker.require(env_from=["s3"])


@only_real  # the emulated cluster serves the newest version alone
def test_a_queue_and_a_priority_are_read_in_the_older_version_of_their_api_too(
    admin: Submitter, queue: Callable[[str, str], None], plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue("dead", "no-such-cluster-queue")
    newest = admin.findings(queue="dead", priority_class="no-such-class")
    monkeypatch.setattr(kueue, "VERSIONS", ("v1beta1",))
    assert admin.findings(queue="dead", priority_class="no-such-class") == newest
    assert newest["queue"].state == newest["priority"].state == FAILED
    monkeypatch.setattr(kueue, "VERSIONS", ("v1beta0",))
    told = admin.refusal(queue="dead")
    assert "dead is asked for, and tests has no Kueue that serves v1beta0, but one of v1beta2 and v1beta1" in told


def test_a_queue_that_is_not_there_and_one_that_is_not_active(
    admin: Submitter, queue: Callable[[str, str], None]
) -> None:
    assert "has no queue nowhere" in admin.refusal(queue="nowhere")
    queue("dead", "no-such-cluster-queue")
    told = admin.refusal(queue="dead")
    assert "dead is not active" in told
    assert "kubectl describe clusterqueue no-such-cluster-queue" in told
    queue("ours", f"all-{admin.settings.namespace}")
    assert "has no queue nowhere" in admin.refusal(queue=["ours", "nowhere"])
    both = admin.findings(queue="ours,nowhere,dead")["queue"]
    assert both.state == FAILED
    assert "has no queue nowhere; dead is not active" in both.found
    assert "ours of the cluster queue" not in both.found
    found = admin.findings(queue="ours", priority_class="no-such-class")
    assert found["queue"].state == OK, found["queue"]
    assert found["priority"].state == FAILED


def test_a_queue_that_has_no_quota_of_the_chips_is_told(
    admin: Submitter, queue: Callable[[str, str], None], plane: Any
) -> None:
    """Its flavors need not exist: what they cover is said of each."""
    name = f"chips-{admin.settings.namespace}"
    flavor = {"name": "any", "resources": [{"name": "google.com/tpu", "nominalQuota": "8"}]}
    group = {"coveredResources": ["google.com/tpu"], "flavors": [flavor]}
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": name}}
    plane.api.create(f"{KUEUE}/resourceflavors", {**kind, "kind": "ResourceFlavor", "metadata": {"name": "any"}})
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    plane.api.create(f"{KUEUE}/clusterqueues", {**kind, "spec": spec})
    try:
        queue("tpus", name)
        wait_until(lambda: admin.findings(queue="tpus")["queue"].state == OK, lambda: admin.findings(queue="tpus"))

        def gpus() -> Finding:
            return admin.findings("l4", queue="tpus")["queue"]

        wait_until(lambda: gpus().state == WARNING, gpus)
        assert "tpus has no quota of nvidia.com/gpu, which pods request: only of google.com/tpu" in gpus().found
        assert f"add it to the cluster queue {name}" in gpus().fix
        admin.backend.require(admin.plan("l4", queue="tpus"))  # Kueue may be told to leave them out
        assert admin.findings("cpu", queue="tpus")["queue"].state == OK
    finally:
        plane.api.delete(f"{KUEUE}/clusterqueues/{name}")
        plane.api.delete(f"{KUEUE}/resourceflavors/any")


def test_a_priority_class_that_is_not_there_is_refused_also_after_a_job_without_one(
    admin: Submitter, queue: Callable[[str, str], None], plane: Any
) -> None:
    """Kueue makes no workload of such a set, and says nothing."""
    queue("ours", f"all-{admin.settings.namespace}")
    admin.require(queue="ours")
    assert "there is no WorkloadPriorityClass high" in admin.refusal(queue="ours", priority_class="high")
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}}
    plane.api.create(f"{KUEUE}/workloadpriorityclasses", {**body, "value": 10})
    try:
        admin.require(queue="ours", priority_class="high")
    finally:
        plane.api.delete(f"{KUEUE}/workloadpriorityclasses/high")


def test_a_service_account_that_is_not_there(admin: Submitter) -> None:
    found = admin.findings(service_account="trainer")
    assert found["service account"].state == FAILED
    assert "kubectl create serviceaccount trainer" in found["service account"].fix
    assert found["pod"].state == FAILED
    assert "error looking up service account" in found["pod"].found


def test_a_quota_and_pod_security_are_met_by_a_pod_that_is_only_tried(admin: Submitter, plane: Any) -> None:
    where = f"/api/v1/namespaces/{admin.settings.namespace}"
    plane.api.create(f"{where}/resourcequotas", {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    wait_until(lambda: plane.api.get(f"{where}/resourcequotas/none").get("status", {}).get("hard"))
    refused = admin.findings()["pod"]
    assert refused.state == FAILED
    assert "The ResourceQuota none of the namespace leaves no room" in refused.fix
    plane.api.delete(f"{where}/resourcequotas/none")

    def enforce(level: str) -> None:
        plane.api.patch(where, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}})

    enforce("restricted")
    wait_until(lambda: "PodSecurity" in admin.findings()["pod"].found, lambda: admin.findings()["pod"])
    enforce("baseline")
    wait_until(lambda: admin.findings()["pod"].state == OK, lambda: admin.findings()["pod"])


def test_admission_that_refuses_the_set_is_told_before_anything_is_made(admin: Submitter, plane: Any) -> None:
    where = f"/api/v1/namespaces/{admin.settings.namespace}"
    hard = {"count/jobsets.jobset.x-k8s.io": "0"}
    plane.api.create(f"{where}/resourcequotas", {"metadata": {"name": "none"}, "spec": {"hard": hard}})

    def found() -> Finding:
        return admin.findings()["dry run"]

    wait_until(lambda: found().state == WARNING, found)
    assert "quota: none" in found().found  # exceeded, or not counted yet: that takes a controller minutes
    admin.require()  # a quota is waited for
    plane.api.delete(f"{where}/resourcequotas/none")
    wait_until(lambda: found().state == OK, found)
    refused = admin.refusal(queue="No_Name_Of_Kueue")
    assert "refuses the JobSet: admission webhook" in refused
    assert "An administrator of the cluster knows the rule" in refused


# ---- a cluster that lacks something, or is not there -----------------------------------------------------------


@pytest.mark.conformance
@pytest.mark.timeout(func_only=True)
def test_a_cluster_without_jobset_and_kueue(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.kubernetes.control_plane import ControlPlane

    with ControlPlane(tmp_path / "bare", built, jobset=False, kueue=False) as bare:
        admin = Submitter(bare.kubeconfig, "default", monkeypatch)
        told = admin.refusal(queue="ours")
        assert "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/download/v" in told
        assert "ours is asked for, and tests has no Kueue" in told
        found = admin.findings(queue="ours")
        assert found["JobSet"].state == found["queue"].state == FAILED
        assert found["priority"].state == OK


def test_a_server_that_does_not_answer_is_given_up_within_seconds(
    kubeconfig: Callable[..., Path], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "HURRY", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"https://127.0.0.1:{silent.getsockname()[1]}"
        lost = Submitter(kubeconfig(server=address), namespace, monkeypatch)
        began = time.monotonic()
        told = lost.refusal()
        assert time.monotonic() - began < 6.0
        assert "nothing was submitted" in told
        assert "there was no connection in 1 s" in told
        [only] = lost.findings().values()
    assert (only.name, only.state) == ("cluster", FAILED)


def test_places_are_asked_at_the_same_time_and_their_silence_is_one_message(
    kubeconfig: Callable[..., Path], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "HURRY", 1.0)
    places = [namespace, *(f"another-{number}" for number in range(7))]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"https://127.0.0.1:{silent.getsockname()[1]}"
        lost = Submitter(kubeconfig(server=address), namespace, monkeypatch)
        plan, began = lost.plan(namespaces=places), time.monotonic()
        with pytest.raises(BackendError) as caught:
            lost.backend.require(plan)
        assert time.monotonic() - began < 5.0
        shown = "".join(traceback.format_exception(caught.value))
        assert (shown.count("got no answer"), shown.count("Traceback")) == (1, 1), shown
        began = time.monotonic()
        assert [found.state for found in lost.backend.examine(plan)] == [FAILED] * len(places)
        assert time.monotonic() - began < 5.0


def test_a_place_to_which_there_is_no_way_takes_no_finding_from_the_others(admin: Submitter, namespace: str) -> None:
    plan = admin.plan()
    places = (*plan.zones, f"a-context-of-nobody/{namespace}")
    *others, last = admin.backend.examine(replace(plan, zones=places))
    assert len(others) > 5
    assert all(plan.zones[0] in finding.found for finding in others)
    assert (last.state, last.found) == (FAILED, f"a-context-of-nobody/{namespace}: there is no way to it")


def test_a_certificate_of_another_authority_is_told_with_what_is_shown(
    kubeconfig: Callable[..., Path], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import base64

    another = base64.b64encode(Authority().pem.encode()).decode()
    path = kubeconfig(**{"certificate-authority-data": another})
    told = Submitter(path, namespace, monkeypatch).refusal()
    assert "is not trusted, so nothing was asked" in told
    assert "write the kubeconfig anew" in told


def test_an_identity_that_is_not_accepted(
    plane: Any, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads(plane.kubeconfig.read_text(encoding="utf-8"))
    config["users"][0]["user"] = {"token": "of-another-cluster"}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    stranger = Submitter(path, namespace, monkeypatch)
    with pytest.raises(CredentialsError, match="kubectl auth whoami"):
        stranger.require()
    [only] = stranger.findings().values()
    assert only.state == FAILED


# ---- nodes -----------------------------------------------------------------------------------------------------


def test_no_node_for_it_is_a_warning_with_what_gives_one(
    admin: Submitter, nodes: Any, kubeconfig: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add(*tpu_pool("small", 1, topology="4x4", chips=1))
    found = admin.findings()["nodes"]
    assert found.state == WARNING
    assert "none of 1 can run a host of v5e-16" in found.found
    assert "4 of google.com/tpu, cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice" in found.fix
    admin.require()  # a pool may be empty until a pod waits
    context = kubeconfig("gke_my-project_us-west4-a_my-cluster")
    user = Submitter(context, admin.settings.namespace, monkeypatch)
    found = user.findings()["nodes"]
    assert "gcloud container node-pools create ko-v5e-16 " in found.fix
    assert "--cluster=my-cluster" in found.fix
    assert "--spot" not in found.fix
    [found] = [one for one in user.backend.examine(replace(user.plan(), spot=True)) if one.name == "nodes"]
    assert "gcloud container node-pools create ko-v5e-16-spot " in found.fix
    assert "--spot" in found.fix


def test_nodes_of_the_same_tpus_in_another_topology_are_told(admin: Submitter, nodes: Any) -> None:
    nodes.add(*tpu_pool("pool", 2, topology="2x4"))
    found = admin.findings("v5e-16")["nodes"]
    kind = "tpu-v5-lite-podslice"
    told = f"the nodes of {kind} have the topology 2x4 with 4 chips a node, and it needs 4x4 with 4"
    assert found.found == f"none of 2 can run a host of v5e-16: {told}"
    assert "the topology" not in admin.findings("v6e-8")["nodes"].found, "there are none of that generation"
    nodes.add(*tpu_pool("another", 4, topology="4x4"))
    assert admin.findings("v5e-16")["nodes"].state == OK
    selected = admin.findings("v5e-16", node_selector={"disk": "ssd"})["nodes"].found
    assert selected == "none of 6 can run a host of v5e-16", "their topology is right, and something else is not"


def test_a_cluster_with_an_autoscaler_may_have_no_node(admin: Submitter, plane: Any) -> None:
    maps = "/api/v1/namespaces/kube-system/configmaps"
    plane.api.create(maps, {"metadata": {"name": "cluster-autoscaler-status"}})
    try:
        found = admin.findings()["nodes"]
        assert found.state == OK
        assert "the cluster's autoscaler may make some" in found.found
    finally:
        plane.api.delete(f"{maps}/cluster-autoscaler-status")


def is_created(plane: Any, path: str, body: dict[str, Any]) -> bool:
    """Return True if an object is there, of a kind whose API may just be starting."""
    try:
        plane.api.create(path, body)
    except Refused:
        return False
    return True


@only_real
def test_a_compute_class_that_is_there_makes_nodes(admin: Submitter, plane: Any) -> None:
    chosen = {"node_selector": {"cloud.google.com/compute-class": "training"}}
    lacking = admin.findings(**chosen)["nodes"]
    assert lacking.state == WARNING
    assert "There is no compute class training that makes them" in lacking.fix
    names = {"plural": "computeclasses", "singular": "computeclass", "kind": "ComputeClass", "listKind": "Classes"}
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": anything}
    spec = {"group": "cloud.google.com", "scope": "Cluster", "names": names, "versions": [version]}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    defined = {"name": "computeclasses.cloud.google.com"}
    plane.api.create(definitions, {"metadata": defined, "spec": spec})
    try:
        body = {"apiVersion": "cloud.google.com/v1", "kind": "ComputeClass", "metadata": {"name": "training"}}
        wait_until(lambda: is_created(plane, "/apis/cloud.google.com/v1/computeclasses", body), "its API")
        found = admin.findings(**chosen)["nodes"]
        assert found.state == OK
        assert "the compute class training may make some" in found.found
    finally:
        plane.api.delete(f"{definitions}/{defined['name']}")
