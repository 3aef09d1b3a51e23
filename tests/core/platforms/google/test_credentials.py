"""The Google Cloud credentials of this process, their order, and the error if there are none."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google.auth.credentials
import google.oauth2.credentials
import pytest
from google.auth import impersonated_credentials
from google.oauth2 import service_account

from kinetic_orchestration.errors import CredentialsError, Denied
from kinetic_orchestration.platforms.google import credentials as module
from kinetic_orchestration.platforms.google.credentials import as_now, credentials, handed_in, project
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.platforms.google.storage.store import open_gcs
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support.google_tokens import Tokens, token_server


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that knows no account, and no emulated cloud."""
    for name in (
        "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_QUOTA_PROJECT",
        "STORAGE_EMULATOR_HOST", "KINETIC_EMULATOR", "KINETIC_IMPERSONATE", "KINETIC_QUOTA_PROJECT",
        "KINETIC_PROJECT", "KINETIC_STORE", "KINETIC_DEPLOYMENT", "KINETIC_PROFILE", "GCLOUD_PROJECT",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KINETIC_PROFILE_FILE", str(tmp_path / "none.toml"))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("PATH", str(tmp_path))  # where no gcloud is
    yield
    for found in (module._default, module._found, module._quota):
        found.cache_clear()


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who ran `gcloud auth application-default login`."""
    known = {
        "type": "authorized_user",
        "client_id": "someone",
        "client_secret": "secret",
        "refresh_token": "token",
        "quota_project_id": "users-own",
    }
    (tmp_path / "gcloud").mkdir()
    (tmp_path / "gcloud" / "application_default_credentials.json").write_text(json.dumps(known))


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    with token_server("of-the-account") as tokens:
        yield tokens


@pytest.fixture
def account(tmp_path: Path, tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service account's key file."""
    tokens.write_key(tmp_path / "key.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))


def test_nobody_is_told_how_to_log_in() -> None:
    with pytest.raises(CredentialsError) as caught:
        credentials()
    assert "gcloud auth application-default login" in str(caught.value)
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(caught.value)


def test_a_key_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    with pytest.raises(CredentialsError, match=r"nothing\.json was not found"):
        credentials()


def test_the_applications_default_is_found_once(user: None) -> None:
    found = credentials()
    assert isinstance(found, google.oauth2.credentials.Credentials)
    assert found.quota_project_id == "users-own"
    assert credentials() is found


def test_the_project_is_that_of_the_settings_else_of_the_credentials(
    account: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert project() == "ours"
    monkeypatch.setenv("KINETIC_PROJECT", "set")
    assert project() == "set"


def test_calls_are_counted_against_the_quota_project(user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_QUOTA_PROJECT", "billed")
    found = credentials()
    assert found.quota_project_id == "billed"
    assert credentials() is found


def test_another_account_is_acted_as(user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_IMPERSONATE", "robot@ours.iam.gserviceaccount.com")
    monkeypatch.setenv("KINETIC_QUOTA_PROJECT", "billed")
    found = credentials()
    assert isinstance(found, impersonated_credentials.Credentials)
    assert found.service_account_email == "robot@ours.iam.gserviceaccount.com"
    assert found.quota_project_id == "billed"
    assert credentials() is found


def test_an_emulated_cloud_asks_for_nobody(user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STORAGE_EMULATOR_HOST", "KINETIC_EMULATOR"):
        with monkeypatch.context() as context:
            context.setenv(variable, "http://127.0.0.1:9")
            assert isinstance(credentials(), google.auth.credentials.AnonymousCredentials)
            assert project() == ""


def test_who_is_handed_in_comes_first_and_only_within(user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_QUOTA_PROJECT", "billed")
    default = credentials()
    outer: Any = google.oauth2.credentials.Credentials("outer")  # type: ignore[no-untyped-call]
    inner: Any = google.oauth2.credentials.Credentials("inner")  # type: ignore[no-untyped-call]
    with handed_in(outer, "theirs"):
        assert (credentials().token, credentials().quota_project_id, project()) == ("outer", "billed", "theirs")
        with handed_in(inner):
            assert credentials().token == "inner"
            assert credentials() is credentials()
        elsewhere: list[Any] = []
        thread = threading.Thread(target=lambda: elsewhere.append(credentials()))
        thread.start()
        thread.join()
        assert elsewhere == [default], "another thread has a context of its own"
    assert credentials() is default


def test_a_thread_that_watches_is_who_was_handed_in_when_its_work_began(user: None) -> None:
    handed = google.oauth2.credentials.Credentials("token")  # type: ignore[no-untyped-call]
    with handed_in(handed):
        acting = as_now()
    found: list[Any] = []

    def watch() -> None:
        with acting():
            found.append(credentials())

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert found == [handed]
    with as_now()():
        assert credentials() is not handed


def test_a_store_goes_on_with_whom_it_was_opened_by(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: Any = google.oauth2.credentials.Credentials("handed-in", quota_project_id="billed")  # type: ignore[no-untyped-call]
    with StorageServer() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        address = storage.make_bucket("bucket")
        with handed_in(handed):
            store = open_gcs(address, "prod")
        storage.forget()
        thread = threading.Thread(target=store.put, args=("a", b"x"))
        thread.start()
        thread.join()
        assert [(call.caller, call.billed) for call in storage.calls] == [("handed-in", "billed")]
        open_gcs(address, "prod").read("a")
        assert storage.calls[-1].caller == ""


def test_a_service_accounts_token_is_asked_for_and_sent(
    account: None, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot = credentials()
    assert isinstance(robot, service_account.Credentials)
    with StorageServer() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        with handed_in(robot):
            open_gcs(storage.make_bucket("bucket"), "prod").put("a", b"x")
        assert {call.caller for call in storage.calls} == {"of-the-account"}
        assert len(tokens.asked) == 1
        # A token that Google does not accept is renewed by the library; when that does not help, it is told.
        storage.refuse("*", "credentials")
        with handed_in(robot), pytest.raises(Denied, match="gcloud auth application-default login"):
            open_gcs("gs://bucket", "prod").read("a")


def test_credentials_that_were_revoked_say_what_helps(
    account: None, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    robot = credentials()
    with StorageServer() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        address = storage.make_bucket("bucket")
        tokens.answer = 400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        began = time.monotonic()
        with handed_in(robot), pytest.raises(CredentialsError, match=r"Invalid JWT Signature.*application-default"):
            open_gcs(address, "prod")
        assert time.monotonic() - began < retries.PATIENCE / 2
        assert storage.calls == []


def test_an_account_that_may_not_be_acted_as_names_the_role() -> None:
    from google.auth.exceptions import RefreshError

    # Its endpoint cannot be redirected, so the error is the library's own, made by hand.
    told: Any = RefreshError
    error = told(
        "Unable to acquire impersonated credentials",
        '{"error": {"code": 403, "message": "Permission \'iam.serviceAccounts.getAccessToken\' denied"}}',
    )
    assert "roles/iam.serviceAccountTokenCreator" in str(module.refused(error))
