"""One emulated VM of Compute Engine, as it sees itself: its metadata, and the programs that its image brings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kinetic_orchestration.testing.model.compute.catalog import GPUS
from kinetic_orchestration.testing.model.compute.resources import Instance, Json, Placed
from kinetic_orchestration.testing.model.state.machine import Machine, project_number

# chips of one machine → its topology. Sheet "TPU machines in accelerator-optimized machine family".
_TOPOLOGIES: Final = {
    ("v6e", 1): "1x1", ("v6e", 4): "2x2", ("v6e", 8): "2x4", ("v5p", 4): "2x2x1", ("tpu7x", 4): "2x2x1",
}  # fmt: skip
# How the metadata of a slice calls them: by TensorCores, and TPU7x without its first letters.
_TYPES: Final = {"v6e": ("v6e", 1), "v5p": ("v5p", 2), "tpu7x": ("v7x", 2)}
_DRIVER: Final = "580.159.04"


@dataclass(frozen=True)
class InstanceMachine(Machine):
    """A VM of Compute Engine; `node` is its name."""

    number: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)  # `instance/*`, where it is other than of Cloud TPU
    tpu: bool = False
    slice: str = ""  # that it is a host of, with others
    made: str = ""  # the same for all hosts of its slice

    @property
    def account(self) -> str:
        return self.service_account

    @property
    def instance_id(self) -> int:
        return self.number

    @property
    def name(self) -> str:
        return self.node

    @property
    def first_boot(self) -> str:
        return self.made or f"{self.project}/{self.number}"

    def tpu_env(self) -> dict[str, str]:
        return {**super().tpu_env(), **({"NODE_ID": self.slice} if self.slice else {})}

    def told(self) -> Json:
        return dict(self.given)

    def attributes(self) -> dict[str, str]:
        """Exactly those that were sent, and of a machine with TPUs what Compute Engine writes of them."""
        if not self.tpu:
            return dict(self.metadata)
        found = {**super().attributes(), "worker-id": str(self.worker)}
        return {name: value for name, value in found.items() if name not in ("instance-id", *self.lacking)}


def machine(instance: Instance, account: str, drivers: Drivers) -> InstanceMachine:
    """The VM of an instance. `account`: the project's default one."""
    type_ = instance.machine_type
    generation, cores = _TYPES.get(type_.tpu, ("", 1))
    project = f"projects/{project_number(instance.project)}"
    scheduling = instance.scheduling
    image = instance.image.path if instance.image is not None else ""
    interfaces = [
        {
            "access-configs": [
                {"external-ip": one.get("natIP", ""), "type": "ONE_TO_ONE_NAT"} for one in told.get("accessConfigs", ())
            ],
            "dns-servers": ["169.254.169.254"],
            "gateway": "10.0.0.1",
            "ip": "127.0.0.1",
            "mac": "42:01:0a:00:00:02",
            "mtu": "1460",
            "network": f"{project}/networks/{told['network'].rpartition('/')[2]}",
            "subnetmask": "255.255.240.0",
        }
        for told in instance.networks
    ]
    disks = [
        {"device-name": told["deviceName"], "index": str(told["index"]), "interface": "NVME", "mode": "READ_WRITE",
         "type": "PERSISTENT-BALANCED" if told["type"] == "PERSISTENT" else "LOCAL-SSD"}
        for told in (disk.attached(index) for index, disk in enumerate(instance.disks))
    ]  # fmt: skip
    email = instance.account
    own = Placed("", "", _TOPOLOGIES.get((type_.tpu, type_.accelerators), ""), type_.accelerators, 0, 1)
    placed = instance.placed or own
    return InstanceMachine(
        project=instance.project,
        zone=instance.zone,
        node=instance.name,
        accelerator_type=f"{generation}-{placed.chips * cores}" if type_.tpu else type_.name,
        topology=placed.topology,
        worker=placed.worker,
        workers=placed.workers,
        runtime_version=image,
        metadata={str(one["key"]): str(one.get("value", "")) for one in _items(instance)},
        labels=dict(instance.labels),
        spot=bool(scheduling["preemptible"]),
        service_account=account if email == "default" else email,
        scopes=instance.scopes,
        programs=_programs(instance, drivers),
        number=instance.number,
        tpu=bool(type_.tpu),
        slice=placed.slice,
        made=placed.made,
        given={
            "cpu-platform": "Intel Emulated",
            "description": str(instance.body.get("description") or ""),
            "disks": disks,
            "image": image,
            "licenses": [],
            "machine-type": f"{project}/machineTypes/{type_.name}",
            "network-interfaces": interfaces,
            "partner-attributes": {},
            "remaining-cpu-time": "-1",
            "scheduling": {
                "automatic-restart": str(bool(scheduling["automaticRestart"])).upper(),
                "on-host-maintenance": scheduling["onHostMaintenance"],
                "preemptible": str(bool(scheduling["preemptible"])).upper(),
            },
            "tags": list((instance.body.get("tags") or {}).get("items") or ()),
            "virtual-clock": {"drift-token": "0"},
        },
    )


def _items(instance: Instance) -> list[Json]:
    return list((instance.body.get("metadata") or {}).get("items") or ())


def _driver(instance: Instance) -> bool:
    """Return True if its image brings NVIDIA's driver, or installs it at boot."""
    wanted = any(one["key"] == "install-nvidia-driver" for one in _items(instance))
    return wanted or (instance.image is not None and bool(instance.image.driver))


def _programs(instance: Instance, drivers: Drivers) -> dict[str, str]:
    """What the image of an instance has on its PATH."""
    name, count = instance.gpus
    found = {"nvidia-smi": drivers.program(name, count)} if count and instance.image and _driver(instance) else {}
    if instance.image is not None and instance.image.docker:
        found["docker"] = _DOCKER.format(toolkit=bool(instance.image.driver) and drivers.toolkit)
    return found


@dataclass(frozen=True)
class Drivers:
    """The behavior of NVIDIA's driver on a VM: at each boot `late` calls of its program fail first, then it lists
    `fewer` GPUs than there are. Without `toolkit`, a docker of the image has no NVIDIA runtime."""

    late: int = 0
    fewer: int = 0
    toolkit: bool = True
    version: str = _DRIVER

    def program(self, model: str, count: int) -> str:
        gpu = GPUS[model]
        return _NVIDIA_SMI.format(
            name=gpu.shown,
            memory=gpu.memory_mib,
            count=max(0, count - self.fewer),
            late=self.late,
            version=self.version,
        )


_DOCKER: Final = '''\
#!/usr/bin/env python3
"""docker as far as it pulls an image, and runs a Python in it: a container is a process of its VM with that one's
files, and with no variable but those that it is given."""

import os
import sys

TOOLKIT = {toolkit!r}  # NVIDIA's, for containers
words = sys.argv[1:]
if words[:1] == ["--config"]:
    del words[:2]
if words[:1] == ["pull"]:
    print(words[-1])
elif words[:1] == ["run"]:
    if "--gpus=all" in words and not TOOLKIT:
        print('docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
              file=sys.stderr)
        sys.exit(125)
    entry = next(index for index, word in enumerate(words) if word.startswith("--entrypoint"))
    names = [word.partition("=")[2] for word in words[:entry] if word.startswith("--env=")]
    given = {{name: os.environ[name] for name in names}}
    own = {{name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}}
    given.update(own, EMULATED_IMAGE=words[entry + 1], EMULATED_GPUS=str("--gpus=all" in words))
    python = os.environ["KINETIC_ROOT"] + "/bin/python3"
    os.execve(python, [python, *words[entry + 2 :]], given)
else:
    print("docker: the emulated one pulls and runs alone", file=sys.stderr)
    sys.exit(1)
'''


_NVIDIA_SMI: Final = '''\
#!/usr/bin/env python3
"""NVIDIA's program of that name, as far as it says which GPUs there are."""

import os
import sys
import uuid

NAME, MEMORY, COUNT, LATE, VERSION = {name!r}, {memory}, {count}, {late}, {version!r}
ROOT = os.environ["KINETIC_ROOT"]


def loaded():
    """Return True if the driver is loaded; each question of a boot counts."""
    with open(ROOT + "/proc/sys/kernel/random/boot_id") as file:
        path = ROOT + "/var/lib/nvidia-" + file.read().strip()
    with open(path, "a") as file:
        file.write("x")
    return os.path.getsize(path) > LATE


def fields(index):
    unit = " MiB" if "nounits" not in " ".join(sys.argv) else ""
    with open(ROOT + "/proc/sys/kernel/random/boot_id") as file:
        own = str(uuid.uuid5(uuid.NAMESPACE_OID, ROOT + str(index)))
    return {{
        "index": str(index), "name": NAME, "gpu_name": NAME, "uuid": "GPU-" + own, "gpu_uuid": "GPU-" + own,
        "count": str(COUNT), "driver_version": VERSION, "memory.total": str(MEMORY) + unit,
        "memory.used": "1" + unit, "memory.free": str(MEMORY - 1) + unit, "utilization.gpu": "0",
    }}


def main():
    if not loaded():
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
              "NVIDIA driver is installed and running.\\n")
        return 9
    if not COUNT:
        print("No devices were found")
        return 6
    words = sys.argv[1:]
    asked = next((word.split("=", 1)[1] for word in words if word.startswith("--query-gpu=")), "")
    if asked:
        names = asked.split(",")
        unknown = [name for name in names if name not in fields(0)]
        if unknown:
            print('Field "%s" is not a valid field to query.\\n' % unknown[0])
            return 2
        if "noheader" not in " ".join(words):
            print(", ".join(names))
        for index in range(COUNT):
            print(", ".join(fields(index)[name] for name in names))
        return 0
    if "-L" in words or "--list-gpus" in words:
        for index in range(COUNT):
            print("GPU %d: %s (UUID: %s)" % (index, NAME, fields(index)["uuid"]))
        return 0
    print("NVIDIA-SMI %s    Driver Version: %s    CUDA Version: 13.0" % (VERSION, VERSION))
    for index in range(COUNT):
        print("|   %d  %s" % (index, NAME))
    return 0


sys.exit(main())
'''
