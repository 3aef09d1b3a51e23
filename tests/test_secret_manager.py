"""Secrets of a job on their way to its hosts, against the emulated Secret Manager."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration import secret_manager, settings
from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.google_rest import google
from kinetic_orchestration.settings import Settings
from kinetic_orchestration.testing import Emulator

LABELS = {"kinetic-mark": "0123abcd", "kinetic-job": "job-1"}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(tmp_path / "cloud", hosts=False) as running:
        yield running


@pytest.fixture
def here(cloud: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr("kinetic_orchestration.google_rest.PAUSES", (0.01, 0.01))
    return settings.load({**cloud.environ(), "KINETIC_HOME": str(tmp_path / "home")})


def value(here: Settings, resource: str) -> str:
    """As a host reads it."""
    with google(here) as api:
        answer = api.call("GET", "secretmanager", f"v1/{resource}/versions/latest:access")
        return base64.b64decode(answer.body["payload"]["data"]).decode()


def test_a_secret_is_kept_renewed_listed_and_removed(cloud: Emulator, here: Settings) -> None:
    soon, later = time.time() + 60, time.time() + 3600
    first = secret_manager.put(here, "kinetic-job-1-TOKEN", "första", soon, LABELS)
    assert first == "projects/emulated/secrets/kinetic-job-1-TOKEN"
    assert secret_manager.put(here, "kinetic-job-1-TOKEN", "zweite", later, LABELS) == first
    assert value(here, first) == "zweite"
    (kept,) = secret_manager.kept(here, "kinetic-mark", "0123abcd")
    assert (kept.resource, kept.labels["kinetic-job"]) == (first, "job-1")
    assert abs(kept.expires - later) < 2, "an attempt that comes later keeps it longer"
    assert secret_manager.delete(here, first, LABELS)
    assert secret_manager.delete(here, first, LABELS)
    cloud.ledger.assert_nothing_left()


def test_what_is_forgotten_expires_by_itself(cloud: Emulator, here: Settings) -> None:
    secret_manager.put(here, "kinetic-job-1-TOKEN", "x", time.time() + 4, LABELS)
    cloud.wait_until_empty(60)
    assert list(secret_manager.kept(here, "kinetic-mark", "0123abcd")) == []


def test_secrets_of_others_are_not_listed(cloud: Emulator, here: Settings) -> None:
    cloud.add_secret("hf-token", "theirs")
    secret_manager.put(here, "a", "x", time.time() + 60, {**LABELS, "kinetic-mark": "another1"})
    secret_manager.put(here, "b", "x", time.time() + 60, LABELS)
    assert [kept.resource.rpartition("/")[2] for kept in secret_manager.kept(here, "kinetic-mark", "0123abcd")] == ["b"]


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
