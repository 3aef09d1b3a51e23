"""Tests which cluster a placement means, on machines whose kubeconfigs differ. Nothing is asked of any cluster but an emulated one."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kinetic_orchestration.errors import NoPlace, UsageError
from kinetic_orchestration.jobs.request import draft
from kinetic_orchestration.plan import records
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.values import ABSENT, QUEUED, UNKNOWN, Freed, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.kubernetes.observing.waiting import NEVER
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import Cluster
from kinetic_orchestration.testing.kubernetes.api import certificate
from tests.core.platforms.kubernetes.attempts import attempt_of, plan_of
from tests.support.waits import wait_until

pytestmark = pytest.mark.fast


def configure(path: Path, monkeypatch: pytest.MonkeyPatch, **servers: str) -> KubernetesBackend:
    """The backend of a machine whose kubeconfig has a context for each server; nobody listens there."""
    named = [{"name": name, "cluster": {"server": server}} for name, server in servers.items()]
    contexts = [{"name": name, "context": {"cluster": name, "namespace": "team"}} for name in servers]
    path.write_text(json.dumps({"current-context": next(iter(servers)), "clusters": named, "contexts": contexts}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return KubernetesBackend(settings.load(), KubeconfigClusters())


@pytest.fixture
def placement(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return where the submitter's machine placed an attempt."""
    monkeypatch.setenv("KINETIC_STORE", "gs://bucket/kinetic")
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "prod")
    backend = configure(tmp_path / "theirs", monkeypatch, default="https://127.0.0.1:1")
    return backend.place(plan_of("v5e-4", zone="default/team"), "job-0123456789ab", 1)


def test_a_context_of_the_same_name_for_another_cluster_is_not_taken_for_it(
    placement: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every k3s is called default. Nothing follows from what another one lacks."""
    backend = configure(tmp_path / "ours", monkeypatch, default="https://127.0.0.1:2")
    [seen] = backend.observe([placement])
    assert (seen.state, seen.cause) == (UNKNOWN, "") and "is another one here" in seen.message
    assert backend.release(placement) is Freed.REFUSED
    asked = attempt_of(plan_of("v5e-4", zone="default/team"))
    asked = replace(asked, intent=asked.intent._replace(placement=placement))
    assert "waiting for a process that reaches the cluster default/team" in backend.submit(asked)


def test_a_machine_without_that_context_waits_for_one_that_has_it(
    placement: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = configure(tmp_path / "ours", monkeypatch, other="https://127.0.0.1:1")
    [seen] = backend.observe([placement])
    assert (seen.state, seen.cause) == (UNKNOWN, "")
    assert backend.release(placement) is Freed.REFUSED


# A certificate authority that is renewed


def placed(backend: KubernetesBackend, asked: Submission, previous: Past | None = None) -> Submission:
    """The attempt in the place that a backend chooses for it."""
    placement = backend.place(asked.plan, asked.job_id, asked.intent.attempt, previous)
    return replace(asked, intent=asked.intent._replace(placement=placement))


class Renewed(NamedTuple):
    """A cluster with a set of an attempt, and the kubeconfig that leads to it."""

    cluster: Cluster
    kubeconfig: Path
    asked: Submission

    @property
    def placement(self) -> Mapping[str, Any]:
        return self.asked.intent.placement

    def renew(self, *kept: str) -> None:
        """Renew its authority, and write the kubeconfig anew, in which these certificates stay."""
        self.cluster.renew_authority()
        self.cluster.write_kubeconfig(self.kubeconfig)
        config = json.loads(self.kubeconfig.read_text())
        found = "".join([*kept, self.cluster.authority])
        config["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(found.encode()).decode()
        self.kubeconfig.write_text(json.dumps(config))

    def next(self, backend: KubernetesBackend) -> Submission:
        """Place the attempt that follows."""
        past = Past(self.placement, wire.PREEMPTION, "Preempted", 1.0)
        return placed(backend, attempt_of(self.asked.plan, 2), past)


def backend_of() -> KubernetesBackend:
    """The backend of another process."""
    return KubernetesBackend(settings.load(), KubeconfigClusters())


@pytest.fixture
def running(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renewed]:
    with Cluster(tmp_path / "cluster") as cluster:
        path = cluster.write_kubeconfig(tmp_path / "kubeconfig")
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.setenv("KINETIC_STORE", "gs://bucket/kinetic")
        monkeypatch.setenv("KINETIC_DEPLOYMENT", "prod")
        backend = backend_of()
        asked = placed(backend, attempt_of(plan_of("v5e-4", zone="emulated/default", deployment="prod")))
        assert backend.submit(asked) == ""
        yield Renewed(cluster, path, asked)


def seen_by(backend: KubernetesBackend, running: Renewed) -> Observation:
    return backend.observe([running.placement])[0]


def test_whoever_follows_a_job_looks_once_for_a_renewed_authority_and_says_what_to_do_until_there_is_one(
    running: Renewed,
) -> None:
    backend = backend_of()
    known = seen_by(backend, running)
    assert known.state == QUEUED
    running.cluster.renew_authority()
    seen = seen_by(backend, running)
    assert seen.state == UNKNOWN
    assert "is not trusted, so nothing was asked" in seen.message and "write the kubeconfig anew" in seen.message
    running.cluster.write_kubeconfig(running.kubeconfig)
    seen_by(backend, running)  # which finds that the authority is another one now
    assert seen_by(backend, running) == known
    assert backend.release(running.placement) is not Freed.REFUSED


def test_a_cluster_with_a_renewed_authority_is_known_by_the_sets_of_its_jobs(running: Renewed) -> None:
    """A process that begins later, as an orchestrator's retry or `kinor status`, and the attempt that follows."""
    known = seen_by(backend_of(), running)
    assert known.state == QUEUED
    running.renew()
    backend = backend_of()
    gone = {**running.placement, "name": f"{running.placement['name']}0"}  # its set has ended, as another's may have
    assert backend.observe([gone, running.placement])[1] == known
    following = running.next(backend_of())
    assert following.intent.placement["cluster"] not in ("", running.placement["cluster"])
    assert backend.release(running.placement) is Freed.UNDER_WAY
    assert backend_of().submit(following) == ""  # by its own mark: the set of the first attempt is gone


def test_without_a_set_a_renewed_authority_is_known_by_the_old_certificate_beside_the_new_one(running: Renewed) -> None:
    old, placement = running.cluster.authority, running.placement
    backend = backend_of()
    wait_until(lambda: backend.release(placement) is Freed.DONE, "nothing is left of the set")
    running.renew()
    backend = backend_of()
    seen = seen_by(backend, running)
    assert seen.state == UNKNOWN
    assert "is another one here than where the job was submitted" in seen.message
    assert "let certificate-authority-data contain the old certificate, too" in seen.message
    assert "Its namespace default has no JobSet of the job" in seen.message
    assert backend.release(placement) is Freed.REFUSED
    running.renew(old)
    backend = backend_of()
    assert seen_by(backend, running).state == ABSENT
    assert backend.release(placement) is Freed.DONE
    following = running.next(backend).intent.placement
    running.renew()  # the old one is dropped, and the one before it remains nobody's
    assert backend_of().observe([following])[0].state == UNKNOWN


def test_a_kubeconfig_that_leads_elsewhere_by_now_frees_nothing(running: Renewed, tmp_path: Path) -> None:
    """The job's own cluster is away just when a context of its name is another one's: what that lacks is not gone."""
    backend = backend_of()
    assert seen_by(backend, running).state == QUEUED
    with Cluster(tmp_path / "another") as another:
        another.write_kubeconfig(running.kubeconfig)
        running.cluster.interrupt("kube-apiserver")
        for _ in range(3):
            seen = seen_by(backend, running)
            assert (seen.state, seen.cause) == (UNKNOWN, "")
        assert "is another one here" in seen.message
        assert backend.release(running.placement) is Freed.REFUSED


def test_a_certificate_that_the_authorities_of_two_clusters_share_makes_them_no_single_one(
    running: Renewed, tmp_path: Path
) -> None:
    root = certificate.write(tmp_path / "root.pem")  # as that of a company, beside the cluster's own
    running.renew(root)
    following = running.next(backend_of()).intent.placement
    with Cluster(tmp_path / "another") as another:
        running._replace(cluster=another).renew(root)
        seen = backend_of().observe([following])[0]
        assert seen.state == UNKNOWN
        assert "is another one here than where the job was submitted" in seen.message


def test_a_mark_of_an_older_release_means_the_same_cluster(running: Renewed) -> None:
    """It is of the whole text of the authority, be it of several certificates."""
    old = running.cluster.authority
    running.renew(old)
    text = "".join(f"{old}{running.cluster.authority}".split())
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert backend_of().observe([{**running.placement, "cluster": mark}])[0].state == QUEUED


def test_an_untrusted_record_leads_to_no_place_but_our_own(
    placement: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = configure(tmp_path / "ours", monkeypatch, default="https://127.0.0.1:1", prod="https://127.0.0.1:3")
    assert backend.names_place(placement)
    assert not backend.names_place({**placement, "zone": "prod/team"})
    assert not backend.names_place({**placement, "zone": "default/kube-system"})
    assert not backend.names_place({**placement, "name": ""})


def test_what_is_left_in_a_cluster_that_is_not_known_is_told(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = configure(tmp_path / "ours", monkeypatch, default="https://127.0.0.1:1")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    [unread] = backend.leftovers()
    assert unread["unread"]


def test_a_controller_that_is_away_is_told_as_soon_as_it_refuses_a_set(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.write_kubeconfig(tmp_path / "kubeconfig")))
        backend = KubernetesBackend(settings.load(), KubeconfigClusters())
        asked = attempt_of(plan_of("v5e-4", zone="emulated/default"))
        asked = replace(asked, intent=asked.intent._replace(placement=backend.place(asked.plan, asked.job_id, 1)))
        cluster.interrupt("jobset")
        told = backend.submit(asked)
    assert told.startswith("waiting: Kubernetes refused POST")
    assert told.endswith("connection refused; the controller behind that webhook does not answer, and is waited for")


def test_only_slices_of_tpus_are_counted(backend: KubernetesBackend) -> None:
    with pytest.raises(UsageError, match="num_slices is 2, and only slices of TPUs are joined: leave it out"):
        backend.check(plan_of("l4", slices=2))


# Places


@pytest.fixture
def backend(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesBackend:
    return configure(tmp_path / "ours", monkeypatch, a="https://127.0.0.1:1", b="https://127.0.0.1:2")


def queued(*queues: str) -> Plan:
    return plan_of("v5e-4", cloud=Kubernetes(queue=queues), zones=("a/ml", "b/ml"), zone_patience=60.0)


def trial(backend: KubernetesBackend, plan: Plan, ends: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The namespace and the queue of each attempt, of which the ones before ended so."""
    placement = backend.place(plan, "job-0123456789ab", 1)
    found = [(placement["zone"], placement["queue"])]
    for number, (cause, reason) in enumerate(ends, start=2):
        placement = backend.place(plan, "job-0123456789ab", number, Past(placement, cause, reason, 1.0))
        found.append((placement["zone"], placement["queue"]))
    return found


def test_each_queue_of_a_cluster_is_asked_before_the_next_cluster_and_then_the_first_again(
    backend: KubernetesBackend,
) -> None:
    out = (wire.STOCKOUT, "nothing became free within 60 s")
    assert trial(backend, queued("x", "y"), [out] * 4) == [
        ("a/ml", "x"), ("a/ml", "y"), ("b/ml", "x"), ("b/ml", "y"), ("a/ml", "x"),
    ]  # fmt: skip


def test_a_job_that_is_taken_out_of_a_queue_waits_there_again(backend: KubernetesBackend) -> None:
    ends = [(wire.QUOTA, "no room"), (wire.PREEMPTION, "Preempted"), (wire.PREEMPTION, "Preempted")]
    assert trial(backend, queued("x", "y"), ends) == [("a/ml", "x"), ("a/ml", "y"), ("a/ml", "y"), ("a/ml", "y")]


def test_a_queue_that_never_has_so_much_is_not_asked_again_and_others_of_its_namespace_are(
    backend: KubernetesBackend,
) -> None:
    never, out = (wire.QUOTA, f"the queue {NEVER}"), (wire.STOCKOUT, "nothing became free")
    plan = plan_of("v5e-4", cloud=Kubernetes(queue="x, y"), zone="a/ml")
    assert trial(backend, plan, [never, out]) == [("a/ml", "x"), ("a/ml", "y"), ("a/ml", "y")]
    with pytest.raises(NoPlace, match="no place is left to try of a/ml:x, a/ml:y"):
        trial(backend, plan, [never, never])


def test_only_a_place_that_has_others_is_left_for_want_of_patience(backend: KubernetesBackend) -> None:
    for queues, patience in ((("x",), 0.0), (("x", "y"), 60.0)):
        plan = plan_of("v5e-4", cloud=Kubernetes(queue=queues), zone="a/ml", zone_patience=60.0)
        assert backend.place(plan, "job-0123456789ab", 1)["patience"] == patience


def test_a_dry_run_names_the_places_that_follow(backend: KubernetesBackend) -> None:
    said, _, printed = backend.dry_run(queued("x", "y")).partition("\n")
    assert said.endswith("created in a/ml; without capacity there, in turn in a/ml:y, b/ml:x, b/ml:y")
    assert 'kueue.x-k8s.io/queue-name: "x"' in printed


def test_what_is_shown_and_tried_has_the_python_of_this_client_as_the_pods_will(backend: KubernetesBackend) -> None:
    """A function only runs under the minor version that pickled it."""
    assert f'image: "python:{sys.version_info[0]}.{sys.version_info[1]}"' in backend.dry_run(queued("x"))


@pytest.mark.parametrize(
    ("python", "image"),
    [
        ("3.99", "python:3.99"),
        ("3.99.1", "python:3.99"),
        (sys.executable, f"python:{sys.version_info[0]}.{sys.version_info[1]}"),
        ("./python3.99", "python:3.99"),
        ("venv/python", "python:3.99"),
        ("venv/pypy", "python:3"),
    ],
)
def test_what_is_tried_for_a_command_has_the_python_that_it_asks_for(
    backend: KubernetesBackend, python: str, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests an interpreter that is named by its path, as far as the file says so to which that leads."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/python").symlink_to(tmp_path / "python3.99")
    monkeypatch.chdir(tmp_path)
    options = Options(
        accelerator="cpu", backend="kubernetes", python=python, requirements=[],
        cloud=Kubernetes(clusters=["a"], namespaces=["ml"]),
    )  # fmt: skip
    here = replace(settings.load(), store="gs://bucket/kinetic", backend="kubernetes")
    planned = draft(JobSpec("python", options, argv=("python", "train.py")), here, found=True).plan
    assert f'image: "{image}"' in backend.dry_run(planned)
    records.PLAN(json.loads(json.dumps(planned.to_json())))


def test_a_namespace_is_looked_at_many_times_at_once_and_then_four_times_a_second(
    placement: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its jobs begin and end meanwhile, which share the limit."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    backend = configure(tmp_path / "theirs", monkeypatch, default="https://127.0.0.1:1")
    of_others = {**placement, "name": "another"}
    limit = backend.rate_limit(placement)
    assert limit is not None and limit is backend.rate_limit(of_others)
    assert limit is not backend.rate_limit({**placement, "zone": "default/other"})
    assert [limit.take() for _ in range(201)] == [True] * 200 + [False]
    now += 0.5
    assert [limit.take() for _ in range(3)] == [True, True, False]
