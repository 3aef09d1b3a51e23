"""The resources of the emulated Compute Engine, instances and operations, and their form in its API. Plain records.

How they come to be and what becomes of them is not defined here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final, Literal, NamedTuple, Protocol

from kinetic_orchestration.testing.api_rules.compute_refusals import ComputeRefusal
from kinetic_orchestration.testing.model.compute.catalog import SPOT, STANDARD, Image, MachineType
from kinetic_orchestration.testing.model.state.machine import Host

Json = dict[str, Any]
Status = Literal["PENDING", "PROVISIONING", "STAGING", "RUNNING", "PENDING_STOP", "STOPPING", "TERMINATED", "REPAIRING"]
LINK: Final = "https://www.googleapis.com/compute/v1/"
_PACIFIC: Final = timezone(timedelta(hours=-8))  # in whose time Compute Engine writes its moments
SYSTEM: Final = "system@google.com"


class Numbered(Protocol):
    """The target of an operation."""

    @property
    def number(self) -> int: ...


class Placed(NamedTuple):
    """The position of a VM in a slice of several hosts. `made`: what is the same for all of them, and for no others."""

    slice: str
    made: str
    topology: str
    chips: int
    worker: int
    workers: int


@dataclass
class Instance:
    """One VM. `path`: projects/P/zones/Z/instances/NAME."""

    path: str
    body: Json
    machine_type: MachineType
    number: int
    created: float
    user: str
    image: Image | None
    disks: list[Disk]
    networks: list[Json]
    status: Status = "PROVISIONING"
    labels: dict[str, str] = field(default_factory=dict)
    started: float = 0.0
    stopped: float = 0.0
    ends: float = 0.0  # when its run is limited: the moment of its end
    host: Host | None = None
    boots: bool = True
    stuck: bool = False
    unwanted: bool = False  # its deletion was asked for
    placed: Placed | None = None  # in a slice of several machines
    starts: int = 0

    @property
    def project(self) -> str:
        return self.path.split("/")[1]

    @property
    def zone(self) -> str:
        return self.path.split("/")[3]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def scheduling(self) -> Json:
        """As it was asked for, with Google's defaults."""
        asked: Json = dict(self.body.get("scheduling") or {})
        model = asked.get("provisioningModel") or (SPOT if asked.get("preemptible") else STANDARD)
        is_spot = model == SPOT
        defaults = {
            "onHostMaintenance": "TERMINATE" if is_spot or self.accelerators or self.machine_type.tpu else "MIGRATE",
            "automaticRestart": not is_spot,
            "preemptible": is_spot,
            "provisioningModel": model,
            **({"instanceTerminationAction": "STOP"} if is_spot else {}),
        }
        return defaults | asked

    @property
    def accelerators(self) -> list[Json]:
        """`guestAccelerators`, of which an N1 machine has those that were asked for, and others their own."""
        if self.machine_type.gpu:
            kind = f"{LINK}projects/{self.project}/zones/{self.zone}/acceleratorTypes/{self.machine_type.gpu}"
            return [{"acceleratorType": kind, "acceleratorCount": self.machine_type.accelerators}]
        return [
            {**one, "acceleratorType": _link(one["acceleratorType"])}
            for one in self.body.get("guestAccelerators") or ()
        ]

    @property
    def gpus(self) -> tuple[str, int]:
        """The model of its GPUs, and how many there are."""
        for one in self.accelerators:
            return str(one["acceleratorType"]).rpartition("/")[2], int(one.get("acceleratorCount", 0))
        return "", 0

    @property
    def chips(self) -> int:
        """The number that is billed: its GPUs or its TPU chips; without any, the machine itself."""
        return self.gpus[1] or self.machine_type.accelerators or 1

    @property
    def occupies(self) -> bool:
        return self.status not in ("PENDING", "TERMINATED")

    @property
    def account(self) -> str:
        """The email of its service account; "" if it has none."""
        for one in self.body.get("serviceAccounts") or ():
            return str(one.get("email") or "default")
        return ""

    @property
    def scopes(self) -> tuple[str, ...]:
        for one in self.body.get("serviceAccounts") or ():
            return tuple(one.get("scopes") or ())
        return ()

    def to_json(self, account: str) -> Json:
        """`account`: the project's default one."""
        kept = {key: value for key, value in self.body.items() if value is not None and key not in _NOT_SHOWN}
        zone = f"projects/{self.project}/zones/{self.zone}"
        items = (self.body.get("metadata") or {}).get("items") or []
        shown: Json = kept | {
            "kind": "compute#instance",
            "id": str(self.number),
            "name": self.name,
            "creationTimestamp": stamp(self.created),
            "status": self.status,
            "zone": LINK + zone,
            "selfLink": LINK + self.path,
            "machineType": f"{LINK}{zone}/machineTypes/{self.machine_type.name}",
            "cpuPlatform": "Unknown CPU Platform" if self.status != "RUNNING" else "Intel Emulated",
            "canIpForward": bool(kept.get("canIpForward")),
            "deletionProtection": bool(kept.get("deletionProtection")),
            "startRestricted": False,
            "fingerprint": fingerprint(self.starts, self.path),
            "labelFingerprint": fingerprint(self.labels),
            "metadata": {
                "kind": "compute#metadata",
                "fingerprint": fingerprint(items),
                **({"items": items} if items else {}),
            },
            "tags": {"fingerprint": fingerprint(self.body.get("tags")), **(self.body.get("tags") or {})},
            "scheduling": self.scheduling,
            "disks": [disk.attached(index) for index, disk in enumerate(self.disks)],
            "networkInterfaces": self.networks,
            "resourceStatus": self._resource_status(),
        }
        optional = {
            "labels": self.labels,
            "guestAccelerators": self.accelerators,
            "serviceAccounts": [
                {**one, "email": account if one.get("email", "default") == "default" else one["email"]}
                for one in self.body.get("serviceAccounts") or ()
            ],
            "lastStartTimestamp": stamp(self.started) if self.started else "",
            "lastStopTimestamp": stamp(self.stopped) if self.stopped else "",
        }
        return shown | {key: value for key, value in optional.items() if value}

    def _resource_status(self) -> Json:
        return {"scheduling": {"terminationTimestamp": stamp(self.ends)} if self.ends else {}}


_NOT_SHOWN: Final = (
    *("params", "labels", "metadata", "disks", "guestAccelerators", "serviceAccounts", "networkInterfaces", "tags"),
    *("zone", "selfLink", "status", "id", "kind", "creationTimestamp", "fingerprint", "labelFingerprint"),
)


@dataclass
class Disk:
    """A disk that was made with an instance. `path`: projects/P/zones/Z/disks/NAME; "" of a scratch disk."""

    path: str
    asked: Json
    size_gib: int
    kind: str
    number: int
    created: float
    image: str = ""
    boot: bool = False
    auto_delete: bool = False
    deletes: bool = False

    def to_json(self, user: str) -> Json:
        """`user`: the path of the instance that it is attached to; "" if there is none."""
        place = "/".join(self.path.split("/")[:4])
        params = self.asked.get("initializeParams") or {}
        shown: Json = {
            "kind": "compute#disk",
            "id": str(self.number),
            "name": self.path.rpartition("/")[2],
            "zone": LINK + place,
            "selfLink": LINK + self.path,
            "type": f"{LINK}{place}/diskTypes/{self.kind}",
            "sizeGb": str(self.size_gib),
            "status": "DELETING" if self.deletes else "READY",
            "creationTimestamp": stamp(self.created),
            "labelFingerprint": fingerprint(params.get("labels")),
            "physicalBlockSizeBytes": "4096",
        }
        optional = {
            "labels": params.get("labels"),
            "sourceImage": LINK + self.image if self.image else "",
            "users": [LINK + user] if user else [],
        }
        return shown | {key: value for key, value in optional.items() if value}

    def attached(self, index: int) -> Json:
        asked = {key: value for key, value in self.asked.items() if key not in ("initializeParams", "labels")}
        shown: Json = {
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT" if self.path else "SCRATCH",
            "mode": "READ_WRITE",
            "deviceName": f"persistent-disk-{index}",
            "index": index,
            "boot": self.boot,
            "autoDelete": self.auto_delete,
            "diskSizeGb": str(self.size_gib),
            "interface": "NVME",
            **({"source": LINK + self.path} if self.path else {}),
        }
        return shown | {key: value for key, value in asked.items() if key not in ("source", "diskSizeGb")}


@dataclass
class Operation:
    """A change that was requested, or that happened by itself. `path`: projects/P/zones/Z/operations/NAME, or of a
    region, or global."""

    path: str
    number: int
    kind: str
    target: str
    target_id: int
    user: str
    created: float
    request_id: str = ""
    started: float = 0.0
    ended: float = 0.0
    error: ComputeRefusal | None = None
    said: str = ""

    @property
    def scope(self) -> Json:
        """The zone or the region that it is of; nothing of a global one."""
        place = self.path.rpartition("/operations/")[0]
        kind = place.split("/")[2].removesuffix("s")
        return {} if kind == "global" else {kind: LINK + place}

    def to_json(self) -> Json:
        shown: Json = {
            "kind": "compute#operation",
            "id": str(self.number),
            "name": self.path.rpartition("/")[2],
            **self.scope,
            "operationType": self.kind,
            "targetLink": LINK + self.target,
            "targetId": str(self.target_id),
            "user": self.user,
            "status": "DONE" if self.ended else "RUNNING",
            "progress": 100 if self.ended else 0,
            "insertTime": stamp(self.created),
            "startTime": stamp(self.created),
            "selfLink": LINK + self.path,
        }
        if self.request_id:
            shown["clientOperationId"] = self.request_id
        if self.said:
            shown["statusMessage"] = self.said
        if self.ended:
            shown["endTime"] = stamp(self.ended)
        return shown | (self.error.of_operation() if self.error is not None and self.ended else {})


def stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).astimezone(_PACIFIC).isoformat(timespec="milliseconds")


def moment(text: str) -> float:
    """Raises ValueError."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def duration(value: Mapping[str, Any] | None) -> float:
    """The seconds of a Duration; 0 if it is not there."""
    told = value or {}
    return int(told.get("seconds") or 0) + int(told.get("nanos") or 0) / 1e9


def fingerprint(*of: object) -> str:
    return (
        base64.b64encode(hashlib.sha256(repr(of).encode()).digest()[:8], b"-_")
        .decode()
        .replace("-", "A")
        .replace("_", "B")
    )


def short(link: str) -> str:
    """`projects/…` of a resource that is named by a URL, whole or partial."""
    text = link.partition("/compute/v1/")[2] or link
    return text.removeprefix("/")


def _link(text: str) -> str:
    return LINK + short(text)
