"""Promotion into a real MLflow server with logins, in an environment of its own: versions, tags, aliases, roll-back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import RegistryError
from kinetic_orchestration.models.places.opening import open_place
from kinetic_orchestration.models.values import Registered
from kinetic_orchestration.packaging.requirements.resolution import find_uv
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.core.models.registries.versions import version
from tests.support.ports import held_port

pytestmark = [pytest.mark.slow, pytest.mark.turn(0), pytest.mark.timeout(600)]

MLFLOW = "mlflow[auth]==3.17.2"
PASSWORD = "a password of tests"
START = 240.0


def installed(folder: Path) -> Path:
    """Make an environment with MLflow, and return its program."""
    uv = find_uv(os.environ)
    subprocess.run([uv, "venv", "-q", "--python", "3.11", str(folder)], check=True, timeout=200)
    python = str(folder / "bin" / "python")
    subprocess.run([uv, "pip", "install", "-q", "--python", python, MLFLOW], check=True, timeout=500)
    return folder / "bin" / "mlflow"


@contextlib.contextmanager
def served(program: Path, folder: Path) -> Iterator[str]:
    """Run a server whose runs keep their artifacts in a folder of this machine."""
    held = held_port()
    url = f"http://127.0.0.1:{held.getsockname()[1]}"
    environ = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # else it starts ten processes, which outlive it
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "a key of tests",
        "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD,
    }
    command = [
        str(program), "server", "--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--default-artifact-root", str(folder / "artifacts"),
        "--no-serve-artifacts", "--app-name", "basic-auth",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        held.close()
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True, stdin=subprocess.DEVNULL
        )
    try:
        deadline = time.monotonic() + START
        while True:
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
            time.sleep(0.2)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    with served(installed(folder / "environment"), folder) as url:
        yield url


@pytest.fixture
def registry(url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> kinetic.MLflow:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    return kinetic.MLflow()


def ask(registry: kinetic.MLflow, verb: str, **query: str) -> Any:
    login = registry.username, registry.password
    answer = requests.get(f"{registry.url}/api/2.0/mlflow/{verb}", params=query, auth=login, timeout=20)
    assert answer.ok, answer.text
    return answer.json()


def versions(registry: kinetic.MLflow, name: str) -> dict[str, dict[str, Any]]:
    found = ask(registry, "model-versions/search", filter=f"name='{name}'").get("model_versions", [])
    return {one["version"]: one for one in found}


def aliased(registry: kinetic.MLflow, name: str, alias: str) -> str:
    return str(ask(registry, "registered-models/alias", name=name, alias=alias)["model_version"]["version"])


def test_models_in_a_bucket_are_registered_aliased_and_rolled_back(
    registry: kinetic.MLflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"ranker-{uuid.uuid4().hex[:6]}"
    with StorageServer() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        to = f"{storage.make_bucket('models')}/{name}"

        def promoted(weights: bytes, accuracy: float, **more: Any) -> kinetic.Promoted:
            source = open_place(f"gs://models/outputs/{accuracy}")
            source.put("model.keras", weights)
            given = {"alias": "champion", "metrics": {"accuracy": accuracy, "exact_match,none": 1.0}, **more}
            return kinetic.promote(source.address, to, registry=registry, **given)

        first = promoted(b"first", 0.8, data=["sha256:abc"])
        again = promoted(b"first", 0.8)
        assert first.registered is not None and again.registered is not None
        assert (first.registered.version, first.registered.created) == ("1", True)
        assert (again.registered.version, again.registered.created, again.created) == ("1", False, False)
        second = promoted(b"second", 0.9)
        assert second.registered is not None and second.registered.version == "2"
        assert aliased(registry, name, "champion") == "2"
        there = versions(registry, name)
        tags = {tag["key"]: tag["value"] for tag in there["2"]["tags"]}
        assert there["2"]["source"] == second.uri and there["2"]["status"] == "READY"
        assert tags["kinetic.digest"] == second.digest and tags["kinetic.parent"] == first.version
        assert tags["metric.accuracy"] == "0.9" and tags["metric.exact_match_none"] == "1.0"
        assert {tag["key"]: tag["value"] for tag in there["1"]["tags"]}["kinetic.data"] == "sha256:abc"

        back = kinetic.move_alias(to, "champion", registry=registry)
        assert back.version == first.version and back.registered is not None and back.registered.version == "1"
        assert aliased(registry, name, "champion") == "1"
        with pytest.raises(RegistryError, match="has no version of"):
            kinetic.promote("gs://models/outputs/0.8", f"{to}-other", alias="champion")
            kinetic.move_alias(f"{to}-other", "stable", "champion", registry=registry)


def test_promoters_at_the_same_time_register_one_version(registry: kinetic.MLflow) -> None:
    model, found = version(f"raced-{uuid.uuid4().hex[:6]}"), list[Registered]()
    threads = [threading.Thread(target=lambda: found.append(registry.register(model, "champion"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == 2 and len({one.version for one in found}) == 1
    assert list(versions(registry, model.name)) == [found[0].version]


def test_logins_are_asked_for_and_local_folders_belong_to_runs(registry: kinetic.MLflow, tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"401.*MLFLOW_TRACKING_USERNAME"):
        kinetic.MLflow(registry.url, username="admin", password="wrong").register(version(), "")
    source = tmp_path / "m"
    source.mkdir()
    (source / "model.keras").write_bytes(b"x")
    with pytest.raises(RegistryError, match=r"promote into a bucket, or give MLflow\(run_id=…\)"):
        kinetic.promote(source, tmp_path / "local", registry=registry)
    login = registry.username, registry.password
    made = requests.post(
        f"{registry.url}/api/2.0/mlflow/runs/create", json={"experiment_id": "0"}, auth=login, timeout=20
    ).json()["run"]["info"]
    own = kinetic.MLflow(run_id=made["run_id"])
    promoted = kinetic.promote(source, f"{made['artifact_uri']}/models", name="local", registry=own)
    assert promoted.registered is not None and versions(registry, "local")["1"]["run_id"] == made["run_id"]
