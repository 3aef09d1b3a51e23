"""A run submits a job and is over; no worker waits while it trains; a sensor looks, and a second run finishes.

    python example_pipelines/dagster_detached.py             here and now, with the sensor's ticks on the terminal
    dagster dev -f example_pipelines/dagster_detached.py     the same in Dagster's own pages

Training may take days, or wait hours for capacity. With `detached=True` the first run only submits. The completion
sensor looks at all jobs together twice a minute; of a job that has ended it starts a run of the same asset, which takes
the value, stores it by the asset's I/O manager, and fails visibly if the job did. `report`, which was to be made after
`ranker` in the first run, is made in the second one.

To change for a real slice: the one line at the end of this file,
    KineticResource(project="my-project", store="gs://my-bucket/kinetic", require_hardware=True)
"""

import sys
import time

import dagster as dg

from dagster_kinetic import (
    HostContext,
    KineticResource,
    build_kinetic_completion_sensor,
    build_kinetic_reaper_sensor,
    kinetic_asset,
)


class Training(dg.Config):
    epochs: int = 3


@kinetic_asset(accelerator="v5e-4", detached=True)
def ranker(host: HostContext, config: Training) -> dict[str, float]:
    """Something that takes its time."""
    loss = 1.0
    for epoch in range(config.epochs):
        time.sleep(4)
        loss /= 2
        host.log_metrics(step=epoch, loss=loss)
        host.progress(epoch + 1, config.epochs, unit="epochs")
    return {"loss": loss}


@dg.asset
def report(ranker: dict[str, float]) -> str:
    return f"a loss of {ranker['loss']:g}"


defs = dg.Definitions(
    assets=[ranker, report],
    sensors=[build_kinetic_completion_sensor(), build_kinetic_reaper_sensor()],
    resources={"kinetic": KineticResource()},
)


def main() -> None:
    """Do what Dagster's daemon does, in a few lines: ticks of the sensor, and a run for each of its requests."""
    began = time.monotonic()
    job = defs.resolve_implicit_global_asset_job_def()
    sensor = defs.resolve_sensor_def("kinetic_completion")
    with dg.instance_for_test() as instance:
        job.execute_in_process(instance=instance)
        print(f"\n{time.monotonic() - began:4.0f} s  the run is over, and no worker waits")
        cursor, requests = None, []
        while not requests and time.monotonic() - began < 120:
            time.sleep(1)
            context = dg.build_sensor_context(
                instance, cursor=cursor, repository_def=defs.get_repository_def(), resources=defs.resources
            )
            tick = sensor(context)
            cursor, requests = tick.cursor, tick.run_requests or []
            print(
                f"{time.monotonic() - began:4.0f} s  the sensor looks: {tick.skip_reason or f'{len(requests)} ended'}"
            )
        [request] = requests
        result = job.execute_in_process(
            instance=instance,
            run_config=request.run_config,
            tags=dict(request.tags),
            asset_selection=list(request.asset_selection),
        )
    print(f"\nresult   {result.output_for_node('report')}\nthe UI   dagster dev -f {sys.argv[0]}")


if __name__ == "__main__":
    main()
