"""Plans of jobs that may get their hosts in several ways, as tests of the choice take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinetic_orchestration.plan.declare.limits import Limits, Retry
from kinetic_orchestration.plan.hardware.accelerators import parse
from kinetic_orchestration.plan.values import Candidate, Plan

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a")


def candidate(
    name: str, way: str = "spot", zones: Sequence[str] = ZONES, usd: Mapping[str, float] | None = None, **more: str
) -> Candidate:
    """A candidate of Cloud TPU."""
    cloud = {"flex_start": way == "flex-start", "reservation": "ours" if way == "reservation" else "", **more}
    return Candidate(
        parse(name), "tpu-vm", Limits(), zones=tuple(zones), spot=way == "spot", cloud=cloud, usd=dict(usd or {})
    )


def plan(*choices: Candidate, by: str = "order") -> Plan:
    """A job's plan, whose own fields are those of its first candidate."""
    first = choices[0]
    return Plan(
        "job", first.slice, first.backend, "gs://bucket", "main", Limits(), Retry(), zones=first.zones,
        spot=first.spot, cloud=first.cloud, choices=choices, by=by,
    )  # fmt: skip
