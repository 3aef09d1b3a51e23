"""A deferred task of a running Airflow whose job runs on a real control plane, with the rights of the printed Role."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kinetic_orchestration import JobStatus, attach
from kinetic_orchestration.platforms.kubernetes import rights
from tests.airflow_kinetic.conftest import database  # noqa: F401 - a fixture
from tests.airflow_kinetic.live.airflow_servers import Airflow, Run
from tests.airflow_kinetic.live.conftest import started_airflow
from tests.airflow_kinetic.live.scenes import TOLERATED
from tests.end_to_end.kubernetes.cases import Cluster
from tests.support.kubernetes.fixtures import only_real
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, only_real, pytest.mark.turn(5), TOLERATED]

DAGS = Path(__file__).with_name("dags")
SENT = ("KINETIC_HOME", "KINETIC_STORE", "KINETIC_DEPLOYMENT", "KINETIC_SIGNING_KEY", "STORAGE_EMULATOR_HOST")


@pytest.fixture
def kubeconfig(cluster: Cluster, tmp_path: Path) -> Path:
    """The kubeconfig of a service account that has the printed Role and no other right."""
    account, where = "airflow", f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts"
    cluster.api.create(where, {"metadata": {"name": account}})
    granted = rights.role(rights.of(secrets=False, queue=False), cluster.namespace, f"serviceaccount:{account}")
    cluster.plane.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": granted}))
    config = json.loads(cluster.plane.account_kubeconfig(cluster.namespace, account).read_text(encoding="utf-8"))
    emulated = {"name": "kinetic-orchestration", "extension": {"emulated": True}}
    config["clusters"][0]["cluster"]["extensions"] = [emulated]
    path = tmp_path / "kubeconfig-of-airflow"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.timeout(1800, func_only=True)
def test_a_deferred_task_runs_on_a_cluster_is_followed_to_its_end_and_is_marked_failed(
    cluster: Cluster,
    kubeconfig: Path,
    database: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    connection = {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "cluster": "tests"}}
    environ = {
        **{name: os.environ[name] for name in SENT},
        "KUBECONFIG": str(kubeconfig),
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(connection),
    }
    (folder := tmp_path / "airflow").mkdir()
    dags = shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    with started_airflow(folder, dags, 2, database, environ) as airflow:
        cluster.single()  # which is another one than the job asks for
        is_cancelled_while_it_waits(airflow, cluster, tmp_path / "waits")
        is_followed_to_its_end(airflow, cluster, tmp_path / "first")
        for dag, state in (("nightly_training", "deferred"), ("training_on_a_worker", "running")):
            takes_its_jobset_with_it(airflow, cluster, tmp_path / state, dag)


def is_cancelled_while_it_waits(airflow: Airflow, cluster: Cluster, folder: Path) -> None:
    run = triggered(airflow, cluster, folder)
    run.wait("deferred")
    run.wait_for("kinetic: queued: ")
    run.mark_task("failed")
    cluster.wait_until_empty()


def is_followed_to_its_end(airflow: Airflow, cluster: Cluster, folder: Path) -> None:
    run = triggered(airflow, cluster, folder)
    run.wait("deferred")
    run.wait_for("no node has the labels that the pods ask for")
    [jobset] = cluster.sets()
    labels = jobset["metadata"]["labels"]
    wanted = {"pipeline": "nightly_training", "step": "train", "run": "first", "team": "ranking"}
    assert {name: labels.get(name) for name in wanted} == wanted
    cluster.pools()
    airflow.until(lambda: hosts_in(run) == {0, 1}, about=run.text)
    for pod in cluster.list("pods"):
        assert {name: pod["metadata"]["labels"].get(name) for name in wanted} == wanted
    airflow.until(lambda: run.worker() is None, about=lambda: "a worker is held")
    assert run.task()["state"] == "deferred", "all of this was live"
    assert set(run.links()) >= {"Kinetic job", "Kinetic log"}
    assert not run.links().get("Google Cloud console")
    (folder / "go").touch()
    assert run.wait("success")["try_number"] == 1
    assert run.value() == {"hosts": 2}
    cluster.wait_until_empty()
    text = run.text()
    for host in range(2):
        steps = [line for line in text.splitlines() if line.endswith(f" of host {host}") and line.startswith("step ")]
        assert steps == [f"step {step} of host {host}" for step in range(len(steps))]
    assert "kinetic: running: 2 hosts" in text and "kinetic: succeeded" in text


def takes_its_jobset_with_it(airflow: Airflow, cluster: Cluster, folder: Path, dag: str) -> None:
    run = triggered(airflow, cluster, folder, dag)
    run.wait(folder.name)
    airflow.until(lambda: hosts_in(run) == {0, 1}, about=run.text)
    [jobset] = cluster.sets()
    run.mark_task("failed")
    cluster.wait_until_empty()
    job = attach(jobset["metadata"]["labels"]["kinetic-job"])
    wait_until(lambda: job.status() is JobStatus.CANCELLED, job.status)
    assert job.attempts() == 1
    assert run.task()["state"] == "failed"


def triggered(airflow: Airflow, cluster: Cluster, folder: Path, dag: str = "nightly_training") -> Run:
    folder.mkdir()
    return airflow.trigger(dag, folder.name, folder=str(folder), namespace=cluster.namespace)


def hosts_in(run: Run) -> set[int]:
    """The hosts whose lines the log has so far."""
    return {host for host in range(2) if f"step 1 of host {host}" in run.text()}
