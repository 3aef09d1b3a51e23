"""A task's job is refused if it could only be emulated though Google Cloud is meant; else it is said where it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Airflow

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow

MISSING = "KINETIC_STORE=gs://my-bucket/kinetic (or store=)"


@pytest.mark.parametrize(
    ("dag_id", "environ", "named"),
    [
        ("means_no_cloud", {"KINETIC_PROJECT": "p"}, "KINETIC_PROJECT means Google Cloud"),
        ("names_zones", {}, "zones=['us-west4-a'] means Google Cloud"),
        ("names_a_connection", {}, "gcp_conn_id='google_cloud_default', project_id='p', spot=True mean Google Cloud"),
    ],
)
def test_a_task_that_means_the_cloud_is_not_trained_on_its_worker(
    dag_id: str, environ: dict[str, str], named: str, airflow: Airflow, home: Path
) -> None:
    done = airflow("run_dag", home, dag_id=dag_id, environ=environ)
    assert done["states"] == {"train": "failed"}
    assert named in done["log"] and MISSING in done["log"]
    assert not (home / "store").exists()


def test_an_emulated_task_says_so_in_its_log_and_in_xcom(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="means_no_cloud")
    assert done["states"] == {"train": "success"}
    assert done["xcoms"]["train/kinetic_where"] == "emulated on this machine's CPU"
    assert "v5e-1: 1 chip (1x1), 1 host × 1 chip, emulated on this machine's CPU" in done["log"]
    [event] = done["events"]
    assert (event["where"], event["emulated"]) == ("emulated on this machine's CPU", True)


def test_required_hardware_refuses_a_task(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="means_no_cloud", environ={"KINETIC_REQUIRE_HARDWARE": "true"})
    assert done["states"] == {"train": "failed"} and "hardware is required" in done["log"]
