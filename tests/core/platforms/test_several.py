"""The backends of a job's candidates as one: who is asked is decided by the placement, or by the plan of the attempt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.plan.values import ABSENT, Candidate, Freed, Past, Plan
from kinetic_orchestration.platforms.backend import KeepsBootLog, TellsRefusal
from kinetic_orchestration.platforms.registry import open_backend, others
from kinetic_orchestration.platforms.several import refusal_of
from kinetic_orchestration.platforms.shared.places import Refusal
from kinetic_orchestration.platforms.shared.read_only import ReadOnlyBackend
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing import Emulator

JOB = "job-000000000001"
ZONE = "us-central1-a"


@pytest.fixture
def cloud(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with Emulator(zones=(ZONE,), python=sys.executable) as emulated:
        for name, value in {**emulated.environ(), "KINETIC_ZONES": ZONE}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("KINETIC_BACKEND")
        yield emulated
        emulated.ledger.assert_nothing_left()


def chosen() -> Plan:
    """A TPU of Cloud TPU, or a GPU of Compute Engine."""
    here = settings.load()
    plans = [make_plan(JobSpec("train", Options(accelerator=name)), here, {}) for name in ("v5e-16", "l4")]
    return replace(plans[0], choices=tuple(Candidate.of(one, {}) for one in plans))


def test_each_placement_is_made_observed_and_released_by_its_own_backend(cloud: Emulator) -> None:
    plan, here = chosen(), settings.load()
    backend = open_backend(plan.runs_on, here)
    assert (backend.kind, backend.charges, backend.shared) == ("compute+tpu-vm", True, True)
    made = [backend.place(one, JOB, 1) for one in plan.each()]
    assert [(one["backend"], one["hosts"], "model" in one) for one in made] == [
        ("tpu-vm", 4, False), ("compute", 1, True),
    ]  # fmt: skip
    assert [one.state for one in backend.observe([made[1], made[0], made[1]])] == [ABSENT] * 3
    assert [backend.release(one) for one in made] == [Freed.DONE] * 2
    assert all(backend.names_place(one) for one in made)
    assert not any(backend.names_place({**one, "project": "another"}) for one in made)
    assert backend.rate_limit(made[0]) is not backend.rate_limit(made[1])
    assert list(backend.leftovers()) == []
    assert isinstance(backend, KeepsBootLog)
    assert backend.last_words(made[0], [0]) == ""


def test_a_cleaner_looks_at_each_backend_once(cloud: Emulator) -> None:
    here = settings.load()
    both = open_backend("compute+tpu-vm", here)
    assert others(both, here) == []
    assert [one.kind for one in others(open_backend("tpu-vm", here), here)] == ["compute"]


def test_what_a_zone_answered_is_read_by_the_backend_that_asked_it(cloud: Emulator) -> None:
    """A backend that tells nothing more of an answer, or only looks on, leaves it at its cause."""
    plan, here = chosen(), settings.load()
    both = open_backend(plan.runs_on, here)
    first, second = plan.each()
    reason = f"{ZONE}: The user does not have permission: quota limit is 0 (QUOTA_EXCEEDED)"
    for one in (first, second):
        past = Past(both.place(one, JOB, 1), wire.QUOTA, reason, 0.0)
        alone = open_backend(one.backend, here)
        assert isinstance(alone, TellsRefusal)
        assert refusal_of(both, one, past) == alone.refusal(one, past)
        assert refusal_of(ReadOnlyBackend(alone), one, past) == Refusal()
