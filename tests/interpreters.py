"""Other Pythons of this machine, for what must run under them."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path


def interpreter(version: str) -> str | None:
    """The path of a Python of this minor version that runs, on PATH or of pyenv."""
    account = pwd.getpwuid(os.getuid()).pw_dir  # a test may have moved HOME
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path(account, ".pyenv")) / "versions"
    known = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for path in filter(None, known):
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        if done.stdout.strip() == version:
            return path
    return None
