"""The life of a job, seen from the client. Keras Kinetic's module of this name has names that the package has here."""

from __future__ import annotations

from typing import NoReturn

_OF_THE_PACKAGE = ("JobHandle", "attach", "list_jobs")


def __getattr__(name: str) -> NoReturn:
    where = f": it is kinetic_orchestration.{name}" if name in _OF_THE_PACKAGE else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{where}")
