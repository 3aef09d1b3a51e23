"""The zones near the bucket of a store, where a job may be anywhere. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from kinetic_orchestration.errors import NoPlace
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.choices import ORDERS, ways
from kinetic_orchestration.plan.declare.spec import Options
from kinetic_orchestration.plan.hardware import regions
from kinetic_orchestration.plan.hardware.regions import Location
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.plan.planner.clouds import zones_named
from kinetic_orchestration.plan.planner.costs import affordable_by, choice_of
from kinetic_orchestration.plan.planner.shares import racing
from kinetic_orchestration.plan.values import Candidate, Plan, traits_of


def near_bucket(plan: Plan, bucket: Location, settings: Settings, options: Options) -> Plan:
    """Return the plan with the zones near the store's bucket, where the options and the settings name none. Of zones
    that were named, those near it are noted, as they decide between equals.

    Raises:
        NoPlace: No zone that may be tried is near it. Of several candidates, those without one are left out.
    """
    kept: list[Plan] = []
    none: list[NoPlace] = []
    named = _all_named(options, settings)
    for one in plan.each():
        try:
            zones = regions.near(one.zones, bucket, one.slice.name) if _is_open(one, named) else one.zones
        except NoPlace as error:
            none.append(error)
        else:
            found = replace(one, zones=zones)
            kept.append(replace(found, affordable=affordable_by(found, settings)))
    if not kept:
        raise none[0]
    for refused in none:
        warn_once(f"it is left out of the choice: {refused}; or regions with regions=")
    found = choice_of(kept, plan.by, settings)
    choices = (replace(one, near=_held(one, bucket)) for one in found.choices)
    return racing(replace(found, choices=tuple(choices)) if found.by != ORDERS[0] else found)


def _held(candidate: Candidate, bucket: Location) -> tuple[str, ...]:
    """Return the zones of a candidate in which the bucket lies."""
    traits = traits_of(candidate.backend)
    return tuple(filter(bucket.holds, candidate.zones)) if traits is not None and traits.in_zones else ()


def is_open(plan: Plan, options: Options, settings: Settings) -> bool:
    """Return True if the zones of a candidate at least are all that have it, since none are named."""
    named = _all_named(options, settings)
    return any(_is_open(one, named) for one in plan.each())


def needs_location(plan: Plan, options: Options, settings: Settings) -> bool:
    """Return True if the location of the store's bucket decides which zones are tried, or which of equals is first."""
    if plan.by != ORDERS[0]:
        found = {regions.region_of(zone) for one in plan.each() if one.traits.in_zones for zone in one.zones}
        return len(found) > 1 or is_open(plan, options, settings)
    return is_open(plan, options, settings)


def _all_named(options: Options, settings: Settings) -> set[tuple[str, ...]]:
    """The zones that the user has chosen for each way."""
    return {zones_named(one, settings) for one in ways(options)}


def _is_open(plan: Plan, named: Container[tuple[str, ...]]) -> bool:
    return plan.traits.in_zones and bool(plan.zones) and plan.zones not in named
