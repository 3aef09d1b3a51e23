"""Environments of the older releases of Airflow that this package goes with, each with the versions of its time.

`AIRFLOW_RELEASE=RELEASE` has the tests of `airflow_kinetic` run on one of them. The environments lie in the folder
`AIRFLOW_ENVIRONMENTS`, else in `build/`. `python -m tests.support.airflow_releases.environment RELEASE` makes one, or
takes what is there, and prints its interpreter; without a release, it names them. `airflow-RELEASE.txt` beside this file
names its versions: what an index had when the release came out, and what the release's own constraints pin of what this
project needs. Knows nothing of what runs there.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from kinetic_orchestration.packaging.requirements.indexes import uv_settings
from tests.support.interpreters import interpreter

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CHOSEN = os.environ.get("AIRFLOW_RELEASE", "")  # "" is the one that this Python has
PYTHON = "3.11"  # which all of them have
SECONDS = 300.0  # for each of two steps
CONSTRAINTS = {path.stem.removeprefix("airflow-"): path for path in sorted(HERE.glob("airflow-*.txt"))}
RELEASES = tuple(sorted(CONSTRAINTS, key=lambda release: tuple(map(int, release.split(".")))))


class NotInstalled(Exception):
    """An environment cannot be made here; the text says why."""


def needed(release: str) -> list[str]:
    """What is installed, beside this checkout: by name, as the constraints say the versions."""
    return [f"apache-airflow=={release}", "apache-airflow-providers-google", "apache-airflow-providers-standard"]


def made(release: str) -> str:
    """Return the interpreter of a release's environment, which is made if it is not there as it is to be.

    Raises:
        NotInstalled: There is no such release, no Python for it, or no index that has all of it.
    """
    if release not in CONSTRAINTS:
        raise NotInstalled(f"there is no {release!r} among {', '.join(RELEASES)}")
    folder = folder_of(release)
    program = folder / "bin" / "python"
    mark, digest = folder / "made-of", _digest(release)
    if program.exists() and mark.exists() and mark.read_text() == digest:
        return str(program)
    base = interpreter(PYTHON)
    if base is None:
        raise NotInstalled(f"this machine has no Python {PYTHON}")
    _uv("venv", "-q", "--clear", "--python", base, str(folder))
    constraints = ("-c", str(CONSTRAINTS[release]))
    _uv("pip", "install", "-q", "--python", str(program), *constraints, "-e", str(ROOT), *needed(release))
    mark.write_text(digest)
    return str(program)


def _digest(release: str) -> str:
    """Of all that says what is in an environment, and where its checkout lies."""
    told = [str(ROOT).encode(), *(path.read_bytes() for path in (CONSTRAINTS[release], ROOT / "pyproject.toml"))]
    return hashlib.sha256(b"\0".join(told)).hexdigest()


def _uv(*words: str) -> None:
    from uv import find_uv_bin

    environ = os.environ | uv_settings(os.environ)
    try:
        done = subprocess.run([find_uv_bin(), *words], env=environ, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"uv {words[0]} has not ended within {SECONDS:g} s") from None
    if done.returncode:
        raise NotInstalled(f"uv {words[0]} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")


def folder_of(release: str) -> Path:
    """Where the environment of a release lies: `build/` is of no commit."""
    return Path(os.environ.get("AIRFLOW_ENVIRONMENTS") or ROOT / "build") / f"airflow-{release}"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(print(*RELEASES))
    asked = sys.argv[1]
    try:
        print(made(asked))
    except NotInstalled as error:
        sys.exit(f"Airflow {asked} cannot be installed from here: {error}")
