"""The example pipelines, as people start them, on slices of an emulated cloud: not a line of them knows the difference.

Each host installs JAX from the package index of this machine, so these take a while.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator

EXAMPLES = Path(__file__).parents[3] / "example_pipelines"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(2)]


def start(program: Path | str, *arguments: str, folder: Path, **environ: str) -> str:
    """Run it successfully and return its output."""
    done = subprocess.run(
        [sys.executable, str(program), *arguments], cwd=folder, env={**os.environ, **environ}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def nothing_is_left(cloud: Emulator) -> None:
    cloud.wait_until_empty(60)
    cloud.ledger.assert_nothing_left()
    assert cloud.ledger.chip_seconds() > 0


def test_the_dagster_example_trains_on_four_hosts_of_a_slice(cloud: Emulator, tmp_path: Path) -> None:
    said = start(EXAMPLES / "dagster_train_evaluate.py", folder=tmp_path)
    for host in range(4):
        assert f"[host {host}] joined with 4 of 16 chips" in said
    assert "[host 0] metrics step 5: loss=" in said
    assert "running: 4 hosts" in said
    accuracy = re.search(r"result   accuracy (\d+\.\d)%", said)
    assert accuracy is not None
    assert float(accuracy[1]) > 95
    assert cloud.ledger.count("created", "node") == 1
    nothing_is_left(cloud)


def test_the_airflow_example_trains_on_a_slice(cloud: Emulator, tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    environ = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    example = shutil.copy(EXAMPLES / "airflow_retrain.py", dags)
    start("-m", "airflow", "db", "migrate", folder=tmp_path, **environ)
    said = start(example, folder=tmp_path, **environ)
    assert "on 8 devices, of which 8 are here" in said
    off = re.search(r"the line is \S+ x \+ \S+, off by (\d\.\d+)", said)
    assert off is not None, said
    assert float(off[1]) < 0.1
    assert cloud.ledger.count("created", "node") == 1
    nothing_is_left(cloud)
