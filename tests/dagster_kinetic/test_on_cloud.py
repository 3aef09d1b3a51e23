"""Pipes and the detached pattern on slices of an emulated cloud: the messages come by a bucket, the looks are requests."""

import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_kinetic import (
    HostContext,
    KineticResource,
    PipesKineticClient,
    build_kinetic_completion_sensor,
    kinetic_asset,
)
from dagster_kinetic.step.ticket import tickets_of
from kinetic_orchestration import Choice, attach
from kinetic_orchestration.jobs.watching.poll import Poll
from kinetic_orchestration.testing import Emulator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_script_speaks_pipes_from_a_slice(
    tpu_cloud: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_instance: Any
) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\n"
        "from dagster_pipes import open_dagster_pipes\n"
        "with open_dagster_pipes() as pipes:\n"
        "    pipes.log.info('from the slice')\n"
        "    pipes.report_custom_message({'text': 'x' * 100_000})\n"
        "    pipes.report_asset_materialization({'loss': pipes.get_extra('loss')}, data_version='alpha')\n"
    )
    monkeypatch.chdir(tmp_path)
    told: list[Any] = []

    @dg.asset
    def model(context: dg.AssetExecutionContext, pipes: PipesKineticClient):
        invocation = pipes.run(
            context=context, command=["python", "train.py"], accelerator="v5e-1", extras={"loss": 0.25}
        )
        told.extend(invocation.get_custom_messages())
        return invocation.get_materialize_result()

    with new_instance() as instance:
        result = dg.materialize([model], instance=instance, resources={"pipes": PipesKineticClient()})
        assert "from the slice" in [entry.user_message for entry in instance.all_logs(result.run_id)]
    [made] = result.asset_materializations_for_node("model")
    assert made.metadata["loss"].value == 0.25 and made.tags["dagster/data_version"] == "alpha"
    assert [len(message["text"]) for message in told] == [100_000]


def counts_its_hosts(host: HostContext) -> int:
    return host.host_count


def test_an_asset_takes_the_slice_that_there_is_and_says_which_and_why(tpu_cloud: Emulator, new_instance: Any) -> None:
    tpu_cloud.stockout("us-west4-a", "refuse")
    choices = [Choice("v5e-4", regions=["us-west4"]), Choice("v5e-1", regions=["us-central1"])]
    asset = kinetic_asset(accelerator=choices, name="chosen")(counts_its_hosts)
    with new_instance() as instance:
        resource = KineticResource(capacity=["spot", "on-demand"])
        result = dg.materialize([asset], instance=instance, resources={"kinetic": resource})
    assert result.output_for_node("chosen") == 1
    [made] = result.asset_materializations_for_node("chosen")
    told = {name.removeprefix("kinetic/"): value.value for name, value in made.metadata.items()}
    assert (told["accelerator"], told["zone"]) == ("v5e-1", "us-central1-a")
    assert told["chosen"] == (
        "v5e-1 spot in us-central1-a, after v5e-4 spot in us-west4-a (when it was chosen: v5e-4 spot in us-west4-a: "
        "stockout just now)"
    )
    rows = [record.data for record in made.metadata["kinetic/choices"].records]
    assert {(row["choice"], row["bought"]) for row in rows} == {
        ("v5e-4", "spot"), ("v5e-1", "spot"), ("v5e-4", "on-demand"), ("v5e-1", "on-demand")
    }  # fmt: skip
    assert (rows[0]["choice"], rows[0]["bought"], rows[0]["where"]) == ("v5e-1", "spot", "us-central1-a")
    assert [row["why"] for row in rows if row["bought"] == "spot" and row["choice"] == "v5e-4"] != [
        "first in your order"
    ]
    tpu_cloud.wait_until_empty(60)
    tpu_cloud.ledger.assert_nothing_left()


days = dg.StaticPartitionsDefinition(["d1", "d2", "d3"])


@kinetic_asset(accelerator="v5e-1", detached=True, partitions_def=days)
def model_of(host: HostContext):
    time.sleep(5)
    return {"day": host.partition_key}


@pytest.mark.turn(5)
def test_detached_jobs_of_a_cloud_are_seen_by_one_look(
    tpu_cloud: Emulator, monkeypatch: pytest.MonkeyPatch, new_instance: Any
) -> None:
    taken: list[float] = []
    take = Poll.take

    def counting(*given: Any, **how: Any) -> Poll:
        taken.append(time.monotonic())
        return take(*given, **how)

    defs = dg.Definitions(
        [model_of], resources={"kinetic": KineticResource()}, executor=dg.in_process_executor
    )  # fmt: skip
    job = defs.resolve_implicit_global_asset_job_def()
    sensor = build_kinetic_completion_sensor()
    looks, cursor, keys, values = [], None, set(), []
    with new_instance() as instance:
        for day in days.get_partition_keys():
            assert job.execute_in_process(instance=instance, partition_key=day).success
        monkeypatch.setattr(Poll, "take", counting)
        deadline = time.monotonic() + 600
        while len(values) < 3:
            assert time.monotonic() < deadline
            time.sleep(1)
            taken.clear()
            context = dg.build_sensor_context(
                instance, cursor=cursor, repository_def=defs.get_repository_def(),
                resources={"kinetic": KineticResource()},
            )  # fmt: skip
            tick = sensor(context)
            looks.append(len(taken))
            cursor = tick.cursor
            for request in tick.run_requests or ():
                if request.run_key not in keys:
                    keys.add(request.run_key)
                    result = job.execute_in_process(
                        instance=instance, tags=dict(request.tags), partition_key=request.partition_key,
                        asset_selection=list(request.asset_selection),
                    )  # fmt: skip
                    values.append(result.output_for_node("model_of"))
    assert sorted(value["day"] for value in values) == ["d1", "d2", "d3"]
    assert min(looks) == 1, looks


@kinetic_asset(accelerator="v5e-1", detached=True, partitions_def=days, owners=["team:Ranking & Reco"])
def labelled(host: HostContext):
    time.sleep(120)


def test_what_the_cloud_is_asked_for_says_by_whom(tpu_cloud: Emulator, new_instance: Any) -> None:
    """The billing export has values of lower-case letters, digits, dashes and underscores."""
    job = dg.define_asset_job("nightly_training", [labelled])
    defs = dg.Definitions(
        [labelled], jobs=[job], resources={"kinetic": KineticResource()}, executor=dg.in_process_executor
    )
    with new_instance() as instance:
        result = defs.resolve_job_def("nightly_training").execute_in_process(
            instance=instance, partition_key="d2", tags={"dagster/user": "Ann@example.com"}
        )
        [ticket] = tickets_of(instance, result.run_id).values()
    [queued] = tpu_cloud.queued_resources()
    labels = queued["tpu"]["nodeSpec"][0]["node"]["labels"]
    wanted = {
        "kinetic-deployment": "test", "kinetic-job": ticket.job,
        "pipeline": "nightly_training", "step": "labelled", "run": result.run_id, "asset": "labelled",
        "owner": "ranking-reco", "dagster-partition": "d2", "dagster-user": "ann-example-com",
    }  # fmt: skip
    assert {name: labels.get(name) for name in wanted} == wanted
    attach(ticket.job).cancel()
