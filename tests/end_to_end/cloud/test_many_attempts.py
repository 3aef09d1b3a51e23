"""A job after days without capacity: hundreds of attempts that never had hosts, and what coming back to it costs."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.cli import main
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.watching.watchers.registry import watcher_of
from kinetic_orchestration.plan.values import PRESENT, Event, JobStatus
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import nodes, run
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.jobs import WITHIN, changes, lines, told, wait_running
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # each starts machines

MANY = 300
# To the store, and to the Cloud TPU API. Each is the same after three attempts as after three hundred.
TO_COME_BACK, OF_THE_API = 60, 30
TO_TELL_THE_COST = 12


class Asked:
    """Requests of this process since it was made."""

    def __init__(self, cloud: Emulator) -> None:
        self._cloud = cloud
        cloud.storage.forget()
        self._before = len(cloud.requests)

    @property
    def of_the_store(self) -> int:
        return sum("emulator-token" not in call.caller for call in self._cloud.storage.calls)

    @property
    def of_the_api(self) -> int:
        return sum(caller.kind == "client" for _, caller in self._cloud.requests[self._before :])


def refuse(cloud: Emulator, job: JobHandle[Any], *, until: int = MANY) -> None:
    """Attempts of the job that got no hosts anywhere, as followers would have made and ended them."""
    for attempt in range(job._newest(), until + 1):
        if job._job.store.read(names.intent(job.job_id, attempt)) is None:
            actions.intend(job._job, attempt)
        actions.close(job._job, attempt, wire.STOCKOUT, "There is no more capacity in the zone")
    for zone in ZONES:
        cloud.restock(zone)
    assert kinetic.attach(job.job_id)._newest() == until


def refused(cloud: Emulator, function: Any, *arguments: Any, **options: Any) -> JobHandle[Any]:
    """A job that has not had hosts yet."""
    for zone in ZONES:
        cloud.stockout(zone, "refuse")
    job = run(function, *arguments, **options)
    refuse(cloud, job)
    return job


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LONGEST_WAIT", 0.2)


@pytest.mark.turn(3)
def test_coming_back_to_a_job_costs_the_same_however_often_it_was_refused(cloud: Emulator, jobs: Any) -> None:
    job_id = refused(cloud, jobs.attempt).job_id
    asked = Asked(cloud)
    job = kinetic.attach(job_id)
    assert job.peek().attempt == MANY + 1
    assert job.status() is JobStatus.PENDING
    assert asked.of_the_store <= TO_COME_BACK
    assert asked.of_the_api <= OF_THE_API
    assert job.result(timeout=WITHIN) == 1
    asked = Asked(cloud)
    again = kinetic.attach(job_id)
    assert again.status() is JobStatus.SUCCEEDED
    assert again.result(timeout=WITHIN) == 1
    assert asked.of_the_store <= TO_COME_BACK
    assert asked.of_the_api <= OF_THE_API
    outcome = again.peek().outcome
    assert outcome is not None
    assert (outcome.attempt, outcome.attempts) == (MANY + 1, 1)


@pytest.mark.turn(4)
def test_what_a_job_cost_is_told_by_those_attempts_that_had_hosts(cloud: Emulator, jobs: Any) -> None:
    job = refused(cloud, jobs.attempt)
    assert job.result(timeout=WITHIN) == 1
    wait_until(lambda: watcher_of(job._job.store, job._job.backend).idle, "the end of its watcher's looks")
    asked = Asked(cloud)
    cost = job.cost()
    assert asked.of_the_store <= TO_TELL_THE_COST
    assert asked.of_the_api == 0
    assert cost.attempts == 1
    assert cost.queued_seconds > 0


@pytest.mark.turn(5)
def test_an_attempt_that_had_hosts_long_ago_is_still_read_counted_and_charged_for(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    """Its lines, its place among the budgets, and its cost; and nothing is read of all that came in between."""
    job = run(jobs.until, str(tmp_path / "go"), retry=kinetic.Retry(preemption=1))
    wait_until(lambda: "running" in (job.logs() or ""), "its first line")
    for zone in ZONES:
        cloud.stockout(zone, "refuse")
    cloud.preempt(nodes(cloud, job)[0])
    wait_until(lambda: job.status() and job._newest() > 1, "the next attempt")
    refuse(cloud, job)
    (tmp_path / "go").touch()
    asked = Asked(cloud)
    events = told(kinetic.attach(job.job_id))
    assert lines(events) == "running\nrunning\n"
    assert asked.of_the_store < MANY  # it was waited for, too
    assert job.result(timeout=WITHIN) == 2
    asked = Asked(cloud)
    assert job.cost().attempts == job.attempts() == 2
    assert (kinetic.attach(job.job_id).logs() or "").count("running") == 2
    assert asked.of_the_store <= 4 * TO_TELL_THE_COST  # a cost, a count, and lines of a job that was attached to
    assert len(job.history()) == MANY + 1
    assert [attempt.number for attempt in job.history(all=False)] == [1, MANY + 1]
    outcome = job.peek().outcome
    assert outcome is not None
    assert outcome.attempts == 2


def test_a_summary_that_somebody_changed_is_refused(cloud: Emulator, jobs: Any) -> None:
    """It says how many failures a job has had: no number of them may be left out."""
    for zone in ZONES:
        cloud.stockout(zone, "refuse")
    job = run(jobs.attempt)
    refuse(cloud, job, until=max(3, job._newest()))
    store, name, before = job._job.store, names.intent(job.job_id, 3), job.cost()
    record = store.read(name)
    assert record is not None
    fields = wire.decode(record.data)
    store.put(name, wire.encode({**fields, "before": {"spent": [0, 0, 0, 0], "ran": []}}))
    assert kinetic.attach(job.job_id).cost().attempts == before.attempts  # it is not believed
    store.put(name, record.data)
    job.cancel()


# ---- where an attempt is ---------------------------------------------------------------------------------------


def test_status_says_where_the_slice_is_asked_for_and_how_often_there_was_none(
    cloud: Emulator, jobs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a machine whose own jobs would run on it."""
    cloud.stockout(ZONES[0], "refuse")
    cloud.stockout(ZONES[1], "wait")
    job = run(jobs.attempt)
    wait_until(lambda: job.status() and job.peek().said.startswith("WAITING_FOR_RESOURCES"), "a queue")
    heard: list[Event] = []
    Follower(job._job).step(heard.append)
    assert f"queued: WAITING_FOR_RESOURCES in {ZONES[1]}" in changes(heard)
    peek = job.peek()
    (queued,) = cloud.queued_resources()
    assert (peek.attempt, peek.attempts, peek.zone) == (2, 1, ZONES[1])
    assert peek.resource == str(queued["name"]).rsplit("/", 1)[1]
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    capsys.readouterr()
    main(["status", job.job_id])
    place = f"{ZONES[1]}, {peek.resource}, after 1 request that got no slice: WAITING_FOR_RESOURCES in {ZONES[1]}"
    shown = " ".join(capsys.readouterr().out.split())
    assert place in shown
    assert "attempt 2" not in shown
    main(["status", job.job_id, "--json"])
    told_json = json.loads(capsys.readouterr().out)
    assert (told_json["zone"], told_json["resource"], told_json["attempts"]) == (ZONES[1], peek.resource, 1)
    job.cancel()


def test_status_says_in_the_pause_between_two_rounds_what_was_answered_and_when_it_goes_on(
    cloud: Emulator, jobs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_WAIT", "LONGEST_WAIT"):
        monkeypatch.setattr(places, name, 240.0)
    for zone in ZONES:
        cloud.stockout(zone, "refuse")
    job = run(jobs.attempt)
    wait_until(lambda: job.status() and job.peek().attempt > len(ZONES), "a whole round was refused")
    capsys.readouterr()
    main(["status", job.job_id])
    shown = " ".join(capsys.readouterr().out.split())
    refused = "after 3 requests that got no slice: the next request follows in"
    found = re.search(rf"{refused} (\d+) s; the last answer was: .*There is no more capacity", shown)
    assert found is not None, shown
    assert 60 < int(found[1]) <= 300
    job.cancel()


def test_jobs_of_several_zones_are_observed_by_one_watcher_each_where_it_is(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One listing of what all hosts say, and in each zone one of what is there."""
    running = []
    for zone in ZONES[:2]:
        monkeypatch.setenv("KINETIC_ZONES", zone)
        running.append(run(jobs.until, str(tmp_path / "go")))
    with ThreadPoolExecutor(2) as pool:
        values = [pool.submit(job.result, timeout=WITHIN) for job in running]
        for job in running:
            wait_running(job)
        watcher = watcher_of(running[0]._job.store, running[0]._job.backend)
        assert watcher is watcher_of(running[1]._job.store, running[1]._job.backend)

        def poll() -> dict[str, str]:
            seen = watcher.poll.observations if watcher.poll is not None else {}
            return {job: observation.state for job, observation in seen.items()}

        wait_until(lambda: poll() == {job.job_id: PRESENT for job in running}, "a poll of both")
        (tmp_path / "go").touch()
        assert [value.result() for value in values] == [1, 1]
