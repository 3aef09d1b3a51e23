"""Races: an attempt asks several places at once, and keeps the first that has its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kinetic_orchestration.capacity.races.records import Believes
    from kinetic_orchestration.plan.values import Intent
    from kinetic_orchestration.platforms.store import Store


def known(store: Store, job_id: str, intent: Intent, believes: Believes | None = None) -> Intent:
    """Return the intent of an attempt, with the place that has won its race as its own, if one has.

    Args:
        store: The store of the job.
        job_id: The job.
        intent: As it was written.
        believes: Which records of who has won count; None for any, where nothing but what is told depends on it.
    """
    if not intent.races:
        return intent
    from kinetic_orchestration.capacity.races import records, rules  # most jobs never do

    winner = records.winner(store, job_id, intent.attempt, believes)
    return intent if winner is None else rules.decided(intent, winner)


def has_lost(store: Store, place: Mapping[str, Any]) -> bool:
    """Return True for a place of a race that another one has won. `place`: as listed, with its job and its attempt."""
    if "rival" not in place:
        return False
    from kinetic_orchestration.capacity.races import records

    return records.winner(store, place["job"], place["attempt"]) not in (None, place["rival"])
