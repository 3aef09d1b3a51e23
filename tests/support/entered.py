"""What enters a running host as a user does: the commands, as processes, and a program of a job that serves a page."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

KINOR = [sys.executable, "-m", "kinetic_orchestration.cli"]
SECONDS = 120.0


class Shown(NamedTuple):
    code: int
    out: str
    err: str


def kinor(*words: str, given: str = "", **environ: str) -> Shown:
    """Run a command of ours, whose input is `given`."""
    done = subprocess.run(
        [*KINOR, *words], input=given, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **environ}
    )
    return Shown(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def forwarded(*words: str, ends: signal.Signals = signal.SIGINT) -> Iterator[dict[str, object]]:
    """Within the block, a command leads a port here; yield what it says in JSON. It is ended by the signal `ends`."""
    process = subprocess.Popen([*KINOR, *words, "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"it ended with {process.wait(SECONDS)}"
        yield json.loads(line)
    finally:
        process.send_signal(ends)
        try:
            assert process.wait(SECONDS) == (-ends if ends is signal.SIGKILL else 130)
        finally:
            process.kill()
            process.communicate()


def page(address: object, path: str = "") -> bytes:
    """Return what a server at that address says, which may take a moment to listen."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}/{path}", timeout=SECONDS) as answer:
                found: bytes = answer.read()
                return found
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def program_of(folder: Path) -> Any:
    """Return the module `served_jobs` of a project that has nothing else."""
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    copy = folder / "served_jobs.py"
    shutil.copy(Path(__file__).with_name("served_jobs.py"), copy)
    spec = importlib.util.spec_from_file_location("served_jobs", copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["served_jobs"] = module
    spec.loader.exec_module(module)
    return module
