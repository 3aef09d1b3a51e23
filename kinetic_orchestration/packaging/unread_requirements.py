"""The requirements file next to a program, which a job without `requirements=` does not read."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from kinetic_orchestration.packaging.bundle import program_of, source_of
from kinetic_orchestration.packaging.requirements.remote import LOCK
from kinetic_orchestration.plan.declare.spec import JobSpec


def unread(spec: JobSpec) -> Path | None:
    """The nearest, from the program's folder up to its project's: a requirements.txt, or a pyproject.toml that lists
    dependencies. None where hosts get a committed lock.
    """
    start = program_of(spec)
    found = next(filter(None, map(_file_in, (start, *start.parents))), None)
    if found is None:
        return None
    source = source_of(spec)
    if source is None or (source.root / LOCK).is_file() or not found.is_relative_to(os.path.realpath(source.root)):
        return None
    return found


def _file_in(folder: Path) -> Path | None:
    for name in ("requirements.txt", "pyproject.toml"):
        path = folder / name
        if path.is_file() and (name == "requirements.txt" or _lists(path)):
            return path
    return None


def _lists(path: Path) -> bool:
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and bool(project.get("dependencies"))
