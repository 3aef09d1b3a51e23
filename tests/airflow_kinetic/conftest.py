"""Airflow as it is: one process of it for all tests here, with a database and a DAGs folder of its own."""

from __future__ import annotations

import fcntl
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

from tests.support import pages

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "example_pipelines"


@dataclass
class Airflow:
    process: subprocess.Popen[str]
    environ: dict[str, str]

    def __call__(
        self, story: str, home: Path, *, environ: dict[str, str] | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """Return the runner's answer, with everything that was logged in between under `log`."""
        home.parent.mkdir(parents=True, exist_ok=True)
        log = home.parent / f"{story}.log"
        asked = {
            "story": story, "home": str(home), "log": str(log), "environ": environ or {}, "arguments": arguments,
        }  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = {}
        while answer.get("log") != str(log):  # one for a test that was given up may come first
            answer = json.loads(self.process.stdout.readline())
        answer["log"] = log.read_text(errors="replace")
        assert "error" not in answer, answer["error"] + "\n" + answer["log"]
        return answer


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database, to be copied: it takes longer than anything else here, and all workers share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "airflow-database"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            environ = environ_of(folder, folder / "dags")
            command = [sys.executable, "-m", "airflow", "db", "migrate"]
            migrated = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280)
            assert migrated.returncode == 0, migrated.stdout + migrated.stderr
            (folder / "done").touch()
    return folder / "airflow.db"


def environ_of(home: Path, dags: Path) -> dict[str, str]:
    """An Airflow of its own, whatever is set outside."""
    ours = ("AIRFLOW_", "KINETIC_", "STORAGE_EMULATOR_HOST", "GOOGLE_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # Half a minute of a busy machine is not much for the imports of a DAG file.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "250",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "280",
    }


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory, database: Path) -> Iterator[Airflow]:
    folder = tmp_path_factory.mktemp("airflow")
    dags = shutil.copytree(HERE / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    beside = [EXAMPLES / name for name in ("keras_rings.py", "whole_llm.py")]
    for example in [*EXAMPLES.glob("airflow_*.py"), *EXAMPLES.glob("*_airflow.py"), *EXAMPLES.glob("*.txt"), *beside]:
        shutil.copy(example, dags)
    shutil.copytree(EXAMPLES / "vllm_on_cpu", dags / "vllm_on_cpu")
    for file, program in pages.programs("docs/pipelines/airflow.md").items():
        (dags / f"page_{file}").write_text(program, encoding="utf-8")
    [program] = [block for block in pages.blocks("README.md") if "task.kinetic" in block]
    (dags / "page_readme.py").write_text(program, encoding="utf-8")
    (folder / "home").mkdir()
    shutil.copy(database, folder / "home")
    environ = environ_of(folder / "home", dags) | {
        "AIRFLOW__KINETIC__DEFER_AFTER": "0"
    }  # what is quick is deferred, too
    process = subprocess.Popen(
        [sys.executable, str(HERE / "runner.py")],
        env=environ, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        yield Airflow(process, environ)
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
