"""The metadata server of an emulated VM, asked by hand and by the unmodified libraries that ask the real one."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from kinetic_orchestration.testing.api_rules.access import Access
from kinetic_orchestration.testing.model.state.machine import Machine
from kinetic_orchestration.testing.vms.metadata import VmMetadata
from kinetic_orchestration.testing.vms.metadata_server import Loop
from tests.support.waits import wait_until

MACHINE = Machine(
    project="a-project",
    zone="us-central2-b",
    node="slice-a",
    accelerator_type="v4-16",
    topology="2x2x2",
    runtime_version="tpu-ubuntu2204-base",
    worker=1,
    workers=2,
    metadata={"startup-script": "#!/bin/sh\necho ünï\n", "Kinetic-Own": "{}"},
    spot=True,
)


class Reply(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("metadata servers of a test")
    yield loop
    loop.close()


@pytest.fixture
def serve(loop: Loop) -> Iterator[Callable[..., VmMetadata]]:
    servers = []

    def make(machine: Machine = MACHINE) -> VmMetadata:
        servers.append(VmMetadata(loop, machine, Access(), token=_token, sign_identity=_identity))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def server(serve: Callable[..., VmMetadata]) -> VmMetadata:
    return serve()


def _token(node: str, worker: int) -> str:
    return f"emulator-token/{node}/{worker}"


def _identity(audience: str, machine: Machine) -> str:
    return f"signed.{machine.name}.{audience}"


def ask(
    server: VmMetadata, path: str, method: str = "GET", body: str = "", flavor: str | None = "Google", **more: str
) -> Reply:
    place, _, token = server.address.partition("/")
    connection = http.client.HTTPConnection(place, timeout=20)
    try:
        target = f"/{token}" + (path if path.startswith("/") else f"/computeMetadata/v1/{path}")
        headers = ({"Metadata-Flavor": flavor} if flavor else {}) | more
        connection.request(method, target, body=body.encode() if body else None, headers=headers)
        response = connection.getresponse()
        return Reply(response.status, response.read().decode(), dict(response.headers))
    finally:
        connection.close()


def value(server: VmMetadata, path: str) -> str:
    reply = ask(server, path)
    assert reply.status == 200, reply
    return reply.text


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("instance/attributes/accelerator-type", "v4-16"),
        ("instance/attributes/agent-worker-number", "1"),
        ("instance/attributes/instance-id", "slice-a"),
        ("instance/attributes/startup-script", "#!/bin/sh\necho ünï\n"),
        ("instance/attributes/Kinetic-Own", "{}"),
        ("instance/attributes/worker-network-endpoints", "127.0.0.1,127.0.0.1"),
        ("instance/preempted", "FALSE"),
        ("instance/maintenance-event", "NONE"),
        ("instance/network-interfaces/0/ip", "127.0.0.1"),
        ("instance/zone", f"projects/{MACHINE.project_number}/zones/us-central2-b"),
        ("instance/id", str(MACHINE.instance_id)),
        ("instance/name", MACHINE.name),
        ("instance/hostname", f"{MACHINE.name}.us-central2-b.c.a-project.internal"),
        ("instance/scheduling/preemptible", "TRUE"),
        ("instance/service-accounts/default/email", f"{MACHINE.project_number}-compute@developer.gserviceaccount.com"),
        ("instance/service-accounts/default/scopes", "https://www.googleapis.com/auth/cloud-platform\n"),
        ("instance/service-accounts/default/aliases", "default\n"),
        ("project/project-id", "a-project"),
        ("project/numeric-project-id", str(MACHINE.project_number)),
        ("universe/universe-domain", "googleapis.com"),
    ],
)
def test_a_value_is_its_text(server: VmMetadata, path: str, expected: str) -> None:
    reply = ask(server, path)
    assert (reply.status, reply.text) == (200, expected)
    assert reply.headers["Metadata-Flavor"] == "Google"
    assert reply.headers["Content-Type"] == "application/text"
    assert reply.headers["ETag"]


def test_the_environment_of_the_tpu_is_lines_of_quoted_values(server: VmMetadata) -> None:
    lines = dict(line.split(": ", 1) for line in value(server, "instance/attributes/tpu-env").splitlines())
    expected = {
        "ACCELERATOR_TYPE": "'v4-16'",
        "CHIPS_PER_HOST_BOUNDS": "'2,2,1'",
        "HOST_BOUNDS": "'1,1,2'",
        "NODE_ID": "'slice-a'",
        "TOPOLOGY": "'2x2x2'",
        "WORKER_ID": "'1'",
        "ZONE": "'us-central2-b'",
    }
    assert {name: lines[name] for name in expected} == expected
    assert not [name for name in lines if name.startswith("MEGASCALE")]


@pytest.mark.parametrize(
    ("kind", "topology", "workers", "chips", "hosts"),
    [
        ("v5litepod-1", "1x1", 1, "1,1,1", "1,1,1"),
        ("v5litepod-8", "2x4", 1, "2,4,1", "1,1,1"),
        ("v5litepod-16", "4x4", 4, "2,2,1", "2,2,1"),
        ("v6e-8", "2x4", 2, "2,2,1", "1,2,1"),
        ("v4-8", "2x2x1", 1, "2,2,1", "1,1,1"),
        ("v4-128", "4x4x4", 16, "2,2,1", "2,2,4"),
    ],
)
def test_bounds_follow_the_topology(kind: str, topology: str, workers: int, chips: str, hosts: str) -> None:
    machine = Machine("p", "z", "n", kind, topology, "", workers=workers)
    assert (machine.tpu_env()["CHIPS_PER_HOST_BOUNDS"], machine.tpu_env()["HOST_BOUNDS"]) == (chips, hosts)


def test_one_of_several_slices_is_told_so(serve: Callable[..., VmMetadata]) -> None:
    server = serve(Machine("p", "z", "n-1", "v4-16", "2x2x2", "", workers=2, slice_index=1, slices=3))
    env = value(server, "instance/attributes/tpu-env")
    assert "MEGASCALE_NUM_SLICES: '3'\nMEGASCALE_SLICE_ID: '1'\n" in env
    assert "MEGASCALE_COORDINATOR_ADDRESS: '127.0.0.1'\n" in env


def test_endpoints_come_in_either_of_two_formats(serve: Callable[..., VmMetadata]) -> None:
    server = serve(Machine("p", "z", "n", "v4-16", "2x2x2", "", workers=2, endpoint_format="triples"))
    endpoints = value(server, "instance/attributes/worker-network-endpoints")
    assert endpoints == "worker-0:0:127.0.0.1,worker-1:1:127.0.0.1"


def test_a_directory_lists_its_names(server: VmMetadata) -> None:
    assert value(server, "/") == "computeMetadata/\n"
    assert value(server, "/computeMetadata/v1/") == "instance/\nproject/\nuniverse/\n"
    assert value(server, "instance/service-accounts/default/") == "aliases\nemail\nscopes\n"
    assert {"attributes/", "id", "network-interfaces/"} <= set(value(server, "instance/").split())
    moved = ask(server, "instance/attributes")
    assert (moved.status, moved.headers["Location"]) == (
        301,
        f"/{server.address.partition(chr(47))[2]}/computeMetadata/v1/instance/attributes/",
    )


def test_a_directory_is_told_as_json_or_text(server: VmMetadata) -> None:
    reply = ask(server, "instance/?recursive=true")
    assert reply.headers["Content-Type"] == "application/json"
    told = reply.json
    assert told["attributes"]["Kinetic-Own"] == "{}"
    assert told["attributes"]["agent-worker-number"] == "1"
    assert told["maintenanceEvent"] == "NONE"
    assert told["networkInterfaces"][0]["ip"] == "127.0.0.1"
    assert told["id"] == MACHINE.instance_id
    assert told["serviceAccounts"]["default"]["aliases"] == ["default"]
    assert ask(server, "instance?recursive=true").json == told
    text = value(server, "instance/?recursive=true&alt=text").splitlines()
    assert "attributes/accelerator-type v4-16" in text
    assert "network-interfaces/0/ip 127.0.0.1" in text
    assert ask(server, "instance/name?alt=json").json == MACHINE.name


def test_a_request_without_the_header_is_forbidden(server: VmMetadata) -> None:
    for reply in (
        ask(server, "instance/name", flavor=None),
        ask(server, "instance/name", flavor="Other"),
        ask(server, "instance/service-accounts/default/token", flavor=None),
        ask(server, "instance/name", **{"X-Forwarded-For": "10.0.0.1"}),
    ):
        assert reply.status == 403
        assert "a-project" not in reply.text
    assert "Missing Metadata-Flavor:Google header" in ask(server, "instance/name", flavor=None).text


@pytest.mark.parametrize(
    "path", ["instance/attributes/nothing", "instance/name/more", "/computeMetadata/v0/x", "/latest"]
)
def test_what_is_not_there_is_a_page_that_says_404(server: VmMetadata, path: str) -> None:
    reply = ask(server, path)
    assert reply.status == 404
    assert reply.headers["Content-Type"].startswith("text/html")
    assert "was not found on this server" in reply.text


def test_a_token_is_for_one_worker(server: VmMetadata) -> None:
    for account in ("default", MACHINE.account):
        token = ask(server, f"instance/service-accounts/{account}/token").json
        assert token["access_token"] == "emulator-token/slice-a/1"
        assert token["token_type"] == "Bearer"
        assert token["expires_in"] > 3000
    assert ask(server, "instance/service-accounts/other@example.com/token").status == 404


def test_an_identity_is_for_an_audience(server: VmMetadata) -> None:
    path = "instance/service-accounts/default/identity"
    assert value(server, f"{path}?audience=kinetic%2Fjob%2F1&format=full") == f"signed.{MACHINE.name}.kinetic/job/1"
    refused = ask(server, path)
    assert (refused.status, refused.text) == (400, "non-empty audience parameter required\n")


def test_guest_attributes_are_put_read_and_deleted(server: VmMetadata) -> None:
    path = "instance/guest-attributes/kinetic/state"
    assert ask(server, path).status == 404
    assert ask(server, path, "PUT", "rünning").status == 200
    assert value(server, path) == "rünning"
    assert server.guest_attributes == {"kinetic": {"state": "rünning"}}
    assert value(server, "instance/guest-attributes/") == "kinetic/\n"
    assert ask(server, path, "DELETE").status == 200
    assert ask(server, path).status == 404
    assert ask(server, "instance/attributes/new", "PUT", "x").status == 405


def test_upcoming_maintenance_is_an_error_until_there_is_one(server: VmMetadata) -> None:
    nothing = ask(server, "instance/upcoming-maintenance?alt=json")
    assert nothing.status == 503
    assert "try again later" in nothing.json["error"]
    server.change(upcoming_maintenance={"maintenance_status": "PENDING", "can_reschedule": "FALSE"})
    told = ask(server, "instance/upcoming-maintenance/?alt=json").json
    assert told == {"maintenance_status": "PENDING", "can_reschedule": "FALSE"}


def test_waiting_for_a_change_ends_with_it(server: VmMetadata) -> None:
    replies: list[Reply] = []
    path = "instance/preempted?wait_for_change=true&timeout_sec=15"
    waiting = [threading.Thread(target=lambda: replies.append(ask(server, path))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: server.requests == 3)
    server.change(maintenance_event="MIGRATE_ON_HOST_MAINTENANCE")  # another value's change does not end it
    assert value(server, "instance/maintenance-event") == "MIGRATE_ON_HOST_MAINTENANCE"
    started = time.monotonic()
    server.change(preempted=True)
    for thread in waiting:
        thread.join(10)
    assert time.monotonic() - started < 10  # of the 15 s that they would wait
    assert [reply.text for reply in replies] == ["TRUE"] * 3  # and not what it was when the other one changed


def test_waiting_ends_at_once_when_the_change_was_missed(server: VmMetadata) -> None:
    seen = ask(server, "instance/preempted").headers["ETag"]
    server.change(preempted=True)
    reply = ask(server, f"instance/preempted?wait_for_change=true&timeout_sec=15&last_etag={seen}")
    assert reply.text == "TRUE"
    assert reply.headers["ETag"] != seen


def test_waiting_ends_with_what_is_when_its_time_is_up(server: VmMetadata) -> None:
    started = time.monotonic()
    reply = ask(server, "instance/preempted?wait_for_change=true&timeout_sec=1")
    assert (reply.status, reply.text) == (200, "FALSE")
    assert 0.9 < time.monotonic() - started < 30


@pytest.mark.parametrize("timeout", ["", "&timeout_sec=600", "&timeout_sec=" + "9" * 400])
def test_waiting_ends_when_the_caller_leaves(server: VmMetadata, timeout: str) -> None:
    place, _, token = server.address.partition("/")
    host, _, port = place.partition(":")
    target = f"/{token}/computeMetadata/v1/instance/preempted?wait_for_change=true{timeout}"
    with socket.create_connection((host, int(port)), timeout=5) as caller:
        caller.sendall(f"GET {target} HTTP/1.1\r\nHost: {place}\r\nMetadata-Flavor: Google\r\n\r\n".encode())
        wait_until(lambda: server.requests == 1)
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(1) == b""


def test_a_directory_can_be_waited_for(server: VmMetadata) -> None:
    replies: list[Reply] = []
    path = "instance/?recursive=true&wait_for_change=true&timeout_sec=15"
    thread = threading.Thread(target=lambda: replies.append(ask(server, path)))
    thread.start()
    wait_until(lambda: server.requests == 1)
    ask(server, "instance/guest-attributes/a/b", "PUT", "c")
    thread.join(10)
    assert replies[0].json["guestAttributes"] == {"a": {"b": "c"}}


def test_one_connection_serves_many_requests(server: VmMetadata) -> None:
    place, _, token = server.address.partition("/")
    connection = http.client.HTTPConnection(place, timeout=10)
    for number in range(20):
        connection.request(
            "PUT",
            f"/{token}/computeMetadata/v1/instance/guest-attributes/n/k",
            str(number),
            {"Metadata-Flavor": "Google"},
        )
        assert connection.getresponse().read() == b""
    connection.close()
    assert server.guest_attributes == {"n": {"k": "19"}}
    assert server.requests == 20


def test_nonsense_is_a_bad_request(server: VmMetadata) -> None:
    import socket

    host, port = server.address.partition("/")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(b"hello\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def test_closing_ends_whoever_waits_and_frees_the_port(serve: Callable[..., VmMetadata]) -> None:
    server = serve()
    failures: list[Exception] = []

    def wait() -> None:
        try:
            ask(server, "instance/preempted?wait_for_change=true")
        except (OSError, http.client.HTTPException) as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: server.requests == 1)
    server.close()
    thread.join(10)
    assert len(failures) == 1
    with pytest.raises(OSError):
        ask(server, "instance/name")


def test_connections_that_come_while_it_closes_are_closed() -> None:
    loop, go_on = Loop("a metadata server that closes"), threading.Event()
    server = VmMetadata(loop, MACHINE, Access(), token=_token, sign_identity=_identity)
    assert value(server, "instance/zone")
    host, _, port = server.address.partition("/")[0].rpartition(":")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loop.soon(lambda: go_on.wait(30))
        clients = [socket.create_connection((host, int(port)), timeout=30) for _ in range(8)]
        server.close()
        go_on.set()  # all are accepted in the turn of the loop in which the server learns that it closes
        for client in clients:
            with client, contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        loop.close()
        gc.collect()
    assert [str(one.message) for one in told] == []


def test_google_auth_finds_the_vm_and_its_credentials(server: VmMetadata) -> None:
    told = _program(server, GOOGLE)
    assert told == {
        "project": "a-project",
        "kind": "Credentials",
        "email": MACHINE.account,
        "token": "emulator-token/slice-a/1",
        "expired": False,
        "universe": "googleapis.com",
        "attribute": "v4-16",
    }


def test_jax_finds_its_place_in_the_slice(serve: Callable[..., VmMetadata]) -> None:
    for form in ("addresses", "triples"):
        server = serve(
            Machine(
                "p",
                "z",
                "n-1",
                "v4-16",
                "2x2x2",
                "",
                worker=1,
                workers=2,
                slice_index=1,
                slices=2,
                endpoint_format=form,
            )
        )
        assert _program(server, JAX) == {"processes": 4, "process": 3, "coordinator": "127.0.0.1:8482"}


GOOGLE = """
import json
import google.auth, google.auth.transport.requests
from google.auth.compute_engine import _metadata
request = google.auth.transport.requests.Request()
credentials, project = google.auth.default()
credentials.refresh(request)
print(json.dumps({
    "project": project,
    "kind": type(credentials).__name__,
    "email": credentials.service_account_email,
    "token": credentials.token,
    "expired": credentials.expired,
    "universe": credentials.universe_domain,
    "attribute": _metadata.get(request, "instance/attributes/accelerator-type"),
}))
"""

JAX = """
import json
from jax._src.clusters.cloud_tpu_cluster import GceTpuCluster
print(json.dumps({
    "processes": GceTpuCluster.get_process_count(),
    "process": GceTpuCluster.get_process_id(),
    "coordinator": GceTpuCluster.get_coordinator_address(5, None),
}))
"""


def _program(server: VmMetadata, program: str) -> Any:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GCE_METADATA_HOST": server.address,
        "GCE_METADATA_IP": server.address,
    }
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=85)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
