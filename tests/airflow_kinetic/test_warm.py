"""Slices that stay warm between the tasks of a run: where `keep` may be said, and which task leaves none."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.testing import Emulator
from tests.airflow_kinetic.conftest import Airflow

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keep": "soon"}, "keep is 'soon'"),
        ({"keep": "25h"}, "a slice is kept for 1d at most"),
        ({"keep": "10m", "backend": "gke"}, "keep= is not possible on the gke backend: a pod ends with its program"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused_while_the_dag_is_parsed(
    airflow: Airflow, tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    assert re.search(told, airflow("declare", tmp_path / "home", options={"accelerator": "cpu", **options})["refused"])


@pytest.mark.parametrize(
    ("options", "extra", "kept"),
    [
        ({"keep": "{{ params.keep }}"}, {}, 90.0),
        ({"keep": ""}, {}, None),
        ({}, {"keep": "10m"}, 600.0),
        ({}, {"keep": 0}, 0.0),
        ({"keep": "5m"}, {"keep": "10m"}, 300.0),
    ],
    ids=str,
)
def test_a_template_or_the_connection_may_say_it(
    airflow: Airflow, tmp_path: Path, options: dict[str, Any], extra: dict[str, Any], kept: float | None
) -> None:
    done = airflow("choices_of", tmp_path / "home", options={"accelerator": "v5e-8", **options}, params={"keep": "90s"},
                   extra={"project": "p", **extra}, environ={"KINETIC_STORE": "gs://b/p", "KINETIC_DEPLOYMENT": "d"})  # fmt: skip
    assert done.get("kept", done) == kept


@pytest.mark.parametrize(
    ("options", "extra", "told"),
    [
        (
            {"container_image": "ghcr.io/a/train:7"},
            {"keep": "10m"},
            "keep='10m' .*keep= with container_image= is not possible",
        ),
        ({"zone": "us-west4-a"}, {"race": 2}, "race=2 .*it has one place to ask, us-west4-a"),
        ({"accelerator": "v6e-8"}, {"race": "2"}, ""),
    ],
    ids=str,
)
def test_what_a_connection_says_for_those_that_can_is_left_out_where_it_cannot_be_and_told(
    airflow: Airflow, tmp_path: Path, options: dict[str, Any], extra: dict[str, Any], told: str
) -> None:
    done = airflow("choices_of", tmp_path / "home", options={"accelerator": "v5e-8", **options}, params={},
                   extra={"project": "p", **extra}, environ={"KINETIC_STORE": "gs://b/p", "KINETIC_DEPLOYMENT": "d"})  # fmt: skip
    assert "refused" not in done and (done["kept"], done["raced"]) == (None, 1 if told else 2)
    of = r"of the connection 'google_cloud_default' is left out for says_and_waits: "
    assert [bool(re.search(told.replace(".*", of), one)) for one in done["warned"]] == ([True] if told else [])


def test_a_race_of_the_task_itself_is_refused_where_it_has_one_place(airflow: Airflow, tmp_path: Path) -> None:
    options = {"accelerator": "v5e-8", "zone": "us-west4-a", "race": 2}
    done = airflow("choices_of", tmp_path / "home", options=options, params={}, extra={"project": "p", "race": 3},
                   environ={"KINETIC_STORE": "gs://b/p", "KINETIC_DEPLOYMENT": "d"})  # fmt: skip
    assert "race=2 asks several places at once, and this job has one place to ask" in done["refused"]


def kept_by(home: Path) -> dict[str, float]:
    """The seconds for which each task's slice is kept, by the specs in the store."""
    specs = [json.loads(path.read_bytes()) for path in home.rglob("jobs/*/in/spec.json")]
    return {f"{spec['origin']['task']}{spec['origin'].get('map index', '')}": spec["plan"]["keep"] for spec in specs}


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.timeout(900)
def test_three_tasks_of_a_run_share_a_slice_of_which_the_last_leaves_none(airflow: Airflow, home: Path) -> None:
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        done = airflow("run_dag", home, environ=cloud.environ(), dag_id="warm_airflow")
        assert done["state"] == "success", done["log"][-5000:]
        assert done["xcoms"]["evaluate/return_value"] < 0.1
        assert done["xcoms"]["release/return_value"] == 0
        cloud.wait_until_empty(60)
        assert cloud.ledger.count("created", "node") == 1, "one for all three tasks"
        cloud.ledger.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.turn(9)
@pytest.mark.timeout(900)
def test_of_tasks_side_by_side_none_is_the_last_and_the_release_runs_although_one_failed(
    airflow: Airflow, home: Path
) -> None:
    done = airflow("run_dag", home, dag_id="keeps_slices_side_by_side")
    assert done["state"] == "success", "as its last task that is no teardown: " + done["log"][-5000:]
    assert done["states"] == {
        "first": "success", "each[0]": "success", "each[1]": "success", "fails": "failed", "never": "upstream_failed",
        "early": "success", "release": "success",
    }  # fmt: skip
    assert kept_by(home) == dict.fromkeys(("first", "each0", "each1", "fails", "early"), 600.0)


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.timeout(900)
def test_each_task_and_each_try_finds_the_slice_of_the_one_before_and_the_end_of_the_run_releases_it(
    airflow: Airflow, home: Path
) -> None:
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        for number, last in enumerate((True, False), 1):
            conf = {"marker": str(home.parent / f"marker-{number}"), "last": last}
            environ = cloud.environ()
            done = airflow("run_dag", home, environ=environ, dag_id="shares_a_slice_in_the_cloud", conf=conf)
            assert done["state"] == "success", done["log"][-5000:]
            assert done["states"]["last"] == ("success" if last else "skipped")
            assert done["xcoms"]["release/return_value"] == (0 if last else 1), done["log"][-5000:]
            cloud.wait_until_empty(60)
            assert cloud.ledger.count("created", "node") == number, "one for each run, whose second task failed once"
            cloud.ledger.assert_nothing_left()
