"""Shows a nightly task that asks two zones at once, and runs where the first hosts are there.

`race=2` is all of it: the other slice is released before the program starts, also if it comes late. Use it where hosts
are scarce and a task has to begin soon: both are paid for while they boot. On this machine, which is one place, there
is nothing to ask twice, and a line of the log says so.

To change for a real slice: nothing here. Set for Airflow's workers and triggerers KINETIC_PROJECT, KINETIC_STORE,
KINETIC_DEPLOYMENT, KINETIC_REQUIRE_HARDWARE=true, and KINETIC_ZONES with two zones, if the bucket's location leads to
one alone. `kinor cost JOB` says what the slice that lost has cost.

To run it once, with this folder as Airflow's DAGs folder and a migrated database:
    python example_pipelines/race_airflow.py
"""

from __future__ import annotations

from airflow.sdk import dag, task


@dag(schedule="@daily", catchup=False)
def race_airflow():
    @task.kinetic(accelerator="v5e-4", race=2, deferrable=True)
    def train() -> float:
        """The slope of a line, learned step by step; a stand-in for your training."""
        points = [number / 63 for number in range(64)]
        found = 0.0
        for _ in range(100):
            found -= 0.5 * sum(2 * (found * x - 3 * x) * x for x in points) / len(points)
        return found

    @task
    def evaluate(slope: float) -> float:
        print(f"the slope is {slope:.2f}, and should be 3")
        return abs(slope - 3)

    evaluate(train())


raced = race_airflow()

if __name__ == "__main__":
    raced.test()
