"""Why a test may be skipped: reasons that are true of the machine, so that none becomes a habit.

`python -m tests.skips FILE` names what was skipped, which `SKIPPED_TESTS=FILE` had pytest write down, and fails if
a reason is not known here, or is not so.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.interpreters import interpreter

FILE = "SKIPPED_TESTS"


class Skip(NamedTuple):
    test: str
    reason: str


class Known(NamedTuple):
    reason: str  # a pattern
    is_so: Callable[[], bool]


def _permits(*command: str) -> bool:
    return (
        shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True, timeout=60).returncode
    )


def _is_root() -> bool:
    return os.geteuid() == 0


def _on_linux() -> bool:
    return sys.platform.startswith("linux")


def _always() -> bool:
    """Only the attempt could tell."""
    return True


def _no_chromium() -> bool:
    from tests.dagster_kinetic.live.browser import chromium

    return not chromium()


def _without(module: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(module) is None


def _no_python(version: str) -> Callable[[], bool]:
    return lambda: interpreter(version) is None


KNOWN = (
    *(Known(rf"this machine has no Python {re.escape(one)}", _no_python(one)) for one in ("2.7", "3.8", "3.10", "3.12", "3.13")),
    Known("this machine has no other Python", lambda: not any(map(interpreter, ("3.9", "3.10", "3.12", "3.13")))),
    Known("root may write anywhere", _is_root),
    Known("only root .*", lambda: not _is_root()),
    Known("no mount namespaces here", lambda: not _permits("unshare", "-rm", "true")),
    Known("this machine permits no pid namespaces?", lambda: not _permits("unshare", "-r", "--pid", "-f", "--mount-proc", "true")),
    Known("no such file system can be mounted here.*", _always),
    Known(
        "no small file system can be mounted here.*",
        lambda: not _permits("unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"),
    ),
    Known("nobody may trace another process here", _always),
    Known("measured in /proc", lambda: not Path("/proc/self/status").exists()),
    Known("ptrace|(only Linux|cores can be taken away on Linux only).*", lambda: not _on_linux()),
    Known("git is the judge", lambda: shutil.which("git") is None),
    Known("there is no C compiler", lambda: shutil.which("cc") is None),
    Known("there is no chromium.*", _no_chromium),
    Known("keras is not installed", _without("keras")),
    Known("keras-kinetic is not installed", _without("kinetic")),  # whose versions the other extras exclude
    Known("the newest Dagster cannot be installed from here", _always),
    Known("torch .* cannot be had here.*", _always),  # the index may not have it, or not answer
)  # fmt: skip


def trouble(skip: Skip) -> str:
    """What is wrong with the reason, or ""."""
    known = next((one for one in KNOWN if re.fullmatch(one.reason, skip.reason, re.S)), None)
    if known is None:
        return "nobody knows this reason: mend what it is about, or add it to tests/skips.py"
    return "" if _is_so(known) else "this machine is not so: mend the test, or how it looks for what it needs"


@functools.cache
def _is_so(known: Known) -> bool:
    return known.is_so()


def write_down(skips: list[Skip]) -> None:
    """For the gate, if it asked."""
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
