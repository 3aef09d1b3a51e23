"""Lists a job's attempts without reading each of them: by listings, and by the sums in the newest intent.

A day without capacity makes hundreds of attempts that never had hosts. Only their start and end times are read, and
these come with the listings. The meaning of an attempt's records is not known here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from kinetic_orchestration.errors import Corrupt, StoreError
from kinetic_orchestration.plan.records import intent_of
from kinetic_orchestration.plan.values import Before
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.schema import MOST_ATTEMPTS, MOST_PLACES

_HELD = tuple(names.held("", 1, place).rpartition("/")[2] for place in range(MOST_PLACES))
_KINDS = (*_HELD, "freed.json", "intent.json", "left.json", "ready.json", "refused.json", "verdict.json")
FEW = 16  # attempts that are read without a listing first


class Times(NamedTuple):
    """Times of an attempt by the store's clock: intent, verdict, the hosts' departure; and what clients saw of
    hosts.
    """

    began: float | None = None
    ended: float | None = None
    ready: bool = False
    refused: bool = False
    freed: float | None = None
    left: float | None = None


def newest(store: Store, job_id: str) -> int:
    """Return the last attempt that was promised a place; 0 if none was."""
    return max(_listed(store, names.intents(job_id)), default=0)


def times(store: Store, job_id: str) -> dict[int, Times]:
    """Return the times of all attempts, oldest first. One that was cancelled before it had a place never began."""
    listed = _all_listed(store, names.intents(job_id))
    out = _all_listed(store, names.verdicts(job_id))
    began, ended = listed["intent.json"], out["verdict.json"]
    return {
        number: Times(
            began.get(number),
            ended.get(number),
            any(number in listed[kind] for kind in ("ready.json", *_HELD)),
            number in listed["refused.json"],
            listed["freed.json"].get(number),
            out["left.json"].get(number),
        )
        for number in sorted({*began, *ended})
    }


def record_release(store: Store, job_id: str, attempt: int, *, done: bool) -> None:
    """Tell those who ask what the job cost that its hosts were not freed with its verdict, but now, or not yet."""
    name = names.freed(job_id, attempt) if done else names.refused(job_id, attempt)
    with suppress(StoreError):
        store.create(name, wire.encode({}))


def with_hosts(store: Store, job_id: str, last: int) -> list[int]:
    """Return the attempts up to `last` that may have had hosts; `last` is always one of them."""
    before = _before(store, job_id, last)
    if before is not None and len(before.ran) <= FEW:
        return [*before.ran, last]
    ran = _listed(store, names.intents(job_id))  # an intent may name many: only those that were written are read
    wanted = ran.keys() if before is None else ran.keys() & before.ran
    return sorted({*(number for number in wanted if number < last), last})


def ahead(store: Store, job_id: str, attempt: int, *, all_with_hosts: bool) -> tuple[int, ...]:
    """Return the attempts after this one, up to the last but one, that are worth reading; () if none is left out.

    A process that intends an attempt has released the one before. So only the slice of the last but one may be left to
    later processes; from the others they may need what their hosts wrote.
    """
    last = newest(store, job_id) - 1
    before = _before(store, job_id, last) if last > attempt else None
    if before is None:
        return ()
    ran = with_hosts(store, job_id, last) if len(before.ran) > FEW else (*before.ran, last)
    return tuple(number for number in ran if number == last or (all_with_hosts and number > attempt))


def _before(store: Store, job_id: str, attempt: int) -> Before | None:
    record = store.read(names.intent(job_id, attempt))
    try:
        return None if record is None else intent_of(record, job_id, attempt).before
    except Corrupt:  # then each is read
        return None


def _listed(store: Store, prefix: str) -> dict[int, float]:
    """Return when the records of each attempt were written."""
    listed = _all_listed(store, prefix)
    return listed["intent.json"] | listed["verdict.json"]


def _all_listed(store: Store, prefix: str) -> dict[str, dict[int, float]]:
    """Return when records were written, by their kind and then by attempt."""
    found: dict[str, dict[int, float]] = {kind: {} for kind in _KINDS}
    for entry in store.list(prefix):
        number, _, record = entry.name.removeprefix(prefix).partition("/")
        known = record in found
        if known and number.isascii() and number.isdecimal() and len(number) < 8 and 0 < int(number) <= MOST_ATTEMPTS:
            found[record][int(number)] = entry.updated
    return found
