"""Jobs that wait their turn, in a queue of Kueue or outside a ResourceQuota that has room for half of them, and the
places that are tried in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobCancelled, JobTimedOut
from kinetic_orchestration.jobs.following import held_time
from kinetic_orchestration.jobs.watching.look import look
from kinetic_orchestration.plan.values import QUEUED, Event, Freed
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.api import client
from kinetic_orchestration.platforms.kubernetes.observing import waiting
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.protocol import wire
from tests.end_to_end.kubernetes.between import Between
from tests.end_to_end.kubernetes.cases import Cluster, condition, run, verdict_of, wait_for_verdict
from tests.support.jobs import WITHIN, changes, placements, told, wait_running
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(4)]

Queued = Callable[..., kinetic.Kubernetes]


def suspended(cluster: Cluster, name: str) -> bool:
    (found,) = (one for one in cluster.sets() if one["metadata"]["name"] == name)
    return bool(found["spec"].get("suspend"))


def created(cluster: Cluster) -> set[str]:
    """The names of all pods that there were."""
    said = (event["message"] for event in cluster.list("events") if event["reason"] == "SuccessfulCreate")
    return {message.removeprefix("Created pod: ") for message in said if message.startswith("Created pod: ")}


def test_a_job_waits_its_turn_with_its_place_in_the_queue_and_begins_when_the_other_ends(
    cluster: Cluster, jobs: Any, tmp_path: Path, queue: Queued
) -> None:
    first = run(jobs.until, str(tmp_path / "go"), cloud=queue())
    wait_running(first)
    second = run(jobs.until, str(tmp_path / "go"), cloud=queue())
    wait_until(lambda: "queue, place 1 in it" in second.peek().said, lambda: f"its place: {second.peek()}", pause=0.2)
    seen = second.peek()
    assert seen.phase == QUEUED
    assert "insufficient unused quota for google.com/tpu" in seen.said
    assert "other jobs hold what the queue has of google.com/tpu" in seen.said
    assert not cluster.pods(second)
    (tmp_path / "go").touch()
    assert first.result(timeout=WITHIN) == 1
    assert second.result(timeout=WITHIN) == 1


@pytest.mark.parametrize("refused", [0, 6])
def test_queues_are_tried_in_turn_and_each_is_left_before_the_next_is_asked(
    cluster: Cluster,
    between: Between,
    jobs: Any,
    tmp_path: Path,
    queue: Queued,
    second: str,
    monkeypatch: pytest.MonkeyPatch,
    refused: int,
) -> None:
    """A place whose release is refused may still get nodes, beside those of the next one: a minute is waited for it."""
    monkeypatch.setattr(client, "PAUSES", (0.1,))
    between.refuse("DELETE", "/jobsets/", 503, times=refused)
    monkeypatch.setenv("KINETIC_ZONE_PATIENCE", "10s")  # in which, in the second one, the pods have come to run
    other = run(jobs.until, str(tmp_path / "go"), cloud=queue())
    wait_running(other)
    cluster.pools("another")
    there: list[list[str]] = []

    def look(method: str, path: str, body: Any) -> None:
        if method == "POST" and path.endswith("/jobsets"):
            there.append([one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for one in cluster.sets()])

    job = run(jobs.attempt, cloud=kinetic.Kubernetes(queue=["queue", second]))
    between.before = look
    events = told(job)
    first, last, *_ = placements(job)  # more on a machine that is very busy
    assert (first["queue"], last["queue"]) == ("queue", second)
    assert first["name"] != last["name"]
    assert there
    assert {tuple(queues) for queues in there} == {("queue",)}  # that of the other job, which runs
    verdict = verdict_of(job)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (wire.CLOSED, wire.STOCKOUT)
    assert "nothing became free within 10 s" in verdict.reason
    assert "other jobs hold what the queue has of google.com/tpu" in verdict.reason
    assert job.result(timeout=WITHIN) == 1
    assert not [said for said in changes(events) if "failed" in said]
    assert any("could not be withdrawn" in said for said in changes(events)) == bool(refused)
    (tmp_path / "go").touch()
    assert other.result(timeout=WITHIN) == 1


def test_a_job_that_waits_in_a_queue_is_cancelled_and_leaves_no_workload(
    cluster: Cluster, jobs: Any, tmp_path: Path, queue: Queued
) -> None:
    first = run(jobs.until, str(tmp_path / "go"), cloud=queue())
    wait_running(first)
    second = run(jobs.until, str(tmp_path / "go"), cloud=queue())
    wait_until(lambda: len(cluster.workloads()) == 2, "its workload", pause=0.1)
    second.cancel("enough")
    with pytest.raises(JobCancelled):
        second.result(timeout=WITHIN)
    wait_until(lambda: len(cluster.workloads()) == 1, "no workload of the second", pause=0.1)
    (tmp_path / "go").touch()
    assert first.result(timeout=WITHIN) == 1


def test_a_job_that_a_higher_priority_takes_out_waits_as_its_next_attempt(
    cluster: Cluster, jobs: Any, tmp_path: Path, queue: Queued
) -> None:
    low = run(jobs.until, str(tmp_path / "go"), cloud=queue(), retry=kinetic.Retry(infra=0, preemption=1))
    wait_running(low)
    heard: list[Event] = []
    reader = threading.Thread(target=lambda: low.follow(heard.append, timeout=WITHIN))
    reader.start()
    high = run(jobs.until, str(tmp_path / "high"), cloud=queue("high"))
    first = wait_for_verdict(low)
    assert (first.kind, first.cause) == (wire.ABORTED, wire.PREEMPTION), first.reason
    wait_running(high)
    wait_until(lambda: "place 1 in it" in low.peek().said, lambda: f"its place: {low.peek()}", pause=0.2)
    assert low.peek().attempt == 2
    (tmp_path / "high").touch()
    assert high.result(timeout=WITHIN) == 1
    (tmp_path / "go").touch()
    reader.join(WITHIN)
    assert low.result(timeout=WITHIN) == 2
    (resumed,) = (said for said in changes(heard) if said.startswith("resuming"))
    assert (
        f"it was evicted (Preempted to accommodate a workload of the cluster queue {cluster.namespace} due" in resumed
    )


def test_pods_of_an_attempt_that_kueue_admits_once_more_find_its_verdict_and_run_nothing(
    cluster: Cluster, jobs: Any, tmp_path: Path, queue: Queued
) -> None:
    """The client was away all the time: nobody has released the set."""
    marks = tmp_path / "marks"
    low = run(jobs.marks_and_waits, str(marks), str(tmp_path / "never"), cloud=queue())
    wait_running(low)
    before = created(cluster)
    high = run(jobs.until, str(tmp_path / "high"), cloud=queue("high"))
    wait_running(high)
    (name,) = {placement["name"] for placement in placements(low)}
    assert suspended(cluster, name)
    assert len(marks.read_text().split()) == 2
    (tmp_path / "high").touch()
    assert high.result(timeout=WITHIN) == 1

    told = set()  # JobSet removes a Job with its pods as soon as that is about to fail

    def ended() -> bool:
        (found,) = cluster.sets()
        for job in cluster.jobs():
            told.update(condition(job, kind).get("message", "") for kind in ("FailureTarget", "Failed"))
        return condition(found, "Failed").get("status") == "True"

    wait_until(ended, lambda: f"its set has failed: {cluster.sets()}", pause=0.02)
    assert [pod for pod in created(cluster) - before if pod.startswith(name)], (
        "it was admitted once more, with new pods"
    )
    assert any("failed with exit code 66 matching FailJob rule" in message for message in told), told
    assert len(marks.read_text().split()) == 2
    low.cancel("enough")
    with pytest.raises(JobCancelled):
        low.result(timeout=WITHIN)


def test_pods_that_are_started_after_the_deadline_of_their_attempt_end_themselves(
    cluster: Cluster, jobs: Any, tmp_path: Path, queue: Queued, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a queue no time counts for Kubernetes, and no client is there."""
    first = run(jobs.until, str(tmp_path / "go"), cloud=queue())
    wait_running(first)
    monkeypatch.setattr(held_time, "DEADLINE_ALLOWANCE", 10.0)
    limits = kinetic.Limits(provision=1.0, run=1.0)
    second = run(jobs.leaves_mark, str(tmp_path / "marks"), cloud=queue(), limits=limits)
    store, (placement,) = second._job.store, placements(second)
    intent = look(store, second._job.backend, second.job_id, 1, second._job.policy).intent
    assert intent is not None
    wait_until(lambda: store.now() > intent.deadline, "the deadline", pause=0.1)
    (tmp_path / "go").touch()
    assert first.result(timeout=WITHIN) == 1
    late = wait_for_verdict(second)
    assert (late.kind, late.cause) == (wire.ABORTED, wire.DEADLINE)
    assert "the attempt's deadline passed before this pod was started" in late.reason
    wait_until(lambda: all(condition(one, "Failed") for one in cluster.jobs()), "its Job's end", pause=0.1)
    assert "failed with exit code 68" in condition(cluster.jobs()[0], "Failed")["message"]
    assert not (tmp_path / "marks").exists()
    assert placement["name"] == cluster.sets()[0]["metadata"]["name"]
    with pytest.raises(JobTimedOut):
        second.result(timeout=WITHIN)


def test_half_a_slice_is_let_go_and_asked_for_again_until_the_namespaces_quota_has_room_for_all(
    cluster: Cluster, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would hold its chips for as long as the others get none."""
    monkeypatch.setattr(waiting, "_FAILED_CREATE", tuple(row._replace(patience=2.0) for row in waiting._FAILED_CREATE))
    monkeypatch.setattr(places, "FIRST_WAIT", 4.0)
    quota = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    hard = {"requests.google.com/tpu": "4"}
    cluster.api.create(quota, {"metadata": {"name": "chips"}, "spec": {"hard": hard}})
    cluster.pools()
    job = run(jobs.attempt)
    wait_until(lambda: job.status() and verdict_of(job), lambda: f"its first verdict: {job.peek()}", pause=0.2)
    first = verdict_of(job)
    assert first is not None
    assert (first.kind, first.cause) == (wire.CLOSED, wire.QUOTA)
    assert "the ResourceQuota chips of the namespace leaves no room" in first.reason
    wait_until(lambda: job.status() and not cluster.list("pods"), "its pods go", pause=0.2)
    cluster.api.patch(f"{quota}/chips", {"spec": {"hard": {"requests.google.com/tpu": "8"}}})
    assert job.result(timeout=WITHIN) == 1
    assert len(placements(job)) >= 2
    assert job._job.backend.release(placements(job)[0]) is Freed.DONE


@pytest.fixture
def other_namespace(plane: ControlPlane, cluster: Cluster) -> Iterator[str]:
    created = plane.api.create("/api/v1/namespaces", {"metadata": {"generateName": "test-"}})
    name = str(created["metadata"]["name"])
    plane.await_account(name)
    yield name
    plane.api.delete(f"/api/v1/namespaces/{name}")
    plane.remove_pods(name)


def test_a_namespace_without_quota_is_left_for_the_next_one(
    cluster: Cluster, jobs: Any, other_namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_FAILED_CREATE", tuple(row._replace(patience=1.0) for row in waiting._FAILED_CREATE))
    quota = {"metadata": {"name": "chips"}, "spec": {"hard": {"requests.google.com/tpu": "0"}}}
    cluster.api.create(f"/api/v1/namespaces/{cluster.namespace}/resourcequotas", quota)
    cluster.pools()
    job = run(jobs.attempt, cloud=kinetic.Kubernetes(namespaces=[cluster.namespace, other_namespace]))
    assert job.result(timeout=WITHIN) == 1
    first, last = placements(job)
    assert first["zone"].rpartition("/")[2] == cluster.namespace
    assert last["zone"].rpartition("/")[2] == other_namespace
    verdict = verdict_of(job)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (wire.CLOSED, wire.QUOTA)
    left = f"/apis/{manifest.API}/namespaces/{other_namespace}/jobsets"
    wait_until(lambda: not cluster.api.get(left)["items"], "nothing left in the other namespace", pause=0.1)


def test_a_cluster_without_nodes_is_left_for_the_next_one_in_which_nothing_is_asked_for_before(
    cluster: Cluster, jobs: Any, elsewhere: tuple[Cluster, Between], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ZONE_PATIENCE", "10s")
    other, between = elsewhere
    other.pools()
    left: list[list[str]] = []  # in the first cluster, whenever the other one is asked for a set

    def look(method: str, path: str, body: Any) -> None:
        if method == "POST" and path.endswith("/jobsets"):
            left.append([one["metadata"]["name"] for one in cluster.sets()])

    between.before = look
    job = run(jobs.attempt, cloud=kinetic.Kubernetes(clusters=["tests", "elsewhere"]))
    wait_until(lambda: cluster.list("pods"), "a pod of it waits in the first cluster", pause=0.05)
    assert not other.sets()
    assert job.result(timeout=WITHIN) == 1
    first, last = placements(job)
    assert (first["zone"], last["zone"]) == (f"tests/{cluster.namespace}", "elsewhere/default")
    assert first["cluster"] != last["cluster"]
    assert left
    assert not any(left)
    verdict = verdict_of(job)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (wire.CLOSED, wire.STOCKOUT)
    assert "nothing became free within 10 s" in verdict.reason
    for one in (cluster, other):
        one.wait_until_empty()
