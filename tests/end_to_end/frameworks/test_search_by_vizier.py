"""A search by Vizier's own client, which needs an older JAX than this project: in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from kinetic_orchestration.packaging.requirements.indexes import uv_settings
from tests.end_to_end.frameworks.by_vizier import TRIALS

ROOT = Path(__file__).parents[3]
VIZIER = ["google-vizier[jax]==0.1.24", "jax==0.5.3", "jaxlib==0.5.3", "flax==0.10.6"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.turn(2)]


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Path]:
    """The interpreter of an environment with Vizier and what this package depends on, and not with the package."""
    own = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    environ, folder = os.environ | uv_settings(os.environ), tmp_path / "environment"
    subprocess.run([find_uv_bin(), "venv", "-q", "-p", sys.executable, str(folder)], env=environ, check=True)
    made = folder / "bin" / "python"
    command = [find_uv_bin(), "pip", "install", "-q", "--python", str(made), *VIZIER, *own]
    subprocess.run(command, env=environ, check=True, timeout=600)
    yield made
    shutil.rmtree(folder)


def searched(python: Path, folder: Path) -> dict[str, Any]:
    command = [str(python), "-m", "tests.end_to_end.frameworks.by_vizier", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_viziers_random_search_drives_jobs_and_a_second_process_finds_all_of_them(
    python: Path, home: Path, tmp_path: Path
) -> None:
    first = searched(python, tmp_path)
    trials = first["trials"]
    trained = (tmp_path / "trained").read_text().split()
    assert sorted(job for _, _, job, _ in trials.values()) == sorted(trained)
    assert len(trials) == TRIALS
    assert trials["1"][:2] == ["FAIL", None] and "its value is not a number" in trials["1"][3]
    complete = {number: value for number, (state, value, *_) in trials.items() if state == "COMPLETE"}
    assert first["value"] == min(complete.values())
    assert first["value"] == pytest.approx(first["best"]["lr"] + 1 / first["best"]["units"])
    assert first["measured"] == [[0, 1, 2]] * TRIALS
    again = searched(python, tmp_path)
    assert again == first
    assert (tmp_path / "trained").read_text().split() == trained
