"""Which attempts a job has had, without a look at each: by listings, and by what the newest intent sums up.

A day without capacity makes hundreds of attempts that never had hosts. Nothing is read of these but when they began and
ended, and that comes with the listings. It does not know what an attempt's records mean.
"""

from __future__ import annotations

from typing import NamedTuple

from kinetic_orchestration.agent import names
from kinetic_orchestration.agent.schema import MOST_ATTEMPTS
from kinetic_orchestration.records import intent_of
from kinetic_orchestration.stores import Store
from kinetic_orchestration.values import Before

FEW = 16  # attempts that are looked at without asking whether they are there


class Times(NamedTuple):
    """By the store's clock: when its intent and its verdict were written."""

    began: float | None = None
    ended: float | None = None


def newest(store: Store, job_id: str) -> int:
    """The last that was promised a place; 0: none was."""
    return max(_listed(store, names.intents(job_id)), default=0)


def times(store: Store, job_id: str) -> dict[int, Times]:
    """Of all, the oldest first. One that was cancelled before it had a place has never begun."""
    began = _listed(store, names.intents(job_id))
    ended = _listed(store, names.verdicts(job_id))
    return {number: Times(began.get(number), ended.get(number)) for number in sorted({*began, *ended})}


def with_hosts(store: Store, job_id: str, last: int) -> list[int]:
    """Those up to `last` that may have had hosts; `last` is always one of them."""
    before = _before(store, job_id, last)
    if before is not None and len(before.ran) <= FEW:
        return [*before.ran, last]
    ran = _listed(store, names.intents(job_id))  # an intent may name many: no more than were written are looked at
    wanted = ran.keys() if before is None else ran.keys() & before.ran
    return sorted({*(number for number in wanted if number < last), last})


def ahead(store: Store, job_id: str, attempt: int, *, all_with_hosts: bool) -> tuple[int, ...]:
    """Of attempts after this one, up to the last but one, those worth a look; () if none is left out by that.

    Whoever intends an attempt has released the one before. So only the slice of the last but one may be left to those
    who come later; and of the others they may want what their hosts wrote.
    """
    last = newest(store, job_id) - 1
    before = _before(store, job_id, last) if last > attempt else None
    if before is None:
        return ()
    ran = with_hosts(store, job_id, last) if len(before.ran) > FEW else (*before.ran, last)
    return tuple(number for number in ran if number == last or (all_with_hosts and number > attempt))


def _before(store: Store, job_id: str, attempt: int) -> Before | None:
    record = store.read(names.intent(job_id, attempt))
    return None if record is None else intent_of(record, job_id, attempt).before


def _listed(store: Store, prefix: str) -> dict[int, float]:
    """When the records of each were written."""
    found: dict[int, float] = {}
    for entry in store.list(prefix):
        number, _, record = entry.name.removeprefix(prefix).partition("/")
        known = record in ("intent.json", "verdict.json")
        if known and number.isascii() and number.isdecimal() and len(number) < 8 and 0 < int(number) <= MOST_ATTEMPTS:
            found[int(number)] = entry.updated
    return found
