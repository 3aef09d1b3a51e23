"""Reads and writes the lease of a kept slice: for a host and for a client, whose stores have the same verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.wire.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable


class Held(NamedTuple):
    """A lease as it was read."""

    lease: Lease
    generation: int
    updated: float  # by the store's time


def read(records: Any, slice_: str) -> Held | None:
    """Return the lease of a slice; None if it has none. Raises what the store raises; wire.Unreadable, wire.Newer."""
    name = names.lease(slice_)
    record = records.read(name)
    return None if record is None else Held(Lease.decode(record.data, name), record.generation, record.updated)


def write(records: Any, lease: Lease, before: Held | None) -> bool:
    """Write a lease if it still is as it was `before`. Returns True if it is ours now.

    A write whose answer was lost may have been made although its repetition is refused: then the record has our token.
    Raises what the store raises, after which it is unknown who has won.
    """
    name, data = names.lease(lease.slice), lease.encode()
    written = records.create(name, data) if before is None else records.swap(name, data, before.generation)
    if written is not None:
        return True
    found = records.read(name)
    return found is not None and bytes(found.data) == data


def end(
    records: Any, slice_: str, why: str, *, writer: str, now: float, may: Callable[[Lease], bool], tries: int = 3
) -> bool:
    """End the lease of a slice that has one, as long as it `may` be. Returns True if it has ended, by whomever."""
    for _ in range(tries):
        held = read(records, slice_)
        if held is None:
            return False
        if held.lease.state == "ended":
            return True
        if not may(held.lease):
            return False
        if write(records, held.lease.ended(why, writer=writer, now=now), held):
            return True
    return False
