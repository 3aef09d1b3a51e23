"""The autoscaler's decisions: which nodes it makes for which pods, and its words where it makes none."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.platforms.kubernetes.observing import waiting
from kinetic_orchestration.platforms.kubernetes.observing.waiting import Wanted
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing.kubernetes.api import kinds
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.api.objects import with_condition, with_spec
from kinetic_orchestration.testing.kubernetes.api.store import Store
from kinetic_orchestration.testing.kubernetes.controllers.changes import Join, Leave, Tell, View
from kinetic_orchestration.testing.kubernetes.controllers.scaling import POOL, QUOTA, STOCKOUT, Autoscaler, NodePool

pytestmark = pytest.mark.fast

SELECTOR = {"cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice", "cloud.google.com/gke-tpu-topology": "2x2x2"}
CHIPS = {"google.com/tpu": "4"}
SLICE = NodePool("slice", SELECTOR, allocatable=CHIPS, hosts=2, most=2)


class Scene:
    """Pods that have no node, and the autoscaler that looks at them; the time is the test's."""

    def __init__(self, *pools: NodePool, **options: Any) -> None:
        self.store = Store()
        self.scaler = Autoscaler({}, provision=1.0, idle=10.0, **options)
        self.scaler.pools = {pool.name: pool for pool in pools}
        self.now = 1000.0

    def pod(self, name: str = "a", selector: dict[str, str] = SELECTOR, chips: str = "4") -> Object:
        container = {"name": "host", "resources": {"requests": {"google.com/tpu": chips}}}
        spec = {"nodeSelector": selector, "containers": [container], "tolerations": [{"operator": "Exists"}]}
        found = {"metadata": {"name": name, "namespace": "n"}, "spec": spec, "status": {"phase": "Pending"}}
        stuck = with_condition(found, "PodScheduled", "False", "Unschedulable", "0/0 nodes are available")
        return self.store.create(kinds.PODS, stuck)

    def step(self, seconds: float = 0.0) -> list[Any]:
        """Return what it does after so many seconds; nodes come and go as it says."""
        self.now += seconds
        changes = list(self.scaler.step(View(self.store, self.now)))
        for change in changes:
            if isinstance(change, Join):
                labels = dict(change.node.labels)
                node = {"metadata": {"name": change.node.name, "labels": labels}, "spec": {}, "status": {}}
                self.store.create(kinds.NODES, node)
            elif isinstance(change, Leave):
                self.store.remove(kinds.NODES, {"metadata": {"name": change.name}})
        return changes

    def said(self, seconds: float = 0.0) -> list[tuple[str, str]]:
        return [(change.reason, change.message) for change in self.step(seconds) if isinstance(change, Tell)]


def joined(changes: list[Any]) -> list[str]:
    return [change.node.name for change in changes if isinstance(change, Join)]


def why(*said: tuple[str, str]) -> waiting.Why | None:
    """Return what a submitter makes of it."""
    about = {"kind": "Pod", "name": "a"}
    events = [{"reason": reason, "message": message, "involvedObject": about} for reason, message in said]
    pod = with_condition({"metadata": {"name": "a"}}, "PodScheduled", "False", "Unschedulable", "no node")
    return waiting.of_autoscaler([pod], events, Wanted())


def test_a_slice_comes_as_a_whole_once_a_pod_asks_for_it_and_goes_when_it_is_idle() -> None:
    scene = Scene(SLICE)
    pod = scene.pod()
    [(reason, message)] = scene.said()
    assert (reason, "0->2 (max: 2)" in message) == ("TriggeredScaleUp", True)
    assert scene.said() == []  # once
    assert joined(scene.step(1.0)) == ["slice-0", "slice-1"]
    scene.store.replace(kinds.PODS, with_spec(pod, nodeName="slice-0"))
    scene.store.remove(kinds.PODS, pod)
    assert scene.step(5.0) == []
    assert {change.name for change in scene.step(20.0)} == {"slice-0", "slice-1"}


@pytest.mark.parametrize(
    ("lacks", "cause"), [(STOCKOUT, wire.STOCKOUT), (QUOTA, wire.QUOTA)], ids=["stockout", "quota"]
)
def test_machines_that_cannot_be_had_are_told_and_asked_for_again_later(lacks: str, cause: str) -> None:
    scene = Scene(SLICE)
    scene.scaler.lacks["slice"] = lacks
    scene.pod()
    scene.step()
    failed = scene.said(1.0)
    risk = "Pod is at risk of not being scheduled."
    words = f"Node scale up in zones us-central1-a associated with this pod failed: {lacks}. {risk}"
    assert failed[0] == ("FailedScaleUp", words)
    told = why(failed[0])
    assert told is not None and told.cause == cause
    assert failed[1:] == [("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 in backoff after failed scale-up")]
    scene.scaler.lacks.clear()
    assert joined(scene.step(1.0)) == []
    scene.scaler.forgive()
    scene.step()
    assert joined(scene.step(1.0)) == ["slice-0", "slice-1"]


def test_a_pool_that_is_full_and_one_that_does_not_fit_are_told_and_known_to_submitters() -> None:
    other = NodePool("other", {"colour": "red"}, allocatable=CHIPS)
    small = NodePool("small", SELECTOR, allocatable={"google.com/tpu": "1"})
    scene = Scene(SLICE, other, small)
    scene.pod("b")
    scene.step()
    scene.step(1.0)
    scene.store.remove(kinds.PODS, {"metadata": {"name": "b", "namespace": "n"}})
    scene.pod("a")
    [said] = scene.said()
    full, elsewhere = "1 max node group size reached", "1 node(s) didn't match Pod's node affinity/selector"
    words = f"pod didn't trigger scale-up: 1 Insufficient google.com/tpu, {full}, {elsewhere}"
    assert said == ("NotTriggerScaleUp", words)
    told = why(said)
    assert told is not None and "as large as it may be" in told.message


def test_a_pool_is_made_for_whatever_a_pod_asks_for_where_that_is_on() -> None:
    scene = Scene(provisions=True)
    scene.pod()
    scene.step()
    [pool] = scene.scaler.pools.values()
    assert (pool.hosts, pool.most, dict(pool.labels)) == (2, 2, SELECTOR)  # eight chips, four a host
    scene.step()
    assert len(joined(scene.step(1.0))) == 2
    scene.pod("follower", {**SELECTOR, POOL: "gone"})
    scene.step()
    assert len(scene.scaler.pools) == 1  # it follows a host whose pool is gone


def test_a_pool_that_was_made_for_a_pod_goes_once_it_has_had_no_nodes_for_a_while_and_nothing_is_kept_of_either() -> (
    None
):
    scene = Scene(provisions=True)
    fresh = {name: value for name, value in vars(scene.scaler).items() if isinstance(value, dict)}
    pod = scene.pod()
    scene.step()
    scene.step()
    assert len(joined(scene.step(1.0))) == 2
    scene.store.remove(kinds.PODS, pod)
    scene.step(9.0)
    assert scene.scaler.pools
    assert len(scene.step(20.0)) == 2
    scene.step(5.0)
    assert scene.scaler.pools
    scene.step(20.0)
    assert {name: value for name, value in vars(scene.scaler).items() if isinstance(value, dict)} == fresh
