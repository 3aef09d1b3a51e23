"""Clusters and their pools of nodes, as Google's discovery client of the container API sees those of the emulator."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httplib2
import pytest
from googleapiclient.discovery import build_from_document
from googleapiclient.errors import HttpError

from kinetic_orchestration.plan.hardware import accelerators, nodes
from kinetic_orchestration.platforms.google.rest import gke
from kinetic_orchestration.platforms.kubernetes.observing import pools
from kinetic_orchestration.testing import Cluster, Emulator, NodePool
from kinetic_orchestration.testing.kubernetes import node_pools
from kinetic_orchestration.testing.kubernetes.api import kinds
from tests.support.waits import wait_until

SPOT = {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"}
TPU = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
PLACE = "projects/p/locations/us-central1/clusters/c"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(hosts=False) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def clusters(cloud: Emulator) -> Iterator[Any]:
    """`projects.locations.clusters` of the container API."""
    path = files("googleapiclient").joinpath("discovery_cache", "documents", "container.v1.json")
    described = {**json.loads(path.read_bytes()), "rootUrl": f"{cloud.rest.url}/"}
    with build_from_document(described, http=httplib2.Http(timeout=60)) as service:
        yield service.projects().locations().clusters()


def test_a_pool_is_told_as_google_tells_one_and_is_found_to_suit_what_it_is_for() -> None:
    for name in ("v5e-16", "v4-8", "v5e-8", "tpu7x-16", "l4", "h100x8", "a100-80gbx2"):
        slice = accelerators.parse(name)
        node = nodes.node(slice)
        more = {"team": "vision", "cloud.google.com/gke-spot": "true"}
        pool = NodePool(
            "a", {**node.labels, **more}, (SPOT,), {node.resource: str(node.count)}, hosts=slice.hosts, most=8
        )
        told = node_pools.told(pool, PLACE)
        assert told["config"]["machineType"] == node.machine
        assert (told["config"]["spot"], told["config"]["labels"]) == (True, {"team": "vision"})
        assert told["config"]["taints"] == [{**SPOT, "effect": "NO_SCHEDULE"}]
        assert told["selfLink"] == f"https://container.googleapis.com/v1/{PLACE}/nodePools/a"
        [seen] = gke._pools({"nodePools": [told]}) or ()
        spec = {"nodeSelector": {**node.labels, **more}, "tolerations": [{"operator": "Exists", "key": SPOT["key"]}]}
        assert pools.fits(seen, node, spec), name
        assert not pools.fits(seen, nodes.node(accelerators.parse("v5p-8")), spec)
    queued = NodePool("b", {"cloud.google.com/gke-queued": "true"}, allocatable={"cpu": "7"}, machine="n2-standard-8")
    told = node_pools.told(queued, PLACE)
    assert (told["config"]["machineType"], told["queuedProvisioning"]) == ("n2-standard-8", {"enabled": True})
    reserved = NodePool("c", {"cloud.google.com/reservation-name": "quarter"}, allocatable={"cpu": "7"})
    config = node_pools.told(reserved, PLACE)["config"]
    assert (config["machineType"], config["reservationAffinity"]["values"]) == ("e2-standard-8", ["quarter"])


def authority_of(cluster: Any) -> str:
    return base64.b64decode(cluster["masterAuth"]["clusterCaCertificate"]).decode()


def test_clusters_and_their_pools_are_listed_and_found_as_they_are_now(
    cloud: Emulator, clusters: Any, tmp_path: Path
) -> None:
    slice_ = NodePool("slice", nodes.node(accelerators.parse("v4-8")).labels, (TPU,), {"google.com/tpu": "4"}, 2, 2)
    own = {"name": "mine", "initialNodeCount": 1}
    with Cluster(tmp_path / "cluster", pools=[slice_]) as cluster:
        cloud.add_cluster("c", cluster.endpoint, cluster.authority, project="p", of=cluster, nodePools=[own])
        cloud.add_cluster("d", "127.0.0.1:1", "", "us-west4-a", "p")

        def named(location: str) -> list[str]:
            found = clusters.list(parent=f"projects/p/locations/{location}").execute()
            return [one["name"] for one in found.get("clusters", ())]

        assert (named("-"), named("us-central1"), named("us-east1")) == (["c", "d"], ["c"], [])
        found = clusters.get(name=PLACE).execute()
        assert found["selfLink"] == f"https://container.googleapis.com/v1/{PLACE}"
        assert found["nodePools"] == clusters.nodePools().list(parent=PLACE).execute()["nodePools"]
        assert authority_of(found) == cluster.authority
        cluster.renew_authority()
        assert authority_of(clusters.get(name=PLACE).execute()) == cluster.authority != authority_of(found)
        mine, made = found["nodePools"]
        assert (mine, made["placementPolicy"]["tpuTopology"]) == (own, "2x2x2")
        assert clusters.nodePools().get(name=f"{PLACE}/nodePools/slice").execute() == made
        cluster.autoscaler.pools.clear()
        assert clusters.nodePools().list(parent=PLACE).execute() == {"nodePools": [own]}
        assert "nodePools" not in clusters.get(name="projects/p/locations/us-west4-a/clusters/d").execute()
        for method, name in (
            (clusters.get, "projects/p/locations/us-central1/clusters/gone"),
            (clusters.nodePools().get, f"{PLACE}/nodePools/slice"),
        ):
            with pytest.raises(HttpError, match="Not found: projects/p/locations/us-central1/clusters/") as refused:
                method(name=name).execute()
            assert refused.value.status_code == 404


@pytest.mark.slow
def test_a_pool_that_the_cluster_makes_for_a_pod_is_listed(cloud: Emulator, clusters: Any) -> None:
    labels = nodes.node(accelerators.parse("l4x2")).labels
    container = {"name": "a", "image": "a", "command": ["true"], "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    spec = {"nodeSelector": labels, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    cloud.environ("p", backend="gke")
    wait_until(lambda: cloud.cluster.store.list(kinds.ACCOUNTS, "default"), "pods may be created", within=20)
    cloud.cluster._requests.create(kinds.PODS, "default", {"metadata": {"name": "a"}, "spec": spec})
    parent = "projects/p/locations/us-central1/clusters/emulated"
    [pool] = wait_until(
        lambda: clusters.nodePools().list(parent=parent).execute().get("nodePools"), "a pool is made", within=20
    )
    assert (pool["config"]["machineType"], pool["autoscaling"]["autoprovisioned"]) == ("g2-standard-24", True)
    assert pool["config"]["accelerators"] == [{"acceleratorType": "nvidia-l4", "acceleratorCount": "2"}]
