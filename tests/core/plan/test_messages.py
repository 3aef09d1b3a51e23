"""Commands in messages can be pasted into the terminal that shows them, whatever PATH has."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.plan.messages import command, program

pytestmark = pytest.mark.fast


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs of an environment to which PATH does not lead; its python is this one."""
    programs = tmp_path / "an environment" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    script = programs / "kinetic-orchestration"
    script.write_text("#!/bin/sh\necho called with $*\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", os.defpath)
    return programs


def pasted(line: str) -> str:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_to_which_path_leads_is_called_by_its_name(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / "kinetic-orchestration").symlink_to(environment / "kinetic-orchestration")
    for folder in (environment, links):
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.defpath}")
        assert command("logs", "job-1") == "kinetic-orchestration logs job-1"
        assert pasted(command("logs", "job-1")) == "called with logs job-1\n"


def test_another_environments_program_of_the_same_name_is_not_called(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kinetic-orchestration").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (other / "kinetic-orchestration").chmod(0o755)
    monkeypatch.setenv("PATH", f"{other}{os.pathsep}{os.defpath}")
    assert pasted(command("logs", "job-1")) == "called with logs job-1\n"


@pytest.mark.parametrize("where", [".", "an environment", "an environment/bin", "elsewhere"])
def test_else_by_its_path_from_the_working_folder_or_whole(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / where)
    [path, *words] = shlex.split(command("logs", "job-1"))
    assert words == ["logs", "job-1"]
    assert Path(path).is_absolute() == (where == "elsewhere")
    assert pasted(command("logs", "job-1")) == "called with logs job-1\n"


def test_else_by_its_module(environment: Path) -> None:
    (environment / "kinetic-orchestration").unlink()
    assert command("logs", "job-1").endswith("bin/python' -m kinetic_orchestration.cli logs job-1")
    assert program("dagster") == shlex.quote(str(environment / "dagster"))


def test_a_working_folder_that_is_gone_changes_nothing(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert command("jobs") == f"{shlex.quote(str(environment / 'kinetic-orchestration'))} jobs"


def test_words_are_quoted(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(environment))
    assert command("plan", "a file.py:train") == "kinetic-orchestration plan 'a file.py:train'"
