"""Models are handed over to a real Kubernetes: its controllers run Deployments, whose pods are processes here."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.api.steps import serving as api
from kinetic_orchestration.errors import DeploymentBusy, DeploymentFailed, ManifestRefused, ServingError, UsageError
from kinetic_orchestration.models.serving import manifests, revisions, rollout, waiting
from kinetic_orchestration.models.serving.declaration import Serving, SmokeTest, model_of
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.platforms.kubernetes.api.client import Api, Exchange, listening
from kinetic_orchestration.platforms.kubernetes.api.kubeconfig import load as kubeconfig_of
from kinetic_orchestration.testing.kubernetes.api.answers import Refused
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node, NodeGroup, tpu_pool
from tests.core.models.serving.conftest import Declared
from tests.support.kubernetes.fixtures import CONFORMANCE, nodes_of
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(2), *CONFORMANCE]

MODEL = "gs://models/ranker/1"
ROLE = "# serving-role.yaml\n"


@pytest.fixture(autouse=True)
def kubeconfig(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    monkeypatch.setattr(rollout, "PAUSE", 0.2)
    monkeypatch.setattr(manifests, "PERIOD", 1)


@pytest.fixture(scope="module")
def node(plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeGroup]:
    """A node for pods without accelerators, for all tests of this file."""
    with nodes_of(plane, tmp_path_factory.mktemp("nodes") / "nodes") as nodes:
        nodes.add(Node("cpu-0"))
        yield nodes


def test_a_model_serves(plane: Any, node: NodeGroup, declared: Declared, namespace: str) -> None:
    smoke = SmokeTest({"one two": " one it", "a": " a it"}, max_tokens=2)
    first = api.deploy(MODEL, declared(smoke=smoke))
    assert (first.revision, first.previous) == (1, 0)
    assert "2 of 2 prompts, 100% agree" in first.smoke
    listed = plane.api.get(f"{first.proxy_path}/v1/models")
    assert [one["id"] for one in listed["data"]] == ["ranker"]


@contextlib.contextmanager
def another_client(plane: Any, given: Serving, lease: float, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Within the block, a process of its own deploys a server, whose turn ends so many seconds after it was last heard of."""
    told = {"namespace": given.namespace, "engine_options": dict(given.engine_options), "strategy": given.strategy}
    words = (str(plane.kubeconfig), str(lease), MODEL, json.dumps(told))
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.core.models.serving.deploying", *words]
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def objects_of(plane: Any, namespace: str) -> dict[str, Any]:
    """Return all that is of servers in a namespace, in its essence, but for records."""
    found = {}
    for path in ("apis/apps/v1/namespaces/{}/deployments", "api/v1/namespaces/{}/services"):
        for one in plane.api.get("/" + path.format(namespace))["items"]:
            found[f"{path.rpartition('/')[2]}/{one['metadata']['name']}"] = one["spec"]
    return found


def head_of(plane: Any, namespace: str, name: str = "ranker") -> dict[str, Any]:
    found = plane.api.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}-serving")
    return dict(json.loads(found["data"]["state"]))


def completion(plane: Any, namespace: str, name: str = "ranker") -> str:
    path = f"/api/v1/namespaces/{namespace}/services/{name}:8000/proxy/v1/completions"
    asked = {"model": "ranker", "prompt": "a b", "max_tokens": 9}
    return str(plane.api.create(path, asked)["choices"][0]["text"])


def answer(plane: Any, namespace: str) -> str:
    """Return that, or why there is none now."""
    try:
        return completion(plane, namespace)
    except Refused as refused:
        return str(refused)


def test_a_set_that_answers_otherwise_is_undone_whole_and_an_earlier_one_comes_back(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str
) -> None:
    api.deploy(MODEL, declared())
    before = objects_of(plane, namespace)
    wrong = declared(engine_options={"says": "that"}, port=8001, smoke=SmokeTest({"a b": " b a it"}, max_tokens=3))
    with pytest.raises(
        DeploymentFailed, match=r"answers otherwise than expected.*undone: revision 1 is applied"
    ) as caught:
        api.deploy(MODEL, wrong)
    assert (caught.value.revision, caught.value.restored, caught.value.clean) == (2, 1, True)
    assert objects_of(plane, namespace) == before
    assert (head_of(plane, namespace)["current"], head_of(plane, namespace)["pending"]) == (1, [])

    tolerant = SmokeTest({"a b": " b a it"}, max_tokens=3, tolerance=0.6)
    third = api.deploy(MODEL, declared(engine_options={"says": "that"}, strategy="blue_green", smoke=tolerant))
    assert (third.revision, third.previous) == (3, 1)
    assert completion(plane, namespace) == " b a that"
    assert "deployments/ranker" not in objects_of(plane, namespace)
    assert "services/ranker-next" not in objects_of(plane, namespace)
    found = api.deployed(declared(port=8002))  # by its name alone
    assert (found.revision, found.url, found.proxy_path) == (3, third.url, third.proxy_path)

    back = found.rollback()
    assert (back.revision, back.previous, back.url) == (1, 0, f"http://ranker.{namespace}.svc:8000/v1")
    assert objects_of(plane, namespace) == before
    wait_until(lambda: answer(plane, namespace) == " b a it", "the first server answers")
    with pytest.raises(UsageError, match="no set of ranker before"):
        back.rollback()


@pytest.mark.parametrize("first", ["blue_green", "recreate"])
def test_a_second_server_beside_the_first_gets_requests_only_if_it_passes(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str, first: str
) -> None:
    green = SmokeTest({"a b": " b a it"}, max_tokens=3)
    api.deploy(MODEL, declared(strategy=first, smoke=green))
    [pod] = plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    before = objects_of(plane, namespace)
    asked: list[list[str]] = []

    def look(call: Exchange) -> None:  # while the second one is asked
        if call.method == "POST" and "/services/ranker-next:" in call.target:
            found = plane.api.get(f"/api/v1/namespaces/{namespace}/endpoints/ranker").get("subsets") or []
            asked.append([one["targetRef"]["uid"] for part in found for one in part["addresses"]])

    with listening(look), pytest.raises(DeploymentFailed, match="answers otherwise"):
        api.deploy(MODEL, declared(strategy="blue_green", smoke=green, engine_options={"says": "that"}))
    assert asked == [[pod["metadata"]["uid"]]], "requests of others went to the first one alone"
    assert completion(plane, namespace) == " b a it"
    assert objects_of(plane, namespace) == before
    left = {one["metadata"]["uid"] for one in plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]}
    assert pod["metadata"]["uid"] in left  # it never stopped


def test_a_deployment_that_never_gets_its_accelerator(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str
) -> None:
    node.add(*tpu_pool("v5e", 1, topology="2x2"))
    with pytest.raises(DeploymentFailed) as caught:
        api.deploy(MODEL, declared(accelerator="v6e-8", wait=1, startup="45m"))
    node.remove("v5e-0")
    said = str(caught.value)
    assert "gke-tpu-accelerator=tpu-v6e-slice, cloud.google.com/gke-tpu-topology=2x4" in said
    assert "8 of google.com/tpu free" in said
    assert "1 × cloud.google.com/gke-tpu-accelerator=tpu-v5-lite-podslice" in said
    assert "all of it is removed again" in said
    assert objects_of(plane, namespace) == {}


def test_a_server_that_ends_tells_its_last_lines(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str
) -> None:
    with pytest.raises(DeploymentFailed, match=r"exit code 3 \(Error\)[^$]*the engine has no room for its weights"):
        api.deploy(MODEL, declared(engine_options={"ends": 3}))
    assert objects_of(plane, namespace) == {}


def test_an_image_that_is_not_there(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PULL_SECONDS", 1.0)
    node.lack({"server:none": "ErrImagePull: not found"})
    with pytest.raises(DeploymentFailed, match=r"does not start: (ErrImagePull|ImagePullBackOff): .*server:none"):
        api.deploy(MODEL, declared(image="server:none"))
    node.forget()


def test_what_the_cluster_refuses_changes_nothing(plane: Any, declared: Declared, namespace: str) -> None:
    with pytest.raises(ManifestRefused, match=r"manifest of Deployment ranker in .*nodeSelector: .*bad key"):
        api.deploy(MODEL, declared(cloud=Kubernetes(node_selector={"bad key": "x"})))
    with pytest.raises(ManifestRefused, match=r"no namespace nowhere.*kubectl create namespace nowhere"):
        api.deploy(MODEL, declared(namespace="nowhere"))
    with pytest.raises(ManifestRefused, match=r"no InferencePool of inference.networking.k8s.io/v1: install"):
        api.deploy(MODEL, declared(kind="inference_pool"))
    with pytest.raises(ManifestRefused, match=r"no LLMInferenceService of serving.kserve.io/v1alpha2: install KServe"):
        api.deploy(MODEL, declared(kind="llm_inference_service"))
    plane.api.create(f"/api/v1/namespaces/{namespace}/services", {
        "metadata": {"name": "ranker"}, "spec": {"ports": [{"port": 80}]},
    })  # fmt: skip
    with pytest.raises(ManifestRefused, match=r"a Service ranker in .* that this package did not make"):
        api.deploy(MODEL, declared())
    assert list(objects_of(plane, namespace)) == ["services/ranker"]
    with pytest.raises(UsageError, match="nothing was deployed as ranker"):
        api.deployed(declared())


def test_a_field_that_somebody_else_holds_is_named(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str
) -> None:
    api.deploy(MODEL, declared())
    plane.kubectl("scale", "deployment/ranker", "--replicas=2", "-n", namespace)
    with pytest.raises(ManifestRefused, match=r"\.spec\.replicas is held by \"?kubectl.*force=True"):
        api.deploy(MODEL, declared(engine_options={"says": "more"}))
    assert objects_of(plane, namespace)["deployments/ranker"]["replicas"] == 2
    api.deploy(MODEL, declared(engine_options={"says": "more"}), force=True)
    assert objects_of(plane, namespace)["deployments/ranker"]["replicas"] == 1


def deployments(plane: Any, namespace: str) -> set[str]:
    return {name for name in objects_of(plane, namespace) if name.startswith("deployments/")}


def test_what_a_killed_client_left_is_finished_by_the_next(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str, tmp_path: Path
) -> None:
    api.deploy(MODEL, declared())
    slow = declared(engine_options={"after": 300}, strategy="blue_green")
    with another_client(plane, slow, lease=6.0, log=tmp_path / "log") as process:
        wait_until(lambda: len(deployments(plane, namespace)) == 2, "the other client's Deployment is there")
        with pytest.raises(DeploymentBusy, match=r"deploys ranker in .* now"):
            api.deploy(MODEL, declared())
        process.kill()
    assert head_of(plane, namespace)["pending"] == [2]

    def next_one() -> Any:
        with contextlib.suppress(DeploymentBusy):
            return api.deploy(MODEL, declared(engine_options={"says": "next"}))

    found = wait_until(next_one, "the turn of the killed client has ended", pause=0.5)
    assert (found.revision, found.previous) == (3, 1)
    assert set(objects_of(plane, namespace)) == {"deployments/ranker", "services/ranker"}
    assert head_of(plane, namespace)["pending"] == []
    assert completion(plane, namespace) == " b a next"


def test_a_client_that_was_away_changes_nothing_of_its_successor(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str, tmp_path: Path
) -> None:
    slow = declared(engine_options={"after": 300})
    with another_client(plane, slow, lease=3.0, log=tmp_path / "log") as process:
        wait_until(lambda: deployments(plane, namespace), "the other client's Deployment is there")
        process.send_signal(signal.SIGSTOP)

        def successor() -> Any:
            with contextlib.suppress(DeploymentBusy):
                return api.deploy(MODEL, declared(engine_options={"says": "second"}, strategy="blue_green"))

        found = wait_until(successor, "the turn of the stopped client has ended", pause=0.5)
        before = objects_of(plane, namespace)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 1
    assert "has taken over the deployment of ranker" in (tmp_path / "log").read_text()
    assert objects_of(plane, namespace) == before
    assert (head_of(plane, namespace)["current"], head_of(plane, namespace)["holder"]) == (found.revision, "")
    assert completion(plane, namespace) == " b a second"


def test_whoever_has_the_role_of_the_page_can_deploy_and_roll_back(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [text] = [text for text in map(Path.read_text, Path("docs/training").rglob("*.md")) if ROLE in text]
    role = text.partition(ROLE)[2].partition("```")[0]
    user = plane.user_kubeconfig(f"deployer-{namespace}")
    plane.apply(role.replace("namespace: serving", f"namespace: {namespace}"))
    bound = ("--role=model-servers", f"--user=deployer-{namespace}", "-n", namespace)
    plane.kubectl("create", "rolebinding", "deployer", *bound)
    monkeypatch.setenv("KUBECONFIG", str(user))
    wait_until(
        lambda: plane.kubectl("auth", "can-i", "patch", "deployments", f"--as=deployer-{namespace}", "-n", namespace)
    )
    api.deploy(MODEL, declared())
    second = api.deploy(MODEL, declared(strategy="blue_green"))
    assert second.rollback().revision == 1
    with pytest.raises(
        DeploymentFailed, match="What the cluster has could not be listed: that takes the right to list nodes"
    ):
        api.deploy(MODEL, declared(accelerator="v6e-8", wait=1, startup="45m"))


class Later(Api):
    """A client for which the turn of any other has ended."""

    def now(self) -> float:
        return super().now() + 2 * revisions.LEASE


@pytest.mark.parametrize("is_there", [True, False])
def test_a_client_that_loses_its_turn_between_its_look_and_its_write(
    plane: Any, node: NodeGroup, declared: Declared, namespace: str, is_there: bool
) -> None:
    access = kubeconfig_of({}, path=str(plane.kubeconfig))
    first, second = declared(engine_options={"says": "first"}), declared(engine_options={"says": "second"})
    if is_there:
        api.deploy(MODEL, declared())
    seen: list[tuple[str, str]] = []

    def takes_over(exchange: Exchange) -> None:
        seen.append((exchange.method, exchange.target))
        looked = ("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/ranker")
        head = ("GET", f"/api/v1/namespaces/{namespace}/configmaps/ranker-serving")
        if seen[-2:] == [looked, head] and ("", "") not in seen:
            seen.append(("", ""))  # once
            objects = manifests.render(second, model_of(MODEL))
            with Later(access) as other:
                rollout.Rollout(other, second, print).deploy(objects, MODEL)

    with (
        Api(access) as own,
        listening(takes_over),
        pytest.raises(DeploymentBusy, match="has taken over the deployment of ranker"),
    ):
        rollout.Rollout(own, first, print).deploy(manifests.render(first, model_of(MODEL)), MODEL)
    assert (
        objects_of(plane, namespace)["deployments/ranker"]["template"]["spec"]["containers"][0]["args"][-1] == "second"
    )
    wait_until(lambda: answer(plane, namespace) == " b a second", "the second server answers")


def test_what_a_cluster_remembers_is_bounded_and_not_believed_if_it_was_changed(
    plane: Any, declared: Declared, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions, "KEPT", 2)
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    objects = manifests.render(declared(), model_of(MODEL))
    with Api(kubeconfig_of({}, path=str(plane.kubeconfig))) as own:
        mine, other = (revisions.Revisions(own, namespace, "ranker") for _ in range(2))
        assert mine.head() == revisions.Head()
        head = mine.take()
        with pytest.raises(DeploymentBusy, match="deploys ranker in"):
            other.take()
        mine.write(head._replace(current=7))
        with pytest.raises(DeploymentBusy, match="at the same moment"):
            mine.write(head)  # which is an older one by now
        mine.release()
        assert other.take().holder == other.holder
        assert [mine.keep(objects, MODEL) for _ in range(4)] == [1, 2, 3, 4]
        mine.prune({1})
        assert mine.numbers() == [1, 3, 4]
        assert mine.objects(1) == objects
        with pytest.raises(ServingError, match="revision 2 of ranker is recorded no more"):
            mine.objects(2)
        foreign = [{**objects[1], "metadata": {"name": "another", "namespace": namespace}}]
        for changed in ("[]", "{", json.dumps(foreign), json.dumps([*objects, objects[0]])):
            told = {"set": changed, "digest": manifests.digest(foreign)}
            plane.api.patch(f"{maps}/ranker-serving-3", {"data": told})
            with pytest.raises(ServingError, match="is not what was written there: somebody changed it"):
                mine.objects(3)
        plane.api.patch(f"{maps}/ranker-serving", {"data": {"state": '{"current": "x"}'}})
        with pytest.raises(ServingError, match="is not what this package writes there"):
            mine.head()
