"""Searches with Optuna in a task of Airflow, and trains with what it has found.

Optuna is imported by the task alone, on its worker; the study lies in a file in the folder STUDIES, which all workers
have to reach. A task that is tried again goes on with the trials that run.

To change for a real slice: leave out `backend="local"`, and set for the workers
    KINETIC_PROJECT=my-project KINETIC_STORE=gs://my-bucket/kinetic KINETIC_DEPLOYMENT=me
    KINETIC_REQUIRE_HARDWARE=true

To run it once, with this folder as Airflow's DAGs folder and a migrated database:
    STUDIES=/tmp/studies python example_pipelines/search_airflow.py
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag, task

import kinetic_orchestration as kinetic

TRIALS, AT_ONCE = 6, 2


def slope(rate: float) -> float:
    """The slope of a line, learned step by step; a stand-in for your training."""
    points, found = [number / 63 for number in range(64)], 0.0
    for step in range(30):
        found -= rate * sum(2 * (found * x - 3 * x) * x for x in points) / len(points)
        kinetic.current().log_metrics(step=step, error=abs(found - 3))
    return abs(found - 3)


@dag(schedule=None)
def search_airflow():
    @task(retries=2)
    def search() -> float:
        """Return the best rate."""
        import optuna

        train = kinetic.run(accelerator="v5e-1", backend="local")(slope)
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(
                optuna.storages.journal.JournalFileBackend(str(Path(os.environ["STUDIES"]) / "study.log"))
            ),
            study_name="slope",
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
        )
        space = {"rate": optuna.distributions.FloatDistribution(1e-3, 2.0, log=True)}
        found = kinetic.search(train, study, space=space, trials=TRIALS, max_concurrent=AT_ONCE, metric="error")
        return found.parameters["rate"]

    @task.kinetic(accelerator="v5e-1", backend="local", deferrable=True)
    def train(rate: float) -> float:
        return slope(rate)

    train(search())


found = search_airflow()

if __name__ == "__main__":
    found.test()
