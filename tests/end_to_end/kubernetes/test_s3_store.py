"""Jobs whose pods reach their store on S3, a real MinIO, by nothing but a Secret of their namespace."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import main
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.plan.values import JobStatus
from kinetic_orchestration.program.reading.checkpoints import read_checkpoint
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import tree
from tests.end_to_end.kubernetes.cases import Cluster, condition, run, verdict_of
from tests.end_to_end.kubernetes.conftest import KEY
from tests.support.jobs import WITHIN, lines, told, wait_running
from tests.support.pages import blocks
from tests.support.s3_server import FIRST_BUILDS, PASSWORD, USER, S3Server, s3, s3_server
from tests.support.waits import wait_until

__all__ = ["s3", "s3_server"]

pytestmark = [pytest.mark.slow, pytest.mark.turn(1), FIRST_BUILDS]


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


@pytest.mark.parametrize("refused", ["key", "secret", "endpoint", "bucket"])
def test_pods_that_the_store_refuses_say_so_in_its_own_words_where_they_are_looked_for(
    cluster: Cluster, jobs: Any, bucket: str, s3: S3Server, refused: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They can tell the store nothing, and nobody has to have looked when they ended. No other attempt would do better."""
    cluster.pools()
    wrong = "one-that-the-server-does-not-know"
    known = {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD, "AWS_ENDPOINT_URL": s3.url}
    known |= {
        "key": {"AWS_ACCESS_KEY_ID": wrong},
        "secret": {"AWS_SECRET_ACCESS_KEY": wrong},
        "endpoint": {"AWS_ENDPOINT_URL": "minio:9000"},
        "bucket": {"AWS_ENDPOINT_URL": f"{s3.url}/another"},
    }[refused]
    secrets = f"/api/v1/namespaces/{cluster.namespace}/secrets"
    cluster.api.create(secrets, {"metadata": {"name": "wrong"}, "stringData": known})
    job = run(jobs.attempt, cloud=kinetic.Kubernetes(env_from=["wrong"]))
    if refused == "secret":
        wait_until(lambda: condition(cluster.sets()[0], "Failed"), "the end of its set", pause=0.1)
    with pytest.raises(JobError) as caught:
        job.result(timeout=WITHIN)
    read = r"host \d could not start: Cannot read blobs/\S+ \(store s3://\S+\): "
    advice = (
        r"\. The credentials \(AWS_ACCESS_KEY_ID\) are not valid at http://127.*\. Give others, by AWS_ACCESS_KEY_ID"
    )
    said = {
        "key": rf"{read}The Access Key Id .* does not exist .*\(InvalidAccessKeyId\){advice}",
        "secret": rf"{read}The request signature we calculated does not match .*\(SignatureDoesNotMatch\){advice}",
        "endpoint": r"host \d could not start: AWS_ENDPOINT_URL_S3 .* is 'minio:9000': give the server's address",
        "bucket": rf"{read}.*\(NoSuchBucket\)\. There is no bucket",
    }[refused]
    assert re.search(said, str(caught.value)), caught.value
    capsys.readouterr()
    main(["status", job.job_id])
    shown = capsys.readouterr().out
    assert re.search(said, " ".join(shown.split())), shown
    verdict = verdict_of(job)
    assert verdict is not None and verdict.cause == wire.CONFIGURATION
    assert job.attempts() == 1
    told = json.dumps([str(caught.value), shown, verdict.reason, cluster.list("pods")])
    assert not [value for value in (wrong, PASSWORD) if value in told]
    cluster.api.delete(f"{secrets}/wrong")


MESSAGES = {
    "agent": r"the agent in s3://\S+ is not the one that was submitted.*It was not run.*submit the job again",
    "payload": r"its checksum differs.* It was removed: submit the job again",
    "tree": r"its checksum differs.* It was removed from the store: submit the job again",
}


@pytest.mark.parametrize(
    ("what", "how"), [("agent", "overwritten"), ("agent", "rotten"), ("payload", "rotten"), ("tree", "rotten")]
)
def test_what_was_damaged_in_the_bucket_is_not_run_and_is_sent_again(
    cluster: Cluster, cloud: kinetic.Kubernetes, jobs: Any, s3: S3Server, what: str, how: str, tmp_path: Path
) -> None:
    """It is damaged while the pods wait for nodes. `rotten`: as by a disk, which leaves the object's own checksum as it was.
    Of an agent a pod says so in the store, as it has none that could."""
    marks = tmp_path / "marks"
    job = run(jobs.leaves_mark, str(marks), cloud=cloud)
    store, staged = job._job.store, job._job.spec()["staged"]
    if what == "tree":
        manifest = store.read(names.tree(staged["tree"]))
        assert manifest is not None
        name = names.blob(tree.packs_of(json.loads(manifest.data))[0].id)
    else:
        name = names.blob(staged["agent"] if what == "agent" else staged["payload"]["digest"])
    if how == "rotten":
        s3.rot(store.requests.place.bucket, f"{store.url.partition('://')[2].partition('/')[2]}/{name}")
    else:
        record = store.read(name)
        assert record is not None
        store.put(name, record.data[:-1] + b"x")
    cluster.pools()
    began = time.monotonic()
    with pytest.raises(JobError, match=MESSAGES[what]):
        job.result(timeout=WITHIN)
    assert time.monotonic() - began < 45.0, "it was asked for as long as a store that does not answer"
    verdict = verdict_of(job)
    assert verdict is not None
    assert (verdict.kind, verdict.cause) == (wire.ABORTED, wire.CONFIGURATION)
    assert verdict.writer.endswith("/boot") == (what == "agent")
    assert job.attempts() == 1
    assert not marks.exists()
    assert store.find(name) is None
    assert run(jobs.attempt, cloud=cloud).result(timeout=WITHIN) == 1
