"""Several accelerators, regions and ways of buying, wherever Dagster takes the options of a job."""

import json
import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox
from pydantic import ValidationError

import kinetic_orchestration as kinetic
from dagster_kinetic import (
    HostContext,
    KineticJobComponent,
    KineticResource,
    KineticRunConfig,
    kinetic_asset,
    kinetic_op,
)
from dagster_kinetic.resource.config import TAG
from kinetic_orchestration import Choice, Compute, Limits, TpuVm
from kinetic_orchestration.errors import KineticError, NotEmulated, UsageError
from kinetic_orchestration.plan.declare.spec import Options
from tests.support.waits import wait_until

pytestmark = [
    pytest.mark.usefixtures("shared_home"),
    pytest.mark.filterwarnings("ignore:.*parse_obj_as", "ignore:.*is currently in beta"),
]

SPOT_ONLY = {"accelerator": "v6e-8", "capacity": ["spot"], "limits": {"run": "2h"}}
AS_CHOICE = Choice("v6e-8", capacity=["spot"], limits=Limits(run="2h"))


def hosts(host: HostContext) -> int:
    return host.host_count


def options(config: KineticRunConfig | None = None, resource: KineticResource | None = None, **given: Any) -> Options:
    """The options of a job of a resource, with what one launch changes."""
    return (resource or KineticResource()).overridden_by(config)._options({"accelerator": "v5e-8", **given})


# ---- the decorators and the resource -----------------------------------------------------------------------


def test_an_asset_says_what_it_may_run_on_and_how_that_may_be_bought() -> None:
    asset = kinetic_asset(accelerator=["v6e-8", "v5p-8"], capacity=["spot", "on-demand"])(hosts)
    [spec] = asset.specs
    assert spec.metadata["kinetic/accelerator"] == "v6e-8 or v5p-8"
    assert spec.metadata["kinetic/capacity"] == "spot, on-demand"


@pytest.mark.parametrize(
    ("accelerator", "kinds"),
    [
        (["v6e-8", kinetic.Gpu("h100", 8)], {"tpu", "gpu"}),
        ([AS_CHOICE, "v5e-8"], {"tpu"}),
        ([SPOT_ONLY, "cpu"], {"tpu"}),
    ],
)
def test_the_kinds_of_an_asset_are_those_of_each_accelerator(accelerator: Any, kinds: set[str]) -> None:
    [spec] = kinetic_asset(accelerator=accelerator)(hosts).specs
    assert spec.kinds == kinds


def test_a_resource_says_where_and_how_all_jobs_are_bought_unless_one_says_it_itself() -> None:
    shared = KineticResource(capacity=["spot", "on-demand"], regions=["us-central1"], by="price")
    found = options(resource=shared)
    assert (found.capacity, found.regions, found.by) == (["spot", "on-demand"], ["us-central1"], "price")
    found = options(resource=shared, spot=False)
    assert (found.spot, found.capacity) == (False, None), "an asset that says whether spot is on demand alone"
    found = options(resource=shared, cloud=TpuVm(zones=["us-west4-a"]))
    assert (found.regions, found.cloud) == (None, TpuVm(zones=["us-west4-a"]))
    in_zones = KineticResource(zones=["us-west4-a"], spot=True, cloud={"network": "lan"})
    found = options(resource=in_zones, regions=["us-central1"], capacity=["on-demand"])
    assert (found.regions, found.cloud) == (["us-central1"], TpuVm(network="lan"))
    assert (found.spot, found.capacity) == (False, ["on-demand"])


def test_a_resource_takes_them_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAY", "spot")
    monkeypatch.setenv("REGION", "us-central1")
    monkeypatch.setenv("RULE", "price")
    shared = KineticResource(
        capacity=[dg.EnvVar("WAY"), "on-demand"], regions=[dg.EnvVar("REGION")], by=dg.EnvVar("RULE")
    )

    @dg.asset
    def told(kinetic: KineticResource) -> dict[str, Any]:
        found = kinetic._options({"accelerator": ["v6e-8", "v5e-8"]})
        return {"capacity": found.capacity, "regions": found.regions, "by": found.by}

    result = dg.materialize([told], resources={"kinetic": shared})
    assert result.output_for_node("told") == {
        "capacity": ["spot", "on-demand"], "regions": ["us-central1"], "by": "price"
    }  # fmt: skip


def test_an_asset_that_says_how_it_is_bought_is_not_trained_on_this_machine_for_want_of_a_store() -> None:
    for resource, given in ((KineticResource(), {"capacity": ["spot"]}), (KineticResource(regions=["us-west4"]), {})):
        asset = kinetic_asset(accelerator=["v5e-8", "v5e-4"], **given)(hosts)
        with pytest.raises(NotEmulated, match=r"(capacity|regions)=\['(spot|us-west4)'\] means Google Cloud"):
            dg.materialize([asset], resources={"kinetic": resource})


# ---- one launch --------------------------------------------------------------------------------------------


def test_a_run_config_names_several_in_yamls_own_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLICES", "v6e-4, v5e-4")
    monkeypatch.setenv("SLICE", "v5e-1")
    found = []

    @dg.op
    def asked(config: KineticRunConfig) -> None:
        found.append(options(config, capacity=["on-demand"]))

    @dg.job
    def launched() -> None:
        asked()

    for accelerator in ("v5e-4", ["v6e-8", "v5e-8"], [SPOT_ONLY, "v5e-8"], {"env": "SLICES"}, [{"env": "SLICE"}]):
        config = {
            "accelerator": accelerator,
            "capacity": ["spot", "on-demand"],
            "regions": ["us-central1"],
            "by": "price",
        }
        assert launched.execute_in_process(run_config={"ops": {"asked": {"config": config}}}).success
    assert [each.accelerator for each in found] == [
        "v5e-4", ["v6e-8", "v5e-8"], [AS_CHOICE, "v5e-8"], ["v6e-4", "v5e-4"], ["v5e-1"]
    ]  # fmt: skip
    assert {(*each.capacity, *each.regions, each.by) for each in found} == {
        ("spot", "on-demand", "us-central1", "price")
    }


def test_a_tag_carries_a_choice_as_json() -> None:
    config = KineticRunConfig(accelerator=[AS_CHOICE, kinetic.Gpu("l4", 4)], capacity=["spot"])
    tag = config.to_tags()[TAG]
    assert json.loads(tag) == {"accelerator": [SPOT_ONLY, "l4x4"], "capacity": ["spot"]}
    found = options(KineticRunConfig(**json.loads(tag)))
    assert found.accelerator == [AS_CHOICE, "l4x4"]


def test_a_launch_that_says_spot_takes_the_place_of_the_ways_in_the_code() -> None:
    found = options(KineticRunConfig(spot=False), capacity=["spot", "flex-start"])
    assert (found.spot, found.capacity) == (False, None)
    found = options(KineticRunConfig(capacity=["on-demand"]), spot=True)
    assert (found.spot, found.capacity) == (False, ["on-demand"])
    found = options(KineticRunConfig(regions=["us-central1"]), zone="us-west4-a", cloud=Compute(zones=["b-c1-a"]))
    assert (found.zone, found.regions, found.cloud) == (None, ["us-central1"], Compute())
    found = options(KineticRunConfig(zones=["us-west4-a"]), regions=["us-central1"])
    assert (found.regions, found.cloud) == (None, TpuVm(zones=("us-west4-a",)))


# ---- YAML --------------------------------------------------------------------------------------------------


def component(**attributes: Any) -> Any:
    with create_defs_folder_sandbox() as sandbox:
        given = {"assets": [{"key": "model"}], "command": ["true"], **attributes}
        contents = {"type": "dagster_kinetic.KineticJobComponent", "attributes": given}
        path = sandbox.scaffold_component(KineticJobComponent, defs_path="training", defs_yaml_contents=contents)
        with sandbox.load_component_and_build_defs(defs_path=path) as (made, defs):
            return made, defs


def test_a_component_lists_them_in_its_file() -> None:
    made, defs = component(
        accelerator=[SPOT_ONLY, "h100x8"], options={"capacity": ["spot", "on-demand"], "regions": ["us-central1"]}
    )
    assert made.accelerator == [AS_CHOICE, "h100x8"]
    assert made.options == {"capacity": ["spot", "on-demand"], "regions": ["us-central1"]}
    [spec] = defs.resolve_all_asset_specs()
    assert spec.kinds == {"tpu", "gpu"}


# ---- what is refused ---------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"accelerator": ["v6e-8", "v5e-17"]}, "v5e-16"),
    ({"accelerator": []}, "accelerator is a name such as 'v5e-8', or a list of names"),
    ({"accelerator": [{"accelerator": "v6e-8", "capasity": ["spot"]}]}, "no 'capasity': did you mean capacity"),
    ({"accelerator": [{"capacity": ["spot"]}]}, "names one accelerator"),
    ({"accelerator": [{"accelerator": "v6e-8", "limits": {"rum": "1h"}}]}, "limits of a choice have no 'rum'"),
]


@pytest.mark.parametrize(("given", "says"), WRONG, ids=str)
def test_what_cannot_be_is_refused_where_it_is_written(given: dict[str, Any], says: str) -> None:
    with pytest.raises(KineticError, match=says):
        kinetic_asset(**given)(hosts)
    with pytest.raises(KineticError, match=says):
        kinetic_op(**given)(hosts)
    with pytest.raises((ValidationError, KineticError), match=says):
        KineticRunConfig(**given)
    with pytest.raises(UsageError, match=says) as caught:
        kinetic_asset(accelerator="cpu", op_tags={TAG: given})(hosts)
    assert f"the tag {TAG} of op_tags of hosts" in str(caught.value)
    with pytest.raises(Exception, match=r"defs\.yaml") as loaded:
        component(**given)
    texts, error = [], loaded.value
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    assert any(says.partition(":")[0] in text for text in texts)


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ValidationError, match="accelerator is the variable 'NOT_SET_HERE', which is not set"):
        KineticRunConfig(accelerator={"env": "NOT_SET_HERE"})


# ---- the pipeline that a share and a budget mean -----------------------------------------------------------


@pytest.mark.parametrize(("pipeline", "is_refused"), [("model", True), ("hosts", False), ("dagster", False)])
def test_a_share_of_a_pipeline_means_the_asset_as_a_budget_does(
    monkeypatch: pytest.MonkeyPatch, pipeline: str, is_refused: bool
) -> None:
    monkeypatch.setenv("KINETIC_DEPLOYMENT", f"share-of-{pipeline}")
    monkeypatch.setenv("KINETIC_CHIPS", f"v5e=64,pipeline:{pipeline}=2")
    asset = kinetic_asset(name="model", accelerator="v5e-4")(hosts)
    result = dg.materialize([asset], resources={"kinetic": KineticResource()}, raise_on_error=False)
    assert result.success is not is_refused
    if is_refused:
        [failure] = result.get_step_failure_events()
        assert "takes 4 chips of the share pipeline:model=2, and so could never run" in str(failure.step_failure_data)


@kinetic.run(accelerator="v5e-4")
def holds(path: str) -> None:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.05)


@pytest.mark.slow
def test_a_step_that_waits_for_its_share_of_chips_tells_its_place_in_the_line_in_its_run(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting is not a failure and says its place in the line."""
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "waits-in-line")
    monkeypatch.setenv("KINETIC_CHIPS", "v5e=4")
    job = holds.run_async(str(tmp_path / "go"))

    def told() -> list[str]:
        return [
            entry.message or entry.user_message
            for run in instance.get_runs()
            for entry in instance.all_logs(run.run_id)
        ]

    def make_room() -> None:
        wait_until(lambda: any("in line" in text for text in told()), "its place in the line", within=100.0)
        (tmp_path / "go").touch()
        job.result(timeout=60.0)

    thread = threading.Thread(target=make_room)
    thread.start()
    asset = kinetic_asset(name="model", accelerator="v5e-4")(hosts)
    try:
        result = dg.materialize([asset], resources={"kinetic": KineticResource()}, instance=instance)
    finally:
        (tmp_path / "go").touch()
        thread.join()
    assert result.success
    assert any("queued: 1st in line for 4 of v5e=4 chips (4 in use)" in text for text in told())
