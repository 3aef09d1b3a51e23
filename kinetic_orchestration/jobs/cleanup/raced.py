"""What the reaper knows of places of races: one that has lost goes alone, and its attempt goes on in another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.capacity.races import has_lost, known
from kinetic_orchestration.jobs.job import ME, Job
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.plan.records import fields_of, intent_of
from kinetic_orchestration.plan.values import GONE
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire


def goes_on(job: Job, placement: Mapping[str, Any], cause: str, reason: str) -> bool:
    """Return True if the attempt of a place that has ended may get its hosts in another one. Then only this place has
    failed, and is not asked again."""
    record = job.store.read(names.intent(job.job_id, placement["attempt"]))
    if "rival" not in placement or cause in (wire.CANCELLED, wire.DEADLINE) or record is None:
        return False
    intent = known(job.store, job.job_id, intent_of(record, job.job_id, placement["attempt"], job.within))
    if not intent.races:
        return False
    from kinetic_orchestration.capacity.races import records  # most jobs never do
    from kinetic_orchestration.capacity.races.rules import Failed

    records.fail(job.store, job.job_id, intent.attempt, placement["rival"], Failed(cause, reason), ME)
    return job.backend.observe([intent.placement])[0].state != GONE


def record_end(store: Store, placement: Mapping[str, Any], *, done: bool) -> None:
    """Record that hosts were charged for until now, or still are: those of the attempt, or of a place of its race that
    did not win."""
    if not has_lost(store, placement):
        attempts.record_release(store, placement["job"], placement["attempt"], done=done)
    elif done:
        from kinetic_orchestration.capacity.races import records

        records.saw_gone(store, placement["job"], placement["attempt"], placement["rival"])


def choice(store: Store, placement: Mapping[str, Any]) -> int:
    """Return the number of the candidate that a placement is of, which no listing tells. Raises StoreError."""
    name = names.intent(placement["job"], placement["attempt"])
    intent = store.read(name)
    chosen = fields_of(intent.data, wire.INTENT, name)["placement"] if intent is not None else {}
    rivals = [one for one in chosen.get("rivals", ()) if one.get("rival") == placement.get("rival")]
    return int((rivals[0] if rivals else chosen).get("choice", 0))
