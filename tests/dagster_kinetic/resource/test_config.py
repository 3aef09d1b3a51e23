"""The changes of one launch to its jobs, by run config and by tags; and the labels that name their origin."""

import json
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from dagster_kinetic import (
    HostContext,
    KineticResource,
    KineticRunConfig,
    PipesKineticClient,
    kinetic_asset,
    kinetic_op,
)
from dagster_kinetic.resource.config import TAG
from kinetic_orchestration import Kubernetes, Limits, TpuVm, attach
from kinetic_orchestration.errors import KineticError, UsageError
from kinetic_orchestration.plan.declare.choices import OF_CAPACITY
from kinetic_orchestration.plan.declare.spec import Options
from tests.dagster_kinetic.stored import made_of

pytestmark = pytest.mark.usefixtures("shared_home")
KINETIC = {"kinetic": KineticResource()}


def hosts(host: HostContext) -> int:
    return host.host_count


def plan_of(job: str) -> Any:
    return attach(job)._job.plan()


def materialized(asset: dg.AssetsDefinition, **given: Any) -> dict[str, Any]:
    """The metadata of the asset, with `hosts` of its job."""
    result = dg.materialize([asset], resources=KINETIC, **given)
    [key] = asset.keys
    values = made_of(result, key.to_user_string())
    return {**values, "hosts": plan_of(values["kinetic/job_id"]).hosts, "value": result.output_for_node("sized")}


@kinetic_asset(accelerator="cpu", name="sized", limits=Limits(run="2h", stall="1h"))
def sized(host: HostContext) -> int:
    return host.host_count


def config_of(**given: Any) -> dict[str, Any]:
    return {"ops": {"sized": {"config": given}}}


@pytest.mark.filterwarnings("ignore:.*no meaning")
def test_a_run_config_names_another_slice_and_other_bounds_and_what_it_leaves_out_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "local")  # zones mean the cloud
    found = materialized(sized, run_config=config_of(accelerator="v5e-8", limits={"run": "3h"}, zones=["us-east5-a"]))
    assert (found["kinetic/accelerator"], found["hosts"], found["value"]) == ("v5e-8", 1, 1)
    limits = plan_of(found["kinetic/job_id"]).limits
    assert (limits.run, limits.stall) == (3 * 3600, 3600)


@pytest.mark.parametrize(
    "op, run, config, wanted",
    [
        (None, None, None, "cpu"),
        ({"accelerator": "v5e-1"}, None, None, "v5e-1"),
        ({"accelerator": "v5e-1"}, {"accelerator": "v5e-4"}, None, "v5e-4"),
        ({"accelerator": "v5e-1"}, {"accelerator": "v5e-4"}, {"accelerator": "v5e-8"}, "v5e-8"),
        ({"accelerator": "v5e-1"}, {"limits": {"run": "1h"}}, {}, "v5e-1"),
    ],
)
def test_the_tag_of_the_op_gives_way_to_that_of_the_run_and_both_to_its_config(op, run, config, wanted) -> None:
    @dg.asset(op_tags={TAG: op} if op else None)
    def asked(context: dg.AssetExecutionContext, kinetic: KineticResource, config: KineticRunConfig) -> str:
        return kinetic.overridden_by(config)._options({"accelerator": "cpu"}, context).accelerator

    tags = {TAG: json.dumps(run)} if run else None
    run_config = {"ops": {"asked": {"config": config}}} if config else None
    result = dg.materialize([asked], resources=KINETIC, tags=tags, run_config=run_config)
    assert result.output_for_node("asked") == wanted


def test_the_tag_of_an_op_decides_on_what_its_job_runs() -> None:
    asset = kinetic_asset(accelerator="cpu", name="sized", op_tags={TAG: {"accelerator": "v5e-4"}})(hosts)
    assert materialized(asset)["kinetic/accelerator"] == "v5e-4"


def test_the_tag_of_a_run_holds_for_steps_of_every_kind(tmp_path) -> None:
    @dg.asset
    def called(context: dg.AssetExecutionContext, kinetic: KineticResource) -> int:
        return kinetic.run(hosts_there, accelerator="cpu", context=context)

    @dg.asset
    def piped(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        return pipes.run(context=context, command=["true"], cwd=tmp_path, accelerator="cpu").get_materialize_result()

    tags = KineticRunConfig(accelerator="v5e-4").to_tags()
    resources = {**KINETIC, "pipes": PipesKineticClient()}
    result = dg.materialize([called, piped], resources=resources, tags=tags)
    assert {made_of(result, name)["kinetic/accelerator"] for name in ("called", "piped")} == {"v5e-4"}


def hosts_there() -> int:
    return 1


def test_a_plain_step_may_take_it_too_and_a_component_does() -> None:
    @dg.asset
    def mine(context: dg.AssetExecutionContext, kinetic: KineticResource, config: KineticRunConfig) -> int:
        return kinetic.overridden_by(config).run(hosts_there, accelerator="cpu", context=context)

    run_config = {"ops": {"mine": {"config": {"accelerator": "v5e-1"}}}}
    result = dg.materialize([mine], resources=KINETIC, run_config=run_config)
    assert made_of(result, "mine")["kinetic/accelerator"] == "v5e-1"


def test_an_op_and_a_direct_call_take_it_and_a_body_with_config_of_its_own_keeps_it() -> None:
    class Training(dg.Config):
        epochs: int = 3

    @kinetic_asset(accelerator="cpu")
    def trained(config: Training) -> int:
        return config.epochs

    @kinetic_asset(accelerator="cpu", config_schema={"epochs": int})
    def old_style(config: dict[str, int]) -> int:
        return config["epochs"]

    assert trained.op.config_schema.config_type.fields.keys() == {"epochs"}
    assert old_style.op.config_schema.config_type.fields.keys() == {"epochs"}
    op = kinetic_op(accelerator="cpu", name="sized")(hosts)
    assert set(op.config_schema.config_type.fields) == {
        *OF_CAPACITY, "accelerator", "spot", "zones", "cluster", "namespace", "limits", "profile"
    }  # fmt: skip
    assert op(dg.build_op_context(resources=KINETIC, config={"accelerator": "v5e-16"})) == 4
    given = {"config": KineticRunConfig(accelerator="gpu", limits={"cost": 1}), "kinetic": KineticResource()}
    with pytest.raises(KineticError, match="GPU"):  # which says that the config was taken
        sized(dg.build_asset_context(), **given)


def options(config: KineticRunConfig, **given: Any) -> Options:
    return KineticResource().overridden_by(config)._options(given)


def test_what_a_launch_says_of_the_place_replaces_every_other_word_of_it() -> None:
    in_clouds_words = TpuVm(accelerator_type="v5p-8", zones=("us-east5-a",), network="lan")
    found = options(KineticRunConfig(accelerator="v6e-8", zones=["us-west4-a"], spot=True), cloud=in_clouds_words)
    assert (found.accelerator, found.spot) == ("v6e-8", True)
    assert found.cloud == TpuVm(zones=("us-west4-a",), network="lan")
    found = options(KineticRunConfig(zones=["us-west4-a"], spot=False), accelerator="v6e-8", zone="b", spot=True)
    assert (found.zone, found.cloud, found.spot) == (None, TpuVm(zones=("us-west4-a",)), False)


def test_the_cluster_of_a_launch_replaces_every_other_word_of_it() -> None:
    several = Kubernetes(clusters=("east", "west"), queue="tpus")
    found = options(KineticRunConfig(cluster="prod", namespace="night"), cloud=several, namespace="day")
    assert (found.cluster, found.namespace, found.cloud) == ("prod", "night", Kubernetes(queue="tpus"))
    found = options(KineticRunConfig(namespace="night"), cluster="prod", namespace="day")
    assert (found.cluster, found.namespace) == ("prod", "night")
    found = options(KineticRunConfig(namespace="night"), cloud=Kubernetes(namespaces=("a", "b")))
    assert (found.namespace, found.cloud) == ("night", Kubernetes())
    config = KineticRunConfig(cluster="prod", namespace="night")
    assert json.loads(config.to_tags()[TAG]) == {"cluster": "prod", "namespace": "night"}


def test_the_tag_says_what_was_given_and_nothing_else() -> None:
    config = KineticRunConfig(spot=False, zones=["us-west4-a"], limits={"cost": 5})
    assert {TAG: json.loads(config.to_tags()[TAG])} == {
        TAG: {"spot": False, "zones": ["us-west4-a"], "limits": {"cost": 5.0}}
    }


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, says",
    [
        ({"accelerator": "v5e-17"}, "v5e-16"),
        ({"spott": True}, "did you mean spot"),
        ({"limits": {"rum": "1h"}}, "did you mean run"),
        ({"limits": {"run": "soon"}}, "limits.run is 'soon'"),
        ({"zones": "us-west4-a"}, "zones"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(given, says) -> None:
    with pytest.raises((ValidationError, KineticError), match=says):
        KineticRunConfig(**given)
    with pytest.raises(UsageError, match=says) as caught:
        kinetic_asset(accelerator="cpu", op_tags={TAG: given})(hosts)
    assert f"the tag {TAG} of op_tags of hosts" in str(caught.value)
    with pytest.raises(UsageError, match=says):
        kinetic_op(accelerator="cpu", tags={TAG: json.dumps(given)})(hosts)


def test_a_tag_of_the_run_that_is_no_json_is_refused_before_there_is_a_job() -> None:
    with pytest.raises(UsageError, match=f"the tag {TAG} of the run is 'v5e-16', and should be an object in JSON"):
        dg.materialize([sized], resources=KINETIC, tags={TAG: "v5e-16"})


@pytest.mark.parametrize(
    "given",
    [{"accelerator": dg.EnvVar("SLICE")}, {"zones": [dg.EnvVar("ZONE")]}, {"limits": {"run": dg.EnvVar("LONG")}}],
)
def test_a_variable_is_no_text_of_a_tag(given) -> None:
    with pytest.raises(UsageError, match="an EnvVar has its value in the run only"):
        KineticRunConfig(**given).to_tags()


class Training(KineticRunConfig):
    epochs: int = 3


class Nested(dg.Config):
    kinetic: KineticRunConfig = KineticRunConfig()


@pytest.mark.parametrize("kind", [KineticRunConfig, Training, Nested])
def test_a_body_that_takes_it_is_told_that_it_need_not(kind) -> None:
    def body(config): ...

    body.__annotations__ = {"config": kind}
    with pytest.raises(UsageError, match=r"leave it out.*to_tags\(\)"):
        kinetic_asset(accelerator="cpu")(body)


# ---- by whom -----------------------------------------------------------------------------------------------

days = dg.StaticPartitionsDefinition(["d1", "d2"])


def test_every_job_is_labelled_with_the_run_the_step_the_asset_and_the_owner(instance, monkeypatch) -> None:
    monkeypatch.setenv("DAGSTER_CLOUD_GIT_SHA", "0a1b2c")
    asset = kinetic_asset(
        accelerator="cpu", key_prefix="models", name="sized", partitions_def=days, owners=["team:Ranking", "a@b.com"]
    )(hosts)
    job = dg.define_asset_job("nightly", [asset])
    defs = dg.Definitions([asset], jobs=[job], resources=KINETIC, executor=dg.in_process_executor)
    result = defs.resolve_job_def("nightly").execute_in_process(instance=instance, partition_key="d2")
    [made] = result.asset_materializations_for_node("models__sized")
    assert plan_of(made.metadata["kinetic/job_id"].value).labels == {
        "pipeline": "nightly",
        "step": "models__sized",
        "run": result.run_id,
        "asset": "models/sized",
        "owner": "Ranking",
        "dagster-partition": "d2",
        "dagster-git-sha": "0a1b2c",
    }


def test_who_launched_it_is_the_owner_of_what_nobody_owns_and_the_users_own_labels_have_the_last_word() -> None:
    @dg.op
    def submits(context: dg.OpExecutionContext, kinetic: KineticResource) -> str:
        return kinetic.submit(
            hosts_there, accelerator="cpu", context=context, labels={"step": "mine", "team": "x"}
        ).job_id

    @dg.job(resource_defs={"kinetic": KineticResource(labels={"team": "y", "cost-center": "7"})})
    def submitting() -> None:
        submits()

    result = submitting.execute_in_process(tags={"dagster/user": "ann@example.com"})
    job = result.output_for_node("submits")
    labels = plan_of(job).labels
    assert labels.pop("dagster-user") == labels["owner"] == "ann@example.com"
    assert labels == {
        "pipeline": "submitting", "step": "mine", "run": result.run_id, "owner": "ann@example.com",
        "team": "x", "cost-center": "7",
    }  # fmt: skip
    assert attach(job).result(timeout=60) == 1


def test_a_call_in_a_test_has_no_labels_of_a_run() -> None:
    @dg.asset
    def submitted(context: dg.AssetExecutionContext, kinetic: KineticResource) -> str:
        return kinetic.submit(hosts_there, accelerator="cpu", context=context).job_id

    job = submitted(dg.build_asset_context(), kinetic=KineticResource())
    assert plan_of(job).labels == {}
    assert attach(job).result(timeout=60) == 1
