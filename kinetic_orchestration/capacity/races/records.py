"""The records of a race in the store: which place has won, which have failed, and what the others have cost.

Each is created once and never changed. Which place has won is written by a host (`host.attempt.race`), and only read
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from kinetic_orchestration.capacity.races.rules import Failed
from kinetic_orchestration.errors import Corrupt, StoreError
from kinetic_orchestration.plan.records import fields_of, verdict_at
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire


def winner(store: Store, job_id: str, attempt: int) -> int | None:
    """Return the place that has won; None if none has. A damaged record names none, for hosts as well."""
    name = names.won(job_id, attempt)
    record = store.read(name)
    try:
        return None if record is None else int(fields_of(record.data, wire.WON, name)["rival"])
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
    """Record that they are gone."""
    with suppress(StoreError):
        store.create(names.gone(job_id, attempt, number), wire.encode({}))
