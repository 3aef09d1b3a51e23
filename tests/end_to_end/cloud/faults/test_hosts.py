"""Faults of hosts that are there: they do not boot, boot again, hang, fail, are taken away, come back too late."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.cli import codes, main
from kinetic_orchestration.errors import JobError, JobLost
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following import actions, held_time
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.plan.values import Change, Event, JobStatus, Output
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import tree
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import FOUR_HOSTS, nodes, run, vm
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.faults import CHANGED, PATIENT, break_hosts
from tests.support.jobs import ALL_OF_THE_AGENT, WITHIN, beats, changes, lines, placements, told, wait_running
from tests.support.waits import wait_until

# Each starts machines, and several processes on each.
pytestmark = [pytest.mark.slow, pytest.mark.turn, pytest.mark.timeout(600)]

NONE = kinetic.Retry(infra=0, preemption=0)
Break = Callable[[str], None]


@pytest.fixture
def hosts_break(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Hosts from now on run these lines before all else; they know the agent's modules."""

    return functools.partial(break_hosts, monkeypatch)


def verdicts(job: JobHandle[Any]) -> list[wire.Verdict]:
    return [attempt.verdict for attempt in job.history() if attempt.verdict is not None]


def names_of_slices(job: JobHandle[Any]) -> set[str]:
    return {placement["name"] for placement in placements(job)}


def notes(events: list[Any], host: int) -> str:
    return b"".join(
        event.text for event in events if isinstance(event, Output) and event.host == host and event.kind == "n"
    ).decode()


# ---- F13 -----------------------------------------------------------------------------------------------------------


@pytest.mark.turn(1)
def test_f13_a_host_that_never_boots_is_named_by_the_others_and_new_hosts_follow(
    cloud: Emulator, jobs: Any, hosts_break: Break
) -> None:
    hosts_break("self_delete.LATE, attempt_rules.SIBLING_GRACE = 0.3, 0.5")
    cloud.never_boots(2)
    job = run(jobs.attempt, accelerator=FOUR_HOSTS, limits=kinetic.Limits(provision=60.0))
    assert job.result(timeout=WITHIN) == 2
    first = verdicts(job)[0]
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, 2), first.reason
    assert first.reason == "host 2 did not start within 60 s"
    assert len(names_of_slices(job)) == 2


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


# ---- F14 -----------------------------------------------------------------------------------------------------------


def test_f14_a_host_that_reboots_in_mid_run_ends_the_attempt_and_the_next_one_finishes(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    job = run(jobs.until, str(tmp_path / "go"), accelerator=FOUR_HOSTS)
    wait_running(job)
    (node,) = nodes(cloud, job)
    machine = vm(cloud, job, 2)
    boots = machine.boots
    cloud.reboot(node, 2)
    wait_until(lambda: machine.boots > boots, "its new start")
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdicts(job)[0]
    assert (first.kind, first.cause, first.host) == (wire.ABORTED, wire.INFRASTRUCTURE, 2)
    assert first.reason == "this machine was restarted in mid-run (another boot id)"


# ---- F15 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", [2.0, -1.0], ids=["later", "earlier"])
def test_f15_the_failure_shown_is_that_of_the_host_that_failed_and_not_its_siblings(
    cloud: Emulator, jobs: Any, tmp_path: Path, pause: float, hosts_break: Break
) -> None:
    """Even when its siblings lose their connections, and end, before it has said so itself."""
    hosts_break("attempt_rules.ECHO = 30.0")
    job = run(jobs.echoes, str(tmp_path), 2, pause, accelerator=FOUR_HOSTS)
    with pytest.raises(ValueError, match="the learning rate is negative") as caught:
        job.result(timeout=WITHIN)
    assert "on host 2" in caught.value.__notes__[0]


# ---- F16 -----------------------------------------------------------------------------------------------------------


@pytest.mark.turn(2)
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


def test_f17_a_preemption_during_the_upload_of_the_result_does_not_lose_it(cloud: Emulator, jobs: Any) -> None:
    cloud.storage.delay("insert *result*", 4.0)
    job = run(jobs.attempt, spot=True)
    wait_until(lambda: [beat.exit for beat in beats(job).values()] == [0], "the program's end")
    (node,) = nodes(cloud, job)
    cloud.preempt(node, notice=30.0)
    assert job.result(timeout=WITHIN) == 1
    assert [verdict.kind for verdict in verdicts(job)] == [wire.COMMITTED]


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


# ---- F18 -----------------------------------------------------------------------------------------------------------


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
    (node,) = nodes(cloud, job)
    zombie.freeze()
    actions.close(job._job, 1, wire.INFRASTRUCTURE, "given up")
    awake.touch()
    zombie.thaw()
    wait_until(lambda: node not in nodes(cloud, job), "the deletion by the zombie itself")
    assert job.status() is not JobStatus.SUCCEEDED
    assert job.result(timeout=WITHIN) == 2
    assert [verdict.kind for verdict in verdicts(job)] == [wire.CLOSED, wire.COMMITTED]


# ---- F21 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["preempted", "cancelled"])
def test_f21_the_last_lines_on_sigterm_arrive(cloud: Emulator, jobs: Any, how: str, hosts_break: Break) -> None:
    hosts_break(PATIENT)
    job = run(jobs.has_last_words, retry=NONE, spot=True)
    wait_running(job)
    wait_until(lambda: "ready" in (job.logs() or ""), "its first line")
    if how == "preempted":
        (node,) = nodes(cloud, job)
        cloud.preempt(node, notice=60.0)
    else:
        actions.cancel(job._job, "enough", "a test")
    expected = "ready\n" + "".join(f"last word {number}\n" for number in range(100)) + "and the very last"
    assert lines(told(job)) == expected


# ---- F24 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "turns",
    [
        "self_delete.FIRST_TURN, self_delete.TURN = 1.0, 0.5",
        pytest.param("", marks=[pytest.mark.slow, pytest.mark.turn(4)]),
    ],
    ids=["soon", "in real time"],
)
def test_f24_host_0_loses_its_power_before_it_deletes_and_host_1_does(
    cloud: Emulator, jobs: Any, hosts_break: Break, turns: str
) -> None:
    hosts_break(f"""
        {turns}
        def end(at, real=self_delete.delete_own_slice):
            if at.host == 0:
                os.kill(-1, signal.SIGKILL)  # all of this machine
                os.kill(os.getpid(), signal.SIGKILL)
            real(at)
        self_delete.delete_own_slice = end
    """)
    job = run(jobs.attempt, accelerator=FOUR_HOSTS)
    wait_until(lambda: job.history()[-1].verdict, "the verdict")
    cloud.wait_until_empty(WITHIN)
    assert cloud.count("DeleteQueuedResource", "vm") > 0
    assert cloud.count("DeleteQueuedResource", "client") == 0
    assert job.result(timeout=WITHIN) == 1


# ---- F27 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [0.0, -600.0], ids=["the hosts' clocks", "the store's clock, too"])
def test_f27_clocks_that_are_off_by_ten_minutes_change_nothing(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: float
) -> None:
    """Ages and deadlines are the store's: nobody is taken for dead, stuck or late, and all lines lie in one time."""
    monkeypatch.setattr(held_time, "DEADLINE_ALLOWANCE", 0.0)
    cloud.storage.skew = store
    for worker in range(3):
        cloud.furnish({"clock_skew": (worker - 1) * 600.0}, worker=worker)
    job = run(
        jobs.until, str(tmp_path / "go"), accelerator=FOUR_HOSTS, retry=NONE,
        limits=kinetic.Limits(provision=60.0, run=60.0, stall=30.0),
    )  # fmt: skip
    began = job._job.store.now()
    wait_running(job)
    (tmp_path / "go").touch()
    events = told(job)
    assert job.result(timeout=WITHIN) == 1
    times = {event.host: event.time for event in events if isinstance(event, Output)}
    assert len(times) == 4
    assert all(began - 30 < moment < job._job.store.now() + 30 for moment in times.values()), (began, times)


@pytest.mark.turn(3)
def test_f27_the_deadline_passes_by_the_stores_clock_on_a_host_that_is_ten_minutes_behind(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no agent left there, and nobody who looks."""
    monkeypatch.setattr(held_time, "DEADLINE_ALLOWANCE", 0.0)
    cloud.furnish({"clock_skew": -600.0})
    job = run(jobs.until, str(tmp_path / "never"), limits=kinetic.Limits(provision=30.0, run=30.0))
    wait_running(job)
    assert vm(cloud, job).kill(ALL_OF_THE_AGENT)
    cloud.wait_until_empty(WITHIN)
    intent = job.history()[0].began
    assert intent is not None
    assert 59.0 < job._job.store.now() - intent < WITHIN  # and not 600
    with pytest.raises(JobError, match="deadline"):
        job.result(timeout=WITHIN)


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


# ---- F29 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", list(CHANGED))
def test_f29_what_was_changed_in_the_bucket_is_refused_on_the_host_and_not_tried_again(
    cloud: Emulator, jobs: Any, tmp_path: Path, what: str
) -> None:
    """It is named, nothing of it runs, and what anybody may send again is removed, so that the next job works."""
    cloud.stockout(ZONES[0], "wait")
    marks = tmp_path / "ran"
    job = run(jobs.contents, str(marks))
    store, spec = job._job.store, job._job.spec()
    if what == "payload":
        name = names.blob(spec["staged"]["payload"]["digest"])
    elif what == "tree":
        manifest = store.read(names.tree(spec["staged"]["tree"]))
        assert manifest is not None
        name = names.blob(tree.packs_of(json.loads(manifest.data))[0].id)
    elif what == "agent":
        name = names.blob(spec["staged"]["agent"])
    else:
        name = names.spec(job.job_id)
    record = store.read(name)
    assert record is not None
    data = bytearray(record.data)
    data[len(data) // 2] ^= 1
    store.put(name, bytes(data))
    cloud.restock(ZONES[0])
    with pytest.raises(JobError, match=CHANGED[what]) as caught:
        job.result(timeout=WITHIN)
    assert caught.value.cause == wire.CONFIGURATION
    assert job.attempts() == 1
    if what != "spec":
        assert store.read(name) is None
        assert run(jobs.attempt).result(timeout=WITHIN) == 1


# ---- F33 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("says_so", [False, True], ids=["raised", "in the log"])
def test_f33_a_device_that_is_busy_is_the_machines_fault_and_new_hosts_follow(
    cloud: Emulator, jobs: Any, says_so: bool
) -> None:
    job = run(jobs.driver_is_busy_at_first, says_so)
    events = told(job)
    assert job.result(timeout=WITHIN) == 2
    assert verdicts(job)[0].cause == wire.INFRASTRUCTURE
    assert len(names_of_slices(job)) == 2
    assert any("the accelerator's driver failed" in line for line in changes(events))


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
