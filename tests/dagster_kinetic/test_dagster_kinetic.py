"""What a Dagster user sees: assets whose bodies run on every host of a slice."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from dagster_kinetic import HostContext, KineticResource, kinetic_asset, kinetic_op
from kinetic_orchestration.errors import NotAFunction, UnknownAccelerator, UsageError

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "example_pipelines" / "dagster_train_evaluate.py"
RESOURCES = {"kinetic": KineticResource()}


def load(path: Path) -> ModuleType:
    name = f"kinetic_tests_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


pipelines = load(HERE / "pipelines.py")
pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.filterwarnings("default")]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as instance:
        yield instance


def captured(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> str:
    """What the UI shows as the step's output."""
    keys = [event.logs_captured_data.file_key for event in result.all_events if event.event_type_value == "LOGS_CAPTURED"]
    manager = instance.compute_log_manager
    key = manager.build_log_key_for_run(result.run_id, keys[0])
    return (manager.get_log_data(key).stdout or b"").decode()


def messages(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> list[str]:
    return [entry.user_message for entry in instance.all_logs(result.run_id)]


def test_inputs_config_and_partition_reach_the_host_and_its_value_metadata_and_checks_come_back(instance):
    result = dg.materialize(
        [pipelines.numbers, pipelines.total],
        instance=instance,
        partition_key="tuesday",
        resources=RESOURCES,
        run_config={"ops": {"total": {"config": {"factor": 3.0}}}},
    )
    assert result.output_for_node("total") == 18
    [made] = result.asset_materializations_for_node("total")
    assert made.partition == "tuesday"
    assert made.metadata["count"].value == 3
    [check] = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed, check.metadata["value"].value) == ("enough", True, 18)
    assert "adding on tuesday" in captured(instance, result)


def test_what_ran_where_and_for_how_much_is_in_the_metadata(instance):
    result = dg.materialize([pipelines.slice_of_four], instance=instance, resources=RESOURCES)
    [made] = result.asset_materializations_for_node("slice_of_four")
    values = {name: value.value for name, value in made.metadata.items() if name.startswith("kinetic/")}
    assert values["kinetic/job_id"].startswith("job-")
    assert (values["kinetic/accelerator"], values["kinetic/attempts"]) == ("v5e-16", 1)
    assert values["kinetic/seconds"] > 0 and values["kinetic/chip_hours"] > 0
    assert values["kinetic/cost_usd_estimate"] == 0  # an emulated slice costs nothing
    assert "v5litepod-16" in values["kinetic/cost"]


def test_every_hosts_lines_are_in_the_captured_output_and_every_change_in_the_log(instance):
    result = dg.materialize([pipelines.slice_of_four], instance=instance, resources=RESOURCES)
    assert result.output_for_node("slice_of_four") == 4
    text = captured(instance, result)
    for host in range(4):
        assert f"[host {host}] here is {host} of 4\\n" in text
    said = messages(instance, result)
    assert any("runs slice_of_four on v5e-16" in line for line in said)
    assert "running: 4 hosts" in said and "succeeded" in said
    assert any(line.startswith("cost: $0.00 on this machine") for line in said)


def test_metrics_are_observations_of_the_asset(instance):
    result = dg.materialize([pipelines.slice_of_four], instance=instance, resources=RESOURCES)
    seen = [event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()]
    assert [each.asset_key for each in seen] == [dg.AssetKey("slice_of_four")] * len(seen)
    last = {name: value.value for name, value in seen[-1].metadata.items()}
    assert last == {"loss": pytest.approx(1 / 3), "step": 2}


def test_a_failure_shows_the_traceback_of_its_host_and_where_the_log_is(instance):
    result = dg.materialize([pipelines.broken], instance=instance, resources=RESOURCES, raise_on_error=False)
    [failure] = result.get_step_failure_events()
    error = failure.step_failure_data.error.cause
    text = error.to_string()
    assert error.cls_name == "KeyError"
    assert "Raised on host 0 of job job-" in text
    assert 'raise KeyError("no such column")' in text and "pipelines.py" in text
    assert "kinetic-orchestration logs job-" in text
    assert "going wrong" in captured(instance, result)


def test_a_failure_raises_the_users_own_exception():
    with pytest.raises(KeyError, match="no such column"):
        dg.materialize([pipelines.broken], resources=RESOURCES)


def test_a_retry_after_a_failure_runs_again_with_the_same_checkpoints(instance):
    again = kinetic_asset(accelerator="cpu", retry_policy=dg.RetryPolicy(max_retries=1))(broken_once)
    result = dg.materialize([again], instance=instance, resources=RESOURCES)
    first, second = result.output_for_node("broken_once")
    assert first[0] == "0" and second[0] == "1"
    assert first[2:] != second[2:]  # a new job


broken_once = types_function = None


def test_a_resumed_run_goes_on_with_the_checkpoints_of_its_parent(instance):
    first = dg.materialize([pipelines.broken], instance=instance, resources=RESOURCES, raise_on_error=False)
    job = dg.Definitions([pipelines.broken], resources=RESOURCES).resolve_implicit_global_asset_job_def()
    run = instance.create_run_for_job(
        job, parent_run_id=first.run_id, root_run_id=first.run_id, tags={"dagster/is_resume_retry": "true"}
    )
    with dg.reconstructable and None:
        pass
