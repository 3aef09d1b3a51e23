"""The choice that an attempt took, for users. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.capacity.facts import way_of
from kinetic_orchestration.plan.values import Plan

MOST_NAMED = 5  # of those that were tried before


def taken(plan: Plan, placement: Mapping[str, Any]) -> str:
    """Return which of its plan's choices an attempt takes, which of them were tried before, and why it was chosen as
    far as facts or prices say; of a race, which place has won, or which are asked; that it took a warm slice, and
    whose; "" if there is one place.

    Args:
        plan: The job's plan.
        placement: That of the attempt.
    """
    rivals = placement.get("rivals", ())
    if not plan.choices and not rivals:
        is_warm = "lease" in placement and bool(placement.get("why"))
        return f"{_told(plan, 0, str(placement.get('zone', '')))}: {placement['why']}" if is_warm else ""
    if rivals:
        beside = " and ".join(_told(plan, int(one.get("choice", 0)), str(one.get("zone", ""))) for one in rivals)
        raced = f", which won against {beside}" if placement.get("won") else f" and {beside}, at once"
        if not plan.choices:
            return f"{_told(plan, 0, str(placement.get('zone', '')))}{raced}"
        return f"{taken(plan, {**placement, 'rivals': ()})}{raced.replace(', which', '; it')}"
    own = _told(plan, int(placement.get("choice", 0)), str(placement.get("zone", "")))
    before = [_told(plan, *_read(name)) for name in placement.get("tried", ())]
    why = f" (when it was chosen: {placement['why']})" if placement.get("why") else ""
    if not before:
        again = "tried again after all" if placement.get("rounds") else "the first that was tried"
        return f"{own}, {again} of {len(plan.choices)} choices{why}"
    more = f" and {len(before) - MOST_NAMED} more" if len(before) > MOST_NAMED else ""
    return f"{own}, after {', '.join(before[-MOST_NAMED:])}{more}{why}"


def _read(name: str) -> tuple[int, str]:
    """Return a candidate's number and its place, by its name in a placement's history."""
    number, _, place = name.partition(":")
    return int(number) if number.isdigit() else 0, place


def _told(plan: Plan, number: int, place: str) -> str:
    one = plan.at(min(number, len(plan.choices) - 1))
    return f"{one.slice.name} {way_of(one)}{f' in {place}' if place else ''}"
