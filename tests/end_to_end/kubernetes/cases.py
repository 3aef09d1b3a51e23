"""Shared parts of the tests of jobs on a real control plane: its objects as a test sees them, and processes of pods."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.kubernetes.api.answers import Object
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node, NodeGroup, tpu_pool
from tests.support.jobs import placements
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.waits import wait_until

GONE_WITHIN = 300.0  # the garbage collector of a control plane that has just begun takes minutes to know of JobSets
TWO_HOSTS = "v4-8"
ONE_HOST = "v5e-1"
NONE = kinetic.Retry(infra=0, preemption=0)

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"

_COMPLETION = "batch.kubernetes.io/job-completion-index"
_SLICE = "jobset.sigs.k8s.io/job-index"
_SETS = "jobset.sigs.k8s.io/jobset-name"


class Cluster:
    """A namespace of a control plane, with the nodes of one test."""

    def __init__(
        self, plane: ControlPlane | EmulatedPlane, namespace: str, nodes: NodeGroup, machine: Mapping[str, str]
    ) -> None:
        self.plane, self.api, self.namespace, self.nodes = plane, plane.api, namespace, nodes
        self.machine = machine

    def pools(self, *names: str, spot: bool = False) -> None:
        """Add nodes for one slice of two hosts in each of these pools."""
        for name in names or ("pool",):
            found = tpu_pool(f"{self.namespace}-{name}", 2, topology="2x2x2", **self.machine)
            labels = {"cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice"}
            labels |= {"cloud.google.com/gke-spot": "true"} if spot else {}
            self.nodes.add(*(replace(node, labels={**node.labels, **labels}) for node in found))

    def single(self, count: int = 1) -> None:
        """Add nodes for slices of one host."""
        self.nodes.add(*tpu_pool(f"{self.namespace}-single", count, topology="1x1", chips=1, **self.machine))

    def add(self, *nodes: Node) -> None:
        self.nodes.add(*nodes)

    # What there is

    def list(self, kind: str, api: str = "/api/v1") -> list[Object]:
        return list(self.api.get(f"{api}/namespaces/{self.namespace}/{kind}")["items"])

    def sets(self) -> list[Object]:
        return self.list("jobsets", f"/apis/{manifest.API}")

    def jobs(self) -> list[Object]:
        return self.list("jobs", "/apis/batch/v1")

    def workloads(self) -> list[Object]:
        return self.list("workloads", KUEUE) if self.plane.has_kueue else []

    def pods(self, job: JobHandle[Any], attempt: int = 1) -> dict[int, Object]:
        """The pods of an attempt, by host."""
        placement = placements(job)[attempt - 1]
        each, found = placement["hosts"] // placement["slices"], {}
        for pod in self.list("pods"):
            labels = pod["metadata"]["labels"]
            if labels.get(_SETS) == placement["name"]:
                found[int(labels[_SLICE]) * each + int(labels[_COMPLETION])] = pod
        return found

    def is_empty(self) -> bool:
        """Return True if nothing is left of any job: no JobSet, Job, pod, Secret, workload."""
        return not (
            self.sets() or self.jobs() or self.list("pods") or self.list("secrets") or self.workloads()
            or list(self.processes())
        )  # fmt: skip

    def wait_until_empty(self) -> None:
        wait_until(
            self.is_empty, lambda: f"nothing left in {self.namespace}: {self._left()}", within=GONE_WITHIN, pause=0.1
        )

    def _left(self) -> list[str]:
        found = [*self.sets(), *self.jobs(), *self.list("pods"), *self.list("secrets"), *self.workloads()]
        return [one["metadata"]["name"] for one in found] + [str(process) for process in self.processes()]

    def log(self, pod: Object) -> str:
        """The log of a pod, as the API server shows it."""
        return self.api.text(f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/log")

    # What becomes of it

    def delete(self, pod: Object, **options: Any) -> None:
        self.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}", **options)

    def delete_set(self, name: str, **options: Any) -> None:
        self.api.delete(f"/apis/{manifest.API}/namespaces/{self.namespace}/jobsets/{name}", **options)

    def evict(self, pod: Object) -> None:
        """Have the eviction API take a pod away, as a drain does."""
        name = pod["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.api.create(f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction", body)

    # Processes of its pods

    def processes(self, pod: Object | None = None) -> Iterator[int]:
        """The processes of a pod, or of all pods on this test's nodes, in the order of their beginnings."""
        root = str(self.nodes.folder) if pod is None else str(self.nodes.root(pod["metadata"]["uid"]))
        wanted = f"KINETIC_ROOT={root}".encode()
        for entry in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
            try:
                if wanted in Path(f"/proc/{entry}/environ").read_bytes():
                    yield int(entry)
            except OSError:
                continue

    def process(self, pod: Object, name: str) -> int:
        """One process of a pod: `kinetic-agent`, `kinetic-guard`, or `first`, of which the container is made."""
        found = list(self.processes(pod))
        if name == "first":
            return next(pid for pid in found if _pids(pid)[-1:] == ["1"])
        return next(pid for pid in found if Path(f"/proc/{pid}/comm").read_text().strip() == name)

    def kill(self, pod: Object, name: str) -> None:
        assert processes.send(self.process(pod, name), signal.SIGKILL)

    def freeze(self, pod: Object) -> None:
        """Alive but stuck: nothing that runs in a pod gets any further. Its node is well."""
        self._signal_all(pod, signal.SIGSTOP)

    def thaw(self, pod: Object) -> None:
        """Let it go on, unless it has ended."""
        self._signal_all(pod, signal.SIGCONT)

    def _signal_all(self, pod: Object, number: int) -> None:
        done: set[int] = set()
        while new := {pid for pid in self.processes(pod) if _is_inside(pid)} - done:  # some may have started since
            for pid in new:
                processes.send(pid, number)
            done |= new


def _pids(pid: int) -> list[str]:
    """The ids of a process, from this namespace to its own; [] if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    return next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]


def _is_inside(pid: int) -> bool:
    """Return True for a process of a container, and not its parent, by which the node ends it."""
    return len(_pids(pid)) > 1


def token_for_all(plane: ControlPlane | EmulatedPlane, namespace: str) -> str:
    """Return a token of an account that may do everything in a namespace."""
    rbac = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "everything"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    plane.api.create(f"/apis/{rbac}/v1/namespaces/{namespace}/rolebindings", binding)
    config = json.loads(plane.account_kubeconfig(namespace, "default").read_text(encoding="utf-8"))
    return str(config["users"][0]["user"]["token"])


def kubeconfig_of(
    plane: ControlPlane | EmulatedPlane, namespace: str, path: Path, context: str = "tests", **cluster: Any
) -> Path:
    """Write the kubeconfig of a plane's administrator for a namespace, and return its path. `cluster`: fields of the
    cluster that are others there, such as its `server`."""
    config = json.loads(plane.kubeconfig.read_text(encoding="utf-8"))
    emulated = [{"name": "kinetic-orchestration", "extension": {"emulated": True}}]
    config["clusters"][0]["cluster"] |= {"extensions": emulated, **cluster}
    for kind in ("clusters", "contexts", "users"):
        config[kind][0]["name"] = context
    config["current-context"] = context
    config["contexts"][0]["context"] = {"cluster": context, "user": context, "namespace": namespace}
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@contextlib.contextmanager
def queue_of(cluster: Cluster, chips: int) -> Iterator[None]:
    """A queue of the cluster's namespace, called `queue`, with quota for so many chips, and two priorities, which are
    called by the namespace and `low` or `high`: the second takes jobs of the first out."""
    api, name = cluster.api, cluster.namespace
    resources = [{"name": "google.com/tpu", "nominalQuota": str(chips)}]
    spec = {
        "namespaceSelector": {}, "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {"coveredResources": ["google.com/tpu"], "flavors": [{"name": name, "resources": resources}]}
        ],
    }  # fmt: skip
    api.create(f"{KUEUE}/resourceflavors", named("ResourceFlavor", name))
    api.create(f"{KUEUE}/clusterqueues", named("ClusterQueue", name, spec=spec))
    api.create(f"{KUEUE}/namespaces/{name}/localqueues", named("LocalQueue", "queue", spec={"clusterQueue": name}))
    created = [f"{KUEUE}/clusterqueues/{name}", f"{KUEUE}/resourceflavors/{name}"]
    for priority, value in (("low", 1), ("high", 100)):
        body = named("WorkloadPriorityClass", f"{name}-{priority}", value=value)
        api.create(f"{KUEUE}/workloadpriorityclasses", body)
        created.append(f"{KUEUE}/workloadpriorityclasses/{name}-{priority}")
    yield
    for path in created:
        api.delete(path)


def named(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    """Return an object of Kueue."""
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **fields}


def run(function: Any, *arguments: Any, **options: Any) -> JobHandle[Any]:
    """A job on two hosts, or on what `options` say, that has been submitted."""
    return kinetic.run(**{"accelerator": TWO_HOSTS, **options})(function).run_async(*arguments)


def verdict_of(job: JobHandle[Any], attempt: int = 1) -> wire.Verdict | None:
    record = job._job.store.read(names.verdict(job.job_id, attempt))
    return None if record is None else wire.Verdict.decode(record.data)


def wait_for_verdict(job: JobHandle[Any], attempt: int = 1) -> wire.Verdict:
    """The verdict of an attempt that no client closes."""
    return wait_until(lambda: verdict_of(job, attempt), f"the verdict of attempt {attempt}", pause=0.05)


def condition(thing: Object, kind: str) -> Object:
    """The condition of that type, {} if there is none."""
    return next((one for one in thing.get("status", {}).get("conditions", ()) if one["type"] == kind), {})
