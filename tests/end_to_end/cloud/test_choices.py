"""A job with a choice: each attempt has one candidate and one place, and all that is told and charged is of that one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.capacity import records
from kinetic_orchestration.capacity.facts import GOT, PREEMPTED_YOUNG, STOCKOUT, FactKey
from kinetic_orchestration.plan.values import Change, Event
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.schema import Wrong
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import nodes
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.collector import collecting, texts
from tests.support.jobs import placements, wait_running
from tests.support.waits import wait_until


@pytest.fixture(autouse=True)
def _hurry(cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "FIRST_WAIT", 0.5)
    monkeypatch.setattr(places, "PAUSE", 0.2)
    monkeypatch.delenv("KINETIC_BACKEND", raising=False)


def tpu(name: str, zone: str, capacity: str = "on-demand") -> kinetic.Choice:
    return kinetic.Choice(name, capacity=capacity, cloud=kinetic.TpuVm(zones=[zone]))


def gpu(name: str, zone: str) -> kinetic.Choice:
    return kinetic.Choice(name, cloud=kinetic.Compute(zones=[zone]))


def run(function: Any, *arguments: Any, ways: Sequence[kinetic.Choice], **options: Any) -> JobHandle[Any]:
    """A job that may take each of these ways, in their order."""
    return kinetic.run(accelerator=list(ways), **options)(function).run_async(*arguments)


def followed(job: JobHandle[Any], within: float = 150.0) -> list[str]:
    """Collect what a follower is told until the job ends."""
    events: list[Event] = []
    assert job.follow(events.append, timeout=within) is not None
    return [f"{one.phase}: {one.message}" for one in events if isinstance(one, Change)]


def test_what_is_out_of_stock_is_followed_by_the_next_choice_with_its_own_hosts_and_devices(
    cloud: Emulator, jobs: Any
) -> None:
    """A slice of four hosts is nowhere; the job runs on a slice of one, and all of it is that one's."""
    cloud.stockout(ZONES[0], "refuse")
    job = run(jobs.hardware, ways=[tpu("v5e-16", ZONES[0], "spot"), tpu("v5e-4", ZONES[1])])
    assert job.hosts == 4
    said = followed(job)
    assert job.result(timeout=60) == (1, 4)
    assert [one.get("choice") for one in placements(job)] == [0, 1]
    assert [one["zone"] for one in placements(job)] == list(ZONES[:2])
    assert said[0].startswith(f"queued: v5e-16 spot in {ZONES[0]}: stockout: "), said
    why = f"v5e-16 spot in {ZONES[0]}: stockout just now"
    assert said[1].startswith(f"provisioning: v5e-4 on-demand in {ZONES[1]} ({why}), else v5e-16 spot: "), said
    assert kinetic.attach(job.job_id).chosen.endswith(f"(when it was chosen: {why})")
    assert (job.hosts, job.accelerator, job.crew) == (1, "v5e-4", "1 host")
    cost = job.cost()
    assert (cost.accelerator, cost.attempts, cost.spot) == ("v5e-4", 1, False)
    learned = {key: [one.outcome for one in fact.attempts] for key, fact in records.everything(job._job.store).items()}
    assert learned == {
        FactKey("tpu-vm", ZONES[0], "v5e", 16, "spot", "emulated"): [STOCKOUT],
        FactKey("tpu-vm", ZONES[1], "v5e", 4, "on-demand", "emulated"): [GOT],
    }
    cloud.wait_until_empty(60)


@pytest.mark.slow
@pytest.mark.turn(1)
def test_what_a_job_of_one_way_has_met_is_known_to_those_that_choose(cloud: Emulator, jobs: Any) -> None:
    cloud.stockout(ZONES[0], "refuse")
    alone = kinetic.run(accelerator="v5e-4")(jobs.hardware).run_async()
    assert alone.result(timeout=120) == (1, 4)
    assert [one["zone"] for one in placements(alone)] == list(ZONES[:2])
    learned = {
        key: [one.outcome for one in fact.attempts] for key, fact in records.everything(alone._job.store).items()
    }
    assert learned == {FactKey("tpu-vm", ZONES[0], "v5e", 4, "on-demand", "emulated"): [STOCKOUT]}
    chosen = run(jobs.hardware, ways=[tpu("v5e-4", ZONES[0]), tpu("v5e-4", ZONES[1])])
    assert chosen.result(timeout=120) == (1, 4)
    assert [one["zone"] for one in placements(chosen)] == [ZONES[1]]


@pytest.mark.slow
def test_a_later_job_of_the_deployment_begins_where_the_facts_say_that_there_is_something(
    cloud: Emulator, jobs: Any
) -> None:
    cloud.stockout(ZONES[0], "refuse")
    ways = [tpu("v5e-8", ZONES[0]), tpu("v5e-4", ZONES[1])]
    assert run(jobs.hardware, ways=ways).result(timeout=120) == (1, 4)
    second = run(jobs.hardware, ways=ways)
    assert second.result(timeout=120) == (1, 4)
    assert f"when it was chosen: v5e-8 on-demand in {ZONES[0]}: stockout " in second.chosen
    assert [one["choice"] for one in placements(second)] == [1]


@pytest.mark.slow
def test_a_tpu_and_then_a_gpu_are_of_two_services_and_any_process_finds_the_job(cloud: Emulator, jobs: Any) -> None:
    cloud.stockout(ZONES[0], "refuse")
    job = run(jobs.hardware, ways=[tpu("v5e-8", ZONES[0]), gpu("l4", ZONES[1])])
    assert kinetic.attach(job.job_id).result(timeout=150)[0] == 1
    assert [one["backend"] for one in placements(job)] == ["tpu-vm", "compute"]
    assert (job.backend, job.accelerator, job.cost().accelerator) == ("compute", "l4", "l4")
    cloud.wait_until_empty(60)


@pytest.mark.slow
def test_collectors_are_told_of_the_choice_that_an_attempt_took(cloud: Emulator, jobs: Any) -> None:
    """The unmodified library of a process that attaches tells a real collector."""
    cloud.stockout(ZONES[0], "refuse")
    job = run(jobs.hardware, ways=[tpu("v5e-8", ZONES[0]), gpu("l4", ZONES[1])])
    assert job.result(timeout=150)[0] == 1
    with collecting() as collector:
        program = "import sys, kinetic_orchestration as kinetic; kinetic.attach(sys.argv[1]).result()"
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "NO_PROXY": "127.0.0.1"}
        told = subprocess.run(
            [sys.executable, "-c", program, job.job_id], env=environ, capture_output=True, timeout=120
        )
    assert told.returncode == 0, told.stderr
    (root,) = [texts(span.attributes) for span in collector.spans if span.name.startswith("RUN ")]
    assert (root["kinetic.attempt"], root["kinetic.accelerator"], root["kinetic.backend"]) == (2, "l4", "compute")
    cloud.wait_until_empty(60)


@pytest.mark.slow
def test_after_a_preemption_the_next_choice_goes_on_from_what_was_saved(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    job = run(jobs.resumes, str(tmp_path), ways=[tpu("v5e-8", ZONES[0], "spot"), tpu("v5e-4", ZONES[1])])
    wait_running(job)
    wait_until(lambda: "running" in (job.logs() or ""), "its first line")
    (node,) = nodes(cloud, job)
    cloud.preempt(node, notice=60.0)
    assert job.result(timeout=150) == ["saved by attempt 1"]
    assert [one["choice"] for one in placements(job)] == [0, 1]
    assert (job.attempts(), job.zones()) == (2, list(ZONES[:2]))
    (lost,) = [fact for key, fact in records.everything(job._job.store).items() if key.place == ZONES[0]]
    assert [one.outcome for one in lost.attempts] == [PREEMPTED_YOUNG]
    cloud.wait_until_empty(60)


def test_a_forged_intent_leads_to_no_place_that_only_another_choice_has(cloud: Emulator, jobs: Any) -> None:
    """The zone, the hardware and the service of a placement are those of the one choice that it names."""
    job = run(jobs.attempt, ways=[tpu("v5e-16", ZONES[0]), gpu("l4", ZONES[1])])
    (placement,) = placements(job)
    allowed = job._job.within
    assert allowed is not None
    assert allowed.checked(placement, job.job_id, 1) == placement
    for forged in ({"zone": ZONES[1]}, {"choice": 1}, {"choice": 2}, {"backend": "compute"}, {"hosts": 1}):
        with pytest.raises(Wrong):
            allowed.checked({**placement, **forged}, job.job_id, 1)
    assert job.result(timeout=120) == 1


@pytest.mark.slow
@pytest.mark.turn(2)
def test_a_limit_of_cost_counts_hosts_of_each_choice_at_their_own_price(
    cloud: Emulator, jobs: Any, tmp_path: Path
) -> None:
    """A dear slice's use leaves fewer seconds of a cheap one than it lasted."""
    ways = [tpu("v5e-16", ZONES[0], "spot"), tpu("v5e-4", ZONES[1], "spot")]
    job = run(jobs.until, str(tmp_path / "go"), ways=ways, limits=kinetic.Limits(cost=16.0))
    wait_running(job)
    (node,) = nodes(cloud, job)
    wait_until(lambda: (job.cost().ready_seconds or 0.0) > 2.0, "hosts that are there for a while")
    least = job.cost().ready_seconds
    cloud.preempt(node)
    wait_until(lambda: job.status() and job._newest() > 1, "the next attempt")
    dear, cheap = job._job.plan().choices
    assert cheap.affordable > 2 * dear.affordable > 0.0
    most = job._job.trust.held(job._job.store, job.job_id)[1]  # also of the time after the next one was decided
    record = job._job.store.read(names.intent(job.job_id, 2))
    assert record is not None
    left = wire.decode(record.data)["affordable"]
    rate, rounded = cheap.affordable / dear.affordable, 0.1
    assert rate * (least - rounded) <= cheap.affordable - left <= rate * (most + rounded)
    (tmp_path / "go").touch()
    assert job.result(timeout=120) == 2


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.parametrize(("saved", "follows"), [(True, 2), (False, 1)])
def test_hosts_that_cannot_resume_the_checkpoint_are_not_chosen_once_there_is_one(
    cloud: Emulator, jobs: Any, tmp_path: Path, saved: bool, follows: int
) -> None:
    """Four hosts wrote it, so the slice of one is left out for another one of four."""
    ways = [tpu("v5e-16", ZONES[0], "spot"), tpu("v5e-4", ZONES[1], "spot"), tpu("v5e-16", ZONES[2], "spot")]
    job = run(jobs.until, str(tmp_path / "go"), ways=ways)
    wait_running(job)
    if saved:
        job._job.store.put(f"{names.checkpoint_dir(job._job.spec()['identity'])}/files/step", b"1")
    (node,) = nodes(cloud, job)
    cloud.preempt(node)
    wait_until(lambda: job.status() and job._newest() > 1, "the next attempt")
    assert [one["choice"] for one in placements(job)] == [0, follows]
    (tmp_path / "go").touch()
    assert job.result(timeout=120) == 2
