"""The example pipelines that another page lists, as DAGs of a real Airflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.airflow_kinetic.conftest import Airflow


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.timeout(900)
def test_a_week_takes_one_of_the_slices_that_its_parameter_names(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="capacity_airflow", conf={"slices": ["v5e-8", "v5e-4"]})
    assert done["state"] == "success", done["log"][-5000:]
    assert abs(done["xcoms"]["train/return_value"]["slope"] - 3) < 0.1
    assert "It runs train on v5e-8: 8 chips" in done["log"]


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.timeout(900)
def test_on_this_machine_a_task_that_would_ask_two_places_has_one(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="race_airflow")
    assert done["state"] == "success", done["log"][-5000:]
    assert abs(done["xcoms"]["train/return_value"] - 3) < 0.01
    assert "race= has no meaning on the local backend" in done["log"]


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.timeout(900)
def test_tasks_share_chips_each_with_its_own_priority(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="shared_airflow", environ={"KINETIC_CHIPS": "v5e=8"})
    assert done["state"] == "success", done["log"][-5000:]
    assert abs(done["xcoms"]["nightly/return_value"] - 3) < 0.01
    assert {f"trial[{number}]" for number in range(3)} < done["states"].keys()
    turns = [json.loads(path.read_bytes())["plan"]["turn"] for path in home.rglob("jobs/*/in/spec.json")]
    assert sorted(turn["priority"] for turn in turns) == [-10, -10, -10, 10]


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.timeout(900)
def test_keras_is_trained_evaluated_and_promoted_by_the_code_that_dagster_has_too(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="training_keras_weekly")
    assert done["state"] == "success", done["log"][-5000:]
    trained, found, best = (done["xcoms"][f"{task}/return_value"] for task in ("train", "evaluate", "promote"))
    assert trained["losses"][-1] < 0.5 * trained["losses"][0]
    assert found["accuracy"] > 0.9
    assert best == {**found, "number": 1, "is_new": True}
    assert [path.name for path in (home / "store").rglob("promoted/*")] == ["000001.json"]
