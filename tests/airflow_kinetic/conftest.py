"""Airflow as it is: one process of it for all tests here, with a database and a DAGs folder of its own."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.support import pages
from tests.support.airflow_releases.environment import CHOSEN, NotInstalled, made

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "example_pipelines"
VERSION = CHOSEN or version("apache-airflow")
RELEASE = tuple(int(part) for part in VERSION.split(".")[:2])
NEWEST = (3, 3)

# Where users of an older release import from what is in `airflow.sdk` now, and the names that it does not have.
_OF_2 = {
    "Asset": "from airflow.datasets import Dataset as Asset",
    "DAG": "from airflow import DAG",
    "Param": "from airflow.models.param import Param",
    "dag": "from airflow.decorators import dag",
    "get_current_context": "from airflow.operators.python import get_current_context",
    "task": "from airflow.decorators import task",
}
_NEW = ("ExceptionRetryPolicy", "RetryAction", "RetryRule")


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


def of_release(text: str) -> str | None:
    """Return a DAG file as a user of the release writes it; None for one that needs a newer release."""
    if RELEASE >= NEWEST:
        return text
    if any(name in text for name in _NEW):
        return None
    if RELEASE < (3, 2):
        text = text.replace("from airflow.sdk.exceptions import", "from airflow.exceptions import")
    if RELEASE < (3, 0):
        names = re.compile(r"^( *)from airflow\.sdk import (.*)$", re.M)
        text = names.sub(
            lambda found: "\n".join(found[1] + _OF_2[name] for name in found[2].partition("#")[0].strip().split(", ")),
            text,
        )
    return text


def needs(release: tuple[int, int], why: str) -> pytest.MarkDecorator:
    """Skip a test of what an older release does not have."""
    return pytest.mark.skipif(release > RELEASE, reason=f"Airflow {VERSION}: {why}")


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter of the environment whose Airflow is tested: this one's, unless AIRFLOW_RELEASE names another."""
    try:
        return made(CHOSEN) if CHOSEN else sys.executable
    except NotInstalled as error:
        pytest.skip(f"Airflow {CHOSEN} cannot be installed from here: {error}")


@pytest.fixture(scope="session")
def database(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database, to be copied: it takes longer than anything else here, and all workers share it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "airflow-database"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            environ = environ_of(folder, folder / "dags")
            command = [python, "-m", "airflow", "db", "migrate"]
            migrated = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280)
            assert migrated.returncode == 0, migrated.stdout + migrated.stderr
            (folder / "done").touch()
    return folder / "airflow.db"


def environ_of(home: Path, dags: Path) -> dict[str, str]:
    """An Airflow of its own, whatever is set outside."""
    ours = ("AIRFLOW_", "KINETIC_", "STORAGE_EMULATOR_HOST", "GOOGLE_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # The environment of an older release may have been made with another checkout.
    elsewhere = {"PYTHONPATH": str(HERE.parents[1])} if CHOSEN else {}
    return (
        environ
        | elsewhere
        | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            # Half a minute of a busy machine is not much for the imports of a DAG file.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "250",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "280",
        }
    )


@pytest.fixture(scope="session")
def airflow(python: str, database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
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
    for file in dags.rglob("*.py"):
        if (text := of_release(file.read_text(encoding="utf-8"))) is None:
            file.unlink()
        else:
            file.write_text(text, encoding="utf-8")
    (folder / "home").mkdir()
    shutil.copy(database, folder / "home")
    environ = environ_of(folder / "home", dags) | {
        "AIRFLOW__KINETIC__DEFER_AFTER": "0"
    }  # what is quick is deferred, too
    process = subprocess.Popen(
        [python, str(HERE / "runner.py")],
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
