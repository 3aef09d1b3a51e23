"""The leases of all kept slices in a store, and the claim of one. `protocol.records.leases` reads and writes each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kinetic_orchestration.plan.declare.checks.held import LONGEST_KEEP
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.records.leases import Held
from kinetic_orchestration.protocol.wire.lease import CLAIMED, ENDED, FREE, Lease, key_name

MOST_READ = 64  # leases that are read to choose one, the newest first
TRIES = 3
OTHER_KEY = "it has another key"


def slices(store: Store) -> list[Held]:
    """Return the leases of all slices that were ever kept and are not forgotten, by name, without those that cannot be
    read."""
    return list(_read(store, [name for name, _ in _listed(store)]))


def lately_offered(store: Store) -> list[Held]:
    """Return the leases that may be free: those that were written within the longest time for which one can be."""
    since = store.now() - LONGEST_KEEP
    newest = sorted(((updated, name) for name, updated in _listed(store) if updated > since), reverse=True)
    return list(_read(store, [name for _, name in newest[:MOST_READ]]))


def _listed(store: Store) -> Iterator[tuple[str, float]]:
    for entry in store.list(names.SLICES, last="lease.json"):
        yield entry.name, entry.updated


def _read(store: Store, found: list[str]) -> Iterator[Held]:
    for name, record in zip(found, store.read_all(found), strict=True):
        try:
            lease = None if record is None else Lease.decode(record.data, name)
        except (wire.Unreadable, wire.Newer):
            continue
        if record is not None and lease is not None and names.lease(lease.slice) == name:
            yield Held(lease, record.generation, record.updated)


class Claim(NamedTuple):
    """The attempt that claims a slice, and its orders.

    Attributes:
        job: The job.
        attempt: The attempt.
        deadline: Its deadline.
        origin: Its run, as an orchestrator names it.
        orders: The orders for its hosts.
        key: The key of the slice's orders.
        writer: This process.
    """

    job: str
    attempt: int
    deadline: float
    origin: Mapping[str, str]
    orders: Mapping[str, Any]
    key: str
    writer: str


def claim(store: Store, slice_: str, epoch: int, by: Claim) -> str:
    """Claim a slice for an attempt; a claim that was made already is found. Returns why it is lost for good; "" if the
    attempt has it; OTHER_KEY if the key is not that of the slice, which a process with another home has made. Raises
    StoreError, after which that is not known.

    Args:
        store: The store.
        slice_: The slice.
        epoch: The number that the claim is to have, by the attempt's intent.
        by: The attempt.
    """
    for _ in range(TRIES):
        try:
            held = leases.read(store, slice_)
        except (wire.Unreadable, wire.Newer) as error:
            return f"{error}"
        lost = _lost(held, epoch, by, store.now())
        if held is None or lost is not None:
            return lost or ""
        if held.lease.key not in ("", key_name(by.key)):
            return OTHER_KEY
        lease = held.lease.claimed(
            by.job, by.attempt, deadline=by.deadline, origin=by.origin, writer=by.writer, now=store.now()
        )
        if leases.write(store, lease.with_orders(by.orders, by.key), held):
            return ""
    return f"the lease of {slice_} was changed {TRIES} times while it was claimed"


def _lost(held: Held | None, epoch: int, by: Claim, now: float) -> str | None:
    """Return why a claim cannot be made; "" if it was made before, None if it can."""
    if held is None:
        return "it has no lease any more"
    lease = held.lease
    if lease.is_of(by.job, by.attempt):
        return ""
    if lease.state == ENDED:
        return f"its lease has ended: {lease.why}" if lease.why else "its lease has ended"
    if lease.state == CLAIMED or lease.epoch + 1 != epoch:
        return f"{lease.job} took it first"
    return "its lease ends now" if lease.state != FREE or now >= lease.until else None


def is_claimed(store: Store, slice_: str, job: str, attempt: int) -> bool:
    """Return True if an attempt holds a slice, or has held it. Raises StoreError."""
    try:
        held = leases.read(store, slice_)
    except (wire.Unreadable, wire.Newer):
        return False
    return held is not None and held.lease.state != FREE and (held.lease.job, held.lease.attempt) == (job, attempt)
