"""A server answers 200 with what cannot be read: it is asked again, and what stays so is nobody's fault here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.host.machine import attestation, bootstrap
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google.rest import secret_manager
from kinetic_orchestration.platforms.google.rest.client import google
from kinetic_orchestration.platforms.google.tpu.client import Tpus, status_of
from kinetic_orchestration.program.checkpoints import agreement
from kinetic_orchestration.program.checkpoints.store import open_checkpoints
from kinetic_orchestration.protocol.records.files import FileRecords

NODE = "projects/ours/locations/us-east5-a/nodes/one"


@contextmanager
def answering(*bodies: bytes) -> Iterator[str]:
    """The address of a server that gives these answers, and the last of them for ever."""
    left = list(bodies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def settings(address: str, home: Path) -> Settings:
    return Settings(home=home, store="gs://b", deployment="d", backend="tpu-vm", project="ours", emulator=address)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.PAUSES", (0.01, 0.01))


GARBLED = [b'z"name": "one"}', b'["one"]', b"7"]


@pytest.mark.parametrize("garbled", [GARBLED[0], b'{"state": {"is": "ready"}}'])
def test_the_tpu_api_is_asked_again(garbled: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.dumps({"name": NODE, "state": "READY"}).encode()
    with answering(garbled, whole) as address:
        node = Tpus(settings(address, tmp_path)).node(NODE)
    assert node is not None
    assert node.name == "one"
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.CLIENT_SECONDS", 0.05)
    with answering(garbled) as address, pytest.raises(Exception) as caught:
        Tpus(settings(address, tmp_path)).node(NODE)
    assert (status_of(caught.value) or (0,))[0] == 14


@pytest.mark.parametrize("garbled", GARBLED)
def test_googles_small_apis_are_asked_again(garbled: bytes, tmp_path: Path) -> None:
    with answering(garbled, b'{"name": "one"}') as address, google(settings(address, tmp_path)) as api:
        assert api.call("GET", "secretmanager", "v1/one").body == {"name": "one"}
    with answering(garbled) as address, google(settings(address, tmp_path)) as api:
        answer = api.call("GET", "secretmanager", "v1/one")
    assert (answer.ok, answer.status) == (False, 0)
    assert "cannot be read" in answer.status_of().message


@pytest.mark.parametrize(
    "body", [b"{}", b'{"payload": 7}', b'{"payload": {"data": "a"}}', b'{"payload": {"data": "\\u00fc"}}']
)
def test_a_secret_that_cannot_be_read_is_infrastructure(body: bytes, tmp_path: Path) -> None:
    with answering(body) as address, pytest.raises(BackendError, match="cannot be read") as caught:
        secret_manager.read_values(settings(address, tmp_path), {"TOKEN": "model"}, {})
    assert caught.value.cause == "infrastructure"


@pytest.mark.parametrize(
    "entry", [{"labels": {}}, {"name": "a", "expireTime": "never"}, {"name": "a", "labels": 7}, 7]
)  # fmt: skip
def test_a_list_of_secrets_that_cannot_be_read_is_infrastructure(entry: Any, tmp_path: Path) -> None:
    body = json.dumps({"secrets": [entry]}).encode()
    with answering(body) as address, pytest.raises(BackendError, match="cannot be read") as caught:
        list(secret_manager.with_label(settings(address, tmp_path), "kinetic-mark", "0123abcd"))
    assert caught.value.cause == "infrastructure"


@pytest.mark.parametrize("body", [*GARBLED, b'{"keys": [{"kty": "RSA"}]}', b'{"keys": 7}'])
def test_keys_that_cannot_be_read_are_none(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attestation, "_found", {})
    whole = {"keys": [{"kty": "RSA", "kid": "1", "n": "AQAB", "e": "AQAB"}]}
    with answering(body, json.dumps(whole).encode()) as address:
        monkeypatch.setenv("KINETIC_EMULATOR", address)
        assert attestation._keys() == {}
        assert attestation._keys() == {"1": (65537, 65537)}


@pytest.mark.parametrize("body", [*GARBLED, b'{"resource": "r"}', b'{"resource": "r", "deadline": "soon"}'])
def test_a_vm_is_not_sent_to_work_by_what_cannot_be_read(body: bytes) -> None:
    """Nothing is parsed outside of the loop that asks: before the deadline is armed nothing may raise."""
    flavour = {"Metadata-Flavor": "Google"}
    assert bootstrap._orders(bootstrap.Reply(200, flavour, body)) is None
    whole = {"resource": "projects/p/zones/z/instances/r", "deadline": 7.0}
    assert bootstrap._orders(bootstrap.Reply(200, flavour, json.dumps(whole).encode())) == whole
    assert bootstrap._orders(bootstrap.Reply(404, flavour, json.dumps(whole).encode())) is None


def test_hosts_read_again_what_another_said(tmp_path: Path) -> None:
    records = FileRecords(str(tmp_path / "place"))
    first = agreement.Agreement(open_checkpoints(str(tmp_path / "place"), "w-1"), 0, 2)
    second = agreement.Agreement(open_checkpoints(str(tmp_path / "place"), "w-1"), 1, 2)
    records.put(f"{second._prefix}step", b'z"is": 7}')
    with pytest.raises(agreement.Alone):
        second.decide("step", None, 0.05)
    records.put(f"{second._prefix}step", b"7")
    assert second.decide("step", None, 1.0) == 7
    records.signal(f"{second._prefix}ready/0", b"zzz")
    with pytest.raises(agreement.Alone, match="host 0 said nothing"):
        second.gather("ready", True, 0.05)
    assert first.gather("ready", False, 1.0) == [False, True]
    assert second.gather("ready", True, 1.0) == [False, True]
