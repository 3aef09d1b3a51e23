"""Shows a Keras model that Airflow trains anew every week: train → evaluate → good enough? → promote.

    python example_pipelines/training_keras_airflow.py     one week, here and now, with this folder as Airflow's DAGs
                                                           folder and a migrated database

What is trained is in `keras_rings.py` beside this file, and is shipped with it. While two hosts train, or no slice
is to be had, no worker is held. A model that is right too seldom ends its week there; of the others, the one that was
right most often in all weeks so far is the one that counts: a worse one changes nothing.

For a real slice: name the project in the connection `google_cloud_default`, set KINETIC_STORE, KINETIC_DEPLOYMENT and
KINETIC_ZONES for Airflow's workers and triggerers, and take `spot=True`. Nothing else changes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import keras_rings
from airflow.sdk import dag, task

REQUIRED = 0.9
WEEK = "{{ ds | default(dag_run.run_after | ds, true) }}"  # a run that somebody started by hand has no `ds`
again = {"retries": 2, "retry_delay": timedelta(minutes=1)}


@dag(schedule="@weekly", catchup=False)
def training_keras_weekly():
    train = task.kinetic(accelerator="v4-8", deferrable=True, **again)(keras_rings.train)
    evaluate = task.kinetic(accelerator="v5e-1", deferrable=True, **again)(keras_rings.evaluate)

    @task.short_circuit
    def good_enough(evaluation: dict[str, Any]) -> bool:
        print(f"an accuracy of {evaluation['accuracy']:.1%}, and {REQUIRED:.0%} is required")
        return evaluation["accuracy"] >= REQUIRED

    @task
    def promote(evaluation: dict[str, Any]) -> dict[str, Any]:
        return keras_rings.promote(evaluation)

    evaluation = evaluate(train(WEEK))
    good_enough(evaluation) >> promote(evaluation)


weekly = training_keras_weekly()

if __name__ == "__main__":
    weekly.test()
