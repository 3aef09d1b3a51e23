"""One emulated Google Cloud on this machine: the model with its servers, its store, its hosts and a ticking clock.

`Emulator` is a `Cloud`, so every script of faults is a method of it; all it adds is what runs: a storage server as a
process of its own, the APIs in threads of this one, VMs as process trees. None of it outlives this process.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from kinetic_orchestration.plan.hardware import accelerators, nodes
from kinetic_orchestration.protocol.system import copies, processes
from kinetic_orchestration.testing.api_rules.access import Access
from kinetic_orchestration.testing.api_servers import server
from kinetic_orchestration.testing.api_servers.other_apis import OtherApis
from kinetic_orchestration.testing.api_servers.projects.service_accounts import USER
from kinetic_orchestration.testing.api_servers.signing import ISSUER, Signer
from kinetic_orchestration.testing.kubernetes import node_pools
from kinetic_orchestration.testing.kubernetes.cluster import Cluster
from kinetic_orchestration.testing.kubernetes.controllers.changes import Tell
from kinetic_orchestration.testing.kubernetes.pods.metadata import POOL
from kinetic_orchestration.testing.model.cloud import Cloud
from kinetic_orchestration.testing.model.faults import CLIENT
from kinetic_orchestration.testing.model.lifecycle import CREATES_PER_MINUTE, Timing
from kinetic_orchestration.testing.model.state.machine import Host, Hosts, Machine
from kinetic_orchestration.testing.storage_server.server import StorageServer
from kinetic_orchestration.testing.vms.tunnels import PERMISSION, Tunnels
from kinetic_orchestration.testing.vms.vm import Machines, Vm, find_python, route_to_index, unmount

PROJECT = "emulated"
BUCKET = "emulated"
LOCATION = "US"  # where each generation has a zone
CLUSTER = "emulated"  # of GKE, in this region:
REGION = "us-central1"
_IDENTITIES = f"{PROJECT}{POOL}"  # in whatever projects the cluster is shown
_BOOTS_AT_ONCE = 8
_LOOK = 0.1
_ROOTS = "emulated-cloud-"
_log = logging.getLogger(__name__)


class Emulator(Cloud):
    """Use it in a `with`; everything is up once it is entered, and nothing is left once it is left.

    `root`: where hosts keep their files; a temporary folder, removed at the end, if not given.
    `zones`: the zones there are, each with its chips (None: without end); all that are known if not given.
    `python`: the interpreter of the hosts, a path or a version. `hosts=False`: nodes without hosts.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        zones: Mapping[str, int | None] | Iterable[str] | None = None,
        provision_seconds: float = 0.05,
        timing: Timing | None = None,
        creates_per_minute: int | None = CREATES_PER_MINUTE,
        projects: Iterable[str] = (),
        seed: int = 0,
        hosts: bool = True,
        python: str = "",
        isolate: bool = True,
        keep: bool = False,
    ) -> None:
        self._given_root = root
        self._python = python
        self._isolate = isolate
        self._host_options = {"python": python, "isolate": isolate, "keep": keep}
        self._with_hosts = hosts
        self._own_zones = zones is not None
        self._closing = threading.Event()
        self._running = contextlib.ExitStack()
        super().__init__(
            zones=zones,
            timing=timing or Timing(provision=provision_seconds),
            creates_per_minute=creates_per_minute,
            projects=projects,
            pause=self._closing.wait,
            seed=seed,
        )
        self.signer = Signer()
        self.access = Access()
        self.neighbours = OtherApis(self, time.time, self.signer.sign)
        self._cluster: Cluster | None = None
        self._signing_key = secrets.token_urlsafe(32)  # with which pods prove that they are this cloud's
        self._making = threading.Lock()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        with contextlib.ExitStack() as running:
            self.root = self._make_root(running)
            self.storage = running.enter_context(StorageServer(access=self.access))
            self.neighbours.accounts.forgetful.append(self.storage.forget_account)
            self.grpc = server.GrpcServer(self, self.access)
            running.callback(self.grpc.close)
            self.tunnels = Tunnels(self._reach, self._may_tunnel)
            running.callback(self.tunnels.close)
            self.rest = server.RestServer(self, self.neighbours, self.signer, self.access, self.tunnels)
            running.callback(self.rest.close)
            if self._with_hosts:
                self._machines = running.enter_context(_Room(self._machine_room(running), self._host_failed))
            ticker = threading.Thread(target=self._tick, name="emulated cloud", daemon=True)
            ticker.start()
            running.callback(ticker.join)
            running.callback(self._stop)
            self._running = running.pop_all()

    def close(self) -> None:
        """End every VM and server, and remove the files. A second time does nothing."""
        self._running.close()

    def _make_root(self, running: contextlib.ExitStack) -> Path:
        if self._given_root is not None:
            root = Path(self._given_root)
            root.mkdir(parents=True, exist_ok=True)
            return root
        _remove_orphans()
        root = Path(tempfile.mkdtemp(prefix=f"{_ROOTS}{os.getpid()}-"))
        running.callback(shutil.rmtree, root, ignore_errors=True)
        return root

    @property
    def cluster(self) -> Cluster:
        """Its cluster of GKE, which makes nodes for whatever pods ask for. It is made when it is first asked for."""
        with self._making:
            if self._cluster is None:
                cluster = Cluster(
                    self.root / "cluster",
                    self._pod_environment(),
                    provisions=True,
                    provision=self.timing.provision,
                    isolate=self._isolate,
                    identities=_IDENTITIES,
                    listener=self._heard,
                )
                self._cluster = self._running.enter_context(cluster)
                self.add_cluster(CLUSTER, cluster.endpoint, cluster.authority, REGION, of=cluster, **_beyond())
            return self._cluster

    def _pod_environment(self) -> dict[str, str]:
        """Return the variables that its nodes give to every pod: those of the image of a plain Python."""
        python = find_python(self._python)
        folder = self.root / "image" / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("python3", f"python{python.version}"):
            (folder / name).unlink(missing_ok=True)  # of an earlier emulator in the same folder
            (folder / name).symlink_to(python.path)
        path = f"{folder}:/usr/bin:/bin:/usr/sbin:/sbin"
        return {"LANG": "C.UTF-8", **route_to_index(copies.environ()), **self._addresses_on_hosts(), "PATH": path}

    def _heard(self, told: Tell) -> None:
        about = told.about["metadata"]
        name = f"{about.get('namespace', '')}/{about['name']}"
        with self.changed:
            self._record(told.about["kind"], name, f"{told.reason}: {told.message}", self._clock())

    def _machine_room(self, running: contextlib.ExitStack) -> Machines:
        room = Machines(
            self.root / "hosts",
            token=server.token,
            sign_identity=self.sign_identity,
            environ=self._addresses_on_hosts(),
            access=self.access,
            **self._host_options,  # type: ignore[arg-type]
        )
        return running.enter_context(room)

    def _stop(self) -> None:
        self._closing.set()
        with self.changed:
            self.changed.notify_all()

    # Addresses

    def addresses(self) -> dict[str, str]:
        """The variables by which Google's libraries and this project find it, on clients and hosts alike.

        Each holds the token: a process that reads them can run programs on this machine, as this user.
        """
        return {
            "STORAGE_EMULATOR_HOST": self.storage.url,
            "KINETIC_EMULATOR": self.rest.url,
            "KINETIC_EMULATOR_GRPC": self.grpc.address,
        }

    def _addresses_on_hosts(self) -> dict[str, str]:
        """Return the same for its machines, and how those find its buckets that do not go by them: Orbax' tensorstore,
        and gcsfs, which else asks Google's Storage Control API for the kind of a bucket, minutes long.

        Not for clients: in one that goes to Google once more, it would send checkpoints here.
        """
        found = {"TENSORSTORE_GCS_HTTP_URL": self.storage.url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        return {**self.addresses(), **found}

    def environ(
        self,
        project: str = PROJECT,
        store: str = f"gs://{BUCKET}/kinetic",
        deployment: str = "test",
        location: str = LOCATION,
        backend: str = "tpu-vm",
    ) -> dict[str, str]:
        """Return what a client's environment needs to run jobs here; the store's bucket is made, in `location`.

        `backend`: tpu-vm, compute, gke, or kubernetes, which is the cluster of gke by a kubeconfig. Of gke, that is for
        kubectl.
        """
        if store.startswith("gs://"):
            self.storage.make_bucket(store.removeprefix("gs://").split("/")[0], project, location)
        zones = ",".join(self._zones) if self._own_zones else ""
        shared = {"KINETIC_BACKEND": backend, "KINETIC_STORE": store, "KINETIC_DEPLOYMENT": deployment}
        if backend in ("tpu-vm", "compute"):
            place = {"KINETIC_PROJECT": project, **({"KINETIC_ZONES": zones} if zones else {}), **self.addresses()}
            return {**shared, **place}
        shared["KINETIC_SIGNING_KEY"] = self._signing_key
        if backend in ("gke", "kubernetes"):
            shared["KUBECONFIG"] = str(self.cluster.write_kubeconfig(self.root / "kubeconfig"))
        if backend == "kubernetes":
            return {**shared, "STORAGE_EMULATOR_HOST": self.storage.url}
        if backend != "gke":
            raise ValueError(f"there is no emulated {backend}: tpu-vm, compute, gke or kubernetes")
        endpoint, authority = self.cluster.endpoint, self.cluster.authority
        self.add_cluster(CLUSTER, endpoint, authority, REGION, project, of=self.cluster, **_beyond())
        return {**shared, "KINETIC_PROJECT": project, "KINETIC_CLUSTER": CLUSTER, **self.addresses()}

    # Ways to its machines

    def _reach(self, project: str, zone: str, name: str, connection: socket.socket) -> bool | None:
        """Connect a socket to the sshd of a VM; False if it does not answer, None if there is none of this name."""
        for vm in self._machines.machines.all() if isinstance(self._machines, _Room) else ():
            machine = vm.machine
            if (machine.project, machine.zone, machine.name) == (project, zone, name):
                return vm.enter(connection)
        return None

    def _may_tunnel(self, project: str) -> bool:
        return not self.is_denied(PERMISSION, CLIENT)

    # Inspection and waiting

    def vms(self, node: str) -> list[Vm | None]:
        """The machines of a node, by its name or id, once they were booted; None in place of one that never was. Of an
        instance of Compute Engine its one machine."""
        hosts = self.compute.hosts(node) or self.hosts(node)
        return [host.wait() if isinstance(host, _Pending) else None for host in hosts]

    def wait_until(self, predicate: Callable[[], object], timeout: float = 30.0, what: str = "") -> None:
        """Wait until `predicate()` is true; raises TimeoutError with the resources that exist then."""
        deadline = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > deadline:
                left = "\n".join(f"  {item}" for item in self.leaks()) or "  nothing"
                raise TimeoutError(f"{what or 'it'} did not happen within {timeout:g} s; there is:\n{left}")
            with self.changed:
                self.changed.wait(_LOOK)

    def settled(self) -> bool:
        """True if nothing is left but hosts that are about to end."""
        return all(item.startswith(("VM ", "pod ")) for item in self.leaks())

    def leaks(self) -> list[str]:
        """Return all that is left and could cost anything, for users: of the ledger, and in the cluster."""
        return [*self.ledger.leaks(), *(self._cluster.leaks() if self._cluster is not None else ())]

    def wait_until_empty(self, timeout: float = 30.0) -> None:
        """Wait until no resource is left that could cost anything."""
        self.wait_until(lambda: not self.leaks(), timeout, "an empty cloud")

    # Identities and secrets

    def sign_identity(self, audience: str, machine: Machine) -> str:
        """An identity token of that VM, in the full format of the metadata server."""
        now = int(time.time())
        engine: dict[str, Any] = {
            "project_id": machine.project,
            "project_number": machine.project_number,
            "zone": machine.zone,
            "instance_id": str(machine.instance_id),
            "instance_name": machine.name,
            "instance_creation_timestamp": now,
        }
        return self.signer.sign(
            {
                "iss": ISSUER,
                "aud": audience,
                "azp": str(machine.project_number),
                "sub": str(machine.project_number),
                "email": machine.account,
                "email_verified": True,
                "iat": now,
                "exp": now + 3600,
                "google": {"compute_engine": engine},
            }
        )

    def add_cluster(
        self,
        name: str,
        server: str,
        authority: str,
        location: str = "us-central1",
        project: str = PROJECT,
        *,
        of: Cluster | None = None,
        **more: Any,
    ) -> None:
        """Let GKE have a cluster: a Kubernetes API server that listens elsewhere.

        Args:
            name: Its name.
            server: Its address, HOST:PORT.
            authority: PEM of the certificates that sign its own.
            location: Its zone or region.
            project: Its project.
            of: The emulated cluster that it is: its pools and authority are told as they are whenever somebody asks.
            more: What the container API says of it besides, as it writes it: `nodePools=[…]`.
        """
        found = {"name": name, "endpoint": server, "masterAuth": _authority(authority), **more}
        place = f"projects/{project}/locations/{location}/clusters/{name}"

        def seen() -> dict[str, Any]:
            assert of is not None
            pools = [node_pools.told(pool, place) for pool in of.pools]
            return {"nodePools": pools, "masterAuth": _authority(of.authority)}

        self.neighbours.add_cluster(project, location, found, None if of is None else seen)

    def add_secret(self, secret_id: str, value: str | bytes, project: str = PROJECT) -> str:
        """A secret that a user has made long before; its name."""
        return self.neighbours.add_secret(project, secret_id, value)

    def add_service_account(self, name: str, *pods: str, project: str = PROJECT) -> str:
        """Make a service account of Google, and return its email. `pods`: Kubernetes service accounts of the cluster,
        NAMESPACE/ACCOUNT, that may act as it once they are annotated so."""
        with self.changed:
            email = self.neighbours.accounts.add(project, name)
            members = [f"serviceAccount:{_IDENTITIES}[{pod}]" for pod in pods]
            if members:
                self.neighbours.accounts.grant(email, USER, *members)
            return email

    # Internals

    def _tick(self) -> None:
        while True:
            with self.changed:
                if self._closing.is_set():
                    return
                due = self.next_due()
                wait = None if due is None else due - self._clock()
                if wait is None or wait > 0:
                    self.changed.wait(wait)
                    continue
            try:
                self.advance()
            except Exception:  # of one event: those after it happen all the same
                _log.exception("the emulator failed at an event that was due")

    def _host_failed(self, machine: Machine, error: Exception) -> None:
        with self.changed:
            self._record("VM", f"{machine.node}/{machine.worker}", f"the emulator failed: {error!r}")


def _authority(pem: str) -> dict[str, str]:
    """Return how the container API has the certificates of a cluster's authority."""
    return {"clusterCaCertificate": base64.b64encode(pem.encode()).decode()}


def _beyond() -> dict[str, Any]:
    """Return what the container API says of a cluster that makes pools for whatever pods ask for, of whom each has an
    identity."""
    known = (nodes.node(slice) for slice in accelerators.catalogue() if slice.generation != "v2")
    models = {node.labels.get(nodes.TPU_ACCELERATOR) or node.labels.get(nodes.GPU_ACCELERATOR) for node in known}
    limited = ["cpu", "memory", *sorted(model for model in models if model)]
    limits = [{"resourceType": name, "maximum": "1000000"} for name in limited]
    return {
        "autoscaling": {"enableNodeAutoprovisioning": True, "resourceLimits": limits},
        "workloadIdentityConfig": {"workloadPool": _IDENTITIES},
    }


def _remove_orphans() -> None:
    """Remove the temporary folders of emulators that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_ROOTS}*-*"):
        pid = folder.name.removeprefix(_ROOTS).partition("-")[0]
        if pid.isdecimal() and processes.find(int(pid)) is None:
            for disk in folder.glob("hosts/*/*/*/disk"):
                unmount(disk)
            shutil.rmtree(folder, ignore_errors=True)


class _Room(Hosts):
    """Hosts that are made, and suffer, behind the model's back: it holds its lock, and a VM asks the model things."""

    def __init__(self, machines: Machines, failed: Callable[[Machine, Exception], None]) -> None:
        self.machines = machines
        self.failed = failed
        self.closing = False
        self._threads = ThreadPoolExecutor(_BOOTS_AT_ONCE, "emulated hosts")

    def create(self, machine: Machine) -> Host:
        return _Pending(self, machine)

    def submit(self, action: Callable[[], None]) -> None:
        self._threads.submit(action)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing = True
        self._threads.shutdown()


class _Pending:
    """A host that applies every change in the order of the requests, each a little later."""

    def __init__(self, room: _Room, machine: Machine) -> None:
        self._room = room
        self._machine = machine
        self._vm: Vm | None = None
        self._booted = threading.Event()
        self._ended = False
        self._lock = threading.Lock()
        self._busy = False
        self._todo: deque[Callable[[], None]] = deque()
        self._add(self._boot)

    @property
    def alive(self) -> bool:
        if self._ended:
            return False
        return not self._booted.is_set() or (self._vm is not None and self._vm.alive)

    @property
    def guest_attributes(self) -> Mapping[str, Mapping[str, str]]:
        return self._vm.guest_attributes if self._vm is not None else {}

    def published(self) -> Mapping[str, Mapping[str, str]]:
        return self._vm.published() if self._vm is not None else {}

    def reconfigure(self, metadata: Mapping[str, str]) -> None:
        self._do(lambda vm: vm.reconfigure(metadata))

    def wait(self, timeout: float = 30.0) -> Vm | None:
        self._booted.wait(timeout)
        return self._vm

    def console(self) -> str:
        return self._vm.console() if self._vm is not None else ""

    def warn(self) -> None:
        self._do(lambda vm: vm.warn())

    def shut_down(self, notice: float) -> None:
        self._do(lambda vm: vm.shut_down(notice))

    def cut(self) -> None:
        self._do(lambda vm: vm.cut())

    def preempt(self, notice: float | None) -> None:
        self._do(lambda vm: vm.preempt(notice))

    def reboot(self) -> None:
        self._do(lambda vm: vm.reboot())

    def maintenance(self, event: str) -> None:
        self._do(lambda vm: vm.maintenance(event))

    def destroy(self) -> None:
        self._add(self._end)

    def _boot(self) -> None:
        try:
            if not self._room.closing:
                self._vm = self._room.machines.create(self._machine)
        finally:
            self._booted.set()

    def _end(self) -> None:
        try:
            if self._vm is not None:
                self._vm.destroy()
        finally:
            self._ended = True

    def _do(self, action: Callable[[Vm], None]) -> None:
        self._add(lambda: action(self._vm) if self._vm is not None else None)

    def _add(self, action: Callable[[], None]) -> None:
        with self._lock:
            self._todo.append(action)
            if self._busy:
                return
            self._busy = True
        self._room.submit(self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    self._busy = False
                    return
                action = self._todo.popleft()
            try:
                action()
            except Exception as error:
                self._room.failed(self._machine, error)
