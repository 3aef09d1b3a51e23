"""The client of a cluster's API against a real server with TLS, which answers what real ones seldom do."""

from __future__ import annotations

import base64
import http.server
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kinetic_orchestration import __version__
from kinetic_orchestration.errors import CredentialsError
from kinetic_orchestration.platforms.kubernetes.api import answers, client, connection, kubeconfig
from kinetic_orchestration.platforms.kubernetes.api.answers import ApiError, Cause, Row
from kinetic_orchestration.platforms.kubernetes.api.client import Api, Exchange, listening
from kinetic_orchestration.platforms.shared.cluster_access import Access, Pair
from tests.core.platforms.kubernetes.api.scripted_server import (
    Answer,
    Authority,
    Request,
    Server,
    page,
    pod,
    serving,
    status,
)

PODS = "/api/v1/namespaces/default/pods"
TOO_OLD = status(410, "Expired", "The provided continue parameter is too old")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def server(authority: Authority, tmp_path: Path) -> Iterator[Server]:
    with serving(authority.signed("kube-apiserver", "127.0.0.1", "kubernetes"), authority.pem, tmp_path) as it:
        yield it


class Tokens:
    """A source of tokens that counts how often it was asked for a new one."""

    def __init__(self) -> None:
        self.fresh = 0

    def token(self, fresh: bool) -> str:
        self.fresh += fresh
        return f"token-{self.fresh}"


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


@pytest.fixture
def access(server: Server, authority: Authority, tokens: Tokens) -> Access:
    return Access(server.url, "the test's own kubeconfig", authority=authority.pem, token=tokens.token)


@pytest.fixture
def api(access: Access) -> Iterator[Api]:
    with Api(access) as it:
        yield it


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSES", (0.01, 0.02))


def names(found: Any) -> list[str]:
    return [one["metadata"]["name"] for one in found]


def refused(api: Api, path: str = PODS) -> ApiError:
    with pytest.raises(ApiError) as caught:
        api.get(path)
    return caught.value


# ---- what is sent ----------------------------------------------------------------------------------------------


def test_a_request_has_an_agent_and_a_token_and_keeps_its_connection(server: Server, api: Api) -> None:
    assert api.get(PODS)["kind"] == api.get(PODS)["kind"] == "PodList"
    first, second = server.requests
    assert first.headers["User-Agent"] == f"kinetic-orchestration/{__version__}"
    assert first.token == "token-0"
    assert first.connection == second.connection


def test_the_time_is_the_servers_whatever_this_machines_clock_says(server: Server, api: Api) -> None:
    assert abs(api.now() - time.time()) < 60.0  # before it has told
    server.script(Answer(200, {"kind": "PodList", "items": []}, {"Date": "Sat, 01 Jan 2000 00:00:00 GMT"}))
    api.get(PODS)
    assert 0.0 <= api.now() - 946684800.0 < 60.0


def test_creating_is_strict_and_can_be_tried(server: Server, api: Api) -> None:
    server.script(Answer(201, {"kind": "Pod"}))
    api.create(PODS, pod("a"))
    api.create(PODS, pod("a"), dry_run=True)
    real, dry = server.requests
    assert (real.method, real.path, real.body) == ("POST", PODS, pod("a"))
    assert real.query == {"fieldManager": "kinetic-orchestration", "fieldValidation": "Strict"}
    assert dry.query == {**real.query, "dryRun": "All"}


def test_applying_is_strict_names_its_manager_and_can_be_tried(server: Server, api: Api) -> None:
    server.script(Answer(200, pod("a") | {"kind": "Pod"}))
    assert api.apply(f"{PODS}/a", pod("a"), manager="tests")["metadata"]["name"] == "a"
    api.apply(f"{PODS}/a", pod("a"), manager="tests", force=True, dry_run=True)
    real, dry = server.requests
    assert (real.method, real.headers["Content-Type"], real.body) == ("PATCH", "application/apply-patch+yaml", pod("a"))
    assert real.query == {"fieldManager": "tests", "fieldValidation": "Strict", "force": "false"}
    assert dry.query == {**real.query, "force": "true", "dryRun": "All"}


def test_fields_that_others_hold_are_told_and_nothing_is_repeated(server: Server, api: Api) -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "field": ".spec.replicas",
            "message": 'conflict with "kubectl" using apps/v1',
        },
        {"reason": "FieldManagerConflict", "field": ".spec.x", "message": 'conflict with "\x1b]0;me"'},
    ]
    server.script(status(409, "Conflict", "Apply failed with 2 conflicts", causes=causes))
    with pytest.raises(ApiError) as caught:
        api.apply(f"{PODS}/a", pod("a"), manager="tests")
    assert caught.value.kind == answers.CONFLICT
    assert answers.rivals(caught.value) == ((".spec.replicas", "kubectl using apps/v1"), (".spec.x", r"\x1b]0;me"))
    assert len(server.requests) == 1


def test_a_field_that_there_is_not_is_no_failure_of_the_server(server: Server, api: Api) -> None:
    words = "failed to create typed patch object (a; v1, Kind=Pod): .spec.colour: field not declared in schema"
    server.script(status(500, "", words))
    with pytest.raises(ApiError, match=r"\.spec\.colour") as caught:
        api.apply(f"{PODS}/a", pod("a"), manager="tests")
    assert (caught.value.kind, len(server.requests)) == (answers.INVALID, 1)


def test_what_is_behind_the_server_answers_as_it_likes(server: Server, api: Api) -> None:
    path = "/api/v1/namespaces/default/services/a:80/proxy/x"
    absent = status(503, "ServiceUnavailable", "no endpoints available for service")
    server.script(absent, Answer(200, b"hello"), Answer(404, {"error": {"message": "no x"}}), Answer(500, b"oh"))
    assert api.through(path).body == b"hello"  # once there is somebody
    assert api.through(path, {"a": 1}).status == 404
    assert api.through(path).status == 500
    assert [(request.method, request.body) for request in server.requests[1:]] == [
        ("GET", None),
        ("POST", {"a": 1}),
        ("GET", None),
    ]
    server.script(status(403, "Forbidden", "may not"))
    with pytest.raises(ApiError) as caught:
        api.through(path)
    assert caught.value.kind == answers.FORBIDDEN


def test_what_is_behind_the_server_may_take_as_long_as_the_caller_says(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 1.0)
    path = "/api/v1/namespaces/default/services/a:80/proxy/x"
    server.answer = lambda request: Answer(200, b"late", pause=1.5)
    with Api(api.access, timeout=1.0, patience=0.0) as quick:
        assert quick.through(path, {"a": 1}, within=20.0).body == b"late"
        with pytest.raises(ApiError, match="nothing came in 1 s"):  # of the same connection
            quick.through(path, {"a": 1})
    assert len({request.connection for request in server.requests}) == 1


def test_deleting_names_the_object_itself(server: Server, api: Api) -> None:
    server.script(Answer(200, {"kind": "Status", "status": "Success"}))
    api.delete(f"{PODS}/a", uid="u", propagation="Foreground")
    api.delete(f"{PODS}/a")
    options = {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert [request.body for request in server.requests] == [
        {**options, "propagationPolicy": "Foreground", "preconditions": {"uid": "u"}},
        {**options, "propagationPolicy": "Background"},
    ]


def test_a_path_in_the_servers_address_comes_first(server: Server, access: Access) -> None:
    with Api(access._replace(server=f"{server.url}/k8s/clusters/c-1")) as api:
        api.get(PODS)
    assert server.requests[0].path == f"/k8s/clusters/c-1{PODS}"


def test_headers_of_a_user_who_is_acted_for_are_sent(server: Server, access: Access) -> None:
    with Api(access._replace(headers=(("Impersonate-User", "them"), ("Impersonate-Group", "g")))) as api:
        api.get(PODS)
    assert server.requests[0].headers["Impersonate-User"] == "them"


# ---- lists -----------------------------------------------------------------------------------------------------


def test_a_list_follows_its_pages(server: Server, api: Api) -> None:
    server.script(page("a", "b", more="next"), page("c"))
    found = api.list(PODS, labels="app=x", fields="status.phase=Running", limit=2, cached=True)
    assert names(found) == ["a", "b", "c"]
    chosen = {"labelSelector": "app=x", "fieldSelector": "status.phase=Running", "limit": "2"}
    assert [request.query for request in server.requests] == [
        {**chosen, "resourceVersion": "0"},
        {**chosen, "continue": "next"},  # with which a server refuses a version
    ]


def test_rows_are_asked_for_without_their_objects_and_follow_their_pages(server: Server, api: Api) -> None:
    def table(name: str, **metadata: str) -> Answer:
        columns = [{"name": column} for column in ("Name", "Status", "Age")]
        rows = [{"cells": [name, "Running", "3s"], "object": None}]
        return Answer(200, {"kind": "Table", "metadata": metadata, "columnDefinitions": columns, "rows": rows})

    server.script(table("a", **{"continue": "next"}), table("b"))
    assert api.rows(PODS, labels="app=x", cached=True) == [Row("a", ("Running",)), Row("b", ("Running",))]
    assert {request.headers["Accept"] for request in server.requests} == {client.TABLE}
    chosen = {"labelSelector": "app=x", "includeObject": "None", "limit": "500"}
    asked = [request.query for request in server.requests]
    assert asked == [{**chosen, "resourceVersion": "0"}, {**chosen, "continue": "next"}]


def test_a_list_that_expired_begins_again_and_has_nothing_twice(server: Server, api: Api) -> None:
    server.script(page("a", more="old"), TOO_OLD, page("a", more="new"), page("b"))
    assert names(api.list(PODS, limit=1)) == ["a", "b"]


def test_a_list_that_expires_each_time_is_read_in_one_piece(server: Server, api: Api) -> None:
    def answer(request: Request) -> Answer:
        if "continue" in request.query:
            return TOO_OLD
        return page("a", more="old") if "limit" in request.query else page("a", "b")

    server.answer = answer
    assert names(api.list(PODS, limit=1)) == ["a", "b"]
    assert len(server.requests) == 5


def test_an_empty_list_may_be_null(server: Server, api: Api) -> None:
    server.script(Answer(200, {"kind": "PodList", "metadata": {}, "items": None}))
    assert list(api.list(PODS)) == []


# ---- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (status(404, "NotFound", 'pods "a" not found', name="a", kind="pods"), answers.ABSENT),
        (status(404, "NotFound", "the server could not find the requested resource"), answers.UNSERVED),
        (Answer(404, b"404 page not found\n", {"Audit-Id": "1"}), answers.UNSERVED),
        (Answer(404, b"404 page not found\n"), answers.UNREACHABLE),  # many servers written in Go say so
        (status(409, "AlreadyExists"), answers.EXISTS),
        (status(409, "Conflict"), answers.CONFLICT),
        (status(400, "BadRequest"), answers.INVALID),
        (status(422, "Invalid"), answers.INVALID),
        (status(403, "Forbidden"), answers.FORBIDDEN),
        (status(410, "Gone"), answers.GONE),
    ],
)
def test_each_refusal_has_its_kind_and_is_not_repeated(server: Server, api: Api, answer: Answer, kind: str) -> None:
    server.script(answer)
    error = refused(api)
    assert (error.kind, error.status, error.passing) == (kind, answer.status, False)
    assert len(server.requests) == 1


def test_a_refusal_tells_the_fields_and_obeys_no_terminal(server: Server, api: Api) -> None:
    cause = {"field": "spec.name", "reason": "FieldValueInvalid", "message": "too \x1b]0;long"}
    server.script(status(422, "Invalid", "no\x1b[2J good", name="a", causes=[cause]))
    error = refused(api)
    assert error.causes == (Cause("spec.name", "FieldValueInvalid", "too \\x1b]0;long"),)
    assert error.details["name"] == "a"
    assert error.words == "no\\x1b[2J good"
    assert f"GET {server.url}{PODS}: 422 Invalid" in str(error)


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_what_passes_is_asked_again(server: Server, api: Api, code: int) -> None:
    server.script(Answer(code, b"<html>busy</html>"), status(code, "ServiceUnavailable"), page("a"))
    assert names(api.list(PODS)) == ["a"]
    server.script(status(code, "InternalError", "failed calling webhook: no endpoints available"))
    error = refused(api)
    assert (error.kind, error.passing) == (answers.BUSY, True)
    assert "no endpoints" in error.words
    assert len(server.requests) == 3 + 3


def test_a_server_is_given_the_time_that_it_asks_for(server: Server, api: Api) -> None:
    server.script(Answer(429, b"Too many requests, please try again later.", {"Retry-After": "1"}), page("a"))
    began = time.monotonic()
    assert names(api.list(PODS)) == ["a"]
    assert time.monotonic() - began >= 1


def test_nobody_waits_for_longer_than_the_bound(server: Server, api: Api) -> None:
    server.script(status(503, "ServiceUnavailable", "later", retryAfterSeconds=3600))
    error = refused(api)
    assert (error.kind, error.retry_after) == (answers.BUSY, 3600.0)
    assert len(server.requests) == 1


def test_a_create_that_lost_a_race_for_a_quota_is_repeated(server: Server, api: Api) -> None:
    server.script(status(409, "Conflict", "Operation cannot be fulfilled on resourcequotas"), Answer(201, pod("a") | {"kind": "Pod"}))  # fmt: skip
    assert api.create(PODS, pod("a"))["metadata"]["name"] == "a"


# ---- identity --------------------------------------------------------------------------------------------------


def test_a_refused_token_is_renewed_once(server: Server, api: Api, tokens: Tokens) -> None:
    server.answer = lambda request: page("a") if request.token == "token-1" else status(401, "Unauthorized")
    assert names(api.list(PODS)) == ["a"]
    assert tokens.fresh == 1
    server.script(status(401, "Unauthorized"))
    with pytest.raises(
        CredentialsError, match="does not accept the identity of the test's own kubeconfig: Unauth"
    ) as it:
        api.get(PODS)
    assert isinstance(it.value.__cause__, ApiError)
    assert it.value.__cause__.kind == answers.UNAUTHENTICATED
    assert tokens.fresh == 2


def test_threads_whose_token_expired_get_one_new_one(server: Server, api: Api, tokens: Tokens) -> None:
    together = threading.Barrier(8)

    def answer(request: Request) -> Answer:
        if request.token != "token-0":
            return page("a")
        together.wait(20)
        return status(401, "Unauthorized")

    server.answer = answer
    with ThreadPoolExecutor(8) as pool:
        assert [names(found) for found in pool.map(api.list, [PODS] * 8)] == [["a"]] * 8
    assert tokens.fresh == 1


def test_a_token_with_a_line_break_is_refused_without_being_shown(access: Access) -> None:
    with Api(access._replace(token=lambda fresh: "secret\r\nHost: evil")) as api, pytest.raises(CredentialsError) as it:
        api.get(PODS)
    assert "secret" not in str(it.value)
    assert "evil" not in str(it.value)


def test_a_client_certificate_is_presented_and_its_successor(
    server: Server, access: Access, authority: Authority
) -> None:
    pairs = [Pair(*authority.signed("first")), Pair(*authority.signed("second"))]
    with Api(access._replace(pair=lambda: pairs[0])) as api:
        api.get(PODS)
        pairs.pop(0)
        api.get(PODS)
    subjects = [request.certificate["subject"] for request in server.requests]
    assert subjects == [((("commonName", name),),) for name in ("first", "second")]


@pytest.mark.parametrize("password", ["", "locked"])
def test_a_key_that_cannot_be_used_is_told_and_nobody_is_asked(
    access: Access, authority: Authority, password: str
) -> None:
    certificate, key = authority.signed("me", password=password)
    other = Pair(certificate, key if password else authority.signed("you")[1])
    with Api(access._replace(pair=lambda: other)) as api, pytest.raises(CredentialsError, match="no password"):
        api.get(PODS)


# ---- answers of others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(200, b"<html>Log in</html>"), "<html>Log in</html>"),
        (Answer(200, {"login": "please"}), "login"),
        (Answer(200, b""), "nothing"),
        (Answer(403, b"<html>Your proxy says no</html>"), "status 403"),
        (Answer(404, {"error": {"code": 404}}), "status 404"),
        (Answer(410, b"gone"), "status 410"),
    ],
)
def test_what_is_no_kubernetes_is_told_as_such(server: Server, api: Api, answer: Answer, says: str) -> None:
    server.script(answer)
    error = refused(api)
    assert error.kind == answers.UNREACHABLE
    assert "no Kubernetes API" in str(error)
    assert says in str(error)
    assert len(server.requests) == 1


def test_a_redirect_is_not_followed(server: Server, api: Api, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with serving(authority.signed("other", "127.0.0.1"), authority.pem, tmp_path / "other") as other:
        server.script(Answer(302, b"", {"Location": f"{other.url}/login"}))
        error = refused(api)
        assert not other.requests
    assert error.kind == answers.UNREACHABLE
    assert f"status 302 to {other.url}/login" in str(error)


def test_an_answer_without_an_end_is_refused(server: Server, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LARGEST", 100_000)
    server.script(Answer(200, b" " * 100_001))
    error = refused(api)
    assert (error.kind, error.passing) == (answers.UNREACHABLE, False)
    assert "larger than 100000 bytes" in str(error)
    server.script(Answer(200, json.dumps({"kind": "PodList", "padding": "x" * 99_000}).encode()))
    assert len(api.get(PODS)["padding"]) == 99_000


# ---- connections -----------------------------------------------------------------------------------------------


def test_a_connection_that_breaks_is_opened_again(server: Server, api: Api) -> None:
    server.script(Answer(reset=True), page("a"))
    assert names(api.list(PODS)) == ["a"]
    server.script(Answer(reset=True))
    error = refused(api)
    assert (error.kind, error.status, error.passing) == (answers.UNREACHABLE, 0, True)
    assert "got no answer" in str(error)


def test_a_connection_that_the_server_closed_costs_no_try(
    server: Server, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES", ())
    server.script(page("a")._replace(close=True), page("b")._replace(close=True), page("c"))
    for name in "abc":
        assert names(api.list(PODS)) == [name]
        time.sleep(0.05)  # until its end has arrived here


def test_a_create_whose_answer_was_lost_shows_that_it_is_there(server: Server, api: Api) -> None:
    made: list[str] = []

    def answer(request: Request) -> Answer:
        name = request.body["metadata"]["name"]
        if name in made:
            return status(409, "AlreadyExists", name=name)
        made.append(name)
        return Answer(reset=True)

    server.answer = answer
    with pytest.raises(ApiError) as caught:
        api.create(PODS, pod("a"))
    assert caught.value.kind == answers.EXISTS
    assert made == ["a"]


@pytest.mark.parametrize("framing", ["length", "chunks", "chunk"])
def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(server: Server, api: Api, framing: str) -> None:
    whole = json.dumps(page("a").body).encode()
    length, chunked = {"Content-Length": str(len(whole) + 9)}, {"Transfer-Encoding": "chunked"}
    broken = {
        "length": Answer(200, whole, length, close=True),
        "chunks": Answer(200, b"%x\r\n%b\r\n" % (len(whole) - 9, whole[:-9]), chunked, close=True),
        "chunk": Answer(200, b"%x\r\n%b" % (len(whole) + 9, whole), chunked, close=True),
    }
    server.script(broken[framing], page("b"))
    assert names(api.list(PODS)) == ["b"]


def test_an_answer_in_chunks_is_put_together(server: Server, api: Api) -> None:
    whole = json.dumps(page(*(f"pod-{number}" for number in range(5000))).body).encode()
    chunks = [whole[at : at + 30_000] for at in range(0, len(whole), 30_000)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""])
    server.script(Answer(200, body, {"Transfer-Encoding": "chunked"}))
    assert len(api.list(PODS)) == len(api.list(PODS)) == 5000
    assert server.requests[0].connection == server.requests[1].connection


def test_a_server_that_says_nothing_is_left(server: Server, access: Access) -> None:
    late = page("late")._replace(pause=2.0)
    with Api(access, timeout=1.0) as api:
        server.script(late, page("a"))
        assert names(api.list(PODS)) == ["a"]
    with Api(access, timeout=1.0, patience=0.0) as hurried:
        server.script(late)
        assert "nothing came in 1 s" in str(refused(hurried))


def test_a_look_at_a_silent_server_is_not_repeated_for_long_and_what_changes_something_is(
    server: Server, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks, looks again; a user of `kinor status` waits for each of these."""
    monkeypatch.setattr(client, "LOOK_PATIENCE", 0.2)
    late = page("late")._replace(pause=1.0)
    with Api(access, timeout=0.5) as api:
        server.script(late, page("a"))
        assert "nothing came in 0.5 s" in str(refused(api))
        assert len(server.requests) == 1
    with Api(access, timeout=0.5) as api:
        server.script(late, Answer(201, {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "b"}}))
        assert api.create(PODS, {"metadata": {"name": "b"}})["metadata"]["name"] == "b"


def test_a_connection_that_does_not_come_about_is_left_sooner_than_an_answer(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECTION_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and TLS never begins
        port = silent.getsockname()[1]
        with Api(access._replace(server=f"https://127.0.0.1:{port}", find=None), patience=0.0) as api:
            assert "there was no connection in 0.3 s" in str(refused(api))


def test_an_answer_that_trickles_has_an_end(server: Server, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(client, "PAUSES", ())
    server.script(page("a")._replace(pause=0.1, pieces=20))
    assert "not complete after 0.3 s" in str(refused(api))


def test_nobody_at_the_address_and_a_name_that_nobody_knows(access: Access) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nobody = f"https://127.0.0.1:{held.getsockname()[1]}"
        with Api(access._replace(server=nobody)) as api:
            assert "Connection refused" in str(refused(api))
    with Api(access._replace(server="https://no-such-host.invalid")) as api:
        error = refused(api)
    assert error.kind == answers.UNREACHABLE
    assert "its name is not known here" in str(error)


def test_threads_share_an_api(server: Server, api: Api) -> None:
    server.answer = lambda request: page(request.query["labelSelector"])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: names(api.list(PODS, labels=f"n{number}")), range(200)))
    assert found == [[f"n{number}"] for number in range(200)]
    assert len({request.connection for request in server.requests}) <= 8


def test_a_forked_process_opens_connections_of_its_own(server: Server, api: Api) -> None:
    api.get(PODS)
    child = os.fork()
    if not child:
        try:
            api.get(PODS)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    api.get(PODS)
    parent, forked, again = server.requests
    assert parent.connection == again.connection != forked.connection


def test_every_exchange_can_be_heard(server: Server, api: Api) -> None:
    server.script(status(503, "ServiceUnavailable"), Answer(201, {"kind": "Pod"}))
    heard: list[Exchange] = []
    with listening(heard.append):
        api.create(PODS, pod("a"))
    api.create(PODS, pod("b"))
    assert [(one.method, one.target.partition("?")[0], one.status) for one in heard] == [
        ("POST", PODS, 503),
        ("POST", PODS, 201),
    ]
    assert heard[1].request == pod("a")
    assert json.loads(heard[1].answer) == {"kind": "Pod"}
    assert "token-0" not in repr(heard)


# ---- certificates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("issuer", "shown", "days", "says"),
    [
        ("another", ("127.0.0.1",), 1, "signed by another"),
        ("", ("10.0.0.1", "kubernetes"), 1, "certificate is not valid for '127.0.0.1'"),
    ],
)
def test_a_certificate_that_is_not_the_clusters_is_told_and_nothing_is_asked(
    server: Server, api: Api, authority: Authority, issuer: str, shown: tuple[str, ...], days: int, says: str
) -> None:
    server.present(*(Authority(issuer) if issuer else authority).signed("other", *shown, days=days))
    error = refused(api)
    assert (error.kind, error.is_lost) == (answers.UNREACHABLE, True)
    assert says in str(error)
    assert f"It shows a certificate for {', '.join(shown)}, signed by {issuer or 'the cluster'}" in str(error)
    assert "the test's own kubeconfig expects another" in str(error)
    assert not server.requests


def test_a_certificate_that_is_out_of_time_is_renewed_or_the_clock_is_wrong(
    server: Server, api: Api, authority: Authority
) -> None:
    server.present(*authority.signed("other", "127.0.0.1", days=-1))
    error = refused(api)
    assert (error.kind, error.is_lost) == (answers.UNREACHABLE, True)
    assert "certificate has expired. It shows a certificate for 127.0.0.1, signed by the cluster" in str(error)
    assert f"Look at this machine's clock: {time.strftime('%Y-', time.gmtime())}" in str(error)
    assert "has to be renewed" in str(error)
    assert "expects another" not in str(error)
    assert "somebody else" not in str(error)
    assert not server.requests


def test_a_cluster_that_was_created_again_is_found_once(server: Server, access: Access, authority: Authority) -> None:
    renewed = Authority("the next")
    found: list[Access] = []

    def find() -> Access:
        found.append(access._replace(authority=renewed.pem))
        return found[-1]

    with Api(access._replace(find=find)) as api:
        api.get(PODS)
        api.close()
        server.present(*renewed.signed("kube-apiserver", "127.0.0.1"))
        api.get(PODS)
        assert api.access is found[0]
        api.get(PODS)
    assert len(found) == 1
    assert len(server.requests) == 3


def test_a_cluster_that_is_where_it_was_is_not_asked_again(
    server: Server, access: Access, authority: Authority
) -> None:
    server.present(*Authority("another").signed("other", "127.0.0.1"))
    found: list[int] = []
    with Api(access._replace(find=lambda: found.append(1) or access)) as api:  # type: ignore[func-returns-value]
        assert "signed by another" in str(refused(api))
    assert found == [1]


def test_a_pod_takes_the_authority_that_the_kubelet_brings_and_says_that_it_waits_for_it(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    address = urlsplit(server.url)
    environ = {"KUBERNETES_SERVICE_HOST": str(address.hostname), "KUBERNETES_SERVICE_PORT": str(address.port)}
    (tmp_path / "ca.crt").write_text(authority.pem)
    (tmp_path / "token").write_text("a token")
    renewed = Authority("the next")
    with Api(kubeconfig.in_cluster(environ, tmp_path)) as api:
        api.get(PODS)
        api.close()
        server.present(*renewed.signed("kube-apiserver", "127.0.0.1"))
        said = str(refused(api))
        assert "the kubelet brings the new one within minutes" in said and "write the kubeconfig anew" not in said
        (tmp_path / "ca.crt").write_text(renewed.pem)
        assert api.get(PODS)["kind"] == "PodList"


def test_a_cluster_at_another_address_is_found(server: Server, access: Access) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        gone = access._replace(server=f"https://127.0.0.1:{held.getsockname()[1]}", find=lambda: access)
        with Api(gone) as api:
            assert api.get(PODS)["kind"] == "PodList"


def test_the_name_in_the_certificate_may_be_another(server: Server, access: Access, authority: Authority) -> None:
    server.present(*authority.signed("kube-apiserver", "kubernetes"))
    with Api(access._replace(server_name="kubernetes")) as api:
        assert api.get(PODS)["kind"] == "PodList"
    with Api(access._replace(insecure=True, authority="")) as api:
        assert api.get(PODS)["kind"] == "PodList"


def test_the_systems_authorities_do_not_know_a_cluster(server: Server, access: Access) -> None:
    with Api(access._replace(authority="")) as api:
        assert "is not trusted" in str(refused(api))
    with Api(access._replace(authority="no certificate")) as api, pytest.raises(CredentialsError, match="no PEM"):
        api.get(PODS)


def test_a_server_without_tls(access: Access) -> None:
    class Plain(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Plain) as plain:
        thread = threading.Thread(target=plain.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        with Api(access._replace(server=f"https://127.0.0.1:{plain.server_address[1]}")) as api:
            error = refused(api)
        plain.shutdown()
        thread.join()
    assert error.kind == answers.UNREACHABLE
    assert "TLS failed" in str(error)


# ---- a proxy ---------------------------------------------------------------------------------------------------


class Proxy(http.server.BaseHTTPRequestHandler):
    """Connects through, for one who has the password."""

    asked: list[str]

    def do_CONNECT(self) -> None:
        self.asked.append(self.path)
        expected = base64.b64encode(b"me:pass word").decode()
        if self.headers["Proxy-Authorization"] != f"Basic {expected}":
            self.send_error(407)
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as onward:
            self.send_response(200)
            self.end_headers()
            other = threading.Thread(target=self.pump, args=(onward, self.connection))
            other.start()
            self.pump(self.connection, onward)
            other.join()

    @staticmethod
    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one of them has left
            while piece := source.recv(65536):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Proxy,), {"asked": asked}))
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"127.0.0.1:{listening.server_address[1]}", asked
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_a_proxy_is_asked_to_connect(server: Server, access: Access, proxy: tuple[str, list[str]]) -> None:
    address, asked = proxy
    with Api(access._replace(proxy=f"http://me:pass%20word@{address}")) as api:
        api.get(PODS)
        api.get(PODS)
    assert asked == [server.url.removeprefix("https://")]
    assert server.requests[0].token == "token-0"
    with Api(access._replace(proxy=f"http://{address}")) as api:
        error = refused(api)
    assert "through the proxy 127.0.0.1 got no answer" in str(error)
    assert "407" in str(error)
