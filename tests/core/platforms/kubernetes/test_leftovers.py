"""Leftovers in all clusters and namespaces that settings or jobs' records name are found, released and told."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.jobs.trust import Trust, of
from kinetic_orchestration.jobs.watching import live_index
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.values import QUEUED, Freed
from kinetic_orchestration.platforms.kubernetes.api import client
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig_clusters import KubeconfigClusters
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.platforms.local.store import open_local
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from tests.core.platforms.kubernetes.api.scripted_server import Answer, Authority, Request, Server, serving, status
from tests.core.platforms.kubernetes.attempts import STAGED, attempt_of, plan_of
from tests.support.wire_tasks import in_spec

JOB = "job-0123456789ab"
KEY = "a-key-of-sixteen-characters"
OLD = 1e6


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class Cluster:
    """The JobSets of a cluster, which a server on loopback creates, lists and deletes."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sets: dict[tuple[str, str], dict[str, Any]] = {}  # by namespace and name
        self.terminating: set[str] = set()
        self.refuses: set[str] = set()  # namespaces in which this client may read nothing
        server.answer = self.answer

    def answer(self, asked: Request) -> Answer:
        _, _, after = asked.path.partition("/namespaces/")
        space, kind, *rest = after.split("/")
        name = rest[0] if rest else ""
        if space in self.refuses:
            return status(403, "Forbidden", f'cannot list resource "jobsets" in the namespace "{space}"')
        if kind != "jobsets":
            return Answer(200, {"kind": "List", "metadata": {}, "items": []})
        if asked.method == "POST":
            made = {**asked.body, "metadata": {**asked.body["metadata"], "uid": f"uid-{len(self.sets)}"}}
            self.sets[space, made["metadata"]["name"]] = made
            return Answer(201, made)
        if not name:
            found = [one for (where, _), one in self.sets.items() if where == space]
            return Answer(200, {"kind": "JobSetList", "metadata": {}, "items": found})
        if (one := self.sets.get((space, name))) is None:
            return status(404, "NotFound", name=name, kind="jobsets")
        if asked.method == "DELETE":
            if space in self.terminating:
                one["metadata"]["deletionTimestamp"] = "2026-11-27T00:00:00Z"
            else:
                del self.sets[space, name]
        return Answer(200, one)


class Here:
    """A process that has a kubeconfig with some clusters, and a store that it trusts."""

    def __init__(self, folder: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._authority, self._monkeypatch = folder, authority, monkeypatch
        self.clusters: dict[str, Cluster] = {}
        self._servers: dict[str, str] = {}
        self._closing = ExitStack()
        self.store = open_local(folder / "store", "test")
        monkeypatch.setattr(client, "PAUSES", ())

    def add(self, name: str, server: str = "") -> None:
        """Add a context; without a server, one that answers."""
        if not server:
            signed = self._authority.signed("kube-apiserver", "127.0.0.1")
            folder = self._folder / name
            folder.mkdir()
            running = self._closing.enter_context(serving(signed, self._authority.pem, folder))
            self.clusters[name], server = Cluster(running), running.url
        self._servers[name] = server
        self._write()

    def forget(self, name: str) -> None:
        del self._servers[name]
        self._write()

    def _write(self) -> None:
        authority = base64.b64encode(self._authority.pem.encode()).decode()
        config = {
            "clusters": [
                {"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}
                for name, server in self._servers.items()
            ],
            "contexts": [{"name": name, "context": {"cluster": name}} for name in self._servers],
        }
        path = self._folder / "kubeconfig"
        path.write_text(json.dumps(config))
        self._monkeypatch.setenv("KUBECONFIG", str(path))

    def settings(self, **changes: Any) -> Settings:
        return settings.load(backend="kubernetes", store=str(self._folder / "store"), deployment="test", **changes)

    def backend(self, **changes: Any) -> KubernetesBackend:
        """The backend of a new process with these settings."""
        backend = KubernetesBackend(self.settings(**changes), KubeconfigClusters())
        self._closing.callback(lambda: [api.close() for api in backend._apis.values()])
        return backend

    def submit(self, job_id: str, *places: str, believed: Trust = Trust(everything=True)) -> Job:  # noqa: B008 - frozen
        """A submitter that dies when its set is there."""
        known = self.settings()
        plan = plan_of("v5e-1", zone=places[0], store=known.store, deployment="test")
        plan = replace(plan, zones=places)
        spec = {"name": "train", "plan": plan.to_json(), "task": in_spec(), "staged": STAGED.to_json()}
        live_index.add(self.store, job_id)
        written = wire.encode({**spec, **({"signed": believed.key_id} if believed.key_id else {})})
        believed.sign(self.store, job_id, digest.of_bytes(written))
        self.store.create(names.spec(job_id), written)
        backend = self.backend()
        job = open_job(job_id, self.store, backend, believed)
        intent = actions.intend(job, 1)
        assert intent is not None
        assert backend.submit(replace(attempt_of(plan), job_id=job_id, intent=intent)) == ""
        return job

    def reap(self, **changes: Any) -> list[reaper.Reaped]:
        known = self.settings(**changes)
        found = reaper.reap(self.store, self.backend(**changes), known, patience=1.0)
        return [one for one in found if one.what in (reaper.PLACEMENT, reaper.PLACE)]

    def verdict(self, job_id: str) -> wire.Verdict | None:
        record = self.store.read(names.verdict(job_id, 1))
        return None if record is None else wire.Verdict.decode(record.data)

    def close(self) -> None:
        self._closing.close()


@pytest.fixture
def here(home: Path, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    for patience in ("SETTLED", "UNCLAIMED"):
        monkeypatch.setattr(reaper, patience, -OLD)
    monkeypatch.setattr(reaper, "AGAIN", 0.05)
    found = Here(tmp_path, authority, monkeypatch)
    yield found
    found.close()


def jobs_in(backend: KubernetesBackend) -> dict[str, str]:
    return {one["zone"]: one.get("job", "") for one in backend.leftovers()}


# ---- what settings name ------------------------------------------------------------------------------------------


def test_sets_are_found_in_every_namespace_of_every_cluster_that_is_named(here: Here) -> None:
    here.add("east")
    here.add("west")
    places = ["east/a", "east/b", "west/a", "west/b"]
    for number, place in enumerate(places):
        here.submit(f"job-{number:012d}", place)
    backend = here.backend(clusters="east,west", namespaces="a,b")
    assert jobs_in(backend) == {place: f"job-{number:012d}" for number, place in enumerate(places)}
    named = {"name": "x", "project": ""}
    assert all(backend.names_place({**named, "zone": place}) for place in places)
    assert not any(backend.names_place({**named, "zone": place}) for place in ("east/c", "north/a", "a", ""))
    assert jobs_in(here.backend(cluster="west", namespace="b")) == {"west/b": "job-000000000003"}


def test_a_cluster_that_cannot_be_read_is_told_and_hides_none_of_the_others(here: Here) -> None:
    here.add("east")
    here.add("lost", "https://127.0.0.1:1")
    here.submit(JOB, "east/a")
    here.clusters["east"].refuses.add("closed")
    found = list(here.backend(clusters="lost,unknown,east", namespaces="closed,a").leftovers())
    told = {one["zone"]: one.get("unread", one.get("job")) for one in found}
    assert told.pop("east/a") == JOB
    assert "403" in told.pop("east/closed")
    assert "got no answer" in told["lost/a"] and "unknown" in told["unknown/a"]
    assert set(told) == {"lost/a", "lost/closed", "unknown/a", "unknown/closed"}


def test_a_damaged_intent_is_unknown_while_a_named_cluster_cannot_be_read(here: Here) -> None:
    """Its set may be there."""
    here.add("east")
    here.add("lost", "https://127.0.0.1:1")
    backend = here.backend(clusters="east,lost", namespaces="a")
    assert actions.find_placement(backend, JOB, 1) is None
    assert actions.find_placement(here.backend(clusters="east", namespaces="a"), JOB, 1) == {}


def test_the_reaper_goes_through_all_of_them(here: Here) -> None:
    here.add("east")
    here.add("lost", "https://127.0.0.1:1")
    job = here.submit(JOB, "east/b")
    actions.close(job, 1, wire.CANCELLED, "enough")
    found = here.reap(clusters="lost,east", namespaces="a,b")
    assert sorted((one.zone, one.result) for one in found) == [
        ("east/b", reaper.REMOVED),
        ("lost/a", reaper.UNREAD),
        ("lost/b", reaper.UNREAD),
    ]
    assert here.clusters["east"].sets == {}


def test_a_set_in_a_namespace_that_is_being_deleted_is_on_its_way(here: Here) -> None:
    here.add("east")
    job = here.submit(JOB, "east/a")
    actions.close(job, 1, wire.CANCELLED, "enough")
    here.clusters["east"].terminating.add("a")
    assert [one.result for one in here.reap(cluster="east", namespace="a")] == [reaper.DELETING]
    assert here.backend(cluster="east").release(next(here.backend(cluster="east", namespace="a").leftovers())) is (
        Freed.UNDER_WAY
    )
    here.clusters["east"].sets.clear()
    assert here.reap(cluster="east", namespace="a") == []


# ---- what only records name --------------------------------------------------------------------------------------


def elsewhere(here: Here) -> dict[str, Any]:
    """The settings of a process that knows another place than the job's."""
    here.add("east")
    here.add("west")
    return {"cluster": "west", "namespace": "a"}


@pytest.mark.parametrize("ended", [True, False], ids=["has its verdict", "is past its deadline"])
def test_a_set_in_a_place_that_only_its_job_names_is_released(
    here: Here, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = elsewhere(here)
    job = here.submit(JOB, "east/b")
    if ended:
        actions.close(job, 1, wire.CANCELLED, "enough")
    else:
        monkeypatch.setattr(reaper, "EXPIRED", -OLD)
    assert [(one.zone, one.result) for one in here.reap(**known)] == [("east/b", reaper.REMOVED)]
    assert here.clusters["east"].sets == {}
    assert (here.verdict(JOB) or pytest.fail("no verdict")).cause == (wire.CANCELLED if ended else wire.DEADLINE)
    assert here.reap(**known) == []


def test_a_live_set_there_stays(here: Here) -> None:
    known = elsewhere(here)
    here.submit(JOB, "east/b")
    assert here.reap(**known) == []
    assert list(here.clusters["east"].sets) and here.verdict(JOB) is None


@pytest.mark.parametrize("gone", ["the set", "the context", "the server"])
def test_an_attempt_whose_place_is_gone_is_closed_after_its_deadline_and_not_looked_for_again(
    here: Here, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = elsewhere(here)
    here.submit(JOB, "east/b")
    monkeypatch.setattr(reaper, "EXPIRED", -OLD)
    if gone == "the set":
        here.clusters["east"].sets.clear()
    elif gone == "the context":
        here.forget("east")
    else:
        here.add("east", "https://127.0.0.1:1")
    (told,) = here.reap(**known)
    assert told.why.startswith("its deadline passed")
    assert told.result == (reaper.REMOVED if gone == "the set" else reaper.LEFT)
    assert (here.verdict(JOB) or pytest.fail("no verdict")).cause == wire.DEADLINE
    assert here.reap(**known) == []


def test_a_submit_that_looks_now_and_then_closes_what_is_signed_with_its_key(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No verdict of such a job counts without a seal."""
    here.add("east")
    monkeypatch.setattr(type(here.store), "trusted", False)
    monkeypatch.setattr(reaper, "EXPIRED", -OLD)
    known = here.settings(cluster="east", namespace="a", signing_key=KEY)
    here.submit(JOB, "east/a", believed=of(known))
    reaper._pass(here.store, here.backend(cluster="east", namespace="a"), known, tmp_path / "marker")
    assert here.clusters["east"].sets == {}
    verdict = here.verdict(JOB)
    assert verdict is not None and of(known).has_sealed(here.store, JOB, 1, verdict)


def test_a_job_that_nobody_vouches_for_leads_to_no_place(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who can write to a bucket may name any cluster of ours in it."""
    known = elsewhere(here)
    job = here.submit(JOB, "east/b")
    actions.close(job, 1, wire.CANCELLED, "enough")
    monkeypatch.setattr(type(here.store), "trusted", False)
    before = len(here.clusters["east"].server.requests)
    assert here.reap(**known, signing_key=KEY) == []
    assert len(here.clusters["east"].server.requests) == before


def test_what_a_process_knows_decides_what_it_observes_of_the_untrusted(here: Here) -> None:
    here.add("east")
    here.add("west")
    here.submit(JOB, "west/b")
    (placement,) = here.backend(cluster="west", namespace="b").leftovers()
    several = here.backend(clusters="east,west", namespaces="a,b")
    assert several.names_place(placement)
    (seen,) = several.observe([placement])
    assert seen.state == QUEUED


def test_the_first_of_several_is_the_usual_place(here: Here) -> None:
    here.add("east")
    here.add("west")
    assert here.backend(clusters="west,east", namespaces="b,a").usual_place() == "west/b"
    assert here.backend(cluster="east", clusters="west", namespaces="b").usual_place() == "east/b"
