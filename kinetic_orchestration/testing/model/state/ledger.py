"""The ledger of the emulated cloud: which resources were created and removed, and every second of usable chips.

Tests assert on it that nothing was left. The model reports events to it; it does not know their causes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


class Entry(NamedTuple):
    time: float
    what: str
    """created, deleted, ready (the meter runs) or idle (it has stopped)."""
    kind: str
    """queued resource, node, instance, disk, instance group, instance template, resource policy, VM or secret."""
    name: str
    chips: int = 0


class Ledger:
    """One cloud's bill. `entries` is all that was ever booked, in order."""

    def __init__(
        self,
        clock: Callable[[], float],
        machines: Callable[[], Iterable[str]] = tuple,
        advance: Callable[[], object] = lambda: None,
    ) -> None:
        """`advance` brings the cloud, and so `clock`, up to this moment."""
        self.entries: list[Entry] = []
        self._advance = advance
        self._clock = clock
        self._machines = machines
        self._standing: dict[tuple[str, str], None] = {}
        self._running: dict[str, tuple[float, int]] = {}
        self._used: dict[str, float] = {}

    def created(self, kind: str, name: str) -> None:
        self._standing[kind, name] = None
        self.entries.append(Entry(self._clock(), "created", kind, name))

    def deleted(self, kind: str, name: str) -> None:
        if self._standing.pop((kind, name), ...) is not ...:
            self.entries.append(Entry(self._clock(), "deleted", kind, name))

    def ready(self, node: str, chips: int, kind: str = "node") -> None:
        """Charges accrue while a node is READY, and while an instance is RUNNING."""
        self._running[node] = (self._clock(), chips)
        self.entries.append(Entry(self._clock(), "ready", kind, node, chips))

    def idle(self, node: str, kind: str = "node") -> None:
        since, chips = self._running.pop(node, (0.0, 0))
        if chips:
            self._used[node] = self._used.get(node, 0.0) + (self._clock() - since) * chips
            self.entries.append(Entry(self._clock(), "idle", kind, node, chips))

    def chip_seconds(self, node: str = "") -> float:
        """Chip-seconds of one node, by its full name or id, or of all nodes so far."""
        self._advance()
        return sum(seconds for name, seconds in self._bills() if not node or name == node or name.endswith(f"/{node}"))

    def leaks(self) -> list[str]:
        """Resources that exist at this moment, as `kind name`."""
        self._advance()
        standing = [f"{kind} {name}" for kind, name in list(self._standing)]
        return standing + [f"VM {name}" for name in self._machines()]

    def assert_nothing_left(self) -> None:
        left = self.leaks()
        if left:
            raise AssertionError(f"{len(left)} left in the emulated cloud:\n" + "\n".join(f"  {item}" for item in left))

    def count(self, what: str, kind: str) -> int:
        """The number of entries of an event and a kind: `count("created", "node")`."""
        return sum(entry.what == what and entry.kind == kind for entry in self.entries)

    def _bills(self) -> Iterator[tuple[str, float]]:
        yield from list(self._used.items())
        now = self._clock()
        for node, (since, chips) in list(self._running.items()):
            yield node, (now - since) * chips
