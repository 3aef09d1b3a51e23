"""A deferred task on an emulated Cloud TPU: its project and its identity come from Airflow's connection alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from tests.airflow_kinetic.conftest import Airflow
from tests.end_to_end.cloud.cases import here
from tests.support import openai_server

PROJECT = "project-of-the-connection"
CONNECTION = {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": PROJECT}}


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.timeout(900)
def test_a_deferred_task_trains_in_the_project_of_its_connection(airflow: Airflow, home: Path) -> None:
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        environ = cloud.environ(project=PROJECT)
        for name in ("KINETIC_PROJECT", "KINETIC_BACKEND"):  # both follow from the connection
            del environ[name]
        environ["AIRFLOW_CONN_OF_THE_CLOUD"] = json.dumps(CONNECTION)
        done = airflow("run_dag", home, environ=environ, dag_id="trains_in_the_cloud")
        assert done["states"] == {"train": "success"}, done["log"]
        assert "told: in the cloud" in done["log"]
        assert done["xcoms"]["train/kinetic_console_link"].endswith(f"/compute/tpus?project={PROJECT}")
        assert done["xcoms"]["train/kinetic_job_link"].startswith("https://console.cloud.google.com/storage/browser/")
        assert cloud.ledger.count("created", "node") == 1
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.timeout(900)
def test_a_task_takes_the_slice_that_there_is_in_the_way_that_its_connection_names(
    airflow: Airflow, home: Path
) -> None:
    extra = {**CONNECTION, "extra": {"is_anonymous": True, "project": PROJECT, "capacity": "spot, on-demand"}}
    with Emulator(zones=("us-west4-a", "us-central1-a"), python=sys.executable) as cloud:
        cloud.stockout("us-west4-a", "refuse")
        environ = cloud.environ(project=PROJECT)
        for name in ("KINETIC_PROJECT", "KINETIC_BACKEND"):
            del environ[name]
        environ["AIRFLOW_CONN_OF_THE_CLOUD"] = json.dumps(extra)
        done = airflow("run_dag", home, environ=environ, dag_id="chooses_in_the_cloud")
        assert done["states"] == {"train": "success"}, done["log"]
        assert "It runs script_of_dags.py on v5e-4: 4 chips (2x2), 1 host × 4 chips" in done["log"]
        [event] = done["events"]
        assert event["accelerator"] == "v5e-1"
        assert event["chosen"] == (
            "v5e-1 spot in us-central1-a, after v5e-4 spot in us-west4-a (when it was chosen: v5e-4 spot in us-west4-a: "
            "stockout just now)"
        )
        assert cloud.ledger.count("created", "node") == 1
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.timeout(900)
def test_a_model_of_a_bucket_is_read_asked_and_promoted_as_the_connection_says(
    airflow: Airflow, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        environ = cloud.environ(project=PROJECT)
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            store, _ = here()
            for name in ("config.json", "model.safetensors", "tokenizer.json"):
                store.create(f"given/model/{name}", b"{}")
        for name in ("KINETIC_PROJECT", "KINETIC_BACKEND"):
            del environ[name]
        environ["AIRFLOW_CONN_OF_THE_CLOUD"] = json.dumps(CONNECTION)
        conf = {
            "model": f"{store.url}/given/model", "place": f"{store.url}/place", "state": str(tmp_path),
            "script": openai_server.__file__,
        }  # fmt: skip
        done = airflow("run_dag", home, environ=environ, dag_id="goes_from_one_bucket_to_another", conf=conf)
        assert done["state"] == "success", done["log"][-5000:]
        assert done["xcoms"]["read/return_value"] == ["config.json", "model.safetensors", "tokenizer.json"]
        promoted, report = done["xcoms"]["promote/return_value"], done["xcoms"]["answer/return_value"]
        assert promoted["answers"] == {"one two": "two one", "three": "three"}
        assert promoted["uri"].startswith(f"{store.url}/place/models/")
        assert report["emulated"] and report["usd"] > 0 < report["usd_per_million_tokens"]
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.turn(6)
@pytest.mark.timeout(900)
def test_a_hooks_jobs_run_in_the_cloud(airflow: Airflow, home: Path) -> None:
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        environ = cloud.environ(project=PROJECT)
        done = airflow("jobs_of_a_hook", home, environ=environ, accelerator="v5e-1", options={"zone": "us-west4-a"})
        assert (done["value"], done["listed"], done["left"], done["same"]) == (3, True, [], True)
        assert done["raised"] == "JobCancelled"
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()
