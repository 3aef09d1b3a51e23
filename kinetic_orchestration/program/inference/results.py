"""The answers of a batch, for the steps after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.program.inference.output import PLANS, Output


def read_answers(output: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the answers of a batch inference, each row's newest one, also while it runs or after it was ended.

    A row has its `prompt` or `messages`, `custom_id` and `key`; and `text`, `tokens_in`, `tokens_out`, `seconds` and
    `finish_reason`, or `error`.

    Args:
        output: The `output` of the batch, which its report names.

    Raises:
        UsageError: No batch has written there.
    """
    address = os.fspath(output)
    there = buckets.in_bucket(address) or os.path.isdir(address)
    place = Output(address, "reader", "reader") if there else None
    if place is None or not any(True for _ in place.records.list(PLANS)):
        raise UsageError(f"{address} has no answers: it is no output of a batch inference")
    try:
        seen: set[str] = set()
        failures: dict[str, dict[str, Any]] = {}  # the newest of each row, which a journal may have the answer of
        for answer in place.newest_first():
            key = answer["key"]
            if key in seen:
                continue
            if "error" in answer:
                failures.setdefault(key, answer)
                continue
            seen.add(key)
            failures.pop(key, None)
            yield answer
        yield from failures.values()
    finally:
        place.close()
