"""An emulated Kubernetes cluster on this machine: its API server, controllers, nodes and autoscaler, running.

Its pods are processes. `Cluster` is what a test or an emulated Google Cloud holds; the rules are its parts'. All of it
ends with `close`.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import logging
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

from kinetic_orchestration.reach.websocket import WebSocket
from kinetic_orchestration.testing.kubernetes import execution
from kinetic_orchestration.testing.kubernetes.api import answers, certificate, kinds, objects
from kinetic_orchestration.testing.kubernetes.api.answers import Object, Refused
from kinetic_orchestration.testing.kubernetes.api.objects import name_of, namespace_of, stamp, uid_of
from kinetic_orchestration.testing.kubernetes.api.requests import STRATEGIC, Request, Requests
from kinetic_orchestration.testing.kubernetes.api.rules import deletion, rights
from kinetic_orchestration.testing.kubernetes.api.rules.rights import User
from kinetic_orchestration.testing.kubernetes.api.server import ApiServer, Fault
from kinetic_orchestration.testing.kubernetes.api.store import Store
from kinetic_orchestration.testing.kubernetes.controllers import changes, garbage, jobsets, scheduling
from kinetic_orchestration.testing.kubernetes.controllers.changes import Change, View
from kinetic_orchestration.testing.kubernetes.controllers.jobs import Jobs
from kinetic_orchestration.testing.kubernetes.controllers.kueue import provisioning, queueing
from kinetic_orchestration.testing.kubernetes.controllers.nodes import Nodes
from kinetic_orchestration.testing.kubernetes.controllers.queued_machines import QueuedMachines
from kinetic_orchestration.testing.kubernetes.controllers.scaling import POOL, QUOTA, STOCKOUT, Autoscaler, NodePool
from kinetic_orchestration.testing.kubernetes.pods.kubelet import Kubelet
from kinetic_orchestration.testing.kubernetes.pods.nodes import NodeGroup

API_SERVER = "kube-apiserver"
_BREATH = 0.001
_PATIENCE = 60.0  # seconds for nodes to be ready
_LOOK = 0.2  # seconds until controllers look at the time, if nothing changes
_TICK = 0.1
_AGAIN = 1.0  # seconds after a refusal
_MANY = 1000  # events, from which on it is looked which of them are gone
_STEPS = 50  # in which controllers answer each other
_NAMESPACES = ("default", "kube-system", "kube-node-lease")
_TERMINATING = {"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute"}
_log = logging.getLogger(__name__)


class Cluster:
    """One cluster, from `open` until `close`, which a `with` calls.

    Args:
        folder: Where it keeps what pods write, and its certificate; it is made.
        environment: What its machines give to every pod.
        pools: Those that its autoscaler makes nodes for.
        provisions: Make pools for whatever pods ask for, as GKE's auto-provisioning does.
        provision: Seconds until nodes are there.
        idle: Seconds after which nodes go that no pod uses.
        isolate: False: pods have no pid namespaces, as on a machine that permits none.
        identities: The workload identity pool, PROJECT.svc.id.goog: pods on nodes that are made for them meet GKE's
            metadata server. "": they meet none.
        listener: Receives every event.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        pools: Iterable[NodePool] = (),
        provisions: bool = False,
        provision: float = 0.1,
        idle: float = 600.0,
        isolate: bool = True,
        identities: str = "",
        listener: Callable[[changes.Tell], object] | None = None,
    ) -> None:
        self.folder = folder
        self._isolate = isolate
        self._listener = listener
        self.store = Store()
        self.nodes = _Nodes(folder / "nodes", self.store)
        self.autoscaler = Autoscaler(
            environment or {}, provision=provision, idle=idle, provisions=provisions, identities=identities
        )
        self.autoscaler.pools = {pool.name: pool for pool in pools}
        self._queued_machines = QueuedMachines(self.autoscaler)
        self._tokens: dict[str, _Known] = {}
        self._away: set[str] = set()
        self._requests = Requests(self.store, self._token, self._log_of, self._pending, self._away)
        self._jobs, self._node_watch = Jobs(), Nodes()
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._told: dict[tuple[str, str, str], str] = {}
        self._failures: set[str] = set()  # of controllers, that were told
        self._waits: dict[str, float] = {}  # whose objects were refused, until when none is tried again
        self._leaving: list[tuple[float, list[str]]] = []  # when nodes go, and which
        self.token = self._token(rights.ADMIN)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.authority = certificate.write(self._certificate)
        self.server = ApiServer(self._requests.answer, self._user_of, self._certificate, self._enter)
        for name in _NAMESPACES:
            self._requests.create(kinds.NAMESPACES, "", {"metadata": {"name": name}})
        if self.autoscaler.pools or self.autoscaler.provisions:
            status = {"metadata": {"name": "cluster-autoscaler-status"}}
            self._requests.create(kinds.CONFIG_MAPS, "kube-system", status)
        self._kubelet = Kubelet(self.nodes.folder, _LocalApi(self._requests, self.server), isolate=self._isolate)
        self.server.open()
        for name, work in (("controllers", self._control), ("kubelet", self._run_pods)):
            thread = threading.Thread(target=work, name=f"emulated cluster: {name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """End all pods, and the server. A second time does nothing."""
        if self._ending.is_set():
            return
        self._ending.set()
        with self.store.changed:
            self.store.changed.notify_all()
        for thread in self._threads:
            thread.join()
        self.server.close()

    @property
    def _certificate(self) -> Path:
        return self.folder / "server.pem"

    def renew_authority(self) -> None:
        """Start the API server with a certificate of another authority. A kubeconfig that is written from now on has
        that one, and others reach nothing any more."""
        self.authority = certificate.write(self._certificate)
        self.server.renew(self._certificate)

    # ---- who speaks to it

    @property
    def address(self) -> str:
        """HOST:PORT of its API server."""
        return f"127.0.0.1:{self.server.port}"

    @property
    def endpoint(self) -> str:
        """The address for clients that have no token of their own: theirs is a part of it."""
        return f"{self.address}/{self.token}"

    def write_kubeconfig(
        self, path: Path, user: User = rights.ADMIN, namespace: str = "default", name: str = "emulated"
    ) -> Path:
        """Write the kubeconfig of a user, and return its path. It says of the cluster that it is emulated."""
        encoded = base64.b64encode(self.authority.encode()).decode()
        emulated = [{"name": "kinetic-orchestration", "extension": {"emulated": True}}]
        cluster = {
            "server": f"https://{self.address}", "certificate-authority-data": encoded, "extensions": emulated,
        }  # fmt: skip
        context = {"cluster": name, "user": user.name, "namespace": namespace}
        told = {
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": user.name, "user": {"token": self._token(user)}}],
            "contexts": [{"name": name, "context": context}],
        }  # fmt: skip
        path.touch(0o600)
        path.write_text(json.dumps(told), encoding="utf-8")  # which is YAML, too
        return path

    def _token(self, user: User, seconds: float = math.inf) -> str:
        """Return a token of a user that holds for so long; the one that holds for ever is always the same."""
        with self.store.changed:
            now = time.time()
            self._tokens = {token: known for token, known in self._tokens.items() if known.until > now}
            known = _Known(user, now + seconds)
            found = (token for token, other in self._tokens.items() if other == known)
            token = next(found, None) or secrets.token_urlsafe(24)
            self._tokens[token] = known
            return token

    def _user_of(self, token: str) -> User | None:
        """Return who has a token; how long that takes says nothing of it."""
        given = token.encode("utf-8", "surrogateescape")
        same = [found for known, found in self._tokens.copy().items() if hmac.compare_digest(known.encode(), given)]
        return same[0].user if same and same[0].until > time.time() else None

    @property
    def pools(self) -> list[NodePool]:
        """Its pools of nodes, also those that it has made for pods."""
        return [*self.autoscaler.pools.values()]

    # ---- what may happen to it

    def fail(self, pattern: str, code: int = 429, times: int | None = 1, retry_after: int = 0) -> None:
        """Have requests refused whose method and path are such: `POST */jobsets`. `times=None`: always."""
        told = answers.busy(retry_after or 1) if code == 429 else answers.refusal(code, "InternalError", "it is broken")
        self.server.faults.append(Fault(pattern, told, times, retry_after))

    def heal(self) -> None:
        """Let no request fail any more."""
        self.server.faults.clear()

    def forget_lists(self) -> None:
        """Refuse to continue a list that somebody has begun to read: 410."""
        self._requests.forget_lists()

    def interrupt(self, part: str) -> None:
        """Have a part be away: `kube-apiserver`, or the controllers and webhooks of `jobset` or `kueue`."""
        self._away.add(part)
        if part == API_SERVER:
            self.server.close()

    def resume(self, part: str) -> None:
        self._away.discard(part)
        if part == API_SERVER:
            self.server.open()
        with self.store.changed:
            self.store.changed.notify_all()

    def stockout(self, pool: str = "*") -> None:
        """Have no machines for a pool: its nodes cannot be made."""
        self.autoscaler.lacks[pool] = STOCKOUT

    def quota(self, pool: str = "*") -> None:
        """Have no quota for the machines of a pool."""
        self.autoscaler.lacks[pool] = QUOTA

    def restock(self, pool: str = "*") -> None:
        """Have machines for a pool again."""
        self.autoscaler.lacks.pop(pool, None)
        self.autoscaler.forgive()

    def answer_requests(self, answer: str = "", message: str = "") -> None:
        """Answer ProvisioningRequests of queued provisioning so: `Waiting`, `Failed`, `BookingExpired` or
        `CapacityRevoked`, the last two once there were machines; "": with machines. Raises ValueError for others."""
        self._queued_machines.say(answer, message)

    def preempt(self, pool: str, notice: float = 15.0) -> None:
        """Take the spot machines of a pool away: their pods are told, and the nodes are gone after a while."""
        with self.store.changed:
            names = self._names_of(pool)
            for name in names:
                node = self.store.get(kinds.NODES, "", name)
                if node is not None:
                    taints = [*(node["spec"].get("taints") or ()), _TERMINATING]
                    self.store.replace(kinds.NODES, objects.with_spec(node, taints=taints))
            self._leaving.append((time.time() + notice, names))

    def lose(self, pool: str) -> None:
        """Have the machines of a pool dead, and nothing heard of it."""
        self.nodes.lose(*self._names_of(pool))

    def leaks(self) -> list[str]:
        """Return all that is left of jobs and could cost anything, for users: sets that go on, pods that run."""
        with self.store.changed:
            sets = [one for one in self.store.list(kinds.JOBSETS) if not jobsets.is_over(one)]
            pods = [one for one in self.store.list(kinds.PODS) if objects.phase_of(one) not in ("Succeeded", "Failed")]
        named = [("JobSet", sets), ("pod", pods)]
        return [f"{word} {namespace_of(one)}/{name_of(one)}" for word, found in named for one in found]

    def _names_of(self, pool: str) -> list[str]:
        return [name_of(node) for node in self.store.list(kinds.NODES) if objects.labels_of(node).get(POOL) == pool]

    # ---- its controllers

    def _control(self) -> None:
        while not self._ending.is_set():
            with self.store.changed:
                before = self.store.version
                if API_SERVER not in self._away:
                    self._settle()
                # Requests have a turn even while controllers always find something to do.
                self.store.changed.wait(_LOOK if self.store.version == before else _BREATH)

    def _settle(self) -> None:
        """Let all controllers act until none has anything to do."""
        self._forget()
        for _, names in [one for one in self._leaving if one[0] <= time.time()]:
            self.nodes.remove(*names)
        self._leaving = [one for one in self._leaving if one[0] > time.time()]
        for _ in range(_STEPS):
            before = self.store.version
            for step in self._steps():
                try:
                    for change in step(View(self.store, time.time())):
                        self._apply(change)
                except Exception as error:  # of one controller: the others go on
                    if (told := f"{type(error).__name__}: {error}") not in self._failures:
                        self._failures.add(told)
                        _log.exception("a controller of the emulated cluster failed")
            if self.store.version == before:
                return

    def _forget(self) -> None:
        """Forget what was told by events that are gone, and refusals that no longer hold."""
        if len(self._told) > _MANY:
            events = {name_of(event) for event in self.store.list(kinds.EVENTS)}
            self._told = {key: name for key, name in self._told.items() if name in events}
        self._waits = {uid: until for uid, until in self._waits.items() if until > time.time()}

    def _steps(self) -> Iterator[Callable[[View], Iterator[Change]]]:
        if "kueue" not in self._away:
            yield queueing.step
            yield provisioning.step
        if "jobset" not in self._away:
            yield jobsets.step
        yield self._jobs.step
        yield self._node_watch.step
        yield scheduling.step
        yield self.autoscaler.step
        yield self._queued_machines.step
        yield garbage.step

    def _apply(self, change: Change) -> None:
        match change:
            case changes.Create():
                self._create(change)
            case changes.Replace(kind, found):
                self.store.replace(kind, found)
            case changes.Delete(kind, found, propagation, grace):
                there = self.store.get(kind, namespace_of(found), name_of(found))
                if there is not None and uid_of(there) == uid_of(found):
                    deletion.delete(self.store, kind, there, grace=grace, propagation=propagation)
            case changes.LetGo(kind, found):
                deletion.let_go(self.store, kind, found)
            case changes.Tell():
                self._tell(change)
            case changes.Join(node):
                self.nodes.join(node)
            case changes.Leave(name):
                self.nodes.remove(name)

    def _create(self, change: changes.Create) -> None:
        about, now = uid_of(change.about), time.time()
        if change.kind is not kinds.PODS and now < self._waits.get(about, 0.0):
            return
        try:
            self._requests.create(change.kind, namespace_of(change.found), change.found)
        except Refused as refused:
            reason, words = change.refused
            if change.kind is kinds.PODS:
                self._jobs.refused(change.about, now)
            self._waits[about] = now + _AGAIN
            if reason:
                self._tell(changes.Tell(change.about, "Warning", reason, f"{words}{refused}", change.component))
            return
        reason, words = change.done
        if reason:
            self._tell(changes.Tell(change.about, "Normal", reason, words, change.component))

    def _tell(self, told: changes.Tell) -> None:
        """Post an event; one that was posted before is counted."""
        about, namespace = told.about, namespace_of(told.about)
        key = uid_of(about), told.reason, told.message
        before = self.store.get(kinds.EVENTS, namespace, self._told.get(key, ""))
        if before is not None:
            self.store.replace(kinds.EVENTS, {**before, "count": before["count"] + 1, "lastTimestamp": stamp()})
            return
        if self._listener is not None:
            self._listener(told)
        self._told[key] = objects.event_name(name_of(about))
        involved = {
            "kind": about["kind"], "namespace": namespace, "name": name_of(about), "uid": uid_of(about),
            "apiVersion": about["apiVersion"], "resourceVersion": about["metadata"].get("resourceVersion", ""),
        }  # fmt: skip
        event = {
            "metadata": {"name": self._told[key], "namespace": namespace}, "involvedObject": involved,
            "type": told.kind, "reason": told.reason, "message": told.message, "count": 1, "firstTimestamp": stamp(),
            "lastTimestamp": stamp(), "source": {"component": told.component}, "reportingComponent": told.component,
            "reportingInstance": "", "eventTime": None,
        }  # fmt: skip
        with contextlib.suppress(Refused):  # its namespace is gone
            self._requests.create(kinds.EVENTS, namespace, event)

    def _pending(self, namespace: str, queue: str) -> Object:
        return queueing.pending(View(self.store, time.time()), namespace, queue)

    # ---- its nodes

    def _run_pods(self) -> None:
        while not self._ending.wait(_TICK):
            try:
                self._kubelet.tick(self.nodes.pool)
            except (OSError, Refused) as error:  # the server is away for a while
                _log.debug("the kubelet waits: %s", error)
            except Exception:
                _log.exception("the kubelet of the emulated cluster failed")
        self._kubelet.close()

    def _enter(
        self, asked: Request, query: Sequence[tuple[str, str]], offered: str
    ) -> tuple[str, Callable[[socket.socket], None]]:
        """Take a request for a program in a pod. Raises Refused."""
        namespace, name = self._requests.entered(asked)
        words = [value for key, value in query if key == "command"]
        protocol = execution.chosen(offered)
        if not words or not protocol:
            raise answers.bad("you must specify at least 1 command" if not words else "unable to upgrade: no protocol")
        container = self._kubelet.container_of(namespace, name)
        if container is None:
            raise answers.refusal(404, "NotFound", 'unable to upgrade connection: container not found ("host")')
        wishes = {key: asked.query.get(key) in ("true", "1") for key in ("stdin", "tty")}
        try:
            inside = execution.Inside(*container.inside(execution.begun(words, tty=wishes["tty"])))
        except OSError as error:  # it has just ended
            raise answers.refusal(404, "NotFound", f"unable to upgrade connection: {error}") from error

        def serve(connection: socket.socket) -> None:
            client = WebSocket(connection, is_client=False, protocol=protocol)
            try:
                execution.serve(client, inside, takes_input=wishes["stdin"], tty=wishes["tty"])
            except OSError as error:
                execution.refused(client, f"failed to exec in container: {error}")

        return protocol, serve

    def _log_of(self, namespace: str, name: str) -> bytes:
        path = self._kubelet.log_of(namespace, name)
        return path.read_bytes() if path is not None and path.exists() else b""


class _Known(NamedTuple):
    """The account that a token stands for, and the end of its validity."""

    user: User
    until: float


class _Nodes(NodeGroup):
    """Nodes whose kubelet looks at their pool at each of its ticks."""

    def __init__(self, folder: Path, store: Store) -> None:
        super().__init__(folder)
        self._store = store

    def _apply(self) -> None:
        """The kubelet finds it."""

    def _await_ready(self, names: Iterable[str]) -> None:
        wanted, until = set(names), time.monotonic() + _PATIENCE
        with self._store.changed:
            while missing := wanted - self._ready():
                if time.monotonic() > until:
                    raise TimeoutError(
                        f"the nodes {', '.join(sorted(missing))} are not ready after {_PATIENCE:g} s: the cluster is "
                        "not open, or its API server or controllers are away"
                    )
                self._store.changed.wait(_LOOK)

    def _ready(self) -> set[str]:
        return {
            name_of(node)
            for node in self._store.list(kinds.NODES)
            if objects.holds(node, "Ready") and not any(map(_is_away, node["spec"].get("taints") or ()))
        }


def _is_away(taint: Mapping[str, str]) -> bool:
    return taint["key"] in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class _LocalApi:
    """The API server as its kubelet speaks to it, without a connection. OSError while the server is away."""

    def __init__(self, requests: Requests, server: ApiServer) -> None:
        self._requests = requests
        self._server = server

    def get(self, path: str) -> Object:
        return self._call("GET", path)

    def found(self, path: str) -> Object | None:
        try:
            return self.get(path)
        except Refused as error:
            if error.code != 404:
                raise
            return None

    def create(self, path: str, body: Object) -> Object:
        return self._call("POST", path, body)

    def patch(self, path: str, body: Object) -> Object:
        return self._call("PATCH", path, body)

    def delete(self, path: str, grace: float | None = None, **options: object) -> Object:
        return self._call("DELETE", path, {**({} if grace is None else {"gracePeriodSeconds": grace}), **options})

    def _call(self, method: str, path: str, body: Object | None = None) -> Object:
        if not self._server.is_open:
            raise ConnectionRefusedError("the API server is away")
        url = urlsplit(path)
        asked = Request(method, url.path, dict(parse_qsl(url.query)), body, STRATEGIC)
        answer = self._requests.answer(asked)[1]
        assert isinstance(answer, dict)
        return answer
