"""The turn of a job where chips are shared, and the places that it asks at once: what of it can never be. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration.resource_labels import label
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.checks.held import left_out
from kinetic_orchestration.plan.declare.choices import ORDERS
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.plan.planner.variables import owner_in
from kinetic_orchestration.plan.records import reserved_zone
from kinetic_orchestration.plan.values import Plan


def turn_of(plan: Plan, own: int | None, settings: Settings, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the turn of a job depends on where chips are shared; nothing where they are not, or where a queue of
    the cluster decides. `own`: the priority of its options, if they say one."""
    if not settings.chips or not plan.purchase.chips or plan.cloud.get("queue"):
        return {}
    from kinetic_orchestration.plan.configuration import chip_shares  # which few deployments have

    weight = chip_shares.weight(plan.slice, settings.prices, settings.listed).counts
    user = label(plan.labels.get("owner") or owner_in(environ))  # as the label of its resources says
    shares = chip_shares.text_of(settings.chips)
    priority = settings.priority if own is None else own
    return {"shares": shares, "priority": priority, "weight": weight, "user": user}


def within_shares(plan: Plan, pipeline: str = "") -> Plan:
    """Return the plan without those of its choices that a share can never hold, of which users are warned. It does
    without a race that is only a default before it is refused.

    Args:
        plan: The plan.
        pipeline: That of its job; "" if it is not known yet.

    Raises:
        UsageError: The shares can hold none of them.
    """
    if not any(one.turn for one in plan.each()):
        return plan
    never = [_never(one, label(pipeline)) for one in plan.each()]
    if not any(never):
        return plan
    if all(never):
        why = "; ".join(dict.fromkeys(never))
        if plan.race > 1 and plan.race_of:
            return within_shares(_unraced(plan, why), pipeline)
        raise UsageError(why)
    for why in dict.fromkeys(filter(None, never)):
        warn_once(f"one choice is left out: {why}")
    left = [number for number, why in enumerate(never) if not why]
    found = replace(plan.at(left[0]), choices=tuple(plan.choices[number] for number in left))
    return found if len(left) > 1 else replace(found, choices=(), by=ORDERS[0])


def racing(plan: Plan) -> Plan:
    """Return the plan, of which a race has at least two places to ask. One that is only a default is left out, which is
    told. Raises UsageError."""
    places = {(number, zone) for number, one in enumerate(plan.each()) for zone in places_of(one)}
    if plan.race > 1 and len(places) < 2:
        only = f"one place to ask, {next(iter(places))[1]}" if places else "no place to ask that is known"
        if plan.race_of:
            return _unraced(plan, f"it has {only}")
        raise UsageError(
            f"race={plan.race} asks several places at once, and this job has {only}: name more zones, or regions=, or "
            "another accelerator or way of buying; or leave race out"
        )
    return plan


def _unraced(plan: Plan, why: str) -> Plan:
    left_out(f"race={plan.race}", plan.race_of, plan.name, why)
    return replace(plan, race=1)


def places_of(plan: Plan) -> Sequence[str]:
    """Return the zones in which an attempt of one way may be: that of a reservation which names it, or the plan's."""
    reserved = reserved_zone(plan)
    return (reserved,) if reserved else plan.zones


def _never(plan: Plan, pipeline: str) -> str:
    """Return why an attempt can never have its turn; "" if it can."""
    if not plan.turn:
        return ""
    from kinetic_orchestration.plan.configuration import chip_shares  # as well

    shares = chip_shares.parse("KINETIC_CHIPS", plan.turn["shares"])
    chips, weight, user = plan.purchase.chips * plan.race, plan.turn["weight"], plan.turn["user"]
    bounds = chip_shares.bounds(shares, plan.slice.generation, chips, weight, user, pipeline)
    asked = f"{plan.named} with race={plan.race}" if plan.race > 1 else plan.named
    return chip_shares.refusal("KINETIC_CHIPS", shares, asked, bounds)
