"""The roll of jobs that have not ended: an empty object for each, so that a listing reads none of those that have.

A job is on it before it exists, and is struck off by a process that followed it to its end, or listed it and saw that
it has ended. So it may name jobs that have ended, or were never submitted; it lacks no live job, except those that a
release without a roll submits. A store that such releases used is read through once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import side_by_side

NEVER_SUBMITTED = 86400.0  # seconds on the roll, after which a job without records will never have any


def add(store: Store, job_id: str) -> None:
    """Put a job on the roll. Raises StoreError if that cannot be written."""
    store.put(names.live(job_id), b"")


def remove(store: Store, job_id: str) -> None:
    """Take a job off the roll; if that fails, it is left to a process that lists it."""
    with contextlib.suppress(StoreError):
        store.delete(names.live(job_id))


def live_jobs(store: Store, lives: Callable[[str], bool]) -> list[str]:
    """Return the ids of the jobs on the roll. `lives` tells of a job whether it has not ended: it is asked of every job
    of a store that has no whole roll yet, once.
    """
    if store.read(names.ROLL) is None:
        found = list(every_job(store))
        entered = side_by_side(lives, found, store.parallel)
        living = [job_id for job_id, is_live in zip(found, entered, strict=True) if is_live]
        try:
            for job_id in living:
                add(store, job_id)
            store.create(names.ROLL, wire.encode({"whole": True}))
        except StoreError:  # there is no room for a roll, or no right to write one: the next listing makes it
            return living
    return [entry.name.removeprefix(names.LIVE) for entry in store.list(names.LIVE)]


def remove_if_never_submitted(store: Store, job_id: str) -> None:
    """Take a job that is not there off the roll, unless it may be on its way."""
    with contextlib.suppress(StoreError):
        entry = store.find(names.live(job_id))
        if entry is not None and store.now() - entry.updated > NEVER_SUBMITTED:
            store.delete(names.live(job_id))


def every_job(store: Store) -> Iterator[str]:
    """Return the ids of all jobs that the store still knows, in the order of their names."""
    for entry in store.list(names.JOBS):
        if entry.name.endswith("/in/spec.json"):
            yield entry.name.split("/")[1]
