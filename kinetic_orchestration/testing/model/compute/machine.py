"""One emulated VM of Compute Engine, as it sees itself: its metadata, and the programs that its image brings. Pure."""

from __future__ import annotations

import uuid
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


def machine(instance: Instance, account: str, drivers: Drivers, docker: Docker) -> InstanceMachine:
    """The VM of an instance. `account`: the project's default one."""
    type_, email = instance.machine_type, instance.account
    generation, cores = _TYPES.get(type_.tpu, ("", 1))
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
        runtime_version=_image_of(instance),
        metadata={str(one["key"]): str(one.get("value", "")) for one in _items(instance)},
        labels=dict(instance.labels),
        spot=bool(instance.scheduling["preemptible"]),
        service_account=account if email == "default" else email,
        scopes=instance.scopes,
        programs=_programs(instance, drivers, docker),
        number=instance.number,
        tpu=bool(type_.tpu),
        slice=placed.slice,
        made=placed.made,
        given=_given(instance),
    )


def _given(instance: Instance) -> Json:
    """Return the metadata of an instance that a node of Cloud TPU does not have."""
    project, scheduling = f"projects/{project_number(instance.project)}", instance.scheduling
    return {
        "cpu-platform": "Intel Emulated",
        "description": str(instance.body.get("description") or ""),
        "disks": [
            {"device-name": told["deviceName"], "index": str(told["index"]), "interface": "NVME", "mode": "READ_WRITE",
             "type": "PERSISTENT-BALANCED" if told["type"] == "PERSISTENT" else "LOCAL-SSD"}
            for told in (disk.attached(index) for index, disk in enumerate(instance.disks))
        ],
        "image": _image_of(instance),
        "licenses": [],
        "machine-type": f"{project}/machineTypes/{instance.machine_type.name}",
        "network-interfaces": [_interface(told, project) for told in instance.networks],
        "partner-attributes": {},
        "remaining-cpu-time": "-1",
        "scheduling": {
            "automatic-restart": str(bool(scheduling["automaticRestart"])).upper(),
            "on-host-maintenance": scheduling["onHostMaintenance"],
            "preemptible": str(bool(scheduling["preemptible"])).upper(),
        },
        "tags": list((instance.body.get("tags") or {}).get("items") or ()),
        "virtual-clock": {"drift-token": "0"},
    }  # fmt: skip


def _interface(told: Json, project: str) -> Json:
    external = [
        {"external-ip": one.get("natIP", ""), "type": "ONE_TO_ONE_NAT"} for one in told.get("accessConfigs", ())
    ]
    return {
        "access-configs": external,
        "dns-servers": ["169.254.169.254"],
        "gateway": "10.0.0.1",
        "ip": "127.0.0.1",
        "mac": "42:01:0a:00:00:02",
        "mtu": "1460",
        "network": f"{project}/networks/{told['network'].rpartition('/')[2]}",
        "subnetmask": "255.255.240.0",
    }


def _image_of(instance: Instance) -> str:
    return instance.image.path if instance.image is not None else ""


def _items(instance: Instance) -> list[Json]:
    return list((instance.body.get("metadata") or {}).get("items") or ())


def _driver(instance: Instance) -> bool:
    """Return True if its image brings NVIDIA's driver, or installs it at boot."""
    wanted = any(one["key"] == "install-nvidia-driver" for one in _items(instance))
    return wanted or (instance.image is not None and bool(instance.image.driver))


def _programs(instance: Instance, drivers: Drivers, docker: Docker) -> dict[str, str]:
    """Return the programs that the image of an instance has on its PATH."""
    name, count = instance.gpus
    found: dict[str, str] = {}
    if count and instance.image and _driver(instance):
        found["nvidia-smi"] = drivers.program(name, count, instance.number)
    if instance.image is not None and instance.image.docker:
        found["docker"] = docker.program(toolkit=bool(instance.image.driver) and drivers.toolkit)
    return found


@dataclass(frozen=True)
class Drivers:
    """The behavior of NVIDIA's driver on a VM: at each boot `late` calls of its program fail first, then it lists
    `fewer` GPUs than there are. Without `toolkit`, a docker of the image has no NVIDIA runtime."""

    late: int = 0
    fewer: int = 0
    toolkit: bool = True
    version: str = _DRIVER

    def program(self, model: str, count: int, vm: int) -> str:
        """Return its source for a VM of that number, whose GPUs have identifiers of their own."""
        gpu, shown = GPUS[model], max(0, count - self.fewer)
        uuids = (f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{vm}/{index}')}" for index in range(shown))
        return _NVIDIA_SMI.format(
            name=gpu.shown,
            memory=gpu.memory_mib,
            free=gpu.memory_mib - 1,
            count=shown,
            uuids=",".join(uuids),
            late=self.late,
            version=self.version,
        )


@dataclass(frozen=True)
class Docker:
    """The behavior of docker on a VM: the first `times` pulls (None: all) fail with the words `refuses`, and whatever
    it runs ends at once with the code `exits`, after the words `says`."""

    refuses: str = ""
    times: int | None = None
    exits: int = 0
    says: str = ""

    def program(self, *, toolkit: bool) -> str:
        return _DOCKER.format(toolkit=toolkit, refuses=self.refuses, times=self.times, exits=self.exits, says=self.says)


_DOCKER: Final = '''\
#!/usr/bin/env python3
"""docker as far as it pulls an image, and runs a Python in it.

A container is a process of its VM with that one's files, and with no variable but those that it is given. It is process
1 of a namespace of its own, where such can be made, and no child of this program: who kills this one does not end it.
"""

import os
import signal
import subprocess
import sys

TOOLKIT = {toolkit!r}  # NVIDIA's, for containers
REFUSES, TIMES, EXITS, SAYS = {refuses!r}, {times!r}, {exits!r}, {says!r}
ROOT = os.environ["KINETIC_ROOT"]
BOOT_ID = "/proc/sys/kernel/random/boot_id"
OWN = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
OWN += ["sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh", ROOT + BOOT_ID, BOOT_ID]


def pull(image):
    with open(ROOT + "/var/lib/pulls", "a") as file:
        file.write("x")
    if REFUSES and (TIMES is None or os.path.getsize(ROOT + "/var/lib/pulls") <= TIMES):
        print(REFUSES, file=sys.stderr)
        return 1
    print(image)
    return 0


def run(words):
    if "--gpus=all" in words and not TOOLKIT:
        print('docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
              file=sys.stderr)
        return 125
    if EXITS:
        print(SAYS, file=sys.stderr)
        return EXITS
    entry = next(index for index, word in enumerate(words) if word.startswith("--entrypoint"))
    names = [word.partition("=")[2] for word in words[:entry] if word.startswith("--env=")]
    given = {{name: os.environ[name] for name in names}}
    own = {{name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}}
    given.update(own, EMULATED_IMAGE=words[entry + 1], EMULATED_GPUS=str("--gpus=all" in words))
    command = [ROOT + "/bin/python3", *words[entry + 2 :]]
    if subprocess.run([*OWN, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        os.execve(command[0], command, given)
    container = subprocess.Popen([*OWN, *command], env=given, start_new_session=True)
    children = "/proc/%d/task/%d/children" % (container.pid, container.pid)

    def pass_on(number, _frame):
        try:
            with open(children) as file:
                os.kill(int(file.read()), number)
        except (OSError, ValueError):
            pass

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    code = container.wait()
    return code if code >= 0 else 128 - code


words = sys.argv[1:]
if words[:1] == ["--config"]:
    del words[:2]
if words[:1] == ["pull"]:
    sys.exit(pull(words[-1]))
if words[:1] == ["run"]:
    sys.exit(run(words))
print("docker: the emulated one pulls and runs alone", file=sys.stderr)
sys.exit(1)
'''


# In sh, as the real one is no Python either: each job asks it, and an interpreter starts slower than a small job ends.
_NVIDIA_SMI: Final = """\
#!/bin/sh
# NVIDIA's program of that name, as far as it says which GPUs there are.
name='{name}' version='{version}' uuids='{uuids}' unit=' MiB' header=yes asked= lists=

# The driver is loaded after some questions of each boot.
read -r boot < "$KINETIC_ROOT/proc/sys/kernel/random/boot_id"
printf x >> "$KINETIC_ROOT/var/lib/nvidia-$boot"
read -r questions < "$KINETIC_ROOT/var/lib/nvidia-$boot"
if [ "${{#questions}}" -le {late} ]; then
    echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest\
 NVIDIA driver is installed and running."
    echo
    exit 9
fi
if [ -z "$uuids" ]; then
    echo "No devices were found"
    exit 6
fi
for word; do
    case "$word" in
        --query-gpu=*) asked="${{word#*=}}" ;;
        -L | --list-gpus) lists=yes ;;
    esac
    case "$word" in *nounits*) unit= ;; esac
    case "$word" in *noheader*) header= ;; esac
done
if [ -n "$asked" ]; then
    IFS=,
    values() {{ # of the GPU $1 with the UUID $2; without an argument, their names
        told= between=
        for field in $asked; do
            case "$field" in
                index) value="$1" ;;
                name | gpu_name) value="$name" ;;
                uuid | gpu_uuid) value="$2" ;;
                count) value={count} ;;
                driver_version) value="$version" ;;
                memory.total) value="{memory}$unit" ;;
                memory.used) value="1$unit" ;;
                memory.free) value="{free}$unit" ;;
                utilization.gpu) value=0 ;;
                *)
                    printf 'Field "%s" is not a valid field to query.\\n\\n' "$field"
                    exit 2
                    ;;
            esac
            [ $# -gt 0 ] || value="$field"
            told="$told$between$value" between=', '
        done
        if [ $# -gt 0 ] || [ -n "$header" ]; then printf '%s\\n' "$told"; fi
    }}
    values
fi
[ -n "$asked$lists" ] || echo "NVIDIA-SMI $version    Driver Version: $version    CUDA Version: 13.0"
index=0
IFS=,
for uuid in $uuids; do
    if [ -n "$asked" ]; then
        values "$index" "$uuid"
    elif [ -n "$lists" ]; then
        echo "GPU $index: $name (UUID: $uuid)"
    else
        echo "|   $index  $name"
    fi
    index=$((index + 1))
done
"""
