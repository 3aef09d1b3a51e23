"""Jobs on a real control plane, from the call to the last pod: what they give back, say, and leave."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.errors import JobCancelled
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.platforms.kubernetes.observing import waiting
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node, tpu_pool
from tests.end_to_end.kubernetes.between import Between
from tests.end_to_end.kubernetes.cases import NONE, ONE_HOST, Cluster, run, verdict_of
from tests.support.jobs import WITHIN, changes, lines, placements, told, wait_running
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow]


def test_a_function_runs_on_every_host_and_its_value_comes_back(cluster: Cluster, jobs: Any, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    cluster.pools()
    job = run(jobs.leaves_mark, str(marks))
    value = job.result(timeout=WITHIN)
    assert value in marks.read_text().split()
    assert len(marks.read_text().split()) == 2
    assert job.status() is JobStatus.SUCCEEDED
    cluster.wait_until_empty()


@pytest.mark.turn
def test_the_command_status_looks_once_at_a_job_that_waits_or_runs(
    cluster: Cluster, jobs: Any, between: Between, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def looks_at(state: str) -> None:
        asked.clear()
        assert main(["status", job.job_id]) == codes.RUNNING
        assert re.search(rf"^state +{state}", capsys.readouterr().out, re.M)
        kinds = [path.rsplit("/", 1)[1] for path in asked if path.endswith(("/jobsets", "/pods"))]
        assert kinds == ["jobsets", "pods"] * 2, "its rows, and as it is new to this process, it as a whole"

    job = run(jobs.until, str(tmp_path / "go"), accelerator=ONE_HOST)
    wait_until(lambda: list(home.glob(".reaped-*")), "the look for leftovers is over")
    between.before = lambda method, path, body: asked.append(path)
    looks_at(r"PENDING \(queued")
    cluster.single()
    wait_running(job)
    looks_at("RUNNING")
    (tmp_path / "go").touch()
    job.result(timeout=WITHIN)


@pytest.mark.turn
def test_the_slices_of_a_job_are_counted_through(cluster: Cluster, jobs: Any) -> None:
    cluster.single(2)
    job = run(jobs.writes_lines, 3, accelerator=ONE_HOST, cloud=kinetic.Kubernetes(num_slices=2))
    events = told(job)
    assert job.result(timeout=WITHIN) == 3
    for host in range(2):
        assert lines(events, host) == "".join(f"line {number} of host {host}\n" for number in range(3))


@pytest.mark.turn
def test_nodes_of_gpus_are_hosts_of_one_job_that_find_each_other(cluster: Cluster, jobs: Any) -> None:
    """All are of one set and one Job, on a node each. The GPUs are pretended, and the program computes without."""
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    for number in range(2):
        labels, has = {"nvidia.com/gpu.product": "NVIDIA-L4"}, {"nvidia.com/gpu": "2"}
        cluster.add(Node(f"{cluster.namespace}-gpu-{number}", labels, (taint,), has, cluster.machine))
    job = run(jobs.meets, accelerator="l4x2", cloud=kinetic.Kubernetes(hosts=2))
    assert job.hosts == 2
    pods = wait_until(lambda: len(found := cluster.pods(job)) == 2 and found, "two pods", pause=0.05)
    assert job.result(timeout=WITHIN) == ["0 of 2", "1 of 2"]
    (placement,) = placements(job)
    assert (placement["hosts"], placement["slices"]) == (2, 1)
    assert {pod["metadata"]["name"].rsplit("-", 1)[0] for pod in pods.values()} == {
        f"{placement['name']}-s-0-0",
        f"{placement['name']}-s-0-1",
    }


@pytest.mark.turn
def test_a_slice_of_tpu7x_is_found_by_its_labels_and_its_hosts_run(cluster: Cluster, jobs: Any, tmp_path: Path) -> None:
    pool = tpu_pool(f"{cluster.namespace}-cubes", 2, topology="2x2x2", **cluster.machine)
    ours = {"cloud.google.com/gke-tpu-accelerator": "tpu7x"}
    cluster.add(*(replace(node, labels={**node.labels, **ours}) for node in pool))
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator="tpu7x-8")
    assert job.result(timeout=WITHIN) in (tmp_path / "marks").read_text().split()
    assert len((tmp_path / "marks").read_text().split()) == 2


@pytest.mark.turn
def test_eight_chips_run_on_two_hosts_of_four_in_a_pool_as_keras_kinetic_makes_it(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    pool = tpu_pool(f"{cluster.namespace}-of-kinetic", 2, topology="2x4", chips=4, **cluster.machine)
    ours = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}
    cluster.add(*(replace(node, labels={**node.labels, **ours}) for node in pool))
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator="tpu-v6e-2x4", cloud=kinetic.Kubernetes(hosts=2))
    pods = wait_until(lambda: len(found := cluster.pods(job)) == 2 and found, "two pods", pause=0.05)
    for pod in pods.values():
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
        assert {**ours, "cloud.google.com/gke-tpu-topology": "2x4"}.items() <= pod["spec"]["nodeSelector"].items()
    assert job.result(timeout=WITHIN) in (tmp_path / "marks").read_text().split()
    assert len((tmp_path / "marks").read_text().split()) == job.hosts == 2


@pytest.mark.turn
def test_a_job_with_a_reservation_runs_on_its_nodes_alone(cluster: Cluster, jobs: Any, tmp_path: Path) -> None:
    """There is a free node of the same accelerator all the time, and later one of the reservation."""
    cluster.single()
    reserved = kinetic.Kubernetes(reservation="quarter")
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator=ONE_HOST, cloud=reserved, retry=NONE)
    why = "no node has the labels that the pods ask for"
    wait_until(lambda: why in job.peek().said, lambda: job.peek().said, pause=0.1)
    (node,) = tpu_pool(f"{cluster.namespace}-quarter", 1, topology="1x1", chips=1, **cluster.machine)
    cluster.add(replace(node, labels={**node.labels, "cloud.google.com/reservation-name": "quarter"}))
    taken = wait_until(lambda: cluster.pods(job)[0]["spec"].get("nodeName"), "a node of its pod", pause=0.05)
    assert taken == node.name
    assert job.result(timeout=WITHIN) == (tmp_path / "marks").read_text().strip()


@pytest.mark.turn
def test_lines_of_every_host_arrive_while_it_runs_in_the_pods_logs_as_well_and_outlive_the_pods(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    cluster.pools()
    job = run(jobs.writes_lines, 20, str(tmp_path / "go"))
    wait_running(job)
    wait_until(lambda: all(f"line 10 of host {host}" in (job.logs() or "") for host in range(2)), "both halves")
    for host, pod in cluster.pods(job).items():
        said = cluster.log(pod)
        assert f"line 10 of host {host}\n" in said
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 20
    cluster.wait_until_empty()
    events = told(kinetic.attach(job.job_id))
    for host in range(2):
        assert lines(events, host) == "".join(f"line {number} of host {host}\n" for number in range(20))


def test_the_users_exception_comes_back_as_itself_from_the_host_that_raised_it(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    cluster.pools()
    job = run(jobs.echoes, str(tmp_path), 1, 0.5)
    with pytest.raises(ValueError, match="the learning rate is negative") as caught:
        job.result(timeout=WITHIN)
    assert "on host 1" in caught.value.__notes__[0]
    assert "raise ValueError" in "".join(caught.value.__notes__)


@pytest.mark.turn
def test_a_command_runs_in_the_projects_folder(cluster: Cluster, jobs: Any) -> None:
    cluster.pools()
    project = Path(jobs.__file__).parent
    job = kinetic.command(["sh", "-c", "ls; echo $KINETIC_HOST_INDEX"], cwd=project, accelerator="v4-8")
    events = told(job)
    assert job.status() is JobStatus.SUCCEEDED
    assert [lines(events, host).split()[-1] for host in range(2)] == ["0", "1"]
    assert Path(jobs.__file__).name in lines(events)


@pytest.mark.turn
def test_a_secret_is_in_no_manifest_and_goes_with_its_jobset(
    cluster: Cluster, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is this process's own, the other lies in the namespace already, where it stays."""
    monkeypatch.setenv("HF_TOKEN", "hf_of-this-process")
    own = {"metadata": {"name": "tracker"}, "stringData": {"API_KEY": "of-the-cluster", "other": "x"}}
    cluster.api.create(f"/api/v1/namespaces/{cluster.namespace}/secrets", own)
    cluster.pools()
    job = run(
        jobs.fingerprint, ["HF_TOKEN", "API_KEY"], str(tmp_path / "go"),
        capture_env_vars=["HF_TOKEN"], secrets={"API_KEY": "tracker/API_KEY"},
    )  # fmt: skip
    wait_running(job)
    (name,) = {placement["name"] for placement in placements(job)}
    (kept,) = (secret for secret in cluster.list("secrets") if secret["metadata"]["name"] == name)
    assert [owner["kind"] for owner in kept["metadata"]["ownerReferences"]] == ["JobSet"]
    assert "of-this-process" not in json.dumps([cluster.sets(), cluster.jobs(), cluster.list("pods")])
    (tmp_path / "go").touch()
    digests = {
        variable: hashlib.sha256(value.encode()).hexdigest()
        for variable, value in (("HF_TOKEN", "hf_of-this-process"), ("API_KEY", "of-the-cluster"))
    }
    assert job.result(timeout=WITHIN) == digests
    wait_until(lambda: [each["metadata"]["name"] for each in cluster.list("secrets")] == ["tracker"], "its Secret goes")
    cluster.api.delete(f"/api/v1/namespaces/{cluster.namespace}/secrets/tracker")


@pytest.mark.turn
def test_a_secret_that_is_gone_when_a_pod_starts_ends_the_job_with_its_name(
    cluster: Cluster, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "CreateContainerConfigError"
    rows = tuple(row._replace(patience=2.0) for row in waiting._CONTAINER[reason])
    monkeypatch.setitem(waiting._CONTAINER, reason, rows)
    secrets = f"/api/v1/namespaces/{cluster.namespace}/secrets"
    cluster.api.create(secrets, {"metadata": {"name": "nowhere"}, "stringData": {"key": "x"}})
    job = run(jobs.fingerprint, ["API_KEY"], str(tmp_path / "go"), secrets={"API_KEY": "nowhere/key"})
    cluster.api.delete(f"{secrets}/nowhere")
    cluster.pools()
    assert "failed" in changes(told(job))[-1]
    verdict = verdict_of(job)
    assert verdict is not None
    assert verdict.cause == "configuration"
    assert 'secret "nowhere" not found' in verdict.reason


def test_a_job_is_cancelled_while_it_runs(cluster: Cluster, jobs: Any, tmp_path: Path) -> None:
    cluster.pools()
    job = run(jobs.until, str(tmp_path / "never"))
    wait_running(job)
    job.cancel("enough")
    with pytest.raises(JobCancelled, match="enough"):
        job.result(timeout=WITHIN)


def test_a_job_is_cancelled_while_it_waits_for_nodes_and_no_pod_comes_later(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    job = run(jobs.leaves_mark, str(marks))
    wait_until(lambda: job.peek().phase == "queued", lambda: f"it waits: {job.peek()}", pause=0.1)
    job.cancel("enough")
    with pytest.raises(JobCancelled):
        job.result(timeout=WITHIN)
    cluster.wait_until_empty()
    cluster.pools()
    assert not marks.exists()


OTHER = """
import sys
import kinetic_orchestration as kinetic

print(kinetic.attach(sys.argv[1]).result(timeout=150))
"""


@pytest.mark.turn
def test_another_process_with_the_same_signing_key_collects_the_value(
    cluster: Cluster, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, whose home has never heard of the job. Without the key it is not even unpickled."""
    cluster.pools()
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), retry=NONE)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "another home"))
    other = [sys.executable, "-c", OTHER, job.job_id]
    done = subprocess.run(other, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in (tmp_path / "marks").read_text().split()
