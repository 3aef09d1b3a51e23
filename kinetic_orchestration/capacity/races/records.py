"""The records of a race in the store: which place has won, which have failed, and what the others have cost.

Each is created once and never changed. Which place has won is written by a host (`host.attempt.race`), and only read
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from kinetic_orchestration.capacity.races.rules import Failed
from kinetic_orchestration.errors import Corrupt, StoreError
from kinetic_orchestration.plan.records import fields_of, verdict_at
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire

Believes = Callable[[int, bytes], bool]  # of an attempt: does this record of who has won its race count?


def winner(store: Store, job_id: str, attempt: int, believes: Believes | None = None) -> int | None:
    """Return the place that has won; None if none has. A damaged record names none, for hosts as well, and neither does
    one that is not to be believed. Whoever releases the others by it says what is: anybody may have written it."""
    name = names.won(job_id, attempt)
    record = store.read(name)
    try:
        rival = None if record is None else int(fields_of(record.data, wire.WON, name)["rival"])
        return rival if record is None or believes is None or believes(attempt, record.data) else None
    except Corrupt:
        return None


def failures(store: Store, job_id: str, attempt: int, numbers: Iterable[int]) -> dict[int, Failed]:
    """Return which of these places have failed for good, and why."""
    found: dict[int, Failed] = {}
    for number in numbers:
        name = names.lost(job_id, attempt, number)
        if (record := store.read(name)) is not None:
            verdict = verdict_at(record.data, name)
            found[number] = Failed(verdict.cause or wire.INFRASTRUCTURE, verdict.reason)
    return found


def fail(store: Store, job_id: str, attempt: int, number: int, why: Failed, writer: str) -> None:
    """Record that a place has failed: nobody asks it again."""
    verdict = wire.Verdict(wire.CLOSED, writer, store.now(), cause=why.cause, reason=why.reason)
    store.create(names.lost(job_id, attempt, number), verdict.encode())


def saw_held(store: Store, job_id: str, attempt: int, number: int, since: float) -> None:
    """Record since when the hosts of a place that has not won were charged for, unless they said so themselves."""
    with suppress(StoreError):
        store.create(names.held(job_id, attempt, number), wire.encode({"since": since}))


def saw_gone(store: Store, job_id: str, attempt: int, number: int) -> None:
    """Record that they were seen to be gone. A host writes it, too, when it has asked for its deletion."""
    with suppress(StoreError):
        store.create(names.gone(job_id, attempt, number), wire.encode({"seen": True}))


def gone_since(store: Store, key: tuple[str, int], numbers: Iterable[int], patience: float) -> list[float]:
    """Return when places of an attempt were gone, of those of which that is known: they were seen to be so, or their
    hosts asked for their deletion so many seconds ago."""
    found, now = [], store.now()
    for record in store.read_all([names.gone(*key, number) for number in numbers]):
        if record is None:
            continue
        with suppress(wire.Unreadable, wire.Newer):
            if wire.decode(record.data).get("seen") is True or now - record.updated > patience:
                found.append(record.updated)
    return found
