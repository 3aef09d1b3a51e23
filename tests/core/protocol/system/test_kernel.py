"""Tests what macOS says, as its programs write it, and the way that macOS takes, on Linux.

`vm_stat` was recorded on a Mac with 16 KiB pages, in a public log of a model server. `ps` is written as macOS's manual says
(ps(1), `lstart` in the C locale, minutes for `time`), and as those who parse it there have it: nobody here has a Mac.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.protocol.system import kernel, processes
from kinetic_orchestration.protocol.system.kernel import Process
from tests.support.pages import ROOT
from tests.support.waits import wait_until

LISTED = """\
    1     0 Ss   Mon Nov 24 08:12:01 2025
  341     1 Ss   Mon Nov 24 08:12:20 2025
 5521   341 S+   Tue Dec  2 09:01:07 2025
 5530  5521 Z    Tue Dec  2 09:01:08 2025
 5531  5521 R<+  Tue Dec  2 09:01:08 2025
  PID  PPID STAT STARTED
"""
USED = """\
    1     0   12:34.56  14080
 5521   341    0:01.25  20480
 5530  5521    0:00.00      0
 5531  5521  100:00.50   1024
 5540     1       -        12
"""
USED_ON_LINUX = "      1       0  1-02:03:04  13884\n    102       1    00:00:07   1024\n"
ENVIRONMENTS = """\
 5521 /Users/a/.venv/bin/python -m host HOME=/Users/a KINETIC_PLACEMENT=/Users/a/run/job-a-1 SHELL=/bin/zsh
 5530 (python3.11)
 5531 python work.py KINETIC_PLACEMENT=/Users/a/run/job-a-1
 5532 python work.py KINETIC_PLACEMENT=/Users/a/run/job-a-10 A=B
 5533 grep NOT_KINETIC_PLACEMENT=/Users/a/run/job-a-1
"""
VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                                    10069.
Pages active:                                 432859.
Pages inactive:                               426177.
Pages speculative:                              5899.
Pages throttled:                                   0.
Pages wired down:                             171481.
Pages purgeable:                               11278.
"Translation faults":                     1935466161.
Pages copy-on-write:                        84466299.
"""


def test_processes_as_macos_lists_them() -> None:
    found = kernel.processes_of(LISTED)
    assert set(found) == {1, 341, 5521, 5530, 5531}
    assert found[5521] == Process(5521, 341, "Tue Dec 2 09:01:07 2025", False)
    assert found[5530].zombie and not found[5531].zombie


def test_a_mark_is_a_whole_word_of_an_environment() -> None:
    assert kernel.marked_of(ENVIRONMENTS, "KINETIC_PLACEMENT=/Users/a/run/job-a-1") == [5521, 5531]
    assert kernel.marked_of(ENVIRONMENTS, "KINETIC_PLACEMENT=/Users/a/run/job-a-1", "SHELL=/bin/zsh") == [5521]


def test_the_use_of_processors_and_memory() -> None:
    assert list(kernel.uses_of(USED)) == [
        (1, 0, 754.56, 14080 << 10), (5521, 341, 1.25, 20480 << 10), (5530, 5521, 0.0, 0), (5531, 5521, 6000.5, 1 << 20),
    ]  # fmt: skip
    assert [lasted for _, _, lasted, _ in kernel.uses_of(USED_ON_LINUX)] == [93784.0, 7.0]


def test_memory_that_is_free_or_given_up_when_wanted() -> None:
    assert kernel.free_of(VM_STAT) == 16384 * (10069 + 426177 + 5899 + 11278)
    assert kernel.free_of("") == 0


def test_what_this_system_has_is_found_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests a real process and a real zombie; a start differs by its clock, and is the same each time."""
    mark = f"A_MARK=of-{os.getpid()}"
    with subprocess.Popen(["sleep", "120"], env={**os.environ, **dict([mark.split("=")])}) as process:
        try:
            wait_until(lambda: kernel.marked(mark) == [process.pid], "the environment of the new program")
            for linux in (kernel.LINUX, False):
                monkeypatch.setattr(kernel, "LINUX", linux)
                found = kernel.find(process.pid)
                assert found is not None and found == kernel.listing()[process.pid] == kernel.find(process.pid)
                assert (found.parent, found.zombie) == (os.getpid(), False)
                assert process.pid in kernel.marked(mark)
                assert kernel.use_of(os.getpid(), 0)[1] > kernel.use_of(os.getpid(), process.pid)[1] > -1
                assert kernel.own_memory() > 1 << 20
            process.send_signal(signal.SIGKILL)
            wait_until(lambda: (one := kernel.find(process.pid)) is not None and one.zombie, "the zombie")
        finally:
            process.kill()
    assert kernel.find(process.pid) is None
    assert (kernel.boot(), kernel.file_system("/"), kernel.environ_of(os.getpid())) == ("", "", [])
    assert (kernel.catches(os.getpid(), signal.SIGINT), kernel.in_user_namespace(), kernel.call.__wrapped__("fallocate")) == (None, False, None)  # fmt: skip
    assert list(kernel.written_files()) == []


@kinetic.run(accelerator="cpu", retry=kinetic.Retry(infra=0))
def leaves_children(folder: str) -> str:
    """Leave a child and an orphan in a session of its own, which SIGTERM does not impress."""
    sleep = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); name = sys.argv[1]\n"
        "open(name + '.new', 'w').write(str(os.getpid())); os.rename(name + '.new', name); time.sleep(120)"
    )
    subprocess.Popen([sys.executable, "-c", sleep, f"{folder}/pid-child"])
    subprocess.Popen([sys.executable, "-c", sleep, f"{folder}/pid-orphan"], start_new_session=True)
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    return "done"


def gone(folder: Path) -> bool:
    pids = [int(path.read_text()) for path in folder.glob("pid-*")]
    return all((found := kernel.find(pid)) is None or found.zombie for pid in pids)


@pytest.fixture
def portable(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Hosts take the way of macOS. Whatever a test comes to, the processes that it started end."""
    monkeypatch.setenv("HOST_KERNEL", "portable")
    yield tmp_path
    for path in tmp_path.glob("*/pid-*"):
        processes.send(int(path.read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_a_job_ends_with_all_its_processes_without_proc_and_without_a_word_of_a_parents_death(
    home: Path, portable: Path
) -> None:
    """The way that macOS has it: a value, a cancel, and an agent that is killed. Nobody but the hosts ends anything."""
    for end in ("value", "cancel", "killed"):
        (folder := portable / end).mkdir()
        job = leaves_children.run_async(str(folder))
        wait_until(lambda: len(list(folder.glob("pid-*"))) == 2, "its processes")
        if end == "value":
            (folder / "go").touch()
            assert job.result(timeout=120) == "done"
        elif end == "cancel":
            job.cancel("enough")
        else:
            ours = {one.pid: one for one in processes.marked(f"KINETIC_PLACEMENT={home / 'run' / job.job_id}-1")}
            [guard] = [
                one.pid
                for one in ours.values()
                if one.parent not in ours and Path(f"/proc/{one.pid}/comm").read_text() == "kinetic-guard\n"
            ]
            [agent] = [one.pid for one in ours.values() if one.parent == guard]
            processes.send(agent, signal.SIGKILL)
        wait_until(lambda: gone(folder), f"the end of what it has left ({end})")


ASKS = ("/proc/", "/sys/fs", "darwin", "prctl", "vm_stat")
MAY_ASK = {
    "kinetic_orchestration/protocol/system/kernel.py": "the one module",
    "kinetic_orchestration/host/machine": "machines of a cloud, which are Linux; its bootstrap has to stand alone",
    "kinetic_orchestration/testing": "the emulated cloud, on Linux x86-64",
    "kinetic_orchestration/host/start.py": "the name of a process, before anything is imported",
    "kinetic_orchestration/host/process/debugger.py": "asks whether the kernel tells who connects, and warns if not",
    "kinetic_orchestration/platforms/local/backend.py": "a container's limit, if there is such a file",
    "kinetic_orchestration/reach/opening.py": "where a program of a running host works, asked on that host",
    "airflow_kinetic/shared/tries/worker_exit.py": "Airflow's workers, where the kernel has pidfd_open",
}


def test_no_other_module_asks_which_system_this_is() -> None:
    found = set()
    for package in ("kinetic_orchestration", "dagster_kinetic", "airflow_kinetic"):
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            nodes = ast.walk(ast.parse(source)) if any(word in source for word in ASKS) else ()
            texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            if any(word in text and "\n" not in text for text in texts for word in ASKS):
                found.add(path.relative_to(ROOT).as_posix())
    assert {name for name in found if not name.startswith(tuple(MAY_ASK))} == set()
    there = [place for place in MAY_ASK if (ROOT / place).exists()]
    assert all(any(name.startswith(place) for name in found) for place in there), "a place that asks no longer"
