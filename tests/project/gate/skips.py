"""Valid reasons to skip a test: properties of the machine, which are checked each time, so that none becomes a habit.

`python -m tests.project.gate.skips FILE` names what was skipped, which `SKIPPED_TESTS=FILE` had pytest write down, and fails if
a reason is not known here, or is not so.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from tests.support import go_programs
from tests.support.airflow_releases import environment
from tests.support.interpreters import OLDEST, interpreter
from tests.support.slurm import cluster

FILE = "SKIPPED_TESTS"
ROOT = Path(__file__).resolve().parents[3]


class Skip(NamedTuple):
    test: str
    reason: str


class Known(NamedTuple):
    reason: str  # a pattern
    is_so: Callable[[], bool]


def _permits(*command: str, said: bytes = b"") -> bool:
    if shutil.which(command[0]) is None:
        return False
    try:
        return not subprocess.run(command, input=said, capture_output=True, timeout=60).returncode
    except subprocess.TimeoutExpired:  # an index may not answer
        return False


def _is_root() -> bool:
    return os.geteuid() == 0


def _on_linux() -> bool:
    return sys.platform.startswith("linux")


# 0 if what a process has started may trace it.
TRACES = """
import ctypes, os, sys
libc, parent = ctypes.CDLL(None), os.getpid()
libc.prctl(0x59616D61, -1, 0, 0, 0)  # anybody may trace it
child = os.fork()
if child == 0:
    os._exit(1 if libc.ptrace(0x4206, parent, 0, 0) else 0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

# A file system as tests/core/platforms/local/test_store.py makes it, which goes with the namespace.
LOOP = """
set -e
image=$(mktemp)
trap 'rm -f "$image"' EXIT
head -c 2000000 /dev/zero >"$image"
mkfs.ext2 -q -I 128 "$image"
mount -o loop "$image" /mnt
umount /mnt
"""

UV = """
import os, sys
from kinetic_orchestration.packaging.requirements.indexes import uv_settings
from uv import find_uv_bin
command = ["uv", "pip", "compile", "-q", "--no-header", *sys.argv[1:], "-"]
os.execve(find_uv_bin(), command, os.environ | uv_settings(os.environ))
"""


def _no_index_has(requirement: str) -> Callable[[], bool]:
    """It has no such thing, or does not answer: by uv, from where pip would take it."""
    return lambda: not _permits(sys.executable, "-c", UV, "--no-deps", said=requirement.encode())


def _no_newest_dagster() -> bool:
    """None that goes with all else that is pinned."""
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as others:
        others.write("\n".join(line for line in pinned if not line.startswith("dagster")))
        others.flush()
        project = str(ROOT / "pyproject.toml")
        return not _permits(sys.executable, "-c", UV, "-c", others.name, project, said=b"dagster")


def _no_airflow(release: str) -> Callable[[], bool]:
    """None of its time, or no Python for it."""
    needed = "\n".join(environment.needed(release)).encode()
    versions = ("--python-version", environment.PYTHON, "-c", str(environment.CONSTRAINTS[release]))
    words = (*versions, str(ROOT / "pyproject.toml"))
    return lambda: (
        interpreter(environment.PYTHON) is None or not _permits(sys.executable, "-c", UV, *words, said=needed)
    )


def _no_chromium() -> bool:
    from tests.dagster_kinetic.live.browser import chromium

    return not chromium()


def _tells_of_kills() -> bool:
    """The installed Airflow is 3.3 or later."""
    return Version(importlib.metadata.version("apache-airflow")) >= Version("3.3")


def _without(module: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(module) is None


def _no_python(version: str) -> Callable[[], bool]:
    return lambda: interpreter(version) is None


KNOWN = (
    *(Known(rf"this machine has no Python {re.escape(one)}", _no_python(one)) for one in ("2.7", "3.8", "3.12", "3.13")),
    Known("this machine has no other Python", lambda: not any(map(interpreter, ("3.9", "3.10", "3.12", "3.13")))),
    Known("root may write anywhere", _is_root),
    Known("only root .*", lambda: not _is_root()),
    Known("no mount namespaces here", lambda: not _permits("unshare", "-rm", "true")),
    Known("this machine permits no pid namespaces?", lambda: not _permits("unshare", "-r", "--pid", "-f", "--mount-proc", "true")),
    Known("no control groups here", lambda: " cgroup2 rw" not in Path("/proc/self/mounts").read_text("utf-8")),
    Known("no such file system can be mounted here.*", lambda: not _permits("unshare", "-m", "sh", "-c", LOOP)),
    Known(
        "no small file system can be mounted here.*",
        lambda: not _permits("unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"),
    ),
    Known("nobody may trace another process here", lambda: not _permits(sys.executable, "-c", TRACES)),
    Known("measured in /proc", lambda: not Path("/proc/self/status").exists()),
    Known("ptrace|(only Linux|cores can be taken away on Linux only).*", lambda: not _on_linux()),
    Known("this machine has no terraform", lambda: shutil.which("terraform") is None),
    Known("git is the judge", lambda: shutil.which("git") is None),
    Known("OpenSSH's server is not installed.*", lambda: not Path("/usr/sbin/sshd").exists()),
    Known(go_programs.NONE, lambda: not go_programs.has_go()),
    Known("Slurm is not installed", lambda: cluster.missing() != ""),
    Known("slurmd is started by root alone", lambda: not _is_root()),
    Known("there is no C compiler", lambda: shutil.which("cc") is None),
    Known("there is no chromium.*", _no_chromium),
    Known("keras is not installed", _without("keras")),
    Known("the package kubernetes is not installed", _without("kubernetes")),  # of the extra `gke`
    Known("this Airflow tells a trigger that its task was killed", _tells_of_kills),
    Known("keras-kinetic is not installed", _without("kinetic")),  # whose versions the other extras exclude
    Known("the newest Dagster cannot be installed from here", _no_newest_dagster),
    *(Known(rf"Airflow {re.escape(one)} cannot be installed from here.*", _no_airflow(one)) for one in environment.RELEASES),
    Known(r"torch 2\.13\.0 cannot be had here.*", _no_index_has("torch==2.13.0")),
)  # fmt: skip


def trouble(skip: Skip) -> str:
    """The error in the reason, or ""."""
    if skip.reason == f"this machine has no Python {OLDEST}":
        return f"hosts have it, and so must a machine that judges a change: pyenv install {OLDEST}"
    known = next((one for one in KNOWN if re.fullmatch(one.reason, skip.reason, re.S)), None)
    if known is None:
        return "nobody knows this reason: mend what it is about, or add it to tests/project/gate/skips.py"
    return (
        "" if _is_so(known) else "this machine is not so (any more): mend the test, or how it looks for what it needs"
    )


@functools.cache
def _is_so(known: Known) -> bool:
    return known.is_so()


def write_down(skips: list[Skip]) -> None:
    """Write the skipped tests down for the gate, if it asked."""
    if path := os.environ.get(FILE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(skip) + "\n" for skip in skips)


def main() -> int:
    path = Path(sys.argv[1])
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    bad = 0
    for skip in sorted({Skip(*json.loads(line)) for line in lines}):
        why = trouble(skip)
        bad += bool(why)
        print(f"skipped: {skip.test}: {skip.reason.strip()}" + (f"\n  {why}" if why else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
