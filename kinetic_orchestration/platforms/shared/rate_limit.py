"""The rate at which the followers of one process poll one zone, or one namespace of a cluster, regardless of the number
of jobs: polls spend the project's quota, or the time of an API server. A caller that polls only once does so
immediately, and is not counted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

LOOKS_PER_SECOND = 1.0  # of one process at one zone, by list and by name, however many jobs begin and end there,
LOOKS_AT_ONCE = 20  # a burst, which a job that is followed alone may need in its first seconds


class Pace:
    """A number of polls per second, and a burst after an idle time."""

    def __init__(self, per_second: float = LOOKS_PER_SECOND, at_once: float = LOOKS_AT_ONCE) -> None:
        self._rate, self._most, self._left = per_second, at_once, at_once
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def wait(self) -> float:
        """Return the seconds until the next poll is allowed. It is not reserved: another follower may take it."""
        with self._lock:
            self._refill()
            return max(0.0, 1.0 - self._left) / self._rate

    def take(self) -> bool:
        """Take the next poll; False if it is not allowed yet."""
        with self._lock:
            self._refill()
            if self._left < 1.0:
                return False
            self._left -= 1.0
            return True

    def _refill(self) -> None:
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._since) * self._rate + 1e-9)  # which rounding may cost
        self._since = now


_paces: dict[tuple[str, str], Pace] = {}
_free = False


def pace_of(
    placement: Mapping[str, Any], per_second: float = LOOKS_PER_SECOND, at_once: float = LOOKS_AT_ONCE
) -> Pace | None:
    """Return the rate limit of this process for the project and zone of a placement; None for a place without a
    zone.

    The first call for a zone decides its rate and its burst.
    """
    if _free or "zone" not in placement:
        return None
    key = str(placement.get("project")), str(placement["zone"])
    return _paces.get(key) or _paces.setdefault(key, Pace(per_second, at_once))


@contextmanager
def freely() -> Iterator[None]:
    """Disable the limit within the block, to see every state of a few jobs."""
    global _free  # noqa: PLW0603 - of this process
    before, _free = _free, True
    try:
        yield
    finally:
        _free = before


os.register_at_fork(after_in_child=_paces.clear)  # a lock may have been held by a thread that is not in the child
