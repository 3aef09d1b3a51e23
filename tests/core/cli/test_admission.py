"""`kinor plan --admission`: what a cluster says of a job that is only planned."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kinetic_orchestration.cli import main
from kinetic_orchestration.platforms.kubernetes import preflight
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(3)]

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"
PROGRAM = """
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="l4", cloud=kinetic.Kubernetes())
def train(): ...
"""


class Shown(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def plan(
    plane: Any, namespace: str, home: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> Any:  # fmt: skip
    """Returns a call of `kinor plan` for a function of a program whose jobs run in this namespace."""
    file = tmp_path / "train.py"
    file.write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "pyproject.toml").touch()
    for name, value in {
        "KUBECONFIG": str(plane.kubeconfig), "KINETIC_BACKEND": "kubernetes", "KINETIC_NAMESPACE": namespace,
        "KINETIC_STORE": "gs://a-bucket/prefix", "KINETIC_DEPLOYMENT": "prod", "KINETIC_SIGNING_KEY": "0123456789abcdef",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)

    def call(function: str, *flags: str) -> Shown:
        capsys.readouterr()
        code = main(["plan", f"{file}:{function}", *flags])
        shown = capsys.readouterr()
        return Shown(code, shown.out, shown.err)

    return call


def led_to(plane: Any, listener: socket.socket, path: Path) -> str:
    """Return the path of a kubeconfig that leads to this socket in place of the cluster."""
    config = json.loads(plane.kubeconfig.read_text(encoding="utf-8"))
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{listener.getsockname()[1]}"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def test_a_cluster_that_accepts_the_job_is_heard_and_stores_nothing(plan: Any, plane: Any, namespace: str) -> None:
    shown = plan("train", "--admission")
    assert shown.code == 0, shown
    assert 'kind: "JobSet"' in shown.out
    assert f"{namespace} accepts the JobSet; none was stored" in shown.out
    assert f"{namespace} accepts a pod of the set; none was stored" in shown.out
    assert f"nothing was run, and nothing is stored in tests/{namespace}, which was asked" in shown.err
    assert not plane.api.get(f"{JOBSETS}/namespaces/{namespace}/jobsets")["items"]
    told = json.loads(plan("train", "--admission", "--json").out)["admission"]
    assert [(each["name"], each["state"]) for each in told] == [("dry run", "ok"), ("rights", "ok"), ("pod", "ok")]


def test_a_pod_that_is_not_admitted_is_told_though_the_set_is(plan: Any, plane: Any, namespace: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    wait_until(lambda: plan("train", "--admission").code == 1)
    told = plan("train", "--admission").out
    assert "accepts the JobSet; none was stored" in told
    assert "would refuse the pods" in told and "PodSecurity" in told
    as_json = plan("train", "--admission", "--json")
    assert (as_json.code, json.loads(as_json.out)["admission"][-1]["state"]) == (1, "failed")


def test_who_may_not_submit_is_told_the_command_that_grants_it(
    plan: Any, plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.user_kubeconfig("nobody")))
    shown = plan("train", "--admission")
    assert shown.code == 1
    assert "kinor doctor --role user:nobody | kubectl apply -f -" in shown.out


def test_a_cluster_that_does_not_answer_is_given_up_after_the_plan_is_shown(
    plan: Any, plane: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "HURRY", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("KUBECONFIG", led_to(plane, silent, tmp_path / "kubeconfig"))
        began = time.monotonic()
        shown = plan("train", "--admission")
        assert time.monotonic() - began < 6.0
    assert shown.code == 5
    assert 'kind: "JobSet"' in shown.out
    assert "there was no connection in 1 s" in shown.err


def test_without_the_option_nobody_is_asked(
    plan: Any, plane: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        nobody.settimeout(0.0)
        monkeypatch.setenv("KUBECONFIG", led_to(plane, nobody, tmp_path / "kubeconfig"))
        shown = plan("train")
        with pytest.raises(BlockingIOError):
            nobody.accept()
    assert (shown.code, "nothing was run or sent" in shown.err) == (0, True)
    assert json.loads(plan("train", "--json").out)["admission"] is None


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_platform_without_admission_says_so(plan: Any, monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    shown = plan("train", "--admission", *flags)
    assert (shown.code, shown.out) == (2, "")
    assert "--admission asks a Kubernetes cluster, and this job would run on local" in shown.err
