"""Shows a Keras model that Dagster trains anew every week: train → evaluate → promote, each week a partition.

    python example_pipelines/training_keras_dagster.py                             one week, here and now
    dagster dev -d example_pipelines -f example_pipelines/training_keras_dagster.py    Dagster's own pages, the schedule

What is trained is in `keras_rings.py` beside this file, and is shipped with it. The metrics of `KineticCallback` are
in Dagster's pages while `model` learns on two hosts; a slice that is taken back costs what was learned since the last
checkpoint. `good_enough` blocks: no model goes past it that is right too seldom. Of those that do, `best` is the one
that was right most often in all weeks so far: a worse one changes nothing.

For a real slice: the one line at the end of this file,
    KineticResource(project="my-project", store="gs://my-bucket/kinetic", require_hardware=True, spot=True)
"""

import sys
from typing import Any

import dagster as dg
import keras_rings

from dagster_kinetic import HostContext, KineticResource, kinetic_asset

weeks = dg.WeeklyPartitionsDefinition(start_date="2026-01-04")
REQUIRED = 0.9


@kinetic_asset(accelerator="v4-8", partitions_def=weeks, kinds={"keras"}, retry_policy=dg.RetryPolicy(max_retries=2))
def model(host: HostContext) -> dict[str, Any]:
    """Runs on every host of the slice."""
    return keras_rings.train(host.partition_key)


@dg.asset(
    partitions_def=weeks, check_specs=[dg.AssetCheckSpec("good_enough", asset="evaluation", blocking=True)]
)  # fmt: skip
def evaluation(context: dg.AssetExecutionContext, kinetic: KineticResource, model: dict[str, Any]):
    """On one chip, which is cheaper than to keep the slice for it; what is good enough is decided here."""
    found = kinetic.run(keras_rings.evaluate, args=(model,), accelerator="v5e-1", context=context)
    accuracy = found["accuracy"]
    check = dg.AssetCheckResult(check_name="good_enough", passed=accuracy >= REQUIRED, metadata={"is": accuracy})
    return dg.MaterializeResult(value=found, metadata={"accuracy": accuracy}, check_results=[check])


@dg.asset(partitions_def=weeks)
def best(evaluation: dict[str, Any]) -> dg.MaterializeResult[dict[str, Any]]:
    """The model that others take, of this week or of one before."""
    found = keras_rings.promote(evaluation)
    shown = {name: found[name] for name in ("model", "week", "accuracy", "number", "is_new")}
    return dg.MaterializeResult(value=found, metadata=shown)


weekly = dg.define_asset_job("weekly")
defs = dg.Definitions(
    assets=[model, evaluation, best],
    jobs=[weekly],
    schedules=[dg.build_schedule_from_partitioned_job(weekly, hour_of_day=3)],
    resources={"kinetic": KineticResource()},
)


def main() -> None:
    result = defs.resolve_job_def("weekly").execute_in_process(partition_key="2026-01-11")
    found, chosen = result.output_for_node("evaluation"), result.output_for_node("best")
    print(
        f"\nresult   an accuracy of {found['accuracy']:.1%}; the best so far is number {chosen['number']}, with "
        f"{chosen['accuracy']:.1%}\nthe UI   dagster dev -d example_pipelines -f {sys.argv[0]}"
    )


if __name__ == "__main__":
    main()
