"""The task runner, and what calls its sessions, name the same ones."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import yaml

from kinetic_orchestration.cli.doctor import NEWEST
from tests.support.airflow_releases.environment import RELEASES
from tests.support.pages import ROOT, SOURCE, page

PAGES = ["CONTRIBUTING.md", "docs/develop/developing.md", "docs/develop/releasing.md"]
WORKFLOWS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / ".github" / "workflows").glob("*.yml"))


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


@pytest.mark.parametrize("name", [".ci/run", ".pre-commit-config.yaml", *WORKFLOWS, *PAGES])
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


def workflow(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(page(name)))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_only_read_and_its_actions_are_pinned_by_commit(name: str) -> None:
    told = workflow(name)
    assert told["permissions"] == {"contents": "read"}
    for job in told["jobs"].values():
        assert job["timeout-minutes"] <= 45
        assert "permissions" not in job or job["environment"], "who may write waits for a person"
    uses = re.findall(r"uses: (\S+)@(\S+)(.*)", page(name))
    assert uses
    for action, commit, rest in uses:
        assert re.fullmatch(r"[0-9a-f]{40}", commit), f"{action}@{commit} may become another one"
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", rest), f"{action}: the version is said beside its commit"


def test_the_checks_run_on_each_python_that_is_supported_and_on_macos() -> None:
    """The classifiers name those with which tests have run: the newest that installs is in the checks before."""
    project = tomllib.loads(page("pyproject.toml"))["project"]
    least, below = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups())
    supported = [f"3.{minor}" for minor in range(least, below)]
    tried = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert tried == supported[: len(tried)] and tried[-1] == ".".join(map(str, NEWEST))
    jobs = workflow(".github/workflows/checks.yml")["jobs"]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == supported
    assert jobs["macos"]["runs-on"].startswith("macos")
    assert jobs["macos"]["strategy"]["matrix"]["python"] == [tried[0], tried[-1]]
    ran = {name: called("\n".join(step.get("run", "") for step in job["steps"])) for name, job in jobs.items()}
    names = ("lint", "tests", "macos", "airflow", "docs", "package", "terraform", "upgrade", "slurm")
    assert ran == {name: {{"macos": "tests"}.get(name, name)} for name in names}
    assert jobs["airflow"]["strategy"]["matrix"]["release"] == list(RELEASES)


def test_who_may_sign_and_upload_runs_nothing_of_this_repository() -> None:
    """Tests that of the release's jobs one may sign: it has what another job built and tried, and only actions."""
    jobs = workflow(".github/workflows/release.yml")["jobs"]
    may = {name: job.get("permissions", {}) for name, job in jobs.items()}
    assert may == {
        "build": {}, "publish": {"id-token": "write", "attestations": "write"}, "draft": {"contents": "write"},
    }  # fmt: skip
    steps = jobs["publish"]["steps"]
    uses = [step["uses"].partition("@")[0] for step in steps if "uses" in step]
    assert uses == [
        "actions/download-artifact", "actions/attest-build-provenance", "actions/attest-sbom", "pypa/gh-action-pypi-publish",
    ]  # fmt: skip
    ran = " ".join(step.get("run", "") for job in ("publish", "draft") for step in jobs[job]["steps"])
    assert not re.search(r"\b(python|pip|uv|nox|tests)\b", ran)
    assert jobs["publish"]["needs"] == "build" and jobs["draft"]["needs"] == "publish"
    assert called("\n".join(step.get("run", "") for step in jobs["build"]["steps"])) == {"lint", "docs", "package"}


def test_the_forms_for_issues_are_what_the_forge_reads() -> None:
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    forms = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder.glob("*.yml") if path.stem != "config"]
    assert len(forms) == 2
    for form in forms:
        assert form["name"] and form["description"]
        inputs = [entry for entry in form["body"] if entry["type"] != "markdown"]
        assert len({entry["id"] for entry in inputs}) == len(inputs)
        assert all(entry["attributes"]["label"] for entry in inputs)
        assert {entry["type"] for entry in inputs} <= {"input", "textarea", "dropdown", "checkboxes"}
    [link] = yaml.safe_load((folder / "config.yml").read_text(encoding="utf-8"))["contact_links"]
    assert link["url"].startswith(f"{SOURCE}/")


def test_contributing_begins_with_the_fast_selection_and_has_five_commands() -> None:
    text = page("CONTRIBUTING.md")
    first = re.search(r"```sh\n(.*)", text)
    assert first is not None and first[1].startswith(".venv/bin/nox -s fast ")
    assert re.findall(r"(?m)^\| `\.venv/bin/nox -s (\w+)`", text) == ["fast", "tests", "lint", "docs", "package"]


def test_the_gate_plays_the_readmes_two_commands() -> None:
    """The first two blocks of `sh` are those; every other one is `bash`."""
    first, second = re.findall(r"^```sh\n(.*?)^```", page("README.md"), re.S | re.M)
    assert "example_pipelines/dagster_train_evaluate.py" in first and "-m pytest" in second
    assert "command_of 0" in (ROOT / ".ci/run").read_text() and "command_of 1" in (ROOT / ".ci/run").read_text()
