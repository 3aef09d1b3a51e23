"""The end of a task's process, as Airflow's supervisor hears of it."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time

import pytest

from airflow_kinetic import leg

ROUNDS = 10

# What a task does as its last: it leaves, with its sockets, at any moment of its end.
TASK = """
import json, os
from airflow_kinetic import leg
os.write(2, json.dumps(leg.ends_soon()).encode() + b"\\n")
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
            assert told["pid"] == task.pid
            assert leg.is_known(told)
            assert select.select([ours], [], [], 60.0)[0], "it hears of it by the output that is closed"
            assert ours.recv(1) == b""
            assert not leg.is_over(told), "it has ended, and nobody has heard of that"
            assert os.waitpid(task.pid, os.WNOHANG)[0] == task.pid, "it does not have to look again"
            task.returncode = 0
            assert leg.is_over(told)


def test_without_a_supervisor_of_its_own_nothing_is_done_and_nothing_is_known() -> None:
    for output in (subprocess.PIPE, subprocess.DEVNULL):
        done = subprocess.run([sys.executable, "-c", TASK], stdout=output, stderr=subprocess.PIPE, timeout=60)
        assert json.loads(done.stderr) is None
    ours, theirs = socket.socketpair()
    between = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {TASK!r}]))"
    with ours, theirs:  # as `sudo` stands between for a user of the task's own
        done = subprocess.run([sys.executable, "-c", between], stdout=theirs, stderr=subprocess.PIPE, timeout=60)
    assert json.loads(done.stderr) is None


def test_of_another_machine_or_container_nothing_is_known() -> None:
    assert not leg.is_known(None)
    assert not leg.is_known({"here": "another boot pid:[1]", "pid": os.getpid()})
    here = {"here": leg._here(), "pid": os.getpid()}
    assert leg.is_known(here) is bool(leg._here())
    assert not leg.is_over(here)
    ended = subprocess.Popen(["true"])
    deadline = time.monotonic() + 60
    while ended.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert leg.is_over({"here": leg._here(), "pid": ended.pid})
