"""Shows a reaper in Airflow: every ten minutes, slices that no job wants any more are deleted, in all zones.

Hosts delete their own slice, and workers and triggerers do it for them. This is for the day on which all of those are
gone: it needs nothing but the connection to Google Cloud. `KineticReapOperator(dry_run=True)` only tells.

To run it once, with this folder as Airflow's DAGs folder and a migrated database: python airflow_reaper.py
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from airflow_kinetic import KineticReapOperator


@dag(schedule=timedelta(minutes=10), catchup=False, max_active_runs=1)
def airflow_reaper():
    KineticReapOperator(task_id="reap", retries=2, retry_delay=timedelta(minutes=1))


reaper = airflow_reaper()

if __name__ == "__main__":
    reaper.test()
