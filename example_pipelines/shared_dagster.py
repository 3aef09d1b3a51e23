"""Shows steps that share eight chips, of which the nightly one goes first, within a month's money.

A job whose share is used up waits for its turn, and says its place in the line; of those that wait, the one of the
highest `priority=` goes first. So of three trials at once two run, and the third waits.

    python example_pipelines/shared_dagster.py             one night, here and now
    dagster dev -f example_pipelines/shared_dagster.py     the same in Dagster's own pages

To change for a real slice: name a project and a bucket in place of `backend="local"`,
    KineticResource(project="my-project", store="gs://my-bucket/kinetic", priority=-10, require_hardware=True)
and, where Dagster's runs have their environment, the chips and the dollars that all jobs of the deployment share:
    export KINETIC_CHIPS=v5e=64,total=256,pipeline:*=32 KINETIC_BUDGETS=nightly=400USD,*=300USD:warn,total=2000USD
`kinor shares` shows who holds chips and who waits, `kinor cost --by pipeline` what was spent, and what a plan costs:
    kinor prices --refresh && kinor cost --forecast nightly --cron "0 3 * * *"
"""

from __future__ import annotations

import os
import sys

import dagster as dg

from dagster_kinetic import KineticResource, kinetic_asset
from kinetic_orchestration import Limits


def slope(rate: float) -> float:
    """The slope of a line, learned step by step; a stand-in for your training."""
    points = [number / 63 for number in range(64)]
    found = 0.0
    for _ in range(100):
        found -= rate * sum(2 * (found * x - 3 * x) * x for x in points) / len(points)
    return found


@kinetic_asset(accelerator="v5e-4", priority=10, limits=Limits(run="1h", cost=20))
def nightly() -> float:
    """Has its turn before any trial, and costs 20 dollars at most."""
    return slope(0.5)


@dg.asset
def trials(kinetic: KineticResource) -> dict[str, float]:
    """Three jobs at once, which have the resource's own priority."""
    rates = [0.1, 0.3, 0.5]
    found = kinetic.map(slope, rates, accelerator="v5e-4", limits=Limits(run="1h"))
    return {str(rate): round(each.value, 2) for rate, each in zip(rates, found, strict=True)}


defs = dg.Definitions(
    assets=[nightly, trials],
    jobs=[dg.define_asset_job("night")],
    resources={"kinetic": KineticResource(backend="local", priority=-10)},
)


def main() -> None:
    os.environ.setdefault("KINETIC_CHIPS", "v5e=8")
    os.environ.setdefault("KINETIC_BUDGETS", "nightly=400USD,*=300USD:warn")
    result = defs.resolve_job_def("night").execute_in_process()
    found = result.output_for_node("nightly"), result.output_for_node("trials")
    print(f"\nresult   a slope of {found[0]:.2f}, and trials: {found[1]}\nthe UI   dagster dev -f {sys.argv[0]}")


if __name__ == "__main__":
    main()
