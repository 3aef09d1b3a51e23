"""A platform of another package keeps the contract of backends, and users name it as they name ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing import BackendContract
from tests.support.faults import Tree, guard_in, kill_host
from tests.support.leftovers import processes_of
from tests.support.other_package.installed import Site, site
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(3)]

PROGRAM = """\
import os
import sys

import kinetic_orchestration as kinetic
from kinetic_subprocesses import Subprocesses


@kinetic.run(accelerator="v5e-16", backend="subprocesses", cloud=Subprocesses(nice=int(os.environ.get("NICE", "5"))))
def told():
    return os.getpriority(os.PRIO_PROCESS, 0), kinetic.current().host_count


if __name__ == "__main__":
    print("value", *told())
"""


@pytest.fixture
def installed(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with site(tmp_path / "site", monkeypatch) as found:
        found.install_subprocesses()
        yield found


class TestSubprocessBackend(BackendContract):
    backend = "subprocesses"
    test_hosts_that_cost_money_end_at_their_deadline_whatever_they_do = None  # these cost nothing

    @pytest.fixture
    def environment(self, installed: Site, home: Path, tmp_path: Path) -> Mapping[str, str]:
        self.home, self.other_home = home, tmp_path / "another home"
        return {"KINETIC_STORE": str(tmp_path / "store")}

    def neighbour(self) -> Mapping[str, str]:
        return {"KINETIC_HOME": str(self.other_home)}

    def kill_host(self, placement: Mapping[str, Any], host: int) -> None:
        lock = Path(placement["run"]) / f"host-{host}.json"
        guard = wait_until(lambda: guard_in(lock), "the guard of the host")
        agent, program, *_ = (process.pid for process in processes.descendants(guard))
        kill_host(Tree(guard, agent, program))

    def left(self) -> Sequence[str]:
        folders = [str(path) for path in (self.home / "subprocesses").glob("*-*")]
        return [*map(str, processes_of(self.home)), *folders]


def kinor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kinetic_orchestration.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def program(installed: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KINETIC_STORE", str(tmp_path / "store"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "told.py").write_text(PROGRAM)
    return folder / "told.py"


def test_a_job_runs_on_it_with_its_own_options(program: Path) -> None:
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=170)
    assert (done.returncode, done.stdout.split()[-3:]) == (0, ["value", "5", "4"]), done.stderr


def test_plan_and_doctor_know_it(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = kinor("plan", f"{program}:told")
    assert planned.returncode == 0, planned.stderr
    assert "backend      subprocesses" in planned.stdout
    assert "4 × nice -n 5 python" in planned.stdout
    monkeypatch.setenv("KINETIC_BACKEND", "subprocesses")
    examined = kinor("doctor")
    assert "subprocesses, a backend of kinetic_subprocesses 1.0 (kinetic_subprocesses:PLATFORM)" in examined.stdout
    monkeypatch.setenv("NICE", "20")
    refused = kinor("plan", f"{program}:told")
    assert refused.returncode != 0
    assert "nice is a number from 0 to 19, not 20" in refused.stderr
