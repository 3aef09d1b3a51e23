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


def op_context(context: Context) -> Any:
    """What assets and ops have in common; an asset's own context warns of some of it."""
    return getattr(context, "op_execution_context", context)


def run_id(context: Context) -> str:
    return str(op_context(context).run_id)


def is_direct(context: Context) -> bool:
    """Whether the step is called as a function, in a test, and belongs to no run."""
    return run_id(context) == "EPHEMERAL"


def step_key(context: Context) -> str:
    try:
        return str(context.get_step_execution_context().step.key)
    except AttributeError:
        return str(context.op_handle)


def partition_of(context: Context) -> str:
    """The partition's key, or the first and the last of a range in one run; "" where there are none."""
    if context.has_partition_key:
        return str(context.partition_key)
    if context.has_partition_key_range:
        return f"{context.partition_key_range.start}...{context.partition_key_range.end}"
    return ""
