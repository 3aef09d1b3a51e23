"""The checks of Google Cloud before a job is submitted, against the emulated one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.cli import doctor
from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.google import preflight as preflight_cloud
from kinetic_orchestration.platforms.google.preflight import FAILED, OK, WARNING, Finding
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.testing import Emulator, Refusal

ACCOUNT = "trainer@emulated.iam.gserviceaccount.com"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with Emulator(tmp_path / "cloud", hosts=False) as running:
        for name, value in running.environ().items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.PAUSES", (0.01,))


def here(cloud: Emulator, home: Path, **environ: str) -> Settings:
    return settings.load({**cloud.environ(), "KINETIC_HOME": str(home), **environ})


def found(cloud: Emulator, home: Path, name: str, **environ: str) -> Finding:
    return next(one for one in preflight_cloud.examine(here(cloud, home, **environ)) if one.name == name)


def test_a_project_that_is_ready_passes_and_what_can_be_known_is_told(cloud: Emulator, tmp_path: Path) -> None:
    findings = list(preflight_cloud.examine(here(cloud, tmp_path)))
    assert [finding.name for finding in findings] == [
        "credentials", "Cloud TPU API", "permissions", "service account", "bucket", "egress", "Secret Manager", "quota",
        "encryption",
    ]  # fmt: skip
    assert {finding.state for finding in findings} == {OK}, findings
    assert "boot disks" in findings[-1].found
    preflight_cloud.require(here(cloud, tmp_path))
    store = open_store(here(cloud, tmp_path).store, "test")
    assert list(store.list(preflight_cloud.PROBE)) == []


def test_what_passed_is_not_asked_again_for_a_while(cloud: Emulator, tmp_path: Path) -> None:
    preflight_cloud.require(here(cloud, tmp_path))
    asked = len(cloud.requests)
    assert asked <= 4
    preflight_cloud.require(here(cloud, tmp_path))
    assert len(cloud.requests) == asked


def test_what_failed_is_asked_again_at_once(cloud: Emulator, tmp_path: Path) -> None:
    cloud.deny("client", "tpu.nodes.delete")
    for _ in range(2):
        with pytest.raises(BackendError, match="could be made and not be deleted") as caught:
            preflight_cloud.require(here(cloud, tmp_path))
    assert caught.value.cause == "configuration"
    assert "nothing was submitted" in str(caught.value)
    assert "--role=roles/tpu.admin" in str(caught.value)
    cloud.allow("client", "tpu.nodes.delete")
    preflight_cloud.require(here(cloud, tmp_path))


@pytest.mark.parametrize("permission", preflight_cloud.PERMISSIONS)
def test_each_missing_permission_is_named_with_its_role(cloud: Emulator, tmp_path: Path, permission: str) -> None:
    cloud.deny("client", permission)
    failed = found(cloud, tmp_path, "permissions")
    assert failed.state == FAILED
    assert permission in failed.found
    assert "gcloud projects add-iam-policy-binding emulated" in failed.fix


def test_an_api_that_is_not_enabled_is_named_with_the_command_that_enables_it(cloud: Emulator, tmp_path: Path) -> None:
    cloud.disable()
    failed = found(cloud, tmp_path, "Cloud TPU API")
    assert failed.state == FAILED
    assert "gcloud services enable tpu.googleapis.com --project emulated" in failed.fix


@pytest.mark.parametrize(
    ("refusal", "fix"),
    [
        (Refusal(7, "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: Xy_1"), "Xy_1"),
        (
            Refusal(
                7, "Caller does not have required permission to use project p. Grant the caller the …",
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "USER_PROJECT_DENIED"},
            ),
            "KINETIC_QUOTA_PROJECT",
        ),
    ],
)  # fmt: skip
def test_a_perimeter_and_a_quota_project_are_named_with_their_fix(
    cloud: Emulator, tmp_path: Path, refusal: Refusal, fix: str
) -> None:
    cloud.fail("*", refusal=refusal, times=None)
    failed = found(cloud, tmp_path, "Cloud TPU API")
    assert failed.state == FAILED
    assert fix in failed.fix
    cloud.clear_faults()


def test_permissions_that_cannot_be_asked_for_are_a_warning(cloud: Emulator, tmp_path: Path) -> None:
    cloud.disable("cloudresourcemanager.googleapis.com")
    warned = found(cloud, tmp_path, "permissions")
    assert warned.state == WARNING
    assert "gcloud services enable cloudresourcemanager.googleapis.com" in warned.fix
    preflight_cloud.require(here(cloud, tmp_path))


def test_who_may_not_act_as_the_vms_account_is_told_how_to(cloud: Emulator, tmp_path: Path) -> None:
    cloud.deny("client", "iam.serviceAccounts.actAs")
    warned = found(cloud, tmp_path, "service account")
    assert (warned.state, "KINETIC_SERVICE_ACCOUNT" in warned.fix) == (WARNING, True)
    named = found(cloud, tmp_path, "service account", KINETIC_SERVICE_ACCOUNT=ACCOUNT)
    assert named.state in (WARNING, FAILED)
    assert f"add-iam-policy-binding {ACCOUNT}" in named.fix


def test_a_bucket_that_is_not_there_is_named(cloud: Emulator, tmp_path: Path) -> None:
    failed = found(cloud, tmp_path, "bucket", KINETIC_STORE="gs://nowhere-at-all/kinetic")
    assert failed.state == FAILED
    assert "nowhere-at-all" in failed.found
    assert "bucket" in failed.fix


def test_a_project_must_be_named(cloud: Emulator, tmp_path: Path) -> None:
    environ = {**cloud.environ(), "KINETIC_HOME": str(tmp_path)}
    del environ["KINETIC_PROJECT"]
    findings = list(preflight_cloud.examine(settings.load(environ)))
    assert [(finding.name, finding.state) for finding in findings] == [("credentials", OK), ("project", FAILED)]


def test_without_credentials_the_login_command_is_named(tmp_path: Path) -> None:
    """A configuration that names a file which is not there: what google.auth finds on this machine does not matter."""
    import subprocess
    import sys

    program = (
        "from kinetic_orchestration.platforms.google import preflight as preflight_cloud; from kinetic_orchestration.plan.configuration import settings\n"
        "for finding in preflight_cloud.examine(settings.load()): print(*finding)\n"
    )
    environ = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "KINETIC_HOME": str(tmp_path / "home"),
        "KINETIC_STORE": "gs://b/k", "KINETIC_DEPLOYMENT": "d", "KINETIC_PROJECT": "p",
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none.json"),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("credentials failed there are none"), done
    assert "gcloud auth application-default login" in done.stdout


def test_doctor_shows_it_all(cloud: Emulator, tmp_path: Path) -> None:
    report = doctor.examine({**os.environ, **cloud.environ(), "KINETIC_HOME": str(tmp_path)})
    names = [check.name for check in report.checks]
    assert names[-9:] == [
        "credentials", "Cloud TPU API", "permissions", "service account", "bucket", "egress", "Secret Manager", "quota",
        "encryption",
    ]  # fmt: skip
    assert report.ok, report.checks


@pytest.mark.slow
def test_a_bucket_that_answers_503_is_given_up_in_seconds_and_what_it_said_is_told(
    cloud: Emulator, tmp_path: Path
) -> None:
    cloud.storage.fail("*", 503, None)
    began = time.monotonic()
    failed = found(cloud, tmp_path, "bucket")
    assert time.monotonic() - began < 30.0  # a job's own patience is a minute for each request
    assert failed.state == FAILED
    assert "503" in failed.fix
    cloud.storage.heal()
