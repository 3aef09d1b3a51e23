"""A task's job is refused if it could only be emulated though Google Cloud is meant; else it is said where it runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kinetic_orchestration.cli import main
from kinetic_orchestration.plan.declare.backend_choice import by_hardware, refusal_of
from kinetic_orchestration.plan.declare.spec import Options
from kinetic_orchestration.plan.hardware.accelerators import parse
from tests.airflow_kinetic.conftest import Airflow

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
    assert set(done["states"].values()) == {"failed"}
    assert done["log"].count(MISSING) >= len(done["states"]) and named in done["log"]
    assert not (home / "store").exists()


def test_an_emulated_task_says_so_in_its_log_and_in_xcom(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="means_no_cloud")
    assert done["states"] == {"train": "success", "deferred": "success"}
    for task in done["states"]:
        assert done["xcoms"][f"{task}/kinetic_where"] == "emulated on this machine's CPU"
        first = rf"It runs {task} on v5e-1: 1 chip \(1x1\), 1 host × 1 chip, emulated on this machine's CPU"
        assert re.search(first, done["log"])
    assert [(event["where"], event["emulated"]) for event in done["events"]] == [
        ("emulated on this machine's CPU", True)
    ] * 2
    assert len(re.findall(r"cost: \$0\.00 on this machine; .* list price of 20\d\d-\d\d", done["log"])) == 2


def test_a_job_is_listed_by_its_dag_task_run_index_and_try_and_watched_by_its_id(
    airflow: Airflow, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = airflow("run_dag", home, dag_id="watches_by_its_id")
    assert done["states"] == {"doubled[0]": "success", "watch": "success"}
    job_id = done["xcoms"]["doubled[0]/kinetic_job_id"]
    assert done["xcoms"]["watch/return_value"] == 6
    assert done["xcoms"]["watch/kinetic_where"] == "this machine's CPU"
    assert len(re.findall(rf"Job {job_id}\. It runs doubled on cpu", done["log"])) == 2, "the sensor says it, too"
    assert main(["jobs", "--all", "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)
    run = job["origin"].pop("run")
    assert job["job_id"] == job_id and run.startswith("manual__")
    origin = {"orchestrator": "airflow", "dag": "watches_by_its_id", "task": "doubled", "map_index": "0", "try": "1"}
    assert job["origin"] == origin
    assert main(["jobs", "--all"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", shown[0])[2:7] == ["DAG", "TASK", "RUN", "MAP INDEX", "TRY"]
    assert re.split(r"\s{2,}", shown[1])[2:7] == ["watches_by_its_id", "doubled", run, "0", "1"]
    assert main(["status", job_id]) == 0
    assert re.search(r"^dag +watches_by_its_id\ntask +doubled\nrun +manual__", capsys.readouterr().out, re.M)


def test_a_task_says_of_what_the_cloud_cannot_run_what_everybody_says(airflow: Airflow, home: Path) -> None:
    names = ["gpu", "gpu:3", "v100", "h100", "cpu:4", "tpu7x-192"]
    cloud = {"KINETIC_PROJECT": "p", "KINETIC_STORE": "gs://no-bucket-is-asked-for/kinetic", "KINETIC_DEPLOYMENT": "d"}
    done = airflow("refused_elsewhere", home, environ=cloud, accelerators=names)
    refusals = {name: refusal_of(by_hardware(parse(name)).backend, Options(name)) for name in names}
    assert done["told"] == {
        name: f"AirflowFailException: {refusal}. Once that is repaired, clear the task"
        for name, refusal in refusals.items()
    }


def test_keras_kinetics_words_for_its_own_images_name_none(airflow: Airflow, home: Path) -> None:
    cloud = {"KINETIC_PROJECT": "p", "KINETIC_STORE": "gs://no-bucket-is-asked-for/kinetic", "KINETIC_DEPLOYMENT": "d"}
    words = ["bundled", "prebuilt", "eu.gcr.io/p/i"]
    done = airflow("images_of", home, environ={**cloud, "KINETIC_BACKEND": "tpu-vm"}, words=words, accelerator="v5e-1")
    assert done["images"] == ["", "", "eu.gcr.io/p/i"]


BUCKET = {"KINETIC_STORE": "gs://no-bucket-is-asked-for/kinetic", "KINETIC_DEPLOYMENT": "d"}
KEY = {"KINETIC_SIGNING_KEY": "a-key-of-the-tests-of-airflow"}


def test_a_job_runs_in_the_cluster_that_its_task_or_else_its_connection_or_else_a_setting_names(
    airflow: Airflow, home: Path, kubeconfig: dict[str, str]
) -> None:
    tasks = [
        {"backend": "gke", "cluster": "{{ params.cluster }}", "namespace": "{{ params.namespace }}"},
        {"backend": "gke"},
        {"backend": "gke", "namespace": "own"},
        {"backend": "kubernetes", "cluster": "of-a-kubeconfig"},
        {"backend": "kubernetes", "namespace": "own", "on_cluster": {"clusters": ["a", "b"]}},
    ]
    environ = {**BUCKET, **KEY, **kubeconfig, "KINETIC_CLUSTER": "of-a-setting"}
    extra = {"project": "p", "cluster": "of-the-connection", "namespace": "theirs"}
    params = {"cluster": "of-the-task", "namespace": "own"}
    done = airflow("clusters_of", home, environ=environ, tasks=tasks, extra=extra, params=params)
    assert [each["places"] for each in done["found"]] == [
        ["of-the-task/own"], ["of-the-connection/theirs"], ["of-the-connection/own"], ["of-a-kubeconfig/theirs"],
        ["a/own", "b/own"],
    ]  # fmt: skip
    assert [each["backend"] for each in done["found"]] == ["gke"] * 3 + ["kubernetes"] * 2
    assert [each["told"] for each in done["found"]] == [
        ["gke", "p", "of-the-task", "own"],
        ["gke", "p", "of-the-connection", "theirs"],
        ["gke", "p", "of-the-connection", "own"],
        ["kubernetes", "", "of-a-kubeconfig", "theirs"],
        ["kubernetes", "", "of-the-connection", "own"],
    ]
    of_hook = {"backend": "gke", "project": "p", "cluster": "of-the-connection", "namespace": "of-the-hook"}
    assert {name: done["hook"][name] for name in of_hook} == of_hook


def test_a_cluster_of_a_kubeconfig_needs_no_project_for_its_store_in_a_bucket(
    airflow: Airflow, home: Path, kubeconfig: dict[str, str]
) -> None:
    environ = {**BUCKET, **KEY, **kubeconfig, "KINETIC_BACKEND": "kubernetes", "KINETIC_PROJECT": ""}
    done = airflow("clusters_of", home, environ=environ, tasks=[{}], extra={}, params={})
    assert done["found"] == [
        {"backend": "kubernetes", "places": ["of-a-kubeconfig/default"], "told": ["kubernetes", "", "", ""]}
    ]


@pytest.fixture
def kubeconfig(tmp_path: Path) -> dict[str, str]:
    """A kubeconfig whose clusters nobody asks anything."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [
            {"name": name, "context": {"cluster": "c", "user": "u"}} for name in ("of-a-kubeconfig", "a", "b")
        ],
        "current-context": "of-a-kubeconfig",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    return {"KUBECONFIG": str(path)}


def test_required_hardware_refuses_a_task(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="means_no_cloud", environ={"KINETIC_REQUIRE_HARDWARE": "true"})
    assert done["states"] == {"train": "failed", "deferred": "failed"}
    assert done["log"].count("hardware is required") >= 2
    assert not (home / "store").exists()


def test_a_task_that_is_refused_keeps_nothing_in_its_state(airflow: Airflow, home: Path) -> None:
    done = airflow("refused", home, environ={"KINETIC_REQUIRE_HARDWARE": "true"})
    assert "hardware is required" in done["raised"]
    assert (done["kept"], done["requests"]) == ({}, 0)
