"""Requests for jobs of other processes that have no VM yet, however many, against the emulated Compute Engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import ABSENT, GONE, PRESENT, UNKNOWN, Observation
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.platforms.google.compute.verbs import look, memory
from kinetic_orchestration.platforms.shared import rate_limit
from kinetic_orchestration.testing import Emulator
from tests.core.platforms.google.compute.test_release import submission
from tests.support.jobs import WITHIN

MOST = 1 + 2 * int(look.LOOKS_AT_ONCE)  # the list, and two requests for each VM that is looked up
PACE = 5.0  # seconds between two ticks


class Ticks:
    """A process that observes jobs which others have placed, and its clock."""

    def __init__(self, cloud: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cloud = 1000.0, cloud
        clock = SimpleNamespace(monotonic=lambda: self.now, time=time.time)
        monkeypatch.setattr(memory, "time", clock)
        monkeypatch.setattr(rate_limit, "time", clock)
        here = settings.load()
        self.other, self.backend = ComputeBackend(here), ComputeBackend(here)
        self.plan = make_plan(JobSpec("train", Options(accelerator="l4")), here)
        self.placements = [self.other.place(self.plan, f"job-{number:012}", 1) for number in range(1000)]

    def tick(self, jobs: int) -> tuple[int, list[Observation]]:
        """Observe so many jobs. Returns the requests, and what was seen."""
        before = len(self.cloud.requests)
        seen = self.backend.observe(self.placements[:jobs])
        self.now += PACE
        return len(self.cloud.requests) - before, seen


@pytest.fixture
def ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ticks]:
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KINETIC_ZONES", "us-central1-a")
    with Emulator(tmp_path / "cloud", hosts=False) as running:
        for name, value in running.environ(backend="compute").items():
            monkeypatch.setenv(name, value)
        yield Ticks(running, monkeypatch)
        running.compute.sweep()


def test_a_thousand_jobs_that_wait_cost_no_more_requests_a_tick_than_forty(ticks: Ticks) -> None:
    few, _ = ticks.tick(int(look.LOOKS_AT_ONCE))
    assert few == MOST
    many = [ticks.tick(1000)[0] for _ in range(5)]
    assert max(many) <= MOST
    assert sum(many[1:]) <= 4 * (1 + 2 * look.LOOKS_PER_SECOND * PACE)


def test_a_job_whose_state_was_not_read_is_not_said_to_be_gone_and_each_is_read_in_its_turn(ticks: Ticks) -> None:
    jobs, read = 150, set()
    for _ in range(jobs):
        _, seen = ticks.tick(jobs)
        assert {one.state for one in seen} <= {ABSENT, UNKNOWN}
        assert not any(one.cause for one in seen)
        read |= {index for index, one in enumerate(seen) if one.state == ABSENT}
        if len(read) == jobs:
            return
    raise AssertionError(f"{jobs - len(read)} jobs were never looked up")


def test_a_vm_that_was_seen_and_is_dead_is_looked_up_before_those_that_nobody_has_made(ticks: Ticks) -> None:
    ran = ticks.placements[1]
    assert ticks.other.submit(submission(ticks.plan, ran)) == ""
    ticks.cloud.wait_until(lambda: ticks.cloud.compute.chosen(ran["name"]).status == "RUNNING", WITHIN)
    ticks.placements.reverse()  # so that it is the last of them
    ticks.placements.remove(ran)
    ticks.placements.append(ran)
    assert ticks.tick(1000)[1][-1].state == PRESENT
    ticks.cloud.compute.host_error(ran["name"])
    dead = ticks.tick(1000)[1][-1]
    assert (dead.state, dead.cause) == (GONE, "infrastructure")
    assert "hostError" in dead.message
