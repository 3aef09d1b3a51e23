"""docs/training/training.md: its programs run, and its tables say what is there."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from tests.support.pages import page, programs


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        pytest.param("train.py", r"\d+\.\d+", marks=pytest.mark.turn(0)),
        ("loop.py", r"\[1\.0, 1\.0, 1\.0, 1\.0\]"),
        ("elastic.py", r"\[1\.0, 1\.0, 1\.0, 1\.0\]"),
    ],
    ids=["keras", "jax", "elastic"],
)
def test_each_program_runs(file: str, expected: str, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / file).write_text(programs("docs/training/training.md")[file])
    done = subprocess.run(
        [sys.executable, file], cwd=folder, capture_output=True, text=True, timeout=500,
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(expected, done.stdout.splitlines()[-1])


def test_there_is_a_row_for_every_option() -> None:
    table = page("docs/training/training.md").partition("\n## Options\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    told = {name: row[2].strip() for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    of_loop = inspect.signature(kinetic.Training).parameters
    of_keras = inspect.signature(kinetic.KineticCallback.__init__).parameters
    assert set(told) == {*of_loop, *of_keras} - {"self"}
    assert {*of_loop} - {*of_keras} == {"total", "unit", "hosts", "per_host"}
    assert {*of_keras} - {*of_loop, "self"} == {"stream"}
    for name in ("every", "keep", "log_every", "on_nan", "on_full_disk", "reshard", "name"):
        for found in (of_loop, of_keras):
            assert f"`{found[name].default!r}`".replace("'", '"') == told[name], name
