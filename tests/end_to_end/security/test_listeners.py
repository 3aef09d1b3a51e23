"""Every port that this project opens, knocked at by somebody else: a page of the web, or another user of the machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import google.auth.credentials
import grpc
import pytest
import requests
from google.cloud import storage, tpu_v2
from google.cloud.location import locations_pb2
from google.cloud.tpu_v2.services.tpu.transports.grpc import TpuGrpcTransport

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import main
from kinetic_orchestration.host.process import debugger
from kinetic_orchestration.host.process.pipes import program_of
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.model.state.machine import Machine
from kinetic_orchestration.testing.vms.metadata import VmMetadata
from kinetic_orchestration.testing.vms.metadata_server import Loop

ZONE = "us-east5-a"
CREATE = f"/v2/projects/p/locations/{ZONE}/queuedResources?queuedResourceId=q"
NODE = {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e", "metadata": {"startup-script": "echo mine"}}
WANTED = json.dumps({"tpu": {"nodeSpec": [{"parent": f"projects/p/locations/{ZONE}", "nodeId": "q", "node": NODE}]}})
JSON = {"Content-Type": "application/json"}
WAIT = 30.0


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(zones=[ZONE], hosts=False) as cloud:
        cloud.storage.make_bucket("bucket")
        yield cloud


@pytest.fixture
def metadata() -> Iterator[Any]:
    loop = Loop("a metadata server of a test")
    machine = Machine("p", ZONE, "q", "v6e-8", "2x4", "v2-alpha-tpuv6e")
    with Emulator(zones=[ZONE], hosts=False) as cloud:
        access = getattr(cloud, "access", None)
        server = VmMetadata(
            loop, machine, *([access] if access else []), token=lambda *_: "t", sign_identity=lambda *_: "signed"
        )
        yield server
        server.close()
    loop.close()


def ask(url: str, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
    """Send a request to the server of `url`, with any header names."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body.encode() if body is not None else None)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


# ---- the emulated cloud ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Type": "text/plain", "Origin": "https://evil.example"},
        {"Content_Type": "application/json", "Origin": "null"},
        {"Content_Type": "application/json", "Host": "evil.example"},
        {"Content_Type": "application/json", "Host": "127.0.0.1"},
        {"Content_Type": "text/plain"},
        {},
    ],
    ids=["page", "file", "rebound name", "other port", "text", "nothing said"],
)
@pytest.mark.parametrize("knows", [True, False], ids=["with the token", "without"])
def test_nobody_makes_a_machine_from_a_page_of_the_web(cloud: Emulator, headers: dict[str, str], knows: bool) -> None:
    path = (urlsplit(cloud.rest.url).path if knows else "") + CREATE
    status, told = ask(cloud.rest.url, path, "POST", WANTED, **headers)
    assert status in (403, 415), told
    assert "emulator" in told or "application/json" in told
    assert cloud.queued_resources() == []


@pytest.mark.parametrize("token", ["", "/wrong", "/%C3%A9", "/" + "x" * 32])
def test_rest_and_bucket_ask_for_the_token(cloud: Emulator, token: str) -> None:
    for url, path in (
        (cloud.rest.url, CREATE.partition("?")[0]),
        (cloud.rest.url, "/certs"),
        (cloud.storage.url, "/storage/v1/b/bucket/o"),
        (cloud.storage.url, "/storage/v1/b?project=p"),
    ):
        status, told = ask(url, token + path)
        assert status == 403
        assert "print-env" in told
        assert ask(url, urlsplit(url).path + path)[0] == 200


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example:80"}], ids=["page", "rebound name"]
)
def test_the_bucket_answers_no_page_of_the_web(cloud: Emulator, headers: dict[str, str]) -> None:
    inside = urlsplit(cloud.storage.url).path
    upload = f"{inside}/upload/storage/v1/b/bucket/o?uploadType=media&name=planted"
    for method, path in (("GET", f"{inside}/storage/v1/b/bucket/o"), ("POST", upload)):
        assert ask(cloud.storage.url, path, method, "x", **headers)[0] == 403
    made = ask(
        cloud.storage.url, f"{inside}/storage/v1/b?project=p", "POST", '{"name": "made"}', Content_Type="text/plain"
    )
    assert made[0] == 415
    assert ask(cloud.storage.url, f"{inside}/storage/v1/b/made")[0] == 404
    assert ask(cloud.storage.url, f"{inside}/storage/v1/b/bucket/o/planted")[0] == 404


@pytest.mark.parametrize("sent", [(), (("x-emulator-token", "wrong"),)], ids=["none", "wrong"])
def test_grpc_asks_for_the_token(cloud: Emulator, sent: tuple[tuple[str, str], ...]) -> None:
    with grpc.insecure_channel(cloud.grpc.address.rpartition("@")[2]) as channel:
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        with pytest.raises(Exception, match="KINETIC_EMULATOR_GRPC"):
            client.create_queued_resource(
                parent=f"projects/p/locations/{ZONE}", queued_resource_id="q", metadata=sent, timeout=WAIT
            )
        with pytest.raises(Exception, match="KINETIC_EMULATOR_GRPC"):
            client.list_locations(locations_pb2.ListLocationsRequest(name="projects/p"), metadata=sent, timeout=WAIT)
        token = cloud.grpc.address.partition("@")[0]
        page = ("origin", "https://evil.example")
        with pytest.raises(Exception, match="KINETIC_EMULATOR_GRPC"):
            client.list_nodes(
                parent=f"projects/p/locations/{ZONE}", metadata=(("x-emulator-token", token), page), timeout=WAIT
            )
    assert cloud.queued_resources() == []


OTHER_HOSTS = {
    "no host": "",
    "the host twice": "Host: {own}\r\nHost: evil.example\r\n",
    "the host twice, ours last": "Host: evil.example\r\nHost: {own}\r\n",
    "trailing dot": "Host: 127.0.0.1.:{port}\r\n",
    "trailing dot of a name": "Host: localhost.:{port}\r\n",
    "other port": "Host: 127.0.0.1:1\r\n",
    "space before the colon": "Host : {own}\r\n",
    "origin null": "Host: {own}\r\nOrigin: null\r\n",
    "length and chunks": "Host: {own}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "two lengths": "Host: {own}\r\nContent-Length: 5\r\nContent-Length: 0\r\n",
    "length below zero": "Host: {own}\r\nContent-Length: -1\r\n",
    "no length": "Host: {own}\r\nContent-Length: 0x5\r\n",
    "strange coding": "Host: {own}\r\nTransfer-Encoding: gzip, chunked\r\n",
    "long header": "Host: {own}\r\nX-Long: " + "x" * (300 << 10) + "\r\n",
    "no header": "Host: {own}\r\nnothing of the kind\r\n",
}


def said(place: str, sent: str) -> str:
    """Return all that a server answers to these bytes until it hangs up."""
    host, _, port = place.partition(":")
    heard = b""
    with socket.create_connection((host, int(port)), timeout=WAIT) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent.encode())
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(65536):
                heard += more
    return heard.decode("latin-1")


@pytest.mark.parametrize("how", OTHER_HOSTS)
def test_what_two_readers_would_read_differently_is_refused_at_every_port(
    cloud: Emulator, metadata: Any, how: str
) -> None:
    """Each with the token; a second request hides behind the first."""
    for place, path in (
        (cloud.rest.url, "/certs"),
        (cloud.storage.url, "/storage/v1/b/bucket/o"),
        (f"http://{metadata.address}", "/computeMetadata/v1/instance/id"),
    ):
        netloc, token = urlsplit(place).netloc, urlsplit(place).path
        headers = OTHER_HOSTS[how].format(own=netloc, port=netloc.partition(":")[2])
        hidden = f"GET {token}{path} HTTP/1.1\r\nHost: {netloc}\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n"
        version = "1.0" if how == "no host" else "1.1"
        last = "Metadata-Flavor: Google\r\nConnection: close\r\n"
        heard = said(netloc, f"GET {token}{path} HTTP/{version}\r\n{headers}{last}\r\n0\r\n\r\n{hidden}")
        assert re.match(r"HTTP/1\.[01] (400|403|413|431|501) ", heard), (place, heard[:300])
        assert " 200 " not in heard, place
    assert cloud.queued_resources() == []


def test_an_address_of_another_server_in_the_first_line_is_refused(cloud: Emulator) -> None:
    """A proxy would be asked so; this is none, and the token does not stand where it is looked for."""
    own, token = urlsplit(cloud.rest.url).netloc, urlsplit(cloud.rest.url).path
    head = (
        f"Host: {own}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(WANTED)}\r\n\r\n"
    )
    for target in (
        f"http://evil.example{CREATE}",
        f"http://evil.example{token}{CREATE}",
        f"//evil.example{token}{CREATE}",
    ):
        assert " 403 " in said(own, f"POST {target} HTTP/1.1\r\n{head}{WANTED}").partition("\r\n")[0]
    bucket, token = urlsplit(cloud.storage.url).netloc, urlsplit(cloud.storage.url).path
    asked = f"GET http://evil.example{token}/storage/v1/b/bucket/o HTTP/1.1\r\nHost: {bucket}\r\n\r\n"
    assert " 403 " in said(bucket, asked).partition("\r\n")[0]
    assert cloud.queued_resources() == []


def test_a_body_that_nobody_would_send_is_refused_before_it_is_read(cloud: Emulator, metadata: Any) -> None:
    for place, path in ((cloud.rest.url, CREATE), (f"http://{metadata.address}", "/computeMetadata/v1/instance/id")):
        netloc, token = urlsplit(place).netloc, urlsplit(place).path
        head = f"Host: {netloc}\r\nContent-Type: application/json\r\nContent-Length: {10**12}\r\n\r\n"
        assert " 413 " in said(netloc, f"POST {token}{path} HTTP/1.1\r\n{head}").partition("\r\n")[0]
    assert cloud.queued_resources() == []


def test_a_metadata_server_gives_its_identity_to_its_own_machine_only(metadata: Any) -> None:
    place, _, token = metadata.address.partition("/")
    path = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=a"
    flavor = {"Metadata_Flavor": "Google"}
    assert ask(f"http://{place}", path, **flavor)[0] == 403
    assert ask(f"http://{place}", f"/wrong{path}", **flavor)[0] == 403
    assert ask(f"http://{place}", f"/{token}{path}", Host="evil.example", **flavor)[0] == 403
    assert ask(f"http://{place}", f"/{token}{path}", Origin="https://evil.example", **flavor)[0] == 403
    assert ask(f"http://{place}", f"/{token}{path}", **flavor) == (200, "signed")


def test_an_unmodified_client_of_the_bucket_needs_its_address_and_nothing_else(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud.storage.environ().items():
        monkeypatch.setenv(name, value)
    client = storage.Client(project="p", credentials=google.auth.credentials.AnonymousCredentials())  # type: ignore[no-untyped-call]
    blob = client.bucket("bucket").blob("an object")
    blob.upload_from_string(b"text")
    found = client.bucket("bucket").get_blob("an object")
    assert found is not None
    assert found.download_as_bytes() == b"text"  # by the link that the server gives
    big = client.bucket("bucket").blob("big", chunk_size=256 << 10)
    big.upload_from_string(b"x" * (600 << 10))  # by the address that the server gives
    assert big.size == 600 << 10
    assert [item.name for item in client.list_blobs("bucket")] == ["an object", "big"]
    assert requests.get(found.self_link, timeout=WAIT).json()["size"] == "4"


def test_no_command_line_tells_the_token_and_the_server_behind_the_proxy_is_hidden(cloud: Emulator) -> None:
    token = urlsplit(cloud.storage.url).path.strip("/").encode()
    assert len(token) >= 32
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes())
        except OSError:
            continue
    servers = [words for line in lines if b"-public-host" in (words := line.split(b"\0"))]
    assert servers
    assert not [line for line in lines if token in line]
    ours = urlsplit(cloud.storage.url).netloc.encode()
    words = next(words for words in servers if words[words.index(b"-public-host") + 1] == ours)
    assert words[words.index(b"-host") + 1] != b"127.0.0.1"
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{int(words[words.index(b'-port') + 1])}/storage/v1/b/bucket/o", timeout=WAIT)


def test_doctor_does_not_show_the_token(
    cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in cloud.environ().items():
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    token = urlsplit(cloud.rest.url).path.strip("/")
    assert f"http://127.0.0.1:{cloud.rest.port}/(token, not shown)" in shown
    assert f"(token, not shown)127.0.0.1:{cloud.grpc.address.rpartition(':')[2]}" in shown
    assert token not in shown


def test_two_emulators_have_two_tokens(cloud: Emulator) -> None:
    with Emulator(zones=[ZONE], hosts=False) as other:
        mine, theirs = (urlsplit(one.rest.url).path for one in (cloud, other))
        assert mine != theirs
        assert ask(other.rest.url, f"{mine}/certs")[0] == 403


def test_a_file_of_the_printed_lines_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "cloud.env"
    command = [sys.executable, "-m", "kinetic_orchestration.cli", "emulator", "--zone", ZONE]
    with path.open("w", encoding="utf-8") as file:
        path.chmod(0o644)
        with subprocess.Popen([*command], stdout=file, stderr=subprocess.PIPE, text=True) as emulator:
            assert emulator.stderr is not None
            assert "running" in emulator.stderr.readline()
            mode = stat.S_IMODE(path.stat().st_mode)
            done = subprocess.run(
                ["/bin/sh", "-c", '. "$1" && exec "$2" -m kinetic_orchestration.cli jobs', "sh", str(path), sys.executable],
                env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KINETIC_HOME": str(tmp_path / "home")},
                capture_output=True, text=True, timeout=WAIT,
            )  # fmt: skip
            emulator.send_signal(signal.SIGINT)
    assert mode == 0o600
    assert (done.returncode, done.stderr) == (0, "kinetic: no job is under way; --all lists those that ended, too\n")


# ---- the debugger ----------------------------------------------------------------------------------------------


@kinetic.run(accelerator="cpu", debug=True)
def debugged(x: int) -> int:
    return x + 1


ATTACH = """
import json, os, socket, sys
os.setgid(65534), os.setuid(int(sys.argv[2]))
body = json.dumps({"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "t"}}).encode()
family = socket.AF_INET6 if sys.argv[3] else socket.AF_INET
with socket.socket(family) as connection:
    connection.settimeout(10)
    connection.connect((sys.argv[3] + "127.0.0.1", int(sys.argv[1])))
    heard = b""
    try:
        connection.sendall(sys.argv[4].encode() + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
        while b"request_seq" not in heard and (more := connection.recv(4096)):
            heard += more
    except (ConnectionError, TimeoutError):
        pass
print("request_seq" in heard.decode())
"""


def attached(port: int, user: int, mapped: str = "", before: str = "") -> bool:
    """Tell whether a debugger of a user is answered."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", ATTACH, str(port), str(user), mapped, before],
        capture_output=True, text=True, timeout=WAIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "True"


def ports_of(words: str) -> set[int]:
    """Return the ports on which processes with these words in their command line listen."""
    held = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words.encode() in (process / "cmdline").read_bytes():
                held |= {os.readlink(file).removeprefix("socket:[").rstrip("]") for file in (process / "fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in held}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_debugger_of_another_user_or_of_a_page_of_the_web_is_not_answered(home: Path) -> None:
    job = debugged.run_async(1)
    try:
        found = None
        deadline = time.monotonic() + 150
        while found is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            found = re.search(r"waiting for a debugger on 127\.0\.0\.1:(\d+)", job.logs() or "")
        port = int(found[1])
        listening = ports_of("debugpy/adapter")
        assert port in listening and len(listening) >= 2  # editors' and programs'
        for each in listening:
            assert not attached(each, user=65534), "another user"
            assert not attached(each, user=65534, mapped="::ffff:"), "another user, by IPv6"
        assert not attached(port, user=0, before="POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"), "a browser of this user"
        for _ in range(50):  # who goes at once does not end the listening
            with socket.create_connection(("127.0.0.1", port)) as hasty:
                hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert attached(port, user=0), "this user's editor"
        assert not job.status().final
    finally:
        job.cancel()


def test_whose_a_connection_is_is_told_by_the_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as mine:
        accepted, _ = server.accept()
        with accepted:
            assert debugger.is_mine(accepted)
            assert debugger.is_mine(mine)
            assert not debugger.is_mine(server)  # which nobody has connected
            mine.sendall(b"last words")
            mine.shutdown(socket.SHUT_WR)
            assert debugger.is_mine(accepted)  # who has said all may still be told something
            mine.close()
            assert not debugger.is_mine(accepted)  # the kernel shows it as root's, whoever closed it


def user_of(port: int) -> str:
    """Return whose the connection from this port is, as the kernel shows it."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return next(row[7] for row in rows if row[1].endswith(f":{port:04X}"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("stays", [True, False], ids=["open", "closed"])
def test_a_connection_of_another_user_is_not_roots_when_it_is_closed(stays: bool) -> None:
    code = (
        "import os, socket, sys\nos.setgid(65534), os.setuid(65534)\n"
        "with socket.socket() as theirs:\n    theirs.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "    theirs.sendall(b'last words')\n    sys.stdin.read() if sys.argv[2] else None\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)
        command = [sys.executable, "-S", "-c", code, str(server.getsockname()[1]), "stays" * stays]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as other:
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(4096) == b"last words"
                deadline = time.monotonic() + WAIT
                while not stays and user_of(accepted.getpeername()[1]) != "0":  # the end of it is on its way
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                assert not debugger.is_mine(accepted)
            other.communicate(timeout=WAIT)


def test_an_adapter_outlives_hasty_clients_and_its_own_connection_is_known_when_it_is_closed(tmp_path: Path) -> None:
    """debugpy's adapter reports its ports to the program and closes immediately; and it writes to clients that may be
    gone in the one thread that accepts them.
    """
    adapter = tmp_path / "debugpy" / "adapter"
    adapter.mkdir(parents=True)
    (adapter.parent / "__init__.py").touch()
    (adapter.parent / "common").mkdir()
    (adapter.parent / "common" / "__init__.py").touch()
    (adapter.parent / "common" / "log.py").write_text("def info(*_):\n    pass\n")
    (adapter.parent / "common" / "sockets.py").write_text(
        "import socket\ndef serve(name, handler, host):\n    handler(socket.socket())\n"
    )
    (adapter / "__init__.py").touch()
    (adapter / "__main__.py").write_text(
        "import socket, sys\nfrom debugpy.common import sockets\n"
        "sockets.serve('Client', lambda connection: 1 / 0, '127.0.0.1')\n"
        "with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as own:\n"
        "    own.sendall(b'my ports')\n    own.shutdown(socket.SHUT_RDWR)\n"
        "sys.stdin.read()\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT)
        words = [str(adapter), str(server.getsockname()[1])]
        command = [sys.executable, "-c", program_of(debugger.__name__), *words]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as own:
            accepted, _ = server.accept()
            with accepted:
                assert (accepted.recv(4096), accepted.recv(4096)) == (b"my ports", b"")
                assert debugger.is_mine(accepted)
            own.communicate(timeout=WAIT)
