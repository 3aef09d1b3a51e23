"""Warnings that point at the user's own line, and lines about a job, separate from its output. Knows no contents."""

from __future__ import annotations

import sys
import warnings

from kinetic_orchestration.protocol.system import visible

_OURS = ("kinetic_orchestration", "dagster_kinetic", "airflow_kinetic")
_said: set[str] = set()


def warn(message: str) -> None:
    """Warn where the user's code called into this project, so that Python shows that line."""
    warnings.warn(visible.text(message), stacklevel=_distance() + 1)


def warn_once(message: str) -> None:
    """The same, once in a process however many jobs it concerns."""
    if message not in _said:
        _said.add(message)
        warnings.warn(visible.text(message), stacklevel=_distance() + 1)


def tell_once(text: str) -> None:
    """A line that is no warning, once in a process."""
    if text not in _said and sys.stderr is not None:
        _said.add(text)
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        sys.stderr.write(f"kinetic: {text}\n".encode(encoding, "backslashreplace").decode(encoding))


def _distance() -> int:
    """The number of frames from `warn` to the first one outside of this package."""
    frame, distance = sys._getframe(1), 0
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS:
        frame, distance = frame.f_back, distance + 1
    return distance
