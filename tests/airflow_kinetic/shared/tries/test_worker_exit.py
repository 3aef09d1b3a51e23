"""The end of a task's process, as Airflow's supervisor hears of it."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_kinetic.shared.tries import worker_exit

ROUNDS = 10

# What a task does as its last: it leaves, with its sockets, at any moment of its end.
TASK = """
import json, os
from airflow_kinetic.shared.tries import worker_exit
os.write(2, json.dumps(worker_exit.announce_exit()).encode() + b"\\n")
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone tells when another process has ended")
def test_a_supervisor_that_waits_for_its_tasks_output_alone_finds_that_the_task_has_ended() -> None:
    for _ in range(ROUNDS):
        ours, theirs = socket.socketpair()
        with ours, subprocess.Popen([sys.executable, "-c", TASK], stdout=theirs, stderr=subprocess.PIPE) as task:
            theirs.close()
            assert task.stderr is not None
            told = json.loads(task.stderr.readline())
            assert told is True
            assert select.select([ours], [], [], 60.0)[0], "it hears of it by the output that is closed"
            assert ours.recv(1) == b""
            assert os.waitpid(task.pid, os.WNOHANG)[0] == task.pid, "it does not have to look again"
            task.returncode = 0


def test_without_a_supervisor_of_its_own_nothing_is_done_and_nothing_is_known() -> None:
    for output in (subprocess.PIPE, subprocess.DEVNULL):
        done = subprocess.run([sys.executable, "-c", TASK], stdout=output, stderr=subprocess.PIPE, timeout=60)
        assert json.loads(done.stderr) is False
    ours, theirs = socket.socketpair()
    between = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {TASK!r}]))"
    with ours, theirs:  # as `sudo` stands between for a user of the task's own
        done = subprocess.run([sys.executable, "-c", between], stdout=theirs, stderr=subprocess.PIPE, timeout=60)
    assert json.loads(done.stderr) is False


@pytest.mark.parametrize("first", ["airflow", "python3.12", "celery"])
def test_nothing_is_done_where_the_first_process_waits_for_nobody(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container without an init: whatever outlives its parent there is never buried."""
    (tmp_path / "comm").write_text(f"{first}\n")
    monkeypatch.setattr(worker_exit, "_FIRST", tmp_path / "comm")
    monkeypatch.setattr(worker_exit, "_other_end", os.getppid)
    assert worker_exit.announce_exit() is False
