"""One process for each GPU of a VM: each is a host of its own, and all of a VM end before it does."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobCancelled, JobError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.platforms.google.compute.client import Instances
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import NONE, Break, instances, made, run, vm
from tests.support.jobs import WITHIN, changes, lines, told, verdicts, wait_running
from tests.support.waits import wait_until

# Each starts several agents on each machine.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.turn,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:the 2 hosts of l4x2 are joined over plain TCP"),
]

PAIR: dict[str, Any] = {"accelerator": "l4x2", "processes": "gpu"}  # 2 processes on one VM
FOUR: dict[str, Any] = {**PAIR, "cloud": kinetic.Compute(hosts=2)}  # on two


def environments(folder: Path, hosts: int) -> list[dict[str, str]]:
    return [json.loads((folder / str(host)).read_text()) for host in range(hosts)]


@pytest.fixture
def patient(cloud: Emulator, hosts_break: Break) -> None:
    """A process that waits for its turn to delete, and a VM that waits for a process, wait for longer than a test does."""
    hosts_break("self_delete.FIRST_TURN = 600.0")
    cloud.timing = cloud.timing._replace(shutdown=600.0)


@pytest.mark.usefixtures("patient")
def test_the_processes_of_a_vm_know_their_places_and_the_value_is_that_of_the_first(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    job = run(jobs.writes_environment, str(tmp_path), **PAIR)
    events = told(job)
    assert job.status() is JobStatus.SUCCEEDED
    assert made(cloud) == 1
    assert job.crew == "1 host, 2 processes"
    assert any("1 host, 2 processes" in line for line in changes(events))
    both = environments(tmp_path, 2)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NNODES", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
    assert [tuple(one[name] for name in names) for one in both] == [
        ("0", "0", "2", "2", "1", "0", "2"), ("1", "1", "2", "2", "1", "1", "2")
    ]  # fmt: skip
    assert [one["KINETIC_HOST_INDEX"] for one in both] == ["0", "1"]
    assert {one["KINETIC_HOST_COUNT"] for one in both} == {"2"}
    assert {one["JAX_NUM_CPU_DEVICES"] for one in both} == {"1"}, "its own one"
    ((address, port),) = {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in both}
    assert address == "127.0.0.1" and int(port) > 0
    cloud.wait_until_empty(WITHIN)
    assert run(jobs.of_host_0, **PAIR).result(timeout=WITHIN) == "of host 0"


def test_the_processes_of_several_vms_are_counted_through_and_meet(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    job = run(jobs.writes_environment, str(tmp_path), **FOUR)
    told(job)
    assert made(cloud) == 2
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "NNODES", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    assert [tuple(one[name] for name in names) for one in environments(tmp_path, 4)] == [
        ("0", "0", "0", "0", "2", "2", "4"),
        ("1", "1", "0", "0", "2", "2", "4"),
        ("2", "0", "1", "1", "2", "2", "4"),
        ("3", "1", "1", "1", "2", "2", "4"),
    ]
    assert [one["JAX_PROCESS_ID"] for one in environments(tmp_path, 4)] == ["0", "1", "2", "3"]
    assert sorted(run(jobs.meets, **FOUR).result(timeout=WITHIN)) == [f"{host} of 4" for host in range(4)]


GATHERS = """
import importlib, sys
jax = importlib.import_module(sys.argv[1])
own = [jax.process_index(), jax.process_count(), jax.local_device_count(), jax.device_count()]
gathered = importlib.import_module(f"{sys.argv[1]}.experimental.multihost_utils").process_allgather(jax.numpy.array(own))
print(gathered.tolist(), flush=True)
"""


def test_jax_computes_with_the_devices_of_all_processes(cloud: Emulator, tmp_path: Path) -> None:
    """A command, whose Python has JAX: the import joins all of them, and they gather by its collectives."""
    (tmp_path / "gathers.py").write_text(GATHERS)
    argv = [sys.executable, "gathers.py", "jax"]
    job = kinetic.command(argv, cwd=tmp_path, backend="compute", retry=NONE, **FOUR)
    events = told(job)
    assert job.status() is JobStatus.SUCCEEDED, job.logs()
    gathered = [[process, 4, 1, 4] for process in range(4)]
    assert [json.loads(lines(events, host).splitlines()[-1]) for host in range(4)] == [gathered] * 4


def test_each_process_has_its_own_log_all_of_which_arrives(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.writes_lines, 200, **FOUR)
    events = told(job)
    for host in range(4):
        assert lines(events, host) == "".join(f"line {number} of host {host}\n" for number in range(200))
    assert job.result(timeout=30) == 200
    cloud.wait_until_empty(60)


@pytest.mark.parametrize("culprit", [1, 2])
def test_the_failure_is_that_of_the_process_that_failed_and_not_its_siblings(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts_break: Break, culprit: int
) -> None:
    hosts_break("attempt_rules.ECHO = 30.0")
    job = run(jobs.echoes, str(tmp_path), culprit, -1.0, retry=NONE, **FOUR)
    with pytest.raises(ValueError, match="the learning rate is negative") as caught:
        job.result(timeout=WITHIN)
    assert f"on host {culprit}" in caught.value.__notes__[0]


def test_a_process_that_is_killed_ends_all_and_is_named_with_its_signal(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    """As the kernel does it that has no memory left. Nothing of the others remains, though they would wait for ever."""
    job = run(jobs.one_is_killed, 1, str(tmp_path / "never"), retry=NONE, **PAIR)
    with pytest.raises(JobError) as caught:
        job.result(timeout=WITHIN)
    assert "SIGKILL" in str(caught.value)
    verdict = verdicts(job)[0]
    assert (verdict.kind, verdict.host) == (wire.ABORTED, 1)
    cloud.wait_until_empty(60)


@pytest.mark.parametrize("host", [0, 1])
def test_a_process_whose_agent_is_killed_is_missed_and_the_vm_ends_after_the_others(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts_break: Break, host: int
) -> None:
    """Also if it is host 0, whose turn it is to delete. No other is mistaken for gone, as its VM is there."""
    hosts_break("""
        attempt_rules.LOST, peers.BEATS_PACE, bucket.WATCHED, bucket.UNWATCHED = 20.0, 0.5, 0.7, 0.7
        self_delete.LATE, attempt_rules.SIBLING_GRACE, self_delete.FIRST_TURN, self_delete.TURN = 0.3, 0.5, 1.0, 0.5
    """)
    job = run(jobs.until, str(tmp_path / "go"), **PAIR)
    wait_running(job)
    assert vm(cloud, job).kill(lambda pid: holds_lock(pid, host))
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdicts(job)[0]
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, host)


def test_one_that_hangs_is_told_after_the_silence_with_the_stacks_of_all(cloud: Emulator, jobs: Any) -> None:
    job = run(jobs.stuck, retry=NONE, limits=kinetic.Limits(stall=4.0), **PAIR)
    with pytest.raises(JobError) as caught:
        job.result(timeout=WITHIN)
    assert caught.value.cause == wire.STALL
    notes = [(event.host, event.text) for event in told(job) if getattr(event, "kind", "") == "n"]
    assert {host for host, text in notes if b"hangs_here" in text} == {0, 1}


@pytest.mark.parametrize("how", ["preempted", "cancelled"])
def test_every_process_is_told_of_the_end_and_saves(cloud: Emulator, jobs: Any, how: str) -> None:
    job = run(jobs.has_last_words, retry=NONE, spot=True, **PAIR)
    wait_running(job)
    wait_until(lambda: (job.logs() or "").count("ready") == 2, "their first lines")
    if how == "preempted":
        cloud.compute.preempt(*instances(cloud, job))  # with the notice that its request asked for
    else:
        job.cancel()
    events = told(job)
    expected = "ready\n" + "".join(f"last word {number}\n" for number in range(100)) + "and the very last"
    assert [lines(events, host) for host in range(2)] == [expected] * 2
    if how == "cancelled":
        with pytest.raises(JobCancelled):
            job.result(timeout=WITHIN)
    cloud.wait_until_empty(60)


def test_a_vm_that_boots_again_ends_the_attempt_and_the_next_one_finishes(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    job = run(jobs.until, str(tmp_path / "go"), **PAIR)
    wait_running(job)
    cloud.compute.reboot(*instances(cloud, job))
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    assert verdicts(job)[0].reason == "this machine was restarted in mid-run (another boot id)"


@pytest.mark.usefixtures("patient")
def test_a_vm_that_somebody_deletes_goes_down_at_once_also_if_a_guard_on_it_was_killed(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    """Its agent does its work, and waited for its turn to delete what went down already."""
    job = run(jobs.until, str(tmp_path / "go"), retry=NONE, **PAIR)
    wait_running(job)
    guards = vm(cloud, job).kill("^kinetic-guard", 0)
    assert vm(cloud, job).kill(lambda pid: pid in guards and holds_lock(pid, 1))
    (path,) = list(cloud.compute.instances)
    Instances(settings.load()).delete(path)
    cloud.wait_until_empty(WITHIN)
    with pytest.raises(JobCancelled):
        job.result(timeout=WITHIN)


def holds_lock(pid: int, host: int) -> bool:
    """Return True for the guard and the agent of a host, which have its lock open."""
    try:
        opened = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return any(f"/host-{host}.json" in path for path in opened)  # under the name that it had when it was taken
