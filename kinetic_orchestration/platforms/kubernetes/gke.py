"""GKE's own: names of clusters, the capacity that pods ask for, the pools of nodes that have it, who pods are. Pure.

`gcloud container clusters get-credentials` calls a context gke_PROJECT_LOCATION_CLUSTER. Capacity is on demand, or by
labels of nodes a reservation's or that of flex-start. This module does not know what is free, nor a manifest, nor how
policies are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.host.machine.pod import account
from kinetic_orchestration.plan.declare.cloud import reservation_of
from kinetic_orchestration.plan.hardware import nodes
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.hardware.nodes import Node
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.shared.cluster_access import Cluster, Policy

RESERVATION = "cloud.google.com/reservation-name"
RESERVATION_PROJECT = "cloud.google.com/reservation-project"
SPECIFIC = ("cloud.google.com/reservation-affinity", "specific")  # for Autopilot: nodes of a pool may not have it
FLEX_START = nodes.FLEX_START
QUEUED = ("cloud.google.com/gke-queued", "true")  # label and taint of nodes that one ProvisioningRequest makes
COMPUTE_CLASS = "cloud.google.com/compute-class"  # whose nodes have it as a taint, too
MAX_RUN = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"  # Kueue makes a parameter of the request of it
LONGEST = 7 * 86400.0  # seconds for which machines of flex-start are given
AROUND = 3600.0  # seconds beyond a run in which images, environment and inputs come, and results leave
ZONE = "topology.kubernetes.io/zone"

_NAME = re.compile(r"gke_([a-z0-9.:-]+)_([a-z0-9-]+)_([a-z0-9-]+)(?:/|$)")


def cluster_of(place: str) -> Cluster | None:
    """Return the cluster that a context, or a place CONTEXT/NAMESPACE, names; None if it is named otherwise."""
    match = _NAME.match(place)
    return Cluster(*match.groups()) if match else None


def pool_command(slice: Slice, cluster: Cluster | None, *, slices: int = 1, **capacity: Any) -> str:
    """Return the lines that make pools of nodes for so many slices; "" if the cluster is not known to be one of GKE.

    Only GKE has TPUs: where the name of the cluster is unknown, the lines have words in capitals in its place.
    `capacity` is what `nodes.pool_command` takes of it. Raises UsageError if GKE has no such machine, or does not give
    it that way.
    """
    if cluster is None and slice.kind != "tpu":
        return ""
    project, location, name = cluster or Cluster("PROJECT", "LOCATION", "CLUSTER")
    zone = (cluster and cluster.zone) or f"{location}-ZONE"
    return nodes.pool_command(
        slice, cluster=name, location=location, zone=zone, project=project, slices=slices, **capacity
    )


# ---- capacity --------------------------------------------------------------------------------------------------------


class Capacity(NamedTuple):
    """The machines that a pod asks for: on demand, if it has none of the fields."""

    reservation: str = ""  # by name, or with its project
    flex_start: bool = False
    queued_provisioning: bool = False


def check_capacity(plan: Plan) -> None:
    """Refuse what GKE does not give that way. Raises UsageError."""
    node, reservation = nodes.node(plan.slice), plan.cloud["reservation"]
    if plan.backend == "gke" or any(cluster_of(place) is not None for place in plan.zones):
        _check_machine(plan, node)
    if plan.flex_start:
        _check_flex_start(plan, node)
    if not reservation:
        return
    _reserved(reservation)
    if node.machine and not node.on_demand and node.flex_start:
        raise UsageError(
            f"{node.machine}, the machine of {plan.slice.name}, is given as spot or by flex-start alone: leave out "
            "the reservation"
        )


def _check_machine(plan: Plan, node: Node) -> None:
    if nodes.GPU_ACCELERATOR in node.labels and not node.machine:
        raise UsageError(nodes.no_machine(plan.slice))
    by_hand = plan.cloud["node_selector"] is not None  # of a reservation, or a ComputeClass that has one
    if not (node.on_demand or node.flex_start or plan.cloud["reservation"] or plan.flex_start or by_hand):
        raise UsageError(
            f"{node.machine}, the machine of {plan.slice.name}, is given by reservation alone: name one with "
            "cloud=Kubernetes(reservation=…)"
        )


def _check_flex_start(plan: Plan, node: Node) -> None:
    name = plan.slice.name
    if not node.machine:
        raise UsageError(f"{name} names no machine of GKE, and flex-start gives such with accelerators: name a model")
    if not node.flex_start:
        raise UsageError(
            f"flex-start gives no {node.machine}, the machine of {name}: ask for spot capacity or a reservation"
        )
    if plan.hosts > 1 and not plan.cloud["queued_provisioning"]:
        raise UsageError(
            f"the job has {plan.hosts} hosts, and flex-start gives machines one by one, so the first would wait for "
            "the others, and no TPU slice of several: add queued_provisioning=True, which asks for all of them at "
            "once, and a queue whose admission check does so"
        )
    if (run := float(plan.limits.run or 0.0)) > LONGEST - AROUND:
        raise UsageError(
            f"machines of flex-start are given for 7 days, and limits.run is {run / 86400:.3g} days: allow at most "
            "167h, so that an hour is left around it"
        )


def labels(plan: Plan, place: str, *, autopilot: bool) -> dict[str, str]:
    """Return the labels of the nodes that have such capacity, or are made with it.

    Args:
        plan: What asks for it.
        place: CLUSTER/NAMESPACE.
        autopilot: The cluster makes every node.
    """
    if plan.flex_start:
        return dict([QUEUED if plan.cloud["queued_provisioning"] else FLEX_START])
    if not plan.cloud["reservation"]:
        return {}
    project, zone, name = _reserved(plan.cloud["reservation"])
    known = cluster_of(place)
    own = plan.project or (known.project if known is not None else "")
    found = dict([(RESERVATION, name), *([SPECIFIC] if autopilot else ())])
    if project and project != own:  # shared by another project
        found[RESERVATION_PROJECT] = project
    return {**found, **({ZONE: zone} if zone else {})}


def taints(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return key and value of the taints that nodes of such capacity may have."""
    named = str((plan.cloud["node_selector"] or {}).get(COMPUTE_CLASS) or "")
    given = {
        FLEX_START: plan.flex_start or _comes_by_flex_start(plan),
        QUEUED: plan.cloud["queued_provisioning"],
        (COMPUTE_CLASS, named): named,
    }
    return tuple(taint for taint, has in given.items() if has)


def _comes_by_flex_start(plan: Plan) -> bool:
    spot = plan.spot or plan.slice.spot
    return nodes.node(plan.slice).only_by_flex_start and not spot and not plan.cloud["reservation"]


def notes_for_kueue(plan: Plan) -> dict[str, str]:
    """Return the annotations of a JobSet by which Kueue asks for such capacity."""
    if not plan.cloud["queued_provisioning"]:
        return {}
    seconds = math.ceil(min(float(plan.limits.run or LONGEST) + AROUND, LONGEST))
    return {MAX_RUN: str(seconds)}


def capacity_of(spec: Mapping[str, Any]) -> Capacity:
    """Return the capacity that the spec of a pod asks for."""
    chosen = spec.get("nodeSelector", {})
    name, project = str(chosen.get(RESERVATION, "")), chosen.get(RESERVATION_PROJECT)
    queued = chosen.get(QUEUED[0]) == QUEUED[1]
    return Capacity(
        reservation=f"projects/{project}/reservations/{name}" if name and project else name,
        flex_start=queued or chosen.get(FLEX_START[0]) == FLEX_START[1],
        queued_provisioning=queued,
    )


def _reserved(reservation: str) -> tuple[str, str, str]:
    """Return the project, the zone and the name of a reservation; "" for what its path leaves out."""
    if (named := reservation_of(reservation)) is not None:
        return named.project, named.zone, named.name
    if "/reservationBlocks/" in reservation:
        raise UsageError(
            f"cloud=Kubernetes(reservation={reservation!r}): pods take machines of whole reservations, and no block "
            "of one; leave out what follows its name"
        )
    raise UsageError(
        f"cloud=Kubernetes(reservation={reservation!r}) names no reservation: write its name, or "
        "projects/PROJECT/reservations/NAME for one that another project shares"
    )


# ---- who pods are ----------------------------------------------------------------------------------------------------

STANDS_FOR = "iam.gke.io/gcp-service-account"  # annotation of a ServiceAccount
GOOGLE_ACCOUNT = r"[a-z]([-a-z0-9]{4,28}[a-z0-9])@[a-z0-9.:-]+\.iam\.gserviceaccount\.com"
_ACT = {account.ACTS_AS, "roles/iam.serviceAccountTokenCreator"}
_USE = {account.ROLE, "roles/storage.objectAdmin", "roles/storage.admin"}
_EVERYBODY = {"allUsers", "allAuthenticatedUsers"}


class Identity(NamedTuple):
    """The identity of a service account's pods to Google.

    https://cloud.google.com/kubernetes-engine/docs/concepts/workload-identity#principal-id-examples
    """

    pool: str  # of its cluster's identities: PROJECT.svc.id.goog
    namespace: str
    account: str
    google: str = ""  # the service account of Google that it stands for

    @property
    def federated(self) -> str:
        """Its name in the policy of a service account of Google."""
        return account.federated(self.pool, self._kubernetes)

    @property
    def _kubernetes(self) -> str:
        return f"{self.namespace}/{self.account}"

    def names(self, member: str) -> bool:
        """Return True if a member of a policy is the Kubernetes service account, or all of its namespace."""
        pool = f"//iam.googleapis.com/projects/\\d+/locations/global/workloadIdentityPools/{re.escape(self.pool)}"
        own = f"principal:{pool}/subject/ns/{self.namespace}/sa/{re.escape(self.account)}"
        return member == self.federated or bool(
            re.fullmatch(own, member) or re.fullmatch(f"principalSet:{pool}/namespace/{self.namespace}", member)
        )

    def acts(self, policy: Policy) -> bool | None:
        """Return True if the policy of the service account of Google lets pods act as that, and None if it does so
        under a condition."""
        return _held(policy, _ACT, self.names)

    def uses(self, policy: Policy) -> bool | None:
        """Return True if a bucket's policy lets pods use it as a store, and None if it does so under a condition, or by
        a role whose permissions only its owner knows."""
        google = f"serviceAccount:{self.google}"

        def is_meant(member: str) -> bool:
            return member in _EVERYBODY or (member == google if self.google else self.names(member))

        known = _held(policy, _USE, is_meant)
        own = any(not one.role.startswith("roles/") and any(map(is_meant, one.members)) for one in policy.bindings)
        return None if known is False and own else known

    def let_act(self) -> str:
        """Return the line that lets pods act as the service account of Google."""
        return account.let_act(self.google, self.federated)

    def let_use(self, bucket: str) -> str:
        """Return the line that lets pods use gs://BUCKET."""
        project = self.pool.removesuffix(account.POOL)
        number = f"$(gcloud projects describe {project} --format='value(projectNumber)')"
        own = account.principal(number, self.pool, self._kubernetes)
        return account.let_use(bucket.removeprefix("gs://"), f"serviceAccount:{self.google}" if self.google else own)


def _held(policy: Policy, roles: set[str], is_meant: Callable[[str], bool]) -> bool | None:
    """Return True if a member that is meant has one of the roles, None if only under a condition, else False."""
    found = [one for one in policy.bindings if one.role in roles and any(map(is_meant, one.members))]
    return None if found and all(one.conditional for one in found) else bool(found)
