"""Tests what answers of a cluster mean for a deployment when they come late, or do not come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import DeploymentBusy, DeploymentFailed
from kinetic_orchestration.models.serving import admission, smoke
from kinetic_orchestration.models.serving.declaration import SmokeTest
from kinetic_orchestration.models.serving.revisions import Revisions
from kinetic_orchestration.platforms.kubernetes.api import client, connection
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.shared.cluster_access import Access
from tests.core.platforms.kubernetes.api.scripted_server import Answer, Authority, Request, Server, serving, status

pytestmark = pytest.mark.fast


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    authority = Authority()
    with serving(authority.signed("kube-apiserver", "127.0.0.1"), authority.pem, tmp_path) as it:
        it.authority = authority.pem  # type: ignore[attr-defined]
        yield it


def opened(server: Server, **more: float) -> Api:
    return Api(Access(server.url, "the test", authority=server.authority, token=lambda fresh: "t"), **more)  # type: ignore[attr-defined]


def test_the_first_answer_of_a_server_may_take_as_long_as_its_smoke_test_allows(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 1.0)
    late = {"choices": [{"text": " Paris"}]}

    def answer(request: Request) -> Answer:
        return Answer(200, {"data": [{"id": "m"}]}) if request.method == "GET" else Answer(200, late, pause=1.5)

    server.answer = answer
    with opened(server, timeout=1.0) as api:  # less than a first request may take, which compiles
        said = smoke.test(api, "/p", "m", SmokeTest({"a": " Paris"}, latency=20.0), lambda: None)
        assert "1 of 1 prompts, 100% agree" in said
        asked = len(server.requests)
        with pytest.raises(DeploymentFailed, match=r"took .* to answer 'a', and 0.5 s are allowed"):
            smoke.test(api, "/p", "m", SmokeTest({"a": " Paris"}, latency=0.5), lambda: None)
        assert [one.method for one in server.requests[asked:]] == ["GET", "POST"], "it is asked once"


@pytest.mark.parametrize(
    ("told", "has_sleep"),
    [
        (Answer(200, {"major": "1", "minor": "29+", "gitVersion": "v1.29.14-gke.1018000"}), False),
        (Answer(200, {"major": "1", "minor": "30", "gitVersion": "v1.30.0"}), True),
        (Answer(200, {"major": "1", "minor": "9", "gitVersion": "v1.9.11"}), False),
        (Answer(200, {"gitVersion": "of our own"}), True),
        (status(403, "Forbidden", "nobody may ask"), True),
    ],
    ids=["1.29", "1.30", "1.9", "unknown", "forbidden"],
)
def test_a_cluster_before_1_30_has_no_sleep_before_the_end(server: Server, told: Answer, has_sleep: bool) -> None:
    server.answer = lambda _: told
    with opened(server) as api:
        assert admission.has_sleep(api) is has_sleep
    assert [one.path for one in server.requests] == ["/version"]


class Head:
    """The head of a server as a cluster keeps it, of whose answers to writes the first ones are lost."""

    def __init__(self, lost: int) -> None:
        self.lost, self.version, self.data = (
            lost,
            1,
            {"state": json.dumps({"current": 0, "history": [], "pending": [], "holder": "", "by": "", "until": 0.0})},
        )

    def answer(self, request: Request) -> Answer:
        if request.method == "PATCH":
            if request.body["metadata"]["resourceVersion"] != str(self.version):
                return status(409, "Conflict", "the object has been modified")
            self.version, self.data = self.version + 1, request.body["data"]
            if self.lost:
                self.lost -= 1
                return Answer(reset=True)
        shown: dict[str, Any] = {
            "kind": "ConfigMap",
            "metadata": {"resourceVersion": str(self.version)},
            "data": self.data,
        }
        return Answer(200, shown)


def test_a_turn_whose_answer_was_lost_is_this_clients(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.01, 0.02))
    server.answer = Head(lost=2).answer
    with opened(server) as api:
        mine, others = Revisions(api, "serving", "ranker"), Revisions(api, "serving", "ranker")
        taken = mine.take()
        assert taken.holder == mine.holder
        told = mine.write(mine.hold()._replace(pending=(1,)))
        assert told.pending == (1,) and mine.hold() == told
        with pytest.raises(DeploymentBusy):
            others.take()
        with pytest.raises(DeploymentBusy, match="at the same moment"):
            others.write(taken._replace(holder=others.holder))  # of a head that has changed
