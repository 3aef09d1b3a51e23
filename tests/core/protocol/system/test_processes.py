"""The descent of processes, and their termination: with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.protocol.system import processes
from tests.support.waits import wait_until

SITE = Path(processes.__file__).parents[processes.__name__.count(".")]
LINUX = sys.platform.startswith("linux")

# Everything that a program may leave behind: a child, a grandchild in a session of its own, and one whose parent
# is gone; each writes its id into the folder. SIGTERM impresses none of them.
TREE = """\
import os, signal, sys, time

def note(name):
    with open(sys.argv[1] + "/" + name + ".tmp", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, sys.argv[1] + "/" + name)
    time.sleep(120)

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        note("session")
    note("child")
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        note("orphan")
    os._exit(0)
os.waitpid(-1, 0)
note("top")
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "120"], env={**os.environ, "A_MARK": f"of {os.getpid()} alone"})
    yield process
    process.kill()
    process.wait()


def agent(tmp_path: Path, then: str) -> dict[str, int]:
    """A process that adopts orphans, starts the tree, waits for all of it, and then acts; the ids of the tree."""
    program = (
        f"import os, subprocess, sys, time\nsys.path.insert(0, {str(SITE)!r})\n"
        "from kinetic_orchestration.protocol.system import processes\n"
        "processes.adopt_orphans()\n"
        f"folder = {str(tmp_path)!r}\n"
        f"subprocess.Popen([sys.executable, '-S', '-c', {TREE!r}, folder])\n"
        "while len([name for name in os.listdir(folder) if '.' not in name]) < 4: time.sleep(0.005)\n"
        f"{then}\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, timeout=150, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return {path.name: int(path.read_text()) for path in tmp_path.iterdir()}


def test_all_descendants_end_whatever_they_did_to_hide(tmp_path: Path) -> None:
    found = agent(
        tmp_path,
        "assert processes.end_descendants(os.getpid(), 50.0) == []\nassert processes.descendants(os.getpid()) == []",
    )
    assert set(found) == {"top", "child", "session", "orphan"}
    ends = {name: processes.find(pid) for name, pid in found.items()}
    assert [name for name, process in ends.items() if process is not None and not process.zombie] == []


# Four chains of processes, each of which bears the next one and ends: few of them are there for as long as a look takes.
CHAINS = "next() { sleep 0.002; next & }; next & next & next & next &"


@pytest.mark.skipif(not LINUX, reason="only Linux lets a process adopt orphans")
def test_what_is_being_born_all_the_time_ends_too(tmp_path: Path) -> None:
    mark = f"A_MARK=of {tmp_path}"
    program = (
        f"import os, subprocess, sys, time\nsys.path.insert(0, {str(SITE)!r})\n"
        "from kinetic_orchestration.protocol.system import processes\n"
        "processes.adopt_orphans()\n"
        "for _ in range(10):\n"
        f"    subprocess.run(['/bin/sh', '-c', {CHAINS!r}], check=True)\n"
        "    time.sleep(0.05)\n"
        "    assert processes.end_descendants(os.getpid(), 50.0) == []\n"
    )
    environ = {**os.environ, **dict([mark.split("=", 1)])}
    done = subprocess.run([sys.executable, "-S", "-c", program], env=environ, capture_output=True, timeout=150)
    left = processes.marked(mark)
    for process in left:
        processes.send(process.pid, signal.SIGKILL)
    assert (done.returncode, done.stderr.decode(), left) == (0, "", [])


@pytest.mark.skipif(not LINUX, reason="only Linux tells a child of its parent's death")
def test_a_program_that_follows_its_parent_does_not_survive_it(tmp_path: Path) -> None:
    program = (
        f"import os, sys, time\nsys.path.insert(0, {str(SITE)!r})\n"
        "from kinetic_orchestration.protocol.system import processes\n"
        "parent = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    processes.die_with_parent()\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(120)\n"
        "time.sleep(120)\n"
    )
    parent = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: (found := processes.find(child)) is None or found.zombie, "the child's end")


def test_a_process_is_known_by_its_id_and_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    found = processes.find(sleeper.pid)
    assert found is not None
    assert (found.pid, found.parent, found.zombie) == (sleeper.pid, os.getpid(), False)
    assert processes.alive(found.pid, found.started)
    assert not processes.alive(found.pid, "another start"), "the id was given to somebody else"
    assert sleeper.pid in [process.pid for process in processes.descendants(os.getpid())]


def test_a_zombie_is_found_but_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    before = processes.find(sleeper.pid)
    assert before is not None
    sleeper.kill()
    wait_until(lambda: (found := processes.find(sleeper.pid)) is not None and found.zombie, "the zombie")
    assert not processes.alive(sleeper.pid, before.started)
    assert sleeper.pid not in [process.pid for process in processes.descendants(os.getpid())]
    sleeper.wait()
    assert processes.find(sleeper.pid) is None


def test_a_mark_in_the_environment_finds_a_process_whoever_its_parent_is(sleeper: subprocess.Popen[bytes]) -> None:
    mark = f"A_MARK=of {os.getpid()} alone"  # others may run these tests now
    wait_until(lambda: processes.marked(mark), "the environment of the new program")
    assert [process.pid for process in processes.marked(mark)] == [sleeper.pid]
    assert processes.marked(mark.removesuffix(" alone")) == []


@pytest.mark.skipif(not LINUX, reason="elsewhere ps tells")
def test_a_mark_is_seen_of_a_process_that_is_looked_at_in_the_middle_of_its_exec() -> None:
    """`Popen` returns when an exec is sure to go through: a third of them show no environment yet."""
    for number in range(60):
        with subprocess.Popen(["sleep", "600"], env={"KINETIC_TEST": str(number)}) as begun:
            try:
                assert processes.environ_of(begun.pid) == [f"KINETIC_TEST={number}".encode(), b""]
            finally:
                begun.kill()


def test_a_signal_to_nobody_is_told_and_not_an_error(sleeper: subprocess.Popen[bytes]) -> None:
    assert processes.send(sleeper.pid, signal.SIGCONT)
    sleeper.kill()
    sleeper.wait()
    assert not processes.send(sleeper.pid, signal.SIGCONT)


def test_a_machine_is_told_from_its_containers_and_from_its_next_boot() -> None:
    assert processes.machine() == processes.machine()
    if LINUX:
        boot, namespace = processes.machine().split("/")
        assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert namespace.isdigit()
