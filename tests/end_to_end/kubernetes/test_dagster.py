"""An asset of a running Dagster whose job runs on a real control plane: from its queue to its last pod."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kinetic_orchestration import JobStatus, attach
from tests.dagster_kinetic.live.dagster_server import DagsterDev, dagster_dev
from tests.end_to_end.kubernetes.cases import Cluster
from tests.support.kubernetes.fixtures import only_real
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, only_real, pytest.mark.turn(2)]

DEFINITIONS = Path(__file__).with_name("dagster_definitions.py")
WITHIN = 300.0


@pytest.mark.timeout(1200, func_only=True)
def test_an_asset_runs_on_a_cluster_is_seen_from_its_queue_to_its_end_and_is_terminated(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KINETIC_BACKEND")  # the resource says it
    place = {"CLUSTER_OF_JOBS": "tests", "NAMESPACE_OF_JOBS": cluster.namespace}
    (project := tmp_path / "project").mkdir()
    definitions = shutil.copy(DEFINITIONS, project)  # all that is sent
    with dagster_dev(tmp_path / "dagster", Path(definitions), environment=place) as server:
        is_followed_to_its_end(server, cluster, tmp_path / "first")
        takes_its_jobset_with_it(server, cluster, tmp_path / "second")


def is_followed_to_its_end(server: DagsterDev, cluster: Cluster, folder: Path) -> None:
    cluster.single()  # which is another one than the job asks for
    run = launched(server, folder)
    server.wait_for_message(run, r"queued: .*no node has the labels that the pods ask for", WITHIN)
    [jobset] = cluster.sets()
    labels = jobset["metadata"]["labels"]
    wanted = {"asset": "ranker", "owner": "ranking", "run": run, "step": "ranker", "team": "ranking"}
    assert {name: labels.get(name) for name in wanted} == wanted
    assert labels["pipeline"]
    cluster.pools()
    server.until(lambda: says(server, run, "host 0") and says(server, run, "host 1"), WITHIN)
    for pod in cluster.list("pods"):
        assert {name: pod["metadata"]["labels"].get(name) for name in wanted} == wanted
    assert server.status(run) == "STARTED", "its lines came while it ran"
    (folder / "go").touch()
    server.wait(run, "SUCCESS", within=WITHIN)
    cluster.wait_until_empty()

    said = server.messages(run)
    story = ("queued: ", "running: 2 hosts", "succeeded; tearing down: 2 hosts of v4-8", "cost: ")
    places = [[line.startswith(begin) for line in said].index(True) for begin in story]
    assert places == sorted(places), "\n".join(said)
    for host in range(2):
        lines = server.captured(run, f"ranker [host {host}]")[0].splitlines()
        assert [line for line in lines if line.startswith("step ")] == [
            f"step {step} of host {host}" for step in range(sum(line.startswith("step ") for line in lines))
        ]
    found = server.asset("ranker")
    [made] = found["assetMaterializations"]
    values = {entry["label"].removeprefix("~").removeprefix("kinetic/"): entry for entry in made["metadataEntries"]}
    assert values["zone"]["text"] == f"tests/{cluster.namespace}"
    assert values["attempts"]["intValue"] == 1
    assert values["job_id"]["text"].removeprefix("job-") in labels["kinetic-job"]
    assert "tpus_url" not in values
    assert "loss" in {entry["label"] for entry in found["assetObservations"][0]["metadataEntries"]}


def takes_its_jobset_with_it(server: DagsterDev, cluster: Cluster, folder: Path) -> None:
    run = launched(server, folder)
    server.until(lambda: says(server, run, "host 0") and says(server, run, "host 1"), WITHIN)
    [jobset] = cluster.sets()
    server.terminate(run)
    server.wait(run, "CANCELED", within=WITHIN)
    cluster.wait_until_empty()
    job = attach(jobset["metadata"]["labels"]["kinetic-job"])
    wait_until(lambda: job.status() is JobStatus.CANCELLED, job.status)
    assert job.attempts() == 1


def launched(server: DagsterDev, folder: Path) -> str:
    folder.mkdir()
    return server.launch(assets=["ranker"], config={"ops": {"ranker": {"config": {"folder": str(folder)}}}})


def says(server: DagsterDev, run: str, host: str) -> bool:
    return f"step 1 of {host}" in server.captured(run, "ranker")[0]
