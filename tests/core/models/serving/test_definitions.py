"""Sets for llm-d's router and for KServe against a real API server with their published definitions.

No controller of either runs: what the server checks is checked, and what controllers would say is said by the test.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.steps import serving as api
from kinetic_orchestration.errors import DeploymentFailed, ManifestRefused
from kinetic_orchestration.models.serving import admission, manifests, rollout, waiting
from kinetic_orchestration.models.serving.declaration import model_of
from kinetic_orchestration.platforms.kubernetes.api.client import Api
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig import load as kubeconfig_of
from kinetic_orchestration.testing.kubernetes.api.answers import Refused
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node, NodeGroup
from tests.core.models.serving.conftest import Declared
from tests.core.models.serving.test_manifests import SERVERS
from tests.support import go_programs
from tests.support.kubernetes.api import Api as Administrator
from tests.support.kubernetes.fixtures import CONFORMANCE, nodes_of
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(6), *CONFORMANCE]

MODEL = "gs://models/ranker/1"
POOL = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools/ranker"
ROUTE = "/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes/ranker"
KSERVE = "/apis/serving.kserve.io/v1alpha2/namespaces/{}/llminferenceservices/ranker"


@pytest.fixture(scope="module")
def definitions(built: Path) -> Path:
    """The folder of the kinds of llm-d's pools, of gateways and of KServe."""
    try:
        return go_programs.definitions()
    except RuntimeError as error:
        pytest.skip(f"the definitions cannot be had: {str(error)[:300]}")


@pytest.fixture(scope="module", autouse=True)
def defined(definitions: Path, plane: Any) -> None:
    """A plane that knows them."""
    plane.kubectl("apply", "--server-side", "-f", str(definitions))
    wait_until(plane._serves_all_defined, "all definitions are served", pause=0.1)


@pytest.fixture(scope="module")
def node(plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeGroup]:
    with nodes_of(plane, tmp_path_factory.mktemp("nodes") / "nodes") as nodes:
        nodes.add(Node("cpu-0"))
        yield nodes


@pytest.fixture(autouse=True)
def quick(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    monkeypatch.setattr(rollout, "PAUSE", 0.2)
    monkeypatch.setattr(manifests, "PERIOD", 1)
    monkeypatch.setattr(waiting, "CONTROLLER_SECONDS", 2.0)


@pytest.fixture
def router(plane: Any, namespace: str) -> None:
    """A gateway, and the Service of an endpoint picker."""
    listeners = [{"name": "http", "port": 80, "protocol": "HTTP"}]
    gateway = {"metadata": {"name": "inference-gateway"}, "spec": {"gatewayClassName": "none", "listeners": listeners}}
    place = f"/apis/gateway.networking.k8s.io/v1/namespaces/{namespace}/gateways"
    plane.api.create(place, {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", **gateway})
    picker = {"metadata": {"name": "ranker-epp"}, "spec": {"ports": [{"port": 9002}]}}
    plane.api.create(f"/api/v1/namespaces/{namespace}/services", picker)


@contextmanager
def controller(plane: Any, statuses: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Within the block, what a controller would say is said of the objects at these paths."""
    ending = threading.Event()
    own = Administrator(plane.kubeconfig)

    def run() -> None:
        while not ending.wait(0.1):
            for path, status in statuses.items():
                if (found := own.found(path)) is not None:
                    seen = {"observedGeneration": found["metadata"]["generation"]} if "llm" in path else {}
                    with suppress(Refused):  # it is gone
                        own.patch(f"{path}/status", {"status": {**status, **seen}})

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def left(plane: Any, namespace: str) -> set[str]:
    paths = (
        POOL,
        ROUTE,
        KSERVE,
        "/apis/apps/v1/namespaces/{}/deployments/ranker",
        "/api/v1/namespaces/{}/services/ranker",
    )
    return {path for path in paths if plane.api.found(path.format(namespace)) is not None}


@pytest.mark.parametrize("name", SERVERS)
def test_the_server_takes_each_golden_set(plane: Any, namespace: str, name: str) -> None:
    model, serving = SERVERS[name]
    shown = kinetic.deploy(model, serving, dry_run=True).replace('namespace: "serving"', f'namespace: "{namespace}"')
    said = plane.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", given=shown)
    assert len(said.splitlines()) == shown.count("---\n") == said.count("serverside-applied (server dry run)")


def test_a_pool_that_the_server_refuses(plane: Any, declared: Declared, namespace: str, router: None) -> None:
    given = declared(kind="inference_pool")
    objects = manifests.render(given, model_of(MODEL))
    objects[2]["spec"]["targetPorts"] = [{"number": 0}]
    says = (
        r"refuses the manifest of InferencePool ranker in .*spec.targetPorts\[0\].number: .*greater than or equal to 1"
    )
    with Api(kubeconfig_of({}, path=str(plane.kubeconfig))) as own, pytest.raises(ManifestRefused, match=says):
        admission.check(own, given, objects, force=False)
    objects[2]["spec"] = {**objects[2]["spec"], "targetPorts": [{"number": 1}], "colour": "red"}
    with (
        Api(kubeconfig_of({}, path=str(plane.kubeconfig))) as own,
        pytest.raises(ManifestRefused, match=r"spec\.colour"),
    ):
        admission.check(own, given, objects, force=False)
    assert left(plane, namespace) == set()


def test_a_pool_without_its_router_is_refused(plane: Any, declared: Declared, namespace: str) -> None:
    with pytest.raises(ManifestRefused, match="no Service ranker-epp with the port 9002"):
        api.deploy(MODEL, declared(kind="inference_pool"))
    plane.api.create(f"/api/v1/namespaces/{namespace}/services", {
        "metadata": {"name": "mine"}, "spec": {"ports": [{"port": 1}]},
    })  # fmt: skip
    with pytest.raises(ManifestRefused, match=r"no Gateway inference-gateway \(gateway.networking.k8s.io\)"):
        api.deploy(MODEL, declared(kind="inference_pool", endpoint_picker="mine:1"))


def test_a_pool_is_deployed_once_its_gateway_has_accepted_it(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str, router: None
) -> None:
    given = declared(kind="inference_pool")
    with pytest.raises(DeploymentFailed, match=r"nobody answers for InferencePool ranker.*all of it is removed again"):
        api.deploy(MODEL, given)
    assert left(plane, namespace) == set()
    stamp = {"reason": "Accepted", "message": "", "lastTransitionTime": "2026-11-30T00:00:00Z", "observedGeneration": 1}
    accepted = {"conditions": [{"type": "Accepted", "status": "True", **stamp}]}
    parent = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "inference-gateway"}
    statuses = {
        POOL.format(namespace): {"parents": [{"parentRef": parent, **accepted}]},
        ROUTE.format(namespace): {
            "parents": [{"parentRef": parent, "controllerName": "tests.example/gateway", **accepted}]
        },
    }
    with controller(plane, statuses):
        assert api.deploy(MODEL, given).revision == 2
        plain = api.deploy(MODEL, declared())
        assert left(plane, namespace) == {path for path in left(plane, namespace) if path not in (POOL, ROUTE)}
        assert plain.rollback().revision == 2
    assert {POOL, ROUTE} < left(plane, namespace)


def test_kserve_is_awaited_only_where_it_is(plane: Any, declared: Declared, namespace: str) -> None:
    given = declared(kind="llm_inference_service", smoke=None)
    with pytest.raises(
        DeploymentFailed, match=r"nobody answers for LLMInferenceService ranker.*Is KServe's controller"
    ):
        api.deploy(MODEL, given)
    assert left(plane, namespace) == set()
    ready = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T00:00:00Z"}]}
    with controller(plane, {KSERVE.format(namespace): ready}):
        found = api.deploy(MODEL, given)
    assert (found.revision, found.service, found.url, found.proxy_path) == (2, "", "", "")
    assert left(plane, namespace) == {KSERVE}
