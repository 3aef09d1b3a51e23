"""Tasks that mean Google Cloud by one of their parameters, and one that does not."""

from __future__ import annotations

from airflow.sdk import Asset, dag, task


@dag(schedule=None)
def means_no_cloud():
    @task.kinetic(accelerator="v5e-1", outlets=[Asset("trained_somewhere")], deferrable=False)
    def train() -> int:
        return 1

    @task.kinetic(accelerator="v5e-1", outlets=[Asset("deferred_somewhere")], deferrable=True)
    def deferred() -> int:
        return 1

    train()
    deferred()


@dag(schedule=None)
def names_zones():
    @task.kinetic(accelerator="v5e-1", zones=["us-west4-a"], deferrable=True)
    def train() -> int:
        return 1

    train()


@dag(schedule=None)
def names_a_connection():
    @task.kinetic(
        accelerator="v5e-1", gcp_conn_id="google_cloud_default", project_id="p", spot=True, deferrable=False
    )  # fmt: skip
    def train() -> int:
        return 1

    train()


means_no_cloud()
names_zones()
names_a_connection()
