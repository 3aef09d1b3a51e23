"""The capacity of GKE that a job's pods ask for, other than on demand: a reservation's machines, by labels. Pure.

It knows the options of a plan and the labels of nodes, and not what is free, nor the rest of a manifest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.kubernetes import gke

RESERVATION = "cloud.google.com/reservation-name"
RESERVATION_PROJECT = "cloud.google.com/reservation-project"
ZONE = "topology.kubernetes.io/zone"

_RESERVATION = re.compile(
    r"(?:projects/(?P<project>[a-z0-9.:-]+)/(?:zones/(?P<zone>[a-z0-9-]+)/)?reservations/)?"
    r"(?P<name>[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
)


class Capacity(NamedTuple):
    """The machines that a pod asks for: on demand, if it has neither field."""

    reservation: str = ""  # by name, or with its project


def check(plan: Plan) -> None:
    """Refuse what GKE does not give that way. Raises UsageError."""
    node, reservation = nodes.node(plan.slice), plan.cloud["reservation"]
    if not reservation:
        return
    _reserved(reservation)
    if node.machine and not node.on_demand and node.flex_start:
        raise UsageError(
            f"{node.machine}, the machine of {plan.slice.name}, is given as spot or by flex-start alone: leave out "
            "the reservation"
        )


def labels(plan: Plan, place: str) -> dict[str, str]:
    """Return the labels of the nodes that have such capacity. `place`: CLUSTER/NAMESPACE."""
    if not plan.cloud["reservation"]:
        return {}
    project, zone, name = _reserved(plan.cloud["reservation"])
    known = gke.cluster_of(place)
    own = plan.project or (known.project if known is not None else "")
    found = {RESERVATION: name}
    if project and project != own:  # shared by another project
        found[RESERVATION_PROJECT] = project
    return {**found, **({ZONE: zone} if zone else {})}


def of_pod(spec: Mapping[str, Any]) -> Capacity:
    """Return the capacity that the spec of a pod asks for."""
    chosen = spec.get("nodeSelector", {})
    name, project = str(chosen.get(RESERVATION, "")), chosen.get(RESERVATION_PROJECT)
    return Capacity(f"projects/{project}/reservations/{name}" if name and project else name)


def _reserved(reservation: str) -> tuple[str, str, str]:
    """Return the project, the zone and the name of a reservation; "" for what its path leaves out."""
    if (match := _RESERVATION.fullmatch(reservation)) is not None:
        return match["project"] or "", match["zone"] or "", match["name"]
    if "/reservationBlocks/" in reservation:
        raise UsageError(
            f"cloud=Kubernetes(reservation={reservation!r}): pods take machines of whole reservations, and no block "
            "of one; leave out what follows its name"
        )
    raise UsageError(
        f"cloud=Kubernetes(reservation={reservation!r}) names no reservation: write its name, or "
        "projects/PROJECT/reservations/NAME for one that another project shares"
    )
