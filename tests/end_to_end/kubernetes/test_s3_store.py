"""Jobs whose pods reach their store on S3, a real MinIO, by nothing but a Secret of their namespace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.program.reading import read_checkpoint
from kinetic_orchestration.protocol import names, wire
from tests.end_to_end.kubernetes.cases import Cluster, run, verdict_of
from tests.end_to_end.kubernetes.conftest import KEY
from tests.support.jobs import WITHIN, lines, told, wait_running
from tests.support.kubernetes.fixtures import only_emulated
from tests.support.pages import blocks
from tests.support.s3_server import FIRST_BUILDS, PASSWORD, USER, S3Server, s3, s3_server

__all__ = ["s3", "s3_server"]

pytestmark = [pytest.mark.slow, pytest.mark.turn(0), FIRST_BUILDS]


@pytest.fixture
def bucket(home: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket on S3 in the place of one of the emulated Cloud Storage: this process alone knows its server."""
    bucket = s3.make_bucket()
    monkeypatch.setenv("KINETIC_STORE", f"{bucket}/kinetic")
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "prod")
    monkeypatch.setenv("KINETIC_SIGNING_KEY", KEY)
    return bucket


@pytest.fixture
def cloud(cluster: Cluster, s3: S3Server) -> Iterator[kinetic.Kubernetes]:
    """The options of a job with the Secret of the page on Kubernetes, which has all that pods know of the server."""
    [command] = [block for block in blocks("docs/cloud/kubernetes.md", "bash") if "create secret generic" in block]
    known = {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD, "AWS_ENDPOINT_URL": s3.url}
    assert re.findall(r"--from-literal=(\w+)=", command) == list(known)
    [name] = re.findall(r"create secret generic (\S+)", command)
    secrets = f"/api/v1/namespaces/{cluster.namespace}/secrets"
    cluster.api.create(secrets, {"metadata": {"name": name}, "stringData": known})
    yield kinetic.Kubernetes(env_from=[name])
    cluster.api.delete(f"{secrets}/{name}")


def test_a_function_on_two_hosts_gives_back_its_value_its_lines_and_its_checkpoint(
    cluster: Cluster, cloud: kinetic.Kubernetes, jobs: Any, bucket: str, tmp_path: Path
) -> None:
    cluster.pools()
    job = run(jobs.trains, 3, str(tmp_path / "go"), cloud=cloud)
    wait_running(job)
    pods = cluster.pods(job)
    assert sorted(pods) == [0, 1]
    assert PASSWORD not in json.dumps([cluster.sets(), cluster.jobs(), pods])
    for host, pod in pods.items():
        assert f"this is host {host} of 2 of {job.job_id}, attempt 1; the agent is here" in cluster.log(pod)
    (tmp_path / "go").touch()
    events = told(job)
    place = job.result(timeout=WITHIN)
    assert job.status() is JobStatus.SUCCEEDED
    for host in range(2):
        assert lines(events, host) == "".join(f"step {step} of host {host}\n" for step in (1, 2, 3))
    assert place.startswith(f"{bucket}/kinetic/prod/")
    found = read_checkpoint(f"{place}/t")
    assert (found.step, found.state) == (3, {"n": 3})


@only_emulated
def test_an_agent_that_was_damaged_in_the_bucket_is_not_run_and_is_sent_again(
    cluster: Cluster, cloud: kinetic.Kubernetes, jobs: Any, tmp_path: Path
) -> None:
    """It is damaged while the pods wait for nodes. A pod says so in the store, as it has no agent that could."""
    marks = tmp_path / "marks"
    job = run(jobs.leaves_mark, str(marks), cloud=cloud)
    store = job._job.store
    name = names.blob(job._job.spec()["staged"]["agent"])
    record = store.read(name)
    assert record is not None
    data = bytearray(record.data)
    data[len(data) // 2] ^= 1
    store.put(name, bytes(data))
    cluster.pools()
    said = r"the agent in s3://\S+ is not the one that was submitted.*It was not run.*submit the job again"
    with pytest.raises(JobError, match=said):
        job.result(timeout=WITHIN)
    verdict = verdict_of(job)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (wire.ABORTED, wire.CONFIGURATION)
    assert verdict.writer.endswith("/boot")
    assert job.attempts() == 1
    assert not marks.exists()
    assert store.read(name) is None
    assert run(jobs.attempt, cloud=cloud).result(timeout=WITHIN) == 1
