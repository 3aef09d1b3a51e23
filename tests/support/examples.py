"""The example pipelines, as people start them: in a process of their own, by the environment that a test gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "example_pipelines"


def started(*words: Path | str, folder: Path, **environ: str) -> str:
    """Run a program successfully and return its output."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env={**os.environ, **environ}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def airflow_started(example: str, *, folder: Path, **environ: str) -> str:
    """Run one as the only DAG of an Airflow of its own, and return its output."""
    dags = folder / "dags"
    dags.mkdir()
    environ |= {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    program = shutil.copy(EXAMPLES / example, dags)
    started("-m", "airflow", "db", "migrate", folder=folder, **environ)
    return started(program, folder=folder, **environ)
