"""Faults of the cloud before a slice exists: no capacity, no quota, rates, errors of its own, and strange states."""

from __future__ import annotations

from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobError, JobTimedOut
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import run, vm
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.jobs import changes, placements, told, wait_running
from tests.support.waits import wait_until


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "FIRST_WAIT", 0.5)
    monkeypatch.setattr(places, "PAUSE", 0.2)
    monkeypatch.setattr(retries, "THROTTLE", 0.3)


def where(job: Any) -> list[str]:
    return [placement["zone"] for placement in placements(job)]


@pytest.mark.parametrize("how", ["refuse", "fail"])
def test_f05_two_zones_without_capacity_and_the_third_has_some(cloud: Emulator, jobs: Any, how: Any) -> None:
    """Nothing is left in the first two, nothing is spent, and people see one attempt."""
    for zone in ZONES[:2]:
        cloud.stockout(zone, how)
    job = run(jobs.until, "/")
    events = told(job)
    assert job.result(timeout=60) == 1
    assert where(job) == list(ZONES)
    assert any("no more capacity" in line for line in changes(events))
    assert not any("attempt" in line for line in changes(events))
    assert {str(queued["name"]).split("/")[3] for queued in cloud.queued_resources()} <= {ZONES[2]}


@pytest.mark.slow
@pytest.mark.turn(5)
def test_f05_when_no_zone_has_capacity_all_are_asked_again_until_the_limit(cloud: Emulator, jobs: Any) -> None:
    for zone in ZONES:
        cloud.stockout(zone, "refuse")
    for seconds in (8.0, 40.0):  # a busy machine may need longer for them all
        job = run(jobs.attempt, limits=kinetic.Limits(provision=seconds))
        with pytest.raises(JobTimedOut, match=f"no host started within {seconds:g} s"):
            job.result(timeout=120)
        if len(where(job)) > len(ZONES):
            return
    raise AssertionError(where(job))


@pytest.mark.slow
@pytest.mark.turn(0)
def test_f05_capacity_that_comes_back_is_found(cloud: Emulator, jobs: Any) -> None:
    for zone in ZONES:
        cloud.stockout(zone, "refuse", times=2)
    job = run(jobs.fence)
    assert job.result(timeout=60) == (1, len(where(job))), "one attempt, whose fence is that of its records"
    assert job.history()[-1].verdict is not None


def test_f06_a_quota_of_0_drops_the_zone(cloud: Emulator, jobs: Any) -> None:
    cloud.quota(ZONES[0], 0)
    for zone in ZONES[1:]:
        cloud.stockout(zone, "refuse", times=1)
    job = run(jobs.attempt)
    assert job.result(timeout=60)
    assert where(job).count(ZONES[0]) == 1
    assert where(job)[0] == ZONES[0]


def test_f06_a_quota_of_0_everywhere_ends_the_job_with_the_quotas_name(cloud: Emulator, jobs: Any) -> None:
    for zone in ZONES:
        cloud.quota(zone, 0)
    job = run(jobs.attempt)
    with pytest.raises(JobError, match=r"(?s)no place is left to try.*[Ll]imit:? 0"):
        job.result(timeout=60)


def test_f06_a_zone_that_the_project_may_not_even_look_at_is_left_for_the_next(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ZONES", f"us-east5-x,{ZONES[0]}")
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert where(job) == ["us-east5-x", ZONES[0]]


@pytest.mark.slow
def test_f06_a_rate_limit_waits_and_never_changes_the_zone(cloud: Emulator, jobs: Any) -> None:
    cloud.fail("CreateQueuedResource", refusal=_rate_limited(), times=2)
    job = run(jobs.attempt)
    events = told(job)
    assert job.result(timeout=60) == 1
    assert where(job) == [ZONES[0]]
    assert any("waiting" in line for line in changes(events))


@pytest.mark.slow
def test_f07_an_internal_error_twice_and_then_fine_stays_in_its_zone(cloud: Emulator, jobs: Any) -> None:
    cloud.fail("CreateQueuedResource", 13, times=2)
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert set(where(job)) == {ZONES[0]}
    assert job.history()[-1].verdict is not None


@pytest.mark.slow
def test_f07_an_internal_error_that_stays_moves_to_the_next_zone(cloud: Emulator, jobs: Any) -> None:
    cloud.fail("CreateQueuedResource", 13, times=None, zone=ZONES[0])
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert where(job) == [ZONES[0]] * 3 + [ZONES[1]]


def test_f08_accepted_then_waiting_then_a_state_that_nobody_knows(cloud: Emulator, jobs: Any) -> None:
    cloud.stockout(ZONES[0], "wait")
    job = run(jobs.attempt)
    wait_until(lambda: any(queued["state"]["state"] == "WAITING_FOR_RESOURCES" for queued in cloud.queued_resources()))
    assert job.status() is JobStatus.PENDING
    (queued,) = cloud.queued_resources()
    cloud.show(str(queued["name"]), 77)
    assert job.status() is JobStatus.PENDING
    cloud.show(str(queued["name"]), "WAITING_FOR_RESOURCES")
    cloud.restock(ZONES[0])
    assert job.result(timeout=60) == 1


def test_f09_a_request_that_expires_in_its_queue_is_made_in_the_next_zone(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_ZONE_PATIENCE", "1s")
    cloud.stockout(ZONES[0], "wait")
    job = run(jobs.attempt)
    assert job.result(timeout=60) == 1
    assert where(job) == list(ZONES[:2])


def test_f10_suspended_by_the_service_is_a_preemption_and_the_next_attempt_follows(
    cloud: Emulator, jobs: Any, tmp_path: Any
) -> None:
    cloud.slow("GetNode", 0.0)
    job = run(jobs.until, str(tmp_path / "go"), spot=True)
    _wait_for_a_node(cloud, job)
    machine = vm(cloud, job)
    (queued,) = cloud.queued_resources()
    cloud.suspend(str(queued["name"]), by="SERVICE")
    wait_until(lambda: not machine.alive, "its end")
    (tmp_path / "go").touch()
    assert job.result(timeout=60) == 2
    verdict = job.history()[0].verdict
    assert verdict is not None
    assert verdict.cause == "preemption"


def test_f10_suspended_by_the_user_is_a_cancel(cloud: Emulator, jobs: Any, tmp_path: Any) -> None:
    job = run(jobs.until, str(tmp_path / "never"))
    _wait_for_a_node(cloud, job)
    (queued,) = cloud.queued_resources()
    cloud.suspend(str(queued["name"]), by="USER")
    with pytest.raises(JobError):
        job.result(timeout=60)
    assert job.status() is JobStatus.CANCELLED


@pytest.mark.parametrize("shows", ["DELETING", "UNKNOWN", "gone"])
def test_f11_a_node_that_goes_otherwise_than_preempted_is_followed_by_new_hosts(
    cloud: Emulator, jobs: Any, tmp_path: Any, shows: Any
) -> None:
    job = run(jobs.until, str(tmp_path / "go"), spot=True)
    _wait_for_a_node(cloud, job)
    machine = vm(cloud, job)
    cloud.preempt(_node(cloud), notice=None, shows=shows)
    wait_until(lambda: not machine.alive, "its end")
    (tmp_path / "go").touch()
    assert job.result(timeout=90) == 2


def test_f12_an_operation_that_never_ends_keeps_nobody_from_working(cloud: Emulator, jobs: Any) -> None:
    cloud.stuck_operations("Create")
    assert run(jobs.attempt).result(timeout=60) == 1


def _rate_limited() -> Any:
    from kinetic_orchestration.testing.api_rules import refusals

    return refusals.create_rate("emulated", 90)


def _node(cloud: Emulator) -> str:
    (node,) = cloud.nodes()
    return str(node["name"])


def _wait_for_a_node(cloud: Emulator, job: Any) -> None:
    wait_running(job)
    assert cloud.nodes()
