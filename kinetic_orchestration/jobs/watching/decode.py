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
    """The intent; of one that is damaged, with the place that its backend finds by the names of job and attempt."""
    try:
        return intent_of(record, job_id, attempt, within)
    except Corrupt as error:
        found = find_placement(backend, job_id, attempt)
        return Intent(attempt, "", found or {}, 0.0, record.updated, damage=str(error), unfound=found is None)


def find_placement(backend: Backend, job_id: str, attempt: int) -> dict[str, Any] | None:
    """What of an attempt is left where nothing can be read of it; empty if nothing is, and None if nobody can say."""
    unread = False
    try:
        for found in backend.leftovers():
            if "unread" in found:
                unread = True
            elif (found["job"], found["attempt"]) == (job_id, attempt):
                return dict(found)
    except KineticError:
        return None
    return None if unread else {}


def observation_without_placement(intent: Intent | None) -> Observation:
    """Of an attempt without a place: there is none yet, or it is not known which."""
    if intent is None or not intent.damage:
        return Observation(ABSENT)
    return Observation(ELSEWHERE, "its intent is damaged, and nothing of its name is found here")


def read_beat(data: bytes, *, devices: bool) -> Beat:
    """Read a beat, less what only its own side asks: which life of an agent says it, and where in a segment it is."""
    beat = Beat.read(data) or Beat("")
    beat = beat._replace(boot="", offset=0, active=0.0, began=0.0, devices=beat.devices if devices else None)
    found: Beat = interned(beat)
    return found


def interned_observation(observation: Observation, before: Observation | None = None) -> Observation:
    """One object for all that are equal. Of hosts that are charged for, no two jobs' are: that of the look before."""
    if observation.charged:
        return before if before == observation else observation
    shared: Observation = interned(observation)
    return shared


def interned(value: Any) -> Any:
    """One object for all that are equal: of what a thousand jobs say, most is. What devices do is not, and no key."""
    try:
        return _intern(value)
    except TypeError:
        return value


@functools.lru_cache(maxsize=1024)
def _intern(value: Any) -> Any:
    return value
