"""Shows a nightly step that asks two zones at once, and runs where the first hosts are there.

`race=2` on the asset is all of it: the other slice is released before the program starts, also if it comes late. Use it
where hosts are scarce and a step has to begin soon: both are paid for while they boot. On this machine, which is one
place, there is nothing to ask twice, and a line of the log says so.

    python example_pipelines/race_dagster.py

To change for a real slice: nothing here. Where Dagster's runs have their environment, set
    export KINETIC_PROJECT=my-project KINETIC_STORE=gs://my-bucket/kinetic KINETIC_REQUIRE_HARDWARE=true
and, if the bucket's location leads to one zone alone, KINETIC_ZONES with two. `kinor cost JOB` says what the slice that
lost has cost.
"""

from __future__ import annotations

import sys

import dagster as dg

from dagster_kinetic import KineticResource, kinetic_asset


@kinetic_asset(accelerator="v5e-4", race=2)  # with a list of accelerators, two of its choices may be asked at once
def slope() -> float:
    """The slope of a line, learned step by step; a stand-in for your training."""
    points = [number / 63 for number in range(64)]
    found = 0.0
    for _ in range(100):
        found -= 0.5 * sum(2 * (found * x - 3 * x) * x for x in points) / len(points)
    return found


defs = dg.Definitions(
    assets=[slope],
    jobs=[dg.define_asset_job("nightly")],
    resources={"kinetic": KineticResource()},
)


def main() -> None:
    result = defs.resolve_job_def("nightly").execute_in_process()
    made = result.asset_materializations_for_node("slope")[0].metadata
    had = made["kinetic/chosen"].value if "kinetic/chosen" in made else "the one place that was asked"
    print(
        f"\nresult   a slope of {result.output_for_node('slope'):.2f}, on {had}\nthe UI   dagster dev -f {sys.argv[0]}"
    )


if __name__ == "__main__":
    main()
