"""Text for users: warnings at the line of their own code, lines about a job, and amounts and commands in words."""

from __future__ import annotations

import os
import shlex
import sys
import warnings

from kinetic_orchestration.protocol.system import escaping

OURS = ("kinetic_orchestration", "dagster_kinetic", "airflow_kinetic")
"""This project's packages: hosts have them, so they are never sent, and a warning shows no line of theirs."""
_shown: set[str] = set()  # the messages of this process that are shown once


def warn(message: str) -> None:
    """Warn where the user's code called into this project, so that Python shows that line."""
    warnings.warn(escaping.text(message), stacklevel=_distance() + 1)


def warn_once(message: str) -> None:
    """The same, once in a process however many jobs it concerns."""
    if message not in _shown:
        _shown.add(message)
        warnings.warn(escaping.text(message), stacklevel=_distance() + 1)


def note_once(text: str) -> None:
    """Print a line that is no warning to stderr, once in a process."""
    if text not in _shown and sys.stderr is not None:
        _shown.add(text)
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        sys.stderr.write(f"kinetic: {text}\n".encode(encoding, "backslashreplace").decode(encoding))


def _distance() -> int:
    """The number of frames from `warn` to the first one outside of this package."""
    frame, distance = sys._getframe(1), 0
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in OURS:
        frame, distance = frame.f_back, distance + 1
    return distance


def size(count: float) -> str:
    if count < 1000:
        return f"{count:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def command(*words: str) -> str:
    """Return a command of this package as it can be pasted into the terminal of this process.

    For what this process prints. What is stored, or read on another machine, names `kinetic-orchestration` itself.
    """
    return " ".join([program("kinetic-orchestration", "kinetic_orchestration.cli"), *map(shlex.quote, words)])


def program(name: str, module: str = "") -> str:
    """Return how a shell here calls a program of this interpreter's environment: by its name if PATH leads to it, else
    by its path, and if the environment has no such file by the module that it runs.
    """
    import shutil  # not when a function is declared

    there = os.path.join(os.path.dirname(sys.executable), name)
    has = bool(sys.executable) and os.access(there, os.X_OK)
    found = shutil.which(name)
    if not sys.executable or (has and found is not None and os.path.samefile(found, there)):
        return name
    if module and not has:
        return f"{program(os.path.basename(sys.executable))} -m {module}"
    return shlex.quote(_from_here(there))


def _from_here(path: str) -> str:
    """Return the path relative to the working folder if it is below it."""
    try:
        near = os.path.relpath(path)
    except OSError:  # the working folder is gone
        return path
    if near.startswith(os.pardir + os.sep):
        return path
    return near if os.sep in near else os.path.join(os.curdir, near)
