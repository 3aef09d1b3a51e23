"""A job with a choice where chips are shared: each choice has its own turn, and what never fits is said at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.capacity import choosing
from kinetic_orchestration.capacity.shares.line import is_covered
from kinetic_orchestration.capacity.shares.rules import Want
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.jobs.following.placing import ANY, _covered
from kinetic_orchestration.plan import planner
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.choices import Choice
from kinetic_orchestration.plan.declare.cloud import Kubernetes
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.values import Plan

CLOUD = {"KINETIC_PROJECT": "p", "KINETIC_STORE": "gs://b/k", "KINETIC_DEPLOYMENT": "d", "KINETIC_ZONES": "us-east5-b"}
QUEUED = Choice("v5e-4", cloud=Kubernetes(clusters=["c"], queue="tpus"))


def planned(home: Path, accelerator: Any, chips: str, **options: Any) -> Plan:
    place = {**CLOUD, "KINETIC_HOME": str(home), "KINETIC_PROFILE_FILE": "/none", "KINETIC_CHIPS": chips}
    spec = JobSpec("train", check_options(Options(accelerator, **options)))
    return planner.make_plan(spec, load(place), {})


def own(plan: Plan) -> list[tuple[str, float]]:
    return [(one.slice.name, one.turn["weight"]) for one in plan.each()]


def test_each_choice_has_a_turn_of_its_own(tmp_path: Path) -> None:
    plan = planned(tmp_path, ["v5e-8", "v5p-8"], "total=64")
    (_, light), (_, heavy) = own(plan)
    assert light == 1.0
    assert heavy > 3


def test_a_choice_that_no_share_can_ever_hold_is_left_out_with_a_warning_if_others_fit(tmp_path: Path) -> None:
    """A share that no job can ever fit in."""
    with pytest.warns(UserWarning, match=r"one choice is left out: v5e-64 takes 64 chips of the share v5e=16, and so"):
        plan = planned(tmp_path, ["v5e-64", "v5e-16", "v5e-8"], "v5e=16")
    assert [one.slice.name for one in plan.each()] == ["v5e-16", "v5e-8"]
    assert plan.slice.name == "v5e-16"
    with pytest.warns(UserWarning, match=r"v5e-32 takes 32 chips"):
        alone = planned(tmp_path, ["v5e-32", "v5e-4"], "v5e=4")
    assert (alone.choices, alone.slice.name, alone.by) == ((), "v5e-4", "order")


def test_a_job_of_which_no_choice_fits_is_refused_with_each_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"v5e-64 takes 64 chips of the share v5e=16.*; v5e-32 takes 32 chips of"):
        planned(tmp_path, ["v5e-64", "v5e-32"], "v5e=16")


def test_a_share_of_its_pipeline_that_a_job_can_never_fit_in_refuses_it_before_anything_is_sent(tmp_path: Path) -> None:
    plan = planned(tmp_path, "v5e-16", "v5e=64,pipeline:*=8")
    with pytest.raises(UsageError, match=r"v5e-16 takes 16 chips of the share pipeline:retrain=8 \(the default"):
        planner.within_shares(plan, "retrain")


def test_where_kueue_is_the_queue_it_decides_and_the_job_takes_no_turn(tmp_path: Path) -> None:
    """Where Kueue is the queue, it decides and we show its answer."""
    queued = planned(tmp_path, "v5e-4", "v5e=2", cloud=QUEUED.cloud)
    assert (queued.backend, queued.turn) == ("gke", {})
    assert is_covered(queued, None)
    assert "turn" not in queued.to_json()


def test_without_shares_no_byte_of_a_plan_tells_of_turns(tmp_path: Path) -> None:
    assert "turn" not in planned(tmp_path, "v5e-8", "").to_json()
    assert '"turn"' not in str(planned(tmp_path, ["v5e-8", "v5e-4"], "").to_json()).replace("'", '"')


def test_with_its_turn_an_attempt_takes_a_choice_that_needs_no_more_of_any_share(tmp_path: Path) -> None:
    plan = planned(tmp_path, ["v5e-16", "v5e-8", "v5p-8", "v6e-8"], "v5e=64,v6e=64,total=256")

    def allowed(turn: Want | str | None) -> list[str]:
        fits = _covered(plan, turn, choosing.anything)
        return [one.slice.name for one in plan.choices if not fits(one)]

    assert allowed(ANY) == ["v5e-16", "v5e-8", "v5p-8", "v6e-8"]
    assert allowed(Want("job-1", 1, "v5e", 16, 1.0)) == ["v5e-16", "v5e-8"]
    assert allowed(Want("job-1", 1, "v5e", 8, 1.0)) == ["v5e-8"]
    assert allowed(None) == []
    refused = _covered(plan, Want("job-1", 1, "v5e", 8, 1.0), choosing.anything)(plan.choices[2])
    assert refused == "its turn is for 8 chips of v5e"
