"""Containers: what their first process is told, and that nothing outlives it, with pid namespaces and without."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.kubernetes.pods import container
from kinetic_orchestration.testing.kubernetes.pods.container import Container
from tests.support.waits import wait_until

# Its own session, no parent, another name, no environment: nothing by which one could find it.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["quiet", sys.argv[1]], {})
    os._exit(0)
os.wait()
print("up", flush=True)
"""
STAYS = f"{DAEMON}time.sleep(600)"
PARENT = """
import os, sys, time
from pathlib import Path
from kinetic_orchestration.testing.kubernetes.pods.container import Container
folder = Path(sys.argv[1])
Container([sys.executable, "-c", *sys.argv[3:]], dict(os.environ), folder, folder / "log", isolate=sys.argv[2] == "True")
time.sleep(600)
"""

Start = Callable[..., Container]


@pytest.fixture(params=["namespace", "session"])
def isolate(request: pytest.FixtureRequest) -> bool:
    """True with pid namespaces, False as on a machine that permits none."""
    if request.param == "namespace" and not container._has_namespaces():
        pytest.skip("this machine permits no pid namespace")
    return str(request.param) == "namespace"


@pytest.fixture
def start(tmp_path: Path, isolate: bool) -> Start:
    def start(*command: str) -> Container:
        return Container(command, {"PATH": "/usr/bin:/bin"}, tmp_path, tmp_path / "log", isolate=isolate)

    return start


@pytest.mark.parametrize(
    ("script", "end", "code"), [(DAEMON, None, 0), (STAYS, Container.kill, 137), (STAYS, Container.close, 137)]
)
def test_nothing_outlives_a_container(
    start: Start, tmp_path: Path, script: str, end: Callable[[Container], None] | None, code: int
) -> None:
    """However it ends, and wherever in the list of processes its programs have gone."""
    seconds = f"600.{time.time_ns()}"
    one = start(sys.executable, "-c", script, seconds)
    wait_until(lambda: "up\n" in _read(tmp_path / "log"), "its daemon is up", within=20)
    if end is not None:
        end(one)
    wait_until(lambda: one.ended() is not None, "it ends", within=20)
    assert one.ended() == code
    assert _sleepers(seconds) == []


def test_nothing_outlives_the_process_that_started_a_container(isolate: bool, tmp_path: Path) -> None:
    seconds = f"600.{time.time_ns()}"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), str(isolate), STAYS, seconds])
    wait_until(lambda: len(_sleepers(seconds)) == 1, lambda: _read(tmp_path / "log"), within=20)
    parent.kill()
    parent.wait()
    wait_until(lambda: not _sleepers(seconds), "its daemon ends", within=20)


def test_a_warning_that_comes_before_its_process_is_no_end(start: Start, tmp_path: Path) -> None:
    """Process 1 of a namespace does not hear it; without one it may end of it."""
    for pause in (0.0, 0.005, 0.01, 0.02):
        one = start("sh", "-c", "trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done")
        time.sleep(pause)
        one.terminate()
        time.sleep(0.3)
        assert one.ended() in (None, 3, 143)
        one.close()
    one = start("sh", "-c", "trap 'exit 3' TERM; echo listens; while :; do sleep 0.01; done")
    wait_until(lambda: "listens" in _read(tmp_path / "log"), "it listens", within=20)
    one.terminate()
    assert wait_until(one.ended, "it ends", within=20) == 3


def test_a_signal_to_its_own_group_ends_no_other_process(start: Start) -> None:
    assert wait_until(start("sh", "-c", "trap 'exit 3' TERM; kill 0; sleep 600").ended, "it ends", within=20) == 3


def test_a_pipe_that_nobody_reads_ends_its_writer(start: Start, tmp_path: Path) -> None:
    one = start("bash", "-c", "yes | head -1 >/dev/null; echo ${PIPESTATUS[0]}")
    wait_until(lambda: one.ended() is not None, "it ends", within=20)
    assert _read(tmp_path / "log") == "141\n"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _sleepers(seconds: str) -> list[int]:
    """The processes that sleep for so long, by their command lines."""
    wanted = f"quiet\0{seconds}\0".encode()
    found = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _bytes(path) == wanted]
    return [int(pid) for pid in found if (it := processes.find(int(pid))) is not None and not it.zombie]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
