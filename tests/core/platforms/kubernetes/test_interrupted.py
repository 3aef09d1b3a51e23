"""Ctrl-C while a login program of a kubeconfig hangs: the command ends at once, and so does all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support.waits import wait_until

AT_ONCE = 10.0  # on a busy machine, and far less than the minute that such a program may take

# In a session of its own, it does not hear what a terminal sends; nor does what it starts.
HANGS = """#!/bin/sh
trap '' INT
sleep 600 &
echo $$ $! >> "$FOLDER/started"
sleep 600
"""
PROGRAM = """
import subprocess
import sys
import time

import kinetic_orchestration as kinetic

if sys.argv[1] == "busy":  # on a machine that is, a program may run before its caller knows that it does
    begin = subprocess.Popen.__init__

    def begin_slowly(*args, **options):
        begin(*args, **options)
        time.sleep(2)

    subprocess.Popen.__init__ = begin_slowly


@kinetic.run(accelerator="cpu", backend="kubernetes", cloud=kinetic.Kubernetes(clusters=sys.argv[2:]))
def answer():
    return 42


answer()
"""


@pytest.fixture
def environ(home: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process whose kubeconfig has two clusters and one login program, which hangs."""
    (program := tmp_path / "logs-in").write_text(HANGS, encoding="utf-8")
    program.chmod(0o700)
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(program),
            "interactiveMode": "IfAvailable",
        }
    }
    names = ("one", "two")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in names],
        "clusters": [{"name": name, "cluster": {"server": "https://127.0.0.1:9"}} for name in names],
        "users": [{"name": "me", "user": user}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    with StorageServer() as storage:
        yield {
            **os.environ,
            "FOLDER": str(tmp_path),
            "KUBECONFIG": str(tmp_path / "kubeconfig"),
            "KINETIC_BACKEND": "kubernetes",
            "KINETIC_STORE": f"{storage.make_bucket('bucket')}/kinetic",
            "KINETIC_DEPLOYMENT": "prod",
            "KINETIC_SIGNING_KEY": "a-signing-key-of-the-tests",
            "STORAGE_EMULATOR_HOST": storage.url,
        }
    for session, _ in started(tmp_path):  # of a test that has failed
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)


@pytest.mark.parametrize(
    ("words", "logins"),
    [
        pytest.param(["program.py", "idle", "one"], 1, id="a launch in one cluster"),
        pytest.param(["program.py", "idle", "one", "two"], 2, id="a launch in one of two clusters"),
        pytest.param(["program.py", "busy", "one"], 1, id="a launch on a busy machine"),
        pytest.param(["-m", "kinetic_orchestration.cli", "doctor"], 1, id="doctor"),
    ],
)
def test_ctrl_c_ends_a_login_program_that_hangs_and_the_command_that_waits_for_it(
    environ: dict[str, str], tmp_path: Path, words: list[str], logins: int
) -> None:
    command = subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_until(lambda: len(started(tmp_path)) == logins or command.poll() is not None, "it logs in", within=60)
        assert command.poll() is None, command.communicate()[0]
        began = time.monotonic()
        command.send_signal(signal.SIGINT)
        said, _ = command.communicate(timeout=100)
    finally:
        command.kill()
    assert time.monotonic() - began < AT_ONCE
    assert command.returncode in (-signal.SIGINT, 130), said
    pids = [pid for both in started(tmp_path) for pid in both]
    wait_until(lambda: not any(map(lives, pids)), "its login programs are gone", within=10)
    assert len(started(tmp_path)) == logins, "another one was started"


def started(folder: Path) -> list[list[int]]:
    """The process ids of each login program, and of what it started."""
    path = folder / "started"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [[int(pid) for pid in line.split()] for line in lines if len(line.split()) == 2]


def lives(pid: int) -> bool:
    found = processes.find(pid)
    return found is not None and not found.zombie
