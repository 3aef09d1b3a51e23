"""The watchers of this process: one for each store, caller and kind of backend."""

from __future__ import annotations

import os
import threading

from kinetic_orchestration.jobs.watching.watchers.base import BellWatcher, Watcher
from kinetic_orchestration.jobs.watching.watchers.polling import PollingWatcher
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store

MOST_WATCHERS = 16  # of one process; more only while all of them are used
_watchers: dict[tuple[int, str, int, object], Watcher] = {}
_watchers_lock = threading.Lock()


def _after_fork() -> None:
    """Replace the lock in the child of a fork, where its holder is gone."""
    global _watchers_lock  # noqa: PLW0603 - of this process
    _watchers_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def watcher_of(store: Store, backend: Backend) -> Watcher:
    """Return the one watcher of this store and this kind of backend, for this caller in this process.

    It needs no project and no zone of its own: each placement names both, and `observe` asks once for each. So jobs of
    many zones and projects share one listing of their hosts' reports. It has its followers' permissions: data that one
    caller may see is not shown to another.
    """
    # A thread does not survive a fork. The caller's id is its own, because the watcher keeps the store that has it.
    key = os.getpid(), store.address, id(store.caller), getattr(backend, "kind", type(backend))
    with _watchers_lock:
        if key not in _watchers:
            if len(_watchers) >= MOST_WATCHERS:
                for idle in [known for known, watcher in _watchers.items() if watcher.idle]:
                    del _watchers[idle]
            _watchers[key] = PollingWatcher(store, backend) if store.metered else BellWatcher(store)
        return _watchers[key]
