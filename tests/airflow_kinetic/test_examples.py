"""The example pipelines that another page lists, as DAGs of a real Airflow."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from tests.airflow_kinetic.conftest import Airflow


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.timeout(900)
def test_a_week_takes_one_of_the_slices_that_its_parameter_names(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="capacity_airflow", conf={"slices": ["v5e-8", "v5e-4"]})
    assert done["state"] == "success", done["log"][-5000:]
    assert abs(done["xcoms"]["train/return_value"]["slope"] - 3) < 0.1
    assert "It runs train on v5e-8: 8 chips" in done["log"]


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.timeout(900)
def test_a_task_asks_two_zones_at_once_runs_in_one_and_leaves_nothing(airflow: Airflow, home: Path) -> None:
    with Emulator(zones=("us-east5-a", "us-west4-a"), python=sys.executable) as cloud:
        done = airflow("run_dag", home, environ=cloud.environ(), dag_id="race_airflow")
        assert done["state"] == "success", done["log"][-5000:]
        assert abs(done["xcoms"]["train/return_value"] - 3) < 0.01
        assert cloud.ledger.count("created", "queued resource") == 2
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.timeout(900)
def test_tasks_share_chips_each_with_its_own_priority(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="shared_airflow", environ={"KINETIC_CHIPS": "v5e=8"})
    assert done["state"] == "success", done["log"][-5000:]
    assert abs(done["xcoms"]["nightly/return_value"] - 3) < 0.01
    assert {f"trial[{number}]" for number in range(3)} < done["states"].keys()
    turns = [json.loads(path.read_bytes())["plan"]["turn"] for path in home.rglob("jobs/*/in/spec.json")]
    assert sorted(turn["priority"] for turn in turns) == [-10, -10, -10, 10]


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.timeout(900)
def test_a_task_searches_with_optuna_and_another_trains_with_what_it_has_found(
    airflow: Airflow, home: Path, tmp_path: Path
) -> None:
    done = airflow("run_dag", home, dag_id="search_airflow", environ={"STUDIES": str(tmp_path)})
    assert done["state"] == "success", done["log"][-5000:]
    assert 1e-3 <= done["xcoms"]["search/return_value"] <= 2
    assert 0 <= done["xcoms"]["train/return_value"] < 3
    trials = [json.loads(path.read_bytes()).get("origin", {}) for path in home.rglob("jobs/*/in/spec.json")]
    assert sorted(origin["trial"] for origin in trials if "trial" in origin) == [str(number) for number in range(6)]


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.timeout(900)
def test_keras_is_trained_evaluated_and_promoted_by_the_code_that_dagster_has_too(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="training_keras_weekly")
    assert done["state"] == "success", done["log"][-5000:]
    trained, found, best = (done["xcoms"][f"{task}/return_value"] for task in ("train", "evaluate", "promote"))
    assert trained["losses"][-1] < 0.5 * trained["losses"][0]
    assert found["accuracy"] > 0.9
    assert best == {**found, "number": 1, "is_new": True}
    assert [path.name for path in (home / "store").rglob("promoted/*")] == ["000001.json"]
