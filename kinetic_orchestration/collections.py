"""Many jobs of one function, under the names that programs written for Keras Kinetic import."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kinetic_orchestration.api.batch import BatchError, BatchHandle, attach_batch
from kinetic_orchestration.api.decorator import RemoteCallable
from kinetic_orchestration.errors import UsageError

__all__ = ["BatchError", "BatchHandle", "attach_batch", "map"]


def map(submit_fn: Callable[..., Any], inputs: Iterable[Any], **options: Any) -> BatchHandle[Any]:
    """`submit_fn` is the `run_async` of a decorated function; the rest is that of its `run_async_map`."""
    function = getattr(submit_fn, "__self__", None)
    if not isinstance(function, RemoteCallable) or submit_fn != function.run_async:
        raise UsageError(f"map takes the run_async of a function that run() decorates, not {submit_fn!r}")
    return function.run_async_map(inputs, **options)
