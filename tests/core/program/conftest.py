"""A program's place on a host as its agent would tell it, and functions to run as jobs, from a small project."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.program import loop

MODULE = "training_jobs"
JOB = "job-0123456789abcdef"


class Host:
    """This process as one host of a job."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = folder / "checkpoints"
        self.events = folder / "events"
        self.notice = folder / "notice"
        self.output = folder / "out"

    def environ(self, attempt: int, job: str = JOB) -> dict[str, str]:
        """The variables by which a program knows that it runs there."""
        told = {
            "JOB_ID": job, "ATTEMPT": str(attempt), "HOST_INDEX": "0", "HOST_COUNT": "1", "OUTPUT_DIR": str(self.output),
            "CHECKPOINT_DIR": str(self.checkpoints), "PARTITION_KEY": "", "EVENTS": str(self.events),
            "NOTICE": str(self.notice),
        }  # fmt: skip
        return {f"KINETIC_{name}": value for name, value in told.items()}

    def told(self, kind: str) -> list[dict[str, Any]]:
        """The program's reports: metrics (m) or progress (p)."""
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return [json.loads(line[1:]) for line in lines if line[0] == kind]

    def ask_to_end(self, cause: str, grace: float = 8.0) -> None:
        part = self.notice.with_suffix(".part")
        part.write_text(json.dumps({"cause": cause, "grace": grace}))
        part.rename(self.notice)

    def steps(self, name: str = "t") -> list[int]:
        """The steps of the existing checkpoints."""
        return sorted(
            int(commit.parent.name.split("-")[1]) for commit in (self.checkpoints / name).glob("step-*/commit.json")
        )

    def folders(self, name: str = "t") -> list[str]:
        return sorted(path.name for path in (self.checkpoints / name).glob("step-*"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Host]]:
    """Makes this process a host of such an attempt; later ones find the checkpoints of those before."""

    def become(attempt: int = 1, job: str = JOB) -> Host:
        found = Host(tmp_path)
        found.notice.unlink(missing_ok=True)
        loop._finished.clear()  # as a new process begins
        for name, value in found.environ(attempt, job).items():
            monkeypatch.setenv(name, value)
        return found

    yield become


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("training") / "project"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    copy = folder / f"{MODULE}.py"
    shutil.copy(Path(__file__).with_name("jobs.py"), copy)
    spec = importlib.util.spec_from_file_location(MODULE, copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _own_names() -> None:
    """Each test is a program of its own, whose first training is its first."""
    loop._named.clear()
    loop._finished.clear()
    assert "KINETIC_EVENTS" not in os.environ


def on_a_small_disk(code: str, folder: Path, options: str = "size=2m") -> tuple[str, str]:
    """Run a program, whose argument is a small disk that nobody else sees. Returns what it printed, and to its user."""
    (folder / "disk").mkdir()
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    script = 'mount -t tmpfs -o "$4" tmpfs "$1/disk"; exec "$2" -c "$3" "$1/disk"'
    done = subprocess.run(
        [unshare, "-rm", "sh", "-ec", script, "sh", str(folder), sys.executable, code, options],
        capture_output=True, text=True, timeout=60, env={**os.environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def train(until: int, **options: Any) -> int:
    """Train to a step, and check the state. Returns the step at which it began."""
    with kinetic.Training(**{"every": 5, "name": "t", "keep": 2, **options}) as training:
        state, begun = training.restore({"w": np.zeros(100_000), "n": 0})
        for number in range(begun, until):
            state = {"w": state["w"] + number, "n": state["n"] + 1}
            training.step(number + 1, state)
        assert (state["w"] == sum(range(until))).all()
        assert state["n"] == until
    return begun
