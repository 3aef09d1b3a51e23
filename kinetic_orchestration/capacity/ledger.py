"""The ledger of what the jobs of a pipeline have cost in a month, so that a submission need not read all their records.

    budgets/MONTH/PIPELINE/ledger.json    what ended jobs have cost: an entry for each, the oldest as one sum
    budgets/MONTH/PIPELINE/open/JOB       empty: a job was submitted, and the ledger does not have it yet

A job is opened before anything of it is sent. Whoever looks later reads the records of the open ones, and settles those
that have ended: one compare-and-swap puts them into the ledger, and then their marks go. So wherever a process dies, a
job is open, or in the ledger, or both, and counts once: by its id. Submissions only create marks, so that a thousand of
them at once do not wait for one object.

Anybody who can write to the store can write a ledger: it is a fence against mistakes, not against people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kinetic_orchestration.errors import Corrupt
from kinetic_orchestration.plan.configuration.budgets import TOTAL, Spent
from kinetic_orchestration.plan.records import LEDGER, fields_of
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, schema, wire
from kinetic_orchestration.protocol.system.parallel import side_by_side

MOST = 1000  # entries of their own; with more, the older half becomes one sum


class Account(NamedTuple):
    """Whose ledger it is: a pipeline's, or `TOTAL`, of a month."""

    month: str
    pipeline: str

    @property
    def folder(self) -> str:
        key = TOTAL if self.pipeline == TOTAL else hashlib.sha256(self.pipeline.encode()).hexdigest()[:32]
        return f"{names.BUDGETS}{self.month}/{key}/"

    @property
    def name(self) -> str:
        return f"{self.folder}ledger.json"

    @property
    def opened(self) -> str:
        return f"{self.folder}open/"


class Entry(NamedTuple):
    """The cost of one job. `usd`: None if its price is not known. `at`: when it was submitted."""

    usd: float | None
    at: float


class Before(NamedTuple):
    """The sum of the oldest jobs, of which the newest was submitted at `until`."""

    usd: float = 0.0
    jobs: int = 0
    unpriced: int = 0
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Ledger:
    ended: Mapping[str, Entry] = field(default_factory=dict)
    before: Before = field(default=Before())

    @property
    def spent(self) -> Spent:
        known = [entry.usd for entry in self.ended.values() if entry.usd is not None]
        return Spent(
            self.before.usd + sum(known),
            self.before.jobs + len(self.ended),
            self.before.unpriced + len(self.ended) - len(known),
        )

    def with_ended(self, found: Mapping[str, Entry], opened: Collection[str] = ()) -> Ledger:
        """Return the ledger with more jobs, or other costs of known ones. With too many, the older half of those that
        are not `opened` becomes part of the sum: an open one may be settled again, and is known by its id.
        """
        ended = {**self.ended, **found}
        if len(ended) <= MOST:
            return Ledger(ended, self.before)
        closed = sorted((job for job in ended if job not in opened), key=lambda job: ended[job].at)
        old = [ended.pop(job) for job in closed[: len(ended) // 2]]
        before = Before(
            self.before.usd + sum(entry.usd or 0.0 for entry in old),
            self.before.jobs + len(old),
            self.before.unpriced + sum(entry.usd is None for entry in old),
            max([self.before.until, *(entry.at for entry in old)]),
        )
        return Ledger(ended, before)

    def encode(self, account: Account) -> bytes:
        told = {job: [entry.usd, entry.at] for job, entry in self.ended.items()}
        return wire.encode({**account._asdict(), "ended": told, "before": self.before._asdict()})


class Kept(NamedTuple):
    """A ledger as it is in the store. `generation`: 0 if it is not there."""

    ledger: Ledger
    generation: int


def read(store: Store, account: Account) -> Kept | None:
    """Return the ledger; None if there is none. Raises Corrupt if it is damaged, or another account's."""
    record = store.read(account.name)
    if record is None:
        return None
    fields = fields_of(record.data, LEDGER, account.name)
    if (fields["month"], fields["pipeline"]) != account:
        raise Corrupt(f"{account.name} is of {fields['pipeline']!r} in {fields['month']}: somebody has put it there")
    return Kept(_of(fields), record.generation)


def _of(fields: Mapping[str, Any]) -> Ledger:
    ended = {job: Entry(None if usd is None else float(usd), float(at)) for job, (usd, at) in fields["ended"].items()}
    return Ledger(ended, Before(**{name: fields["before"][name] for name in Before._fields}))


def open_job(store: Store, account: Account, job_id: str) -> None:
    """Mark a job as one that costs something from now on, before it is submitted. Raises StoreError."""
    store.create(account.opened + job_id, b"")


def opened(store: Store, account: Account) -> dict[str, float]:
    """Return the ids of the open jobs, each with the time at which it was opened. Other marks are nobody's."""
    found = {entry.name.removeprefix(account.opened): entry.updated for entry in store.list(account.opened)}
    return {job_id: at for job_id, at in found.items() if is_id(job_id)}


def is_id(text: str) -> bool:
    """Tell whether a name in a listing is the id of a job, as a ledger may have it."""
    try:
        schema.job_id(text)
    except schema.Wrong:
        return False
    return True


def write(store: Store, account: Account, kept: Kept | None, ledger: Ledger) -> bool:
    """Put a ledger in the place of the one that was read. Returns False if another process was faster."""
    data = ledger.encode(account)
    if kept is None:
        return store.create(account.name, data) is not None
    return store.swap(account.name, data, kept.generation) is not None


def close_jobs(store: Store, account: Account, jobs: Iterable[str]) -> None:
    """Remove the marks of jobs that a ledger in the store has, or that were never submitted."""
    side_by_side(lambda job_id: store.delete(account.opened + job_id), list(jobs), store.parallel)
