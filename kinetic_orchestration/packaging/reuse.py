"""Reuse of objects that are in the store already: their age is reset in time, so that no reaper removes them.

It knows of ages. It does not know what an object is, nor what the reaper deletes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kinetic_orchestration.platforms.store import Store
    from kinetic_orchestration.protocol.records.base import Entry

SHARE: Final = 0.25
"""The part of the retention after which an object is made younger: any younger one stays as long as it is relied on;"""
YOUNG: Final = 86400.0
"""and so does what is younger than this, because blobs are kept for days longer than jobs."""


def keep(store: Store, name: str, retention: float) -> Entry | None:
    """Return the entry of a content-named object, renewed if it is too old for the retention; None: it has to
    be sent."""
    found = store.find(name)
    return found if found is not None and still_there(store, found, retention) else None


def still_there(store: Store, entry: Entry, retention: float) -> bool:
    """Return True for an object that was listed, renewed if it is old; False if it was deleted in between."""
    return store.now() - entry.updated <= max(retention * SHARE, YOUNG) or store.renew(entry.name)
