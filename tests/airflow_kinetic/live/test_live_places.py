"""One pipeline of `example_pipelines/` in one running Airflow: on this machine, on Cloud TPU, on VMs of Compute
Engine and on GKE, unchanged.

What differs is outside: the profile that Airflow's processes read, and on GKE the connection, which names the cluster.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kinetic_orchestration.plan.configuration.settings import SETTINGS
from kinetic_orchestration.testing import Emulator
from tests.airflow_kinetic.conftest import EXAMPLES
from tests.airflow_kinetic.live.airflow_servers import Airflow, Run
from tests.airflow_kinetic.live.conftest import started_airflow
from tests.airflow_kinetic.live.scenes import TOLERATED

pytestmark = [pytest.mark.slow, pytest.mark.turn(6), pytest.mark.timeout(1800), TOLERATED]

EXAMPLE = "environments_airflow"
OF_SETTINGS = {row.variable: name for name, row in SETTINGS.items()}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of Airflow's profile `here`, in which nothing is set at first."""
    path = tmp_path_factory.mktemp("profile") / "profiles.toml"
    path.write_text("[here]\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def airflow(
    profile: Path, shared_home: Path, database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Airflow]:
    """An Airflow whose only DAG is the example."""
    folder = tmp_path_factory.mktemp("places")
    (dags := folder / "dags").mkdir()
    shutil.copy(EXAMPLES / f"{EXAMPLE}.py", dags)
    environ = {
        "KINETIC_HOME": str(shared_home),
        "KINETIC_PROFILE_FILE": str(profile),
        "KINETIC_PROFILE": "here",
    }
    with started_airflow(folder, dags, 1, database, environ) as started:
        yield started


def test_a_pipeline_runs_wherever_the_profile_and_the_connection_of_its_airflow_say(
    airflow: Airflow, profile: Path
) -> None:
    ran = succeeded(airflow, "local")
    assert ran.value("fit", key="kinetic_where") == "emulated on this machine's CPU"

    with Emulator(python=sys.executable) as cloud:
        write(profile, cloud.environ())
        ran = succeeded(airflow, "tpu-vm")
        assert ran.links("fit")["Google Cloud console"]
        assert cloud.ledger.count("created", "node") == 1
        cloud.wait_until_empty(60)

        write(profile, cloud.environ(backend="compute", deployment="on-vms"))
        ran = succeeded(airflow, "compute")
        assert "/compute/instances?project=" in ran.links("fit")["Google Cloud console"]
        assert cloud.ledger.count("created", "instance") == 1
        cloud.wait_until_empty(60)

        settings = cloud.environ(backend="gke", deployment="on-gke")
        extra = {"project": settings.pop("KINETIC_PROJECT"), "cluster": settings.pop("KINETIC_CLUSTER")}
        connection = {"connection_id": "google_cloud_default", "conn_type": "google_cloud_platform"}
        airflow.ask("POST", "connections", {**connection, "extra": json.dumps(extra)})
        write(profile, settings)
        ran = succeeded(airflow, "gke")
        assert not ran.links("fit").get("Google Cloud console")
        assert cloud.ledger.count("created", "node") == 1, "no slice of Cloud TPU was made"
        cloud.wait_until_empty(60)
        cloud.ledger.assert_nothing_left()


def write(profile: Path, environ: Mapping[str, str]) -> None:
    """Have the profile say what variables would."""
    named = {OF_SETTINGS[name]: value for name, value in environ.items() if name in OF_SETTINGS}
    lines = [f"{name} = {json.dumps(value)}" for name, value in named.items()]
    profile.write_text("\n".join(["[here]", *lines, ""]), encoding="utf-8")


def succeeded(airflow: Airflow, place: str) -> Run:
    """Return a run of the example that has come to its end, with the values that it has everywhere."""
    run = airflow.trigger(EXAMPLE, place)
    for task_id in ("fit", "report"):
        assert run.wait("success", task_id=task_id)["try_number"] == 1
    assert run.value("report") == "y = 2.99 x + 1.01"
    return run
