"""Tasks of real DAGs, run by Airflow's own `dag.test()`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import Airflow

pytestmark = pytest.mark.timeout(120)


def test_a_task_waits_on_its_worker_and_its_templates_are_rendered(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="waits_on_a_worker")
    assert done["states"] == {"train": "success"}
    value = done["xcoms"]["train/return_value"]
    assert value["day"] == "waits_on_a_worker"
    assert value["run"].startswith("manual__")
    assert value["same"] == "True"  # run_id came from the context, by its name alone
    assert "one line for waits_on_a_worker" in done["log"]
    assert "DEFERRED" not in done["log"]


def test_a_deferred_task_shows_the_lines_of_all_hosts_and_hands_its_value_on(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="waits_on_a_triggerer")
    assert done["states"] == {"train": "success", "after": "success"}
    assert "DEFERRED" in done["log"]
    lines = [line for line in done["log"].splitlines() if "kinetic.host" in line]
    for host in range(4):
        mine = [line for line in lines if f"host={host}" in line]
        texts = [re.split(r"\s{2,}|\s\[kinetic", line.split("] ", 1)[1])[0] for line in mine]
        metrics = texts.index("metrics step 1: loss=0.25")  # by another way than what is printed
        assert [*texts[:metrics], *texts[metrics + 1 :]] == [f"first line of {host}", "same", "same", "done"]
        times = [line.split()[0] for line in mine]
        assert times == sorted(set(times)), "each line has a later time than the one before, its own"
    # The function used its file's globals and a module beside it: 2 * 4 + 100.
    assert done["xcoms"]["train/value"] == 108
    assert done["xcoms"]["train/hosts"] == 4
    assert done["xcoms"]["after/return_value"] == 109


def test_a_mapped_task_is_one_job_for_each_index(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="is_mapped")
    assert done["state"] == "success"
    assert done["xcoms"]["total/return_value"] == 11 + 14 + 19
    assert len(set(re.findall(r"Job (job-\w+)\.", done["log"]))) == 3


def test_a_failure_is_the_users_own_exception_with_the_traceback_of_the_host(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="fails")
    assert done["states"] == {"train": "failed"}
    assert "ValueError: the learning rate exploded" in done["log"]
    assert "deep_inside()" in done["log"]
    assert "Raised on host 0 of job job-" in done["log"]


def test_a_value_that_is_no_small_json_stays_in_the_store_and_its_uri_is_in_xcom(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="returns_more_than_json")
    assert done["state"] == "success"
    uri = done["xcoms"]["train/return_value"]
    assert uri.startswith("file://")
    assert Path(uri.removeprefix("file://")).is_file()
    assert done["xcoms"]["where/return_value"] == uri


def test_a_retry_runs_a_failed_job_again(airflow: Airflow, home: Path, tmp_path: Path) -> None:
    marker = tmp_path / "tries"
    marker.touch()
    done = airflow("run_dag", home, dag_id="is_retried", conf={"marker": str(marker)})
    assert done["states"] == {"train": "success"}
    assert done["xcoms"]["train/return_value"] == "xx"


def test_what_cannot_travel_is_refused_by_name(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="asks_for_its_task_instance")
    assert done["states"] == {"train": "failed"}
    assert "asks for 'ti' of the task's context, which cannot travel" in done["log"]


def test_a_wrong_accelerator_is_refused_while_the_dag_is_parsed(airflow: Airflow, tmp_path: Path) -> None:
    told = airflow("declare", tmp_path / "home", options={"accelerator": "v5e-17"})
    assert told["refused"].startswith("UnknownAccelerator")
    assert "v5e-16" in told["refused"]
    told = airflow("declare", tmp_path / "home", options={"accelerator": "{{ params.slice }}"})
    assert "refused" not in told  # known only when it is rendered


def test_the_execution_timeout_of_a_deferred_task_bounds_its_job(airflow: Airflow, tmp_path: Path) -> None:
    told = airflow("declare", tmp_path / "home", options={"deferrable": True}, minutes=5)
    assert told["total"] == 300
    told = airflow("declare", tmp_path / "home", options={"deferrable": False}, minutes=5)
    assert told["total"] is None  # there Airflow keeps it itself


def test_the_example_runs_as_it_stands(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="airflow_retrain")
    assert done["state"] == "success"
    assert "on 8 devices" in done["log"]
    assert done["xcoms"]["evaluate/return_value"] < 0.1
