"""A pod as its machine, as far as no cluster is needed."""

from __future__ import annotations

import json

import pytest

from kinetic_orchestration.host.machine.machine import Unanswered
from kinetic_orchestration.host.machine.pod import start as pod_start
from kinetic_orchestration.host.machine.pod.pod import Pod
from kinetic_orchestration.host.prepare.prepare import Ready
from kinetic_orchestration.host.process.environ import start_message
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.wire.task import Hardware, Task
from tests.support.wire_tasks import TASK

pytestmark = pytest.mark.fast

TPU = TASK._replace(accelerator=Hardware("tpu", "v4"))
TWO = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "set-s-1-0.set,set-s-1-1.set"}


def pod_of(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], *, each: int = 2) -> Pod:
    """The last pod of two slices, to which GKE gave these variables."""
    orders = {"hosts_per_slice": each, "name": "set", "emulated": False, "secrets": []}
    monkeypatch.setenv(pod_start.ORDERS, json.dumps(orders))
    for name in TWO:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return Pod(Assignment("gs://b/p", "job-1", 1, 2 * each - 1, 2 * each, "", "", "", "", "", "", pod="uid"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "TPU_WORKER_ID='' and TPU_WORKER_HOSTNAMES='', and it was started as pod 1 of 2"),
        ({"TPU_WORKER_ID": "1"}, "TPU_WORKER_ID='1' and TPU_WORKER_HOSTNAMES=''"),
        ({**TWO, "TPU_WORKER_ID": "0"}, "GKE made this pod worker 0 of 2"),
        ({**TWO, "TPU_WORKER_HOSTNAMES": "a,b,c"}, "GKE made this pod worker 1 of 3"),
    ],
)
def test_a_host_of_a_slice_of_several_runs_nothing_without_its_place(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], told: str
) -> None:
    pod = pod_of(monkeypatch, given)
    pod.begin(TPU)
    with pytest.raises(Unanswered) as caught:
        pod.secrets(print)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("task", "given", "each"),
    [
        pytest.param(TPU, TWO, 2, id="it has its place"),
        pytest.param(TPU, {}, 1, id="GKE may give none to a slice of one host"),
        pytest.param(TPU._replace(emulated=True), {}, 2, id="there is no chip"),
        pytest.param(TASK._replace(accelerator=Hardware("gpu", "l4")), {}, 2, id="GPUs have no slice"),
    ],
)
def test_others_need_none(monkeypatch: pytest.MonkeyPatch, task: Task, given: dict[str, str], each: int) -> None:
    pod = pod_of(monkeypatch, given, each=each)
    pod.begin(task)
    assert pod.secrets(print) == {}


def test_the_program_gets_what_gke_says_of_its_chips_and_nothing_else_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process is started without all of them."""
    pod = pod_of(monkeypatch, {})
    environ = {**TWO, "TPU_TOPOLOGY": "2x2x2", "TPU_LOG_DIR": "/logs", "MEGASCALE_NUM_SLICES": "7", "MASTER_ADDR": "a"}
    environ |= {"KUBERNETES_SERVICE_HOST": "10.96.0.1", pod_start.ORDERS: "{}", "JOB_COMPLETION_INDEX": "1"}
    task = TPU._replace(slices=2)
    files = dict.fromkeys(("outcome", "events", "notice", "stacks"), "")
    ports = {"jax": 1, "torch": 2, "megascale": 3, "tensorflow": 4}
    ready = Ready("python3", "", [], [], "", [], [])
    names = ["a", "b", "c", "d"]
    message = start_message(pod._at, task, ready, names, ports, {}, files, "agent", environ, pod)
    env = message["env"]
    assert {name: env[name] for name in environ if name in env} == {
        **TWO, "TPU_TOPOLOGY": "2x2x2", "MEGASCALE_NUM_SLICES": "2", "MASTER_ADDR": "a"
    }  # fmt: skip
    assert (env["MEGASCALE_SLICE_ID"], env["MEGASCALE_COORDINATOR_ADDRESS"]) == ("1", "a:3")
    assert {"KUBERNETES_SERVICE_HOST", pod_start.ORDERS, "JOB_COMPLETION_INDEX"} <= set(message["drop"])
    assert not {*TWO, "TPU_LOG_DIR"} & set(message["drop"])
