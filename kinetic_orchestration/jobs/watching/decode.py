"""Reads intents and beats. Equal values become one object, because a process may follow thousands of jobs."""

from __future__ import annotations

import functools
from typing import Any

from kinetic_orchestration.errors import Corrupt, KineticError
from kinetic_orchestration.plan.records import Within, intent_of
from kinetic_orchestration.plan.values import ABSENT, ELSEWHERE, Intent, Observation
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.wire import Beat


def read_intent(record: Record, backend: Backend, job_id: str, attempt: int, within: Within | None) -> Intent:
    """Return the intent. A damaged one gets the placement that its backend finds by the names of job and attempt."""
    try:
        return intent_of(record, job_id, attempt, within)
    except Corrupt as error:
        found = find_placement(backend, job_id, attempt)
        return Intent(attempt, "", found or {}, 0.0, record.updated, damage=str(error))


def find_placement(backend: Backend, job_id: str, attempt: int) -> dict[str, Any] | None:
    """Return what is left of an attempt without readable records; empty if nothing is, None if unknown."""
    unread, places = False, list[dict[str, Any]]()
    try:
        for found in backend.leftovers():
            if "unread" in found:
                unread = True
            elif (found["job"], found["attempt"]) == (job_id, attempt):
                places.append(dict(found))
                if "rival" not in found:
                    break
    except KineticError:
        return None
    if places:
        first, *rivals = places
        return {**first, "rivals": rivals} if rivals else first
    return None if unread else {}


def observation_without_placement(intent: Intent | None) -> Observation:
    """Return the observation of an attempt without a place: there is none yet, or it is not known which."""
    if intent is None or not intent.damage:
        return Observation(ABSENT)
    return Observation(ELSEWHERE, "its intent is damaged, and nothing of its name is found here")


def read_beat(data: bytes, *, devices: bool) -> Beat:
    """Read a beat, without the fields that followers do not use, such as the agent's boot id."""
    beat = Beat.read(data) or Beat("")
    beat = beat._replace(boot="", offset=0, active=0.0, began=0.0, devices=beat.devices if devices else None)
    found: Beat = interned(beat)
    return found


def interned_observation(observation: Observation, before: Observation | None = None) -> Observation:
    """Return one shared object for equal observations. Those of charged hosts differ between jobs: the previous one is
    reused.
    """
    if observation.charged:
        return before if before == observation else observation
    shared: Observation = interned(observation)
    return shared


def interned(value: Any) -> Any:
    """Return one shared object for equal values: most reports of a thousand jobs are equal. Unhashable values are
    returned as they are.
    """
    try:
        return _intern(value)
    except TypeError:
        return value


@functools.lru_cache(maxsize=1024)
def _intern(value: Any) -> Any:
    return value
