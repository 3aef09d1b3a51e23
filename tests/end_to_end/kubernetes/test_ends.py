"""Ends without a client, or without a cluster: deadlines, what is left and found again, and an API server that is away."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.errors import JobError, JobTimedOut
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions, follower
from kinetic_orchestration.jobs.watching import live_index
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import Freed, JobStatus
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.api import client
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import wire
from tests.core.platforms.kubernetes.api.scripted_server import Authority
from tests.end_to_end.kubernetes.between import Between
from tests.end_to_end.kubernetes.cases import (
    NONE,
    ONE_HOST,
    Cluster,
    condition,
    kubeconfig_of,
    run,
    verdict_of,
    wait_for_verdict,
)
from tests.support.jobs import WITHIN, placements, told, wait_running
from tests.support.kubernetes.fixtures import Lingering
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(5)]


def reap(**changes: Any) -> list[reaper.Reaped]:
    store, backend, _ = place_of()
    return reaper.reap(store, backend, settings.load(**changes), patience=WITHIN)  # a garbage collector takes its time


# ---- deadlines ---------------------------------------------------------------------------------------------------


def test_a_job_that_runs_for_too_long_ends_with_its_limit(cluster: Cluster, jobs: Any, tmp_path: Path) -> None:
    cluster.pools()
    job = run(jobs.until, str(tmp_path / "never"), limits=kinetic.Limits(run=2.0))
    with pytest.raises(JobTimedOut, match="the attempt ran longer than its limit of 2 s"):
        job.result(timeout=WITHIN)


def test_a_set_that_nobody_releases_goes_by_itself_and_the_value_stays(
    cluster: Cluster, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "KEPT_SECONDS", 1)
    cluster.single()
    job = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator=ONE_HOST)
    assert wait_for_verdict(job).kind == wire.COMMITTED
    cluster.wait_until_empty()
    assert job.result(timeout=WITHIN) in (tmp_path / "marks").read_text()


# ---- what is left ------------------------------------------------------------------------------------------------


def test_what_a_dead_client_left_is_found_by_its_labels_and_nothing_else_is_touched(
    cluster: Cluster, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "SETTLED", -60.0)  # so old a verdict has to be
    cluster.single()
    left = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator=ONE_HOST)
    wait_for_verdict(left)
    (name,) = {placement["name"] for placement in placements(left)}
    live = run(jobs.until, str(tmp_path / "go"), accelerator=ONE_HOST)
    path = f"/apis/{manifest.API}/namespaces/{cluster.namespace}/jobsets"
    (mine,) = (one for one in cluster.sets() if one["metadata"]["name"] == name)
    kind = {"apiVersion": mine["apiVersion"], "kind": "JobSet", "spec": {**mine["spec"], "suspend": True}}
    for called, labels in (("unlabelled", {}), ("foreign", {**mine["metadata"]["labels"], ownership.MARK: "another"})):
        cluster.api.create(path, {"metadata": {"name": called, "labels": labels}, **kind})
    cluster.api.create(path, {"metadata": {"name": "forged", "labels": mine["metadata"]["labels"]}, **kind})
    assert [(found.name, found.result) for found in reap() if found.what == "placement"] == [(name, reaper.REMOVED)]
    kept = {one["metadata"]["name"] for one in cluster.sets()}
    assert kept == {"unlabelled", "foreign", "forged", placements(live)[0]["name"]}
    (tmp_path / "go").touch()
    assert live.result(timeout=WITHIN) == 1
    for called in ("unlabelled", "foreign", "forged"):
        cluster.delete_set(called)


def test_pods_whose_set_was_deleted_without_them_are_found_and_ended(
    cluster: Cluster, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl delete jobset --cascade=orphan` leaves Jobs that nothing ends before their deadline, and for ever the Secret
    with what the job has captured."""
    monkeypatch.setenv("HF_TOKEN", "hf_of-this-process")
    cluster.pools()
    job = run(jobs.until, str(tmp_path / "never"), capture_env_vars=["HF_TOKEN"])
    wait_running(job)
    (placement,) = placements(job)
    cluster.delete_set(placement["name"], propagationPolicy="Orphan")
    wait_until(lambda: not cluster.sets(), "its set is gone", pause=0.1)
    assert [secret["metadata"]["name"] for secret in cluster.list("secrets")] == [placement["name"]]
    assert not [one for one in reap() if one.what == "placement"]
    (left,) = place_of()[1].leftovers()
    known = {what: placement[what] for what in ("backend", "zone", "name", "hosts", "slices")}
    assert {what: left[what] for what in known} == known
    assert (left["job"], left["attempt"], left["state"]) == (job.job_id, 1, "ACTIVE")
    monkeypatch.setattr(reaper, "SETTLED", -60.0)
    actions.close(job._job, 1, wire.CANCELLED, "enough")
    (reaped,) = (one for one in reap() if one.what == "placement")
    assert (reaped.name, reaped.result) == (placement["name"], reaper.REMOVED)
    cluster.wait_until_empty()


@pytest.fixture
def other(cluster: Cluster, lingering: Lingering) -> str:
    """Another namespace of the cluster, which stays in deletion until the test is over."""
    return lingering.name


TAKEN = (wire.ABORTED, wire.PREEMPTION, "this host received SIGTERM")  # all that a host hears of its namespace


def refused_in(namespace: str) -> str:
    """Return the sentences about a namespace, in any moment of its end, for whoever would create anything there."""
    advice = "see 'kubectl get namespaces', and name one with namespace= or KINETIC_NAMESPACE"
    return rf": the namespace {namespace} does not exist, or is being deleted \(Kubernetes refused .*\): {advice}"


@pytest.mark.parametrize("goes", ["it is being deleted", "it is gone"])
def test_a_namespace_that_is_deleted_under_a_running_job_is_told(
    cluster: Cluster, lingering: Lingering, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes: str
) -> None:
    """In the same words, whenever the next attempt is asked for."""
    monkeypatch.setenv("KINETIC_NAMESPACE", lingering.name)
    cluster.single()
    job = run(jobs.until, str(tmp_path / "never"), accelerator=ONE_HOST, retry=kinetic.Retry(infra=0, preemption=1))
    wait_running(job)
    lingering.delete()
    first = wait_for_verdict(job)
    assert (first.kind, first.cause, first.reason) == TAKEN
    if goes == "it is gone":
        lingering.let_go()
    with pytest.raises(JobError, match=refused_in(lingering.name)) as caught:
        job.result(timeout=WITHIN)
    assert caught.value.cause == wire.CONFIGURATION


def test_a_namespace_that_is_deleted_under_a_running_job_is_left_for_the_next_one_that_it_names(
    cluster: Cluster, lingering: Lingering, jobs: Any, tmp_path: Path
) -> None:
    cluster.single()
    job = run(
        jobs.until,
        str(tmp_path / "go"),
        accelerator=ONE_HOST,
        retry=kinetic.Retry(infra=0, preemption=1),
        cloud=kinetic.Kubernetes(namespaces=[lingering.name, cluster.namespace]),
    )
    wait_running(job)
    lingering.delete()
    wait_for_verdict(job)
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    spaces = [placement["zone"].rpartition("/")[2] for placement in placements(job)]
    assert spaces == [lingering.name, lingering.name, cluster.namespace]
    refused = verdict_of(job, 2)
    assert refused is not None and (refused.kind, refused.cause) == (wire.CLOSED, wire.STOCKOUT)
    assert re.search(refused_in(lingering.name), refused.reason)


@pytest.mark.parametrize("known", ["by the settings", "by the job's records"])
def test_what_is_left_in_another_namespace_is_found(
    cluster: Cluster, other: str, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    monkeypatch.setattr(reaper, "SETTLED", -60.0)
    cluster.single()
    left = run(jobs.leaves_mark, str(tmp_path / "marks"), accelerator=ONE_HOST, namespace=other)
    wait_for_verdict(left)
    sets = f"/apis/{manifest.API}/namespaces/{other}/jobsets"
    assert len(cluster.api.get(sets)["items"]) == 1
    if known == "by the settings":  # then its records need not be found
        monkeypatch.setenv("KINETIC_NAMESPACES", f"{cluster.namespace},{other}")
        live_index.remove(left._job.store, left.job_id)
    (found,) = (found for found in reap() if found.what in (reaper.PLACEMENT, reaper.PLACE))
    assert (found.name, found.result) == (placements(left)[0]["name"], reaper.REMOVED)
    assert cluster.api.get(sets)["items"] == []


def test_a_set_whose_release_was_refused_until_its_job_was_told_is_found_where_only_the_job_names_it(
    cluster: Cluster, other: str, jobs: Any, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "SETTLED", -60.0)
    monkeypatch.setattr(follower, "RELEASE_PATIENCE", 1.0)
    monkeypatch.setattr(client, "PAUSES", (0.1,))
    between.refuse("DELETE", "/jobsets/", 503, times=float("inf"))
    cluster.single()
    job = run(jobs.attempt, accelerator=ONE_HOST, namespace=other)
    assert job.result(timeout=WITHIN) == 1
    assert len(cluster.api.get(f"/apis/{manifest.API}/namespaces/{other}/jobsets")["items"]) == 1
    between.heal()
    assert [found.name for found in reap() if found.what == "placement"] == [placements(job)[0]["name"]]


def test_a_namespace_that_stays_in_deletion_is_told_to_who_submits_and_hides_nothing(
    cluster: Cluster, lingering: Lingering, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = lingering.name
    cluster.single()
    job = run(jobs.until, str(tmp_path / "never"), accelerator=ONE_HOST, namespace=other, retry=NONE)
    wait_running(job)
    lingering.delete()
    with pytest.raises(JobError, match=r"ended on host 0 \(preemption\): this host received SIGTERM\n"):
        job.result(timeout=WITHIN)
    verdict = verdict_of(job)
    assert verdict is not None and (verdict.kind, verdict.cause, verdict.reason) == TAKEN
    wait_until(lambda: actions.release(job._job, 1) is Freed.DONE, "its end", pause=0.1)
    monkeypatch.setenv("KINETIC_NAMESPACES", f"{other},{cluster.namespace}")
    assert [one for one in reap() if one.what in (reaper.PLACEMENT, reaper.PLACE)] == []
    late = run(jobs.until, str(tmp_path / "never"), accelerator=ONE_HOST, namespace=other)
    with pytest.raises(JobError, match=refused_in(other)):
        late.result(timeout=WITHIN)


# ---- an API server that is away ----------------------------------------------------------------------------------


def test_a_job_finishes_while_the_api_server_is_away_and_nobody_calls_it_gone(
    cluster: Cluster, jobs: Any, tmp_path: Path
) -> None:
    cluster.pools()
    job = run(jobs.until, str(tmp_path / "go"), retry=NONE)
    wait_running(job)
    events: list[Any] = []
    reader = threading.Thread(target=lambda: events.extend(told(job)))
    cluster.plane.interrupt("kube-apiserver")
    try:
        reader.start()
        wait_until(lambda: job.peek().said.startswith("GET"), lambda: f"no answer: {job.peek()}", pause=0.2)
        assert job.peek().status is JobStatus.RUNNING
        (tmp_path / "go").touch()
        assert wait_for_verdict(job).kind == wire.COMMITTED
    finally:
        cluster.plane.resume("kube-apiserver")
    reader.join(WITHIN)
    assert job.result(timeout=WITHIN) == 1
    assert len(placements(job)) == 1


def test_a_job_outlives_the_renewal_of_its_clusters_authority_for_who_follows_it_and_for_who_comes_later(
    cluster: Cluster,
    jobs: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig-renewed"))

    def signed() -> tuple[Path, Callable[[], Path]]:
        """A certificate of a new authority, and what writes the kubeconfig that has it."""
        authority, file = Authority(), tmp_path / "shown.pem"
        file.write_text("".join(authority.signed("kube-apiserver", "127.0.0.1")), encoding="utf-8")
        encoded = base64.b64encode(authority.pem.encode()).decode()
        path, fields = tmp_path / "kubeconfig-renewed", {"certificate-authority-data": encoded}
        return file, lambda: kubeconfig_of(cluster.plane, cluster.namespace, path, server=between.url, **fields)

    certificate, write = signed()
    cluster.single(2)
    with Between(cluster.plane.kubeconfig, certificate) as between:
        write()
        job = run(jobs.until, str(tmp_path / "go"), accelerator=ONE_HOST)
        wait_running(job)
        certificate, write = signed()
        between.show(certificate)
        said = wait_until(lambda: job.peek().said, "the certificate is not trusted", pause=0.2)
        assert "is not trusted, so nothing was asked" in said and "write the kubeconfig anew" in said
        write()
        wait_until(lambda: not job.peek().said, lambda: f"it is seen again: {job.peek()}", pause=0.2)
        assert main(["status", job.job_id]) == codes.RUNNING
        assert "another one" not in "".join(capsys.readouterr())
        cluster.delete_set(placements(job)[0]["name"])
        assert wait_for_verdict(job).cause == wire.PREEMPTION
        (tmp_path / "go").touch()
        assert job.result(timeout=WITHIN) == 2
        first, second = placements(job)
        assert first["cluster"] != second["cluster"]
        assert actions.release(job._job, 1) is Freed.DONE
        cluster.wait_until_empty()


def test_a_cluster_that_is_no_longer_there_is_told_within_seconds_and_nothing_counts_as_freed(
    cluster: Cluster, jobs: Any, tmp_path: Path, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.1,))
    cluster.single()
    job = run(jobs.until, str(tmp_path / "go"), accelerator=ONE_HOST, retry=NONE)
    wait_running(job)
    between.stop()
    said = wait_until(lambda: job.peek().said, "its absence", within=10.0, pause=0.2)
    assert "Is the cluster there, and this machine in a network that reaches it?" in said
    assert job.peek().status is JobStatus.RUNNING
    assert actions.release(job._job, 1) is Freed.REFUSED
    assert [(found.what, found.result) for found in reap()] == [(reaper.PLACE, reaper.UNREAD)]
    (tmp_path / "go").touch()
    assert wait_for_verdict(job).kind == wire.COMMITTED
    (left,) = cluster.sets()
    wait_until(lambda: condition(cluster.sets()[0], "Completed"), "its end", pause=0.1)
    cluster.delete_set(left["metadata"]["name"])
