"""`BatchHandle` and its functions where they cannot be used, see `client_only`."""

from __future__ import annotations

from typing import NoReturn

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.program.client_only import ClientOnly, refuse


class BatchError(KineticError):
    """Jobs of a batch failed. An `except` may name it."""


class BatchHandle(metaclass=ClientOnly):
    """The handle of a batch."""


def attach_batch(*args: object, **kwargs: object) -> NoReturn:
    """Raise Unsupported."""
    refuse("attach_batch")
