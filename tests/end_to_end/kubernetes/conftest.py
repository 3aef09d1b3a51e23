"""A control plane whose nodes run pods as processes of this machine, and a bucket of an emulated Cloud Storage."""

from __future__ import annotations

import base64
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.kubernetes.pods.nodes import NodeGroup
from tests.end_to_end.kubernetes.between import Between
from tests.end_to_end.kubernetes.cases import KUEUE, Cluster, kubeconfig_of, named, queue_of
from tests.support.faults import break_hosts, load_jobs
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import nodes_of

KEY = "a-signing-key-of-the-tests"
POOLS = [  # as the container API tells of them
    {"name": "one", "config": {"machineType": "ct5lp-hightpu-1t"}, "initialNodeCount": 1},
    {"name": "eight", "config": {"machineType": "ct5lp-hightpu-8t"}, "initialNodeCount": 1},
    {
        "name": "two-hosts",
        "config": {"machineType": "ct4p-hightpu-4t"},
        "placementPolicy": {"type": "COMPACT", "tpuTopology": "2x2x2"},
        "initialNodeCount": 2,
    },
    {
        "name": "l4x4",
        "config": {
            "machineType": "g2-standard-48",
            "accelerators": [{"acceleratorType": "nvidia-l4", "acceleratorCount": "4"}],
        },
        "initialNodeCount": 1,
    },
    {
        "name": "h100x8-spot",
        "config": {
            "machineType": "a3-highgpu-8g",
            "accelerators": [{"acceleratorType": "nvidia-h100-80gb", "acceleratorCount": "8"}],
            "spot": True,
        },
        "initialNodeCount": 1,
    },
]


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Functions to run as jobs, from a small project that needs no package."""
    return load_jobs(tmp_path_factory.mktemp("kubernetes") / "project", "kubernetes_jobs")


@pytest.fixture
def hosts_break(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Hosts from now on run these lines before all else; they know the agent's modules."""
    return functools.partial(break_hosts, monkeypatch)


@pytest.fixture
def bucket(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """An emulated Cloud Storage, which this process and all pods use."""
    with Emulator(python=sys.executable) as emulated:
        environ = emulated.environ()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", environ["STORAGE_EMULATOR_HOST"])
        monkeypatch.setenv("KINETIC_STORE", environ["KINETIC_STORE"])
        monkeypatch.setenv("KINETIC_DEPLOYMENT", "prod")
        monkeypatch.setenv("KINETIC_SIGNING_KEY", KEY)
        yield emulated


@pytest.fixture
def machine(bucket: Emulator) -> dict[str, str]:
    """The variables that a node's machine gives to all pods: of a bucket elsewhere than in the emulated Cloud Storage, none."""
    reached = {name: os.environ[name] for name in ("STORAGE_EMULATOR_HOST",) if name in os.environ}
    return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]), **reached}


@pytest.fixture
def cluster(
    plane: ControlPlane | EmulatedPlane,
    namespace: str,
    nodes: NodeGroup,
    machine: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Cluster]:
    """A namespace, to which this process's kubeconfig leads, and in which no test may leave anything. It has no nodes."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(plane, namespace, tmp_path / "kubeconfig")))
    monkeypatch.setenv("KINETIC_BACKEND", "kubernetes")
    found, failed = Cluster(plane, namespace, nodes, machine), request.session.testsfailed
    yield found
    if request.session.testsfailed == failed:
        found.wait_until_empty()


@pytest.fixture
def google(
    plane: ControlPlane | EmulatedPlane, bucket: Emulator, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Emulator:
    """An emulated Google Cloud that has the cluster, under the name `tests`, and this process's settings for it."""
    config = json.loads(plane.kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    authority = base64.b64decode(config["certificate-authority-data"]).decode()
    bucket.add_cluster("tests", config["server"].removeprefix("https://"), authority, nodePools=POOLS)
    for name, value in bucket.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KINETIC_BACKEND", "gke")
    monkeypatch.setenv("KINETIC_CLUSTER", "tests")
    monkeypatch.setenv("KINETIC_NAMESPACE", namespace)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return bucket


@pytest.fixture
def between(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """A proxy through which this process's requests to the cluster pass."""
    with Between(cluster.plane.kubeconfig) as between:
        path = kubeconfig_of(cluster.plane, cluster.namespace, tmp_path / "kubeconfig-between", server=between.url)
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield between


@pytest.fixture
def elsewhere(
    cluster: Cluster,
    machine: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Cluster, Between]]:
    """Another cluster, of the kind of the first one but without Kueue, and what requests to it pass through. The kubeconfig
    of this process has it, too: its context is `elsewhere`, and that of the first one `tests`."""
    folder = tmp_path / "elsewhere"
    if isinstance(cluster.plane, EmulatedPlane):
        other: ControlPlane | EmulatedPlane = EmulatedPlane(folder)
    else:
        other = ControlPlane(folder, request.getfixturevalue("built"), kueue=False)
    with other as plane, nodes_of(plane, tmp_path / "nodes-elsewhere") as nodes, Between(plane.kubeconfig) as between:
        path = kubeconfig_of(plane, "default", tmp_path / "kubeconfig-elsewhere", "elsewhere", server=between.url)
        monkeypatch.setenv("KUBECONFIG", os.pathsep.join([os.environ["KUBECONFIG"], str(path)]))
        plane.await_account("default")
        yield Cluster(plane, "default", nodes, machine), between


@pytest.fixture(scope="session")
def submitters(jobs: Any) -> Iterator[Any]:
    """Processes of their own that submit and may be killed at any line."""
    from tests.end_to_end.cloud.submitter import Submitters

    with Submitters(jobs) as found:
        yield found


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[Callable[..., kinetic.Kubernetes]]:
    """The options for a place in a queue with quota for one slice; jobs of the class `high` take those of `low` out."""
    with queue_of(cluster, chips=8):
        cluster.pools()
        yield lambda priority="low": kinetic.Kubernetes(queue="queue", priority_class=f"{cluster.namespace}-{priority}")


@pytest.fixture
def second(cluster: Cluster, queue: Callable[..., kinetic.Kubernetes]) -> Iterator[str]:
    """Another queue of the namespace, whose quota of one slice is its own."""
    api, name = cluster.api, f"{cluster.namespace}-second"
    resources = [{"name": "google.com/tpu", "nominalQuota": "8"}]
    flavors = [{"name": cluster.namespace, "resources": resources}]
    spec = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": ["google.com/tpu"], "flavors": flavors}],
    }
    api.create(f"{KUEUE}/clusterqueues", named("ClusterQueue", name, spec=spec))
    local = named("LocalQueue", "second", spec={"clusterQueue": name})
    api.create(f"{KUEUE}/namespaces/{cluster.namespace}/localqueues", local)
    yield "second"
    api.delete(f"{KUEUE}/clusterqueues/{name}")
