"""`BatchHandle` and its functions on a host, see `client_only`."""

from __future__ import annotations

from typing import Any

from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.program.client_only import ClientOnly, real


class BatchError(KineticError):
    """Jobs of a batch failed. An `except` may name it."""


class BatchHandle(metaclass=ClientOnly, module="batch"):
    """The handle of a batch, where the whole package is."""


def attach_batch(*args: Any, **kwargs: Any) -> Any:
    """Open a batch, where the whole package is."""
    return real("batch", "attach_batch")(*args, **kwargs)
