"""Chooses the kept slice that an attempt takes, by the leases of all. Pure: of jobs, it knows the plans alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.capacity.warm.shape import shape_of
from kinetic_orchestration.plan.configuration.settings import duration
from kinetic_orchestration.plan.records import Within
from kinetic_orchestration.plan.values import Past, Plan
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.records.leases import Held
from kinetic_orchestration.protocol.schema import Wrong
from kinetic_orchestration.protocol.wire.lease import FREE, OF_RUN, Lease

SPARE = 2.0  # seconds that a lease must have left: what is about to end is not worth a try
MOST_LOST = 2  # claims in a row that others were faster with, after which hosts are created
_PLACE = ("backend", "project", "zone", "name", "hosts", "slices", "grouped", "model")


class Warm(NamedTuple):
    """A kept slice that an attempt can take.

    Attributes:
        lease: Its lease, as it was read.
        choice: The number of the plan's candidate that it is of.
        why: Why it is taken, for users.
    """

    lease: Lease
    choice: int
    why: str

    def placement(self, past: Past | None) -> dict[str, Any]:
        """Return the placement of the attempt. `past`: how the one before was placed and ended."""
        since, moved, lost = 0.0, 0, lost_claims(past)
        if past is not None:
            moved = int(past.placement.get("moved", 0))
            if past.cause in (wire.STOCKOUT, wire.QUOTA, wire.INTERNAL):
                moved, since = moved + 1, float(past.placement.get("since") or past.created)
        return {
            **{name: value for name in _PLACE if (value := self.lease.placement.get(name)) is not None},
            **({"choice": self.choice} if self.choice else {}),
            "why": self.why,
            "wait": 0.0,
            "since": since,
            "moved": moved,
            "lease": {
                "slice": self.lease.slice, "epoch": self.lease.epoch + 1, **({"lost": lost} if lost else {}),
            },
        }  # fmt: skip


def lost_claims(past: Past | None) -> int:
    """Return how many attempts in a row, up to the one before, lost the slice that they were to claim to others."""
    lease = past.placement.get("lease") if past is not None and past.cause == wire.INTERNAL else None
    return int(lease.get("lost", 0)) + 1 if lease else 0


def was_unserved(leases: Iterable[Held], past: Past | None, job_id: str, attempt: int) -> bool:
    """Return True if the attempt before held a kept slice that no host of it has served: they are dead, and others that
    were kept beside them may be so, too."""
    if past is None or past.cause != wire.INTERNAL or "lease" not in past.placement:
        return False
    before = (job_id, attempt - 1)
    return any((one.lease.job, one.lease.attempt) == before and one.lease.state != FREE for one in leases)


def fitting(
    leases: Iterable[Held],
    plan: Plan,
    within: Within,
    now: float,
    *,
    job_id: str,
    attempt: int,
    origin: Mapping[str, str],
    fits: Callable[[int], bool],
    lasts: Callable[[Plan], float],
) -> list[Warm]:
    """Return the slices that are free and that the attempt can take, whoever may give them orders.

    Those that the attempt's own run has left come first, then those that were offered last.

    Args:
        leases: All that are known.
        plan: The job's plan.
        within: Its places.
        now: The store's time.
        job_id: The job.
        attempt: Its attempt.
        origin: Its run, as an orchestrator names it.
        fits: Returns True if the attempt may be of the candidate of this number.
        lasts: Returns for how many seconds an attempt of it may hold its hosts; 0 for ever.
    """
    shapes: dict[str, int] = {}
    for number, one in reversed(list(enumerate(plan.each()))):
        if fits(number):
            shapes[shape_of(one)] = number
    found: list[Warm] = []
    for held in leases:
        lease = held.lease
        choice = shapes.get(lease.shape)
        if choice is None or lease.state != FREE or now > lease.until - SPARE:
            continue
        longest = lasts(plan.at(choice))
        if lease.last and (not longest or now + longest > lease.last):
            continue
        warm = Warm(lease, choice, _why(lease, origin, now))
        if _is_within(within, warm, job_id, attempt):
            found.append(warm)
    return sorted(found, key=lambda one: (not _is_of_run(one.lease, origin), -one.lease.since, one.lease.slice))


def best(
    found: Sequence[Warm], job_id: str, attempt: int, origin: Mapping[str, str], has_key: Callable[[Lease], bool]
) -> Warm | None:
    """Return the slice to take; None if there is none. Jobs that ask at the same time begin with different ones.

    Args:
        found: Those that fit.
        job_id: The job.
        attempt: Its attempt.
        origin: Its run, as an orchestrator names it.
        has_key: Returns True if this process can give orders to the slice.
    """
    obey = [one for one in found if has_key(one.lease)]
    first = [one for one in obey if _is_of_run(one.lease, origin)] or obey
    turn = int(hashlib.sha256(f"{job_id}-{attempt}".encode()).hexdigest()[:8], 16)
    return first[turn % len(first)] if first else None


def _is_of_run(lease: Lease, origin: Mapping[str, str]) -> bool:
    return bool(origin.get("run")) and all(lease.origin.get(name) == origin.get(name) for name in OF_RUN)


def _is_within(within: Within, warm: Warm, job_id: str, attempt: int) -> bool:
    try:
        within.checked(warm.placement(None), job_id, attempt)
    except Wrong:
        return False
    return True


def _why(lease: Lease, origin: Mapping[str, str], now: float) -> str:
    whose = f"its run has left it with {lease.job}" if _is_of_run(lease, origin) else f"{lease.job} has left it"
    return f"it is warm: {whose} {duration(max(0.0, round(now - lease.since)))} ago"
