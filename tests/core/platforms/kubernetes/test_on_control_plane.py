"""Manifests and reasons on a real control plane: it takes every manifest, and says what the tables of reasons know."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.values import (
    ABSENT,
    GONE,
    PRESENT,
    PROVISIONING,
    QUEUED,
    UNKNOWN,
    Freed,
    Observation,
    Plan,
)
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.kubernetes import backend as kubernetes_backend
from kinetic_orchestration.platforms.kubernetes import boot, rights
from kinetic_orchestration.platforms.kubernetes.api import kueue
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.kubernetes.observing import observer
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing.kubernetes.api.answers import Object, Refused
from kinetic_orchestration.testing.kubernetes.pods.nodes import KILLED, NodeGroup, tpu_pool
from tests.core.platforms.kubernetes import attempts
from tests.core.platforms.kubernetes.attempts import attempt_of, job_of, plan_of, pod_of, rendered
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import Lingering, only_real
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(2)]

NONE: Mapping[str, str] = MappingProxyType({})
DRY = "?dryRun=All&fieldValidation=Strict"
FOREVER = "import time; time.sleep(600)"  # deaf to SIGTERM, as any first process without a handler
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"


def test_every_manifest_is_taken_with_its_jobs_and_pods(plane: ControlPlane | EmulatedPlane, namespace: str) -> None:
    """By the server, and by the webhooks of JobSet and Kueue. Strictly: it knows every field."""
    plane.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "trainer"}})
    for plan in attempts.ALL:
        plane.api.create(f"{JOBSETS}/namespaces/{namespace}/jobsets{DRY}", rendered(plan))
    for plan in attempts.CASES.values():
        jobset = rendered(plan, secrets={"TOKEN": "x"})
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job_of(jobset)}
        plane.api.create(f"/apis/batch/v1/namespaces/{namespace}/jobs{DRY}", job)
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod_of(jobset)}
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods{DRY}", pod)


class Placed:
    """An attempt in the cluster, as the backend sees it."""

    def __init__(self, plane: ControlPlane | EmulatedPlane, namespace: str) -> None:
        self._plane, self._namespace, self._said = plane, namespace, 0
        settings = Settings(
            home=Path("/nowhere"),
            store="gs://bucket/kinetic",
            deployment="Production EU",
            backend="kubernetes",
            namespace=namespace,
        )
        self.backend = KubernetesBackend(settings, KubeconfigClusters())
        self.beside = KubernetesBackend(settings, KubeconfigClusters())  # which keeps nothing between two looks

    def submit(self, accelerator: str, number: int = 1, captured: Mapping[str, str] = NONE, **more: Any) -> Submission:
        plan: Plan = plan_of(accelerator, zone=f"tests/{self._namespace}", **more)
        attempt = attempt_of(plan, number, secrets=captured)
        assert self.backend.submit(attempt) == ""
        return attempt

    def observed(self, attempt: Submission) -> Observation:
        [found] = self.backend.observe([attempt.intent.placement])
        return found

    def is_seen_alike(self, *attempts: Submission) -> bool:
        """True if what rows say of some attempts, and has been kept, is what their objects say now."""
        placements = [attempt.intent.placement for attempt in attempts]
        for placement in placements:
            self.beside._observer.forget(placement["name"])
        return self.backend.observe(placements) == self.beside.observe(placements)

    def await_told(self, attempt: Submission, *words: str, state: str = QUEUED) -> Observation:
        found: list[Observation] = []

        def seen() -> Observation | None:
            found.append(self.observed(attempt))
            said = found[-1].message
            return found[-1] if found[-1].state == state and all(word in said for word in words) else None

        return wait_until(seen, lambda: found[-1], within=60, pause=0.2)

    def pods(self) -> list[Object]:
        return list(self._plane.api.get(f"/api/v1/namespaces/{self._namespace}/pods")["items"])

    def running(self, number: int) -> list[Object]:
        def seen() -> list[Object]:
            found = [pod for pod in self.pods() if pod["status"]["phase"] == "Running"]
            return found if len(found) == number else []

        return wait_until(seen, lambda: [pod["status"] for pod in self.pods()], within=60, pause=0.2)

    def close(self) -> None:
        for backend in (self.backend, self.beside):
            for api in backend._apis.values():
                api.close()

    def say(self, reason: str, message: str) -> None:
        """Have the autoscaler say something of the first pod."""
        [pod] = self.pods()
        about = {"kind": "Pod", "name": pod["metadata"]["name"], "namespace": self._namespace}
        self._said += 1
        now = f"2026-11-27T19:43:{self._said:02}Z"
        said = {
            "metadata": {"generateName": "scaling-"}, "involvedObject": about, "reason": reason, "message": message,
            "source": {"component": "cluster-autoscaler"}, "type": "Normal", "lastTimestamp": now, "firstTimestamp": now,
        }  # fmt: skip
        self._plane.api.create(f"/api/v1/namespaces/{self._namespace}/events", said)


@pytest.fixture
def placed(plane: ControlPlane | EmulatedPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Placed]:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    monkeypatch.setattr(observer, "EXPLAINED_SECONDS", 0.5)
    placed = Placed(plane, namespace)
    yield placed
    placed.close()


def test_what_the_scheduler_and_an_autoscaler_say_is_told_with_the_pool_that_is_needed(placed: Placed) -> None:
    attempt = placed.submit("v5e-16")
    placed.await_told(attempt, "0 of 4 pods run; no node for pod", "gcloud container node-pools create ko-v5e-16")
    placed.say("FailedScaleUp", "Node scale up in zones z associated with this pod failed: GCE out of resources.")
    placed.await_told(attempt, "the zone has no such machines free now")
    placed.say("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached")
    placed.await_told(attempt, "a pool of such nodes is as large as it may be")


def test_an_attempt_ends_of_what_waiting_does_not_change(placed: Placed, namespace: str, nodes: NodeGroup) -> None:
    nodes.add(*tpu_pool(namespace, 1, chips=8))
    nodes.lack({"gone:1": "InvalidImageName"})
    attempt = placed.submit("v5e-8", image="gone:1")
    assert placed.await_told(attempt, "(InvalidImageName", state=GONE).cause == wire.CONFIGURATION


def test_an_image_that_a_registry_has_not_ends_an_attempt_and_a_registry_that_fails_is_waited_for(
    placed: Placed, namespace: str, nodes: NodeGroup
) -> None:
    nodes.add(*tpu_pool(namespace, 2, chips=8))
    nodes.lack({"gone:1": "ErrImagePull", "late:1": "ErrImagePull: unexpected status: 503 Service Unavailable"})
    late = placed.submit("v5e-8", 1, image="late:1")
    placed.await_told(late, "503 Service Unavailable", state=PROVISIONING)
    gone = placed.submit("v5e-8", 2, image="gone:1")
    found = placed.await_told(gone, "(ImagePullBackOff", "the registry has no such image", state=GONE)
    assert found.cause == wire.CONFIGURATION
    assert placed.observed(late).state == PROVISIONING


class Clock:
    """The monotonic clock of a process that stood still for some time."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (kubernetes_backend, observer):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_no_attempt_ends_of_the_time_in_which_this_process_stood_still(
    placed: Placed, namespace: str, nodes: NodeGroup, clock: Clock
) -> None:
    """As a laptop does that was closed: what it saw before and sees again need not have lasted."""
    nodes.add(*tpu_pool(namespace, 1, chips=8))
    nodes.lack({"late:1": "ErrImagePull: unexpected status: 503 Service Unavailable"})
    late = placed.submit("v5e-8", image="late:1")
    placed.await_told(late, "503 Service Unavailable", state=PROVISIONING)
    for _ in range(2):
        clock.ahead += 3600.0
        assert placed.observed(late).state == PROVISIONING
    clock.ahead += 3600.0
    found = placed.observed(late)
    assert (found.state, found.cause) == (GONE, wire.INFRASTRUCTURE)  # by then it has been seen for long enough


def test_a_right_that_lacks_before_and_after_this_process_stood_still_ends_no_attempt(
    plane: ControlPlane | EmulatedPlane, namespace: str, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """An API server that has just started refuses everybody for a moment."""
    monkeypatch.setenv("KUBECONFIG", str(plane.user_kubeconfig("nobody")))
    placed = Placed(plane, namespace)
    attempt = attempt_of(plan_of("v5e-8", zone=f"tests/{namespace}"))
    seen = []
    for _ in range(3):
        seen.append(placed.observed(attempt))
        clock.ahead += 3600.0
    assert [(one.state, one.cause) for one in seen] == [*[(UNKNOWN, "")] * 2, (UNKNOWN, wire.CONFIGURATION)]


def test_whose_rights_went_with_their_namespace_is_told_so(
    plane: ControlPlane | EmulatedPlane, lingering: Lingering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has lost the Role says nothing of the namespace."""
    role, binding = rights.role(rights.of(secrets=False, queue=False), lingering.name, "user:ada")
    for kind, body in (("roles", role), ("rolebindings", binding)):
        plane.api.create(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{lingering.name}/{kind}", body)
    kubeconfig = plane.user_kubeconfig("ada")
    lingering.delete()
    sets = f"{JOBSETS}/namespaces/{lingering.name}/jobsets"
    wait_until(lambda: _is_refused(Api(kubeconfig), sets), "the server has lost the Role", within=60, pause=0.1)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    ada = Placed(plane, lingering.name)
    told = "Have an administrator grant the right, which goes with its namespace if that is deleted: KINETIC_NAMESPACE="
    with pytest.raises(BackendError, match=told):
        ada.submit("v5e-8")
    ada.close()


def test_pods_without_rights_of_root_run_where_others_are_refused(
    plane: ControlPlane | EmulatedPlane, namespace: str, nodes: NodeGroup, placed: Placed
) -> None:
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    plane.api.patch(f"/api/v1/namespaces/{namespace}", restricted)
    refused = placed.submit("v5e-8")
    found = placed.await_told(refused, "violates PodSecurity", "cloud=Kubernetes(run_as_user=1000) meets that")
    assert found.cause == "" and placed.pods() == []  # a moment later it would end
    placed.backend.release(refused.intent.placement)
    wait_until(lambda: placed.observed(refused).state == "absent", "it is gone", within=60, pause=0.2)
    nodes.add(*tpu_pool(namespace, 1, chips=8))
    placed.submit("v5e-8", cloud=Kubernetes(run_as_user=1000))
    [pod] = wait_until(placed.pods, "there is a pod", within=60, pause=0.2)
    assert pod["spec"]["securityContext"]["runAsUser"] == 1000


@pytest.mark.parametrize("without", [("jobsets",), ("jobsets", "jobs")], ids="-".join)
def test_pods_whose_owners_were_deleted_without_them_are_ended(
    plane: ControlPlane | EmulatedPlane, namespace: str, placed: Placed, without: tuple[str, ...]
) -> None:
    """`kubectl delete --cascade=orphan`, of the set, and then of its Job as well."""
    attempt = placed.submit("v5e-8")
    wait_until(placed.pods, "there is a pod", within=60, pause=0.2)
    paths = {
        "jobsets": f"{JOBSETS}/namespaces/{namespace}/jobsets",
        "jobs": f"/apis/batch/v1/namespaces/{namespace}/jobs",
    }
    for path in map(paths.__getitem__, without):
        [one] = plane.api.get(path)["items"]
        plane.api.delete(f"{path}/{one['metadata']['name']}", propagationPolicy="Orphan")
        wait_until(partial(_is_empty, plane, path), path, within=60, pause=0.2)
    assert placed.backend.release(attempt.intent.placement) is Freed.UNDER_WAY
    wait_until(
        lambda: placed.backend.release(attempt.intent.placement) is Freed.DONE, placed.pods, within=60, pause=0.2
    )
    assert placed.pods() == []
    assert _is_empty(plane, paths["jobs"])


def test_a_job_whose_set_was_deleted_without_it_is_ended_although_it_has_no_pod_any_more(
    plane: ControlPlane | EmulatedPlane, namespace: str, placed: Placed
) -> None:
    attempt, jobs = placed.submit("v5e-8"), f"/apis/batch/v1/namespaces/{namespace}/jobs"
    [pod] = wait_until(placed.pods, "there is a pod", within=60, pause=0.2)
    plane.api.delete(
        f"{JOBSETS}/namespaces/{namespace}/jobsets/{attempt.intent.placement['name']}", propagationPolicy="Orphan"
    )
    plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}", grace=0)
    sets = f"{JOBSETS}/namespaces/{namespace}/jobsets"
    wait_until(lambda: not placed.pods() and _is_empty(plane, sets), "only the Job is left", within=60, pause=0.2)
    assert [left["job"] for left in placed.backend.leftovers()] == [attempt.job_id]
    assert placed.backend.release(attempt.intent.placement) is Freed.UNDER_WAY
    wait_until(lambda: placed.backend.release(attempt.intent.placement) is Freed.DONE, within=60, pause=0.2)
    assert _is_empty(plane, jobs)
    assert list(placed.backend.leftovers()) == []


def test_one_call_ends_the_pods_of_a_set_that_is_about_to_go_without_them(
    plane: ControlPlane | EmulatedPlane, namespace: str, placed: Placed
) -> None:
    """Its deletion is under way, so nobody asks again; and the cluster may take its time to part them."""
    attempt, jobs = placed.submit("v5e-8"), f"/apis/batch/v1/namespaces/{namespace}/jobs"
    wait_until(placed.pods, "there is a pod", within=60, pause=0.2)
    sets = f"{JOBSETS}/namespaces/{namespace}/jobsets"
    plane.api.delete(f"{sets}/{attempt.intent.placement['name']}", propagationPolicy="Orphan")
    assert placed.backend.release(attempt.intent.placement) is Freed.UNDER_WAY
    wait_until(lambda: _is_empty(plane, sets), "its set is gone", within=100, pause=0.2)
    wait_until(lambda: not placed.pods() and _is_empty(plane, jobs), "so are its Job and pod", within=30, pause=0.2)


@pytest.mark.parametrize("is_soon", [False, True], ids=["after its set", "before its set"])
def test_the_secret_of_a_set_that_was_deleted_without_it_goes_with_the_orphans_and_no_other_does(
    plane: ControlPlane | EmulatedPlane, namespace: str, placed: Placed, is_soon: bool
) -> None:
    """It has captured credentials, and nobody else knows its name."""
    secrets, sets = f"/api/v1/namespaces/{namespace}/secrets", f"{JOBSETS}/namespaces/{namespace}/jobsets"
    plane.api.create(secrets, {"metadata": {"name": "theirs"}, "stringData": {"key": "x"}})
    first, second = (placed.submit("v5e-8", number, captured={"TOKEN": "x"}) for number in (1, 2))
    wait_until(lambda: len(placed.pods()) == 2, "there are their pods", within=60, pause=0.2)
    names = [attempt.intent.placement["name"] for attempt in (first, second)]
    assert _names_in(plane, secrets) == {"theirs", *names}
    plane.api.delete(f"{sets}/{names[0]}", propagationPolicy="Orphan")
    if not is_soon:
        wait_until(lambda: _names_in(plane, sets) == {names[1]}, "its set is gone", within=100, pause=0.2)
    assert placed.backend.release(first.intent.placement) is Freed.UNDER_WAY
    wait_until(lambda: _names_in(plane, secrets) == {"theirs", names[1]}, "its Secret is gone", within=30, pause=0.2)
    wait_until(lambda: placed.backend.release(first.intent.placement) is Freed.DONE, within=100, pause=0.2)
    assert _names_in(plane, secrets) == {"theirs", names[1]}


def _is_refused(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except Refused as refused:
        return refused.code == 403
    return False


def _names_in(plane: ControlPlane | EmulatedPlane, path: str) -> set[str]:
    return {one["metadata"]["name"] for one in plane.api.get(path)["items"]}


def _is_empty(plane: ControlPlane | EmulatedPlane, path: str) -> bool:
    return not plane.api.get(path)["items"]


Four = tuple[Submission, list[Object]]


@pytest.fixture
def four(placed: Placed, namespace: str, nodes: NodeGroup, monkeypatch: pytest.MonkeyPatch) -> Four:
    """Return an attempt of four hosts, which run until somebody ends them, and its pods."""
    monkeypatch.setattr(boot, "LOADER", FOREVER)
    nodes.add(*tpu_pool(namespace, 4, topology="4x4"))
    return placed.submit("v5e-16"), placed.running(4)


@pytest.mark.parametrize("end", [KILLED, "delete"])
def test_a_pod_that_died_is_named_with_what_it_died_of(
    plane: ControlPlane | EmulatedPlane, namespace: str, nodes: NodeGroup, placed: Placed, four: Four, end: str
) -> None:
    """Also one that is gone: the rule for every exit code has its Job keep that."""
    attempt, pods = four
    if end == "delete":
        plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pods[1]['metadata']['name']}", grace=1)
    else:
        nodes.end(pods[1], end)
    found = placed.await_told(attempt, "failed with exit code 137", state=GONE)
    assert found.cause == wire.INFRASTRUCTURE
    assert pods[1]["metadata"]["name"] in found.message


def test_a_pod_that_is_gone_without_a_word_ends_no_other_and_is_not_replaced(
    plane: ControlPlane | EmulatedPlane, namespace: str, placed: Placed, four: Four
) -> None:
    """No rule matches, as there is no exit code: what becomes of the attempt is its lease's matter."""
    attempt, pods = four
    gone = pods[1]["metadata"]
    plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{gone['name']}", grace=0)
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def failed() -> bool:
        [job] = plane.api.get(jobs)["items"]
        return bool(job["status"].get("failedIndexes") == "1")

    wait_until(failed, lambda: plane.api.get(jobs)["items"][0]["status"], within=60, pause=0.2)
    assert {pod["metadata"]["uid"] for pod in placed.running(3)} == {
        pod["metadata"]["uid"] for pod in pods if pod["metadata"]["uid"] != gone["uid"]
    }
    found = placed.observed(attempt)
    assert "3 of 4 pods run" in found.message and not found.cause


def test_rows_tell_of_every_turn_in_the_life_of_sets(
    plane: ControlPlane, namespace: str, nodes: NodeGroup, placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that of one that runs nothing is read for its own sake: a row has to change with each turn."""
    monkeypatch.setattr(boot, "LOADER", FOREVER)
    monkeypatch.setattr(observer, "EXPLAINED_SECONDS", 3600.0)
    sets, pods = f"{JOBSETS}/namespaces/{namespace}/jobsets", f"/api/v1/namespaces/{namespace}/pods"
    first = placed.submit("v5e-8")
    second = placed.submit("v5e-8", 2)
    both = (first, second)

    def turned(*states: str) -> None:
        def seen() -> bool:
            found = [placed.observed(attempt).state for attempt in both]
            return found == list(states) and placed.is_seen_alike(*both) and placed.is_seen_alike(first)

        wait_until(seen, lambda: [placed.observed(attempt) for attempt in both], within=60, pause=0.1)

    def name(attempt: Submission) -> str:
        return str(attempt.intent.placement["name"])

    def pod_of(attempt: Submission) -> Object:
        return next(pod for pod in placed.pods() if pod["metadata"]["name"].startswith(name(attempt)))

    turned(QUEUED, QUEUED)
    nodes.add(*tpu_pool(namespace, 2, chips=8))
    turned(PRESENT, PRESENT)
    nodes.end(pod_of(first), KILLED)
    turned(GONE, PRESENT)
    plane.api.delete(f"{sets}/{name(first)}")
    turned(ABSENT, PRESENT)
    plane.api.patch(f"{sets}/{name(second)}", {"spec": {"suspend": True}})
    turned(ABSENT, QUEUED)
    plane.remove_pods(namespace)
    turned(ABSENT, QUEUED)
    plane.api.patch(f"{sets}/{name(second)}", {"spec": {"suspend": False}})
    turned(ABSENT, PRESENT)
    plane.api.delete(f"{pods}/{pod_of(second)['metadata']['name']}", grace=1)
    turned(ABSENT, GONE)


@only_real  # the emulated cluster serves the newest version alone
def test_why_a_queue_holds_an_attempt_back_is_told_alike_by_either_version_of_its_api(
    plane: ControlPlane, placed: Placed, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flavor = {"name": namespace, "resources": [{"name": "google.com/tpu", "nominalQuota": "4"}]}
    groups = [{"coveredResources": ["google.com/tpu"], "flavors": [flavor]}]
    spec = {"namespaceSelector": {}, "resourceGroups": groups}
    made: dict[str, dict[str, Any]] = {
        "resourceflavors": {"kind": "ResourceFlavor"},
        "clusterqueues": {"kind": "ClusterQueue", "spec": spec},
        f"namespaces/{namespace}/localqueues": {"kind": "LocalQueue", "spec": {"clusterQueue": namespace}},
    }
    path = "/apis/kueue.x-k8s.io/v1beta2"
    for kind, body in made.items():
        plane.api.create(f"{path}/{kind}", {"apiVersion": path[6:], "metadata": {"name": namespace}, **body})
    try:
        attempt = placed.submit("v5e-8", cloud=Kubernetes(queue=namespace))
        newest = placed.await_told(attempt, f"in the queue {namespace}, place 1 in it", "never has so much", state=GONE)
        monkeypatch.setattr(kueue, "VERSIONS", ("v1beta1",))
        [older] = placed.beside.observe([attempt.intent.placement])
        assert (older.state, older.message) == (newest.state, newest.message)
    finally:
        plane.api.delete(f"{JOBSETS}/namespaces/{namespace}/jobsets/{attempt.intent.placement['name']}")
        plane.api.delete(f"{path}/clusterqueues/{namespace}")
        plane.api.delete(f"{path}/resourceflavors/{namespace}")
