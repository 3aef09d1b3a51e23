"""Placements of live jobs that no listing tells of: in places that only the job names, or that are gone.

A backend lists what this process's settings name. A job may run elsewhere: in a cluster that its own options name, or
in a namespace that was deleted since. Its records say where, and only those of a job whose spec is trusted count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kinetic_orchestration.errors import KineticError, Unreachable
from kinetic_orchestration.jobs.job import open_job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.plan.records import intent_of
from kinetic_orchestration.plan.values import ABSENT, UNKNOWN, Observation
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import side_by_side

RECORDED = "recorded"  # mark of a placement that was found by its job's records


def placements(store: Store, backend: Backend, believed: Trust, listed: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the places of the last two attempts of each job on the roll that is not in `listed`, as leftovers are."""

    def recorded(job_id: str) -> list[dict[str, Any]]:
        try:
            return list(_of(job_id, store, backend, believed))
        except Unreachable:
            raise
        except KineticError:  # one that is damaged, forgotten or of a newer version names no place
            return []

    live = (entry.name.removeprefix(names.LIVE) for entry in store.list(names.LIVE))
    unlisted = [job_id for job_id in live if job_id not in listed]
    for found in side_by_side(recorded, unlisted, store.parallel):
        yield from found


def _of(job_id: str, store: Store, backend: Backend, believed: Trust) -> Iterator[dict[str, Any]]:
    job = open_job(job_id, store, backend, believed)
    known = backend.kind.split("+")
    if job.doubt or not {*known} & {*job.runs_on.split("+")}:
        return
    last = attempts.newest(store, job_id)
    for attempt in range(max(1, last - 1), last + 1):  # whoever made these has released those before
        record = store.read(names.intent(job_id, attempt))
        if record is None:
            continue
        intent = intent_of(record, job_id, attempt, job.within)
        for own in intent.places:
            if own.get("backend", backend.kind) not in known:  # it is another candidate's
                continue
            place = {key: value for key, value in own.items() if key in wire.PLACEMENT.checks}
            yield {
                **place, "job": job_id, "attempt": attempt, "created": record.updated,
                "expires": intent.deadline, RECORDED: True,
            }  # fmt: skip


def says_nothing(store: Store, placement: Mapping[str, Any], seen: Observation, overdue: float) -> bool:
    """Return True if nothing follows from what was seen of a recorded placement.

    What is not there any more needs no release, and what cannot be seen no second one once it is so long past its
    deadline. Only an attempt that nobody has closed by then is left to do.
    """
    if not placement.get(RECORDED) or seen.state not in (ABSENT, UNKNOWN):
        return False
    verdict = store.read(names.verdict(placement["job"], placement["attempt"]))
    is_overdue = bool(placement["expires"]) and store.now() > placement["expires"] + overdue
    return verdict is not None if is_overdue else verdict is None or seen.state == ABSENT
