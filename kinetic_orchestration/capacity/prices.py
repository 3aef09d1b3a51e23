"""The price list of a deployment: one object in its store, so that all its processes count with the same prices.

`kinor prices --refresh` writes it, and in this machine's home a copy, which counts where the store has none or does not
answer. Any writer of the store can write it, so it is read as anything foreign is: whole, bounded, with prices that may
be ones (`price_list.parse`), or not at all. It knows neither Google's catalog nor what is priced.
"""

from __future__ import annotations

import time
from dataclasses import replace

from kinetic_orchestration.errors import KineticError, StoreError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import price_list
from kinetic_orchestration.plan.hardware.price_list import PriceList
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names

KEPT = 600.0
"""Seconds for which a process does not read a store's list again."""
_TRIES = 5

_read: dict[str, tuple[float, PriceList | None]] = {}  # by the store's address: when, and what was there


def in_force(settings: Settings, store: Store | None = None) -> Settings:
    """Return the settings with the deployment's list in place of the home's, if its store has one.

    It costs one request in `KEPT` seconds: call it where a price is needed, and not before. A store that does not
    answer is told once, costs nobody a job, and is not asked again before that time is over.

    Args:
        settings: The settings; they name the store.
        store: The store, if it is open.
    """
    try:
        store = store or open_store(settings.store, settings.deployment)
        found = of_store(store)
    except KineticError as error:
        warn_once(f"the prices of {settings.store} cannot be read, so this machine's are taken: {error}")
        if store is not None:
            _read[store.address] = time.monotonic(), None
        return settings
    return settings if found is None else replace(settings, listed=found)


def of_store(store: Store) -> PriceList | None:
    """Return the list of a store, over the package's own; None if it has none, or one that is none, which is told."""
    at, known = _read.get(store.address, (0.0, None))
    if not at or time.monotonic() - at > KEPT:
        known = _parsed(store, record.data) if (record := store.read(names.PRICES)) is not None else None
        _read[store.address] = time.monotonic(), known
    return known


def keep(store: Store, data: bytes) -> PriceList:
    """Put a list into a store unless a newer one is there, and return the one that is.

    Args:
        store: The store.
        data: The document (`price_list.to_bytes`).

    Raises:
        StoreError: The store refused, or others write it all the time.
    """
    ours = price_list.parse(data)
    for _ in range(_TRIES):
        record = store.read(names.PRICES)
        theirs = _parsed(store, record.data) if record is not None else None
        # The same bytes are there after a swap that was answered by a refusal although it had won.
        if theirs is not None and record is not None and (theirs.refreshed > ours.refreshed or record.data == data):
            ours = theirs
            break
        put = store.create(names.PRICES, data) if record is None else store.swap(names.PRICES, data, record.generation)
        if put is not None:
            break
    else:
        raise StoreError(f"the prices are not kept in {store.url}, which others change all the time: try again")
    _read[store.address] = time.monotonic(), ours
    return ours


def _parsed(store: Store, data: bytes) -> PriceList | None:
    try:
        return price_list.parse(data)
    except ValueError as error:
        price_list.tell_damaged(f"{store.url.rstrip('/')}/{names.PRICES}", error)
        return None
