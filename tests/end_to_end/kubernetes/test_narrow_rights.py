"""Jobs of a service account that has the printed Role and nothing else, in the queue of the page on Kubernetes."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import main
from kinetic_orchestration.platforms.kubernetes import rights
from kinetic_orchestration.platforms.kubernetes.api import client
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node
from tests.end_to_end.kubernetes.cases import Cluster
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.pages import blocks
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(5)]

TOKEN = "hf_" + "aB3" * 12  # which looks like a credential
VERBS = {"POST": "create", "DELETE": "delete"}


def right_of(exchange: client.Exchange) -> str:
    """The right that a request needs in its namespace; "" if anybody may make it."""
    path = urlsplit(exchange.target).path
    match = re.fullmatch(r"/(?:api|apis/([^/]+))/[^/]+/namespaces/[^/]+/([^/]+)(?:/[^/]+(/[^/]+)?)?", path)
    if match is None:
        return ""
    group, kind, below = match.groups(default="")
    is_one = path.count("/") > (6 if group else 5)
    verb = VERBS.get(exchange.method, "get" if is_one else "list")
    return str(rights.Right(group, f"{kind}{below}", verb, ""))


@pytest.fixture
def queue(plane: ControlPlane | EmulatedPlane, namespace: str) -> Iterator[str]:
    """The queue of the page, with room for one job of one processor."""
    [page] = [block for block in blocks("docs/cloud/kubernetes.md", "yaml") if block.startswith("# queue.yaml")]
    text = re.sub(r"(name|clusterQueue): training$", rf"\1: {namespace}", page, flags=re.M)
    text = text.replace("namespace: training", f"namespace: {namespace}").replace("Quota: 64", "Quota: 1")
    plane.apply(text)
    path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/localqueues/research"
    wait_until(lambda: "True" in json.dumps(plane.api.get(path).get("status", {})), lambda: plane.api.get(path))
    yield "research"
    plane.api.delete(f"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{namespace}")
    plane.api.delete("/apis/kueue.x-k8s.io/v1beta2/resourceflavors/any")


@pytest.fixture
def worker(
    plane: ControlPlane | EmulatedPlane,
    cluster: Cluster,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], None]:
    """Makes this process a service account of the namespace, without any right yet."""
    plane.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "worker"}})
    config = json.loads(plane.account_kubeconfig(namespace, "worker").read_text(encoding="utf-8"))
    emulated = {"name": "kinetic-orchestration", "extension": {"emulated": True}}
    config["clusters"][0]["cluster"]["extensions"] = [emulated]
    path = tmp_path / "kubeconfig-worker"
    path.write_text(json.dumps(config), encoding="utf-8")
    return lambda: monkeypatch.setenv("KUBECONFIG", str(path))


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, str]]:
    capsys.readouterr()
    main(["doctor", "--json", *words])
    return {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_jobs_run_with_the_printed_role_and_use_all_of_it(
    plane: ControlPlane | EmulatedPlane, cluster: Cluster, namespace: str, queue: str, worker: Callable[[], None], machine: dict[str, str],
    jobs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    who = f"serviceaccount:{namespace}/worker"
    file = tmp_path / "step.py"
    file.write_text(
        "import kinetic_orchestration as kinetic\n"
        "@kinetic.run(accelerator='cpu', capture_env_vars=['HF_TOKEN'], cloud=kinetic.Kubernetes(queue='research'))\n"
        "def step(): ...\n"
    )
    assert main(["doctor", f"{file}:step", "--role", who]) == 0
    role = capsys.readouterr().out
    worker()
    assert "create jobsets" in doctor(capsys, "--queue", queue)["rights"]["found"]
    plane.apply(role)
    wait_until(lambda: doctor(capsys, "--queue", queue)["rights"]["state"] == "ok")
    checks = doctor(capsys, "--queue", queue)
    assert {check["state"] for check in checks.values()} <= {"ok", "warning"}, checks
    assert f"{queue} of the cluster queue {namespace}" in checks["queue"]["found"]
    assert "can be written and cleaned" in checks["store"]["found"]
    assert "worker" in checks["cluster"]["found"]

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    run = kinetic.run(accelerator="cpu", capture_env_vars=["HF_TOKEN"], cloud=kinetic.Kubernetes(queue=queue))
    used: set[str] = set()
    with client.listening(lambda exchange: used.add(right_of(exchange))):
        first = run(jobs.fingerprint).run_async(["HF_TOKEN"], sys.executable)
        second = run(jobs.fingerprint).run_async(["HF_TOKEN"], sys.executable)  # which waits for the first one's place
        wait_until(
            lambda: second.status() and any("pendingworkloads" in right for right in used), lambda: used, within=60
        )
        cluster.add(Node("plain", allocatable={"cpu": "4", "memory": "16Gi"}, environment=machine))
        told = {"HF_TOKEN": hashlib.sha256(TOKEN.encode()).hexdigest()}
        assert first.result(timeout=150) == second.result(timeout=150) == told
        main(["reap", "--dry-run"])
    # Of sets that failed, of pods that cannot be created, and of sets and Jobs that were deleted without what they made:
    # that these, too, are needed is seen in core/platforms/kubernetes/test_needed_rights.py.
    seldom = {"list jobs.batch", "list events", "delete jobs.batch", "delete pods", "delete secrets"}
    assert used - {""} | seldom == {str(right) for right in rights.of(secrets=True, queue=True)}
