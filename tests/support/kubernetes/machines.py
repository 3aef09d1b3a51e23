"""Answers ProvisioningRequests beside a real control plane, as GKE's autoscaler does on its clusters.

The rules are the emulated cluster's own: here they see what the server has, and what they decide is done there and with the
nodes of a test.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, Self

from kinetic_orchestration.testing.kubernetes.api.answers import Object, Refused
from kinetic_orchestration.testing.kubernetes.api.kinds import Kind
from kinetic_orchestration.testing.kubernetes.api.store import Store
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, Join, Leave, Replace, View
from kinetic_orchestration.testing.kubernetes.controllers.queued_machines import QueuedMachines
from kinetic_orchestration.testing.kubernetes.controllers.scaling import STOCKOUT, Autoscaler
from kinetic_orchestration.testing.kubernetes.pods.nodes import NodeGroup
from tests.support.kubernetes.api import Api
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane

_TICK = 0.1


class Machines(Protocol):
    """A test's orders for the machines that queues ask for."""

    def answer_requests(self, answer: str = "", message: str = "") -> None: ...
    def stockout(self) -> None: ...
    def restock(self) -> None: ...


@contextlib.contextmanager
def machines_of(plane: ControlPlane | EmulatedPlane, nodes: NodeGroup) -> Iterator[Machines]:
    """Within the block, requests of a plane are answered with nodes of these."""
    if isinstance(plane, EmulatedPlane):
        scaler = plane.cluster.autoscaler
        scaler.provisions = True
        yield plane.cluster
        scaler.provisions = False
        scaler.pools.clear()
        plane.cluster.restock()
        plane.cluster.answer_requests()
    else:
        with _Provisioner(plane, nodes) as provisioner:
            yield provisioner


class _Provisioner:
    """Answers the requests of a real plane, from a `with` on, in a thread."""

    def __init__(self, plane: ControlPlane, nodes: NodeGroup) -> None:
        self._api, self._nodes = Api(plane.kubeconfig, keep=True), nodes
        self._scaler = Autoscaler({}, provisions=True)
        self._answers = QueuedMachines(self._scaler)
        self._ending = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._api.close()
        if self._failure is not None:
            raise self._failure

    def answer_requests(self, answer: str = "", message: str = "") -> None:
        self._answers.say(answer, message)

    def stockout(self) -> None:
        self._scaler.lacks["*"] = STOCKOUT

    def restock(self) -> None:
        self._scaler.lacks.clear()

    def _run(self) -> None:
        try:
            while not self._ending.wait(_TICK):
                for change in self._answers.step(_Seen(self._api)):
                    self._apply(change)
        except Exception as error:  # which nobody would see in a thread
            self._failure = error

    def _apply(self, change: Change) -> None:
        match change:
            case Replace(kind, found):
                told = {"status": {"conditions": found["status"]["conditions"]}}
                with contextlib.suppress(Refused):  # it is gone
                    self._api.patch(f"{_place(kind, found)}/status", told)
            case Join(node):
                self._nodes.join(node)
            case Leave(name):
                self._nodes.remove(name)
            case _:
                raise AssertionError(f"an autoscaler does not {change}")


class _Seen(View):
    """The objects of a server now, as a controller sees them."""

    def __init__(self, api: Api) -> None:
        super().__init__(Store(), time.time())
        self._api = api

    def all(self, kind: Kind, namespace: str = "") -> Sequence[Object]:
        return list(self._api.get(_path(kind, namespace))["items"])

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._api.found(f"{_path(kind, namespace)}/{name}")


def _place(kind: Kind, found: Object) -> str:
    metadata = found["metadata"]
    return f"{_path(kind, metadata.get('namespace', ''))}/{metadata['name']}"


def _path(kind: Kind, namespace: str) -> str:
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/{'apis' if kind.group else 'api'}/{kind.api_version}{where}/{kind.plural}"
