"""The roll of jobs that have not ended: an empty object for each, so that a listing reads none of those that have.

A job is on it before it exists, and is struck off by a process that followed it to its end, or listed it and saw that
it has ended. So it may name jobs that have ended, or were never submitted; it lacks no live job, except those that a
release without a roll submits. A store that such releases used is read through once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

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
        found = list(submitted(store))
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


def submitted(store: Store) -> dict[str, float]:
    """Return when each job that the store still knows was submitted, by the store's clock and in the order of ids.

    It is the one listing of jobs. Where the server can, it returns nothing but their specs; in a folder, one look at
    each spec takes the place of a walk through all files of its job, which are tens.

    Raises:
        StoreError: The store refused, or did not answer.
    """
    if store.folder is not None:
        return dict(_submitted_in(f"{store.folder}/{names.JOBS}"))
    last = names.spec("").rpartition("/")[2]
    listed = ((entry.name.split("/")[1], entry) for entry in store.list(names.JOBS, last=last))
    return {job_id: entry.updated for job_id, entry in listed if entry.name == names.spec(job_id)}


def _submitted_in(folder: str) -> list[tuple[str, float]]:
    found = []
    try:
        with os.scandir(folder) as scanned:
            listed = sorted(entry.name for entry in scanned if entry.name[0] != ".")
        for job_id in listed:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                found.append((job_id, os.stat(f"{folder}{names.spec(job_id).removeprefix(names.JOBS)}").st_mtime))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"the jobs in {folder} cannot be listed: {error.strerror}") from error
    return found
