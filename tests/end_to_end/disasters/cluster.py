"""A cluster of Kubernetes, emulated or real, whose pods are processes: what befalls it, and what may be left in it."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinetic_orchestration.plan.hardware import nodes as labels
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.observing.observer import JOBSET
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.kubernetes.api.answers import Object, Refused
from kinetic_orchestration.testing.kubernetes.pods.nodes import EVICTED, KILLED, UNPULLED, Node, tpu_pool
from tests.end_to_end.disasters.schedule import REAL, TWO, Fault, Schedule, chosen
from tests.end_to_end.kubernetes.between import ANSWER, Between
from tests.end_to_end.kubernetes.cases import Cluster, kubeconfig_of, named, queue_of
from tests.support import go_programs
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane, emulated_nodes
from tests.support.kubernetes.nodes import Nodes

API_SERVER = "kube-apiserver"
CONTROLLERS = ("jobset", "kueue")
SLICES = 3  # for which there are nodes: one may run, one may be on its way out, and one be lost
NOTICE = 1.0  # seconds from the taint of a spot node until it is gone
MADE_AGAIN = 1.0  # seconds, besides those of the fault, until the machine of a node is replaced
LOOK = 0.2  # seconds between two looks at the pods
AGAIN = 0.5  # seconds after which something is done again that was refused
OTHER = "other"  # a set of somebody else, for which a queue may take a job out
IMAGES = ("python:3", f"python:{sys.version_info.major}.{sys.version_info.minor}")
KEY = "a-signing-key-of-the-tests"
LEFT = ("pods", "secrets", "configmaps")
LEFT_REAL = ("services",)  # which the emulated cluster has not
NOT_OURS = ("kube-root-ca.crt",)  # which every namespace has

UNSEEN = ("server refuses", "server restarts", "bucket refuses", "bucket restarts")  # while they last nobody looks

Later = Callable[[float, Callable[[], object]], None]


class Meter:
    """Sees for how long pods of each set held nodes, from a `with` on: one of them or more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._held: dict[str, float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def sets(self) -> int:
        """The number of those that had nodes."""
        return len(self._held)

    @property
    def seconds(self) -> float:
        """The number over all sets together."""
        return sum(self._held.values())

    def _watch(self) -> None:
        last: dict[str, float] = {}  # when each set was seen by the look before
        while not self._ending.wait(LOOK):
            with contextlib.suppress(Refused, OSError):  # the server is away
                seen = filter(self._is_seen, self._cluster.list("pods"))
                names, now = {pod["metadata"]["labels"][JOBSET] for pod in seen}, time.monotonic()
                for name in names:
                    self._held[name] = self._held.get(name, 0.0) + now - last.get(name, now)
                last = dict.fromkeys(names, now)

    def _is_seen(self, pod: Object) -> bool:
        """Return True for a pod that began and holds its node; what is shown of one that nobody hears of is old."""
        node = self._cluster.nodes.pool.nodes.get(pod["spec"].get("nodeName", ""))
        return _is_held(pod) and bool(pod["status"].get("startTime")) and node is not None and not node.fault


def _is_held(pod: Object) -> bool:
    """Return True for a pod that has a node and has not ended."""
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in ("Succeeded", "Failed")


class OnCluster:
    """A cluster with the nodes of one run. `later` does something after so many seconds."""

    def __init__(
        self, cluster: Cluster, between: Between, bucket: Emulator, drawn: Schedule, later: Later, meter: Meter
    ) -> None:
        self.meter = meter
        self.cluster, self.between, self.bucket, self.drawn, self._later = cluster, between, bucket, drawn, later
        self._back: dict[str, threading.Event] = {}  # of each part that was away
        self._closing = threading.Event()
        self._strikes: dict[str, Callable[[Fault], None]] = {
            "freeze host": self._freeze,
            "kill agent": lambda fault: cluster.kill(self._pod(fault), "kinetic-agent"),
            "kill program": self._kill_program,
            "kill pod": lambda fault: cluster.nodes.end(self._pod(fault), KILLED),
            "node evicts pod": lambda fault: cluster.nodes.end(self._pod(fault), EVICTED),
            "delete pod": lambda fault: cluster.delete(self._pod(fault)),
            "evict pod": lambda fault: cluster.evict(self._pod(fault)),
            "preempt": lambda fault: self._take(self._slice(fault), fault),
            "preempt with notice": self._preempt_with_notice,
            "lose node": lambda fault: self._lose(cluster.nodes.lose, fault),
            "silence node": lambda fault: self._lose(cluster.nodes.silence, fault),
            "lose the answer of a create call": lambda fault: between.lose("POST", "/jobsets", ANSWER),
            "lose the answer of a delete call": lambda fault: between.lose("DELETE", "/jobsets/", ANSWER),
            "server refuses": self._refuse,
            "server restarts": lambda fault: self._interrupt(API_SERVER, fault),
            "controller restarts": lambda fault: self._interrupt(chosen(CONTROLLERS, fault), fault),
            "bucket refuses": self._bucket_refuses,
            "bucket restarts": self._bucket_restarts,
            "never boots": self._never_boots,
            "suspend": self._take_out if drawn.in_queue else self._suspend,
            "somebody deletes the set": lambda fault: cluster.delete_set(self._set()),
            "somebody deletes the set without its pods": lambda fault: cluster.delete_set(
                self._set(), propagationPolicy="Orphan"
            ),
        }

    def strike(self, fault: Fault) -> None:
        """Apply a fault. Raises LookupError if there is nobody whom it may hit now, as what is asked for is not there or
        cannot be reached."""
        try:
            self._strikes[fault.what](fault)
        except (Refused, OSError, StopIteration) as error:
            raise LookupError(f"it cannot be done now: {error}") from error

    @property
    def is_real(self) -> bool:
        return isinstance(self.cluster.plane, ControlPlane)

    def left(self) -> list[str]:
        """Return all that is left of jobs: by their names, objects and processes."""
        cluster = self.cluster
        found = [*cluster.sets(), *cluster.jobs(), *cluster.workloads()]
        more = LEFT_REAL if self.is_real else ()
        found += [one for kind in (*LEFT, *more) for one in cluster.list(kind)]
        names = [one["metadata"]["name"] for one in found]
        return [name for name in names if name not in NOT_OURS] + [f"process {pid}" for pid in cluster.processes()]

    def later(self, seconds: float, do: Callable[[], object]) -> None:
        """Do something after so many seconds, and again until the server hears it; what it is about may be gone."""

        def repeat() -> None:
            try:
                do()
            except (Refused, OSError) as error:
                if getattr(error, "code", 0) != http.client.NOT_FOUND:
                    self.later(AGAIN, do)

        self._later(seconds, repeat)

    def close(self) -> None:
        """Wait until all parts of the cluster are there again."""
        for back in self._back.values():
            back.wait()
        self._closing.set()

    # Whom it hits

    def _pod(self, fault: Fault) -> Object:
        """A pod that has a node, and has not ended."""
        return chosen(list(filter(_is_held, self.cluster.list("pods"))), fault)

    def _slice(self, fault: Fault) -> list[str]:
        """The nodes of the slice of a pod: of several hosts, all of its pool."""
        node = self._pod(fault)["spec"]["nodeName"]
        if len(self.drawn.skews) == 1:
            return [node]
        pool = node.rpartition("-")[0]
        return [name for name in self.cluster.nodes.pool.nodes if name.rpartition("-")[0] == pool]

    def _set(self) -> str:
        """The newest of ours."""
        sets = [one for one in self.cluster.sets() if not one["metadata"]["name"].startswith(OTHER)]
        if not sets:
            raise LookupError("there is no set")
        return str(max(sets, key=lambda one: one["metadata"]["creationTimestamp"])["metadata"]["name"])

    # Processes

    def _freeze(self, fault: Fault) -> None:
        pod = self._pod(fault)
        self.cluster.freeze(pod)
        self.later(fault.lasts, lambda: self.cluster.thaw(pod))

    def _kill_program(self, fault: Fault) -> None:
        running = [pid for pid in self.cluster.processes(self._pod(fault)) if _is_program(pid)]
        processes.send(chosen(running[-1:], fault), signal.SIGKILL)

    # Nodes

    def _take(self, names: list[str], fault: Fault) -> None:
        """Their machines are gone, and others come in their place."""
        nodes = self.cluster.nodes
        gone = [replace(node, fault="") for name in names if (node := nodes.pool.nodes.get(name)) is not None]
        nodes.remove(*names)
        self.later(fault.lasts + MADE_AGAIN, lambda: nodes.join(*gone))

    def _preempt_with_notice(self, fault: Fault) -> None:
        names = self._slice(fault)
        taint = {"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute"}
        for name in names:
            self.cluster.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [taint]}})
        self.later(NOTICE, lambda: self._take(names, fault))

    def _lose(self, how: Callable[[str], None], fault: Fault) -> None:
        """Have nothing heard of a node for a while, after which it is back, its machine as before or as after a boot."""
        nodes, name = self.cluster.nodes, self._pod(fault)["spec"]["nodeName"]
        how(name)
        self.later(fault.lasts, lambda: nodes.restore(*nodes.pool.nodes.keys() & {name}))

    def _never_boots(self, fault: Fault) -> None:
        """The registry is not reached."""
        nodes = self.cluster.nodes
        nodes.lack(dict.fromkeys(IMAGES, f"{UNPULLED}: dial tcp: i/o timeout"))
        self.later(fault.lasts, nodes.forget)

    # The cluster

    def _refuse(self, fault: Fault) -> None:
        for verb in ("GET", "POST", "DELETE"):
            self.between.refuse(verb, "/", 503 if fault.whom < 0.5 else 429, times=float("inf"))
        self.later(fault.lasts, self.between.heal)

    def _interrupt(self, part: str, fault: Fault) -> None:
        """A part is away for a while. It is back by itself: whoever speaks to the server may wait for it."""
        if part in self._back and not self._back[part].is_set():
            raise LookupError(f"{part} is away already")
        self.cluster.plane.interrupt(part)
        self._back[part] = back = threading.Event()

        def resume() -> None:
            time.sleep(fault.lasts)
            self.cluster.plane.resume(part)
            back.set()
            self._closing.wait()  # a part ends with the thread that started it

        threading.Thread(target=resume, daemon=True).start()

    def _suspend(self, fault: Fault) -> None:
        """A person holds a set back, and lets it go on."""
        name = self._set()
        self._hold(name, True)
        self.later(fault.lasts, lambda: self._hold(name, False))

    def _hold(self, name: str, is_held: bool) -> None:
        path = f"/apis/{manifest.API}/namespaces/{self.cluster.namespace}/jobsets/{name}"
        self.cluster.api.patch(path, {"spec": {"suspend": is_held}})

    def _take_out(self, fault: Fault) -> None:
        """A set of somebody else, of higher priority, takes the job's room in the queue for a while."""
        api, where = self.cluster.api, self.cluster.namespace
        container = {
            "name": "other", "image": "other", "command": ["sleep", "600"],
            "resources": {"requests": {"google.com/tpu": "1"}, "limits": {"google.com/tpu": "1"}},
        }  # fmt: skip
        pod = {"restartPolicy": "Never", "containers": [container], "nodeSelector": {"tests.example/none": "here"}}
        job = {"parallelism": 1, "completions": 1, "template": {"spec": pod}}
        asked = {
            **named("JobSet", OTHER, spec={"replicatedJobs": [{"name": "s", "replicas": 1, "template": {"spec": job}}]}),
            "apiVersion": manifest.API,
        }  # fmt: skip
        asked["metadata"]["labels"] = {manifest.QUEUE: "queue", manifest.PRIORITY: f"{where}-high"}
        api.create(f"/apis/{manifest.API}/namespaces/{where}/jobsets", asked)
        self.later(fault.lasts, lambda: self.cluster.delete_set(OTHER))

    # The bucket

    def _bucket_refuses(self, fault: Fault) -> None:
        self.bucket.storage.fail("*", 503, times=None)
        self.later(fault.lasts, self.bucket.storage.heal)

    def _bucket_restarts(self, fault: Fault) -> None:
        self.bucket.storage.stop_server()
        self.later(fault.lasts, self.bucket.storage.start_server)


def _is_program(pid: int) -> bool:
    """Return True for a process of the user's program."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return any(word == b"--child" or word.endswith(b"/child.py") for word in words)
    return False


def nodes_for(drawn: Schedule, machine: dict[str, str]) -> list[Node]:
    """Return the nodes for a few slices of a run."""
    hosts = len(drawn.skews)
    if hosts == 1:
        found = tpu_pool("single", SLICES, topology="1x1", chips=1, **machine)
    else:
        topology = "2x2x2" if drawn.accelerator == TWO else "4x4"
        pools = [tpu_pool(f"pool-{number}", hosts, topology=topology, **machine) for number in range(SLICES)]
        found = [node for pool in pools for node in pool]
    more = {"cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice"} if drawn.accelerator == TWO else {}
    more |= dict([labels.SPOT]) if drawn.is_spot else {}
    return [replace(node, labels={**node.labels, **more}) for node in found]


@contextlib.contextmanager
def opened(
    backend: str, folder: Path, drawn: Schedule, bucket: Emulator, later: Later
) -> Iterator[tuple[OnCluster, dict[str, str]]]:
    """A cluster for one run, and the environment of its clients."""
    environ = {name: bucket.environ()[name] for name in ("STORAGE_EMULATOR_HOST", "KINETIC_STORE")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    machine = {"PATH": path, "STORAGE_EMULATOR_HOST": environ["STORAGE_EMULATOR_HOST"]}
    with contextlib.ExitStack() as open_ones:
        real = backend.endswith(REAL)
        make = functools.partial(ControlPlane, built=go_programs.control_plane()) if real else EmulatedPlane
        plane: Any = open_ones.enter_context(make(folder / "plane"))
        nodes = open_ones.enter_context(Nodes(plane, folder / "nodes") if real else emulated_nodes(plane))
        created = plane.api.create("/api/v1/namespaces", {"metadata": {"generateName": "disaster-"}})
        namespace = str(created["metadata"]["name"])
        plane.await_account(namespace)
        cluster = Cluster(plane, namespace, nodes, machine)
        cluster.add(*nodes_for(drawn, machine))
        between = open_ones.enter_context(Between(plane.kubeconfig))
        if drawn.in_queue:
            chips = len(drawn.skews) * (1 if len(drawn.skews) == 1 else 4)
            open_ones.enter_context(queue_of(cluster, chips))
            environ["KINETIC_QUEUE"] = "queue"
        meter = open_ones.enter_context(Meter(cluster))
        found = OnCluster(cluster, between, bucket, drawn, later, meter)
        open_ones.callback(found.close)
        config = kubeconfig_of(plane, namespace, folder / "kubeconfig", server=between.url)
        environ |= {
            "KUBECONFIG": str(config), "KINETIC_BACKEND": "kubernetes", "KINETIC_DEPLOYMENT": "prod",
            "KINETIC_SIGNING_KEY": KEY,
        }  # fmt: skip
        yield found, environ
