"""A DAG file in a folder of the bundle, which uses a package at the bundle's root."""

from __future__ import annotations

from airflow.sdk import dag, task
from shared_steps import maths

from airflow_kinetic import KineticTPUOperator


@dag(schedule=None)
def in_a_folder():
    @task.kinetic(accelerator="cpu", deferrable=True)
    def train(number: int) -> int:
        from shared_steps.maths import tripled  # not even imported before

        return tripled(number) + maths.tripled(number)

    train(7)
    KineticTPUOperator(task_id="plain", python_callable=maths.step, op_args=[2], accelerator="cpu")


in_a_folder()
