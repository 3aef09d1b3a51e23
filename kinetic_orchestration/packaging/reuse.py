"""What is in the store already and is used again: made young again in time, so that no reaper takes it away.

It knows of ages. It does not know what an object is, nor what the reaper deletes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kinetic_orchestration.platforms.store import Store
    from kinetic_orchestration.protocol.records.base import Entry

SHARE: Final = 0.25
"""Of the retention: what is younger than that stays for as long as anybody could rely on it;"""
YOUNG: Final = 86400.0
"""and so does what is younger than this, because blobs are kept for days longer than jobs."""


def keep(store: Store, name: str, retention: float) -> Entry | None:
    """What is there under a name that tells its content, and by now is young for the retention; None: send it."""
    found = store.find(name)
    return found if found is not None and still_there(store, found, retention) else None


def still_there(store: Store, entry: Entry, retention: float) -> bool:
    """Of an object that was seen: renewed if it is old, False if somebody has deleted it meanwhile."""
    return store.now() - entry.updated <= max(retention * SHARE, YOUNG) or store.renew(entry.name)
