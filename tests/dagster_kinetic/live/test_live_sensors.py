"""The detached pattern with a real daemon: sensors tick, cursors are kept, runs are asked for once."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.dagster_kinetic.live.dagster_server import DagsterDev

DEFINITIONS = Path(__file__).parent / "live_sensors_definitions.py"
WITHIN = 240.0  # for whatever has to come: the machine may be busy

pytestmark = [pytest.mark.slow, pytest.mark.turn(9), pytest.mark.timeout(1200)]

TICKS = """query { repositoriesOrError { ... on RepositoryConnection { nodes { sensors { name sensorState {
    ticks(limit: 100) { status skipReason error { message } } } } } } } }"""


def ticks(server: DagsterDev, sensor: str) -> list[dict[str, Any]]:
    [repository] = server.query(TICKS)["repositoriesOrError"]["nodes"]
    [found] = [each for each in repository["sensors"] if each["name"] == sensor]
    return list(found["sensorState"]["ticks"])


def finishing(server: DagsterDev, run: str) -> list[str]:
    return server.runs(**{"kinetic/run": run})


def test_a_job_is_finished_by_a_second_run_with_what_comes_after_it(dagster_dev: DagsterDev) -> None:
    run = dagster_dev.launch("__ASSET_JOB", assets=["slow_model", "slow_report"])
    dagster_dev.wait(run, "SUCCESS")  # and no worker is held from here on
    assert dagster_dev.asset("slow_model")["assetMaterializations"] == []
    dagster_dev.until(
        lambda: any(
            "jobs have not ended" in str(tick["skipReason"]) for tick in ticks(dagster_dev, "kinetic_completion")
        ),
        WITHIN,
    )
    Path(os.environ["KINETIC_HOME"], "go").touch()
    [second] = dagster_dev.until(lambda: finishing(dagster_dev, run), WITHIN)
    dagster_dev.wait(second, "SUCCESS")
    [made] = dagster_dev.asset("slow_model")["assetMaterializations"]
    assert "answer" in str(made)
    assert len(dagster_dev.asset("slow_report")["assetMaterializations"]) == 1
    dagster_dev.until(lambda: dagster_dev.tags(run)["kinetic/detached"] == "finished", WITHIN)
    assert finishing(dagster_dev, run) == [second]


def test_a_job_that_fails_is_a_run_that_fails(dagster_dev: DagsterDev) -> None:
    run = dagster_dev.launch("__ASSET_JOB", assets=["slow_failure"])
    dagster_dev.wait(run, "SUCCESS")
    [second] = dagster_dev.until(lambda: finishing(dagster_dev, run), WITHIN)
    dagster_dev.wait(second, "FAILURE")
    assert "no such column" in str(dagster_dev.events(second))


def test_the_reaper_ticks_and_says_so(dagster_dev: DagsterDev) -> None:
    dagster_dev.until(
        lambda: any("nothing to remove" in str(tick["skipReason"]) for tick in ticks(dagster_dev, "kinetic_reaper")),
        WITHIN,
    )
    assert not any(tick["error"] for tick in ticks(dagster_dev, "kinetic_reaper"))
