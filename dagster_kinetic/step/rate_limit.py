"""A rate limit of reports that never loses the last one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Paced(Generic[T]):
    """Passes on `burst` values immediately, then one per `seconds`; of waiting values, it keeps only the newest.

    A waiting value is passed on when its time comes, by a separate thread, so also when no other follows it. `pass_on`
    gets the value, and the number of values that were left out before it.
    """

    def __init__(self, pass_on: Callable[[T, int], object], seconds: Callable[[], float], burst: int = 1) -> None:
        self._pass_on = pass_on
        self._seconds = seconds
        self._burst = burst
        self._credit = float(burst)
        self._earned = time.monotonic()
        self._held: list[T] = []  # none or one
        self._missed = 0
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def __call__(self, value: T) -> None:
        with self._lock:
            self._missed += len(self._held)
            self._held = [value]
            self._pass_on_if_due()

    def flush(self) -> None:
        """Pass on the waiting value now, regardless of the rate."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._held:
                self._pass_on_held()

    def _pass_on_if_due(self) -> None:
        seconds, now = self._seconds(), time.monotonic()
        self._credit = min(float(self._burst), self._credit + (now - self._earned) / seconds)
        self._earned = now
        if self._credit >= 1:
            self._credit -= 1
            self._pass_on_held()
        elif self._timer is None:
            self._timer = threading.Timer((1 - self._credit) * seconds, self._when_due)
            self._timer.daemon = True
            self._timer.start()

    def _when_due(self) -> None:
        with self._lock:
            self._timer = None
            if self._held:
                try:
                    self._pass_on_if_due()
                except Exception:  # the value is still held, and `flush` raises the error in the caller's thread
                    return

    def _pass_on_held(self) -> None:
        self._pass_on(self._held[0], self._missed)
        self._held, self._missed = [], 0
