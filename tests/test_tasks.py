"""The task runner, and what calls its sessions, name the same ones."""

from __future__ import annotations

import functools
import re
import subprocess
import sys

import pytest
import yaml

from tests.pages import ROOT


@functools.cache
def sessions() -> dict[str, str]:
    """Return the sessions of noxfile.py with what each says that it does."""
    command = [sys.executable, "-m", "nox", "--list", "--noxfile", str(ROOT / "noxfile.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"(?m)^[*-] ([a-z]+)(?: -> (.+))?$", done.stdout))


def called(text: str) -> set[str]:
    """Return the sessions that a file calls by `nox -s`."""
    lists = re.findall(r"\bnox -s ((?:[a-z]+\b(?! *=) ?)+)", text)
    return {name for names in lists for name in names.split()}


def test_every_session_says_what_it_does() -> None:
    assert sessions() and all(sessions().values())


@pytest.mark.parametrize("name", [".ci/run", ".pre-commit-config.yaml"])
def test_a_session_that_is_called_by_name_exists(name: str) -> None:
    found = called((ROOT / name).read_text(encoding="utf-8"))
    assert found and found <= set(sessions())


def test_the_hooks_before_a_commit_run_programs_of_this_environment_alone() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    repos = yaml.safe_load(text)["repos"]
    assert {repo["repo"] for repo in repos} == {"local"}, "another one would be fetched"
    hooks = [hook for repo in repos for hook in repo["hooks"]]
    assert {(hook["language"], hook["entry"].split(" -m ")[0]) for hook in hooks} == {("system", ".venv/bin/python")}
    command = [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
