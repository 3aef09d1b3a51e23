"""`race=`: which jobs may ask several places at once, and what `kinor plan` says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.checks.options import check_options
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.hardware.regions import Location
from kinetic_orchestration.plan.planner import describe, make_plan, near_bucket
from kinetic_orchestration.plan.values import Plan

ENVIRON = {"KINETIC_STORE": "gs://bucket", "KINETIC_DEPLOYMENT": "main", "KINETIC_PROJECT": "p"}


ONE_ZONE = kinetic.TpuVm(zones=["us-central1-a"])
SHARED = {"keep": "the resource", "race": "the resource"}


def planned(
    home: Path,
    environ: dict[str, str] | None = None,
    defaults: dict[str, str] | None = None,
    name: str = "train",
    **options: Any,
) -> Plan:
    asked = {"accelerator": "v5e-8", "backend": "tpu-vm", "race": 2, **options}
    here = settings.load({**ENVIRON, "KINETIC_HOME": str(home), **(environ or {})})
    return make_plan(JobSpec(name, Options(**asked), argv=("x",), defaults=defaults or {}), here, {})


@pytest.mark.parametrize("race", [0, 4, -1, True, "2", 2.0, None])
def test_a_number_that_no_race_has_is_refused(race: Any) -> None:
    with pytest.raises(UsageError, match=r"race is .*: give the places that are asked at once, 2 or 3"):
        check_options(Options(race=race))


def test_it_is_part_of_the_plan_and_of_what_is_shown(home: Path) -> None:
    plan = planned(home, cloud=kinetic.TpuVm(zones=["us-central1-a", "us-west4-a"]))
    assert plan.race == 2
    assert Plan.from_json(plan.to_json()) == plan
    assert "race         2 places are asked at once" in describe(plan)
    alone = planned(home, race=1, cloud=ONE_ZONE)
    assert "race" not in alone.to_json()


def test_one_place_is_none(home: Path) -> None:
    with pytest.raises(UsageError, match="race=2 asks several places at once, and this job has one place to ask, us-c"):
        planned(home, cloud=ONE_ZONE)


def test_two_choices_in_one_zone_are_two_places(home: Path) -> None:
    plan = planned(home, accelerator=["v5e-8", "v5e-4"], cloud=ONE_ZONE)
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


@pytest.mark.parametrize(
    ("environ", "options", "why"),
    [
        ({}, {"cloud": ONE_ZONE}, "it has one place to ask, us-central1-a"),
        ({"KINETIC_CLUSTER": "c"}, {"backend": "gke"}, "it is not possible on the gke backend"),
        (
            {"KINETIC_BACKEND": "gke", "KINETIC_CLUSTER": "c"},
            {"backend": None},
            "it is not possible on the gke backend",
        ),
        ({"KINETIC_CHIPS": "v5e=8"}, {}, "v5e-8 with race=2 takes 16 chips of the share v5e=8"),
    ],
    ids=["one place", "an option names a cluster", "a setting names a cluster", "a share"],
)
def test_the_race_of_a_resource_is_left_out_where_it_cannot_be_and_told(
    home: Path, environ: dict[str, str], options: dict[str, Any], why: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id  # each is told once in a process
    with pytest.warns(UserWarning, match=f"race=2 of the resource is left out for {name}: {why}"):
        plan = planned(home, environ, SHARED, name, **options)
    assert plan.race == 1 and "race" not in plan.to_json()
    with pytest.raises((UsageError, Unsupported), match="race=2"):
        planned(home, environ, {"keep": "the resource"}, **options)


def test_the_race_of_a_resource_is_run_where_it_can_be(home: Path) -> None:
    assert planned(home, {}, SHARED).race == 2
    assert planned(home, {"KINETIC_CHIPS": "v5e=16"}, SHARED).race == 2


def test_zones_near_the_bucket_may_leave_one_place_to_the_race_of_a_resource(home: Path) -> None:
    here, bucket = settings.load({**ENVIRON, "KINETIC_HOME": str(home)}), Location("b", "US-EAST5", ("us-east5",))
    plan = planned(home, {}, SHARED, "near", accelerator="v6e-8")
    near = [zone for zone in plan.zones if zone.startswith("us-east5-")]
    plan = replace(plan, zones=tuple(zone for zone in plan.zones if zone not in near[1:]))
    with pytest.warns(
        UserWarning, match=f"race=2 of the resource is left out for near: it has one place to ask, {near[0]}"
    ):
        assert near_bucket(plan, bucket, here, Options("v6e-8")).race == 1
    with pytest.raises(UsageError, match="race=2 asks several places at once, and this job has one place to ask"):
        near_bucket(replace(plan, race_of=""), bucket, here, Options("v6e-8"))


@pytest.mark.parametrize(
    ("environ", "options", "why"),
    [
        ({}, {"container_image": "a/train:7"}, "keep= with container_image= is not possible"),
        ({"KINETIC_CLUSTER": "c"}, {"backend": "gke"}, "keep= is not possible on the gke backend"),
        (
            {"KINETIC_BACKEND": "gke", "KINETIC_CLUSTER": "c"},
            {"backend": None},
            "keep= is not possible on the gke backend",
        ),
    ],
    ids=["a container", "an option names a cluster", "a setting names a cluster"],
)
def test_the_keep_of_a_resource_is_left_out_where_it_cannot_be_and_told(
    home: Path, environ: dict[str, str], options: dict[str, Any], why: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    with pytest.warns(UserWarning, match=rf"keep='10m' of the resource is left out for {name}: {why}"):
        assert planned(home, environ, SHARED, name, race=1, keep="10m", **options).keep is None
    with pytest.raises(Unsupported, match="keep="):
        planned(home, environ, {}, race=1, keep="10m", **options)
    assert planned(home, {}, SHARED, keep="10m").keep == 600.0


def test_this_machine_is_one_place(home: Path) -> None:
    with pytest.warns(UserWarning, match="race= has no meaning on the local backend"):
        plan = planned(home, {"KINETIC_STORE": str(home / "store")}, accelerator="cpu", backend="local")
    assert plan.race == 1
