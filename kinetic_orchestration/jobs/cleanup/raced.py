"""Judges the places of races for the reaper: one that has lost goes alone, and its attempt goes on in another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.capacity.races import has_lost, known
from kinetic_orchestration.errors import JobNotFound, KineticError
from kinetic_orchestration.jobs.job import ME, Job, open_job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.jobs.watching import attempts
from kinetic_orchestration.plan.records import fields_of, intent_of
from kinetic_orchestration.plan.values import GONE
from kinetic_orchestration.platforms.backend import Backend, Races
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire

LOST = "another place has won the race of its attempt"


def ended(job: Job, placement: Mapping[str, Any], cause: str, reason: str) -> tuple[str, str] | None:
    """Return with which cause and reason the attempt of a place that has ended is over: of a race of which all places
    have failed, those of all. None if it may get its hosts in another place: then only this one has failed, and is not
    asked again."""
    record = job.store.read(names.intent(job.job_id, placement["attempt"]))
    if "rival" not in placement or cause in (wire.CANCELLED, wire.DEADLINE) or record is None:
        return cause, reason
    intent = intent_of(record, job.job_id, placement["attempt"], job.within)
    intent = known(job.store, job.job_id, intent, job.believes)
    if not intent.races:
        return cause, reason
    from kinetic_orchestration.capacity.races import records  # most jobs never do
    from kinetic_orchestration.capacity.races.rules import Failed

    records.fail(job.store, job.job_id, intent.attempt, placement["rival"], Failed(cause, reason), ME)
    seen = job.backend.observe([intent.placement])[0]
    if seen.state != GONE:
        return None
    if isinstance(job.backend, Races):
        job.backend.note_ends(intent, job.job_id)
    return seen.cause or cause, seen.message or reason


def is_proven(store: Store, backend: Backend, placement: Mapping[str, Any], believed: Trust) -> bool:
    """Return True if a place goes that has lost its race: of a signed job only by the word of its hosts, as others may
    write to the store, too. Without that it ends itself, or at its deadline. Where there is a key, nothing but a spec
    that is believed says that a job is not signed: others may remove it, or write another."""
    has_key = bool(believed.at(store).key_id)
    try:
        job = open_job(placement["job"], store, backend, believed)
        won = store.read(names.won(job.job_id, placement["attempt"]))
    except JobNotFound:
        return not has_key
    except KineticError:
        return False
    if not job.signed:
        return not (has_key and job.doubt)
    return job.is_sealed and won is not None and job.believes(placement["attempt"], won.data)


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
