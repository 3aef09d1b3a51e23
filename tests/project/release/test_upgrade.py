"""Jobs that the release before has begun are followed, ended and collected by this one, and the other way round.

The release before is built from its commit into an environment of its own. Where the wire is the same, this code is also
copied with the next wire: so a change of records that older agents or clients cannot bear is seen before it is released.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

import kinetic_orchestration as kinetic
from kinetic_orchestration.cli import codes
from kinetic_orchestration.packaging.requirements.indexes import uv_settings
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system import processes
from tests.support.pages import ROOT
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turn(6)]

BEFORE = "dd4b881e"  # the commit of the release before: docs/develop/releasing.md says when to change it
PATIENCE = 120

BEGINS = """\
import os, sys, time
import kinetic_orchestration as kinetic

@kinetic.run(accelerator="cpu", retry=kinetic.Retry(infra=2))
def work(folder):
    host = kinetic.current()
    print("attempt", host.attempt, "of host", host.host_index, flush=True)
    host.log_metrics(step=1, loss=0.25)
    open(f"{folder}/{host.attempt}-{host.host_index}", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    return {"hosts": host.host_count, "attempt": host.attempt}

if __name__ == "__main__":
    print(work.run_async(sys.argv[1]).job_id)
"""


class Release:
    """A release in an environment of its own: what its programs say."""

    def __init__(self, python: Path, path: Path | None = None) -> None:
        self.python, self.path = python, path

    def run(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        if self.path is not None:
            environ["PYTHONPATH"] = str(self.path)
        command = [str(self.python), *words]
        return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE)

    def kinor(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(folder, "-m", "kinetic_orchestration.cli", *words)

    def begin(self, folder: Path) -> str:
        """Begin a job by a process that then ends; return its id once its host runs."""
        (folder / "work.py").write_text(BEGINS, encoding="utf-8")
        done = self.run(folder, "work.py", str(folder))
        assert done.returncode == 0, done.stderr
        wait_until((folder / "1-0").exists, "its host")
        return done.stdout.strip()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The release before, installed from its wheel beside what this environment has."""
    folder = tmp_path_factory.mktemp("before")
    (source := folder / "source").mkdir()
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x"], cwd=source, input=archive, check=True)
    environ = os.environ | uv_settings(os.environ)
    pinned = ["--build-constraints", str(ROOT / "constraints-build.txt"), "--require-hashes"]
    build = [find_uv_bin(), "build", "-q", "--wheel", *pinned, "--out-dir", str(folder)]
    subprocess.run(build, cwd=source, env=environ, check=True)
    [wheel] = folder.glob("*.whl")
    shutil.rmtree(source)
    python = folder / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])], check=True)
    install = [find_uv_bin(), "pip", "install", "-q", "--no-deps", "--python", str(python), str(wheel)]
    subprocess.run(install, env=environ, check=True)
    [site] = python.parents[1].glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Release(python)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """This code with the next wire."""
    folder = tmp_path_factory.mktemp("after")
    shutil.copytree(
        ROOT / "kinetic_orchestration", folder / "kinetic_orchestration", ignore=shutil.ignore_patterns("__pycache__")
    )
    declared = folder / "kinetic_orchestration" / "protocol" / "wire" / "__init__.py"
    text, count = re.subn(rf"(?m)^WIRE = {wire.WIRE}$", f"WIRE = {wire.WIRE + 1}", declared.read_text(encoding="utf-8"))
    assert count == 1
    declared.write_text(text, encoding="utf-8")
    return Release(Path(sys.executable), folder)


@pytest.fixture
def now() -> Release:
    return Release(Path(sys.executable), ROOT)


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Iterator[Path]:
    """The project of a job, whose hosts end with the test."""
    (found := tmp_path / "work").mkdir()
    yield found
    (found / "go").touch()


@pytest.fixture(params=["now", "after"])
def newer(request: pytest.FixtureRequest) -> Release:
    return request.getfixturevalue(request.param)


def hosts_of(home: Path, job: str, attempt: int) -> list[processes.Process]:
    return processes.marked(f"KINETIC_PLACEMENT={home / 'run' / f'{job}-{attempt}'}")


def told(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_a_job_of_the_release_before_is_followed_to_its_value(
    before: Release, newer: Release, home: Path, folder: Path
) -> None:
    job = before.begin(folder)
    status = told(newer.kinor(folder, "status", job, "--json"))
    assert (status["state"], status["release"], status["attempts"]) == ("RUNNING", "", 1)
    assert "by release 0.1" in newer.kinor(folder, "status", job).stdout
    assert newer.kinor(folder, "logs", job).stdout.splitlines()[0] == "attempt 1 of host 0"
    (folder / "go").touch()
    done = newer.kinor(folder, "result", job)
    assert (done.returncode, done.stdout.strip()) == (codes.OK, "{'hosts': 1, 'attempt': 1}"), done.stderr
    assert told(newer.kinor(folder, "status", job, "--json"))["state"] == "SUCCEEDED"
    reaped = newer.kinor(folder, "reap", "--json")
    assert reaped.returncode == codes.OK, reaped.stderr


def test_a_lost_host_of_its_job_is_replaced_by_this_release(
    before: Release, newer: Release, home: Path, folder: Path
) -> None:
    job = before.begin(folder)
    for process in hosts_of(home, job, 1):
        processes.send(process.pid, signal.SIGKILL)
    (folder / "go").touch()
    done = newer.kinor(folder, "result", job)
    assert (done.returncode, done.stdout.strip()) == (codes.OK, "{'hosts': 1, 'attempt': 2}"), done.stderr


def test_its_job_is_cancelled_and_what_is_left_is_reaped_by_this_release(
    before: Release, newer: Release, home: Path, folder: Path
) -> None:
    job = before.begin(folder)
    done = newer.kinor(folder, "cancel", job)
    assert done.returncode == codes.OK, done.stderr
    assert told(newer.kinor(folder, "status", job, "--json"))["state"] == "CANCELLED"
    wait_until(lambda: not hosts_of(home, job, 1), "the end of the hosts")
    assert newer.kinor(folder, "reap").returncode == codes.OK


def test_a_job_of_this_release_is_followed_by_the_one_before(
    before: Release, now: Release, home: Path, folder: Path
) -> None:
    job = now.begin(folder)
    assert told(now.kinor(folder, "status", job, "--json"))["release"] == kinetic.__version__
    assert told(before.kinor(folder, "status", job, "--json"))["state"] == "RUNNING"
    (folder / "go").touch()
    done = before.kinor(folder, "result", job)
    assert (done.returncode, done.stdout.strip()) == (codes.OK, "{'hosts': 1, 'attempt': 1}"), done.stderr


def test_of_a_job_of_the_next_wire_both_say_what_to_do_and_touch_nothing(
    before: Release, now: Release, after: Release, home: Path, folder: Path
) -> None:
    job = after.begin(folder)
    for older in (before, now):
        for words in (["status", job], ["result", job], ["logs", job]):
            done = older.kinor(folder, *words)
            assert done.returncode == codes.ENVIRONMENT, done.stdout
            assert re.search(rf"wire version {wire.WIRE + 1}.*upgrade kinetic-orchestration here", done.stderr), (
                done.stderr
            )
            assert "Traceback" not in done.stderr
        older.kinor(folder, "reap")
    assert f"by release '{kinetic.__version__}'" in done.stderr
    (folder / "go").touch()
    done = after.kinor(folder, "result", job)
    assert (done.returncode, done.stdout.strip()) == (codes.OK, "{'hosts': 1, 'attempt': 1}"), done.stderr
