"""The page of capacity shows what `kinor plan` prints, of programs that are accepted as they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import blocks, programs

PAGE = "docs/training/capacity.md"
PROGRAMS = programs(PAGE)
CLOUD = {"KINETIC_PROJECT": "my-project", "KINETIC_STORE": "gs://my-bucket/kinetic", "KINETIC_DEPLOYMENT": "team"}


def planned(program: str, folder: Path) -> list[list[str]]:
    """The rows of the table of choices, word by word, without prices and reasons: those are of a day."""
    (folder / program).write_text(PROGRAMS[program], encoding="utf-8")
    command = [sys.executable, "-m", "kinetic_orchestration.cli", "plan", f"{program}:train"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **CLOUD}, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return rows(done.stdout)


def rows(text: str) -> list[list[str]]:
    lines = text.partition("CHOICE ")[2].splitlines()[1:]
    table = lines[: lines.index("")] if "" in lines else lines
    return [line.split()[:7] for line in table]


@pytest.mark.timeout(300)
def test_the_table_of_the_page_has_the_lines_that_ko_plan_prints(home: Path, tmp_path: Path) -> None:
    [shown] = [block for block in blocks(PAGE, "text") if "CHOICE " in block]
    assert sorted(planned("several.py", tmp_path)) == sorted(rows(shown + "\n"))


@pytest.mark.timeout(300)
def test_a_choice_of_the_page_is_bought_as_it_says(home: Path, tmp_path: Path) -> None:
    found = planned("per_choice.py", tmp_path)
    assert {(row[0], row[5]) for row in found} == {("v6e-16", "spot"), ("v5p-16", "spot"), ("v5p-16", "on-demand")}
