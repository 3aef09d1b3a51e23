"""Ends of pods and of their processes while a job runs: one verdict with its cause, and another attempt if the
budget says so."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobError, JobLost, JobTimedOut
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following import actions, held_time
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.kubernetes.pods.nodes import KILLED, OOM_KILLED
from tests.end_to_end.kubernetes.cases import NONE, ONE_HOST, Cluster, condition, run, verdict_of, wait_for_verdict
from tests.support.jobs import WITHIN, beats, placements, wait_running
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(7)]

Break = Callable[[str], None]
BRIEF = "self_delete.LATE, attempt_rules.SIBLING_GRACE = 2.0, 0.5"  # patience of host 0 with hosts that are dead
MISSES = """
    attempt_rules.LOST, peers.BEATS_PACE, bucket.WATCHED, bucket.UNWATCHED = 12.0, 0.5, 0.7, 0.7
    self_delete.LATE, attempt_rules.SIBLING_GRACE = 0.3, 0.5
"""  # hosts miss one that is silent after 12 s
ONE_PREEMPTION = kinetic.Retry(infra=0, preemption=1)
ONE_LOSS = kinetic.Retry(infra=1, preemption=0)


def ended(job: Any, cluster: Cluster, kind: str) -> str:
    """The sentence of the Job of an attempt, once its JobSet has come to that end, whatever clients do."""
    (name,) = {placement["name"] for placement in placements(job)}

    def is_so() -> bool:
        return any(
            one["metadata"]["name"] == name and condition(one, kind).get("status") == "True" for one in cluster.sets()
        )

    wait_until(is_so, lambda: f"{name} is {kind}: {cluster.sets()}", pause=0.1)
    return str(condition(cluster.jobs()[0], "Failed").get("message", ""))


# ---- what the cluster tells, when no client is there ------------------------------------------------------------


def test_a_jobset_whose_job_succeeded_is_completed(cluster: Cluster, jobs: Any, tmp_path: Path) -> None:
    cluster.pools()
    job = run(jobs.leaves_mark, str(tmp_path / "marks"))
    assert ended(job, cluster, "Completed") == ""
    verdict = verdict_of(job)
    assert verdict is not None
    assert verdict.kind == wire.COMMITTED
    assert job.result(timeout=WITHIN) in (tmp_path / "marks").read_text()


def test_a_jobset_tells_the_users_exception_by_its_exit_code_and_all_last_words_are_there(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    """Host 1 raised it; the code is that of host 0's pod, which leaves last, so that no pod is ended before its word."""
    cluster.pools()
    job = run(jobs.echoes, str(tmp_path), 1, 0.2)
    message = ended(job, cluster, "Failed")
    assert "failed with exit code 64 matching FailJob rule" in message
    assert f"{placements(job)[0]['name']}-s-0-0-" in message
    assert {host: beat.state for host, beat in beats(job).items()} == {0: wire.DONE, 1: wire.DONE}
    with pytest.raises(ValueError, match="the learning rate is negative"):
        job.result(timeout=WITHIN)


# ---- pods that are taken away ------------------------------------------------------------------------------------


def deleted(cluster: Cluster, pod: Any) -> None:
    cluster.delete(pod)


def evicted(cluster: Cluster, pod: Any) -> None:
    cluster.evict(pod)


def tainted(cluster: Cluster, pod: Any) -> None:
    """The machines of a spot slice are about to go, that of this pod first."""
    taint = {"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute"}
    first = pod["spec"]["nodeName"]
    pool = first.rpartition("-")[0]
    for name in sorted((f"{pool}-0", f"{pool}-1"), key=lambda name: name != first):
        cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [taint]}})


@pytest.mark.parametrize("taken", [deleted, evicted, tainted])
def test_a_pod_that_is_taken_away_is_a_preemption_and_another_attempt_follows(
    cluster: Cluster, jobs: Any, tmp_path: Path, taken: Callable[[Cluster, Any], None]
) -> None:
    cluster.pools("one", "two")
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_PREEMPTION)
    wait_running(job)
    pod = cluster.pods(job)[1]
    pool = pod["spec"]["nodeName"].rpartition("-")[0]
    taken(cluster, pod)
    first = wait_for_verdict(job)
    if taken is tainted:
        wait_until(lambda: not cluster.pods(job), "the end of its pods", pause=0.1)
        cluster.nodes.remove(f"{pool}-0", f"{pool}-1")
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    assert (first.kind, first.cause) == (wire.ABORTED, wire.PREEMPTION), first.reason
    assert first.host == 1 or taken is tainted
    assert "SIGTERM" in first.reason


def wait_for_pods_without_agents(cluster: Cluster, job: Any) -> None:
    def waits(pod: Any) -> bool:
        return any(processes.catches(pid, signal.SIGTERM) for pid in cluster.processes(pod))

    wait_until(lambda: len(found := cluster.pods(job)) == 2 and all(map(waits, found.values())), "its pods", pause=0.1)


def test_a_pod_that_is_taken_away_before_its_agent_is_there_says_so_and_ends(
    cluster: Cluster, jobs: Any, tmp_path: Path, bucket: Any
) -> None:
    """As the first process of its container it hears only what it handles, and would be there until the grace is over."""
    cluster.pools("one", "two")
    bucket.storage.fail("get *blobs/*", 503, times=None)
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_PREEMPTION)
    wait_for_pods_without_agents(cluster, job)
    cluster.delete(cluster.pods(job)[1])
    first = wait_for_verdict(job)
    bucket.storage.heal()
    assert (first.cause, first.host) == (wire.PREEMPTION, 1), first.reason
    assert "it received SIGTERM, before its agent was there" in first.reason
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2


def test_a_pod_that_is_ended_for_another_one_before_its_agent_is_there_leaves_the_word_to_whoever_follows(
    cluster: Cluster, jobs: Any, tmp_path: Path, bucket: Any
) -> None:
    """And does not call it a preemption, which would be tried again a hundred times."""
    cluster.pools("one", "two")
    bucket.storage.fail("get *blobs/*", 503, times=None)
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_LOSS)
    wait_for_pods_without_agents(cluster, job)
    told, killed = (cluster.pods(job)[host] for host in (0, 1))
    cluster.nodes.end(killed, KILLED)
    wait_until(lambda: "it received SIGTERM" in cluster.log(told), "the notice to host 0", pause=0.05)
    bucket.storage.heal()
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdict_of(job)
    assert first is not None
    assert (first.kind, first.cause) == (wire.CLOSED, wire.INFRASTRUCTURE), first.reason
    assert "-s-0-1-" in first.reason and "exit code 137" in first.reason


@pytest.mark.parametrize("returns", [False, True])
def test_a_program_that_is_told_of_its_end_saves_and_the_next_attempt_goes_on_from_there(
    cluster: Cluster, jobs: Any, tmp_path: Path, returns: bool
) -> None:
    """A value that it returns then was cut short, and is no result, although the attempt has no verdict yet."""
    cluster.pools("one", "two")
    job = run(jobs.resumes, str(tmp_path), returns, retry=ONE_PREEMPTION)
    wait_running(job)
    wait_until(lambda: (job.logs() or "").count("running") == 2, "their handlers", pause=0.1)
    cluster.delete(cluster.pods(job)[0])
    assert job.result(timeout=WITHIN) == ["saved by attempt 1"]


def test_a_program_that_dies_of_one_that_was_told_of_its_end_is_no_failure_of_the_user(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    cluster.pools("one", "two")
    job = run(jobs.fails_with_the_other, str(tmp_path), retry=ONE_PREEMPTION)
    wait_running(job)
    wait_until((tmp_path / "held").exists, "its program", pause=0.05)
    cluster.delete(cluster.pods(job)[1])
    first = wait_for_verdict(job)
    assert (first.cause, first.host) == (wire.PREEMPTION, 1), first.reason
    assert job.result(timeout=WITHIN) == 2


# ---- pods that die -----------------------------------------------------------------------------------------------


def killed_for_its_memory(cluster: Cluster, job: Any) -> None:
    """Host 1, with its agent, while nobody looks; the other host is told that it will be ended."""
    wait_running(job)
    cluster.nodes.end(cluster.pods(job)[1], OOM_KILLED)
    wait_until(lambda: beats(job)[0].told, "the notice to host 0", pause=0.05)
    time.sleep(1.0)
    assert verdict_of(job) is None


def test_a_host_that_is_killed_for_its_memory_is_the_users_failure(
    cluster: Cluster, jobs: Any, tmp_path: Path, hosts_break: Break
) -> None:
    """And not a preemption of the other host, which would be tried again a hundred times, although nobody looks for a
    while."""
    hosts_break(BRIEF)
    cluster.pools()
    job = run(jobs.until, str(tmp_path / "go"))
    killed_for_its_memory(cluster, job)
    with pytest.raises(JobError, match="OOMKilled"):
        job.result(timeout=WITHIN)
    verdict = verdict_of(job)
    assert verdict is not None
    assert verdict.cause == wire.USER


def test_a_host_that_dies_without_a_word_is_lost_and_not_taken_away_whoever_looks(
    cluster: Cluster, jobs: Any, tmp_path: Path, hosts_break: Break
) -> None:
    hosts_break(BRIEF)
    cluster.pools("one", "two")
    slices = kinetic.Kubernetes(num_slices=2)  # whose pods are told one slice after the other
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_LOSS, cloud=slices)
    killed_for_its_memory(cluster, job)
    first = wait_for_verdict(job)
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, 1)
    assert "host 1 died without a word" in first.reason
    assert "this host received SIGTERM" in first.reason
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2


def gone_with_its_node(cluster: Cluster, pods: Any) -> None:
    """Host 1, at once and unheard, as a spot machine may go; that of the other host is to follow, which is told."""
    cluster.nodes.remove(pods[1]["spec"]["nodeName"])
    wait_until(lambda: not list(cluster.processes(pods[1])), "the end of its processes", pause=0.02)
    going = {"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute"}
    cluster.api.patch(f"/api/v1/nodes/{pods[0]['spec']['nodeName']}", {"spec": {"taints": [going]}})


def test_a_host_that_goes_with_its_node_unheard_while_the_other_is_told_is_lost_and_another_attempt_follows(
    cluster: Cluster, jobs: Any, tmp_path: Path, hosts_break: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as the other host can know: one that dies of its own fault looks like that, too."""
    hosts_break(BRIEF)
    monkeypatch.setattr(lifecycle, "SETTLE_PATIENCE", 2.0)
    cluster.pools("one", "two", spot=True)
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_LOSS, spot=True)
    wait_running(job)
    pods = cluster.pods(job)
    gone_with_its_node(cluster, pods)
    first = wait_for_verdict(job)
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, 1), first.reason
    assert "host 1 died without a word" in first.reason
    assert "this host received SIGTERM" in first.reason
    wait_until(lambda: not any(list(cluster.processes(pod)) for pod in pods.values()), "the end of both", pause=0.1)
    cluster.nodes.remove(pods[0]["spec"]["nodeName"])
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    assert verdict_of(job) == first
    assert len(placements(job)) == 2
    for pod in cluster.list("pods"):  # a real control plane shows that of host 1 for most of a minute
        if pod["metadata"]["uid"] == pods[1]["metadata"]["uid"]:
            cluster.delete(pod, grace=0)


UNBEATEN = f"""
    {BRIEF}
    def begin(self, real=host.Host._open):
        if self.at.host == 1 and self.at.attempt == 1:
            time.sleep(600)
        real(self)
    host.Host._open = begin
"""  # host 1 stays between its boot and its first beat


def killed_before_its_first_beat(cluster: Cluster, job: Any) -> None:
    wait_until(
        lambda: (
            {host: beat.state for host, beat in beats(job).items()} == {0: wire.PREPARING}
            and (pod := cluster.pods(job).get(1)) is not None
            and any(_named(pid) == "kinetic-agent" for pid in cluster.processes(pod))
        ),
        lambda: f"host 0 waits for host 1, whose agent is there: {beats(job)}",
        pause=0.1,
    )
    cluster.nodes.end(cluster.pods(job)[1], KILLED)


def _named(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_a_host_that_dies_before_its_first_beat_is_told_by_its_pod_to_whoever_follows_and_the_others_end(
    cluster: Cluster, jobs: Any, tmp_path: Path, hosts_break: Break
) -> None:
    """And not as a preemption of the other host, which would be tried again a hundred times."""
    hosts_break(UNBEATEN)
    cluster.pools("one", "two")
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_LOSS)
    killed_before_its_first_beat(cluster, job)
    wait_until(lambda: beats(job)[0].told, "the notice to host 0", pause=0.05)
    time.sleep(1.0)
    assert verdict_of(job) is None
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdict_of(job)
    assert first is not None
    assert (first.kind, first.cause) == (wire.CLOSED, wire.INFRASTRUCTURE), first.reason
    assert "-s-0-1-" in first.reason and "died with exit code 137" in first.reason


def test_a_host_that_dies_before_its_first_beat_unfollowed_ends_its_attempt_and_the_other_says_what_it_knows(
    cluster: Cluster, jobs: Any, tmp_path: Path, hosts_break: Break
) -> None:
    hosts_break(UNBEATEN)
    cluster.pools()
    job = run(jobs.until, str(tmp_path / "never"), retry=NONE)
    killed_before_its_first_beat(cluster, job)
    message = ended(job, cluster, "Failed")
    assert f"{placements(job)[0]['name']}-s-0-1-" in message
    assert "failed with exit code 137 matching FailJob rule" in message
    first = wait_for_verdict(job)
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.PREEMPTION, 0)
    assert first.reason == "this host received SIGTERM, and host 1 had never given a sign of life"
    wait_until(lambda: not list(cluster.processes()), "the end of all processes", pause=0.1)
    with pytest.raises(JobError, match="host 1 had never given a sign of life"):
        job.result(timeout=WITHIN)
    assert verdict_of(job) == first


@pytest.mark.parametrize(
    "killed",
    [
        "kinetic-agent",
        "kinetic-guard",
        "first",
        "all",
    ],
)
def test_a_host_of_which_a_process_is_killed_is_lost_and_another_attempt_follows(
    cluster: Cluster, jobs: Any, tmp_path: Path, killed: str, hosts_break: Break
) -> None:
    hosts_break(BRIEF)
    cluster.pools("one", "two")
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_LOSS)
    wait_running(job)
    pod = cluster.pods(job)[1]
    if killed == "all":
        cluster.nodes.end(pod, KILLED)
        wait_until(lambda: not list(cluster.processes(pod)), "its end", pause=0.02)  # else its program may end well
    else:
        cluster.kill(pod, killed)
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdict_of(job)
    assert first is not None
    assert first.cause == wire.INFRASTRUCTURE, first.reason
    told_by = "the agent of host 1 was ended by SIGKILL" if killed == "kinetic-agent" else "exit code 137"
    assert told_by in first.reason


def test_a_pod_that_may_not_use_its_bucket_says_so_in_its_status(cluster: Cluster, jobs: Any, bucket: Any) -> None:
    """And no other attempt would be let in: test_identity has those whose service accounts lack a grant."""
    cluster.single()
    bucket.storage.fail("get *blobs/*", 403)
    bucket.storage.fail("insert *verdict*", 403)
    job = run(jobs.attempt, accelerator=ONE_HOST, retry=NONE)
    said = r"exit code 69; it said: host 0 could not start: the agent could not be fetched from gs://\S+/prod: \w+"
    with pytest.raises(JobError, match=said):
        job.result(timeout=WITHIN)


def test_a_host_whose_agent_dies_and_whose_store_refuses_its_report_says_so_in_the_status_of_its_pod(
    cluster: Cluster, jobs: Any, tmp_path: Path, bucket: Any
) -> None:
    cluster.single()
    job = run(jobs.until, str(tmp_path / "never"), accelerator=ONE_HOST, retry=NONE)
    wait_running(job)
    bucket.storage.fail("insert *verdict*", 403)
    cluster.kill(cluster.pods(job)[0], "kinetic-agent")
    said = r"exit code 65; it said: the agent of host 0 was ended by SIGKILL, and the store could not be told: .*Cannot write"
    with pytest.raises(JobLost, match=said):
        job.result(timeout=WITHIN)
    verdict = verdict_of(job)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (wire.CLOSED, wire.INFRASTRUCTURE)


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_that_is_alive_but_frozen_is_missed_by_the_other_one_and_another_attempt_follows(
    cluster: Cluster, jobs: Any, tmp_path: Path, host: int, hosts_break: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For Kubernetes its pod runs, and then hears in vain that it is to end."""
    hosts_break(MISSES)
    monkeypatch.setattr(lifecycle, "SETTLE_PATIENCE", 2.0)
    cluster.pools("one", "two")
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_LOSS)
    wait_running(job)
    pod = cluster.pods(job)[host]
    cluster.freeze(pod)
    first = wait_for_verdict(job)
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, host), first.reason
    assert f"host {host} has given no sign of life" in first.reason
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    cluster.thaw(pod)  # or it is shown until its grace is over
    wait_until(lambda: not list(cluster.processes(pod)), "it ends once it wakes", pause=0.1)
    assert verdict_of(job) == first


def test_a_frozen_host_0_that_nobody_follows_is_ended_by_the_end_of_the_others(
    cluster: Cluster, jobs: Any, tmp_path: Path, hosts_break: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one whose pod would fail the set, and nobody else has it ended before the deadline: until then it would
    keep its node."""
    hosts_break(MISSES)
    monkeypatch.setattr(manifest, "LAST_WORDS", -20)  # of a frozen pod there are none
    cluster.pools()
    job = run(jobs.until, str(tmp_path / "never"), retry=NONE)
    wait_running(job)
    cluster.freeze(cluster.pods(job)[0])
    message = ended(job, cluster, "Failed")
    assert f"{placements(job)[0]['name']}-s-0-1-" in message
    assert "failed with exit code 65 matching FailJob rule" in message
    wait_until(lambda: not list(cluster.processes()), "the end of all processes, frozen ones too", pause=0.1)
    verdict = verdict_of(job)
    assert verdict is not None
    assert (verdict.kind, verdict.cause, verdict.host) == (wire.ABORTED, wire.INFRASTRUCTURE, 0), verdict.reason
    with pytest.raises(JobLost, match="host 0 has given no sign of life"):
        job.result(timeout=WITHIN)


def test_a_frozen_host_that_nobody_follows_is_ended_by_its_cluster_at_the_deadline(
    cluster: Cluster, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of this package is awake then: neither agent nor guard nor a client."""
    monkeypatch.setattr(manifest, "LAST_WORDS", -20)  # of a frozen pod there are none
    monkeypatch.setattr(held_time, "DEADLINE_ALLOWANCE", 5.0)
    cluster.single()
    limits = kinetic.Limits(provision=10.0, run=5.0)
    job = run(jobs.until, str(tmp_path / "never"), accelerator=ONE_HOST, retry=NONE, limits=limits)
    wait_running(job)
    cluster.freeze(cluster.pods(job)[0])
    assert "active longer than specified deadline" in ended(job, cluster, "Failed")
    wait_until(lambda: not list(cluster.processes()), "the end of its processes", pause=0.1)
    with pytest.raises(JobTimedOut):
        job.result(timeout=WITHIN)


def test_a_lost_node_is_missed_by_the_other_host_long_before_kubernetes_says_so(
    cluster: Cluster, jobs: Any, tmp_path: Path, hosts_break: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts_break(MISSES)
    monkeypatch.setattr(lifecycle, "SETTLE_PATIENCE", 2.0)
    cluster.pools("one", "two")
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_LOSS)
    wait_running(job)
    pod = cluster.pods(job)[1]
    cluster.nodes.lose(pod["spec"]["nodeName"])
    first = wait_for_verdict(job)
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, 1)
    assert "host 1 has given no sign of life" in first.reason
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    cluster.nodes.remove(pod["spec"]["nodeName"])  # or its pod is shown for minutes
    cluster.delete(pod, grace=0)


def test_a_silent_node_does_not_end_the_job_of_its_pods(cluster: Cluster, jobs: Any, tmp_path: Path) -> None:
    """Nobody hears of it, and its host goes on: the store says so. Its pod is shown until the node is back."""
    cluster.pools()
    job = run(jobs.until, str(tmp_path / "go"), retry=NONE)
    wait_running(job)
    node = cluster.pods(job)[1]["spec"]["nodeName"]
    cluster.nodes.silence(node)
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 1
    assert job.status() is JobStatus.SUCCEEDED
    cluster.nodes.restore(node)


def test_a_zombie_on_a_silent_node_ends_itself_and_its_attempt_has_no_second_verdict(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    cluster.pools("one", "two")
    job = run(jobs.until, str(tmp_path / "go"), retry=ONE_LOSS)
    wait_running(job)
    pods = cluster.pods(job)
    silent = [pod["spec"]["nodeName"] for pod in pods.values()]
    cluster.nodes.silence(*silent)
    actions.close(job._job, 1, wire.INFRASTRUCTURE, "given up")
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    wait_until(lambda: not any(list(cluster.processes(pod)) for pod in pods.values()), "the zombies end", pause=0.1)
    first = verdict_of(job)
    assert first is not None
    assert (first.kind, first.reason) == (wire.CLOSED, "given up")
    cluster.nodes.restore(*silent)


# ---- pods that are not what they were made for -------------------------------------------------------------------


def test_a_pod_to_which_gke_gave_another_place_in_the_slice_runs_nothing(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    cluster.pools()
    cluster.nodes.inject({"TPU_WORKER_ID": "1"})
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), retry=NONE)
    with pytest.raises(JobLost, match=r"GKE made this pod worker 1 of 2 .*, and it was started as pod 0 of 2"):
        job.result(timeout=WITHIN)
    assert not (tmp_path / "marks").exists()


def test_programs_have_their_place_in_their_slice_from_gke_and_that_among_the_slices_from_us(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    """libtpu reads the first, and the second where there are several slices; asked for its API, JAX would wait for rights
    that no pod has."""
    cluster.pools("one", "two")
    cluster.nodes.inject({"TPU_TOPOLOGY": "2x2x2", "MEGASCALE_NUM_SLICES": "7"})
    job = run(jobs.writes_environment, str(tmp_path), cloud=kinetic.Kubernetes(num_slices=2), retry=NONE)
    job.result(timeout=WITHIN)
    (name,) = {placement["name"] for placement in placements(job)}
    found = [json.loads((tmp_path / str(host)).read_text()) for host in range(4)]
    assert [each["TPU_WORKER_ID"] for each in found] == ["0", "1", "0", "1"]
    assert [each["TPU_WORKER_HOSTNAMES"] for each in found] == [
        f"{name}-s-{slice_}-0.{name},{name}-s-{slice_}-1.{name}" for slice_ in (0, 0, 1, 1)
    ]
    assert {each["TPU_TOPOLOGY"] for each in found} == {"2x2x2"}
    assert [each["MEGASCALE_SLICE_ID"] for each in found] == ["0", "0", "1", "1"]
    assert {each["MEGASCALE_NUM_SLICES"] for each in found} == {"2"}
    assert len({each["MEGASCALE_COORDINATOR_ADDRESS"] for each in found}) == 1
    misleading = {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX", "KINETIC_ORDERS"}
    assert [misleading & each.keys() for each in found] == [set()] * 4
