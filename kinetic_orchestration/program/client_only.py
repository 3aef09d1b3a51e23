"""Refuse, on a host, what only the machine that launches jobs can do.

A host has the part of this package that runs a program. Names of the rest can be imported and annotated with there,
so that a module that declares jobs is imported as it stands; to use one raises `Unsupported`.
"""

from __future__ import annotations

import functools
import types
from typing import Any, NoReturn

from kinetic_orchestration.errors import Unsupported


@functools.cache
def is_host() -> bool:
    """Return True if this package is the part that a host has, which cannot submit or follow a job."""
    import importlib.util

    return importlib.util.find_spec(f"{__name__.partition('.')[0]}.jobs") is None


def refuse(name: str) -> NoReturn:
    """Raise `Unsupported`, which ends a job at once: another attempt would fail in the same way."""
    raise Unsupported(
        f"{name} is not for use on a host: jobs are submitted and followed where they are launched from, and a host "
        "has only the part of kinetic-orchestration that runs a program. Return what the next step needs; a command "
        "whose requirements have kinetic-orchestration has all of it"
    )


class ClientOnly(type):
    """The metaclass of a class that can be named and subscripted on a host, and neither made nor asked."""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"{cls.__name__}.{name}")

    def __getitem__(cls, argument: Any) -> Any:
        return types.GenericAlias(cls, argument)
