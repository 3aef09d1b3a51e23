"""Workload Identity: pods act as their Kubernetes service account, or as the one of Google that it is annotated with."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from google.oauth2.credentials import Credentials

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.platforms.google.credentials import handed_in
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules.policies import account_token, subject_token
from kinetic_orchestration.testing.emulator import BUCKET, PROJECT
from kinetic_orchestration.testing.kubernetes.pods.metadata import ANNOTATION
from kinetic_orchestration.testing.kubernetes.pods.nodes import tpu_pool
from kinetic_orchestration.testing.model.state.machine import project_number
from tests.end_to_end.kubernetes.cases import ONE_HOST, Cluster
from tests.support.jobs import WITHIN, placements

pytestmark = [pytest.mark.slow, pytest.mark.turn(6)]

POOL = f"{PROJECT}.svc.id.goog"
SUBMITTER = "token-of-the-submitter"
USER = "roles/storage.objectUser"


class Trainer(NamedTuple):
    """A Kubernetes service account of the test's namespace, whose pods have a node."""

    cluster: Cluster
    bucket: Emulator
    token: str  # with which its pods are to come

    @property
    def member(self) -> str:
        pool = f"projects/{project_number(PROJECT)}/locations/global/workloadIdentityPools/{POOL}"
        return f"principal://iam.googleapis.com/{pool}/subject/ns/{self.cluster.namespace}/sa/trainer"

    def run(self, function: Any, *arguments: Any) -> Any:
        cloud = kinetic.Kubernetes(service_account="trainer")
        with handed_in(Credentials(SUBMITTER)):  # of whose rights pods may have nothing
            return kinetic.run(accelerator=ONE_HOST, cloud=cloud)(function).run_async(*arguments)

    def obey(self, line: str) -> None:
        """Carry out a line of gcloud that grants a role."""
        words = shlex.split(line)
        told = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
        if words[:4] == ["gcloud", "storage", "buckets", "add-iam-policy-binding"]:
            self.bucket.storage.restrict(words[4].removeprefix("gs://"), told["role"], told["member"])
        else:
            assert words[:4] == ["gcloud", "iam", "service-accounts", "add-iam-policy-binding"], line
            self.bucket.neighbours.accounts.grant(words[4], told["role"], told["member"])


@pytest.fixture
def trainer(cluster: Cluster, bucket: Emulator) -> Callable[..., Trainer]:
    """Makes the account, and a node whose pods meet GKE's metadata server: `google`, the account that it stands for."""

    def make(google: str = "", after: float = 0.0) -> Trainer:
        namespace = cluster.namespace
        annotations = {ANNOTATION: google} if google else {}
        body = {"metadata": {"name": "trainer", "annotations": annotations}}
        cluster.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", body)
        machine = {**cluster.machine, "KINETIC_EMULATOR": bucket.rest.url}
        [node] = tpu_pool(f"{namespace}-single", 1, topology="1x1", chips=1, **machine)
        cluster.add(replace(node, identities=POOL, identities_after=after))
        own = subject_token(POOL, project_number(PROJECT), namespace, "trainer")
        return Trainer(cluster, bucket, account_token(google) if google else own)

    return make


def callers(bucket: Emulator) -> set[str]:
    return {call.caller for call in bucket.storage.calls}


def commands(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"gcloud .+?--member='[^']+'", text)))


@pytest.mark.parametrize("annotated", [True, False])
def test_a_pod_asks_for_everything_as_its_service_account(
    trainer: Callable[..., Trainer], bucket: Emulator, cluster: Cluster, jobs: Any, annotated: bool
) -> None:
    google = bucket.add_service_account("training", f"{cluster.namespace}/trainer") if annotated else ""
    mine = trainer(google)
    bucket.storage.restrict(BUCKET, USER, f"serviceAccount:{google}" if annotated else mine.member)
    bucket.storage.forget()
    job = mine.run(jobs.of_host_0)
    with handed_in(Credentials(SUBMITTER)):
        assert job.result(timeout=WITHIN) == "of host 0"
    assert callers(bucket) == {SUBMITTER, mine.token}


def test_a_metadata_server_that_takes_no_connection_for_some_seconds_is_waited_for(
    trainer: Callable[..., Trainer], bucket: Emulator, jobs: Any
) -> None:
    mine = trainer(after=4.0)
    bucket.storage.restrict(BUCKET, USER, mine.member)
    bucket.storage.forget()
    job = mine.run(jobs.of_host_0)
    with handed_in(Credentials(SUBMITTER)):
        assert job.result(timeout=WITHIN) == "of host 0"
    assert callers(bucket) == {SUBMITTER, mine.token}
    assert len(placements(job)) == 1


@pytest.mark.parametrize("lacks", ["the bucket", "the account"])
def test_an_account_without_a_grant_ends_the_job_within_seconds_with_the_line_that_grants_it(
    trainer: Callable[..., Trainer], bucket: Emulator, cluster: Cluster, jobs: Any, lacks: str
) -> None:
    """And not after all the attempts that a job has for what may pass. Once the line was carried out, the job runs."""
    google = bucket.add_service_account("training") if lacks == "the account" else ""
    mine = trainer(google)
    bucket.storage.restrict(BUCKET, *([USER, f"serviceAccount:{google}"] if google else []))
    began = time.monotonic()
    job = mine.run(jobs.of_host_0)
    with handed_in(Credentials(SUBMITTER)), pytest.raises(JobError) as raised:
        job.result(timeout=WITHIN)
    assert time.monotonic() - began < 40.0
    said = str(raised.value)
    assert f"the Kubernetes service account {cluster.namespace}/trainer" in said
    assert (google or mine.member) in said
    assert len(placements(job)) == 1, said
    assert SUBMITTER not in said
    [line] = commands(said)
    mine.obey(line)
    job = mine.run(jobs.of_host_0)
    with handed_in(Credentials(SUBMITTER)):
        assert job.result(timeout=WITHIN) == "of host 0"


def test_an_account_that_may_read_alone_is_told_which_role_it_lacks(
    trainer: Callable[..., Trainer], bucket: Emulator, cluster: Cluster, jobs: Any
) -> None:
    """Its agent came, and can say nothing but by the pod's exit code and last words."""
    mine = trainer()
    bucket.storage.restrict(BUCKET, "roles/storage.objectViewer", mine.member)
    job = mine.run(jobs.of_host_0)
    with handed_in(Credentials(SUBMITTER)), pytest.raises(JobError) as raised:
        job.result(timeout=WITHIN)
    said = str(raised.value)
    assert f"the Kubernetes service account {cluster.namespace}/trainer" in said
    assert len(placements(job)) == 1, said
    [line] = commands(said)
    mine.obey(line)
    job = mine.run(jobs.of_host_0)
    with handed_in(Credentials(SUBMITTER)):
        assert job.result(timeout=WITHIN) == "of host 0"
