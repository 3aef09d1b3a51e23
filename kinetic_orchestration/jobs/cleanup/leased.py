"""Judges slices that a listing has found by their leases: whose they are by now, and whether they may go.

A slice keeps the labels of the attempt that it was made for, whomever it serves later. Where a lease cannot be read,
what the labels say of its deadline decides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.capacity.races import has_lost
from kinetic_orchestration.errors import KineticError, NewerWire, StoreError, Unreachable
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.job import ME
from kinetic_orchestration.plan.configuration.settings import duration
from kinetic_orchestration.plan.records import plan_of, spec_of, verdict_at
from kinetic_orchestration.plan.values import Observation, Plan
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.wire.lease import CLAIMED, ENDED, FREE, Lease

if TYPE_CHECKING:
    from kinetic_orchestration.capacity.warm import releasing

OVERDUE = 300.0  # seconds after the end of a lease at which its hosts should long have deleted the slice
SETTLED = 60.0  # seconds after that end within which those who ended it delete it

Judgement = tuple[dict[str, Any], str, str]
"""A placement as that of the attempt whose it is now, why it should go ("" if it may not), and with which cause."""
Unwanted = Callable[[Store, Mapping[str, Any], Observation], tuple[str, str]]


def judged(
    store: Store, placement: dict[str, Any], seen: Observation, why: str, cause: str, unwanted: Unwanted
) -> Judgement:
    """Return the judgement of a placement that its labels do not want any more. Raises StoreError.

    Args:
        store: The store.
        placement: The placement, by its labels or by the records of its job.
        seen: What was seen of it.
        why: Why its labels do not want it.
        cause: With which cause its attempt then ends.
        unwanted: Judges the placement of an attempt.
    """
    if not placement.get("name") or not placement.get("zone"):
        return placement, why, cause
    try:
        held = leases.read(store, placement["name"])
    except Unreachable:
        raise
    except (wire.Unreadable, wire.Newer, StoreError):
        overdue = bool(placement.get("expires")) and store.now() > placement["expires"] + OVERDUE
        return placement, why if overdue else "", cause
    if held is not None:
        return _by_lease(store, held, {**placement, "held": held}, seen, unwanted)
    is_cleaning = cause != wire.DEADLINE and _use_of(store, placement).is_cleaning(store.now())
    return placement, "" if is_cleaning else why, cause


def _by_lease(
    store: Store, held: leases.Held, placement: dict[str, Any], seen: Observation, unwanted: Unwanted
) -> Judgement:
    lease, now = held.lease, store.now()
    if lease.state == ENDED:
        told = f"its lease has ended: {lease.why}" if lease.why else "its lease has ended"
        return placement, told if now - lease.since > SETTLED else "", ""
    if lease.state == FREE:
        late = now - lease.until
        told = f"nobody took it, and its lease ended {duration(round(late))} ago" if late > OVERDUE else ""
        return placement, told, ""
    age = max(0.0, now - lease.since)
    placement = {name: value for name, value in placement.items() if name != "rival"}  # of the race of another attempt
    placement |= {"job": lease.job, "attempt": lease.attempt, "expires": lease.until, "age": age}
    why, cause = unwanted(store, placement, seen)
    if why and not cause and _use_of(store, placement).is_cleaning(now):  # it has its verdict
        why = ""
    return placement, why, cause


def ended(store: Store, placement: Mapping[str, Any], why: str) -> bool:
    """End the lease of a placement that was judged, before it is deleted. Returns False if the lease has changed since:
    then it may not be. Raises Unreachable."""
    held = placement.get("held")
    try:
        if held is None:
            use = _use_of(store, placement) if placement.get("zone") and placement.get("name") else None
            if use is None or not use.may_be_offered:
                return True
            from kinetic_orchestration.capacity.warm import releasing

            return releasing.refuse_offers(store, use, why)
        if held.lease.state == ENDED:
            return True
        return leases.write(store, held.lease.ended(why, writer=ME, now=store.now(), is_there=True), held)
    except Unreachable:
        raise
    except StoreError:  # without a lease, nobody but its own attempt has it
        return held is None


def serves(placement: Mapping[str, Any]) -> bool:
    """Return True if a placement that was judged has served its attempt until now: what was idle is charged to none."""
    held = placement.get("held")
    return held is None or held.lease.state == CLAIMED


def _use_of(store: Store, placement: Mapping[str, Any]) -> releasing.Use:
    """Return what an attempt has of its slice, by its records; that it leaves none, if these may not be read. Raises
    Unreachable."""
    job, attempt = placement["job"], placement["attempt"]
    try:
        spec, verdict = store.read_all([names.spec(job), names.verdict(job, attempt)])
    except Unreachable:
        raise
    except StoreError:
        spec = verdict = None
    from kinetic_orchestration.capacity.warm import releasing

    leaves = False
    with contextlib.suppress(NewerWire):
        told = None if verdict is None else verdict_at(verdict.data, names.verdict(job, attempt))
        leaves = told is not None and told.leaves_slice(lifecycle.classify(told))
        leaves = leaves and not has_lost(store, placement)
    at = 0.0 if verdict is None else verdict.updated
    return releasing.Use(job, attempt, _plan(job, spec), placement, leaves, at, ME)


def _plan(job: str, spec: Record | None) -> Plan | None:
    try:
        return None if spec is None else plan_of(spec_of(spec.data, job), job)
    except KineticError:  # damaged, or of a newer version
        return None


def overdue(store: Store, retention: float, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """End leases that nobody has ended in time, as those of slices that were taken away, and forget those that ended
    long ago. Returns the slices of both."""
    late, old, listed = list[str](), list[str](), [entry.name for entry in store.list(names.SLICES)]
    if not listed:
        return late, old
    from kinetic_orchestration.capacity.warm.records import slices

    now, marks = store.now(), [name for name in listed if "/clean/" in name]
    for held in slices(store):
        lease: Lease = held.lease
        if not dry_run:
            _remove_marks(store, lease, marks)
        if lease.state != ENDED and now > lease.until + OVERDUE and (lease.until or lease.state != CLAIMED):
            late.append(lease.slice)
            if not dry_run:
                leases.write(store, lease.ended("nobody has ended it in time", writer=ME, now=now), held)
        elif lease.state == ENDED and now - held.updated > retention:
            old.append(lease.slice)
    for name in old if not dry_run else ():
        for entry in list(store.list(f"{names.SLICES}{name}/")):
            store.delete(entry.name)
    return late, old


def _remove_marks(store: Store, lease: Lease, marks: Iterable[str]) -> None:
    """Remove the marks of clean hosts of epochs before the one of a lease."""
    prefix = f"{names.SLICES}{lease.slice}/clean/"
    for name in marks:
        epoch = name.removeprefix(prefix).partition("/")[0]
        if name.startswith(prefix) and epoch.isdecimal() and int(epoch) < lease.epoch:
            store.delete(name)
