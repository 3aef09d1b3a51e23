"""Other Pythons of this machine, for what must run under them; the gate asks for them by `python tests/support/interpreters.py`."""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST = "3.10"  # that hosts have


@functools.cache
def interpreter(version: str) -> str | None:
    """The path of a Python of this minor version that runs, on PATH or of pyenv."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in _candidates(version):
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        if done.stdout.strip() == version:
            return path
    return None


def required(version: str) -> str:
    """The same for a test, which is skipped where there is none."""
    import pytest

    path = interpreter(version)
    if path is None:
        pytest.skip(f"this machine has no Python {version}")
    return path


def pyenv() -> Path:
    """The folder of pyenv's Pythons, independent of HOME."""
    if said := os.environ.get("PYENV_ROOT"):
        return Path(said)
    own = Path(pwd.getpwuid(os.getuid()).pw_dir, ".pyenv")
    if not own.is_dir() and shutil.which("pyenv"):
        done = subprocess.run(["pyenv", "root"], capture_output=True, text=True, timeout=60, check=False)
        return Path(done.stdout.strip() or own)
    return own


def _candidates(version: str) -> Iterator[str]:
    if path := shutil.which(f"python{version}"):
        yield path
    yield from map(str, sorted(pyenv().glob(f"versions/{version}.*/bin/python"), reverse=True))


if __name__ == "__main__":
    asked = sys.argv[1]
    print(pyenv() if asked == "pyenv" else interpreter(asked) or "")
