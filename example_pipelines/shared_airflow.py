"""Shows tasks that share eight chips, of which the nightly one goes first, within a month's money.

A job whose share is used up waits for its turn, and says its place in the line; of those that wait, the one of the
highest `priority` goes first. So of three trials at once two run, and the third waits.

To change for a real slice: leave out `backend="local"`, and set for Airflow's workers and triggerers KINETIC_STORE,
KINETIC_DEPLOYMENT, KINETIC_REQUIRE_HARDWARE=true, and the chips and the dollars that all jobs of the deployment share:
KINETIC_CHIPS=v5e=64,total=256,pipeline:*=32 and KINETIC_BUDGETS=shared_airflow=400USD,*=300USD:warn,total=2000USD
`kinor shares` shows who holds chips and who waits, `kinor cost --by pipeline` what was spent, and what a plan costs:
    kinor prices --refresh && kinor cost --forecast shared_airflow --cron "0 3 * * *"

To run it once, with this folder as Airflow's DAGs folder and a migrated database:
    KINETIC_CHIPS=v5e=8 python example_pipelines/shared_airflow.py
"""

from __future__ import annotations

from airflow.sdk import dag, task

from kinetic_orchestration import Limits

ON_SHARED_CHIPS = {"accelerator": "v5e-4", "backend": "local", "deferrable": True}


def slope(rate: float) -> float:
    """The slope of a line, learned step by step; a stand-in for your training."""
    points = [number / 63 for number in range(64)]
    found = 0.0
    for _ in range(100):
        found -= rate * sum(2 * (found * x - 3 * x) * x for x in points) / len(points)
    return found


@dag(schedule="@daily", catchup=False)
def shared_airflow():
    @task.kinetic(**ON_SHARED_CHIPS, priority=10, limits=Limits(run="1h", cost=20))
    def nightly() -> float:
        """Has its turn before any trial, and costs 20 dollars at most."""
        return slope(0.5)

    @task.kinetic(**ON_SHARED_CHIPS, priority=-10, limits=Limits(run="1h"))
    def trial(rate: float) -> float:
        return slope(rate)

    nightly()
    trial.expand(rate=[0.1, 0.3, 0.5])


shared = shared_airflow()

if __name__ == "__main__":
    shared.test()
