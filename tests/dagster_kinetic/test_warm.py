"""Slices that stay warm between the steps of a run: where `keep` may be said, and which step leaves none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from dagster_kinetic import (
    HostContext,
    KineticResource,
    KineticRunConfig,
    build_kinetic_reaper_sensor,
    kinetic_asset,
    kinetic_op,
)
from dagster_kinetic.resource.config import TAG
from kinetic_orchestration import Kubernetes, Retry
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.capacity.warm.records import slices
from kinetic_orchestration.errors import KineticError, Unsupported
from kinetic_orchestration.plan.declare.spec import Options
from kinetic_orchestration.protocol.wire.lease import FREE
from kinetic_orchestration.testing import Emulator
from tests.dagster_kinetic.test_choices import component
from tests.support.waits import wait_until

pytestmark = [
    pytest.mark.usefixtures("shared_home"),
    pytest.mark.filterwarnings("ignore:.*parse_obj_as", "ignore:.*is currently in beta"),
]


def options(config: KineticRunConfig | None = None, resource: KineticResource | None = None, **given: Any) -> Options:
    return (resource or KineticResource()).overridden_by(config)._options({"accelerator": "v5e-8", **given})


def test_a_resource_says_it_for_all_jobs_an_asset_for_itself_and_a_launch_for_one_run() -> None:
    shared = KineticResource(keep="10m")
    assert options(resource=shared).keep == "10m"
    assert options(resource=shared, keep="1h").keep == "1h"
    assert options(resource=shared, keep=None).keep is None, "an asset that wants a slice of its own"
    assert options(KineticRunConfig(keep="0s"), shared, keep="1h").keep == "0s"
    assert options(KineticRunConfig(**json.loads(KineticRunConfig(keep=90).to_tags()[TAG]))).keep == "90"
    assert options(resource=KineticResource(keep=600)).keep == "600"


def test_a_component_has_it_among_its_options() -> None:
    made, _ = component(accelerator="cpu", options={"keep": "10m"})
    assert made.options == {"keep": "10m"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keep": "soon"}, "keep is 'soon'"),
        ({"keep": "25h"}, "a slice is kept for 1d at most"),
        ({"keep": -1}, "cannot be negative"),
    ],
    ids=str,
)
def test_what_is_no_time_is_refused_where_it_is_written(given: dict[str, Any], says: str) -> None:
    for decorator in (kinetic_asset, kinetic_op):
        with pytest.raises(KineticError, match=says):
            decorator(accelerator="cpu", **given)(hosts)
    for kind in (KineticResource, KineticRunConfig):
        with pytest.raises((ValidationError, KineticError), match=says):
            kind(**given)


def test_pods_are_refused_where_they_are_written() -> None:
    with pytest.raises(Unsupported, match="keep= is not possible on Kubernetes: a pod ends with its program"):
        kinetic_asset(accelerator="v5e-8", keep="10m", cloud=Kubernetes())(hosts)
    with pytest.raises(ValidationError, match="keep= is not possible on the gke backend"):
        KineticResource(keep="10m", backend="gke")


def hosts(host: HostContext) -> int:
    return host.host_count


# ---- which step of a run leaves none -----------------------------------------------------------------------

KEPT = {"accelerator": "cpu", "keep": "10m"}


@kinetic_asset(**KEPT)
def prepared() -> int:
    return 1


@kinetic_asset(**KEPT)
def trained(prepared: int) -> int:
    return prepared + 1


@dg.asset
def noted(trained: int) -> None:
    """A step without a slice, after all that have one."""


@kinetic_asset(**KEPT)
def evaluated(trained: int) -> int:
    return trained + 1


@kinetic_asset(**KEPT)
def compared(trained: int) -> int:
    return trained + 2


def kept_by(result: dg.ExecuteInProcessResult, home: Path) -> dict[str, float]:
    """The seconds for which each step's slice is kept, by the specs in the store."""
    run, found = result.run_id, {}
    for path in home.rglob("jobs/*/in/spec.json"):
        spec = json.loads(path.read_bytes())
        if spec.get("origin", {}).get("run") == run:
            found[spec["name"]] = spec["plan"]["keep"]
    return found


@pytest.fixture
def launched(home: Path) -> Iterator[Any]:
    def run(*assets: Any, **given: Any) -> dict[str, float]:
        result = dg.materialize(assets, resources={"kinetic": KineticResource()}, **given)
        return kept_by(result, home)

    yield run


def test_the_last_of_consecutive_steps_leaves_no_slice(launched: Any) -> None:
    assert launched(prepared, trained, noted, evaluated) == {"prepared": 600.0, "trained": 600.0, "evaluated": 0.0}


def test_of_a_part_of_the_assets_the_last_one_of_the_run_leaves_none(launched: Any) -> None:
    found = launched(prepared, trained, noted, evaluated, selection=["prepared", "trained"])
    assert found == {"prepared": 600.0, "trained": 0.0}


def test_of_steps_side_by_side_none_is_known_to_be_the_last(launched: Any) -> None:
    found = launched(prepared, trained, evaluated, compared)
    assert found == dict.fromkeys(("prepared", "trained", "evaluated", "compared"), 600.0)


def test_a_step_whose_job_tries_again_keeps_its_own_slice_for_that(launched: Any) -> None:
    again = kinetic_asset(**KEPT, retry=Retry(user=1), name="again")(hosts)
    assert launched(again) == {"hosts": 600.0}


def test_steps_of_dynamic_outputs_and_calls_in_a_step_of_ones_own_are_none_of_which_it_is_known(home: Path) -> None:
    @dg.op(out=dg.DynamicOut())
    def rates() -> Iterator[dg.DynamicOutput[int]]:
        for number in range(2):
            yield dg.DynamicOutput(number, mapping_key=f"rate_{number}")

    @kinetic_op(**KEPT)
    def tried(rate: int) -> int:
        return rate

    @dg.op
    def own(kinetic: KineticResource, tries: list[int]) -> int:
        return kinetic.run(sum, [[1, 2]], accelerator="cpu", keep="5m") + len(tries)

    @dg.job(resource_defs={"kinetic": KineticResource()})
    def swept() -> None:
        own(rates().map(tried).collect())

    assert kept_by(swept.execute_in_process(), home) == {"tried": 600.0, "sum": 300.0}


# ---- on an emulated cloud ----------------------------------------------------------------------------------

SMALL = {"accelerator": "v5e-1", "keep": "10m", "requirements": []}


@kinetic_asset(**SMALL)
def first() -> int:
    return 1


@kinetic_asset(**SMALL)
def second(first: int) -> int:
    return first + 1


@kinetic_asset(**SMALL)
def third(second: int) -> int:
    return second + 1


@kinetic_asset(**SMALL)
def broken(second: int) -> int:
    raise ValueError("on purpose")


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.timeout(900)
def test_three_steps_request_one_slice_which_goes_with_the_last_one(tpu_cloud: Emulator, new_instance: Any) -> None:
    with new_instance() as instance:
        result = dg.materialize([first, second, third], instance=instance, resources={"kinetic": KineticResource()})
    assert result.output_for_node("third") == 3
    tpu_cloud.wait_until_empty(60)
    assert tpu_cloud.ledger.count("created", "node") == 1
    tpu_cloud.ledger.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.timeout(900)
def test_what_a_run_that_failed_has_left_is_released_by_the_reaper_sensor(
    tpu_cloud: Emulator, new_instance: Any
) -> None:
    never = kinetic_asset(**SMALL)(made_of_the_broken)
    with new_instance() as instance:
        result = dg.materialize(
            [first, second, broken, never], instance=instance, resources={"kinetic": KineticResource()},
            raise_on_error=False,
        )  # fmt: skip
        assert not result.success
        wait_until(lambda: [held.lease.state for held in slices(place_of()[0])] == [FREE], "an offer", within=60.0)
        assert tpu_cloud.ledger.count("created", "node") == 1
        sensor = build_kinetic_reaper_sensor()
        context = dg.build_sensor_context(instance=instance, resources={"kinetic": KineticResource()})
        told = sensor.evaluate_tick(context)
        assert "released 1 warm slice of runs that are over" in str(told.skip_message)
    assert [held.lease.why for held in slices(place_of()[0])] == [f"its run {result.run_id} has ended"]
    tpu_cloud.wait_until_empty(60)
    tpu_cloud.ledger.assert_nothing_left()


def made_of_the_broken(broken: int) -> int:
    return broken
