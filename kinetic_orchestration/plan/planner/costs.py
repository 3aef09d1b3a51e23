"""The prices of a plan: what its hosts cost in each place, at most, and for how long a limit of cost pays. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.choices import ORDERS
from kinetic_orchestration.plan.hardware.cost import affordable
from kinetic_orchestration.plan.hardware.prices import Price, dearest, price
from kinetic_orchestration.plan.values import Candidate, Plan


def choice_of(plans: Sequence[Plan], by: str, settings: Settings) -> Plan:
    """Return the plan of a job that has these ways, with the prices of each; one that is another's, as on this machine,
    is none."""
    found: list[Candidate] = []
    for plan in plans if len(plans) > 1 else ():
        usd, stand_ins = _usd(plan, settings)
        if (one := Candidate.of(plan, usd, stand_ins=stand_ins)) not in found:
            found.append(one)
    if len(found) > 1:
        return replace(plans[0], choices=tuple(found), by=by)
    return replace(plans[0], choices=(), by=ORDERS[0]) if plans[0].choices else plans[0]


def _usd(plan: Plan, settings: Settings) -> tuple[dict[str, float], dict[str, str]]:
    """Return the dollars for an hour of all hosts in each place that has a known price, and what they are for where
    they stand in for one that is not known."""
    of = plan.purchase
    if plan.traits.share_files or not of.chips:
        return {}, {}
    asked = {place: price(of, place, settings.prices, settings.listed) for place in plan.zones}
    known = {place: one for place, one in asked.items() if isinstance(one, Price)}
    stand_ins = {place: one.stands_in for place, one in known.items() if one.stands_in}
    return {place: one.usd_per_chip_hour * of.chips for place, one in known.items()}, stand_ins


def priced(plan: Plan, settings: Settings) -> Plan:
    """Return the plan of one way with the price of all its hosts: the highest of its places, if each has one."""
    of = plan.purchase
    found = dearest(of, plan.zones, settings.prices, settings.listed) if of.chips else None
    usd = found.usd_per_chip_hour * of.chips if isinstance(found, Price) else 0.0
    return replace(plan, usd_per_hour=usd)


def affordable_by(plan: Plan, settings: Settings) -> float:
    """Return the seconds for which a plan's limit of cost pays; 0 if it has none, or costs nothing."""
    usd = plan.limits.cost
    if usd is None or plan.traits.share_machine:
        return 0.0
    return affordable(usd, plan.purchase, plan.zones, settings.prices, settings.listed)
