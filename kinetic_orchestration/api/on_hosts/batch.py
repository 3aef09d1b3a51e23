"""`BatchHandle` and its functions on a host: they can be named, and refuse to be used."""

from __future__ import annotations

from typing import NoReturn

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.program.client_only import ClientOnly, refuse


class BatchError(KineticError):
    """Jobs of a batch failed. Nothing raises it on a host, where an `except` may name it."""


class BatchHandle(metaclass=ClientOnly):
    """A batch's handle, which a host cannot use."""


def attach_batch(*args: object, **kwargs: object) -> NoReturn:
    """Raise `Unsupported`."""
    refuse("attach_batch")
