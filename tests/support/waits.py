"""Waits of tests, which end with an error that names what did not happen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def wait_until(
    condition: Callable[[], Answer],
    what: str | Callable[[], object] = "the condition",
    *,
    within: float = 150.0,
    pause: float = 0.01,
) -> Answer:
    """Poll a condition and return its first true answer.

    Args:
        condition: What is polled.
        what: Name of the condition, or a function that describes the state, for the error.
        within: Seconds until the wait fails.
        pause: Seconds between two polls.

    Raises:
        AssertionError: The condition is not true within that time.
    """
    deadline = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what() if callable(what) else what}: not true within {within:g} s")
        time.sleep(pause)
    return answer
