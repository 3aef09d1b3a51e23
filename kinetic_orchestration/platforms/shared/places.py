"""The place in which an attempt requests its hosts, and the wait before: pure, from the end of the previous attempt.

A place is a zone of a cloud or a cluster; for a job that may get its hosts in several ways, each of them in each place
is one (`capacity/choosing.py`). Places are tried in the given order. After a stockout the next place follows;
one without quota or permission is not tried again. After a whole round without capacity comes a wait, longer each time.
An attempt that had its hosts starts in their place, with a new round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.errors import NoPlace
from kinetic_orchestration.plan.values import Past
from kinetic_orchestration.protocol import wire

# Causes of attempts that never had hosts.
WITHOUT_HOSTS = (wire.STOCKOUT, wire.QUOTA, wire.INTERNAL)

TWICE = 2  # retries in the same place after an internal error there
PAUSE = 4.0  # seconds, times the number of tries
RATE_PAUSE = 30.0
FIRST_WAIT = 30.0  # after the first round without capacity; doubled by each further one,
LONGEST_WAIT = 300.0  # up to this
JITTER = 0.25


class Refusal(NamedTuple):
    """The meaning of the previous place's answer for the next choice."""

    later: bool = False  # the same call, later: only its rate is limited
    gone: tuple[str, ...] = ()  # places that are never tried again


class Choice(NamedTuple):
    """The place and the wait; the other fields are the state for the next choice."""

    place: str
    wait: float = 0.0
    tried: tuple[str, ...] = ()  # in this round, before this place
    dropped: tuple[str, ...] = ()  # never tried again
    tries: int = 0  # consecutive internal errors in this place
    rounds: int = 0  # rounds without capacity in any place


def first(places: Sequence[str], where: str) -> Choice:
    """Return the first place. Raises NoPlace if there is none; `where` says how places are named."""
    if not places:
        raise NoPlace(where)
    return Choice(places[0])


def following(
    places: Sequence[str],
    past: Past,
    seed: str,
    refusal: Refusal = Refusal(),  # noqa: B008 - frozen
    *,
    patience: float = 0.0,
    stay: bool = False,
    leave: bool = False,
    told: Callable[[str], str] = str,
) -> Choice:
    """Return the place after `past`.

    Args:
        places: All places, in the order in which they are tried.
        past: Placement and end of the attempt before.
        seed: Text of this attempt, by which waits of different attempts differ.
        refusal: What the answer of the attempt's place means.
        patience: How long one place is worth waiting for; a first wait is never longer. 0: no bound.
        stay: The hosts can be had in their one place only, as with a reservation.
        leave: The place that lost its hosts comes after all others.
        told: Returns a place as users know it.

    Raises:
        NoPlace: No place is left.
    """
    before = _before(past)
    if past.cause not in WITHOUT_HOSTS:
        others = [place for place in places if place not in (before.place, *before.dropped)]
        if before.place in places and not (leave and others):
            return Choice(before.place, dropped=before.dropped)
        tried = () if leave else before.tried
        return _next(places, before._replace(rounds=0, tried=tried), past.reason, seed, patience, told)
    if refusal.later:
        return before._replace(wait=_jittered(RATE_PAUSE, seed))
    if past.cause == wire.INTERNAL and before.tries < TWICE:
        tries = before.tries + 1
        return before._replace(tries=tries, wait=_jittered(PAUSE * tries, seed))
    if refusal.gone and stay:
        raise NoPlace(f"there is no other place for a reservation's slice: {past.reason}")
    new = tuple(place for place in refusal.gone if place not in before.dropped)
    before = before._replace(dropped=(*before.dropped, *new))
    return _next((before.place,) if stay else places, before, past.reason, seed, patience, told)


def history(choice: Choice, previous: Past | None) -> dict[str, Any]:
    """Return the fields of a placement by which the next choice is made, and users are told how it came to this one."""
    since, moved = 0.0, 0
    if previous is not None:
        moved = int(previous.placement.get("moved", 0))
        if previous.cause in WITHOUT_HOSTS:
            moved += 1
            since = float(previous.placement.get("since") or previous.created)
    return {
        "wait": choice.wait,
        "since": since,
        "moved": moved,
        "tried": list(choice.tried),
        "dropped": list(choice.dropped),
        "tries": choice.tries,
        "rounds": choice.rounds,
    }


def _before(past: Past) -> Choice:
    placement = past.placement
    return Choice(
        placement["zone"],
        0.0,
        tuple(placement.get("tried", ())),
        tuple(placement.get("dropped", ())),
        placement.get("tries", 0),
        placement.get("rounds", 0),
    )


def _next(
    places: Sequence[str], before: Choice, reason: str, seed: str, patience: float, told: Callable[[str], str]
) -> Choice:
    """The next place in the order that this round has not tried; else the first one again, after a wait."""
    left = [place for place in places if place not in before.dropped]
    if not left:
        named = ", ".join(map(told, places))
        raise NoPlace(f"no place is left to try of {named}; of the last one the answer was: {reason}")
    tried = (*before.tried, before.place)
    at = places.index(before.place) + 1 if before.place in places else 0
    order = [place for place in (*places[at:], *places[:at]) if place in left]
    for place in order:
        if place not in tried:
            return Choice(place, 0.0, tried, before.dropped, 0, before.rounds)
    rounds = before.rounds + 1
    wait = min(LONGEST_WAIT, (min(FIRST_WAIT, patience) if patience else FIRST_WAIT) * 2 ** min(rounds - 1, 10))
    return Choice(left[0], _jittered(wait, seed), (), before.dropped, 0, rounds)


def _jittered(seconds: float, seed: str) -> float:
    """A little more or less, the same for the same attempt: jobs that failed together do not come back together."""
    part = int(hashlib.sha256(seed.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF
    return round(seconds * (1 + JITTER * (2 * part - 1)), 3)
