"""Registration in MLflow by REST: what is sent, what a server may answer, and what is said when it does not."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import RegistryError, UsageError
from kinetic_orchestration.models.registries import mlflow
from tests.core.models.registries.versions import version

pytestmark = pytest.mark.fast

Answer = tuple[int, bytes]


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers as a test says, as something else than MLflow may."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.asked.append((self.command, self.path, self.headers.get("Authorization"), self.rfile.read(length)))  # type: ignore[attr-defined]
        status, body = self.server.script.pop(0) if self.server.script else (200, b"{}")  # type: ignore[attr-defined]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, *args: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Scripted)
        self.asked: list[tuple[str, str, str | None, bytes]] = []
        self.script: list[Answer] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(mlflow, "_PAUSES", (0.01,))
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def found(*versions: str) -> Answer:
    return 200, json.dumps({"model_versions": [{"version": one} for one in versions]}).encode()


def test_an_address_and_a_login_come_from_the_variables_of_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for url in ("", "mlflow:5000", "file:///tmp", "databricks"):
        with pytest.raises(UsageError, match="MLFLOW_TRACKING_URI"):
            kinetic.MLflow(url)
    with pytest.raises(UsageError, match="has no password in it"):
        kinetic.MLflow("https://me:secret@host")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://host/mlflow/")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "a secret")
    registry = kinetic.MLflow()
    assert registry.url == "https://host/mlflow" and registry.token == "a secret" and "secret" not in repr(registry)


def test_what_is_sent_can_be_seen_before(server: Server) -> None:
    promoted = version(metrics={"exact_match,none": 0.5, "eval//../loss": 1.0})
    planned = kinetic.MLflow(server.url).planned(promoted, "champion")
    assert [one["url"].rpartition("mlflow/")[2] for one in planned] == [
        "registered-models/create", "model-versions/create", "registered-models/alias",
    ]  # fmt: skip
    tags = {tag["key"]: tag["value"] for tag in planned[1]["body"]["tags"]}
    assert (
        tags["kinetic.digest"] == promoted.digest
        and tags["metric.exact_match_none"] == "0.5"
        and tags["metric.eval/loss"] == "1.0"
    )
    assert planned[1]["body"]["source"] == promoted.uri and not server.asked
    for alias in ("latest", "LATEST", "v3"):
        with pytest.raises(UsageError, match="reserved by MLflow"):
            kinetic.MLflow(server.url).planned(promoted, alias)


def test_a_version_that_is_there_is_found_by_its_digest_and_of_two_the_first_counts(server: Server) -> None:
    exists = (400, b'{"error_code": "RESOURCE_ALREADY_EXISTS", "message": "it is there"}')
    server.script = [exists, found("12", "7"), (200, b"{}")]
    registered = kinetic.MLflow(server.url, username="me", password="ä").register(version(), "champion")
    assert (registered.version, registered.created) == ("7", False)
    assert json.loads(server.asked[2][3]) == {"name": "ranker", "alias": "champion", "version": "7"}
    assert {asked[2] for asked in server.asked} == {"Basic bWU65A=="}
    server.asked.clear()
    made = (200, b'{"model_version": {"version": "8"}}')
    server.script = [exists, found(), made, found("8", "7"), (200, b"{}")]
    registered = kinetic.MLflow(server.url, token="t").register(version(), "")
    assert registered.version == "7", "another process has made it at the same time"
    assert [(asked[0], asked[2]) for asked in server.asked][-1] == ("DELETE", "Bearer t")
    assert json.loads(server.asked[-1][3]) == {"name": "ranker", "version": "8"}, "our own, and no other"


def test_a_lost_answer_makes_no_second_version(server: Server) -> None:
    server.script = [(200, b"{}"), found(), (503, b"busy"), found("3")]
    assert kinetic.MLflow(server.url).register(version(), "").version == "3"
    assert [asked[1].rpartition("/")[2] for asked in server.asked].count("create") == 2


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b"You are not authenticated", "MLFLOW_TRACKING_USERNAME"),
        (403, b'{"error_code": "PERMISSION_DENIED", "message": "no"}', "of somebody who may register models"),
        (403, b"Invalid Host header - possible DNS rebinding attack detected", "--allowed-hosts"),
        (302, b"", r"refused it \(302"),
        (200, b"<html>a page</html>", "what answers there is no MLflow"),
        (200, b"[]", "what answers there is no MLflow"),
        (200, b"[" * 100_000, "what answers there is no MLflow"),
        (400, b'{"error_code": "X", "message": "\\u001b]0;title"}', r"\\x1b\]0;title"),
        (400, b'{"error_code": "\\u001b]0;t' + b"x" * 2000 + b'", "message": "no"}', r"\\x1b\]0;t"),
        (400, b'{"error_code": 7, "message": {"a": 1}}', r"400"),
        (503, b"busy", "does not answer"),
    ],
)  # fmt: skip
def test_what_a_server_says_comes_as_a_sentence(server: Server, status: int, body: bytes, said: str) -> None:
    server.script = [(status, body)] * 3
    with pytest.raises(RegistryError, match=said) as refused:
        kinetic.MLflow(server.url).register(version(), "champion")
    assert "The version stays in its store" in str(refused.value) and "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 1500 and not any("elsewhere" in asked[1] for asked in server.asked)


def test_an_answer_without_end_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow, "_LIMIT", 1000)
    server.script = [(200, b'{"a": "' + b"x" * 2000 + b'"}')]
    with pytest.raises(RegistryError, match="no MLflow"):
        kinetic.MLflow(server.url).register(version(), "")


def test_a_registry_that_is_away_leaves_the_version_and_says_what_to_do(server: Server, tmp_path: Path) -> None:
    source = tmp_path / "m"
    source.mkdir()
    (source / "model.keras").write_bytes(b"x")
    closed = Server()
    closed.server_close()
    with pytest.raises(
        RegistryError, match=r"does not answer.*The version stays in its store: the same call registers it"
    ):
        kinetic.promote(source, tmp_path / "ranker", alias="champion", registry=kinetic.MLflow(closed.url))
    assert not (tmp_path / "ranker" / "aliases").exists(), "the alias says that all is done"
    server.script = [(200, b"{}"), found(), (200, b"{}"), found("1"), (200, b"{}")]
    promoted = kinetic.promote(source, tmp_path / "ranker", alias="champion", registry=kinetic.MLflow(server.url))
    assert promoted.created is False and promoted.registered is not None and promoted.registered.version == "1"
