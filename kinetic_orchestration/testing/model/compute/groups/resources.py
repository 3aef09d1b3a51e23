"""Groups of instances, their templates and their policies, and their form in Compute Engine's API. Plain records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from kinetic_orchestration.testing.api_rules.compute_refusals import ComputeRefusal
from kinetic_orchestration.testing.model.compute.catalog import FLEX_START
from kinetic_orchestration.testing.model.compute.resources import (
    LINK,
    Instance,
    Json,
    Operation,
    fingerprint,
    short,
    stamp,
)

Topology = Literal["ACTIVATING", "ACTIVE", "ACTIVE_DEGRADED", "DEACTIVATING", "FAILED", "INCOMPLETE", "REACTIVATING"]
End = Literal["deleted", "preempted", "expired", "failed"]
REPAIR, DO_NOTHING = "REPAIR", "DO_NOTHING"
_ACTIONS: Final = (
    *("abandoning", "creating", "creatingWithoutRetries", "deleting", "none", "recreating", "refreshing", "restarting"),
    *("resuming", "starting", "stopping", "suspending", "verifying"),
)
_STATUSES: Final = {
    "PENDING": "pending", "PROVISIONING": "provisioning", "STAGING": "staging", "RUNNING": "running",
    "PENDING_STOP": "pendingStop", "STOPPING": "stopping", "TERMINATED": "terminated", "REPAIRING": "repairing",
}  # fmt: skip


@dataclass
class Kept:
    """A policy or a template. `path`: projects/P/regions/R/resourcePolicies/NAME, or …/instanceTemplates/NAME, also
    below projects/P/global."""

    path: str
    body: Json
    number: int
    created: float
    ready: bool = False
    deletes: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def scope(self) -> Json:
        """The region that it is of; nothing of a global one."""
        place = self.path.rsplit("/", 2)[0]
        return {} if place.endswith("/global") else {"region": LINK + place}

    def _shown(self, kind: str) -> Json:
        return self.body | {
            "kind": kind,
            "id": str(self.number),
            "name": self.name,
            "creationTimestamp": stamp(self.created),
            "selfLink": LINK + self.path,
            **self.scope,
        }


class Policy(Kept):
    @property
    def topology(self) -> str:
        return str((self.body.get("workloadPolicy") or {}).get("acceleratorTopology") or "")

    def to_json(self) -> Json:
        status = "DELETING" if self.deletes else "READY" if self.ready else "CREATING"
        return self._shown("compute#resourcePolicy") | {"status": status}


class Template(Kept):
    @property
    def properties(self) -> Json:
        return dict(self.body.get("properties") or {})

    @property
    def machine(self) -> str:
        """The name of the machine type, which need not exist."""
        return str(self.properties.get("machineType") or "")

    @property
    def waits(self) -> bool:
        return bool((self.properties.get("scheduling") or {}).get("provisioningModel") == FLEX_START)

    def to_json(self) -> Json:
        return self._shown("compute#instanceTemplate")


@dataclass
class Member:
    """A place in a group, which an instance has, or will have. `path` is known before it exists."""

    path: str
    worker: int
    wanted: bool = True
    existed: bool = False
    error: ComputeRefusal | None = None
    end: End | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Bulk(NamedTuple):
    """The request of a group as a whole: its time, and its result at the last look."""

    since: float
    turn: int
    looked: float = 0.0
    error: ComputeRefusal | None = None


@dataclass
class Group:
    """A managed instance group in bulk mode. `path`: projects/P/zones/Z/instanceGroupManagers/NAME, or of a region."""

    path: str
    body: Json
    number: int
    created: float
    zone: str
    template: str
    policy: str
    topology: str
    size: int
    members: list[Member] = field(default_factory=list)
    bulk: Bulk | None = None  # while not all of them are there
    turns: int = 0
    state: Topology = "INCOMPLETE"
    activated: bool = False
    deleting: Operation | None = None

    @property
    def project(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def repairs(self) -> bool:
        return (self.body.get("instanceLifecyclePolicy") or {}).get("defaultActionOnFailure") != DO_NOTHING

    def to_json(self, there: Mapping[str, Instance], waits: bool, state: Topology) -> Json:
        """`there`: all instances by their paths. `waits`: for as long as it takes. `state`: of its topology."""
        place = self.path.rsplit("/", 2)[0]
        actions = [self.action(one, there.get(one.path)) for one in self.members]
        shown: Json = {key: value for key, value in self.body.items() if key not in ("status", "currentActions")}
        shown |= {
            "kind": "compute#instanceGroupManager",
            "id": str(self.number),
            "name": self.name,
            "creationTimestamp": stamp(self.created),
            "selfLink": LINK + self.path,
            place.split("/")[2].removesuffix("s"): LINK + place,
            "instanceGroup": f"{LINK}{place}/instanceGroups/{self.name}",
            "instanceTemplate": LINK + self.template,
            "versions": [{"instanceTemplate": LINK + self.template, "targetSize": {"calculated": self.size}}],
            "targetSize": self.size,
            "fingerprint": fingerprint(self.path, self.size),
            "instanceLifecyclePolicy": {"defaultActionOnFailure": REPAIR, "forceUpdateOnRepair": "NO"}
            | (self.body.get("instanceLifecyclePolicy") or {}),
            "listManagedInstancesResults": self.body.get("listManagedInstancesResults") or "PAGELESS",
            "currentActions": {name: sum(_camel(one) == name for one in actions) for name in _ACTIONS},
            "status": self._status(there, waits, state, stable=not self.bulk and set(actions) <= {"NONE"}),
        }
        if self.policy:
            shown["resourcePolicies"] = {"workloadPolicy": LINK + self.policy}
        return shown

    def _status(self, there: Mapping[str, Instance], waits: bool, state: Topology, *, stable: bool) -> Json:
        counted = Counter(self._counted(there.get(one.path), waits) for one in self.members)
        bulk: Json = {"inProgress": self.bulk is not None}
        if self.bulk is not None and self.bulk.looked:
            bulk["lastProgressCheck"] = {"timestamp": stamp(self.bulk.looked)}
            if self.bulk.error is not None:
                bulk["lastProgressCheck"]["error"] = self.bulk.error.of_operation()["error"]
        found: Json = {
            "isStable": stable and self.deleting is None,
            "stateful": {"hasStatefulConfig": False},
            "versionTarget": {"isReached": stable},
            "bulkInstanceOperation": bulk,
        }
        if self.topology:
            found["currentInstanceStatuses"] = {key: counted[key] for key in (*_STATUSES.values(), "nonExistent")}
            found["appliedAcceleratorTopologies"] = [{"acceleratorTopology": self.topology, "state": state}]
            if state in ("FAILED", "ACTIVE_DEGRADED"):
                error = {"code": "INTERNAL_ERROR", "message": f"The accelerator topology {self.topology} is {state}."}
                details = {"error": {"errors": [error]}, "timestamp": stamp(self.created)}
                found["appliedAcceleratorTopologies"][0]["stateDetails"] = details
        return found

    def _counted(self, instance: Instance | None, waits: bool) -> str:
        if instance is None:
            return "pending" if waits and self.bulk is not None else "nonExistent"
        return _STATUSES[instance.status]

    def action(self, member: Member, instance: Instance | None) -> str:
        """Return its action on a member, as `currentAction`."""
        if self.deleting is not None or (instance is not None and instance.unwanted and not member.wanted):
            return "DELETING"
        if instance is not None and instance.starts:
            if member.end is not None and member.wanted and instance.unwanted:
                return "RECREATING"
            return "NONE" if instance.status in ("RUNNING", "TERMINATED", "STOPPING") else "RESTARTING"
        if instance is None and not member.wanted:
            return "NONE"
        return "RECREATING" if member.existed else "CREATING"

    def managed(self, there: Mapping[str, Instance]) -> list[Json]:
        """Its instances, also those that do not exist yet."""
        found = []
        for member in self.members:
            instance = there.get(member.path)
            shown: Json = {
                "instance": LINK + member.path,
                "name": member.name,
                "currentAction": self.action(member, instance),
                "targetStatus": "DELETED" if self.deleting is not None else "RUNNING",
            }
            if shown["currentAction"] != "DELETING":
                shown["version"] = {"instanceTemplate": LINK + self.template}
            if instance is not None:
                shown |= {"id": str(instance.number), "instanceStatus": instance.status}
                if instance.ends:
                    shown["scheduling"] = {"terminationTimestamp": stamp(instance.ends)}
            if member.error is not None:
                shown["lastAttempt"] = {"errors": member.error.of_operation()["error"]}
            found.append(shown)
        return found


def _camel(action: str) -> str:
    first, *others = action.lower().split("_")
    return first + "".join(word.capitalize() for word in others)


def path_of(link: str, project: str, region: str) -> str:
    """The path of a policy or a template that is named by a whole or a partial URL."""
    path = short(link)
    if path.startswith(("regions/", "global/")):
        return f"projects/{project}/{path}"
    return path if "/" in path else f"projects/{project}/regions/{region}/resourcePolicies/{path}"
