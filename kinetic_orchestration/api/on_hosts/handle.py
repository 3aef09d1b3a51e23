"""`JobHandle` and its functions on a host, see `client_only`."""

from __future__ import annotations

from typing import Any

from kinetic_orchestration.program.client_only import ClientOnly, real, require


class JobHandle(metaclass=ClientOnly, module="handle"):
    """The handle of a job, where the whole package is."""


def attach(*args: Any, **kwargs: Any) -> Any:
    """Open a job, where the whole package is."""
    return real("handle", "attach")(*args, **kwargs)


def list_jobs(*args: Any, **kwargs: Any) -> Any:
    """List the jobs, where the whole package is."""
    return real("handle", "list_jobs")(*args, **kwargs)


def _attached(*args: Any) -> Any:
    """Open a handle that was pickled."""
    require("JobHandle")
    return real("handle", "_attached")(*args)
