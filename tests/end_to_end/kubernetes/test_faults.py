"""Faults of the list that other platforms are tested with, as far as a cluster has them: the rest of those that the
other modules here have no test for. docs/develop/add-a-fault.md has the whole list."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.errors import JobError, JobTimedOut
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions, follower
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import Freed
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.api import client
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing.kubernetes.pods.nodes import KILLED
from tests.end_to_end.kubernetes.between import ANSWER, REQUEST, Between
from tests.end_to_end.kubernetes.cases import NONE, ONE_HOST, Cluster, condition, run, verdict_of, wait_for_verdict
from tests.support.jobs import WITHIN, beats, lines, placements, told, wait_running
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(3)]

PATIENT = "attempt_rules.SIBLING_GRACE = 20.0"
ONE_PREEMPTION = kinetic.Retry(infra=0, preemption=1)
ONE_LOSS = kinetic.Retry(infra=1, preemption=0)


def set_of(cluster: Cluster, job: Any, attempt: int = 1) -> str:
    name = placements(job)[attempt - 1]["name"]
    return f"/apis/{manifest.API}/namespaces/{cluster.namespace}/jobsets/{name}"


# ---- F9, F10: a queue's end --------------------------------------------------------------------------------------


def test_f09_a_job_that_gets_no_nodes_within_its_limit_ends_and_leaves_no_set(cluster: Cluster, jobs: Any) -> None:
    job = run(jobs.attempt, accelerator=ONE_HOST, limits=kinetic.Limits(provision=2.0))
    with pytest.raises(JobTimedOut):
        job.result(timeout=WITHIN)
    cluster.wait_until_empty()


def test_f10_a_set_that_a_person_suspends_ends_its_attempt_and_runs_nothing_when_it_goes_on(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    """New pods of the same set find the verdict of those that were there before."""
    cluster.single(2)
    job = run(jobs.marks_and_waits, str(tmp_path / "marks"), str(tmp_path / "go"), accelerator=ONE_HOST)
    wait_running(job)
    cluster.api.patch(set_of(cluster, job), {"spec": {"suspend": True}})
    first = wait_for_verdict(job)
    assert (first.kind, first.cause) == (wire.ABORTED, wire.PREEMPTION), first.reason
    wait_until(lambda: not cluster.list("pods"), "its pods go", pause=0.1)
    cluster.api.patch(set_of(cluster, job), {"spec": {"suspend": False}})
    wait_until(lambda: condition(cluster.sets()[0], "Completed") or condition(cluster.sets()[0], "Failed"), pause=0.1)
    assert len((tmp_path / "marks").read_text().split()) == 1
    (tmp_path / "go").touch()
    job.result(timeout=WITHIN)
    assert len((tmp_path / "marks").read_text().split()) == 2
    assert len(placements(job)) == 2


# ---- F17, F21: an end that comes too early -----------------------------------------------------------------------


def test_f17_a_pod_that_is_taken_away_during_the_upload_of_its_result_does_not_lose_it(
    cluster: Cluster, jobs: Any, bucket: Any
) -> None:
    cluster.single(2)
    bucket.storage.delay("insert *result*", 4.0)
    job = run(jobs.attempt, accelerator=ONE_HOST, retry=NONE)
    wait_until(lambda: [beat.exit for beat in beats(job).values()] == [0], "the program's end", pause=0.05)
    cluster.delete(cluster.pods(job)[0])
    assert job.result(timeout=WITHIN) == 1
    verdict = verdict_of(job)
    assert verdict is not None and verdict.kind == wire.COMMITTED


def test_f17_a_pod_that_is_killed_during_the_upload_is_followed_by_another_attempt(
    cluster: Cluster, jobs: Any, bucket: Any
) -> None:
    cluster.single(2)
    bucket.storage.delay("insert *result*", 30.0, times=1)
    job = run(jobs.attempt, accelerator=ONE_HOST, retry=ONE_LOSS)
    wait_until(lambda: [beat.exit for beat in beats(job).values()] == [0], "the program's end", pause=0.05)
    cluster.nodes.end(cluster.pods(job)[0], KILLED)
    assert job.result(timeout=WITHIN) == 2
    verdict = verdict_of(job)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (wire.CLOSED, wire.INFRASTRUCTURE)


@pytest.mark.parametrize("how", ["deleted", "cancelled"])
def test_f21_the_last_lines_on_sigterm_arrive(
    cluster: Cluster, jobs: Any, how: str, hosts_break: Callable[[str], None]
) -> None:
    hosts_break(PATIENT)
    cluster.single()
    job = run(jobs.has_last_words, accelerator=ONE_HOST, retry=NONE)
    wait_running(job)
    wait_until(lambda: "ready" in (job.logs() or ""), "its first line", pause=0.1)
    if how == "deleted":
        cluster.delete(cluster.pods(job)[0])
    else:
        actions.cancel(job._job, "enough", "a test")
    expected = "ready\n" + "".join(f"last word {number}\n" for number in range(100)) + "and the very last"
    assert lines(told(job)) == expected


# ---- F22: a delete that does not delete --------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [ANSWER, REQUEST, 404, 429, 503])
def test_f22_a_delete_that_is_lost_or_refused_does_not_keep_the_value_and_is_made_good(
    cluster: Cluster, jobs: Any, between: Between, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    """404 is what success looks like: only a later look tells."""
    monkeypatch.setattr(client, "PAUSES", (0.1,))
    monkeypatch.setattr(follower, "RELEASE_PATIENCE", 3.0)
    cluster.single()
    if isinstance(fault, int):
        between.refuse("DELETE", "/jobsets/", fault, times=9)
    else:
        between.lose("DELETE", "/jobsets/", fault, times=9)
    job = run(jobs.attempt, accelerator=ONE_HOST)
    assert job.result(timeout=WITHIN) == 1
    assert between.lost
    between.heal()
    wait_until(lambda: actions.release(job._job, 1) is Freed.DONE, "its end", pause=0.1)


# ---- F24, F25: nobody is left ------------------------------------------------------------------------------------


OF_THE_OTHER = r"host 0 died without a word, for which its cluster ends the others \(this host received SIGTERM\): .*"
OF_THE_CLUSTER = r"a pod died or was deleted, of which Kubernetes tells no more: Container host for pod \S+ failed with exit code 137"


@pytest.mark.parametrize(
    ("killed", "kind", "said"),
    [([0], wire.ABORTED, OF_THE_OTHER), ([0, 1], wire.CLOSED, OF_THE_CLUSTER)],
    ids=["host 0", "all hosts"],
)
def test_f25_a_set_whose_hosts_died_unheard_ends_with_all_its_pods_and_the_reaper_closes_its_attempt(
    cluster: Cluster,
    jobs: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed: list[int],
    kind: str,
    said: str,
) -> None:
    """No client is there: the cluster ends the pods that are left, of which one may say what it has seen."""
    for patience in ("UNCLAIMED", "SETTLED"):  # so long nobody has followed it, and its verdict is old
        monkeypatch.setattr(reaper, patience, -60.0)
    cluster.pools()
    job = run(jobs.until, str(tmp_path / "never"), retry=NONE)
    wait_running(job)
    pods = cluster.pods(job)
    for host in killed:
        cluster.nodes.end(pods[host], KILLED)
    wait_until(lambda: condition(cluster.sets()[0], "Failed"), "the set's end", pause=0.1)
    wait_until(lambda: not list(cluster.processes()), "the processes' end", pause=0.1)
    store, backend, _ = place_of()
    (reaped,) = (one for one in reaper.reap(store, backend, settings.load(), patience=20.0) if one.what == "placement")
    assert reaped.name == placements(job)[0]["name"]
    cluster.wait_until_empty()
    verdict = verdict_of(job)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (kind, wire.INFRASTRUCTURE)
    assert re.fullmatch(said, verdict.reason), verdict.reason
    with pytest.raises(JobError, match=said):
        job.result(timeout=WITHIN)


# ---- F29: what was changed on its way ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["payload", "agent", "spec"])
def test_f29_what_was_changed_in_the_bucket_is_refused_by_the_pod_and_not_tried_again(
    cluster: Cluster, jobs: Any, tmp_path: Path, what: str
) -> None:
    """The pod has the digests from its manifest, which the bucket does not reach."""
    marks = tmp_path / "ran"
    job = run(jobs.leaves_mark, str(marks), accelerator=ONE_HOST)
    store, staged = job._job.store, job._job.spec()["staged"]
    name = names.spec(job.job_id)
    if what != "spec":
        name = names.blob(staged["payload"]["digest"] if what == "payload" else staged["agent"])
    record = store.read(name)
    assert record is not None
    data = bytearray(record.data)
    data[len(data) // 2] ^= 1
    store.put(name, bytes(data))
    cluster.single()
    with pytest.raises(JobError) as caught:
        job.result(timeout=WITHIN)
    assert not marks.exists()
    assert caught.value.cause == wire.CONFIGURATION, json.dumps(str(caught.value))
    assert len(placements(job)) == 1


# ---- F31: people -------------------------------------------------------------------------------------------------


def test_f31_a_set_that_is_deleted_under_a_running_job_is_replaced(cluster: Cluster, jobs: Any, tmp_path: Path) -> None:
    cluster.single(2)
    job = run(jobs.until, str(tmp_path / "go"), accelerator=ONE_HOST, retry=ONE_PREEMPTION)
    wait_running(job)
    cluster.delete_set(placements(job)[0]["name"])
    first = wait_for_verdict(job)
    assert (first.kind, first.cause) == (wire.ABORTED, wire.PREEMPTION), first.reason
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2


# ---- F33: a device that is busy ----------------------------------------------------------------------------------


def test_f33_a_device_that_is_busy_is_the_machines_fault_and_new_hosts_follow(cluster: Cluster, jobs: Any) -> None:
    cluster.single(2)
    job = run(jobs.driver_is_busy_at_first, False, accelerator=ONE_HOST, retry=ONE_LOSS)
    assert job.result(timeout=WITHIN) == 2
    first = verdict_of(job)
    assert first is not None and first.cause == wire.INFRASTRUCTURE
