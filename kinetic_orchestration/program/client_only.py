"""Names of the client on a host, which has the part of this package that runs a program.

They can be imported and annotated with there, so that a module that declares jobs is imported as it stands. They work
where the host's Python has the whole package installed, as on the machine that launches jobs; elsewhere to use one
raises `Unsupported`.
"""

from __future__ import annotations

import functools
import importlib.util
import types
from typing import Any, NoReturn

from kinetic_orchestration.errors import Unsupported


@functools.cache
def can_submit() -> bool:
    """Return True if the part of this package that submits and follows jobs is there."""
    return importlib.util.find_spec(f"{__name__.partition('.')[0]}.jobs") is not None


def require(name: str) -> None:
    """Make sure that `name` can be used here.

    Raises:
        Unsupported: It cannot. Another attempt would fail in the same way, so this ends the job.
    """
    if not can_submit():
        refuse(name)


def refuse(name: str) -> NoReturn:
    """Raise `Unsupported` for the use of `name`."""
    raise Unsupported(
        f"{name} is not for use on this host: jobs are submitted and followed where they are launched from, and "
        "this host has only the part of kinetic-orchestration that runs a program. Return what the next step needs"
    )


class ClientOnly(type):
    """The metaclass of a class that can be named, subscripted and inherited from, and neither made nor asked."""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"{cls.__name__}.{name}")

    def __getitem__(cls, argument: Any) -> Any:
        return types.GenericAlias(cls, argument)
