"""Faults of the end: a delete that does not delete, nobody left to delete, and deletes that nobody here asked for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.errors import BackendError, JobCancelled, JobError, JobFailed, JobTimedOut
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions, follower
from kinetic_orchestration.jobs.watching.watchers import polling
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import Freed, JobStatus
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal
from tests.end_to_end.cloud.cases import nodes, run, vm
from tests.end_to_end.cloud.conftest import ZONES
from tests.end_to_end.cloud.faults.contract import check_the_reaper_leaves_alone
from tests.support.jobs import ALL_OF_THE_AGENT, WITHIN, changes, is_running, told, wait_running
from tests.support.waits import wait_until

# Each starts machines, and several processes on each.
pytestmark = [pytest.mark.slow, pytest.mark.turn, pytest.mark.timeout(600)]

DEADLINE_PROCESS = r"^kinetic-end"
LIMITS = {"provision": 60.0, "run": 60.0}
TICK = 1.0  # within which the store's clock is known: its answers tell whole seconds
THROTTLED = refusals.too_many_requests("emulated")

Leave = Callable[..., JobHandle[Any]]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "CLIENT_SECONDS", 0.2)
    monkeypatch.setattr(reaper, "AGAIN", 0.1)


@pytest.fixture
def leave(submitters: Any, cloud: Emulator, tmp_path: Path) -> Leave:
    """A job whose submitter was killed as soon as it had submitted, and whose deadline is `seconds` away."""

    def leave(function: str, *arguments: Any, seconds: float = 900.0, **limits: float) -> JobHandle[Any]:
        limits = {**LIMITS, **limits}
        into, allowance = tmp_path / "job", seconds - sum(limits.values())
        how = {"function": function, "arguments": list(arguments), "into": str(into), "allowance": allowance}
        assert submitters.do("leave", **how, **limits) == -signal.SIGKILL
        return kinetic.attach(into.read_text())

    return leave


@pytest.fixture
def leave_running(leave: Leave, cloud: Emulator, tmp_path: Path) -> Callable[[], JobHandle[Any]]:
    """The same, of which every process runs well before that deadline: a later one on a machine that is busy."""

    def leave_running() -> JobHandle[Any]:
        for seconds in (30.0, 90.0):
            began = time.monotonic()
            job = leave("until", str(tmp_path / "never"), seconds=seconds)
            wait_until(lambda job=job: is_running(job) or is_gone(cloud), "its beginning, or its deadline")
            if is_running(job) and time.monotonic() - began < seconds / 2:
                return job
            cloud.wait_until_empty(WITHIN)
        raise AssertionError("no job ran before its deadline")

    return leave_running


def reap(**changes: Any) -> list[reaper.Reaped]:
    store, backend, _ = place_of(deployment=changes.get("deployment"))
    return reaper.reap(store, backend, settings.load(**changes), patience=10.0)


def verdict_of(job: JobHandle[Any], attempt: int = 1) -> wire.Verdict | None:
    record = job._job.store.read(names.verdict(job.job_id, attempt))
    return None if record is None else wire.Verdict.decode(record.data)


def kill_agents(cloud: Emulator, job: JobHandle[Any], *more: str) -> None:
    """Guards, agents and programs of every host at once: what is left of it is the process of the deadline."""
    machine = vm(cloud, job)
    assert machine.kill("|".join((ALL_OF_THE_AGENT, *more)))


def is_gone(cloud: Emulator) -> bool:
    return not cloud.queued_resources() and not cloud.nodes()


# ---- a delete that does not delete -----------------------------------------------------------------------------


def test_f22_a_delete_that_answers_404_though_the_slice_is_there_ends_the_job_and_is_made_good_by_the_reaper(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """404 is what success looks like."""
    monkeypatch.setattr(follower, "RELEASE_PATIENCE", 3.0)
    cloud.fail("DeleteQueuedResource", 5, times=None)
    job = run(jobs.attempt)
    assert job.result(timeout=WITHIN) == 1
    assert actions.release(job._job, 1) is Freed.REFUSED
    assert not is_gone(cloud)
    vm(cloud, job).freeze()  # it asks again and again, and could be first
    cloud.clear_faults()
    monkeypatch.setattr(reaper, "SETTLED", -60.0)  # so old a verdict has to be
    assert {(found.why, found.result) for found in reap()} == {("its attempt has its verdict", reaper.REMOVED)}
    assert is_gone(cloud)


def test_f22_a_slice_that_stays_deleting_keeps_neither_its_job_nor_the_next_one(cloud: Emulator, jobs: Any) -> None:
    cloud.stuck_delete()
    job = run(jobs.attempt)
    assert job.result(timeout=WITHIN) == 1
    assert actions.release(job._job, 1) is Freed.UNDER_WAY
    assert [queued["state"]["state"] for queued in cloud.queued_resources()] == ["DELETING"]
    assert run(jobs.attempt).result(timeout=WITHIN) == 1
    cloud.unstick()
    cloud.wait_until_empty(WITHIN)
    assert actions.release(job._job, 1) is Freed.DONE


def test_f22_deletes_that_are_throttled_are_asked_for_again_by_the_hosts_themselves(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "RELEASE_PATIENCE", 3.0)
    cloud.fail("Delete*", refusal=THROTTLED, times=None)
    job = run(jobs.attempt)
    assert job.result(timeout=WITHIN) == 1
    assert actions.release(job._job, 1) is Freed.REFUSED
    assert not is_gone(cloud)
    cloud.clear_faults()
    cloud.wait_until_empty(WITHIN)


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(THROTTLED, id="429"),
        pytest.param(refusals.unavailable(), id="503"),
        pytest.param(refusals.permission("tpu.nodes.delete", "projects/emulated"), id="403"),
    ],
)
def test_f22_a_refused_delete_is_asked_for_again_by_whoever_waits_for_the_job_until_it_frees_the_slice(
    cloud: Emulator, jobs: Any, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts never get through. The value is told once the slice goes."""
    monkeypatch.setattr(retries, "CLIENT_SECONDS", 0.0)  # a 503 is not asked for again within the call
    cloud.fail("Delete*", refusal=refusal, times=None, caller="vm")
    cloud.fail("Delete*", refusal=refusal, times=2, caller="client")
    job = run(jobs.attempt)
    events = told(job)
    assert any("could not be freed" in line for line in changes(events))
    assert [queued["state"]["state"] for queued in cloud.queued_resources()] in ([], ["DELETING"])
    cloud.wait_until_empty(WITHIN)
    assert job.result(timeout=WITHIN) == 1


def test_f22_an_attempt_whose_delete_is_refused_does_not_keep_the_next_one_waiting(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    """It is asked for again while that runs."""
    job = run(jobs.until, str(tmp_path / "go"), retry=kinetic.Retry(infra=1))
    wait_running(job)
    cloud.fail("Delete*", refusal=THROTTLED, times=None, caller="vm")
    cloud.fail("Delete*", refusal=THROTTLED, times=2, caller="client")
    actions.close(job._job, 1, wire.INFRASTRUCTURE, "its hosts are thought dead")
    (first,) = nodes(cloud, job)
    with ThreadPoolExecutor(1) as pool:
        value = pool.submit(job.result, timeout=WITHIN)
        wait_running(job, 2)
        wait_until(lambda: first not in nodes(cloud, job), "the end of the first slice")
        cloud.clear_faults()
        (tmp_path / "go").touch()
        assert value.result() == 2


def test_f22_a_failed_job_whose_slice_cannot_be_freed_does_not_keep_its_identity_from_beginning_anew(
    cloud: Emulator, jobs: Any
) -> None:
    job = run(jobs.ends, "sys.exit(5)", key="k")
    cloud.fail("Delete*", refusal=THROTTLED, times=None)
    wait_until(lambda: verdict_of(job) is not None, "the verdict")
    again = run(jobs.attempt, key="k")
    assert again.job_id != job.job_id
    assert job.status() is JobStatus.RUNNING, "it is not held any more, so this shows nothing"
    cloud.clear_faults()
    assert again.result(timeout=WITHIN) == 1
    with pytest.raises(JobFailed):
        job.result(timeout=WITHIN)


# ---- the orchestrator is gone for ever -------------------------------------------------------------------------


def test_f23_the_slice_of_a_job_that_succeeds_deletes_itself(cloud: Emulator, leave: Leave) -> None:
    job = leave("attempt")
    cloud.wait_until_empty(WITHIN)
    assert cloud.count("DeleteQueuedResource", "client") == 0
    assert job.result(timeout=WITHIN) == 1


def test_f23_the_slice_of_a_job_that_fails_deletes_itself(cloud: Emulator, leave: Leave) -> None:
    job = leave("ends", "sys.exit(5)")
    cloud.wait_until_empty(WITHIN)
    assert cloud.count("DeleteQueuedResource", "client") == 0
    with pytest.raises(JobFailed):
        job.result(timeout=WITHIN)


def test_f23_the_slice_of_a_job_that_passes_its_limit_deletes_itself(
    cloud: Emulator, leave: Leave, tmp_path: Path
) -> None:
    job = leave("until", str(tmp_path / "never"), run=1.0)
    cloud.wait_until_empty(WITHIN)
    with pytest.raises(JobTimedOut, match="ran longer than its limit of 1 s"):
        job.result(timeout=WITHIN)


def test_f23_a_slice_deletes_itself_at_its_deadline_whatever_its_program_does(
    cloud: Emulator, leave: Leave, tmp_path: Path
) -> None:
    job = leave("until", str(tmp_path / "never"), seconds=20.0)  # it has spoken by then
    cloud.wait_until_empty(WITHIN)
    assert verdict_of(job) is None
    with pytest.raises(JobTimedOut, match="the attempt's deadline passed"):
        job.result(timeout=WITHIN)


# ---- all agents are dead ---------------------------------------------------------------------------------------


@pytest.mark.turn(4)
def test_f25_with_all_agents_dead_the_deadline_still_deletes(cloud: Emulator, leave_running: Leave) -> None:
    job = leave_running()
    kill_agents(cloud, job)
    cloud.wait_until_empty(WITHIN)
    assert verdict_of(job) is None
    assert cloud.count("DeleteQueuedResource", "client") == 0


@pytest.mark.turn(0)
def test_f25_with_the_deadlines_process_dead_too_the_reaper_deletes_once_the_deadline_has_passed(
    cloud: Emulator, leave_running: Leave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "EXPIRED", 0.0)
    job = leave_running()
    kill_agents(cloud, job, DEADLINE_PROCESS)
    assert reap() == []
    expires = float(cloud.nodes()[0]["labels"]["kinetic-expires"])
    wait_until(lambda: job._job.store.now() > expires + 1.0)
    assert nodes(cloud, job)
    assert [found.result for found in reap()] == [reaper.REMOVED]
    assert is_gone(cloud)
    assert verdict_of(job).cause == wire.DEADLINE  # type: ignore[union-attr]


def test_f25_of_a_slice_that_nobody_followed_and_whose_host_never_booted_the_reaper_says_since_when_it_cost(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.never_boots(0)
    job = run(jobs.attempt)
    wait_until(lambda: [node["state"] for node in cloud.nodes()] == ["READY"], "a slice")
    since = job._job.store.now()
    assert job.seconds() == 0.0, "nobody has seen it"
    monkeypatch.setattr(reaper, "EXPIRED", -1e9)
    wait_until(lambda: job._job.store.now() > since + 3.0, "seconds that cost")
    assert [found.result for found in reap()] == [reaper.REMOVED]
    charged = cloud.ledger.chip_seconds()  # of one chip
    assert charged > 3.0 - TICK
    assert charged - TICK < job.seconds() < charged + 10.0


def test_f25_somebody_who_follows_gives_silent_hosts_up_and_the_next_attempt_follows(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "SILENT_BEATS", 20.0)
    monkeypatch.setattr(lifecycle, "SETTLE_PATIENCE", 0.0)
    monkeypatch.setattr(polling, "UNREAD_POLL_SECONDS", 0.5)
    job = run(jobs.until, str(tmp_path / "go"))
    wait_running(job)
    kill_agents(cloud, job)
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdict_of(job)
    assert first is not None
    assert (first.kind, first.cause) == (wire.CLOSED, wire.INFRASTRUCTURE)
    assert "no host has given a sign of life" in first.reason


# ---- what the reaper leaves alone ------------------------------------------------------------------------------


def test_f26_the_reaper_deletes_nothing_that_lives_is_of_others_or_is_no_job_of_ours(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = f"projects/emulated/locations/{ZONES[1]}"
    spec = {
        "parent": parent,
        "nodeId": "by-hand",
        "node": {"acceleratorType": "v5litepod-1", "runtimeVersion": "v2-alpha-tpuv5-lite"},
    }
    by_hand = f"{parent}/queuedResources/by-hand"
    queued = {"parent": parent, "queuedResourceId": "by-hand", "queuedResource": {"tpu": {"nodeSpec": [spec]}}}
    check_the_reaper_leaves_alone(
        run, jobs, tmp_path, monkeypatch, make_by_hand=lambda: cloud.call("CreateQueuedResource", queued),
        there=lambda: {str(found["name"]) for found in cloud.queued_resources()}, reap=reap,
    )  # fmt: skip
    cloud.call("DeleteQueuedResource", {"name": by_hand, "force": True})


AHEAD = """
import time
right = time.time
time.time = lambda: right() + 600.0
from kinetic_orchestration.cli import main
raise SystemExit(main(["reap", "--json"]))
"""


def test_f27_the_reaper_goes_by_the_stores_clock_and_not_by_its_own(cloud: Emulator, jobs: Any) -> None:
    """A slice that has just failed is left to a possible follower: it is no older because this machine's clock is
    ahead."""
    for zone in ZONES:
        cloud.stockout(zone, how="fail")
    job = run(jobs.attempt)
    wait_until(lambda: [queued["state"]["state"] for queued in cloud.queued_resources()] == ["FAILED"], "the failure")
    done = subprocess.run([sys.executable, "-c", AHEAD], capture_output=True, text=True, timeout=WITHIN)
    assert done.returncode == 0, done.stderr
    assert [found for found in json.loads(done.stdout)["reaped"] if found["what"] == "placement"] == []
    assert len(cloud.queued_resources()) == 1
    job.cancel()


# ---- deletes that nobody here asked for ------------------------------------------------------------------------


def test_f31_whoever_deletes_the_node_of_a_running_job_ends_it(cloud: Emulator, jobs: Any, tmp_path: Path) -> None:
    job = run(jobs.until, str(tmp_path / "never"))
    wait_running(job)
    (node,) = nodes(cloud, job)
    cloud.call("DeleteNode", {"name": node})
    with pytest.raises(JobCancelled, match="somebody deleted"):
        job.result(timeout=WITHIN)
    assert job.status() is JobStatus.CANCELLED


def test_f31_a_queued_resource_that_is_deleted_under_a_running_job_is_replaced(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    """The API does not tell who did it, as it does for a node: it may have been a host that was thought dead."""
    job = run(jobs.until, str(tmp_path / "go"))
    wait_running(job)
    machine = vm(cloud, job)
    (queued,) = cloud.queued_resources()
    cloud.call("DeleteQueuedResource", {"name": queued["name"], "force": True})
    wait_until(lambda: not machine.alive, "its end")
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2
    first = verdict_of(job)
    assert first is not None
    assert first.cause == wire.INFRASTRUCTURE


# ---- nobody could delete ---------------------------------------------------------------------------------------


def test_f34_a_caller_who_could_not_delete_submits_nothing(cloud: Emulator, jobs: Any) -> None:
    cloud.deny("client", "tpu.nodes.delete")
    with pytest.raises(BackendError, match=r"(?s)nothing was submitted.*tpu\.nodes\.delete.*--role=roles/tpu\.admin"):
        run(jobs.attempt)
    assert cloud.count("CreateQueuedResource") == 0
    assert is_gone(cloud)


def test_f34_a_slice_that_could_not_delete_itself_runs_nothing_and_is_deleted_by_who_follows(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    cloud.deny("vm", "tpu.nodes.delete")
    cloud.deny("vm", "tpu.queuedResources.delete")
    job = run(jobs.leaves_mark, str(tmp_path / "ran"))
    told = r"lacks tpu\.nodes\.delete in emulated.*gcloud projects add-iam-policy-binding emulated .*roles/tpu\.admin"
    with pytest.raises(JobError, match=told) as raised:
        job.result(timeout=WITHIN)
    assert raised.value.cause == wire.CONFIGURATION
    assert not (tmp_path / "ran").exists()
    cloud.wait_until_empty(WITHIN)
    assert cloud.count("CreateQueuedResource") == 1


def test_f34_a_slice_that_could_not_delete_itself_and_that_nobody_follows_is_left_to_the_reaper(
    cloud: Emulator, leave: Leave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "SETTLED", -60.0)  # so old a verdict has to be
    cloud.deny("vm", "tpu.nodes.delete")
    cloud.deny("vm", "tpu.queuedResources.delete")
    job = leave("leaves_mark", str(tmp_path / "ran"))
    wait_until(lambda: verdict_of(job) is not None)
    assert not is_gone(cloud)
    assert [(found.why, found.result) for found in reap()] == [("its attempt has its verdict", reaper.REMOVED)]
    assert is_gone(cloud)
    assert not (tmp_path / "ran").exists()


# ---- the last layer --------------------------------------------------------------------------------------------


def test_a_request_whose_client_died_in_the_queue_expires_there_and_never_becomes_a_slice(
    cloud: Emulator, leave: Leave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "UNCLAIMED", 0.0)
    cloud.stockout(ZONES[0], "wait")
    leave("attempt", provision=2.0)
    (queued,) = cloud.queued_resources()
    assert queued["state"]["state"] in ("WAITING_FOR_RESOURCES", "FAILED")
    wait_until(lambda: cloud.queued_resources()[0]["state"]["state"] == "FAILED", "its end in the queue")
    cloud.restock(ZONES[0])
    assert [found.why for found in reap()] == ["FAILED, and nobody follows it"]
    assert is_gone(cloud)
    assert cloud.ledger.chip_seconds() == 0
