"""`JobHandle` and its functions on a host: they can be named, and refuse to be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from kinetic_orchestration.program.client_only import ClientOnly, refuse


class JobHandle(metaclass=ClientOnly):
    """A job's handle, which a host cannot use."""


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refused(*args: object, **kwargs: object) -> NoReturn:
        refuse(name)

    return refused


attach = _refusing("attach")
list_jobs = _refusing("list_jobs")
_attached = _refusing("a JobHandle")  # by which a handle that was pickled is opened
