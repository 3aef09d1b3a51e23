"""The watcher of a store with a bell: a thousand sleeping followers cost one stat a tick."""

from __future__ import annotations

from kinetic_orchestration.jobs.watching.watchers.base import Watcher
from kinetic_orchestration.platforms.store import Store

TICK_MIN = 0.002  # seconds between two polls of the bell while it rings; longer in a silence, so that a ring is noticed
TICK_GROWTH = 1.02  # within a fiftieth of the silence before it,
TICK_MAX = 0.1  # and within this in any case


class BellWatcher(Watcher):
    """Wakes followers when the store's bell rings. Of a store without one, followers wake by themselves."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._bell = store.bell()
        self._tick = TICK_MIN
        self._rang = False  # in the newest turn

    @property
    def _hears(self) -> bool:
        return self._bell is not None

    def _pause(self) -> None:
        joined = self._joined.wait(self._tick)
        if joined:
            self._joined.clear()
        self._tick = TICK_MIN if joined or self._rang else min(TICK_MAX, self._tick * TICK_GROWTH)

    def _turn(self) -> None:
        assert self._bell is not None
        self._rang = False
        rung = self._bell.poll()  # before the followers are listed: no ring after one has joined is lost
        self._rang = rung != []
        self._wake(rung)
