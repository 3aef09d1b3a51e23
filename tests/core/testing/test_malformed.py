"""Malformed and senseless requests: each server answers or closes the connection, and serves the next caller."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
import requests
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports.grpc import TpuGrpcTransport
from google.protobuf.json_format import ParseDict

from kinetic_orchestration.platforms.google.tpu.client import emulated_channel
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules.access import Access
from kinetic_orchestration.testing.api_servers.server import _RPCS
from kinetic_orchestration.testing.model.state.machine import Machine
from kinetic_orchestration.testing.vms.metadata import VmMetadata
from kinetic_orchestration.testing.vms.metadata_server import Loop
from tests.support.exchanges.recorder import Recorder

ZONE = "us-east5-a"
PLACE = f"/v2/projects/p/locations/{ZONE}"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(zones=[ZONE], hosts=False) as cloud:
        cloud.storage.make_bucket("bucket")
        yield cloud


@pytest.fixture
def no_thread_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Assert that no thread of a connection ends with an error."""
    ended: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    yield
    assert not ended


def lines(path: str, port: int) -> list[bytes]:
    """Requests that are no valid HTTP, with the token, so that the door does not refuse them."""
    target = path.encode()
    rest = b" HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n" % port
    return [
        b"\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # a TLS client
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET " + target + b"\r\n\r\n",  # of HTTP/0.9, whose answers have no head
        b"GET " + target + rest.replace(b"1.1", b"9.9") + b"\r\n",
        b"GET http://[:::/" + target + rest + b"\r\n",
        b"G\xc3\x89T " + target + rest + b"\r\n",
        b"GET " + target + b"?" + b"a" * 70_000 + rest + b"\r\n",
        b"GET " + target + rest + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET " + target + rest + b"no colon\r\n\r\n",
        b"GET " + target + rest + b": nameless\r\n\r\n",
        b"POST " + target + rest + b"Content-Length: many\r\n\r\n",
        b"POST " + target + rest + b"Content-Length: -1\r\n\r\n",
        b"POST " + target + rest + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST " + target + rest + b"Content-Length: 9\r\n\r\n{}",  # and no more
        b"POST " + target + rest + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"GET " + target[:5],
    ]


def sent(address: str, what: bytes) -> bytes:
    """All that is answered until the other side hangs up."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=30) as connection:
        found = b""
        try:
            connection.sendall(what)
            connection.shutdown(socket.SHUT_WR)
            while block := connection.recv(65536):
                found += block
        except OSError:
            pass  # hung up before all was sent
        return found


@pytest.mark.parametrize("which", ["rest", "storage"])
def test_what_is_no_request_ends_its_connection_alone(cloud: Emulator, no_thread_ends: None, which: str) -> None:
    address = getattr(cloud, which).url
    path = "/storage/v1/b?project=p" if which == "storage" else f"{PLACE}/nodes"
    place = urlsplit(address)
    for what in lines(f"{place.path}{path}", place.port or 0):
        answer = sent(address, what)
        if answer:
            code = json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]["code"]
            assert 400 <= code < 600 and code != 500, (what[:80], answer)
            assert answer.startswith((b"HTTP/1.1 %d " % code, b"{")), (what[:80], answer)
    assert requests.get(address + path, timeout=60).status_code == 200


def test_a_metadata_server_outlives_it_too(no_thread_ends: None) -> None:
    machine = Machine(
        project="p", zone=ZONE, node="n", accelerator_type="v6e-8", topology="2x4", runtime_version="v2-alpha-tpuv6e"
    )
    loop = Loop("test-metadata")
    server = VmMetadata(loop, machine, Access(), token=lambda *_: "", sign_identity=lambda *_: "")
    try:
        address = f"http://{server.address}"
        place = urlsplit(address)
        for what in lines(f"{place.path}/computeMetadata/v1/instance/name", place.port or 0):
            sent(address, what)
        answer = requests.get(
            f"{address}/computeMetadata/v1/instance/name", headers={"Metadata-Flavor": "Google"}, timeout=60
        )
        assert (answer.status_code, answer.text) == (200, machine.name)
    finally:
        server.close()
        loop.close()


MANY_SLICES = json.dumps(
    {
        "tpu": {
            "nodeSpec": [
                {
                    "parent": PLACE.removeprefix("/v2/"),
                    "node": {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"},
                    "multisliceParams": {"nodeCount": 2**31 - 1},
                }
            ]
        }
    }
).encode()
BODIES = (
    *(b"{", b"[]", b"null", b"5", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b'{"a":' * 100_000),
    *(b'{"payload": 5}', b'{"payload": {"data": 5}}', b'{"permissions": 5}', b'{"permissions": [[]]}'),
    *(b'{"replication": 5}', b'{"replication": {}, "ttl": "soon"}', b'{"replication": {}, "ttl": 5}'),
    *(b'{"replication": {}, "expireTime": "never"}', b'{"replication": {}, "labels": []}', b'{"name": {"a": 1}}'),
    *(b'{"tpu": {"nodeSpec": [{}]}}', b'{"tpu": {"nodeSpec": [{"parent": 5}]}}', b'{"tpu": 5}'),
    MANY_SLICES,
    b'{"acceleratorConfig": {"type": "V4", "topology": "99999999999999999999x1"}, "runtimeVersion": "tpu-vm-base"}',
    *(b'{"queryPath": 5}', b'{"workerIds": ["first"]}', b'{"schedulingConfig": 5}', b'{"labels": {"A": 5}}'),
)
PLACES = (
    f"POST {PLACE}/queuedResources?queuedResourceId=q",
    f"POST {PLACE}/nodes?nodeId=n",
    f"PATCH {PLACE}/nodes/n?updateMask=labels",
    f"POST {PLACE}/nodes/n:getGuestAttributes",
    f"GET {PLACE}/nodes?pageSize=-1",
    f"GET {PLACE}/nodes?pageToken=é",
    f"GET {PLACE}/operations?filter=((",
    "GET /v2/projects/p/locations/%00/nodes/%2e%2e",
    "GET /v2//nodes",
    "GET /%ff%fe",
    "POST /v1/projects/p/secrets?secretId=made",
    "POST /v1/projects/p/secrets/s:addVersion",
    "PATCH /v1/projects/p/secrets/s?updateMask=ttl,labels",
    "GET /v1/projects/p/secrets?pageSize=" + "9" * 5000,
    "GET /v1/projects/p/secrets?pageSize=many",
    f"GET /v1/projects/p/secrets/s/versions/{'9' * 5000}:access",
    "POST /v1/projects/p:testIamPermissions",
    "GET /v1/services/6F81-5844-456A/skus?pageToken=YWJj",
)


def test_a_request_that_makes_no_sense_is_refused_by_the_apis_and_never_fails_them(
    cloud: Emulator, no_thread_ends: None, recorder: Recorder
) -> None:
    cloud.add_secret("s", "value", project="p")
    with requests.Session() as session, recorder.wrong(": request "):
        for place in PLACES:
            method, _, path = place.partition(" ")
            for body in BODIES if method != "GET" else (b"",):
                answer = session.request(
                    method, cloud.rest.url + path, data=body, headers={"Content-Type": "application/json"}, timeout=60
                )
                assert answer.status_code < 500, (place, body[:80], answer.text[:300])
                assert answer.status_code == 200 or answer.json()["error"]["code"] == answer.status_code
    for name in cloud.neighbours.secrets():
        requests.delete(f"{cloud.rest.url}/v1/{name}", timeout=60)
    cloud.sweep()


def test_a_request_that_makes_no_sense_is_refused_by_the_storage_and_never_fails_it(
    cloud: Emulator, no_thread_ends: None, recorder: Recorder
) -> None:
    storage = cloud.storage
    storage.forget()
    places = (
        *("GET /storage/v1/b/%ff/o", "GET /storage/v1/b//o", "GET /storage/v1/b/bucket/o/%00", "GET //", "PUT /x/y/z"),
        *(
            "GET /storage/v1/b/bucket/o?pageToken=%ff",
            "GET /storage/v1/b/bucket/o?fields=((",
            "PATCH /storage/v1/b/none",
        ),
        *("POST /upload/storage/v1/b/bucket/o?uploadType=what", "POST /upload/storage/v1/b/bucket/o"),
        *("PUT /upload/resumable/none", "POST /storage/v1/b", "POST /storage/v1/b/bucket/o/x/compose"),
        "POST /storage/v1/b/bucket/o/x/rewriteTo/b/bucket/o/y",
    )
    bodies = (b"", b"{", b"[]", b"null", b'{"name": 5}', b'{"name": "\\ud800"}', b'{"name": "\\x"}', b"\xff" * 64)
    with requests.Session() as session, recorder.wrong(": request "):
        for place in places:
            method, _, path = place.partition(" ")
            for body in bodies if method != "GET" else (b"",):
                headers = {"Content-Type": "application/json"}
                answer = session.request(method, storage.url + path, data=body, headers=headers, timeout=60)
                assert not answer.text.startswith("{") or "emulator failed" not in answer.text, (place, body)
        assert session.get(f"{storage.url}/storage/v1/b/bucket", timeout=60).json()["name"] == "bucket"
    assert not [call.failure for call in storage.calls if call.failure]


def test_a_mistake_of_the_storages_own_is_told_with_the_request_and_ends_no_thread(
    cloud: Emulator, no_thread_ends: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = cloud.storage
    storage.forget()

    def revise(*_: object) -> None:
        raise KeyError("name")

    address = f"{storage.url}/storage/v1/b/bucket"
    with monkeypatch.context() as broken, requests.Session() as session:
        broken.setattr(storage, "revise", revise)
        answer = session.get(f"{address}?projection=full", timeout=60)
        assert answer.status_code == 500
        told = answer.json()["error"]["message"]
        assert "GET /storage/v1/b/bucket?projection=full" in told and "KeyError('name')" in told
        assert storage.url.rpartition("/")[2] not in told
    [call] = storage.calls
    assert (call.status, call.failure in told) == (500, True)
    assert call.failure in caplog.text
    assert requests.get(address, timeout=60).status_code == 200


def test_a_mistake_of_the_apis_own_is_told_with_the_request(
    cloud: Emulator, no_thread_ends: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(cloud, "call", lambda *_: {}["name"])
        answer = requests.get(f"{cloud.rest.url}{PLACE}/nodes", timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["status"]) == (500, "INTERNAL")
    assert f"GET {PLACE}/nodes: KeyError('name')" in error["message"] and error["message"] in caplog.text
    assert requests.get(f"{cloud.rest.url}{PLACE}/nodes", timeout=60).status_code == 200


@pytest.mark.parametrize(
    "name", ["", "x", "projects", "projects/p", "projects/p/locations", "projects//locations/x/nodes/n"]
)
def test_a_name_that_names_nothing_is_refused_over_grpc_whatever_the_method(
    cloud: Emulator, name: str, recorder: Recorder
) -> None:
    channel = emulated_channel(cloud.grpc.address)
    with recorder.wrong(": request "):
        _ask_each_about(channel, name)
    channel.close()


def _ask_each_about(channel: grpc.Channel, name: str) -> None:
    for rpc in _RPCS:
        if rpc.place.fullmatch(name):
            continue
        asked: dict[str, Any] = {}
        at = asked
        *outer, last = rpc.field.split(".")
        for part in outer:
            at = at.setdefault(part, {})
        at[last] = name
        call = channel.unary_unary(
            rpc.grpc_path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=rpc.response.FromString,
        )
        with pytest.raises(grpc.RpcError) as refused:
            call(ParseDict(asked, rpc.request()), timeout=60)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT, rpc.name


def test_bytes_that_are_no_message_and_methods_that_are_none_end_no_server(cloud: Emulator) -> None:
    channel = emulated_channel(cloud.grpc.address)
    for path, code in (
        ("/google.cloud.tpu.v2.Tpu/GetNode", grpc.StatusCode.INTERNAL),
        ("/google.cloud.tpu.v2.Tpu/Nothing", grpc.StatusCode.UNIMPLEMENTED),
        ("/google.longrunning.Operations/CancelOperation", grpc.StatusCode.UNIMPLEMENTED),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(path)(b"\xff\xff\xff", timeout=60)
        assert refused.value.code() == code, path
    client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
    assert list(client.list_nodes(parent=PLACE.removeprefix("/v2/"))) == []
    client.transport.close()
