"""A deferred task whose host is a node of a real Slurm: its trigger follows it, logs, ends it, and nothing is left."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.airflow_kinetic.conftest import Airflow
from tests.support.slurm.cluster import Cluster
from tests.support.slurm.fixtures import on_slurm, slurm
from tests.support.slurm.jobs import check_nothing_left

__all__ = ["on_slurm", "slurm"]

pytestmark = [pytest.mark.slow, pytest.mark.turn, pytest.mark.conformance, pytest.mark.timeout(600)]
WITHIN = 90.0


@pytest.fixture
def environ(on_slurm: Mapping[str, str]) -> dict[str, str]:
    return {**on_slurm, "PATH": os.environ["PATH"]}


def test_deferred_tasks_run_on_nodes_and_hand_their_values_on(
    airflow: Airflow,
    environ: dict[str, str],
    slurm: Cluster,
    home: Path,
) -> None:
    done = airflow("run_dag", home, environ=environ, dag_id="is_mapped")
    assert set(done["states"].values()) == {"success"}, done["log"]
    assert done["xcoms"]["total/return_value"] == 44
    assert "DEFERRED" in done["log"] and "Slurm cpu" in done["log"]
    check_nothing_left(slurm, home)


def test_an_exception_on_a_node_is_the_tasks(
    airflow: Airflow,
    environ: dict[str, str],
    slurm: Cluster,
    home: Path,
) -> None:
    done = airflow("run_dag", home, environ=environ, dag_id="fails")
    assert done["states"] == {"train": "failed"}
    assert "the learning rate exploded" in done["log"] and "deep_inside" in done["log"]
    check_nothing_left(slurm, home)


def test_a_trigger_that_is_killed_by_a_user_ends_its_job_of_slurm(
    airflow: Airflow,
    environ: dict[str, str],
    slurm: Cluster,
    home: Path,
) -> None:
    done = airflow("kill_deferred", home, environ=environ, seconds=600)
    assert (done["message"], done["status"]) == (["killed by a user"], "CANCELLED")
    check_nothing_left(slurm, home)
