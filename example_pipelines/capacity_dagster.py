"""Shows a weekly retraining that takes whichever slice there is, bought in whichever way, within a month's money.

    python example_pipelines/capacity_dagster.py             one week, here and now
    dagster dev -f example_pipelines/capacity_dagster.py     the same in Dagster's own pages, with the schedule

Either accelerator will do: each attempt takes one of them in one zone, as spot first, and on demand when it must be. A
zone without capacity is left for the next one, and what one run learns of it, the others know. A run whose hosts are
taken away goes on where it was, on whatever slice it gets, with the same batch.

To change for a real slice: the one line at the end of this file, which says how all its jobs are bought,
    KineticResource(
        project="my-project", store="gs://my-bucket/kinetic", require_hardware=True, capacity=["spot", "on-demand"]
    )
and, where Dagster's runs have their environment, the most that this asset may cost in a month, and the chips that all
jobs of the deployment share (`kinor shares` shows who waits for some):
    export KINETIC_BUDGETS=forecast=400USD KINETIC_CHIPS=v5e=16,total=64
"""

from __future__ import annotations

import sys

import dagster as dg

from dagster_kinetic import KineticResource, kinetic_asset
from kinetic_orchestration import Choice, Limits, Training

weeks = dg.WeeklyPartitionsDefinition(start_date="2026-01-04")


@kinetic_asset(
    accelerator=["v6e-8", Choice("v5e-8", limits=Limits(run="4h", cost=40))],  # the slower one may run for longer
    limits=Limits(run="2h", cost=40),
    partitions_def=weeks,
)
def forecast() -> dict[str, float]:
    """The slope of a line, learned step by step on all devices of the slice that was had."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    x = np.linspace(0.0, 1.0, 64, dtype="float32")
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    shared, same = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    step = jax.jit(lambda slope, x: slope - 0.5 * jax.grad(lambda s: ((s * x - 3 * x) ** 2).mean())(slope))
    training = Training(every=20, total=100, reshard=True, global_batch=64)  # each host has its part of 64 rows
    slope, done = training.restore(jax.device_put(np.float32(0.0), same))
    for number in range(done, 100):
        [rows] = training.indices(len(x))
        slope = step(slope, jax.make_array_from_process_local_data(shared, x[rows]))
        training.step(number + 1, slope, off=abs(slope - 3))
    training.finish(slope)
    return {"slope": float(slope)}


weekly = dg.define_asset_job("weekly")
defs = dg.Definitions(
    assets=[forecast],
    jobs=[weekly],
    schedules=[dg.build_schedule_from_partitioned_job(weekly, hour_of_day=3)],
    resources={"kinetic": KineticResource(backend="local")},
)


def main() -> None:
    result = defs.resolve_job_def("weekly").execute_in_process(partition_key="2026-01-11")
    slope = result.output_for_node("forecast")["slope"]
    made = result.asset_materializations_for_node("forecast")[0].metadata
    had, where = made["kinetic/accelerator"].value, made["kinetic/where"].value
    print(f"\nresult   a slope of {slope:.2f}, on {had}, {where}\nthe UI   dagster dev -f {sys.argv[0]}")


if __name__ == "__main__":
    main()
