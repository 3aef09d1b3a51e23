"""`search` where it cannot be used, see `client_only`."""

from __future__ import annotations

from typing import NoReturn

from kinetic_orchestration.program.client_only import refuse


def search(*args: object, **kwargs: object) -> NoReturn:
    """Raise Unsupported."""
    refuse("search")
