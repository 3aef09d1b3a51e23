"""Options of capacity wherever Dagster takes options of a job; and what is refused while definitions are loaded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from dagster_kinetic import (
    HostContext,
    KineticResource,
    KineticRunConfig,
    PipesKineticClient,
    kinetic_asset,
    kinetic_multi_asset,
    kinetic_op,
)
from dagster_kinetic.resource.config import TAG, from_tag
from kinetic_orchestration import Compute, Kubernetes
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.jobs.request import settings_of
from kinetic_orchestration.plan.declare.choices import OF_CAPACITY
from kinetic_orchestration.plan.declare.spec import Options
from kinetic_orchestration.plan.planner import make_plan
from tests.dagster_kinetic.test_choices import component
from tests.support.capacity_options import ACCELERATORS, VALUES
from tests.support.refusals import ALLOWED, REFUSALS, Refusal

pytestmark = [
    pytest.mark.usefixtures("shared_home"),
    pytest.mark.filterwarnings("ignore:.*parse_obj_as", "ignore:.*is currently in beta"),
]


def hosts(host: HostContext) -> int:
    return host.host_count


def of_resource(resource: KineticResource, launch: KineticRunConfig | None = None, **given: Any) -> Options:
    return resource.overridden_by(launch)._options({"accelerator": ACCELERATORS, **given})


def said_in(place: str, name: str, value: Any) -> Options:
    """The options of a job for which one place says one thing."""
    if place == "a call":
        return of_resource(KineticResource(), **{name: value})
    if place == "the resource":
        return of_resource(KineticResource(**{name: value}))
    if place == "a run config":
        return of_resource(KineticResource(), KineticRunConfig(**{name: value}))
    if place == "a tag":
        tag = KineticRunConfig(**{name: value}).to_tags()[TAG]
        return of_resource(KineticResource(), from_tag(tag, "the run"))
    if place == "YAML":
        made, _ = component(accelerator=ACCELERATORS, options={name: value})
        return of_resource(KineticResource(), **made.options)
    client = PipesKineticClient(KineticResource(), accelerator=ACCELERATORS, **{name: value})
    return of_resource(client._kinetic, **client._options)


@pytest.mark.parametrize("place", ["a call", "the resource", "a run config", "a tag", "YAML", "a client of Pipes"])
def test_each_place_takes_all_options_of_capacity(place: str) -> None:
    found = {name: getattr(said_in(place, name, value), name) for name, value in VALUES.items()}
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()} == VALUES


def test_a_launch_counts_more_than_a_call_and_a_call_more_than_the_resource() -> None:
    shared = KineticResource(race=2, reshard=True, global_batch=64, keep="10m", by="price", priority=7)
    own = {"race": 1, "reshard": False, "global_batch": 0, "keep": None, "by": "order", "priority": 0}
    found = of_resource(shared, **own)
    assert {name: getattr(found, name) for name in own} == own
    launch = {"race": 3, "reshard": True, "global_batch": 8, "keep": "0s", "by": "start", "priority": -1}
    found = of_resource(shared, KineticRunConfig(**launch), **own)
    assert {name: getattr(found, name) for name in launch} == launch
    assert launch.keys() == own.keys() == set(OF_CAPACITY) - {"capacity", "regions"}
    assert of_resource(KineticResource(race=2), KineticRunConfig(race=1)).race == 1
    assert of_resource(KineticResource(priority=0)).priority == 0


@pytest.mark.filterwarnings("ignore:.* of the resource is left out for a job")
def test_a_resource_means_keep_for_those_of_its_jobs_that_can() -> None:
    shared = KineticResource(keep="10m")
    for given in (
        {"cloud": Kubernetes()},
        {"backend": "gke"},
        {"container_image": "a/train:7"},
        {"accelerator": "l4x4", "processes": "gpu"},
    ):
        assert of_resource(shared, **given).keep is None, given
        with pytest.raises(KineticError, match=r"keep= .*is not possible"):
            of_resource(shared, KineticRunConfig(keep="5m"), **given)
        with pytest.raises(KineticError, match=r"keep= .*is not possible"):
            of_resource(shared, **given, keep="5m")
    assert of_resource(shared, accelerator="l4", cloud=Compute(tags=["a"])).keep == "10m"


# ---- what is refused while definitions are loaded ----------------------------------------------------------


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
def test_what_can_never_be_is_refused_while_definitions_are_loaded(
    row: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in row.environ.items():
        monkeypatch.setenv(name, value)
    for decorator in (kinetic_asset, kinetic_multi_asset, kinetic_op):
        with pytest.raises(KineticError, match=row.says):
            decorator(**_as_python(row.options))(hosts)
    with pytest.raises(KineticError, match=row.says):
        PipesKineticClient(KineticResource(), **_as_python(row.options))
    options = {name: value for name, value in row.options.items() if name != "accelerator"}
    with pytest.raises(Exception, match=r"defs\.yaml") as loaded:
        component(accelerator=row.options["accelerator"], options=options)
    assert row.environ or _is_said(loaded.value, row.says)


def _as_python(options: dict[str, Any]) -> dict[str, Any]:
    from kinetic_orchestration.plan.declare.choices import accelerators_of

    return {**options, "accelerator": accelerators_of(options["accelerator"])}


def _is_said(error: BaseException | None, says: str) -> bool:
    import re

    while error is not None:
        if re.search(says, str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keep": "10m", "container_image": "a/train:7"}, "keep= with container_image= is not possible"),
        ({"keep": "10m", "backend": "gke"}, "keep= is not possible on the gke backend"),
        ({"race": 2, "kubernetes": {"queue": "tpus"}}, "race=2 is not possible on Kubernetes"),
        ({"race": 7}, "race is 7: give the places that are asked at once, 2 or 3"),
        ({"limits": {"cost": "40EUR"}}, "limits.cost is '40EUR': give US dollars"),
    ],
    ids=str,
)
def test_settings_of_a_resource_that_contradict_are_refused_where_it_is_made(given: dict[str, Any], says: str) -> None:
    with pytest.raises((ValidationError, KineticError), match=says):
        KineticResource(**given)


@pytest.mark.filterwarnings("ignore:.* of the resource is left out for a job")
def test_a_resource_means_keep_and_race_for_those_of_its_jobs_that_can() -> None:
    shared = KineticResource(keep="10m", race=2)
    on_pods = {"accelerator": "v5e-8", "cloud": Kubernetes()}
    found = shared._options({"accelerator": "v5e-8"})
    assert (found.keep, found.race) == ("10m", 2)
    with (
        pytest.warns(
            UserWarning, match=r"keep='10m' of the resource is left out for on_pods: keep= is not possible on"
        ),
        pytest.warns(
            UserWarning, match=r"race=2 of the resource is left out for on_pods: it is not possible on Kubern"
        ),
    ):
        found = shared._options(on_pods, name="on_pods")
    assert (found.keep, found.race) == (None, 1)
    for name, given in (("keep", "10m"), ("race", 2)):
        with pytest.raises(KineticError, match=rf"{name}=.*is not possible on Kubernetes"):
            shared._options({**on_pods, name: given})
        with pytest.raises(KineticError, match=rf"{name}=.*is not possible on Kubernetes"):
            shared.overridden_by(KineticRunConfig(**{name: given}))._options(on_pods)


def test_the_race_of_a_resource_is_left_out_where_a_job_has_one_place_and_that_of_the_job_is_refused() -> None:
    shared = KineticResource(race=2, store="gs://b/p", project="p", deployment="d")

    def raced(resource: KineticResource = shared, **given: Any) -> int:
        spec = resource._spec(hosts, ((), None), "v5e-8", None, given)
        return make_plan(spec, settings_of(spec)).race

    assert raced() == 2
    with pytest.warns(
        UserWarning, match=r"race=2 of the resource is left out for hosts: it has one place to ask, us-west"
    ):
        assert raced(zone="us-west4-a") == 1
    for resource, given in ((shared, {"race": 2}), (shared.overridden_by(KineticRunConfig(race=2)), {})):
        with pytest.raises(KineticError, match="race=2 asks several places at once, and this job has one place"):
            raced(resource, zone="us-west4-a", **given)


@pytest.mark.parametrize("given", [{"race": 7}, {"race": 0}, {"global_batch": -1}, {"limits": {"cost": "40 CHF"}}])
def test_a_launch_that_asks_for_what_cannot_be_is_refused_before_it_begins(given: dict[str, Any]) -> None:
    [name] = given
    says = "limits.cost is '40 CHF'" if name == "limits" else f"{name} is {given[name]}"
    with pytest.raises((ValidationError, KineticError), match=says):
        KineticRunConfig(**given)
    with pytest.raises(KineticError, match=rf"the tag {TAG} of op_tags of hosts"):
        kinetic_asset(accelerator="cpu", op_tags={TAG: json.dumps(given)})(hosts)


def test_a_way_of_buying_that_the_resource_or_the_launch_may_still_say_is_not_missed_while_definitions_are_loaded() -> (
    None
):
    """Four H100 do not come on demand."""
    some = {"accelerator": "h100x4", "backend": "compute"}
    assert kinetic_asset(**some)(hosts)
    assert component(accelerator="h100x4", options={"backend": "compute"})
    shared = KineticResource(spot=True, store="gs://b/p", project="p", deployment="d")
    spec = shared._spec(hosts, ((), None), "h100x4", None, {"backend": "compute", "zone": "us-central1-a"})
    assert make_plan(spec, settings_of(spec)).spot
    for more in ({"capacity": ["on-demand"]}, {"accelerator": "v5e-8"}):
        with pytest.raises(KineticError, match=r"does not come on demand|v5e"):
            kinetic_asset(**{**some, **more})(hosts)


@pytest.mark.parametrize(("options", "environ"), ALLOWED.values(), ids=ALLOWED)
def test_what_may_be_is_loaded(
    options: dict[str, Any], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    [spec] = kinetic_asset(**_as_python(options))(hosts).specs
    assert spec.key.to_user_string() == "hosts"
    given = {name: value for name, value in options.items() if name != "accelerator"}
    made, _ = component(accelerator=options["accelerator"], options=given)
    assert set(made.options) == set(given)
