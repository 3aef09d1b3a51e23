"""Programs in a pod of a real control plane and of the emulated one, by Kubernetes' exec: all that is on its way at once."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.errors import HostNotReached
from kinetic_orchestration.platforms.kubernetes.api import kubeconfig
from kinetic_orchestration.reach import ports
from kinetic_orchestration.reach.channel import ERR, Channel, Pod
from kinetic_orchestration.reach.ports import InPod
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node, NodeGroup
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import on_both
from tests.support.waits import wait_until

pytestmark = on_both(pytest.mark.slow, pytest.mark.turn(3))

MUCH = bytes(range(256)) * (32 << 10)  # 8 MiB: more than all pipes and sockets on the way hold
SECONDS = 120.0
MAIN = {"name": "main", "image": "python", "command": ["sh", "-c", "exec sleep 900"]}


@pytest.fixture
def config(plane: ControlPlane | EmulatedPlane, namespace: str, nodes: NodeGroup) -> Path:
    """A kubeconfig that leads to a pod `entered`, which runs."""
    nodes.add(Node(f"{namespace}-node"))
    pods = f"/api/v1/namespaces/{namespace}/pods"
    spec = {"restartPolicy": "Never", "nodeName": f"{namespace}-node", "containers": [MAIN]}
    spec["terminationGracePeriodSeconds"] = 0
    plane.api.create(pods, {"metadata": {"name": "entered"}, "spec": spec})
    wait_until(lambda: plane.api.get(f"{pods}/entered")["status"].get("phase") == "Running", pause=0.05)
    return plane.kubeconfig


def opened(config: Path, namespace: str, *words: str, tty: bool = False) -> contextlib.closing[Channel]:
    access = kubeconfig.load({}, path=str(config))
    return contextlib.closing(Channel(access, Pod(namespace, "entered", "main"), words, tty=tty))


def talked(channel: Channel, given: bytes = b"") -> tuple[int, bytes, bytes]:
    """Give a program all of its input, the more as there is room, and read it to its end."""
    said: dict[bool, bytearray] = {False: bytearray(), True: bytearray()}
    left, deadline = memoryview(given), time.monotonic() + SECONDS
    ended = False
    while channel.code is None:
        assert time.monotonic() < deadline, f"{len(left)} bytes are not read, {len(said[False])} came"
        while left and not channel.is_full:
            channel.send(bytes(left[: 16 << 10]))
            left = left[16 << 10 :]
        if not left and not ended:
            ended = True
            channel.end_input()
        channel.wait()
        for piece in channel.read():
            said[piece.channel == ERR] += piece.data
    return channel.code, bytes(said[False]), bytes(said[True])


def test_both_ways_are_used_at_once_and_neither_waits_for_the_other(config: Path, namespace: str) -> None:
    with opened(config, namespace, "cat") as channel:
        assert channel.closes_input and talked(channel, MUCH) == (0, MUCH, b"")
    # it writes all before it reads: 24 MiB, which is more than a message may have
    script = "head -c 25165824 /dev/zero; wc -c >&2; exit 3"
    with opened(config, namespace, "sh", "-c", script) as channel:
        code, out, err = talked(channel, MUCH)
        assert (code, len(out), err.strip()) == (3, 24 << 20, str(len(MUCH)).encode())
    with opened(config, namespace, "sh", "-c", "exit 9") as channel:  # it reads nothing of what it is given
        assert talked(channel, MUCH)[0] == 9
    with pytest.raises(HostNotReached, match="gone"), opened(config, f"{namespace}-other", "true"):
        pass


def test_a_terminal_ends_with_its_program(config: Path, namespace: str) -> None:
    with opened(config, namespace, "sh", tty=True) as channel:
        channel.resize(123, 45)
        channel.send(b"stty size; test -t 0 && echo a term'in'al; exit 4\n")
        said, deadline = b"", time.monotonic() + SECONDS
        while channel.code is None and time.monotonic() < deadline:
            channel.wait()
            said += b"".join(piece.data for piece in channel.read())
        assert channel.code == 4 and b"45 123" in said and b"a terminal" in said, said


def test_a_port_of_a_pod_whose_client_writes_all_before_it_reads(config: Path, namespace: str) -> None:
    with echoes() as port:
        ours, theirs = socket.socketpair()
        with opened(config, namespace, *ports.relay(port)) as channel, ours, theirs:
            stream = InPod(channel)
            passing = threading.Thread(target=stream.pass_on, args=(theirs,), daemon=True)
            passing.start()
            ours.settimeout(SECONDS)
            ours.sendall(MUCH[: 1 << 20])
            ours.shutdown(socket.SHUT_WR)
            came = bytearray()
            while len(came) < 1 << 20 and (piece := ours.recv(1 << 16)):
                came += piece
            assert came == MUCH[: 1 << 20]
            passing.join(SECONDS)
            assert not passing.is_alive()


@contextlib.contextmanager
def echoes() -> Iterator[int]:
    """Serve one connection on loopback, which emulated pods share: it sends back what comes, until that ends."""
    with socket.create_server((ports.LOOPBACK, 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(SECONDS)


@pytest.mark.skipif(importlib.util.find_spec("kubernetes") is None, reason="the package kubernetes is not installed")
def test_the_official_client_unmodified_enters_the_pod(config: Path, namespace: str) -> None:
    from kubernetes import client, stream
    from kubernetes import config as configuration

    with configuration.new_client_from_config_dict(json.loads(config.read_text(encoding="utf-8"))) as made:
        call = client.CoreV1Api(made).connect_get_namespaced_pod_exec
        script = 'read line; echo "given: $line"; echo wrong >&2; exit 7'
        talk = stream.stream(
            call, "entered", namespace, command=["sh", "-c", script], stdin=True, stdout=True, stderr=True, tty=False,
            _preload_content=False,
        )  # fmt: skip
        talk.write_stdin("a line\n")
        talk.run_forever(timeout=SECONDS)
        assert (talk.returncode, talk.read_stdout(), talk.read_stderr()) == (7, "given: a line\n", "wrong\n")
        talk.sock.shutdown()  # which it does not do itself, once the other end has closed
