"""The zone in which an attempt requests its slice, and the wait before: pure, from the end of the previous attempt.

Zones are tried in the given order. After a stockout the next zone follows; a zone without quota or permission is not
tried again. After a whole round without capacity comes a wait, longer each time. An attempt that had its hosts starts
in their zone, with a new round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from kinetic_orchestration.errors import NoPlace
from kinetic_orchestration.plan.hardware.regions import region_of
from kinetic_orchestration.plan.values import Past
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.protocol import wire

# Causes of attempts that never had hosts.
WITHOUT_HOSTS = (wire.STOCKOUT, wire.QUOTA, wire.INTERNAL)

TWICE = 2  # retries in the same zone after an internal error of the cloud
PAUSE = 4.0  # seconds, times the number of tries
RATE_PAUSE = 30.0
FIRST_WAIT = 30.0  # after the first round without capacity; doubled by each further one,
LONGEST_WAIT = 300.0  # up to this
JITTER = 0.25


class ZoneChoice(NamedTuple):
    """The zone and the wait; the other fields are the state for the next choice."""

    zone: str
    wait: float = 0.0
    tried: tuple[str, ...] = ()  # in this round, before this zone
    dropped: tuple[str, ...] = ()  # never tried again
    tries: int = 0  # consecutive internal errors of the cloud in this zone
    rounds: int = 0  # rounds without capacity in any zone


def first(zones: Sequence[str]) -> ZoneChoice:
    if not zones:
        raise NoPlace("no zone is known for this slice: name some with cloud=TpuVm(zones=[…]) or KINETIC_ZONES")
    return ZoneChoice(zones[0])


def following(zones: Sequence[str], past: Past, seed: str, *, patience: float = 0.0, stay: bool = False) -> ZoneChoice:
    """The place after `past`. `stay`: the slice can be had in its one zone only, as with a reservation.

    `patience` is how long one zone is worth waiting for: a first wait is never longer than that.
    """
    before = _before(past)
    if past.cause not in WITHOUT_HOSTS:
        if before.zone in zones:
            return ZoneChoice(before.zone, dropped=before.dropped)
        return _next(zones, before._replace(rounds=0), past.reason, seed, patience)
    trouble = api_errors.recall(past.reason)
    action = trouble.action if trouble is not None else ""
    if action == api_errors.LATER:
        return before._replace(wait=_jittered(RATE_PAUSE, seed))
    if past.cause == wire.INTERNAL and before.tries < TWICE:
        tries = before.tries + 1
        return before._replace(tries=tries, wait=_jittered(PAUSE * tries, seed))
    if trouble is not None and action == api_errors.DROP and not stay:
        scope = trouble.scope or before.zone
        gone = tuple(zone for zone in zones if zone not in before.dropped and scope in (zone, region_of(zone)))
        before = before._replace(dropped=(*before.dropped, *(gone or (before.zone,))))
    elif trouble is not None and action == api_errors.DROP:
        raise NoPlace(f"there is no other place for a reservation's slice: {past.reason}")
    return _next((before.zone,) if stay else zones, before, past.reason, seed, patience)


def _before(past: Past) -> ZoneChoice:
    placement = past.placement
    return ZoneChoice(
        placement["zone"],
        0.0,
        tuple(placement.get("tried", ())),
        tuple(placement.get("dropped", ())),
        placement.get("tries", 0),
        placement.get("rounds", 0),
    )


def _next(zones: Sequence[str], before: ZoneChoice, reason: str, seed: str, patience: float) -> ZoneChoice:
    """The next zone in the order that this round has not tried; else the first one again, after a wait."""
    left = [zone for zone in zones if zone not in before.dropped]
    if not left:
        raise NoPlace(f"no zone is left to try of {', '.join(zones)}; of the last one the answer was: {reason}")
    tried = (*before.tried, before.zone)
    at = zones.index(before.zone) + 1 if before.zone in zones else 0
    order = [zone for zone in (*zones[at:], *zones[:at]) if zone in left]
    for zone in order:
        if zone not in tried:
            return ZoneChoice(zone, 0.0, tried, before.dropped, 0, before.rounds)
    rounds = before.rounds + 1
    wait = min(LONGEST_WAIT, (min(FIRST_WAIT, patience) if patience else FIRST_WAIT) * 2 ** min(rounds - 1, 10))
    return ZoneChoice(left[0], _jittered(wait, seed), (), before.dropped, 0, rounds)


def _jittered(seconds: float, seed: str) -> float:
    """A little more or less, the same for the same attempt: jobs that failed together do not come back together."""
    part = int(hashlib.sha256(seed.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF
    return round(seconds * (1 + JITTER * (2 * part - 1)), 3)
