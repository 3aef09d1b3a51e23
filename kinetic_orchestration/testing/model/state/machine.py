"""One emulated VM of Cloud TPU: its position in the slice, its configuration, and the metadata that is written for it.

`Host` and `Hosts` are the interface between the model of the cloud and its machines: `vms` makes real process trees, a
test of the model may keep them in memory. This module knows neither processes nor servers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

EndpointFormat = Literal["addresses", "triples"]

_LOOPBACK = "127.0.0.1"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# Chips of one host → their layout. Source: `tpu-env` of v4-16 (2,2,1) and v5litepod-8 (2,4,1) machines.
_HOST_SHAPES = {1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


@dataclass(frozen=True)
class Machine:
    """One VM of one node. The last seven fields are choices of a test; the defaults are what a user meets."""

    project: str
    zone: str
    node: str
    accelerator_type: str
    topology: str
    runtime_version: str
    worker: int = 0
    workers: int = 1
    slice_index: int = 0
    slices: int = 1
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    spot: bool = False
    service_account: str = ""
    scopes: tuple[str, ...] = (_SCOPE,)
    endpoints: tuple[str, ...] = ()
    python: str = ""  # a path or a version such as "3.10"; "" is the choice of the machine room
    index: bool = True  # whether it has a route to a package index
    clock_skew: float = 0.0  # seconds by which its clock is ahead
    disk: int = 0  # MiB of a disk of its own, which may be full; 0: its files share this machine's
    endpoint_format: EndpointFormat = "addresses"
    lacking: tuple[str, ...] = ()  # attributes that its makers did not write
    silent: tuple[str, ...] = ()  # paths of its metadata server that it answers with 503
    programs: Mapping[str, str] = field(default_factory=dict)  # on its PATH: each by its name, as text

    @property
    def account(self) -> str:
        """The given service account, else the project's default one for Compute Engine."""
        return self.service_account or f"{self.project_number}-compute@developer.gserviceaccount.com"

    @property
    def project_number(self) -> int:
        return project_number(self.project)

    @property
    def instance_id(self) -> int:
        return _number(f"{self.project}/{self.zone}/{self.node}/{self.worker}", digits=19)

    @property
    def name(self) -> str:
        """The VM's name in Cloud TPU's form, which does not contain the node's name."""
        digest = hashlib.sha256(f"{self.project}/{self.zone}/{self.node}".encode()).hexdigest()
        return f"t1v-n-{digest[:8]}-w-{self.worker}"

    @property
    def hostname(self) -> str:
        return f"{self.name}.{self.zone}.c.{self.project}.internal"

    def told(self) -> dict[str, Any]:
        """`instance/*` of its metadata, without its attributes and its accounts."""
        project = f"projects/{self.project_number}"
        interface = {
            "access-configs": [{"external-ip": "", "type": "ONE_TO_ONE_NAT"}],
            "ip": self.addresses[self.worker],
            "network": f"{project}/networks/default",
        }
        return {
            "image": f"projects/cloud-tpu-v2-images/global/images/{self.runtime_version}",
            "machine-type": f"{project}/machineTypes/{self.accelerator_type}",
            "network-interfaces": [interface],
            "scheduling": {
                "automatic-restart": str(not self.spot).upper(),
                "on-host-maintenance": "TERMINATE",
                "preemptible": str(self.spot).upper(),
            },
            "tags": [],
        }

    @property
    def first_boot(self) -> str:
        """The source of its first boot id: that of all hosts of its slice is one, as JAX takes CPUs with
        different ones for those of different slices."""
        return f"{self.project}/{self.zone}/{self.node}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of all workers of this node, by worker number."""
        return self.endpoints or (_LOOPBACK,) * self.workers

    def attributes(self) -> dict[str, str]:
        """`instance/attributes/*` as Cloud TPU adds them to those of the node."""
        found = {
            **self.metadata,
            "accelerator-type": self.accelerator_type,
            "agent-worker-number": str(self.worker),
            "instance-id": self.node,
            "tpu-env": "".join(f"{key}: '{value}'\n" for key, value in sorted(self.tpu_env().items())),
            "worker-network-endpoints": self.worker_network_endpoints(),
        }
        return {name: value for name, value in found.items() if name not in self.lacking}

    def worker_network_endpoints(self) -> str:
        if self.endpoint_format == "triples":
            return ",".join(f"worker-{i}:{i}:{address}" for i, address in enumerate(self.addresses))
        return ",".join(self.addresses)

    def tpu_env(self) -> dict[str, str]:
        chips, hosts = _bounds(self.topology, self.workers)
        several = {
            "MEGASCALE_COORDINATOR_ADDRESS": self.addresses[0],
            "MEGASCALE_NUM_SLICES": str(self.slices),
            "MEGASCALE_SLICE_ID": str(self.slice_index),
        }
        return {
            "ACCELERATOR_TYPE": self.accelerator_type,
            "CHIPS_PER_HOST_BOUNDS": chips,
            "CONSUMER_PROJECT_ID": self.project,
            "CONSUMER_PROJECT_NUMBER": str(self.project_number),
            "HOST_BOUNDS": hosts,
            "NODE_ID": self.node,
            "RUNTIME_VERSION": self.runtime_version,
            "TOPOLOGY": self.topology,
            "TPU_CHIPS_PER_PROCESS_BOUNDS": chips,
            "TPU_PROCESS_BOUNDS": hosts,
            "TYPE": self.accelerator_type.partition("-")[0].upper(),
            "WORKER_ID": str(self.worker),
            "ZONE": self.zone,
            **(several if self.slices > 1 else {}),
        }


class Host(Protocol):
    """One VM. Every method may be called at any time, again and again, and on one that is dead already."""

    @property
    def alive(self) -> bool: ...

    @property
    def guest_attributes(self) -> Mapping[str, Mapping[str, str]]:
        """Namespace → key → value, as programs on the VM have put them."""

    def published(self) -> Mapping[str, Mapping[str, str]]:
        """Return what its guest agent puts there: its name, and the keys of its sshd if it has one."""

    def console(self) -> str:
        """The output of its startup script, of all boots."""

    def reconfigure(self, metadata: Mapping[str, str]) -> None:
        """Show it other metadata, as somebody has changed them."""

    def warn(self) -> None:
        """Notify it of its preemption, of which nothing comes yet."""

    def shut_down(self, notice: float) -> None:
        """Press its power button, and cut its power after that many seconds."""

    def cut(self) -> None:
        """End everything on it; its disk stays, for a reboot."""

    def preempt(self, notice: float | None) -> None:
        """Notify it, and end it after that many seconds; None: immediately."""

    def reboot(self) -> None: ...

    def maintenance(self, event: str) -> None:
        """Announce a maintenance event; NONE ends it."""

    def destroy(self) -> None:
        """End everything on it, and remove its disk."""


class Hosts(Protocol):
    def create(self, machine: Machine) -> Host:
        """Boots one; does not wait for its startup script."""


def project_number(project: str) -> int:
    """The number of a project: its own name if that is one already."""
    return int(project) if re.fullmatch(r"[0-9]{1,19}", project) else _number(project, digits=12)


def _bounds(topology: str, workers: int) -> tuple[str, str]:
    """The bounds of chips per host and of hosts per slice: ("2,2,1", "1,1,2") for 2x2x2 on two hosts."""
    sides = ([int(side) for side in topology.split("x") if side] + [1, 1, 1])[:3]
    chips = max(1, sides[0] * sides[1] * sides[2] // workers)
    shape = _HOST_SHAPES.get(chips, (chips, 1, 1))
    hosts = (max(1, side // own) for side, own in zip(sides, shape, strict=True))
    return ",".join(map(str, shape)), ",".join(map(str, hosts))


def _number(text: str, digits: int) -> int:
    """A number that is always the same for the same text, with that many digits."""
    least: int = 10 ** (digits - 1)
    return least + int(hashlib.sha256(text.encode()).hexdigest(), 16) % (8 * least)
