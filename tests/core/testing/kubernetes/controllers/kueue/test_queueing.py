"""Kueue's decisions in the emulated cluster: who gets quota, and who gives it up."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import holds, name_of
from kinetic_orchestration.testing.kubernetes.api.rules import deletion
from kinetic_orchestration.testing.kubernetes.api.store import Store
from kinetic_orchestration.testing.kubernetes.controllers.changes import Create, Delete, Replace, View
from kinetic_orchestration.testing.kubernetes.controllers.kueue import queueing

pytestmark = pytest.mark.fast

CHIPS = "google.com/tpu"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"


class Scene:
    """One queue of eight chips, and sets that ask for four each."""

    def __init__(self) -> None:
        self.store = Store()
        self.now = 1000.0
        flavor = {"name": "any", "resources": [{"name": CHIPS, "nominalQuota": "8"}]}
        group = {"coveredResources": [CHIPS], "flavors": [flavor]}
        preemption = {"withinClusterQueue": "LowerPriority"}
        spec = {"resourceGroups": [group], "namespaceSelector": {}, "preemption": preemption}
        self.store.create(kinds.NAMESPACES, {"metadata": {"name": "n"}})
        self.store.create(kinds.FLAVORS, {"metadata": {"name": "any"}, "spec": {}})
        self.store.create(kinds.CLUSTER_QUEUES, {"metadata": {"name": "all"}, "spec": spec})
        self.store.create(
            kinds.LOCAL_QUEUES, {"metadata": {"name": "queue", "namespace": "n"}, "spec": {"clusterQueue": "all"}}
        )
        for name, value in (("low", 0), ("middle", 10), ("high", 20)):
            self.store.create(kinds.PRIORITIES, {"metadata": {"name": name}, "value": value})

    def ask(self, name: str, priority: str, chips: str = "4") -> None:
        container = {"name": "host", "resources": {"requests": {CHIPS: chips}}}
        job = {"parallelism": 1, "completions": 1, "template": {"spec": {"containers": [container]}}}
        labels = {QUEUE: "queue", PRIORITY: priority}
        spec = {"suspend": True, "replicatedJobs": [{"name": "s", "replicas": 1, "template": {"spec": job}}]}
        self.store.create(kinds.JOBSETS, {"metadata": {"name": name, "namespace": "n", "labels": labels}, "spec": spec})

    def step(self) -> None:
        self.now += 1.0
        for change in list(queueing.step(View(self.store, self.now))):
            if isinstance(change, Create):
                self.store.create(change.kind, change.found)
            elif isinstance(change, Replace):
                self.store.replace(change.kind, change.found)
            elif isinstance(change, Delete):
                self.store.remove(change.kind, change.found)

    def workloads(self) -> list[Object]:
        return View(self.store, self.now).all(kinds.WORKLOADS, "n")

    def with_quota(self) -> set[str]:
        return {self.set_of(one) for one in self.workloads() if holds(one, "QuotaReserved")}

    def evicted(self) -> set[str]:
        return {self.set_of(one) for one in self.workloads() if holds(one, "Evicted")}

    def set_of(self, workload: Any) -> str:
        return name_of(workload).removeprefix("jobset-").rpartition("-")[0]


def test_the_quota_of_who_is_preempted_is_nobody_elses_until_its_pods_are_gone() -> None:
    scene = Scene()
    scene.ask("first", "low")
    scene.ask("second", "low")
    for _ in range(3):
        scene.step()
    assert scene.with_quota() == {"first", "second"}
    scene.ask("urgent", "high")
    scene.ask("later", "low")
    for _ in range(2):  # its workload, and its turn
        scene.step()
        assert scene.with_quota() == {"first", "second"}
    assert len(scene.evicted()) == 1


def test_the_quota_of_a_set_that_is_deleted_without_its_jobs_is_free() -> None:
    """`kubectl delete jobset --cascade=orphan`: nothing names it as its owner any more."""
    scene = Scene()
    scene.ask("first", "middle", chips="8")
    scene.ask("second", "low", chips="8")
    for _ in range(3):
        scene.step()
    assert scene.with_quota() == {"first"}
    first = scene.store.get(kinds.JOBSETS, "n", "first")
    assert first is not None
    deletion.delete(scene.store, kinds.JOBSETS, first, propagation="Orphan")
    for _ in range(3):
        scene.step()
    assert [scene.set_of(one) for one in scene.workloads()] == ["second"]
    assert scene.with_quota() == {"second"}


def test_a_queue_says_what_its_jobs_have_of_each_flavor() -> None:
    scene = Scene()

    def told() -> Any:
        [local] = View(scene.store, scene.now).all(kinds.LOCAL_QUEUES)
        return local["status"]["flavorsReservation"]

    scene.step()
    assert told() == [{"name": "any", "resources": [{"name": CHIPS, "total": "0"}]}]
    scene.ask("first", "low")
    for _ in range(3):
        scene.step()
    assert told() == [{"name": "any", "resources": [{"name": CHIPS, "total": "4"}]}]
