"""The requests of a look at many sets, to an API server that answers from a table of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.plan.values import ABSENT, PRESENT, QUEUED, Observation
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.api import answers
from kinetic_orchestration.platforms.kubernetes.api.client import TABLE, Api
from kinetic_orchestration.platforms.kubernetes.observing import observer, states
from kinetic_orchestration.platforms.kubernetes.observing.observer import Observer
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.platforms.shared.cluster_access import Access
from kinetic_orchestration.protocol import names
from tests.core.platforms.kubernetes.api.scripted_server import Answer, Authority, Request, Server, serving, status

pytestmark = pytest.mark.fast

Object = dict[str, Any]

MARK = "08cccce2"
COLUMNS = {"jobsets": ("Name", "TerminalState", "Suspended", "Age"), "pods": ("Name", "Ready", "Status", "Age")}


class Cluster:
    """Sets of one pod each, by the phase of that, and how they are told."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.phases: dict[str, str] = {}
        self.tables = True
        self.moment = 0
        self.queue: Answer | None = None  # of Kueue, which holds all sets back
        self.behind: dict[str, str] | None = None  # what the server's memory has, which is older
        server.answer = self.answer

    def add(self, count: int, phase: str) -> list[Object]:
        """Have so many more sets; their placements."""
        numbers = range(len(self.phases), len(self.phases) + count)
        found = [f"kinetic-{MARK}-{number:012x}-1" for number in numbers]
        self.phases |= dict.fromkeys(found, phase)
        return [{"zone": "context/team", "name": name, "hosts": 1, "slices": 1} for name in found]

    def answer(self, request: Request) -> Answer:
        self.moment += 1
        kind = request.path.rpartition("/")[2]
        cached = request.query.get("resourceVersion") == "0"
        phases = self.behind if cached and self.behind is not None else self.phases
        chosen = re.search(r"kinetic-job in \((.*)\)", request.query.get("labelSelector", ""))
        wanted = chosen[1].split(",") if chosen is not None else None
        mine = {name: phase for name, phase in phases.items() if wanted is None or names.job_of_slice(name) in wanted}
        if kind == "workloads" and self.queue is not None:
            return self.queue
        if kind == "events":
            return Answer(body={"kind": "EventList", "items": []})
        if request.headers["Accept"] == TABLE and self.tables:
            rows = [{"cells": self.cells(kind, name, phase)} for name, phase in mine.items()]
            columns = [{"name": name} for name in COLUMNS[kind]]
            return Answer(body={"kind": "Table", "columnDefinitions": columns, "rows": rows})
        items = [self.whole(kind, name, phase) for name, phase in mine.items()]
        return Answer(body={"kind": "List", "items": items})

    def cells(self, kind: str, name: str, phase: str) -> list[Any]:
        own = [name, None, None] if kind == "jobsets" else [f"{name}-s-0-0-abcde", "1/1", phase]
        return [*own, f"{self.moment}s"]

    def whole(self, kind: str, name: str, phase: str) -> Object:
        version = f"{name} {phase}"
        if kind == "jobsets":
            held = {"labels": {manifest.QUEUE: "research"}} if self.queue is not None else {}
            metadata = {"name": name, "uid": name, "resourceVersion": version, **held}
            return {"metadata": metadata, "spec": {"suspend": self.queue is not None}}
        metadata = {"name": f"{name}-s-0-0-abcde", "resourceVersion": version, "labels": {observer.JOBSET: name}}
        return {"metadata": metadata, "spec": {}, "status": {"phase": phase}}

    def asked(self) -> list[Request]:
        """The requests since the last call."""
        found, self.server.requests = self.server.requests, []
        return found


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def cluster(authority: Authority, tmp_path: Path) -> Iterator[Cluster]:
    with serving(authority.signed("kube-apiserver", "127.0.0.1"), authority.pem, tmp_path) as server:
        yield Cluster(server)


@pytest.fixture
def look(cluster: Cluster, authority: Authority) -> Iterator[Any]:
    mine = Observer(MARK)

    def judge(placement: Any, seen: states.Seen) -> Observation:
        return states.judge(placement, seen).observation

    with Api(Access(cluster.server.url, "the test", authority=authority.pem, token=lambda fresh: "x")) as api:
        yield lambda placements: [one.state for one in mine.observe(api, placements, judge)]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (status(403, "Forbidden", "workloads.kueue.x-k8s.io is forbidden"), "the right list workloads.kueue.x-k8s.io"),
        (status(404, "NotFound", "the server could not find the requested resource"), "serves no Kueue"),
        (Answer(body={"kind": "WorkloadList", "items": []}), "Kueue has not said why yet"),
    ],
)
def test_why_a_queue_says_nothing_is_told(cluster: Cluster, authority: Authority, said: Answer, told: str) -> None:
    cluster.queue = said
    [placement] = cluster.add(1, "Pending")

    def judge(placement: Any, seen: states.Seen) -> Observation:
        return states.judge(placement, seen._replace(pods=())).observation

    with Api(Access(cluster.server.url, "the test", authority=authority.pem, token=lambda fresh: "x")) as api:
        [found] = Observer(MARK).observe(api, [placement], judge)
    assert found.state == QUEUED and told in found.message


@pytest.mark.parametrize("versions", [("v1beta1",), ("v1beta2",), ("v1beta1", "v1beta2")])
def test_a_queue_is_read_in_the_version_that_its_cluster_serves(
    cluster: Cluster, authority: Authority, versions: tuple[str, ...]
) -> None:
    """Kueue before 0.15 has the older one alone. The one that answered is asked first from then on."""
    cluster.queue = Answer(body={"kind": "WorkloadList", "items": []})
    [placement] = cluster.add(1, "Pending")
    workload = {
        "metadata": {"name": "of-it", "ownerReferences": [{"uid": placement["name"]}]},
        "spec": {"queueName": "research"},
        "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": "no room"}]},
    }
    pending = {"items": [{"metadata": {"name": "of-it"}, "positionInLocalQueue": 2}]}
    asked: list[str] = []

    def answer(request: Request) -> Answer:
        if "kueue" not in request.path:
            return cluster.answer(request)
        _, _, _, version, *_, kind = request.path.split("/")
        asked.append(f"{version} {kind}")
        if version not in versions:
            return status(404, "NotFound", "the server could not find the requested resource")
        found = {"workloads": {"items": [workload]}, "pendingworkloads": pending}[kind]
        return Answer(body={"kind": "List", **found})

    cluster.server.answer = answer

    def judge(placement: Any, seen: states.Seen) -> Observation:
        return states.judge(placement, seen._replace(pods=())).observation

    with Api(Access(cluster.server.url, "the test", authority=authority.pem, token=lambda fresh: "x")) as api:
        for _ in range(2):
            [found] = Observer(MARK).observe(api, [placement], judge)
            assert "it waits in the queue research, place 3 in it: no room" in found.message
    newest = versions[-1]
    before = ["v1beta2 workloads"] if newest != "v1beta2" else []
    assert asked == [*before, *[f"{newest} workloads", f"{newest} pendingworkloads"] * 2]


def kinds(requests: list[Request]) -> list[str]:
    return [request.path.rpartition("/")[2] for request in requests]


def whole(requests: list[Request]) -> list[Request]:
    """Those for objects."""
    return [request for request in requests if request.headers["Accept"] != TABLE]


@pytest.mark.parametrize("count", [1, 3, 230])
def test_sets_that_run_cost_two_requests_for_rows(cluster: Cluster, look: Any, count: int) -> None:
    placements = cluster.add(count, "Running")
    assert look(placements) == [PRESENT] * count
    cluster.asked()
    for _ in range(2):
        assert look(placements) == [PRESENT] * count
        asked = cluster.asked()
        assert kinds(asked) == ["jobsets", "pods"]
        assert {request.query["includeObject"] for request in asked} == {"None"}
        assert whole(asked) == []


def test_a_set_whose_row_changes_is_read_alone(cluster: Cluster, look: Any) -> None:
    placements = cluster.add(230, "Running")
    look(placements)
    cluster.asked()
    cluster.phases[placements[7]["name"]] = "Failed"
    assert look(placements)[7] != PRESENT
    read = whole(cluster.asked())
    assert kinds(read) == ["jobsets", "pods"]
    wanted = f"{ownership.MARK}={MARK},{ownership.JOB} in (job-{7:012x})"
    assert {request.query["labelSelector"] for request in read} == {wanted}


def test_many_sets_are_read_by_hundreds(cluster: Cluster, look: Any) -> None:
    look(cluster.add(230, "Running"))
    read = whole(cluster.asked())
    assert kinds(read) == ["jobsets", "pods"] * 3
    assert [request.query["labelSelector"].count("job-") for request in read] == [100, 100, 100, 100, 30, 30]


def test_what_explains_a_wait_is_read_again_after_a_while(
    cluster: Cluster, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    placements = cluster.add(2, "Pending")
    assert look(placements) == [QUEUED] * 2
    cluster.asked()
    assert look(placements) == [QUEUED] * 2
    assert whole(cluster.asked()) == []
    monkeypatch.setattr(observer, "EXPLAINED_SECONDS", 0.0)
    monkeypatch.setattr(observer, "EXPLAINED_PER_SECOND", 1e9)
    look(placements)
    assert kinds(whole(cluster.asked())) == ["jobsets", "pods"]


def test_the_more_sets_wait_the_longer_an_explanation_stands(
    cluster: Cluster, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "EXPLAINED_SECONDS", 0.0)
    few, many = cluster.add(1, "Pending"), cluster.add(230, "Pending")
    monkeypatch.setattr(observer, "EXPLAINED_PER_SECOND", 1e9)
    look(few)
    look(many)
    monkeypatch.setattr(observer, "EXPLAINED_PER_SECOND", 1)
    cluster.asked()
    look(many)  # within 230 s
    assert whole(cluster.asked()) == []


def test_a_set_without_a_row_is_asked_for_since_the_servers_memory_may_lack_it(cluster: Cluster, look: Any) -> None:
    placements = cluster.add(1, "Running")
    cluster.behind = {}
    assert look(placements) == [PRESENT]
    cluster.phases.clear()
    assert look(placements) == [ABSENT]
    cluster.asked()
    look(placements)
    assert [request.query.get("resourceVersion") for request in whole(cluster.asked())] == [None, None]


def test_a_server_without_tables_is_read_by_the_versions_of_its_objects(cluster: Cluster, look: Any) -> None:
    cluster.tables = False
    placements = cluster.add(3, "Running")
    assert look(placements) == [PRESENT] * 3
    cluster.asked()
    assert look(placements) == [PRESENT] * 3
    assert whole(cluster.asked()) == []
    cluster.phases[placements[1]["name"]] = "Failed"
    assert look(placements)[1] != PRESENT
    assert kinds(whole(cluster.asked())) == ["jobsets", "pods"]


def test_a_set_that_was_deleted_and_made_again_is_read_though_its_rows_are_the_same(
    cluster: Cluster, look: Any
) -> None:
    [placement] = cluster.add(1, "Pending")
    look([placement])
    phase = cluster.phases.pop(placement["name"])
    look([placement])
    cluster.phases[placement["name"]] = phase
    cluster.asked()
    look([placement])
    assert kinds(whole(cluster.asked())) == ["jobsets", "pods"]


def test_what_was_kept_of_sets_that_nobody_asks_for_is_dropped(
    cluster: Cluster, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "MOST", 2)
    first, others = cluster.add(1, "Running"), cluster.add(5, "Running")
    look(first)
    look(others[:2])
    cluster.asked()
    look(first)
    assert whole(cluster.asked()) == []
    look(others[2:])
    cluster.asked()
    look(first)
    assert kinds(whole(cluster.asked())) == ["jobsets", "pods"]


@pytest.mark.parametrize("name", ["", "x", "other", "a) , b=(c-1"])
def test_a_name_that_no_slice_has_selects_nothing_else(cluster: Cluster, look: Any, name: str) -> None:
    """Records of others may have any."""
    [mine] = cluster.add(1, "Running")
    assert look([mine, {**mine, "name": name}]) == [PRESENT, ABSENT]
    for request in cluster.asked():
        assert re.fullmatch(r"[\w=,-]+ in \([a-z0-9,-]*\)", request.query["labelSelector"])


def test_the_job_of_a_slice_is_in_its_name() -> None:
    assert names.job_of_slice(names.slice_of("gs://b", "prod", "job-0123456789ab", 12)) == "job-0123456789ab"


def test_the_age_of_a_row_is_no_part_of_it() -> None:
    columns = [{"name": name} for name in ("Name", "Status", "Age")]
    found = [
        answers.rows({"kind": "Table", "columnDefinitions": columns, "rows": [{"cells": ["a", None, age]}]})
        for age in ("1s", "2s")
    ]
    assert found == [[answers.Row("a", ("None",))]] * 2
    assert answers.rows({"kind": "Table", "columnDefinitions": columns, "rows": None}) == []
