"""Faults of VMs that are there: they boot again, hang, fail, come back too late, lose their power, were tampered with."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.platforms.google.compute import request
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.faults.contract import FaultsOfHosts, Job
from tests.end_to_end.compute.conftest import ZONES, Break, instances, run, vm
from tests.support.jobs import WITHIN, beats, lines, told, verdicts, wait_running
from tests.support.waits import wait_until

# Each starts machines, and several processes on each.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.turn,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:the 2 hosts of l4 are joined over plain TCP"),
]

TWO = kinetic.Compute(hosts=2)


class TestOnComputeEngine(FaultsOfHosts):
    several = MappingProxyType({"cloud": TWO})
    hosts = 2
    waits = MappingProxyType({"cloud": kinetic.Compute(flex_start=True), "limits": kinetic.Limits(run=3600)})
    deletion = "instances.delete", 2
    notice = request.NOTICE

    run, machines, vm = staticmethod(run), staticmethod(instances), staticmethod(vm)

    def reboot(self, cloud: Emulator, job: Job, host: int) -> None:
        cloud.compute.reboot(sorted(instances(cloud, job))[host])

    def preempt(self, cloud: Emulator, job: Job, notice: float) -> None:
        cloud.compute.preempt(*instances(cloud, job), notice=notice)

    def skew(self, cloud: Emulator, host: int, seconds: float) -> None:
        cloud.furnish({"clock_skew": seconds}, node=f"*-{host}" if host else "*")

    def stockout(self, cloud: Emulator) -> None:
        cloud.compute.stockout(ZONES[0])

    def restock(self, cloud: Emulator) -> None:
        cloud.compute.restock(ZONES[0])


@pytest.mark.parametrize(
    ("options", "lost", "logs"),
    [
        ({"cloud": TWO}, "*-1", 1),
        ({"accelerator": "v6e-16"}, "*-00[234]", 3),
    ],
    ids=["one of two VMs", "three of a slice"],
)
def test_f13_vms_of_several_that_never_boot_are_told_with_the_ends_of_their_serial_logs(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], lost: str, logs: int
) -> None:
    """Tests logs that only whoever follows the job may read, and long before the others have waited for them in vain."""
    cloud.compute.never_boots(lost, times=logs)
    job = run(jobs.attempt, **options)
    follower = Follower(job._job)
    wait_until(lambda: follower.step() or (beats(job).get(0) and follower.seen.since), "host 0", within=WITHIN)
    booted = set(instances(cloud, job))
    with monkeypatch.context() as impatient:
        impatient.setattr(lifecycle, "SILENT_START", 1.0)
        wait_until(lambda: follower.step() or verdicts(job), "the verdict", within=WITHIN)
    first = verdicts(job)[0]
    assert (first.kind, first.cause, first.host) == (wire.CLOSED, wire.INFRASTRUCTURE, 1), first.reason
    hosts = "host 1" if logs == 1 else "hosts 1, 2, 3"
    assert first.reason.splitlines()[-1] == f"{hosts} did not start within 1 s"
    told = {name for name in booted if f"the serial log of {name} ends so:" in first.reason}
    assert told == {name for name in booted if fnmatch.fnmatchcase(name, lost)}
    assert first.reason.count("Booting from Hard Disk 0...") == logs
    assert job.result(timeout=WITHIN) == 2


@pytest.mark.parametrize("host", [0, 1])
def test_f16_a_vm_that_is_alive_but_frozen_is_missed_by_the_other_and_deleted(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts_break: Break, host: int
) -> None:
    """Also if it is host 0, whose turn it is to delete."""
    hosts_break("""
        attempt_rules.LOST, peers.BEATS_PACE, bucket.WATCHED, bucket.UNWATCHED = 20.0, 0.5, 0.7, 0.7
        self_delete.LATE, attempt_rules.SIBLING_GRACE, self_delete.FIRST_TURN, self_delete.TURN = 0.3, 0.5, 1.0, 0.5
    """)
    job = run(jobs.until, str(tmp_path / "go"), cloud=TWO)
    wait_running(job)
    vm(cloud, job, host).freeze()
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdicts(job)[0]
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, host)
    assert f"host {host} has given no sign of life" in first.reason


@pytest.mark.parametrize("seconds", [0.5, 14.0])
def test_f17_a_program_is_told_of_a_preemption_and_goes_on_from_its_checkpoint(
    cloud: Emulator, jobs: Any, tmp_path: Path, seconds: float
) -> None:
    """Also if it takes longer to save than a machine has that is told at its end."""
    job = run(jobs.resumes, str(tmp_path), False, seconds, spot=True)
    wait_running(job)
    wait_until(lambda: "running" in (job.logs() or ""), "its handler")
    cloud.compute.preempt(*instances(cloud, job))  # with the notice that its request asked for
    events = told(job)
    assert job.result(timeout=WITHIN) == ["saved by attempt 1"]
    assert "saving" in lines(events)
    assert verdicts(job)[0].cause == wire.PREEMPTION


def test_f28_topology_variables_left_from_elsewhere_are_replaced_by_the_vms_own(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch, hosts_break: Break
) -> None:
    """Those that the submitter captured, and those that the machine's image has set."""
    hosts_break("os.environ.update(MASTER_ADDR='gone-3', WORLD_SIZE='8', JAX_PROCESS_ID='4')")
    stale = {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476", "JAX_PROCESS_ID": "7", "JAX_NUM_PROCESSES": "9", "RANK": "7",
        "WORLD_SIZE": "9", "MASTER_ADDR": "10.0.0.1", "NODE_RANK": "7", "NNODES": "9",
    }  # fmt: skip
    for name, value in stale.items():
        monkeypatch.setenv(name, value)
    asked = ["RANK", "WORLD_SIZE", "MASTER_*", "NODE_RANK", "NNODES", "JAX_*"]
    job = run(jobs.prints_topology, cloud=TWO, capture_env_vars=asked)
    events = told(job)
    for host in range(2):
        found = json.loads(lines(events, host))
        assert (found["JAX_PROCESS_ID"], found["JAX_NUM_PROCESSES"]) == (str(host), "2")
        assert (found["RANK"], found["NODE_RANK"]) == (str(host), str(host))
        assert (found["WORLD_SIZE"], found["NNODES"]) == ("2", "2")
        assert not any("10.0.0.1" in value or "gone" in value for value in found.values())
