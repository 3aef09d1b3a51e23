"""The targets of a task's links, and the names in its lineage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kinetic.links.kinetic import urls_of
from airflow_kinetic.shared.location import JobLocation
from airflow_kinetic.shared.outcome import data_in, lineage_of
from kinetic_orchestration import Data
from kinetic_orchestration.api.links import browse
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.telemetry.lineage import address_of
from tests.airflow_kinetic.conftest import environ_of

OPENLINEAGE = (
    "apache-airflow-providers-openlineage==2.20.3", "openlineage-python==1.54.0",
    "openlineage-integration-common==1.54.0", "openlineage-sql==1.54.0",
)  # fmt: skip


def test_a_job_in_the_cloud_has_three_links() -> None:
    place = JobLocation("gs://bucket/kinetic", "production", "tpu-vm", "a-project")
    urls = urls_of("job-1", place)
    browser = "https://console.cloud.google.com/storage/browser/bucket/kinetic/production/jobs/job-1/"
    assert urls == {
        "job_link": browser,
        "log_link": f"{browser}out/",
        "console_link": "https://console.cloud.google.com/compute/tpus?project=a-project",
    }


def test_a_job_on_vms_has_the_page_of_vms() -> None:
    place = JobLocation("gs://bucket/kinetic", "production", "compute", "a-project")
    page = urls_of("job-1", place)["console_link"]
    assert page == "https://console.cloud.google.com/compute/instances?project=a-project"


def test_the_location_of_a_job_is_on_the_backend_that_the_rule_chose_for_it(home: Path) -> None:
    """A task's own is by its settings, before it is known which hardware it asks for."""
    environ = {
        "KINETIC_STORE": "gs://b/k",
        "KINETIC_DEPLOYMENT": "d",
        "KINETIC_PROJECT": "p",
        "KINETIC_CLUSTER": "prod",
    }
    here = load({"KINETIC_HOME": str(home), **environ})
    place = JobLocation("gs://b/k", "d", "tpu-vm", "p")
    assert place.on("tpu-vm", here) is place
    assert place.on("compute", here) == JobLocation("gs://b/k", "d", "compute", "p")
    assert place.on("gke", here) == JobLocation("gs://b/k", "d", "gke", "p", cluster="prod")


def test_a_job_of_a_cluster_has_no_page_of_tpus() -> None:
    place = JobLocation("gs://bucket/kinetic", "production", "kubernetes", cluster="prod", namespace="training")
    assert set(urls_of("job-1", place)) == {"job_link", "log_link"}


def test_a_profile_in_a_bucket_has_the_consoles_page() -> None:
    page = "https://console.cloud.google.com/storage/browser/bucket/out/profile"
    assert browse("gs://bucket/out/profile") == page


def test_a_task_has_the_links_of_its_class_whatever_it_finds_of_its_job() -> None:
    """One that leads nowhere is empty, which Airflow shows as no button."""
    from airflow_kinetic import KineticTPUOperator

    task = KineticTPUOperator(task_id="train", python_callable=len, accelerator="cpu")
    links = task.operator_extra_links
    task.kinetic_urls = urls_of("job-1", JobLocation("/srv/kinetic", "production", "local"))
    assert task.operator_extra_links is links is type(task).operator_extra_links
    said = {link.name: link.get_link(task, ti_key=None) for link in links}
    assert [name for name, url in said.items() if url] == ["Kinetic job", "Kinetic log"]
    assert len(said) == 5


def test_data_is_found_wherever_it_is_in_a_call(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    given = [[1, Data(str(folder))], {"a": {"b": (Data("gs://bucket/points/"),)}}]
    assert [address_of(data.path) for data in data_in(given)] == [("file", str(folder)), ("gs://bucket", "points")]


def test_without_openlineage_there_is_no_lineage_and_no_error() -> None:
    assert lineage_of([], None) is None


@pytest.mark.slow
@pytest.mark.turn(6)
@pytest.mark.timeout(400)
def test_airflows_openlineage_takes_what_a_task_tells(tmp_path: Path, home: Path) -> None:
    """Uses the unmodified OpenLineage provider, which is not among this project's development packages."""
    import uv

    where = ["--python", sys.executable, "--target", str(tmp_path / "more")]
    command = [uv.find_uv_bin(), "pip", "install", "--no-deps", *where, *OPENLINEAGE]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert installed.returncode == 0, installed.stderr
    (data := tmp_path / "data").mkdir()
    (data / "points.csv").write_text("1\n")
    environ = environ_of(tmp_path / "airflow", tmp_path / "dags") | {
        "KINETIC_HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "more"), os.getcwd()]),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "console"}),
    }
    program = [sys.executable, str(Path(__file__).parent / "lineage.py"), str(data)]
    ran = subprocess.run(program, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    inputs = [["file", str(data)], ["gs://bucket", "points"], ["gs://bucket", "volume"]]
    assert told["start"] == {"inputs": inputs, "outputs": [], "tags": {}, "error": ""}
    for state, error in (("success", ""), ("failed", "no such column: price")):
        ended = told[state]
        assert (ended["inputs"], ended["outputs"], ended["error"]) == (inputs, [["file", ended["folder"]]], error)
        tags = {"job_id": ended["job"], "backend": "local", "accelerator": "cpu", "deployment": "local"}
        assert ended["tags"] == tags
