"""Shows one Dagster pipeline from a laptop to production: not a line of it changes on the way.

    python example_pipelines/environments_dagster.py             here and now, on the terminal
    dagster dev -f example_pipelines/environments_dagster.py     the same in Dagster's own pages

Nothing here says where it runs; variables do, and those of Dagster's processes:

    local        none: the hosts are processes of this machine
    staging      what `kinor emulator` prints: a whole cloud on one machine, which can run out of capacity and preempt
    production   KINETIC_PROFILE_FILE=example_pipelines/environments.toml KINETIC_PROFILE=production
    on VMs       those two and KINETIC_BACKEND=compute: VMs of Compute Engine instead of Cloud TPU's

What would be asked of production, and what it costs, is told without an account, with these variables and
    kinor plan example_pipelines/environments_dagster.py:fit --accelerator v6e-8

For a real slice: write your own project, bucket and zones into `environments.toml`.
"""

import sys

import dagster as dg

import kinetic_orchestration as kinetic
from dagster_kinetic import KineticResource, kinetic_asset

Points = list[tuple[float, float]]


@dg.asset
def points() -> Points:
    """Near the line y = 3 x + 1."""
    return [(x / 32, 3 * x / 32 + 1 + (-1) ** x * 0.01) for x in range(64)]


@kinetic_asset(accelerator="v6e-8")
def line(points: Points) -> dict[str, float]:
    """Runs on the host of the slice, wherever that is."""
    return fit(points)


@dg.asset
def report(line: dict[str, float]) -> str:
    return f"y = {line['slope']:.2f} x + {line['intercept']:.2f}"


def fit(points: Points, epochs: int = 10) -> dict[str, float]:
    """With nothing but Python itself, so that the hosts of an emulated cloud need not install anything."""
    host = kinetic.current()
    slope = intercept = loss = 0.0
    for epoch in range(1, epochs + 1):
        for x, y in points:
            error = slope * x + intercept - y
            slope, intercept, loss = slope - 0.2 * error * x, intercept - 0.2 * error, error**2
        host.log_metrics(step=epoch, loss=loss)
    return {"slope": slope, "intercept": intercept}


defs = dg.Definitions(
    assets=[points, line, report], jobs=[dg.define_asset_job("lines")], resources={"kinetic": KineticResource()}
)


def main() -> None:
    result = defs.resolve_job_def("lines").execute_in_process()
    made = result.asset_materializations_for_node("line")[0].metadata
    print(
        f"\nresult   {result.output_for_node('report')}"
        f"\nits job  {made['kinetic/job_id'].value}, whose output is in {made['kinetic/output_dir'].value}"
        f"\nthe UI   dagster dev -f {sys.argv[0]}"
    )


if __name__ == "__main__":
    main()
