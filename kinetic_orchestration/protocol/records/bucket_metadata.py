"""Reads the metadata of a bucket's objects, in one way for clients and hosts: the server's time, the time of a write,
and the bytes of a signal that come with a listing.
"""

from __future__ import annotations

import base64
import threading
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol.records.base import Record, Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

SIGNAL = "s"  # the metadata by which a signal's bytes come with a listing
SIGNAL_LIMIT = 4096
PLAIN_SIGNALS = 16  # of a listing, read one by one: only other tools write signals without metadata


class Clock:
    """The server's time, from the dates of its answers: their whole seconds narrow down where it must be."""

    def __init__(self) -> None:
        self._low, self._high = float("-inf"), float("inf")  # of its time minus our steady one
        self._last = 0.0
        self._observed = float("-inf")
        self._wall_less_steady = 0.0
        self._lock = threading.Lock()

    def observe(self, date: str, asked: float) -> None:
        """`asked`: our steady time before the request."""
        try:
            theirs = parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError):
            return
        low, high = theirs - time.monotonic(), theirs + 1.0 - asked
        with self._lock:
            self._low, self._high = max(self._low, low), min(self._high, high)
            if self._low > self._high:  # one of the two clocks was set
                self._low, self._high = low, high
            self._observed = time.monotonic()
            self._wall_less_steady = time.time() - self._observed

    def fresh(self, age: float) -> bool:
        """Return True if an answer arrived within that many seconds, and this machine did not sleep since: a steady
        clock may not count that.
        """
        steady = time.monotonic()
        return steady - self._observed < age and abs(time.time() - steady - self._wall_less_steady) < 1

    @property
    def known(self) -> bool:
        return self._high != float("inf")

    def now(self) -> float:
        with self._lock:
            if not self.known:
                return time.time()
            found = time.monotonic() + (self._low + self._high) / 2
            if found > self._last or self._last - found > 1.0:  # it never runs backwards, unless it was set
                self._last = found
            return self._last


def signal_metadata(name: str, data: bytes) -> dict[str, str]:
    """Return the metadata by which a signal's bytes come with a listing. Raises ValueError if there are too many."""
    if len(data) > SIGNAL_LIMIT:
        raise ValueError(f"a signal has at most {SIGNAL_LIMIT} bytes, and {name} would have {len(data)}")
    return {SIGNAL: base64.b64encode(data).decode()}


def signals_of(
    listed: Iterable[tuple[str, Mapping[str, Any] | None, int, float]],
    read: Callable[[str, int, int], Record | None],
) -> Iterator[Signal]:
    """Yield the signals of a listing of (name, metadata, generation, time), with no data of one that is too large.

    `read` is called for those that were written as plain objects.
    """
    unshown = 0
    for name, metadata, generation, updated in listed:
        shown = _shown(metadata)
        if shown is None and unshown < PLAIN_SIGNALS:
            unshown += 1
            if (record := read(name, 0, SIGNAL_LIMIT + 1)) is None:
                continue
            shown = record.data
        yield Signal(name, shown if shown is not None and len(shown) <= SIGNAL_LIMIT else b"", generation, updated)


def _shown(metadata: Mapping[str, str] | None) -> bytes | None:
    """Return a signal's bytes as a listing shows them; None of an object that was not written as one."""
    shown = (metadata or {}).get(SIGNAL)
    if shown is None:
        return None
    if not isinstance(shown, str) or len(shown) > 2 * SIGNAL_LIMIT:
        return b""
    try:
        return base64.b64decode(shown)
    except ValueError:
        return b""


def moment_of(generation: int, second: float) -> float:
    """Return the write time of an object; `second` has it without a fraction.

    In practice, though not by contract, a generation is that time in microseconds: then all operations agree.
    """
    exact = generation / 1e6
    return exact if abs(exact - second) < 3 else second
