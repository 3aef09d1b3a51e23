"""Faults of VMs that are there: they boot again, hang, fail, come back too late, lose their power, were tampered with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.jobs.following import actions, held_time
from kinetic_orchestration.plan.values import JobStatus, Output
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import tree
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import NONE, ZONES, Break, instances, run, verdicts, vm
from tests.support.faults import CHANGED
from tests.support.jobs import ALL_OF_THE_AGENT, WITHIN, beats, changes, lines, placements, told, wait_running
from tests.support.waits import wait_until

# Each starts machines, and several processes on each.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.turn,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:the 2 hosts of l4 are joined over plain TCP"),
]

TWO = kinetic.Compute(hosts=2)


def test_f14_a_vm_that_boots_again_in_mid_run_ends_the_attempt_and_the_next_one_finishes(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    job = run(jobs.until, str(tmp_path / "go"), cloud=TWO)
    wait_running(job)
    machine = vm(cloud, job, 1)
    boots = machine.boots
    cloud.compute.reboot(sorted(instances(cloud, job))[1])
    wait_until(lambda: machine.boots > boots, "its new start")
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdicts(job)[0]
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, 1)
    assert first.reason == "this machine was restarted in mid-run (another boot id)"


@pytest.mark.parametrize("pause", [2.0, -1.0], ids=["later", "earlier"])
def test_f15_the_failure_shown_is_that_of_the_host_that_failed_and_not_its_siblings(
    cloud: Emulator, jobs: Any, tmp_path: Path, pause: float, hosts_break: Break
) -> None:
    hosts_break("attempt_rules.ECHO = 30.0")
    job = run(jobs.echoes, str(tmp_path), 1, pause, cloud=TWO)
    with pytest.raises(ValueError, match="the learning rate is negative") as caught:
        job.result(timeout=WITHIN)
    assert "on host 1" in caught.value.__notes__[0]


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


def test_f17_a_preemption_during_the_upload_of_the_result_does_not_lose_it(cloud: Emulator, jobs: Any) -> None:
    cloud.storage.delay("insert *result*", 4.0)
    job = run(jobs.attempt, spot=True)
    wait_until(lambda: [beat.exit for beat in beats(job).values()] == [0], "the program's end")
    cloud.compute.preempt(*instances(cloud, job), notice=30.0)
    assert job.result(timeout=WITHIN) == 1
    assert [verdict.kind for verdict in verdicts(job)] == [wire.COMMITTED]


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


def test_f18_a_zombie_attempt_cannot_commit_late(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts_break: Break
) -> None:
    """It was frozen at its commit and wakes when its attempt was closed: it stops and deletes, and one result is."""
    asleep, awake = tmp_path / "asleep", tmp_path / "awake"
    hosts_break(f"""
        def commit(self, *about, real=outcome.Outcome._commit):
            if self.at.attempt == 1:
                open({str(asleep)!r}, "w").close()
                while not os.path.exists({str(awake)!r}):
                    time.sleep(0.02)
            real(self, *about)
        outcome.Outcome._commit = commit
    """)
    job = run(jobs.attempt)
    wait_until(asleep.exists, "the commit")
    zombie = vm(cloud, job)
    zombie.freeze()
    actions.close(job._job, 1, wire.INFRASTRUCTURE, "given up")
    awake.touch()
    zombie.thaw()
    wait_until(lambda: not instances(cloud, job), "the deletion by the zombie itself", within=60)
    assert job.status() is not JobStatus.SUCCEEDED
    assert job.result(timeout=WITHIN) == 2
    assert [verdict.kind for verdict in verdicts(job)] == [wire.CLOSED, wire.COMMITTED]


@pytest.mark.parametrize("how", ["preempted", "cancelled"])
def test_f21_the_last_lines_on_sigterm_arrive(cloud: Emulator, jobs: Any, how: str) -> None:
    job = run(jobs.has_last_words, retry=NONE, spot=True)
    wait_running(job)
    wait_until(lambda: "ready" in (job.logs() or ""), "its first line")
    if how == "preempted":
        cloud.compute.preempt(*instances(cloud, job))
    else:
        actions.cancel(job._job, "enough", "a test")
    expected = "ready\n" + "".join(f"last word {number}\n" for number in range(100)) + "and the very last"
    assert lines(told(job)) == expected


def test_f24_host_0_loses_its_power_before_it_deletes_and_host_1_does(
    cloud: Emulator, jobs: Any, hosts_break: Break
) -> None:
    hosts_break("""
        self_delete.FIRST_TURN, self_delete.TURN = 1.0, 0.5
        def end(at, real=self_delete.delete_own_slice):
            if at.host == 0:
                os.kill(-1, signal.SIGKILL)  # all of this machine
                os.kill(os.getpid(), signal.SIGKILL)
            real(at)
        self_delete.delete_own_slice = end
    """)
    job = run(jobs.attempt, cloud=TWO)
    wait_until(lambda: job.history()[-1].verdict, "the verdict", within=60)
    cloud.wait_until_empty(WITHIN)
    assert cloud.count("instances.delete", "vm") >= 2
    assert cloud.count("instances.delete", "client") == 0
    assert job.result(timeout=WITHIN) == 1


@pytest.mark.parametrize("store", [0.0, -600.0], ids=["the hosts' clocks", "the store's clock, too"])
def test_f27_clocks_that_are_off_by_ten_minutes_change_nothing(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: float
) -> None:
    """Ages and deadlines are the store's: nobody is taken for dead, stuck or late, and all lines lie in one time."""
    monkeypatch.setattr(held_time, "DEADLINE_ALLOWANCE", 0.0)
    cloud.storage.skew = store
    cloud.furnish({"clock_skew": -600.0}, node="*-0")
    cloud.furnish({"clock_skew": 600.0}, node="*-1")
    limits = kinetic.Limits(provision=60.0, run=60.0, stall=30.0)
    job = run(jobs.until, str(tmp_path / "go"), cloud=TWO, retry=NONE, limits=limits)
    began = job._job.store.now()
    wait_running(job)
    assert [vm(cloud, job, host).machine.clock_skew for host in range(2)] == [-600.0, 600.0]
    (tmp_path / "go").touch()
    events = told(job)
    assert job.result(timeout=WITHIN) == 1
    times = {event.host: event.time for event in events if isinstance(event, Output)}
    assert len(times) == 2
    assert all(began - 30 < moment < job._job.store.now() + 30 for moment in times.values()), (began, times)


def test_f27_the_deadline_passes_by_the_stores_clock_on_a_vm_that_is_ten_minutes_behind(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no agent left there, and nobody who looks."""
    monkeypatch.setattr(held_time, "DEADLINE_ALLOWANCE", 0.0)
    cloud.furnish({"clock_skew": -600.0})
    job = run(jobs.until, str(tmp_path / "never"), limits=kinetic.Limits(provision=15.0, run=15.0))
    wait_running(job)
    assert vm(cloud, job).kill(ALL_OF_THE_AGENT)
    cloud.wait_until_empty(WITHIN)
    with pytest.raises(JobError, match="deadline"):
        job.result(timeout=WITHIN)


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


@pytest.mark.parametrize("what", list(CHANGED))
def test_f29_what_was_changed_in_the_bucket_is_refused_on_the_vm_and_not_tried_again(
    cloud: Emulator, jobs: Any, tmp_path: Path, what: str
) -> None:
    """It is named, and nothing of it runs."""
    cloud.compute.stockout(ZONES[0])
    job = run(
        jobs.contents, str(tmp_path / "ran"), cloud=kinetic.Compute(flex_start=True), limits=kinetic.Limits(run=3600)
    )
    store, spec = job._job.store, job._job.spec()
    if what == "tree":
        manifest = store.read(names.tree(spec["staged"]["tree"]))
        assert manifest is not None
        name = names.blob(tree.packs_of(json.loads(manifest.data))[0].id)
    else:
        found = {"payload": lambda: spec["staged"]["payload"]["digest"], "agent": lambda: spec["staged"]["agent"]}
        name = names.blob(found[what]()) if what in found else names.spec(job.job_id)
    record = store.read(name)
    assert record is not None
    data = bytearray(record.data)
    data[len(data) // 2] ^= 1
    store.put(name, bytes(data))
    cloud.compute.restock(ZONES[0])
    with pytest.raises(JobError, match=CHANGED[what]) as caught:
        job.result(timeout=WITHIN)
    assert caught.value.cause == wire.CONFIGURATION
    assert job.attempts() == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("says_so", [False, True], ids=["raised", "in the log"])
def test_f33_a_device_that_is_busy_is_the_machines_fault_and_new_hosts_follow(
    cloud: Emulator, jobs: Any, says_so: bool
) -> None:
    job = run(jobs.driver_is_busy_at_first, says_so)
    events = told(job)
    assert job.result(timeout=WITHIN) == 2
    assert verdicts(job)[0].cause == wire.INFRASTRUCTURE
    assert len({placement["name"] for placement in placements(job)}) == 2
    assert any("the accelerator's driver failed" in line for line in changes(events))
