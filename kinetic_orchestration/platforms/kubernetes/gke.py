"""What the name of a cluster tells of it, if gcloud wrote the kubeconfig, and how users make a pool there. Pure.

`gcloud container clusters get-credentials` calls a context gke_PROJECT_LOCATION_CLUSTER.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from kinetic_orchestration.errors import UnknownAccelerator, UsageError
from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.plan.hardware.accelerators import Slice

_NAME = re.compile(r"gke_([a-z0-9.:-]+)_([a-z0-9-]+)_([a-z0-9-]+)(?:/|$)")
_ZONE = re.compile(r"-[a-z]$")


class Cluster(NamedTuple):
    """A cluster of GKE."""

    project: str
    location: str  # a zone or a region
    name: str

    @property
    def zone(self) -> str:
        """Its zone; "" for a cluster of a region."""
        return self.location if _ZONE.search(self.location) else ""


def cluster_of(place: str) -> Cluster | None:
    """Return the cluster that a context, or a place CONTEXT/NAMESPACE, names; None if it is named otherwise."""
    match = _NAME.match(place)
    return Cluster(*match.groups()) if match else None


def pool_command(slice: Slice, place: str, **capacity: Any) -> str:
    """Return the line that makes a pool of nodes for the slice; "" if the cluster is no GKE or has no such machine.

    Only GKE has TPUs: where the name of the cluster is unknown, the line has words in capitals in its place. `capacity`
    is what `nodes.pool_command` takes of it.
    """
    known = cluster_of(place)
    if known is None and slice.kind != "tpu":
        return ""
    project, location, name = known or Cluster("PROJECT", "LOCATION", "CLUSTER")
    zone = (known and known.zone) or f"{location}-ZONE"
    try:
        lines = nodes.pool_command(slice, cluster=name, location=location, zone=zone, project=project, **capacity)
    except (UnknownAccelerator, UsageError):  # none of this name, or by reservation alone
        return ""
    return lines.replace("\n", " && ")
