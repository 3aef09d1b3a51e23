"""A language model goes all the way in Airflow, from its data to a server, by the programs and versions that the pages name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.kubernetes.pods.nodes import Node, NodeGroup
from tests.airflow_kinetic.conftest import EXAMPLES, Airflow, environ_of
from tests.airflow_kinetic.operators.test_on_cloud import CONNECTION, PROJECT
from tests.end_to_end.frameworks import conftest as of_frameworks
from tests.end_to_end.frameworks import test_whole_way_on_cloud as on_cloud
from tests.end_to_end.frameworks.test_whole_way import volume
from tests.support.interpreters import required
from tests.support.kubernetes import model_server
from tests.support.kubernetes.fixtures import serving_plane
from tests.support.pages import SOURCE, page

environments, frameworks, roomy = of_frameworks.environments, of_frameworks.frameworks, of_frameworks.roomy
route = on_cloud.route
SERVER = Path(model_server.__file__).with_name("version_server.py")
NAME = "whole_llm_airflow"
BEFORE = ("begin", "data", "pretrain", "convert", "finetune", "answer")
UNTRAINED = {"pretrain_steps": 4, "tuning_steps": 0}


@pytest.fixture(scope="module")
def path() -> dict[str, str]:
    """The variable by which uv finds MaxText's Python."""
    return {"PATH": os.path.dirname(required("3.12")) + os.pathsep + os.environ["PATH"]}


@pytest.fixture(scope="module")
def plane(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of this file alone, in which Deployments run."""
    with serving_plane(tmp_path_factory.mktemp("serving"), built) as plane:
        yield plane


def test_the_example_says_what_it_shows_and_what_to_change_and_is_on_the_pages() -> None:
    begin = (EXAMPLES / f"{NAME}.py").read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
    assert begin.startswith("Shows ") and f"python example_pipelines/{NAME}.py" in begin
    assert re.search(r"(?i)for a real slice", begin)
    assert f"({SOURCE}/blob/main/example_pipelines/{NAME}.py)" in page("docs/pipelines/airflow.md")


@pytest.mark.slow
@pytest.mark.turn(6)
@pytest.mark.timeout(3600)
def test_all_the_way_on_this_machine(frameworks: Path, database: Path, path: dict[str, str], tmp_path: Path) -> None:
    """By `python`, as on a laptop, without a cluster: a server of the version is asked here."""
    (tmp_path / "airflow").mkdir()
    shutil.copy(database, tmp_path / "airflow")
    environ = environ_of(tmp_path / "airflow", EXAMPLES) | path | {
        "KINETIC_HOME": str(frameworks), "PLACE": str(tmp_path / "place"), "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{NAME}.py")], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=3000
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-5000:]
    share = re.search(r"(\d+)% of the answers are right", said)
    assert share is not None and int(share[1]) >= 90, said[-5000:]
    assert "no cluster is named, so nothing is applied" in said and 'kind: "Deployment"' in said.replace(chr(92), "")
    [lineage] = (tmp_path / "place" / "models" / "counting").glob("*/lineage.json")
    told = json.loads(lineage.read_text("utf-8"))
    assert told["metrics"]["right"] >= 0.9 and told["job"]["origin"]["task"] == "finetune"
    [asked] = (tmp_path / "place" / "runs").glob("*/asked/parts")
    lines = [json.loads(line) for part in asked.iterdir() for line in part.read_text("utf-8").splitlines()]
    assert {one["prompt"]: one["text"].strip() for one in lines}["after four comes"] == "five"


@pytest.mark.slow
@pytest.mark.turn(6)
@pytest.mark.conformance
@pytest.mark.timeout(3600, func_only=True)  # what a first test waits for is made once, in its own time
def test_a_model_that_is_too_bad_is_held_back_and_one_that_passes_serves_in_a_cluster(
    airflow: Airflow,
    frameworks: Path,
    path: dict[str, str],
    plane: Any,
    namespace: str,
    nodes: NodeGroup,
    tmp_path: Path,
) -> None:
    nodes.add(Node("cpu-0"))
    volume(plane, namespace)
    place = tmp_path / "place"
    bad = airflow("run_dag", frameworks, dag_id=NAME, environ=path, conf={**UNTRAINED, "place": str(place)})
    after = dict.fromkeys(("promote", "deploy", "is_nowhere", "ask", "smoke_test"), "upstream_failed")
    assert bad["states"] == dict.fromkeys(BEFORE, "success") | {"check": "failed"} | after, bad["log"][-5000:]
    assert re.search(r"of the questions are answered rightly, and at least 90% are required, so this model", bad["log"])
    assert not (place / "models").exists()

    [python] = (
        folder / "bin" / "python" for folder in (frameworks / "environments").iterdir()
        if list(folder.glob("lib/python*/site-packages/peft"))
    )  # fmt: skip
    served = [str(python), str(SERVER), "--root", str(place / "models" / "counting")]
    serving = {"namespace": namespace, "command": served, "startup": 300, "wait": 120, "longest_request": 1}
    good = airflow(
        "run_dag", frameworks, dag_id=NAME, environ={**path, "KUBECONFIG": str(plane.kubeconfig)},
        conf={**UNTRAINED, "required": 0, "place": str(place), "cluster": "tests", "serving": serving},
    )  # fmt: skip
    deployed = dict.fromkeys((*BEFORE, "check", "promote", "deploy", "is_nowhere"), "success")
    assert good["states"] == deployed | dict.fromkeys(("ask", "smoke_test"), "skipped"), good["log"][-5000:]
    version, url = good["xcoms"]["promote/return_value"], good["xcoms"]["deploy/return_value"]
    assert url == f"http://counting.{namespace}.svc:8000/v1"
    assert "revision 1 serves: " in good["log"] and "100% agree" in good["log"]
    [event] = [each for each in good["events"] if "kinetic.uri" in each]
    assert (event["kinetic.uri"], event["kinetic.job"]) == (version, good["xcoms"]["finetune/kinetic_job_id"])
    listed = plane.api.get(f"/api/v1/namespaces/{namespace}/services/counting:8000/proxy/v1/models")
    assert [one["id"] for one in listed["data"]] == ["counting"]


@pytest.mark.slow
@pytest.mark.turn(7)
@pytest.mark.timeout(2700)
def test_its_jobs_run_on_slices_of_the_connections_project_and_its_files_are_in_a_bucket(
    home: Path, route: None, database: Path, tmp_path: Path, roomy: Path
) -> None:
    folder = on_cloud.project_in(tmp_path / "project", f"{NAME}.py")
    (tmp_path / "airflow").mkdir()
    shutil.copy(database, tmp_path / "airflow")
    with on_cloud.cloud_in(roomy / "cloud") as cloud:
        environ = environ_of(tmp_path / "airflow", folder) | cloud.environ(project=PROJECT) | {
            "KINETIC_HOME": str(home), "PLACE": "gs://emulated/counting", "PYTHONWARNINGS": "ignore",
            "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(CONNECTION),
        }  # fmt: skip
        for name in (
            "KINETIC_PROJECT",
            "KINETIC_BACKEND",
            "SERVING_CLUSTER",
        ):  # the first two follow from the connection
            environ.pop(name, None)
        conf = json.dumps({**UNTRAINED, "required": 0})
        done = subprocess.run(
            [sys.executable, "on_cloud.py", "airflow", conf], env=environ, cwd=folder, capture_output=True, text=True,
            timeout=2400,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == 0, said[-8000:]
        ran = re.findall(r"on (v\w+-\d): .*, Cloud TPU \S+ of an emulated cloud", said)
        assert ran == ["v4-8", "v5e-1", "v5e-1", "v5e-1", "v5e-1"], (
            "pre-training, conversion, tuning, answers, smoke test"
        )
        assert cloud.ledger.count("created", "node") >= len(ran)
        check_what_it_left(cloud)


def check_what_it_left(cloud: Emulator) -> None:
    """The checkpoints, the model, the answers and the version are in the bucket, and the version came from the job."""
    names = on_cloud.names_in_bucket(cloud)
    left = {"checkpoints/run/checkpoints/3/_CHECKPOINT_METADATA", "answers/parts/", "asked/parts/"}
    [runs] = {"/".join(name.split("/")[:3]) for name in names if name.startswith("counting/runs/")}
    assert {one for one in left if any(name.startswith(f"{runs}/{one}") for name in names)} == left
    assert any(re.fullmatch(r"kinetic/test/outputs/job-[^/]+/model/model\.safetensors", name) for name in names)
    told = on_cloud.lineage_in_bucket(cloud)
    assert told["job"]["origin"]["task"] == "finetune"
    assert told["source"].startswith("gs://emulated/kinetic/test/outputs/"), "copied within the bucket"
