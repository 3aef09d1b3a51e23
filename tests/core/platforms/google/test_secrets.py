"""Secrets of a job on their way to its hosts, against the emulated Secret Manager."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import BackendError, KineticError, UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google import credentials
from kinetic_orchestration.platforms.google.rest import secret_manager
from kinetic_orchestration.platforms.google.rest.client import google
from kinetic_orchestration.testing import Emulator

MARK = "c1fa96"[::-1]  # of values, in no file that travels with a job
LABELS = {"kinetic-mark": "0123abcd", "kinetic-job": "job-1"}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "cloud", hosts=False) as running:
        yield running


@pytest.fixture
def here(cloud: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.PAUSES", (0.01, 0.01))
    return settings.load({**cloud.environ(), "KINETIC_HOME": str(tmp_path / "home")})


def value(here: Settings, resource: str) -> str:
    """The value as a host reads it."""
    with google(here) as api:
        answer = api.call("GET", "secretmanager", f"v1/{resource}/versions/latest:access")
        return base64.b64decode(answer.body["payload"]["data"]).decode()


def test_a_secret_is_kept_renewed_listed_and_removed(cloud: Emulator, here: Settings) -> None:
    soon, later = time.time() + 60, time.time() + 3600
    first = secret_manager.put(here, "kinetic-job-1-TOKEN", "första", soon, LABELS)
    assert first == "projects/emulated/secrets/kinetic-job-1-TOKEN"
    assert secret_manager.put(here, "kinetic-job-1-TOKEN", "zweite", later, LABELS) == first
    assert value(here, first) == "zweite"
    (kept,) = secret_manager.with_label(here, "kinetic-mark", "0123abcd")
    assert (kept.resource, kept.labels["kinetic-job"]) == (first, "job-1")
    assert abs(kept.expires - later) < 2, "an attempt that comes later keeps it longer"
    assert secret_manager.delete(here, first, LABELS)
    assert secret_manager.delete(here, first, LABELS)
    cloud.ledger.assert_nothing_left()


@pytest.mark.slow
def test_what_is_forgotten_expires_by_itself(cloud: Emulator, here: Settings) -> None:
    secret_manager.put(here, "kinetic-job-1-TOKEN", "x", time.time() + 4, LABELS)
    cloud.wait_until_empty(60)
    assert list(secret_manager.with_label(here, "kinetic-mark", "0123abcd")) == []


def test_secrets_of_others_are_not_listed(cloud: Emulator, here: Settings) -> None:
    cloud.add_secret("hf-token", "theirs")
    secret_manager.put(here, "a", "x", time.time() + 60, {**LABELS, "kinetic-mark": "another1"})
    secret_manager.put(here, "b", "x", time.time() + 60, LABELS)
    assert [
        kept.resource.rpartition("/")[2] for kept in secret_manager.with_label(here, "kinetic-mark", "0123abcd")
    ] == ["b"]


def test_a_passing_failure_is_tried_again(cloud: Emulator, here: Settings) -> None:
    cloud.fail("CreateSecret", 14)
    cloud.fail("AddSecretVersion", 14)
    resource = secret_manager.put(here, "a", "x", time.time() + 60, LABELS)
    assert value(here, resource) == "x"


def test_what_is_missing_is_named(cloud: Emulator, here: Settings) -> None:
    cloud.deny("client", "secretmanager.versions.add")
    with pytest.raises(BackendError, match=r"secretmanager\.versions\.add is missing: gcloud projects") as caught:
        secret_manager.put(here, "a", "x", time.time() + 60, LABELS)
    assert caught.value.cause == "configuration"
    assert "roles/secretmanager.admin" in str(caught.value)


def test_an_api_that_is_not_enabled_is_named(cloud: Emulator, here: Settings) -> None:
    cloud.disable("secretmanager.googleapis.com")
    with pytest.raises(BackendError, match=r"gcloud services enable secretmanager\.googleapis\.com"):
        secret_manager.put(here, "a", "x", time.time() + 60, LABELS)


# ---- on this machine -----------------------------------------------------------------------------------------------


def backwards() -> str:
    """Return the secret reversed, because results are in the store."""
    return os.environ["MODEL_TOKEN"][::-1]


def on_this_machine(secret: str, **options: Any) -> Any:
    job = kinetic.run(accelerator="cpu", secrets={"MODEL_TOKEN": secret}, **options)(backwards).run_async()
    return job.result()[::-1]


@pytest.fixture
def pointed(cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Use the emulated Secret Manager, with a store on this machine."""
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.PAUSES", (0.01, 0.01))
    for name in ("KINETIC_EMULATOR", "KINETIC_PROJECT"):
        monkeypatch.setenv(name, cloud.environ()[name])
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    return cloud


def test_a_job_here_gets_its_secrets_from_secret_manager_and_the_store_never_sees_them(
    pointed: Emulator, home: Path
) -> None:
    """The caller's own rights suffice, for each form in which a job on Cloud TPU names them."""
    model = pointed.add_secret("model", f"first-{MARK}")
    with google(settings.load()) as api:
        newest = base64.b64encode(f"newest-{MARK}".encode()).decode()
        assert api.call("POST", "secretmanager", f"v1/{model}:addVersion", {"payload": {"data": newest}}).ok
    assert on_this_machine("model") == f"newest-{MARK}"
    assert on_this_machine("projects/emulated/secrets/model") == f"newest-{MARK}"
    assert on_this_machine("projects/emulated/secrets/model/versions/1") == f"first-{MARK}"
    assert not [path for path in home.rglob("*") if path.is_file() and MARK.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ("other", r"projects/emulated/secrets/other for MODEL_TOKEN.*gcloud secrets create other"),
        ("projects/emulated/secrets/model/versions/7", r"versions/7 for MODEL_TOKEN.*gcloud secrets"),
        ("x/../prod", r"no name of a secret"),
        ("projects/p/secrets/a?b", r"no name of a secret"),
    ],
)
def test_a_secret_that_is_not_there_ends_a_job_here_before_it_begins(
    pointed: Emulator, secret: str, message: str
) -> None:
    pointed.add_secret("model", "x")
    with pytest.raises(KineticError, match=message):
        on_this_machine(secret)


def test_a_secret_that_may_not_be_read_is_told_with_the_role(pointed: Emulator) -> None:
    pointed.add_secret("model", "x")
    pointed.deny("client", "secretmanager.versions.access")
    with pytest.raises(KineticError, match=r"roles/secretmanager\.secretAccessor"):
        on_this_machine("model")


@pytest.fixture
def no_google(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop that has never heard of Google Cloud."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(home / "nothing"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    credentials._default.cache_clear()


@pytest.mark.usefixtures("no_google")
@pytest.mark.filterwarnings("ignore:MODEL_TOKEN is the one of this environment")
@pytest.mark.parametrize("secret", ["model", "projects/p/secrets/model"])
def test_without_a_project_or_credentials_the_variable_of_that_name_is_taken(
    secret: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_TOKEN", f"mine-{MARK}")
    assert on_this_machine(secret) == f"mine-{MARK}"
    assert not [path for path in home.rglob("*") if path.is_file() and MARK.encode() in path.read_bytes()]


@pytest.mark.usefixtures("no_google")
def test_without_either_the_job_is_refused_with_the_lines_that_help(home: Path) -> None:
    with pytest.raises(UsageError, match=r"MODEL_TOKEN.*export MODEL_TOKEN=.*KINETIC_PROJECT.*gcloud auth"):
        on_this_machine("model")
    assert not list((home / "store").glob("*/jobs/*")), "nothing was sent"
