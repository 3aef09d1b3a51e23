"""Decides what follows from the places of a race: pure, from what was seen of each and is known of those that failed.

A place is one placement of an attempt, by its number; the first has 0. Which one has won is decided by its hosts alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.plan.values import (
    ABSENT,
    GONE,
    PARTIAL,
    PRESENT,
    PROVISIONING,
    QUEUED,
    UNKNOWN,
    WOUNDED,
    Freed,
    Intent,
    Observation,
)
from kinetic_orchestration.protocol import wire

# Of places that may still win, the state of the first kind that there is stands for the race.
_BEST = (PRESENT, PARTIAL, PROVISIONING, QUEUED, UNKNOWN, ABSENT)
# Of several releases, the result of all: what was kept keeps nothing waiting, and is not asked for again.
_WORST = (Freed.REFUSED, Freed.KEPT, Freed.UNDER_WAY, Freed.PARTLY, Freed.DONE)
# What ends an attempt of which every place has failed: the cause that a user most needs to know of.
_GRAVEST = (wire.CONFIGURATION, wire.DAMAGED, wire.DEADLINE, wire.PREEMPTION, wire.INFRASTRUCTURE)
_FROM_FIRST = ("wait", "since", "patience")  # fields of history that all places of a race have alike


class Failed(NamedTuple):
    """The reason for which a place of a race has no hosts."""

    cause: str
    reason: str


def entered(placement: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the placement of an attempt that asks these places as well."""
    if not rivals:
        return dict(placement)
    shared = {name: placement[name] for name in _FROM_FIRST if name in placement}
    plain = [
        {name: value for name, value in rival.items() if name not in ("tried", "dropped", "tries", "rounds", "moved")}
        for rival in rivals
    ]
    return {
        **placement, "rival": 0,
        "rivals": [{**rival, **shared, "rival": number} for number, rival in enumerate(plain, 1)],
    }  # fmt: skip


def decided(intent: Intent, winner: int) -> Intent:
    """Return the intent of a race that this place has won: it is the attempt's, and the others are released."""
    places = intent.places
    if not intent.races or not 0 <= winner < len(places):
        return intent
    told: dict[str, Any] = {
        name: places[0][name] for name in ("tried", "dropped", "tries", "rounds", "moved") if name in places[0]
    }
    others = [place for place in places if place["rival"] != winner]
    return intent._replace(placement={**told, **places[winner], "rivals": others, "won": True})


def joined(
    places: Sequence[Mapping[str, Any]], seen: Sequence[Observation], failed: Mapping[int, Failed]
) -> Observation:
    """Return the observation of a race of which no place is known to have won.

    Args:
        places: All places, by number.
        seen: What was seen of each.
        failed: Those that have failed for good, by number.
    """
    lost = {number: _end(one) for number, one in enumerate(seen) if one.state in (GONE, WOUNDED)} | dict(failed)
    left = [number for number in range(len(places)) if number not in lost]
    charged = min((one.charged for one in seen if one.charged), default=0.0)
    if not left:
        cause, reason = ended(places, lost)
        return Observation(GONE, reason, cause, charged=charged)
    there = tuple(number for number in left if seen[number].state == PRESENT)
    known = tuple((number, *lost[number]) for number in sorted(lost))
    best = min(left, key=lambda number: _rank(seen[number].state))
    found = seen[best]
    told = "; ".join(_told(places[number], seen[number]) for number in left)
    told += "".join(f"; {_failure(places[number], lost[number])}" for number in sorted(lost))
    asked_for = found.state != PRESENT and any(is_missing(seen[number]) for number in left)
    # How many of the slices there are is not known of a race: none of its programs runs yet.
    lacks = asked_for and found.state != ABSENT
    return found._replace(message=told.removeprefix("; "), charged=charged, lacks=lacks, there=there, lost=known)


def is_missing(seen: Observation) -> bool:
    """Return True if a place is to be asked: nothing is there, or some hosts are not, or it cannot be looked at."""
    return seen.state in (ABSENT, PARTIAL) or (seen.state == UNKNOWN and seen.cause != "")


def ended(places: Sequence[Mapping[str, Any]], lost: Mapping[int, Failed]) -> Failed:
    """Return how a race of which all places have failed has ended: with the answer of each, the last one last."""
    causes = [one.cause for one in lost.values()]
    cause = next((grave for grave in _GRAVEST if grave in causes), causes[-1])
    told = [_failure(places[number], one) for number, one in sorted(lost.items()) if number < len(places)]
    return Failed(cause, "; ".join(told))


def freed(each: Iterable[Freed]) -> Freed:
    """Return the result of several releases."""
    return min(each, key=_WORST.index, default=Freed.DONE)


def affordable(seconds: float, places: int, patience: float) -> float:
    """Return for how many seconds the hosts of a race may be held with money for so many of one place; 0: no limit.

    What the others cost until they are released is kept back: that of the patience with each, or its whole part of the
    money.

    Args:
        seconds: For which the money pays, of one place.
        places: That are asked.
        patience: Seconds after which hosts that are there and say nothing are given up; those that speak have won, or
            delete themselves at once.
    """
    return max(seconds / places, seconds - patience * (places - 1)) if seconds > 0 else seconds


def named(place: Mapping[str, Any]) -> str:
    """Return a place for users."""
    return str(place.get("zone", ""))


def _rank(state: str) -> int:
    return _BEST.index(state) if state in _BEST else len(_BEST)


def _end(seen: Observation) -> Failed:
    return Failed(seen.cause or wire.INFRASTRUCTURE, seen.message or "its hosts are gone")


def _told(place: Mapping[str, Any], seen: Observation) -> str:
    where, said = named(place), seen.message or "asked"
    return said if where in said else f"{where}: {said}"


def _failure(place: Mapping[str, Any], failed: Failed) -> str:
    last = next((line for line in reversed(failed.reason.splitlines()) if line.strip()), failed.cause)
    where = named(place)
    return f"{failed.cause}: {last}" if where in last else f"{where}: {failed.cause}: {last}"
