"""Jobs on the emulated cluster of GKE, found and reached as one of Google's: no line of a program knows the difference."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.api_rules.policies import subject_token
from kinetic_orchestration.testing.emulator import PROJECT
from kinetic_orchestration.testing.model.state.machine import project_number
from tests.support.examples import EXAMPLES, airflow_started, started
from tests.support.faults import load_jobs

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def emulated() -> Iterator[Emulator]:
    with Emulator(python=sys.executable) as cloud:
        yield cloud


@pytest.fixture
def jobs(tmp_path: Path) -> Any:
    return load_jobs(tmp_path / "project", "gke_jobs")


@pytest.mark.parametrize("backend", ["gke", "kubernetes"])
def test_a_slice_of_several_hosts_is_made_for_a_job_and_its_value_comes_back(
    emulated: Emulator, home: Path, jobs: Any, tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in emulated.environ(backend=backend).items():
        monkeypatch.setenv(name, value)
    marks = tmp_path / "marks"
    job = kinetic.run(accelerator="v4-8")(jobs.leaves_mark).run_async(str(marks))
    assert job.result(timeout=150) in marks.read_text().split()
    assert len(marks.read_text().split()) == 2
    emulated.wait_until_empty(60)


def test_pods_act_as_their_service_account_which_may_do_what_the_bucket_grants_it(
    emulated: Emulator, home: Path, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in emulated.environ(backend="gke", store="gs://restricted/kinetic").items():
        monkeypatch.setenv(name, value)
    emulated.storage.restrict("restricted")
    with pytest.raises(JobError, match="runs as the Kubernetes service account default/default") as raised:
        kinetic.run(accelerator="v5e-1")(jobs.of_host_0)()
    [member] = re.findall(r"gs://restricted --role=roles/storage.objectUser --member='(.+?)'", str(raised.value))
    emulated.storage.restrict("restricted", "roles/storage.objectUser", member)
    emulated.storage.forget()
    emulated.add_secret("token", "the token")
    emulated.requests.clear()
    assert kinetic.run(accelerator="v5e-1", secrets={"TOKEN": "token"})(jobs.of_host_0)() == "of host 0"
    readers = {caller.node for method, caller in emulated.requests if method == "AccessSecretVersion"}
    assert readers == {member}
    own = subject_token(f"{PROJECT}.svc.id.goog", project_number(PROJECT), "default", "default")
    assert {call.caller for call in emulated.storage.calls} == {"", own}, "this process has no account"
    emulated.wait_until_empty(60)


@pytest.mark.turn(5)
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", ["local", "tpu-vm", "gke"])
def test_an_example_runs_unchanged_wherever_its_environment_says(
    emulated: Emulator, home: Path, tmp_path: Path, backend: str
) -> None:
    """Its first attempt dies, and the next goes on where it was."""
    settings = {} if backend == "local" else emulated.environ(backend=backend, deployment=backend)
    said = started(EXAMPLES / "dagster_weekly.py", folder=tmp_path, **settings)
    assert "in 2 attempts; the last one went on after epoch 3" in said
    emulated.wait_until_empty(60)


@pytest.mark.turn(1)
@pytest.mark.timeout(1200)
def test_airflows_example_trains_on_the_cluster(emulated: Emulator, home: Path, tmp_path: Path) -> None:
    environ = emulated.environ(backend="gke", deployment="airflow")
    said = airflow_started("airflow_retrain.py", folder=tmp_path, **environ)
    assert "on 8 devices, of which 8 are here" in said
    emulated.wait_until_empty(60)
