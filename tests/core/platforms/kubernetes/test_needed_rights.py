"""No right of the printed Role is superfluous: without it, and with all others, something fails that the whole Role permits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.values import UNKNOWN, Freed, Observation, Plan
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.kubernetes import rights
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.kubernetes.observing import observer
from kinetic_orchestration.platforms.kubernetes.rights import Right
from kinetic_orchestration.platforms.shared.findings import OK
from tests.core.platforms.kubernetes.attempts import CREATED, attempt_of, plan_of
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import on_both
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, on_both(pytest.mark.turn(3))]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
JOBSETS, JOBS = "/apis/jobset.x-k8s.io/v1alpha2", "/apis/batch/v1"
ALL = rights.of(secrets=True, queue=True)
ADMIN, WHOLE, LACKING = "admin", "whole", "lacking"


class Submitters:
    """A namespace, and who submits there: contexts of one kubeconfig."""

    def __init__(self, plane: ControlPlane | EmulatedPlane, namespace: str, folder: Path) -> None:
        self.plane, self.api, self.namespace = plane, plane.api, namespace
        self._folder = folder
        self._files: list[str] = []
        self._backends: dict[str, KubernetesBackend] = {}
        self._add(ADMIN, plane.kubeconfig)

    def add(self, user: str, granted: Sequence[Right]) -> None:
        """Have a user with these rights."""
        self._add(user, self.plane.user_kubeconfig(user))
        role, binding = rights.role(granted, self.namespace, f"user:{user}")
        metadata = {"name": user, "namespace": self.namespace}
        reference = {**binding["roleRef"], "name": user}
        self.api.create(f"{RBAC}/namespaces/{self.namespace}/roles", {**role, "metadata": metadata})
        bound = {**binding, "metadata": metadata, "roleRef": reference}
        self.api.create(f"{RBAC}/namespaces/{self.namespace}/rolebindings", bound)
        asked = {"apiVersion": REVIEWS[6:], "kind": "SelfSubjectRulesReview", "spec": {"namespace": self.namespace}}
        own = Api(self.plane.user_kubeconfig(user))

        def is_known() -> bool:
            rules = own.create(f"{REVIEWS}/selfsubjectrulesreviews", asked)["status"]["resourceRules"]
            return all(rights.is_granted(right, rules) for right in granted)

        wait_until(is_known, f"the server knows the rights of {user}", pause=0.05)

    def _add(self, user: str, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text(encoding="utf-8"))
        for kind in ("clusters", "contexts", "users"):
            config[kind][0]["name"] = user
        config["contexts"][0]["context"] = {"cluster": user, "user": user, "namespace": self.namespace}
        path = self._folder / f"kubeconfig-{user}"
        path.write_text(json.dumps({**config, "current-context": user}), encoding="utf-8")
        self._files.append(str(path))
        settings = Settings(
            home=Path("/nowhere"), store="gs://bucket/kinetic", deployment="Production EU", backend="kubernetes"
        )
        self._backends[user] = KubernetesBackend(settings, KubeconfigClusters())

    @property
    def kubeconfig(self) -> str:
        return os.pathsep.join(self._files)

    # What a user does

    def plan(self, user: str, **options: Any) -> Plan:
        return plan_of("v5e-8", zone=f"{user}/{self.namespace}", cloud=Kubernetes(**options))

    def attempt(self, user: str, **more: Any) -> Submission:
        options = more.pop("options", {})
        return attempt_of(self.plan(user, **options), **more)

    def submit(self, user: str, **more: Any) -> bool:
        return self._backends[user].submit(self.attempt(user, **more)) == ""

    def observe(self, user: str) -> Observation:
        [seen] = self._backends[user].observe([self.attempt(user).intent.placement])
        return seen

    def release(self, user: str, number: int = 1) -> bool:
        placement = self.attempt(user, number=number).intent.placement
        return self._backends[user].release(placement) is not Freed.REFUSED

    def sees_queue(self, user: str) -> bool:
        found = self._backends[user].examine(self.plan(user, queue="queue"))
        return next(one for one in found if one.name == "queue").state == OK

    # What happens there

    def await_empty(self, api: str, kind: str, *, is_empty: bool = True) -> None:
        path = f"{api}/namespaces/{self.namespace}/{kind}"
        wait_until(lambda: bool(self.api.get(path)["items"]) is not is_empty, kind, pause=0.05)

    def orphan(self, api: str, kind: str) -> None:
        """Delete the one object of a kind without what it has made."""
        path = f"{api}/namespaces/{self.namespace}/{kind}"
        [one] = self.api.get(path)["items"]
        self.api.delete(f"{path}/{one['metadata']['name']}", propagationPolicy="Orphan")
        self.await_empty(api, kind)

    def close(self) -> None:
        for backend in self._backends.values():
            for api in backend._apis.values():
                api.close()


@pytest.fixture
def submitters(
    plane: ControlPlane | EmulatedPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Submitters]:
    monkeypatch.setattr(observer, "EXPLAINED_SECONDS", 0.0)
    found = Submitters(plane, namespace, tmp_path)
    yield found
    found.close()


Works = Callable[[str], bool]  # if it works for a user


def requests(it: Submitters) -> Works:
    return it.submit


def requests_with_a_secret(it: Submitters) -> Works:
    return lambda user: it.submit(user, secrets={"TOKEN": "x"})


def adopts(it: Submitters) -> Works:
    """Finds what another process has requested for the attempt."""
    it.submit(ADMIN)
    return it.submit


def releases(it: Submitters) -> Works:
    it.submit(ADMIN)
    return it.release


def observes(it: Submitters) -> Works:
    it.submit(ADMIN)
    return lambda user: it.observe(user).state != UNKNOWN


def hears(words: str, **more: Any) -> Callable[[Submitters], Works]:
    """Is told these words of an attempt, which the administrator is told first."""

    def scenario(it: Submitters) -> Works:
        it.submit(ADMIN, **more)
        wait_until(lambda: words in it.observe(ADMIN).message, lambda: it.observe(ADMIN), pause=0.1)
        return lambda user: words in it.observe(user).message

    return scenario


def ends_orphans(*orphaned: tuple[str, str]) -> Callable[[Submitters], Works]:
    """Releases what is left of a set that was deleted without its Job, or of both that were deleted without its pods."""

    def scenario(it: Submitters) -> Works:
        it.submit(ADMIN)
        it.await_empty("/api/v1", "pods", is_empty=False)
        for api, kind in orphaned:
            it.orphan(api, kind)
        return it.release

    return scenario


def ends_an_orphaned_secret(it: Submitters) -> Works:
    """Return a trial of each user on an attempt of its own, as the Job by which it is found is ended in any case."""

    def works(user: str) -> bool:
        number = [LACKING, WHOLE].index(user) + 1
        it.submit(ADMIN, number=number, secrets={"TOKEN": "x"})
        it.await_empty(JOBS, "jobs", is_empty=False)
        it.orphan(JOBSETS, "jobsets")
        assert it.release(user, number)
        it.await_empty(JOBS, "jobs")
        left = [one["metadata"]["name"] for one in it.api.get(f"/api/v1/namespaces/{it.namespace}/secrets")["items"]]
        return it.attempt(user, number=number).intent.placement["name"] not in left

    return works


def sees_the_queue(it: Submitters) -> Works:
    wait_until(lambda: it.sees_queue(ADMIN), "the queue is active", pause=0.1)
    return it.sees_queue


QUEUED = {"options": {"queue": "queue"}}
LATE = {"deadline": CREATED + 1}
LOST = {"options": {"service_account": "nobody"}}
NEEDED: dict[str, Callable[[Submitters], Works]] = {
    "create jobsets.jobset.x-k8s.io": requests,
    "delete jobsets.jobset.x-k8s.io": releases,
    "get jobsets.jobset.x-k8s.io": adopts,
    "list jobsets.jobset.x-k8s.io": observes,
    "list pods": observes,
    "list jobs.batch": hears("Job was active longer than specified deadline", **LATE),
    "delete jobs.batch": ends_orphans((JOBSETS, "jobsets")),
    "delete pods": ends_orphans((JOBSETS, "jobsets"), (JOBS, "jobs")),
    "list events": hears("has no service account nobody", **LOST),
    "create secrets": requests_with_a_secret,
    "delete secrets": ends_an_orphaned_secret,
    "get localqueues.kueue.x-k8s.io": sees_the_queue,
    "list workloads.kueue.x-k8s.io": hears("insufficient quota for google.com/tpu", **QUEUED),
    "get localqueues/pendingworkloads.visibility.kueue.x-k8s.io": hears("place 1 in it", **QUEUED),
}


@pytest.fixture
def queue(plane: ControlPlane | EmulatedPlane, namespace: str) -> Iterator[None]:
    """A queue that has too little quota for any attempt."""
    flavor = {"name": namespace, "resources": [{"name": "google.com/tpu", "nominalQuota": "4"}]}
    groups = [{"coveredResources": ["google.com/tpu"], "flavors": [flavor]}]
    made: dict[str, dict[str, Any]] = {
        "resourceflavors": {"kind": "ResourceFlavor"},
        "clusterqueues": {"kind": "ClusterQueue", "spec": {"namespaceSelector": {}, "resourceGroups": groups}},
    }
    for kind, body in made.items():
        plane.api.create(f"{KUEUE}/{kind}", {"apiVersion": KUEUE[6:], "metadata": {"name": namespace}, **body})
    local = {"kind": "LocalQueue", "metadata": {"name": "queue"}, "spec": {"clusterQueue": namespace}}
    plane.api.create(f"{KUEUE}/namespaces/{namespace}/localqueues", {"apiVersion": KUEUE[6:], **local})
    yield
    for kind in reversed(made):
        plane.api.delete(f"{KUEUE}/{kind}/{namespace}")


@pytest.mark.parametrize("right", ALL, ids=str)
def test_without_one_right_something_fails_that_works_with_all(
    submitters: Submitters, queue: None, monkeypatch: pytest.MonkeyPatch, right: Right
) -> None:
    submitters.add(WHOLE, ALL)
    submitters.add(LACKING, [other for other in ALL if other != right])
    monkeypatch.setenv("KUBECONFIG", submitters.kubeconfig)
    works = NEEDED[str(right)](submitters)

    def tried(user: str) -> bool:
        try:
            return works(user)
        except KineticError:
            return False

    assert not tried(LACKING)
    assert works(WHOLE)
