"""The example pipelines that another page lists, as DAGs of a real Airflow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from tests.airflow_kinetic.conftest import Airflow


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


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.timeout(900)
def test_a_pipeline_goes_from_here_to_an_emulated_cloud_by_its_variables_alone(airflow: Airflow, home: Path) -> None:
    """Production differs from that by other variables; of what Dagster's does, `ko plan` shows what would be asked."""
    here = airflow("run_dag", home, dag_id="environments_airflow")
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        there = airflow("run_dag", home, environ=cloud.environ(), dag_id="environments_airflow")
        assert cloud.ledger.count("created", "node") == 1
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()
    assert here["xcoms"]["report/return_value"] == there["xcoms"]["report/return_value"] == "y = 2.99 x + 1.01"
