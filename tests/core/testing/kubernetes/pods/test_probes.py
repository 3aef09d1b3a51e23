"""The probes of the emulated kubelet, against a server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kinetic_orchestration.testing.kubernetes.pods.probes import Probes, on_this_machine


class _Server(ThreadingHTTPServer):
    status = 503


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/up" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as it:
        threading.Thread(target=it.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield it
        it.shutdown()


def test_a_pods_processes_listen_on_its_own_address_of_loopback() -> None:
    assert on_this_machine("10.244.3.7") == "127.244.3.7"
    assert on_this_machine("127.0.0.1") == "127.0.0.1"


def test_a_container_without_probes_is_ready() -> None:
    probes = Probes({"startupProbe": {"exec": {}}}, 0.0)
    assert (probes.started, probes.ready) == (True, True)


def test_a_container_is_ready_once_it_has_started_and_is_ended_if_it_hangs(server: _Server) -> None:
    up = {"httpGet": {"path": "/up", "port": "http"}, "failureThreshold": 2, "periodSeconds": 10}
    ports = [{"name": "http", "containerPort": server.server_port}]
    probes = Probes({"ports": ports, **dict.fromkeys(("startupProbe", "readinessProbe", "livenessProbe"), up)}, 0.0)
    probes.step("127.0.0.1", 0.0)
    assert (probes.started, probes.ready, probes.failed) == (False, False, "")
    server.status = 200
    probes.step("127.0.0.1", 5.0)  # not due
    assert not probes.started
    probes.step("127.0.0.1", 10.0)
    assert (probes.started, probes.ready) == (True, False)
    probes.step("127.0.0.1", 10.1)
    assert probes.ready
    server.status = 500
    probes.step("127.0.0.1", 21.0)
    assert (probes.ready, probes.failed) == (True, "")
    probes.step("127.0.0.1", 32.0)
    assert (probes.ready, probes.failed, probes.said) == (False, "Liveness", "HTTP probe failed with statuscode: 500")


def test_a_start_that_takes_too_long_is_ended(server: _Server) -> None:
    up = {"httpGet": {"path": "/none", "port": server.server_port}, "failureThreshold": 1, "periodSeconds": 1}
    probes = Probes({"startupProbe": up}, 0.0)
    probes.step("127.0.0.1", 1.0)
    assert probes.failed == "Startup"
