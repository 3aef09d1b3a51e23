"""`JobHandle` and its functions where they cannot be used, see `client_only`."""

from __future__ import annotations

from typing import NoReturn

from kinetic_orchestration.program.client_only import ClientOnly, refuse


class JobHandle(metaclass=ClientOnly):
    """The handle of a job."""


def attach(*args: object, **kwargs: object) -> NoReturn:
    """Raise Unsupported."""
    refuse("attach")


def list_jobs(*args: object, **kwargs: object) -> NoReturn:
    """Raise Unsupported."""
    refuse("list_jobs")


def _attached(*args: object) -> NoReturn:
    """Raise Unsupported for a handle that was pickled."""
    refuse("JobHandle")
