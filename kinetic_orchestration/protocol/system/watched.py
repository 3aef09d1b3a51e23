"""The time for which a process has watched something: one that stands still (SIGSTOP, a laptop's sleep) sees nothing.

The monotonic clock goes on meanwhile, or jumps when the process goes on. So time that counts toward a verdict is added
up from look to look, and never taken from two readings of a clock.
"""

from __future__ import annotations

from typing import NamedTuple

BLINK = 45.0  # seconds between two looks, beyond which a process may have stood still


class Watched(NamedTuple):
    """A reason that is seen again and again, and for how long it was watched."""

    why: str
    seen: float  # when it was last, by the monotonic clock
    seconds: float = 0.0

    def again(self, why: str, now: float, patience: float) -> Watched:
        """Return the same with one more look. Another reason begins anew, and no pause between two looks, however long,
        counts for more than half of the patience: it takes three looks to lose that.
        """
        if why != self.why:
            return Watched(why, now)
        return Watched(why, now, self.seconds + min(since(self.seen, now), patience / 2))


def since(looked: float, now: float) -> float:
    """Return the seconds since the last look that count as watched."""
    return min(max(0.0, now - looked), BLINK)
