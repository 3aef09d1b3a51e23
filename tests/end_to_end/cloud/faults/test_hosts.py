"""Faults of hosts that are there: they do not boot, boot again, hang, fail, are taken away, come back too late."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.errors import JobLost
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.plan.values import Change, Event, Output
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import FOUR_HOSTS, nodes, run, vm
from tests.end_to_end.cloud.conftest import ZONES
from tests.end_to_end.cloud.faults.contract import NONE, Break, FaultsOfHosts, Job
from tests.support.faults import PATIENT, break_hosts
from tests.support.jobs import WITHIN, beats, changes, lines, placements, told, verdicts, wait_running
from tests.support.waits import wait_until

# Each starts machines, and several processes on each.
pytestmark = [pytest.mark.slow, pytest.mark.turn, pytest.mark.timeout(600)]


class TestOnCloudTpu(FaultsOfHosts):
    several = MappingProxyType({"accelerator": FOUR_HOSTS})
    hosts = 4
    deletion = "DeleteQueuedResource", 1
    notice = 60.0
    patience = PATIENT

    run, machines, vm = staticmethod(run), staticmethod(nodes), staticmethod(vm)

    def reboot(self, cloud: Emulator, job: Job, host: int) -> None:
        cloud.reboot(*nodes(cloud, job), host)

    def preempt(self, cloud: Emulator, job: Job, notice: float) -> None:
        cloud.preempt(*nodes(cloud, job), notice=notice)

    def skew(self, cloud: Emulator, host: int, seconds: float) -> None:
        cloud.furnish({"clock_skew": seconds}, worker=host)

    def stockout(self, cloud: Emulator) -> None:
        cloud.stockout(ZONES[0], "wait")

    def restock(self, cloud: Emulator) -> None:
        cloud.restock(ZONES[0])

    @pytest.mark.turn(2)
    def test_f24_host_1_deletes_in_its_turn_in_real_time(self, cloud: Emulator, jobs: Any, hosts_break: Break) -> None:
        self.check_host_1_deletes(cloud, jobs, hosts_break)


@pytest.fixture
def hosts_break(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Hosts from now on run these lines before all else; they know the agent's modules."""

    return functools.partial(break_hosts, monkeypatch)


def notes(events: list[Any], host: int) -> str:
    return b"".join(
        event.text for event in events if isinstance(event, Output) and event.host == host and event.kind == "n"
    ).decode()


# ---- F13 -----------------------------------------------------------------------------------------------------------


@pytest.mark.turn(4)
def test_f13_a_host_that_never_boots_is_named_by_the_others_and_new_hosts_follow(
    cloud: Emulator, jobs: Any, hosts_break: Break
) -> None:
    hosts_break("self_delete.LATE, attempt_rules.SIBLING_GRACE = 0.3, 0.5")
    cloud.never_boots(2)
    job = run(jobs.attempt, accelerator=FOUR_HOSTS, limits=kinetic.Limits(provision=60.0))
    wait_until(lambda: verdicts(job), "the verdict of the others", within=WITHIN)  # whoever follows would be as fast
    assert job.result(timeout=WITHIN) == 2
    first = verdicts(job)[0]
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, 2), first.reason
    assert first.reason == "host 2 did not start within 60 s"
    assert len({placement["name"] for placement in placements(job)}) == 2


def test_f13_a_slice_on_which_no_host_starts_its_agent_is_given_up(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.never_boots(0)
    job = run(jobs.attempt)
    follower = Follower(job._job)
    with monkeypatch.context() as impatient:
        impatient.setattr(lifecycle, "SILENT_START", 1.0)
        impatient.setattr(lifecycle, "SETTLE_PATIENCE", 0.5)
        wait_until(lambda: follower.step() or follower.cursor.attempt == 2, "another attempt")
    assert job.result(timeout=WITHIN) == 2
    first = verdicts(job)[0]
    assert (first.kind, first.cause) == (wire.CLOSED, wire.INFRASTRUCTURE)
    assert "none of them has started its agent" in first.reason


# ---- F16 -----------------------------------------------------------------------------------------------------------


@pytest.mark.turn(1)
def test_f16_a_host_that_is_alive_but_frozen_is_missed_by_the_others(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts_break: Break
) -> None:
    """And it cannot keep its slice: the others delete it."""
    hosts_break("""
        attempt_rules.LOST, peers.BEATS_PACE, bucket.WATCHED, bucket.UNWATCHED = 20.0, 0.5, 0.7, 0.7
        self_delete.LATE, attempt_rules.SIBLING_GRACE = 0.3, 0.5
    """)
    job = run(jobs.until, str(tmp_path / "go"), accelerator=FOUR_HOSTS)
    wait_running(job)
    vm(cloud, job, 2).freeze()
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdicts(job)[0]
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, 2)
    assert "host 2 has given no sign of life" in first.reason


def test_f16_a_program_that_is_stuck_is_ended_with_the_stacks_of_every_host_in_the_log(
    cloud: Emulator, jobs: Any
) -> None:
    job = run(jobs.stuck, accelerator=FOUR_HOSTS, limits=kinetic.Limits(stall=20.0), retry=NONE)
    events = told(job)
    for host in range(4):
        assert "in hangs_here" in notes(events, host)
        assert lines(events, host) == "then nothing\n"
    with pytest.raises(JobLost, match=r"no host printed, logged or progressed for \d+ s \(the limit is 20 s\)"):
        job.result(timeout=WITHIN)


# ---- F17 -----------------------------------------------------------------------------------------------------------


def test_f17_a_slice_that_goes_during_the_upload_of_the_result_is_followed_by_another_attempt(
    cloud: Emulator, jobs: Any
) -> None:
    cloud.storage.delay("insert *result*", 30.0, times=1)
    job = run(jobs.attempt, spot=True)
    wait_until(lambda: [beat.exit for beat in beats(job).values()] == [0], "the program's end")
    (node,) = nodes(cloud, job)
    cloud.preempt(node)
    assert job.result(timeout=WITHIN) == 2
    assert [verdict.kind for verdict in verdicts(job)] == [wire.CLOSED, wire.COMMITTED]
    assert verdicts(job)[0].cause == wire.PREEMPTION


def test_f17_a_program_is_told_of_a_preemption_and_goes_on_from_its_checkpoint(
    cloud: Emulator, jobs: Any, tmp_path: Path, hosts_break: Break
) -> None:
    """The notice leaves it the time to save; the next attempt, on other hosts, finds the same folder."""
    hosts_break(PATIENT)
    job = run(jobs.resumes, str(tmp_path), spot=True)
    wait_running(job)
    wait_until(lambda: "running" in (job.logs() or ""), "its handler")
    (node,) = nodes(cloud, job)
    cloud.preempt(node, notice=60.0)
    events = told(job)
    assert job.result(timeout=WITHIN) == ["saved by attempt 1"]
    assert "saving" in lines(events)
    first = verdicts(job)[0]
    assert (first.kind, first.cause) == (wire.ABORTED, wire.PREEMPTION)


def test_f17_a_preemption_without_notice_spends_its_own_budget(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    job = run(jobs.until, str(tmp_path / "go"), spot=True, retry=kinetic.Retry(infra=0, preemption=1))
    wait_running(job)
    machine = vm(cloud, job)
    (node,) = nodes(cloud, job)
    cloud.preempt(node)
    wait_until(lambda: not machine.alive, "its end")
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    assert verdicts(job)[0].cause == wire.PREEMPTION


# ---- F28 -----------------------------------------------------------------------------------------------------------


def test_f28_topology_variables_left_from_elsewhere_are_replaced_by_the_slices_own(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch, hosts_break: Break
) -> None:
    """Those that the submitter captured, and those that the machine's image has set."""
    hosts_break("os.environ.update(TPU_PROCESS_ADDRESSES='gone-3', TPU_WORKER_ID='8', MEGASCALE_SLICE_ID='4')")
    stale = {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:8476", "JAX_PROCESS_ID": "7", "JAX_NUM_PROCESSES": "9",
        "MEGASCALE_SLICE_ID": "3", "MEGASCALE_NUM_SLICES": "5", "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1:8080",
        "TPU_WORKER_HOSTNAMES": "gone-1,gone-2", "TPU_WORKER_ID": "9", "RANK": "7",
    }  # fmt: skip
    for name, value in stale.items():
        monkeypatch.setenv(name, value)
    asked = ["RANK", "TPU_*", "JAX_*", "MEGASCALE_*"]
    job = run(jobs.prints_topology, cloud=kinetic.TpuVm(num_slices=2), accelerator="v5e-8", capture_env_vars=asked)
    events = told(job)
    for host in range(2):
        found = json.loads(lines(events, host))
        assert (found["RANK"], found["JAX_PROCESS_ID"], found["JAX_NUM_PROCESSES"]) == (str(host), str(host), "2")
        assert (found["MEGASCALE_SLICE_ID"], found["MEGASCALE_NUM_SLICES"]) == (str(host), "2")
        assert not any("10.0.0.1" in value or "gone" in value for value in found.values())
        assert not {"TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_PROCESS_ADDRESSES"} & set(found)


# ---- a full disk ---------------------------------------------------------------------------------------------------


def test_a_host_whose_own_disk_is_full_when_its_function_returns_says_so_everywhere(
    cloud: Emulator, jobs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mounts = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if subprocess.run(mounts, capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    cloud.furnish({"disk": 32}, worker=2)
    job = run(jobs.until, str(tmp_path / "ended"), accelerator=FOUR_HOSTS, retry=NONE)
    wait_running(job)
    vm(cloud, job, 2).fill_disk()
    heard: list[Event] = []
    with ThreadPoolExecutor() as pool:
        awaited = pool.submit(job.follow, heard.append, timeout=WITHIN)
        (tmp_path / "ended").touch()
        waits = "host 2 waits for room on its disk at /"
        wait_until(lambda: f"waiting: {waits}" in "\n".join(changes(heard)), "a word of it", within=10.0)
        assert main(["status", job.job_id]) == codes.RUNNING
        assert f"RUNNING (waiting, {waits}" in capsys.readouterr().out
        assert main(["jobs"]) == 0
        assert f"{job.job_id}: {waits}" in capsys.readouterr().err
        main(["reap"])
        assert re.search(rf"{ZONES[0]} .* waits +{waits}", capsys.readouterr().out)
        vm(cloud, job, 2).clear_disk()
        awaited.result(WITHIN)
    assert [event.phase for event in heard if isinstance(event, Change)][-2:] == ["running", "succeeded"]
    assert job.result(timeout=WITHIN) == 1
    assert job.attempts() == 1
