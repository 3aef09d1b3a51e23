"""Tests what `kinor doctor` says of the service account of pods on GKE: what IAM's own policies grant it, as far as they can be
read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import kinetic_orchestration as kinetic
from kinetic_orchestration.plan.configuration.settings import load
from kinetic_orchestration.plan.declare.spec import JobSpec, Options
from kinetic_orchestration.plan.planner import make_plan
from kinetic_orchestration.platforms.kubernetes.gke import STANDS_FOR
from kinetic_orchestration.platforms.registry import open_backend
from kinetic_orchestration.platforms.shared.findings import FAILED, OK, WARNING, Finding
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.emulator import PROJECT
from kinetic_orchestration.testing.model.state.machine import project_number
from tests.support.kubernetes.api import Api

pytestmark = pytest.mark.slow

GOOGLE = f"training@{PROJECT}.iam.gserviceaccount.com"
POOL = f"//iam.googleapis.com/projects/{project_number(PROJECT)}/locations/global/workloadIdentityPools/{PROJECT}.svc.id.goog"
MINE = f"principal:{POOL}/subject/ns/default/sa/trainer"
USER = "roles/storage.objectUser"
ACTS = f"serviceAccount:{PROJECT}.svc.id.goog[default/trainer]"
BUCKET = "looked-at"
NUMBER = r"\$\(gcloud projects describe (\S+) --format='value\(projectNumber\)'\)"


@pytest.fixture
def cloud(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with Emulator(hosts=False) as cloud:
        for name, value in cloud.environ(backend="gke", store=f"gs://{BUCKET}/kinetic").items():
            monkeypatch.setenv(name, value)
        yield cloud


@pytest.fixture
def looked(cloud: Emulator) -> Callable[..., Finding]:
    """Makes the account `trainer`, and returns what doctor says of it: of the one of Google that it stands for, too."""
    api = Api(cloud.cluster.write_kubeconfig(cloud.root / "kubeconfig-of-the-test"))

    def look(google: str = "", backend: str = "gke", name: str = "trainer") -> Finding:
        path = "/api/v1/namespaces/default/serviceaccounts"
        if api.found(f"{path}/trainer") is None:
            annotations = {STANDS_FOR: google} if google else {}
            api.create(path, {"metadata": {"name": "trainer", "annotations": annotations}})
        settings = load()
        options = Options(accelerator="cpu:4", cloud=kinetic.Kubernetes(service_account=name))
        opened = open_backend(backend, settings)
        plan = opened.resolve(make_plan(JobSpec("a job", options), settings))
        return {one.name: one for one in opened.examine(plan)}["service account"]

    return look


def obey(cloud: Emulator, line: str) -> None:
    """Carry out a line of gcloud that grants a role."""
    line = re.sub(NUMBER, lambda it: str(project_number(it[1])), line)
    words = shlex.split(line)
    told = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
    if words[1] == "storage":
        cloud.storage.restrict(words[4].removeprefix("gs://"), told["role"], told["member"])
    elif words[3] == "create":
        assert cloud.add_service_account(words[4], project=told["project"]) == GOOGLE
    else:
        cloud.neighbours.accounts.grant(words[4], told["role"], told["member"])


def lines(found: Finding) -> list[str]:
    return re.findall(r"gcloud (?!projects).*?(?=; and |\n|$)", found.fix)


def test_an_account_is_itself_to_google_and_its_bucket_lets_it(cloud: Emulator, looked: Callable[..., Finding]) -> None:
    cloud.storage.restrict(BUCKET)
    found = looked()
    assert found.state == WARNING
    assert f"gs://{BUCKET} does not let it read and write, unless its project does" in found.found
    obey(cloud, *lines(found))
    assert cloud.storage._policies[BUCKET].bindings[-1].members == (MINE,)
    assert looked() == Finding("service account", OK, f"pods run as trainer; gs://{BUCKET} lets it read and write", "")


def test_an_account_that_stands_for_another_needs_what_lets_it_and_what_that_needs(
    cloud: Emulator, looked: Callable[..., Finding]
) -> None:
    """Each line that doctor prints is carried out, until it is satisfied."""
    cloud.storage.restrict(BUCKET, USER, MINE)
    found = looked(GOOGLE)
    assert (found.state, len(lines(found))) == (FAILED, 3)
    assert f"there is no {GOOGLE}" in found.found
    obey(cloud, lines(found)[0])
    found = looked(GOOGLE)
    assert (found.state, len(lines(found))) == (WARNING, 2)
    assert f"{GOOGLE} does not let it act so, unless its project does" in found.found
    for line in lines(found):
        obey(cloud, line)
    assert looked(GOOGLE) == Finding(
        "service account", OK,
        f"pods run as trainer, which stands for {GOOGLE}; {GOOGLE} lets it act so; gs://{BUCKET} lets it read and write",
    )  # fmt: skip


def test_an_annotation_that_names_no_account_of_google_is_a_failure(looked: Callable[..., Finding]) -> None:
    found = looked("training")
    assert found.state == FAILED and "no service account of Google is called so" in found.found


@pytest.mark.parametrize(
    ("role", "member", "state"),
    [
        (USER, f"principalSet:{POOL}/namespace/default", OK),
        (USER, "allAuthenticatedUsers", OK),
        ("roles/storage.admin", MINE, OK),
        ("roles/storage.objectViewer", MINE, WARNING),
        (USER, f"principal:{POOL}/subject/ns/default/sa/trainer2", WARNING),
        (USER, f"principal:{POOL}/subject/ns/other/sa/trainer", WARNING),
        (USER, f"principalSet:{POOL}/namespace/other", WARNING),
        (USER, f"serviceAccount:{GOOGLE}", WARNING),
        (USER, "group:everybody@example.com", WARNING),
    ],
)
def test_a_grant_counts_for_whom_it_names(
    cloud: Emulator, looked: Callable[..., Finding], role: str, member: str, state: str
) -> None:
    cloud.storage.restrict(BUCKET, role, member)
    assert looked().state == state


@pytest.mark.parametrize(
    "binding",
    [
        {"role": USER, "members": [MINE], "condition": {"title": "some", "expression": "resource.name == 'a'"}},
        {"role": f"projects/{PROJECT}/roles/ours", "members": [MINE]},
    ],
)
def test_what_nobody_here_understands_is_never_ok(
    cloud: Emulator, looked: Callable[..., Finding], binding: dict[str, Any]
) -> None:
    url = f"{cloud.storage.url}/storage/v1/b/{BUCKET}/iam"
    assert requests.put(url, json={"bindings": [binding]}, timeout=20).ok
    found = looked()
    assert (found.state, lines(found)) == (WARNING, [f"gcloud storage buckets get-iam-policy gs://{BUCKET}"])
    assert "which is not looked at" in found.found


def test_a_role_on_an_account_under_a_condition_is_never_ok(cloud: Emulator, looked: Callable[..., Finding]) -> None:
    cloud.add_service_account("training")
    condition = {"title": "some", "expression": "request.time < timestamp('2030-01-01T00:00:00Z')"}
    binding = {"role": "roles/iam.workloadIdentityUser", "members": [ACTS], "condition": condition}
    url = f"{cloud.rest.url}/v1/projects/-/serviceAccounts/{GOOGLE}:setIamPolicy"
    assert requests.post(url, json={"policy": {"version": 3, "bindings": [binding]}}, timeout=20).ok
    found = looked(GOOGLE)
    assert (found.state, lines(found)) == (WARNING, [f"gcloud iam service-accounts get-iam-policy {GOOGLE}"])


@pytest.mark.parametrize("why", ["denied", "disabled"])
def test_what_may_not_be_read_is_a_warning_with_the_command_that_reads_it(
    cloud: Emulator, looked: Callable[..., Finding], why: str
) -> None:
    cloud.add_service_account("training", "default/trainer")
    if why == "denied":
        cloud.deny("client", "iam.serviceAccounts.getIamPolicy")
        cloud.storage.forbid("policy *")
    else:
        cloud.disable("iam.googleapis.com")
        cloud.storage.refuse("policy *", "vpc-sc")
    found = looked(GOOGLE)
    assert found.state == WARNING
    assert lines(found) == [
        f"gcloud iam service-accounts get-iam-policy {GOOGLE}",
        f"gcloud storage buckets get-iam-policy gs://{BUCKET}",
    ]
    assert found.found.count("is not looked at: ") == 2
    said = {"denied": "Permission 'iam.serviceAccounts.getIamPolicy' denied", "disabled": "iam.googleapis.com"}[why]
    assert said in found.found


def test_a_cluster_of_a_kubeconfig_is_not_looked_at_and_never_ok(
    cloud: Emulator, looked: Callable[..., Finding], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its context says that it is one of GKE; the backend `kubernetes` has no credentials of Google's."""
    path = cloud.cluster.write_kubeconfig(tmp_path / "kubeconfig", name=f"gke_{PROJECT}_us-central1_emulated")
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("KINETIC_BACKEND", "kubernetes")
    monkeypatch.delenv("KINETIC_CLUSTER")
    found = looked(backend="kubernetes")
    assert (found.state, lines(found)) == (WARNING, [f"gcloud storage buckets get-iam-policy gs://{BUCKET}"])
    assert "is not looked at: the backend kubernetes asks Google nothing" in found.found
