"""Faults of the end: a delete that does not delete, nobody left to delete, and what must not be deleted."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.errors import BackendError, JobError, JobFailed
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions, follower
from kinetic_orchestration.jobs.watching import usage
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import Freed
from kinetic_orchestration.platforms.google.compute import request
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules import compute_refusals
from kinetic_orchestration.testing.model.compute.service import Request
from tests.end_to_end.cloud.faults.contract import check_the_reaper_leaves_alone
from tests.end_to_end.compute.conftest import ZONES, Break, instances, made, run, vm
from tests.support.instances import body
from tests.support.jobs import ALL_OF_THE_AGENT, WITHIN, changes, is_running, told, verdicts
from tests.support.waits import wait_until

pytestmark = [pytest.mark.timeout(600)]

DEADLINE_PROCESS = r"^kinetic-end"
THROTTLED = compute_refusals.rate_limit()

Leave = Callable[..., JobHandle[Any]]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "AGAIN", 0.1)


@pytest.fixture
def leave(submitters: Any, cloud: Emulator, tmp_path: Path) -> Leave:
    """A job whose submitter was killed as soon as it had submitted, and whose deadline is `seconds` away."""

    def leave(function: str, *arguments: Any, seconds: float = 900.0) -> JobHandle[Any]:
        into, limits = tmp_path / "job", {"provision": 60.0, "run": 60.0}
        how = {"function": function, "arguments": list(arguments), "into": str(into), "accelerator": "l4"}
        ended = submitters.do("leave", **how, **limits, allowance=seconds - sum(limits.values()))
        assert ended == -signal.SIGKILL
        return kinetic.attach(into.read_text())

    return leave


def reap(**changes: Any) -> list[reaper.Reaped]:
    store, backend, _ = place_of(deployment=changes.get("deployment"))
    return reaper.reap(store, backend, settings.load(**changes), patience=10.0)


@pytest.mark.slow
@pytest.mark.turn
def test_an_attempt_that_is_over_is_charged_for_no_longer_though_the_next_one_is_freed_late(
    cloud: Emulator, jobs: Any, hosts_break: Break, tmp_path: Path
) -> None:
    """Whoever goes on from a cursor, as a sensor does at each tick, asks for the release of the attempt before, too."""
    hosts_break("self_delete.delete_own_slice = lambda at, **_: time.sleep(600)")
    cloud.timing = cloud.timing._replace(shutdown=0.5)  # for which such a host is waited for in the end
    job = run(jobs.until, str(tmp_path / "end"), spot=True)
    store, first = job._job.store, follower.Follower(job._job)
    wait_until(lambda: first.step() is None and is_running(job), "the first attempt runs", within=WITHIN)
    cloud.compute.preempt(*instances(cloud, job), notice=0.0)
    wait_until(lambda: first.step() is None and first.cursor.attempt == 2, "the second one begins", within=WITHIN)
    wait_until(lambda: first.step() is None and is_running(job, 2), "it runs", within=WITHIN)
    before = usage.stays(store, job.job_id)[0]
    (tmp_path / "end").touch()  # and nobody follows it
    ended = names.verdict(job.job_id, 2)
    wait_until(lambda: store.read(ended) is not None, "it ends", within=WITHIN)
    wait_until(lambda: store.now() - store.read(ended).updated > 2 * follower.LATE, "a while goes by", within=WITHIN)
    later = follower.Follower(job._job, first.cursor)
    wait_until(lambda: later.step() is not None, "its hosts are freed", within=WITHIN)
    assert store.read(names.freed(job.job_id, 2)) is not None
    assert usage.stays(store, job.job_id)[0] == before and job.result(timeout=WITHIN) == 2


# ---- a delete that does not delete


@pytest.mark.slow
@pytest.mark.turn
def test_f22_a_delete_that_answers_404_though_the_vm_is_there_ends_the_job_and_is_made_good_by_the_reaper(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """404 is what success looks like."""
    monkeypatch.setattr(follower, "RELEASE_PATIENCE", 3.0)
    cloud.fail("instances.delete", 5, times=None)
    job = run(jobs.attempt)
    assert job.result(timeout=WITHIN) == 1
    assert actions.release(job._job, 1) is Freed.REFUSED
    vm(cloud, job).freeze()  # it asks again and again, and could be first
    cloud.clear_faults()
    monkeypatch.setattr(reaper, "SETTLED", -60.0)  # so old a verdict has to be
    assert {found.why for found in reap()} == {"its attempt has its verdict"}
    cloud.wait_until(lambda: not cloud.compute.instances, WITHIN)


@pytest.mark.slow
@pytest.mark.turn
def test_f22_a_vm_that_stays_stopping_keeps_neither_its_job_nor_the_next_one(cloud: Emulator, jobs: Any) -> None:
    cloud.compute.stuck_delete()
    job = run(jobs.attempt)
    assert job.result(timeout=WITHIN) == 1
    assert actions.release(job._job, 1) is Freed.UNDER_WAY
    assert run(jobs.attempt).result(timeout=WITHIN) == 1
    cloud.compute.unstick()
    cloud.wait_until_empty(WITHIN)
    assert actions.release(job._job, 1) is Freed.DONE


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(THROTTLED, id="a rate"),
        pytest.param(compute_refusals.unavailable(ZONES[0]), id="503"),
        pytest.param(compute_refusals.permission("compute.instances.delete", "projects/emulated"), id="403"),
        pytest.param(compute_refusals.not_ready("projects/emulated"), id="not ready"),
    ],
)
def test_f22_a_refused_delete_is_asked_for_again_by_whoever_waits_for_the_job_until_it_frees_the_vm(
    cloud: Emulator, jobs: Any, refusal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The VM itself never gets through. The value is told once the VM goes."""
    monkeypatch.setattr(retries, "PAUSES", ())  # a 503 is not asked for again within the call
    cloud.fail("instances.delete", refusal=refusal, times=None, caller="vm")
    cloud.fail("instances.delete", refusal=refusal, times=2, caller="client")
    job = run(jobs.attempt)
    events = told(job)
    assert any("could not be freed" in line for line in changes(events))
    cloud.wait_until_empty(WITHIN)
    assert job.result(timeout=WITHIN) == 1


# ---- the orchestrator is gone for ever, or all agents are dead


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("ends", ["sys.exit(5)", ""], ids=["fails", "succeeds"])
def test_f23_the_vm_of_a_job_that_ends_deletes_itself(cloud: Emulator, leave: Leave, ends: str) -> None:
    job = leave("ends", ends) if ends else leave("attempt")
    cloud.wait_until_empty(WITHIN)
    assert cloud.count("instances.delete", "client") == 0
    if ends:
        with pytest.raises(JobFailed):
            job.result(timeout=WITHIN)
    else:
        assert job.result(timeout=WITHIN) == 1


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("dead", [(), (ALL_OF_THE_AGENT,)], ids=["its program runs on", "its agent is dead"])
def test_f23_f25_a_vm_deletes_itself_at_its_deadline_whatever_is_left_of_it(
    cloud: Emulator, leave: Leave, tmp_path: Path, dead: tuple[str, ...]
) -> None:
    job = leave("until", str(tmp_path / "never"), seconds=25.0)
    wait_until(lambda: is_running(job), "its program", within=25.0)
    for which in dead:
        assert vm(cloud, job).kill(which)
    cloud.wait_until_empty(WITHIN)
    assert cloud.count("instances.delete", "client") == 0
    assert cloud.count("instances.delete", "vm") > 0
    with pytest.raises(JobError, match="deadline"):
        job.result(timeout=WITHIN)


@pytest.mark.slow
@pytest.mark.turn
def test_f25_with_the_deadlines_process_dead_too_the_reaper_deletes_once_the_deadline_has_passed(
    cloud: Emulator, leave: Leave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "EXPIRED", 0.0)
    job = leave("until", str(tmp_path / "never"), seconds=25.0)
    wait_until(lambda: is_running(job), "its program", within=25.0)
    assert vm(cloud, job).kill(f"{ALL_OF_THE_AGENT}|{DEADLINE_PROCESS}")
    assert reap() == []
    (name,) = instances(cloud, job)
    expires = float(cloud.compute.chosen(name).labels["kinetic-expires"])
    wait_until(lambda: job._job.store.now() > expires + 1.0, within=60)
    assert [found.result for found in reap()] == [reaper.REMOVED]
    assert not cloud.compute.instances
    assert [verdict.cause for verdict in verdicts(job)] == [wire.DEADLINE]


@pytest.mark.slow
@pytest.mark.turn
def test_f25_with_all_of_us_dead_google_deletes_the_vm_and_its_disk(
    cloud: Emulator, leave: Leave, tmp_path: Path
) -> None:
    """The layer below all of ours: `maxRunDuration`, with DELETE."""
    pace = 50.0
    cloud.compute.speed_up(pace)
    job = leave("until", str(tmp_path / "go"), seconds=60.0)
    wait_until(lambda: is_running(job), "its program", within=30.0)
    assert vm(cloud, job).kill(f"{ALL_OF_THE_AGENT}|{DEADLINE_PROCESS}")
    cloud.wait_until_empty((60.0 + request.SPARE) / pace + 30.0)
    assert cloud.count("instances.delete") == 0
    cloud.compute.speed_up(1.0)
    (tmp_path / "go").touch()
    assert job.result(timeout=WITHIN) == 2  # its deadline has not passed, at this pace


# ---- what the reaper leaves alone


@pytest.mark.slow
@pytest.mark.turn
def test_f26_the_reaper_deletes_nothing_that_lives_is_of_others_or_is_no_job_of_ours(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Request("emulated", ZONES[1], body=body("by-hand", zone=ZONES[1]))
    check_the_reaper_leaves_alone(
        run, jobs, tmp_path, monkeypatch, make_by_hand=lambda: cloud.compute.call("instances.insert", asked),
        there=lambda: set(cloud.compute.instances), reap=reap,
    )  # fmt: skip
    cloud.compute.sweep()


# ---- nobody could delete


def test_f34_a_caller_who_could_not_delete_submits_nothing(cloud: Emulator, jobs: Any) -> None:
    cloud.deny("client", "compute.instances.delete")
    told = r"(?s)nothing was submitted.*compute\.instances\.delete.*--role=roles/compute\.instanceAdmin\.v1"
    with pytest.raises(BackendError, match=told):
        run(jobs.attempt)
    assert cloud.count("instances.insert") == 0


@pytest.mark.slow
@pytest.mark.turn
def test_f34_a_vm_that_could_not_delete_itself_runs_nothing_and_is_deleted_by_who_follows(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    cloud.deny("vm", "compute.instances.delete")
    job = run(jobs.leaves_mark, str(tmp_path / "ran"))
    with pytest.raises(JobError, match=r"lacks compute\.instances\.delete on its own VM") as raised:
        job.result(timeout=WITHIN)
    assert raised.value.cause == wire.CONFIGURATION
    assert not (tmp_path / "ran").exists()
    cloud.wait_until_empty(WITHIN)
    assert made(cloud) == 1


@pytest.mark.slow
@pytest.mark.turn
def test_f34_a_vm_that_could_not_delete_itself_and_that_nobody_follows_is_left_to_the_reaper(
    cloud: Emulator, leave: Leave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "SETTLED", -60.0)  # so old a verdict has to be
    cloud.deny("vm", "compute.instances.delete")
    job = leave("leaves_mark", str(tmp_path / "ran"))
    wait_until(lambda: verdicts(job), "the verdict", within=60)
    assert cloud.compute.instances
    assert [found.why for found in reap()] == ["its attempt has its verdict"]
    cloud.wait_until(lambda: not cloud.compute.instances, WITHIN)
    assert not (tmp_path / "ran").exists()
