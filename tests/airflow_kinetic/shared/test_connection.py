"""Airflow's connections to Google Cloud, as the core is handed them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.airflow_kinetic.conftest import Airflow

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow


@pytest.fixture(scope="module")
def key() -> str:
    """A service account's key file, of an account that does not exist."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps(
        {
            "type": "service_account",
            "project_id": "project-of-the-key",
            "private_key_id": "1",
            "private_key": private.decode(),
            "client_email": "airflow@project-of-the-key.iam.gserviceaccount.com",
            "token_uri": "https://127.0.0.1:1/token",
        }
    )


@pytest.mark.slow
@pytest.mark.turn(1)
def test_a_key_is_who_the_core_is_and_its_project_counts_unless_another_is_said(
    airflow: Airflow, home: Path, key: str
) -> None:
    done = airflow("connection", home, extra={"keyfile_dict": key})
    assert (done["project"], done["kind"]) == ("project-of-the-key", "Credentials")
    assert done["same"], "of equal connections the same object, by which clients are kept"
    done = airflow("connection", home, extra={"keyfile_dict": key, "project": "another-project"})
    assert (done["project"], done["seen"]) == ("another-project", "another-project")
    assert airflow("connection", home, extra={"keyfile_dict": key}, project_id="mine-alone")["project"] == "mine-alone"


@pytest.mark.slow
def test_the_last_of_the_chain_is_who_acts_and_another_project_may_be_charged(
    airflow: Airflow, home: Path, key: str
) -> None:
    extra = {"keyfile_dict": key, "quota_project_id": "charged-project"}
    chain = ["between@p.iam.gserviceaccount.com", "last@p.iam.gserviceaccount.com"]
    done = airflow("connection", home, extra=extra, impersonation_chain=chain)
    assert (done["target"], done["quota"]) == (chain[-1], "charged-project")


def test_a_connection_without_a_project_is_refused_with_the_fix(airflow: Airflow, home: Path) -> None:
    told = airflow("connection", home, extra={"is_anonymous": True})["refused"]
    assert told == (
        "UsageError: the connection 'kinetic_test' has no project, and none is given: fill in its Project Id (in its "
        'extra: {"project": "…"}), pass project_id=, or set KINETIC_PROJECT for Airflow\'s workers'
    )


def test_a_connection_that_was_edited_is_another_one_and_so_is_a_file_that_was(
    airflow: Airflow, home: Path, tmp_path: Path, key: str
) -> None:
    """One process looks all of them up, like a triggerer that lives for months."""
    file = tmp_path / "key.json"
    file.write_text(key)
    anonymous = {"is_anonymous": True, "project": "p"}
    extras = [anonymous, {**anonymous, "scope": "s"}, anonymous, {"key_path": str(file)}, {"key_path": str(file)}]
    found = airflow("connections", home, extras=extras, file=str(file), renewed=key.replace("airflow@", "renewed@"))
    first, edited, again, of_file, renewed = found["seen"]
    assert edited["who"] != first["who"]
    assert again["who"] == first["who"], "clients are kept by it"
    assert (of_file["account"], renewed["account"]) == tuple(
        f"{name}@project-of-the-key.iam.gserviceaccount.com" for name in ("airflow", "renewed")
    )
    assert found["impersonated"] == ["a@p.iam.gserviceaccount.com", "b@p.iam.gserviceaccount.com"]


def test_a_connection_that_hangs_holds_up_no_other_one(airflow: Airflow, home: Path, tmp_path: Path, key: str) -> None:
    done = airflow("hanging_connection", home, key=key, file=str(tmp_path / "key.json"))
    assert done["done"] == [True, False]
    assert done["project"] == "p"
    assert done["account"] == "airflow@project-of-the-key.iam.gserviceaccount.com"


def test_jobs_of_one_place_share_a_store_as_long_as_one_of_them_is_open(airflow: Airflow, home: Path) -> None:
    done = airflow("shares_a_store", home)
    assert (done["shared"], done["another"], done["left"]) == (True, False, 0)


def test_code_of_ones_own_submits_finds_and_cancels_jobs_by_a_hook(airflow: Airflow, home: Path) -> None:
    """On this machine: no connection is there, and none is needed."""
    done = airflow("jobs_of_a_hook", home, accelerator="cpu", options={})
    assert (done["value"], done["listed"], done["left"]) == (3, True, [])
    assert (done["same"], done["raised"]) == (True, "JobCancelled")
    refused = airflow("refused_hook", home)
    for what in ("refused", "at"):
        assert refused[what].startswith("CredentialsError: there is no connection 'kinetic_missing'")
    told = (
        r"UsageError: .* this hook has cluster='of-training' and namespace='ml' besides.*give cluster and namespace to"
    )
    assert re.match(told, refused["cluster"])


def test_a_connection_that_is_not_there_is_told_with_the_command_that_adds_it(airflow: Airflow, home: Path) -> None:
    told = airflow("connection", home, extra=None)["refused"]
    assert "airflow connections add kinetic_test --conn-type google_cloud_platform" in told


def test_an_emulator_needs_no_word_of_who_asks_it_in_the_connection_nor_the_connection(
    airflow: Airflow, home: Path, key: str
) -> None:
    emulated = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1", "NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": str(home)}
    done = airflow("connection", home, environ=emulated, extra={"project": "p"})
    assert (done["kind"], done["project"], done["seen"]) == ("AnonymousCredentials", "p", "p")
    assert done["acts in"] == "of-the-hook"
    assert airflow("connection", home, environ=emulated, extra={"keyfile_dict": key})["kind"] == "Credentials"
    assert "refused" in airflow("connection", home, environ=emulated, extra=None), "it was named, and is not there"
    name = "google_cloud_default"
    assert airflow("connection", home, environ=emulated, extra=None, name=name, project_id="p")["project"] == "p"
