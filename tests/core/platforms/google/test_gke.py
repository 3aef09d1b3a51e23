"""Clusters of GKE that do not exist: nothing of a job is left there, if Google says so for all locations."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import GONE, UNKNOWN, Freed, Observation
from kinetic_orchestration.platforms.google.gke import GkeClusters
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.protocol import wire

OTHER = {"name": "other", "location": "us-central1", "status": "RUNNING"}
GOING = {"name": "prod", "location": "us-central1", "status": "STOPPING"}


class Lists:
    """Google's list of clusters, as a server on loopback gives it."""

    def __init__(self) -> None:
        self.status, self.body = 200, dict[str, Any]()


@pytest.fixture
def lists(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lists]:
    found = Lists()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(found.body).encode()
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """It says nothing."""

    monkeypatch.setattr("kinetic_orchestration.platforms.google.retries.PAUSES", ())
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setenv("KINETIC_EMULATOR", f"http://127.0.0.1:{server.server_address[1]}")
        yield found
        server.shutdown()
        thread.join()


def seen() -> tuple[Freed, Observation, list[dict[str, Any]]]:
    known = settings.load(
        backend="gke", store="gs://bucket/kinetic", deployment="prod", project="p", cluster="prod", namespace="a"
    )
    backend = KubernetesBackend(known, GkeClusters(known), None, "gke")
    placement = {"backend": "gke", "project": "p", "zone": "prod/a", "name": "kinetic-x-1", "hosts": 1}
    (observed,) = backend.observe([placement])
    return backend.release(placement), observed, list(backend.leftovers())


def test_nothing_is_left_in_a_cluster_that_was_deleted_and_its_attempts_have_ended(lists: Lists) -> None:
    lists.body = {"clusters": [OTHER]}
    freed, observed, (unread,) = seen()
    assert freed is Freed.DONE
    assert (observed.state, observed.cause) == (GONE, wire.INFRASTRUCTURE)
    assert "p has no cluster prod; it has other" in observed.message
    assert unread["zone"] == "prod/a" and "p has no cluster prod" in unread["unread"]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"clusters": [OTHER], "missingZones": ["us-east5-a"]}),
        (200, {"clusters": [GOING]}),
        (403, {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no"}}),
        (503, {"error": {"code": 503, "status": "UNAVAILABLE", "message": "later"}}),
    ],
    ids=["a location is silent", "it is being deleted", "no right", "no answer"],
)
def test_a_cluster_of_which_not_all_is_known_is_not_called_gone(
    lists: Lists, status: int, body: dict[str, Any]
) -> None:
    lists.status, lists.body = status, body
    freed, observed, (unread,) = seen()
    assert (freed, observed.state, observed.cause) == (Freed.REFUSED, UNKNOWN, "")
    assert unread["unread"]
