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
from dagster_kinetic.step.summary import table_of
from dagster_kinetic.step.ticket import WAITS
from kinetic_orchestration import Kubernetes, Retry
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.api.opening import place_of
from kinetic_orchestration.capacity.warm.records import slices
from kinetic_orchestration.errors import KineticError, Unsupported
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.protocol.wire.lease import ENDED, FREE
from kinetic_orchestration.testing import Emulator
from tests.dagster_kinetic.stored import messages
from tests.dagster_kinetic.test_choices import component
from tests.support.kept_slices import Here
from tests.support.on_cloud import enter_deployment
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


@pytest.mark.slow
@pytest.mark.turn
def test_of_steps_side_by_side_none_is_known_to_be_the_last(launched: Any) -> None:
    found = launched(prepared, trained, evaluated, compared)
    assert found == dict.fromkeys(("prepared", "trained", "evaluated", "compared"), 600.0)


def test_a_step_whose_job_tries_again_keeps_its_own_slice_for_that(launched: Any) -> None:
    again = kinetic_asset(**KEPT, retry=Retry(user=1), name="again")(hosts)
    assert launched(again) == {"hosts": 600.0}


@pytest.mark.slow
@pytest.mark.turn
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
@pytest.mark.turn(6)
@pytest.mark.timeout(900)
def test_three_steps_request_one_slice_which_goes_with_the_last_one(tpu_cloud: Emulator, new_instance: Any) -> None:
    with new_instance() as instance:
        result = dg.materialize([first, second, third], instance=instance, resources={"kinetic": KineticResource()})
        said = [text for text in messages(instance, result) if text.startswith("succeeded")]
    assert result.output_for_node("third") == 3
    assert said == [
        *["succeeded; cleaning, to stay warm for 10m: 1 host of v5e-1"] * 2, "succeeded; tearing down: 1 host of v5e-1"
    ]  # fmt: skip
    tpu_cloud.wait_until_empty(60)
    assert tpu_cloud.ledger.count("created", "node") == 1
    tpu_cloud.ledger.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.turn(6)
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
        [said] = [text for text in messages(instance, result) if text.startswith("failed: ")]
        assert said.endswith("; tearing down, unless its own code has failed, to stay warm for 10m: 1 host of v5e-1")
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


class Once(dg.Config):
    """`mark`: a file that the first try of the step leaves, which fails then."""

    mark: str


@kinetic_op(**SMALL)
def begun() -> int:
    return 1


@kinetic_op(**SMALL)
def fails_once(begun: int, config: Once) -> int:
    if not Path(config.mark).exists():
        Path(config.mark).touch()
        raise ValueError("on purpose")
    return begun + 1


@kinetic_op(**SMALL)
def ended(number: int) -> int:
    return number + 1


@dg.job(resource_defs={"kinetic": KineticResource()})
def retried() -> None:
    ended(fails_once(begun()))


@pytest.mark.slow
@pytest.mark.turn(7)
@pytest.mark.timeout(900)
def test_a_re_execution_from_failure_goes_on_with_the_slice_that_the_failed_step_has_left(
    tpu_cloud: Emulator, new_instance: Any, tmp_path: Path
) -> None:
    config = {"ops": {"fails_once": {"config": {"mark": str(tmp_path / "mark")}}}}
    before = tpu_cloud.ledger.count("created", "node")
    with new_instance() as instance:
        job = dg.reconstructable(the_retried)
        with dg.execute_job(job, instance, run_config=config) as failed:
            assert not failed.success
        assert [held.lease.state for held in now_kept()] == [FREE], "the step that failed has waited for the offer"
        again = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
        with dg.execute_job(job, instance, run_config=config, reexecution_options=again) as found:
            assert found.success
            assert found.output_for_node("ended") == 3
    tpu_cloud.wait_until_empty(60)
    assert tpu_cloud.ledger.count("created", "node") == before + 1, "of both runs together"
    tpu_cloud.ledger.assert_nothing_left()


def the_retried() -> dg.JobDefinition:
    return retried


@dg.op(required_resource_keys={"kinetic"}, out=dg.Out(is_required=False))
def both(context: dg.OpExecutionContext, begun: int) -> Iterator[dg.Output[int]]:
    """Two jobs at once, of which one finds the slice of the step before; and no output, so that the last is skipped."""
    found = context.resources.kinetic.map(together, [1, 2], max_concurrent=2, **SMALL)
    assert [each.value for each in found] == [1, 2]
    if begun == 0:
        yield dg.Output(begun)


def together(number: int) -> int:
    return number


@dg.job(resource_defs={"kinetic": KineticResource()})
def side_by_side() -> None:
    ended(both(begun()))


@pytest.mark.slow
@pytest.mark.turn(7)
@pytest.mark.timeout(900)
def test_jobs_at_once_have_a_slice_each_which_the_sensor_releases_if_the_last_step_is_skipped(
    tpu_cloud: Emulator, new_instance: Any
) -> None:
    before = tpu_cloud.ledger.count("created", "node")
    with new_instance() as instance:
        result = side_by_side.execute_in_process(instance=instance)
        assert result.success
        wait_until(lambda: [held.lease.state for held in now_kept()] == [FREE, FREE], "two offers", within=60.0)
        assert tpu_cloud.ledger.count("created", "node") == before + 2
        context = dg.build_sensor_context(instance=instance, resources={"kinetic": KineticResource()})
        told = build_kinetic_reaper_sensor().evaluate_tick(context)
        assert "released 2 warm slices of runs that are over" in str(told.skip_message)
    tpu_cloud.wait_until_empty(60)
    tpu_cloud.ledger.assert_nothing_left()


def now_kept() -> list[Any]:
    """The slices of this deployment that are not gone."""
    return [held for held in slices(place_of()[0]) if held.lease.state != ENDED]


def test_the_table_of_choices_marks_prices_that_stand_in_for_others_as_ko_plan_does(
    without_hosts: Emulator, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    enter_deployment(without_hosts, monkeypatch, request)
    here = Here(without_hosts, ("us-east5-a", "us-east5-b"))
    asked = Options(["v6e-8", "v5e-8"], backend="tpu-vm", regions=["us-central1"])
    here.plan = make_plan(JobSpec("train", asked, argv=("x",)), here.settings, {})
    rows = [record.data for record in table_of(JobHandle(here.admit())).records]
    assert [(row["choice"], row["an hour"][:2]) for row in rows] == [("v6e-8", "~$"), ("v5e-8", "$9")]
    assert rows[0]["why"] == "first in your order; ~: that of asia-northeast1, the dearest, stands in"
    assert rows[1]["why"] == "number 2 in your order"


# ---- which runs are over -----------------------------------------------------------------------------------


ALL = dg.DagsterRunStatus
AGAIN = {"dagster/will_retry": "true"}
# A run, its re-execution, that of its re-execution …: status and tags; which of them has left a slice; is that released?
RUNS = {
    "it failed": ([(ALL.FAILURE, {})], 0, True),
    "it was cancelled": ([(ALL.CANCELED, {})], 0, True),
    "it succeeded": ([(ALL.SUCCESS, {})], 0, True),
    "it is cancelled just now": ([(ALL.CANCELING, {})], 0, False),
    "it goes on": ([(ALL.STARTED, {})], 0, False),
    "it is executed again now": ([(ALL.FAILURE, {}), (ALL.STARTED, {})], 0, False),
    "that waits": ([(ALL.CANCELED, {}), (ALL.NOT_STARTED, {})], 0, False),
    "that is over as well": ([(ALL.FAILURE, {}), (ALL.SUCCESS, {})], 0, True),
    "its policy will have it tried again": ([(ALL.FAILURE, AGAIN)], 0, False),
    "and has": ([(ALL.FAILURE, AGAIN), (ALL.FAILURE, {})], 0, True),
    "it has submitted a detached asset": ([(ALL.SUCCESS, {WAITS: "train"})], 0, False),
    "its re-execution is executed again now": ([(ALL.FAILURE, {}), (ALL.FAILURE, {}), (ALL.STARTED, {})], 0, False),
    "all three are over": ([(ALL.FAILURE, {}), (ALL.CANCELED, {}), (ALL.FAILURE, {})], 0, True),
    "the policy will have its re-execution tried again": ([(ALL.FAILURE, AGAIN), (ALL.FAILURE, AGAIN)], 0, False),
    "that has been": ([(ALL.FAILURE, AGAIN), (ALL.FAILURE, AGAIN), (ALL.SUCCESS, {})], 0, True),
    "of a re-execution": ([(ALL.FAILURE, {}), (ALL.FAILURE, {}), (ALL.NOT_STARTED, {})], 1, False),
    "of the last one, which failed": ([(ALL.FAILURE, AGAIN), (ALL.FAILURE, {})], 1, True),
}


@pytest.fixture(scope="module")
def without_hosts() -> Iterator[Emulator]:
    with Emulator(zones=("us-east5-a", "us-east5-b"), hosts=False, creates_per_minute=None) as cloud:
        yield cloud


def family(instance: dg.DagsterInstance, runs: list[tuple[dg.DagsterRunStatus, dict[str, str]]]) -> list[str]:
    """The ids of a run, of its re-execution, of that one's, ….

    Each is as Dagster makes it: with the tags of its parent and of the first of all.
    """
    made: list[str] = []
    for status, tags in runs:
        above: dict[str, Any] = {"parent_run_id": made[-1], "root_run_id": made[0]} if made else {}
        own = {**tags, **{f"dagster/{name}": of for name, of in above.items()}}
        made.append(instance.create_run_for_job(side_by_side, status=status, tags=own, **above).run_id)
    return made


@pytest.mark.parametrize(("runs", "of", "is_over"), RUNS.values(), ids=RUNS)
def test_the_sensor_releases_what_runs_have_left_that_are_over_and_are_not_executed_again(
    without_hosts: Emulator,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    instance: dg.DagsterInstance,
    runs: list[tuple[dg.DagsterRunStatus, dict[str, str]]],
    of: int,
    is_over: bool,
) -> None:
    enter_deployment(without_hosts, monkeypatch, request)
    here = Here(without_hosts, ("us-east5-a", "us-east5-b"))
    run = family(instance, runs)[of]
    job, name = here.kept()
    here.lease(job, name, origin={"orchestrator": "dagster", "run": run})
    context = dg.build_sensor_context(instance=instance, resources={"kinetic": KineticResource()})
    told = str(build_kinetic_reaper_sensor().evaluate_tick(context).skip_message)
    assert ("released 1 warm slice" in told) is is_over, told
    if not is_over:
        assert here.left() == [name]
        without_hosts.sweep()
    without_hosts.wait_until_empty()


def test_a_slice_waits_for_another_re_execution_of_its_runs_root(
    without_hosts: Emulator,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    instance: dg.DagsterInstance,
) -> None:
    enter_deployment(without_hosts, monkeypatch, request)
    here = Here(without_hosts, ("us-east5-a", "us-east5-b"))
    root, first, *_ = family(instance, [(ALL.FAILURE, {}), (ALL.FAILURE, {})])
    second = instance.create_run_for_job(
        side_by_side, status=ALL.STARTED, tags={"dagster/parent_run_id": root, "dagster/root_run_id": root},
        parent_run_id=root, root_run_id=root,
    )  # fmt: skip
    job, name = here.kept()
    here.lease(job, name, origin={"orchestrator": "dagster", "run": first})
    context = dg.build_sensor_context(instance=instance, resources={"kinetic": KineticResource()})
    sensor = build_kinetic_reaper_sensor()
    assert "released" not in str(sensor.evaluate_tick(context).skip_message) and here.left() == [name]
    instance.report_run_failed(second)
    assert "released 1 warm slice" in str(sensor.evaluate_tick(context).skip_message)
    without_hosts.wait_until_empty()
