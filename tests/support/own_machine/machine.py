"""A machine of a test's own, as far as a kernel gives one away: processes, mounts, shared memory, network, host name and
control groups in namespaces, and a disk in memory. A program in it is root, and can touch nothing of the machine below:
of that it sees Python, the system's libraries and its tools, all mounted read-only, and this package. All of it is gone
with its first process.

What runs as on a VM's own root is tested here: `KINETIC_ROOT` is not set.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration

HERE = Path(__file__).parent
NAMESPACES = ("--mount", "--pid", "--ipc", "--net", "--uts", "--fork", "--kill-child", "--propagation", "private")
WITHIN = 120.0


def play(folder: Path, *programs: str, before: str = "", files: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run jobs one after the other on a new machine, with the cleaning after each of them. After a doubt all that the
    machine has is remembered anew, so that the next one is judged alone.

    Args:
        folder: An empty one, at which the machine's disk is mounted where nobody else sees it.
        programs: The Python source of each job's program. What it prints is its answer.
        before: Python source that runs as part of the system, before the first job.
        files: What the disk has, beside a system's folders.

    Returns:
        `why`: for each cleaning why the machine is in doubt, "" if it is clean. `said`: what each program printed.
        `left`: the processes after the last cleaning that are not the machine's own. `armed`: whether its deletion is.
        `groups`: whether it has control groups of its own.
    """
    if os.geteuid() != 0:
        pytest.skip("only root has a machine of its own")
    if not _permits():
        pytest.skip("this machine permits no pid namespaces")
    order = {
        "disk": str(folder), "python": sys.base_prefix, "name": f"python{sys.version_info[0]}.{sys.version_info[1]}",
        "libraries": f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "code": str(Path(*kinetic_orchestration.__path__)),
        "here": str(HERE), "programs": programs, "before": before, "files": files, "group": "",
    }  # fmt: skip
    with _group() as order["group"]:
        command = ["unshare", *NAMESPACES, sys.executable, "-I", str(HERE / "first_process.py"), json.dumps(order)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WITHIN, check=False, env={"LANG": "C.UTF-8"}
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "groups": bool(order["group"])}


def _permits() -> bool:
    if shutil.which("unshare") is None:
        return False
    return not subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True, timeout=60, check=False).returncode


@contextlib.contextmanager
def _group() -> Any:
    """Yield a control group of this test's own, "" where there is none to be had. What is below goes by rmdir alone,
    which leaves all that a process is in."""
    rows = map(str.split, Path("/proc/self/mounts").read_text("utf-8").splitlines())
    tops = [Path(row[1]) for row in rows if row[2] == "cgroup2"]
    group = None if not tops else tops[0] / f"kinetic-test-{os.getpid()}"
    try:
        if group is not None:
            group.mkdir()
    except OSError:
        group = None
    try:
        yield "" if group is None else str(group)
    finally:
        if group is not None:
            for inner, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(inner)
