"""What is not public in Dagster, in one place, and what stands in for it where a version has moved it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

Context = Any  # AssetExecutionContext, OpExecutionContext, or what build_asset_context() makes of them

uninterrupted: Callable[[], contextlib.AbstractContextManager[Any]]
try:
    from dagster._utils.interrupts import capture_interrupts as uninterrupted
except ImportError:
    uninterrupted = contextlib.nullcontext

RESUME_TAG = "dagster/is_resume_retry"
OUTPUT = "result"  # the name that Dagster gives an only output


def is_direct(context: Context) -> bool:
    """Whether the step is called as a function, in a test, and belongs to no run."""
    return bool(context.run_id == "EPHEMERAL")


def step_key(context: Context) -> str:
    try:
        return str(context.get_step_execution_context().step.key)
    except AttributeError:
        return str(context.op_handle)
