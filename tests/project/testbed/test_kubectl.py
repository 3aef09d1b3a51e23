"""Kubectl shows and does the same on a real control plane and on the emulated one."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kinetic_orchestration.testing.kubernetes.pods.nodes import Node, NodeGroup
from tests.project.testbed.test_kubernetes import FOREVER, Place, jobset, plain, pod_of
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.emulated import EmulatedPlane
from tests.support.kubernetes.fixtures import CONFORMANCE
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, *CONFORMANCE, pytest.mark.turn(5)]

Kubectl = Callable[..., str]


@pytest.fixture
def place(plane: ControlPlane | EmulatedPlane, namespace: str) -> Place:
    return Place(plane.api, namespace)


@pytest.fixture
def kubectl(plane: ControlPlane | EmulatedPlane, namespace: str, built: Path, tmp_path: Path) -> Kubectl:
    """Run it in the namespace of the test, and return all that it prints. Words may be followed by `given=…`."""

    def run(*words: str, given: object = None, fails: bool = False) -> str:
        command = [str(built / "kubectl"), f"--kubeconfig={plane.kubeconfig}", f"--namespace={namespace}", *words]
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        text = None if given is None else json.dumps(given)
        done = subprocess.run(command, input=text, text=True, capture_output=True, env=environ, timeout=60)
        assert bool(done.returncode) is fails, done.stderr
        return done.stdout + done.stderr

    return run


def rows(shown: str) -> list[list[str]]:
    """The words of each line, without ages, and with a star for what is made up."""
    found = [re.split(r"  +", line.strip()) for line in shown.splitlines()]
    return [[re.sub(r"-[a-z0-9]{5}$", "-*", word) for word in row if not re.fullmatch(r"\d+s", word)] for row in found]


def test_objects_are_shown_as_tables(kubectl: Kubectl, place: Place, nodes: NodeGroup) -> None:
    nodes.add(Node("n", allocatable={"google.com/tpu": "8"}))
    place.create("jobsets", jobset("x", FOREVER))
    place.create("pods", {"metadata": {"name": "failed"}, "spec": pod_of("exit 1")})
    place.create("secrets", {"metadata": {"name": "s"}, "stringData": {"a": "x"}})
    place.await_pods(2)
    place.await_pods(1, "Failed")
    assert rows(kubectl("get", "pods")) == [
        ["NAME", "READY", "STATUS", "RESTARTS", "AGE"],
        ["failed", "0/1", "Error", "0"],
        ["x-s-0-0-*", "1/1", "Running", "0"],
        ["x-s-0-1-*", "1/1", "Running", "0"],
    ]
    [head, row] = rows(kubectl("get", "pod", "failed", "-o", "wide"))
    assert head[5:] == ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]
    assert row[5:] == ["n", "<none>", "<none>"]
    assert rows(kubectl("get", "jobs"))[1] == ["x-s-0", "Running", "0/2"]
    assert rows(kubectl("get", "jobsets"))[0] == ["NAME", "TERMINALSTATE", "RESTARTS", "COMPLETED", "SUSPENDED", "AGE"]
    assert rows(kubectl("get", "nodes"))[1][:3] == ["n", "Ready", "<none>"]
    assert rows(kubectl("get", "secret", "s"))[1] == ["s", "Opaque", "1"]
    events = rows(kubectl("get", "events", "--field-selector=involvedObject.name=failed"))
    assert ["Normal", "Started", "pod/failed", "Container started"] in events
    assert "Container started" in kubectl("describe", "pod", "failed")


def test_objects_are_applied_tried_and_refused(kubectl: Kubectl, place: Place) -> None:
    assert "(server dry run)" in kubectl("apply", "--dry-run=server", "-f", "-", given=plain())
    assert place.pods() == []
    kubectl("apply", "-f", "-", given=plain(labels={"a": "1"}))
    assert "configured" in kubectl("apply", "-f", "-", given=plain(labels={"a": "2"}))
    assert place.pods()[0]["metadata"]["labels"] == {"a": "2"}
    strange = jobset("x", "true")
    strange["spec"]["colour"] = "red"
    said = kubectl("create", "-f", "-", given=strange, fails=True)
    assert 'strict decoding error: unknown field "spec.colour"' in said


def test_what_is_waited_for_is_watched(kubectl: Kubectl, place: Place, nodes: NodeGroup) -> None:
    nodes.add(Node("n", allocatable={"google.com/tpu": "8"}))
    place.create("jobsets", jobset("x", "sleep 1"))
    assert "condition met" in kubectl("wait", "--for=condition=Completed", "jobset/x", "--timeout=50s")
    assert kubectl("delete", "jobset", "x") == f'jobset.jobset.x-k8s.io "x" deleted from {place.namespace} namespace\n'
    place.create("pods", {"metadata": {"name": "y"}, "spec": pod_of(FOREVER)})
    place.await_pods(1)
    assert kubectl("delete", "pod", "y") == f'pod "y" deleted from {place.namespace} namespace\n'
    assert place.api.found(f"{place.path('pods')}/y") is None
    wait_until(lambda: not place.pods(), place.told, within=50)


def test_a_log_is_followed_until_its_pod_is_over(kubectl: Kubectl, place: Place, nodes: NodeGroup) -> None:
    nodes.add(Node("n"))
    script = "for i in 1 2 3; do echo $i; sleep 0.5; done"
    place.create("pods", {"metadata": {"name": "x"}, "spec": pod_of(script)})
    place.await_pods(1)
    assert kubectl("logs", "-f", "x") == "1\n2\n3\n"
