"""`race=`: which jobs may ask several places at once, and what `ko plan` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.spec import JobSpec, Options, check_options
from kinetic_orchestration.plan.planner import describe, make_plan
from kinetic_orchestration.plan.values import Plan

ENVIRON = {"KINETIC_STORE": "gs://bucket", "KINETIC_DEPLOYMENT": "main", "KINETIC_PROJECT": "p"}


def planned(home: Path, environ: dict[str, str] | None = None, **options: Any) -> Plan:
    asked = {"accelerator": "v5e-8", "backend": "tpu-vm", "race": 2, **options}
    here = settings.load({**ENVIRON, "KINETIC_HOME": str(home), **(environ or {})})
    return make_plan(JobSpec("train", Options(**asked), argv=("x",)), here, {})


@pytest.mark.parametrize("race", [0, 4, -1, True, "2", 2.0, None])
def test_a_number_that_no_race_has_is_refused(race: Any) -> None:
    with pytest.raises(UsageError, match=r"race is .*: give the places that are asked at once, 2 or 3"):
        check_options(Options(race=race))


def test_it_is_part_of_the_plan_and_of_what_is_shown(home: Path) -> None:
    plan = planned(home, cloud=kinetic.TpuVm(zones=["us-central1-a", "us-west4-a"]))
    assert plan.race == 2
    assert Plan.from_json(plan.to_json()) == plan
    assert "race         2 places are asked at once" in describe(plan)
    alone = planned(home, race=1, cloud=kinetic.TpuVm(zones=["us-central1-a"]))
    assert "race" not in alone.to_json()


def test_one_place_is_none(home: Path) -> None:
    with pytest.raises(UsageError, match="race=2 asks several places at once, and this job has one place to ask, us-c"):
        planned(home, cloud=kinetic.TpuVm(zones=["us-central1-a"]))


def test_two_choices_in_one_zone_are_two_places(home: Path) -> None:
    zones = kinetic.TpuVm(zones=["us-central1-a"])
    plan = planned(home, accelerator=["v5e-8", "v5e-4"], cloud=zones)
    assert plan.race == 2


def test_the_queue_of_a_cluster_decides_by_itself(home: Path) -> None:
    with pytest.raises(UsageError, match=r"race=2.*the queue of its cluster decides where an attempt runs"):
        planned(home, backend="gke", cloud=kinetic.Kubernetes(), cluster="c")


@pytest.mark.parametrize(
    ("named", "where"),
    [({"backend": "gke"}, "the gke backend"), ({"cloud": kinetic.Kubernetes()}, "Kubernetes")],
    ids=str,
)
def test_a_cluster_that_is_named_is_refused_where_that_is_written(named: dict[str, Any], where: str) -> None:
    with pytest.raises(Unsupported, match=f"race=2 is not possible on {where}: the queue of its cluster decides"):
        check_options(Options("v5e-8", race=2, **named))


def test_what_a_race_takes_of_a_share_is_told_as_that_of_a_race(home: Path) -> None:
    with pytest.raises(UsageError, match="v5e-8 with race=2 takes 16 chips of the share v5e=8"):
        planned(home, {"KINETIC_CHIPS": "v5e=8"}, cloud=kinetic.TpuVm(zones=["us-central1-a", "us-west4-a"]))


def test_this_machine_is_one_place(home: Path) -> None:
    with pytest.warns(UserWarning, match="race= has no meaning on the local backend"):
        plan = planned(home, {"KINETIC_STORE": str(home / "store")}, accelerator="cpu", backend="local")
    assert plan.race == 1
