"""Airflow as it is: one process of it for all tests here, with a database and a DAGs folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "example_pipelines"


@dataclass
class Airflow:
    process: subprocess.Popen[str]

    def __call__(self, story: str, home: Path, **arguments: Any) -> dict[str, Any]:
        """What the runner answers, and all that was logged meanwhile under `log`."""
        home.parent.mkdir(parents=True, exist_ok=True)
        log = home.parent / f"{story}.log"
        asked = {"story": story, "home": str(home), "log": str(log), "arguments": arguments}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        answer["log"] = log.read_text(errors="replace")
        assert "error" not in answer, answer["error"] + "\n" + answer["log"]
        return answer


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    folder = tmp_path_factory.mktemp("airflow")
    dags = shutil.copytree(HERE / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLES / "airflow_retrain.py", dags)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "KINETIC_"))}
    environ |= {
        "AIRFLOW_HOME": str(folder / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    migrated = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    process = subprocess.Popen(
        [sys.executable, str(HERE / "runner.py")],
        env=environ, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        yield Airflow(process)
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
