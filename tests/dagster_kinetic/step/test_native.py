"""Features of a plain Dagster step work in one that runs on accelerators; those that its body cannot use are refused."""

import datetime
import warnings
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import kinetic_orchestration as kinetic
from dagster_kinetic import (
    HostContext,
    KineticResource,
    PipesKineticClient,
    kinetic_asset,
    kinetic_multi_asset,
    kinetic_op,
)
from kinetic_orchestration.errors import UsageError
from tests.dagster_kinetic.assets import many_assets
from tests.dagster_kinetic.stored import made_of, messages

pytestmark = pytest.mark.usefixtures("shared_home")
KINETIC = {"kinetic": KineticResource()}


def first_time(host: HostContext) -> bool:
    """Return True if no earlier try has left a checkpoint."""
    mark = Path(host.checkpoint_dir, "tried")
    mark.parent.mkdir(parents=True, exist_ok=True)
    found = mark.exists()
    mark.touch()
    return not found


def doubled(number: int) -> int:
    kinetic.current().log_metrics(step=0, loss=0.5)
    return 2 * number


def events(result: dg.ExecuteInProcessResult, kind: str) -> int:
    return sum(event.event_type_value == kind for event in result.all_events)


# ---- how a body ends ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_failure_of_dagsters_own_keeps_its_metadata_and_is_not_tried_again_if_it_says_so():
    @kinetic_asset(accelerator="cpu", retry_policy=dg.RetryPolicy(max_retries=2))
    def rows():
        raise dg.Failure("no rows", metadata={"rows": 0}, allow_retries=False)

    result = dg.materialize([rows], resources=KINETIC, raise_on_error=False)
    assert events(result, "STEP_UP_FOR_RETRY") == 0
    told = result.failure_data_for_node("rows").user_failure_data
    assert "no rows" in told.description
    assert told.metadata["rows"].value == 0 and "kinetic/job_id" in told.metadata


@pytest.mark.slow
@pytest.mark.turn(8)
def test_a_body_may_ask_to_be_tried_again():
    @kinetic_asset(accelerator="cpu")
    def stubborn(host: HostContext):
        if first_time(host):
            raise dg.RetryRequested(max_retries=1) from OSError("the disk was full")
        return "at last"

    result = dg.materialize([stubborn], resources=KINETIC)
    [tried] = [event for event in result.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]
    told = tried.step_retry_data.error.to_string()
    assert "stubborn failed: RetryRequested" in told and "the disk was full" in told
    assert result.output_for_node("stubborn") == "at last"


@pytest.mark.slow
@pytest.mark.turn(8)
def test_a_body_may_leave_out_what_need_not_be_made_and_is_told_what_it_forgot():
    outs = {"model": dg.AssetOut(), "picture": dg.AssetOut(is_required=False)}

    @kinetic_multi_asset(accelerator="cpu", outs=outs)
    def trained():
        return dg.Output(1, output_name="model")

    @kinetic_asset(accelerator="cpu", check_specs=[dg.AssetCheckSpec("sound", asset="checked")])
    def checked():
        return dg.MaterializeResult(metadata={"rows": 3})

    result = dg.materialize([trained], resources=KINETIC)
    assert [each.asset_key.to_user_string() for each in result.get_asset_materialization_events()] == ["model"]
    failed = dg.materialize([checked], resources=KINETIC, raise_on_error=False).failure_data_for_node("checked")
    assert 'did not return an output for non-optional output "checked_sound"' in failed.error.message


# ---- where a job may run -----------------------------------------------------------------------------------


@dg.asset
def model() -> int:
    return 3


@pytest.mark.slow
@pytest.mark.turn(4)
def test_an_asset_check_may_run_jobs_and_its_log_says_which(instance):
    @dg.asset_check(asset=model, blocking=True)
    def doubles(context: dg.AssetCheckExecutionContext, model: int, kinetic: KineticResource):
        value = kinetic.run(doubled, args=(model,), accelerator="cpu", context=context)
        many = kinetic.map(doubled, [1, 2], accelerator="cpu", context=context)
        return dg.AssetCheckResult(passed=(value, [each.get() for each in many]) == (6, [2, 4]))

    result = dg.materialize([model, doubles], resources=KINETIC, instance=instance)
    [check] = result.get_asset_check_evaluations()
    assert check.passed and check.asset_key == model.key
    said = messages(instance, result)
    assert any(line.startswith("kinetic/job_id: job-") for line in said)
    assert any("~kinetic/1/jobs: 2" in line for line in said)


def test_an_asset_check_may_speak_pipes():
    @dg.asset_check(asset=model)
    def reported(context: dg.AssetCheckExecutionContext, pipes: PipesKineticClient):
        script = "from dagster_pipes import open_dagster_pipes\nwith open_dagster_pipes() as pipes:\n"
        script += "    pipes.report_asset_check('reported', passed=True, asset_key='model')\n"
        invocation = pipes.run(context=context, command=["python", "-c", script], accelerator="cpu")
        return invocation.get_asset_check_result()

    result = dg.materialize([model, reported], resources={"pipes": PipesKineticClient()})
    [check] = result.get_asset_check_evaluations()
    assert check.passed and "kinetic/job_id" in check.metadata


def test_a_step_that_does_not_name_itself_has_its_job_all_the_same():
    @dg.asset
    def forgetful(kinetic: KineticResource) -> list[int]:
        one = kinetic.run(doubled, args=(1,), accelerator="cpu")
        return [one, *(each.get() for each in kinetic.map(doubled, [2], accelerator="cpu"))]

    result = dg.materialize([forgetful], resources=KINETIC)
    assert result.output_for_node("forgetful") == [2, 4]
    assert {"kinetic/job_id", "~kinetic/1/jobs"} <= made_of(result, "forgetful").keys()


def test_a_context_of_no_step_is_refused():
    with pytest.raises(UsageError, match="context is a SensorEvaluationContext: give that of an asset"):
        KineticResource().submit(doubled, args=(1,), accelerator="cpu", context=dg.build_sensor_context())


@pytest.mark.slow
def test_a_range_of_one_partition_is_that_partition():
    """Dagster requests such a range of an asset whose backfills are single runs."""
    day = "2024-01-02"
    tags = {"dagster/asset_partition_range_start": day, "dagster/asset_partition_range_end": day}
    result = dg.materialize([many_assets.daily], resources=KINETIC, tags=tags)
    [made] = result.get_asset_materialization_events()
    assert made.materialization.metadata["days"].value == day


# ---- keywords ----------------------------------------------------------------------------------------------


def taken(upstream: int): ...


@dg.success_hook(required_resource_keys={"channel"})
def tells(context: dg.HookContext) -> None: ...


def test_an_asset_is_to_dagster_what_a_plain_one_with_the_same_keywords_is():
    check = dg.AssetCheckSpec("sound", asset=dg.AssetKey(["models", "ranker"]), blocking=True)
    with warnings.catch_warnings(action="ignore"):  # some are beta
        keywords: dict[str, Any] = {
            "name": "ranker", "key_prefix": "models", "metadata": {"own": 1}, "tags": {"of": "tests"},
            "description": "Ranks.", "hooks": {tells}, "io_manager_key": "kept", "dagster_type": dg.Int,
            "partitions_def": many_assets.DAYS, "op_tags": {"of": "the op"}, "group_name": "models",
            "output_required": False, "automation_condition": dg.AutomationCondition.eager(), "code_version": "3",
            "freshness_policy": dg.FreshnessPolicy.time_window(fail_window=datetime.timedelta(hours=1)),
            "backfill_policy": dg.BackfillPolicy.single_run(), "retry_policy": dg.RetryPolicy(), "pool": "tpu",
            "owners": ["team:models"], "kinds": {"keras"}, "check_specs": [check], "deps": ["elsewhere"],
            "ins": {"upstream": dg.AssetIn("numbers", metadata={"how": "all"}, input_manager_key="loaded")},
        }  # fmt: skip
        plain, ours = dg.asset(**keywords)(taken), kinetic_asset(accelerator="cpu", **keywords)(taken)
    [expected], [spec] = plain.specs, ours.specs
    assert spec.replace_attributes(metadata=expected.metadata) == expected
    for name in ("hook_defs", "backfill_policy", "check_keys", "partitions_def"):
        assert getattr(ours, name) == getattr(plain, name), name
    assert ours.required_resource_keys == plain.required_resource_keys | {"kinetic"}
    for name in ("tags", "pool", "retry_policy", "name"):
        assert getattr(ours.op, name) == getattr(plain.op, name), name
    for mine, theirs in zip(
        [*ours.op.input_defs, *ours.op.output_defs], [*plain.op.input_defs, *plain.op.output_defs], strict=True
    ):
        assert (mine.name, mine.dagster_type, mine.metadata) == (theirs.name, theirs.dagster_type, theirs.metadata)


def test_keywords_that_dagster_does_not_show_are_taken():
    assert kinetic_asset(accelerator="cpu", compute_kind="jax")(taken).op.tags == {"dagster/compute_kind": "jax"}


@pytest.mark.slow
@pytest.mark.turn(4)
def test_what_a_config_schema_allows_reaches_the_body():
    @kinetic_asset(accelerator="cpu", config_schema={"rate": float, "steps": dg.Field(int, default_value=3)})
    def trained(host, config):
        return config

    @kinetic_op(accelerator="cpu", config_schema={"more": int})
    def plus(config, number: int = 2):
        return number + config["more"]

    @dg.job(resource_defs=KINETIC)
    def adding():
        plus()

    added = adding.execute_in_process(run_config={"ops": {"plus": {"config": {"more": 1}}}})
    assert added.output_for_node("plus") == 3
    context = dg.build_asset_context(asset_config={"rate": 1.0})
    assert trained(context, kinetic=KineticResource()) == {"rate": 1.0, "steps": 3}


def takes_private_context(_context): ...
def takes_nothing(): ...


@pytest.mark.parametrize(
    "decorate, says",
    [
        (lambda: kinetic_asset(accelerator="cpu")(takes_private_context), "takes Dagster's context in '_context'"),
        (lambda: kinetic_asset(accelerator="cpu")(model), "leave that one out"),
        (lambda: KineticResource().run(model, accelerator="cpu"), "give the function itself"),
        (
            lambda: kinetic_asset(accelerator="cpu", required_resource_keys={"client"})(takes_nothing),
            "annotated with the class of the resource",
        ),
        (
            lambda: kinetic_op(accelerator="cpu", config_schema={"rate": float})(takes_nothing),
            "take a parameter 'config'",
        ),
    ],
)
def test_what_a_body_could_not_see_is_refused_where_it_is_written(decorate, says):
    with pytest.raises(UsageError) as caught:
        decorate()
    assert says in str(caught.value)
