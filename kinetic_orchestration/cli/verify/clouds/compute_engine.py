"""Compute Engine, as a verification uses it: a slice is one VM, or one group whose VMs are linked.

Of VMs that are joined, each is a slice of its own, as each is deleted by itself.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kinetic_orchestration.cli.verify.clouds.cloud import (
    ALONE,
    ASKED,
    DELETED,
    JOINED,
    LINKED,
    MISSING,
    SEEN,
    Kind,
    Question,
    Slice,
    Told,
)
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import resource_labels
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare.cloud import Compute
from kinetic_orchestration.plan.hardware import accelerators, machines
from kinetic_orchestration.plan.hardware.accelerators import Slice as Accelerator
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, dearest
from kinetic_orchestration.platforms.google.compute import states
from kinetic_orchestration.platforms.google.compute.client import DISKS, INSTANCES, KINDS, Instances, Refused
from kinetic_orchestration.platforms.google.compute.slices import GROUPS, POLICIES, TEMPLATES
from kinetic_orchestration.platforms.google.rest.call_listeners import OK, Call
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import names

VM, GROUP = "VM", "group"
_OF = {INSTANCES: VM, GROUPS: GROUP}
_ONE = re.compile(rf"(GET|DELETE) compute/v1/(projects/[^/]+/zones/[^/]+/({INSTANCES}|{GROUPS})/[^/]+)")
_MADE = re.compile(rf"POST compute/v1/(projects/[^/]+/zones/[^/]+)/({INSTANCES}|{GROUPS})")
_MEMBER = re.compile(rf"(.+)/{INSTANCES}/(.+)-\d{{3}}")  # of a group: others end in one or two digits here
_WORDS = {404: "NotFound", 409: "Conflict"}


class ComputeCalls:
    SERVICE = "compute"

    def told(self, call: Call) -> Told | None:
        body = call.request.get("body") or {}
        if made := _MADE.fullmatch(call.method):
            return Told(ASKED, _OF[made[2]], f"{made[1]}/{made[2]}/{body.get('name', '')}", "", dict(body))
        if (one := _ONE.fullmatch(call.method)) is None:
            return None
        kind, resource = _OF[one[3]], one[2]
        if one[1] == "DELETE":
            return Told(DELETED, kind, resource) if call.status == OK else None
        word = MISSING if call.status == MISSING else _word(kind, call.answer) if call.status == OK else ""
        if not word:
            return None
        if member := _MEMBER.fullmatch(resource):
            return Told(SEEN, kind, f"{member[1]}/{GROUPS}/{member[2]}", word, part=resource)
        return Told(SEEN, kind, resource, word)

    def name_of(self, call: Call) -> str:
        del call
        return ""

    def echoed(self, kind: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        field = "description" if kind == GROUP else "labels"  # of the rest, a poll asks for little
        return {field: asked.get(field, {})}


class ComputeEngine:
    backend = "compute"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._api = Instances(settings)

    def option(self, zones: Sequence[str], hosts: int = 1, slices: int = 1) -> Compute:
        return Compute(zones=list(zones), hosts=hosts, num_slices=slices)

    def zones(self) -> Sequence[str]:
        return [zone for zone in self._settings.zones if self._exists(zone)]

    def _exists(self, zone: str) -> bool:
        try:
            self._api.events(self._in(zone), "kinetic-verify-never-made")
        except Refused:
            return False
        return True

    def _in(self, zone: str) -> str:
        return f"projects/{self._settings.project}/zones/{zone}"

    def absent(self, name: str) -> Mapping[str, Question]:
        zone = self._in(self._settings.zones[0])
        return {
            "get a VM that never was": lambda: _found(self._api.get(f"{zone}/instances/{name}")),
            "get a disk that never was": lambda: _found(self._api.get(f"{zone}/disks/{name}")),
            "delete a VM that never was": lambda: self._api.delete(f"{zone}/instances/{name}"),
            "delete a disk that never was": lambda: self._api.delete(f"{zone}/disks/{name}"),
        }

    def refused(self, slice_: Slice) -> Mapping[str, Question]:
        zone, label = slice_.resource.partition("/instances/")[0], resource_labels.label(self._settings.deployment)
        project, ours = self._settings.project, f"labels.{ownership.DEPLOYMENT}={label}"
        return {
            "create a VM whose name is taken": lambda: self._api.insert(
                f"{zone}/{INSTANCES}", slice_.asked, str(uuid.uuid4())
            ),
            "list what is there, with a field mask": lambda: (
                self._api.everywhere(project, INSTANCES, ours), self._api.everywhere(project, DISKS, ours)
            ),
            "delete the boot disk of a RUNNING VM": lambda: self._api.delete(_disk_of(slice_)),
            "delete a RUNNING VM": lambda: self._api.delete(slice_.resource),
        }  # fmt: skip

    def polls(self, slice_: Slice, *, whole: bool = False) -> Iterator[Callable[[], bool]]:
        paths = _paths(slice_)
        if not whole and not _is_one(slice_):  # its VMs come and go together, and it outlives them
            vms = [path for path in paths if f"/{INSTANCES}/" in path]
            paths = [slice_.resource, *dict.fromkeys((*vms[:1], *vms[-1:]))]
        for path in paths:
            yield partial(self._is_gone, path)

    def _is_gone(self, path: str) -> bool:
        return self._api.get(path) is None

    def deleted(self, slice_: Slice) -> Mapping[str, Question]:
        of = "of a VM" if _is_one(slice_) else "of a group"
        words = {
            GROUPS: "a group", TEMPLATES: f"the template {of}", POLICIES: f"the policy {of}",
            INSTANCES: "a VM" if _is_one(slice_) else f"a VM {of}", DISKS: f"the disk {of}",
        }  # fmt: skip
        one_of_each = {path.split("/")[-2]: path for path in _paths(slice_)}
        return {f"get {words[kind]} that was deleted": partial(self._find, path) for kind, path in one_of_each.items()}

    def _find(self, path: str) -> Any:
        return _found(self._api.get(path))

    def delete(self, slice_: Slice) -> None:
        self._api.delete(slice_.resource)

    def is_going(self, slice_: Slice) -> bool:
        found = self._api.get(slice_.resource)
        if found is None:
            return True
        return found.status in states.ENDING if _is_one(slice_) else bool(found.deletes)

    def removals(self, slice_: Slice) -> Iterator[Question]:
        for path in _paths(slice_):
            yield partial(self._api.delete, path)

    def word(self, error: Exception) -> str:
        if isinstance(error, _Missing):
            return _WORDS[404]
        if isinstance(error, Refused):
            return _WORDS.get(error.status, f"HTTP {error.status}")
        return type(error).__name__

    def command(self, slice_: Slice) -> str:
        own = [path for path in _paths(slice_) if _is_one(slice_) or f"/{INSTANCES}/" not in path]
        return "; ".join(filter(None, map(_command, own)))


class _Missing(Exception):
    """A resource was asked for, and the answer was that there is none."""


def _found(found: Any) -> Any:
    if found is None:
        raise _Missing
    return found


def _word(kind: str, answer: Mapping[str, Any]) -> str:
    """Return the state that an answer shows; a group has none, so that what it does stands for it."""
    if kind == VM:
        return str(answer.get("status", ""))
    group = KINDS[GROUPS].read(answer)
    return "DELETING" if group.deletes else "CREATING" if group.asks else "STABLE"


def _is_one(slice_: Slice) -> bool:
    """Return True for a VM that was created by itself."""
    return f"/{INSTANCES}/" in slice_.resource


def _disk_of(slice_: Slice) -> str:
    return slice_.resource.replace(f"/{INSTANCES}/", f"/{DISKS}/")


def _paths(slice_: Slice) -> list[str]:
    """Return the paths of all that a slice is, in the order of its removal: what others are made of last."""
    if _is_one(slice_):
        return [slice_.resource, _disk_of(slice_)]
    zone, _, name = slice_.resource.partition(f"/{GROUPS}/")
    members = names.members(name, int(slice_.asked.get("targetSize") or 0))
    parts = slice_.asked.get("instanceTemplate"), (slice_.asked.get("resourcePolicies") or {}).get("workloadPolicy")
    return [
        slice_.resource,
        *(f"{zone}/{kind}/{member}" for kind in (INSTANCES, DISKS) for member in members),
        *(str(part) for part in parts if part),
    ]


def _command(path: str) -> str:
    """Return the command by which a user removes what has that path; "" for a disk, which goes with its VM."""
    _, project, _, place, kind, name = path.split("/")
    words = {
        INSTANCES: f"instances delete {name} --delete-disks=all --zone",
        GROUPS: f"instance-groups managed delete {name} --zone",
        TEMPLATES: f"instance-templates delete {name} --region",
        POLICIES: f"resource-policies delete {name} --region",
    }
    return f"gcloud compute {words[kind]}={place} --project={project}" if kind in words else ""


def slices_of_kinds(one: Accelerator, *, spot: bool) -> Mapping[Kind, Accelerator | str]:
    """Return the slice of each kind for steps on VMs; in place of one that there is not, the reason.

    A slice of several hosts is verified as itself, and what one VM proves on the smallest one of its generation.

    Raises:
        UsageError: There is no such VM. It says why, and what to name instead.
    """
    model = accelerators.way_of(spot=spot, flex_start=False, reservation="")
    if reason := machines.refusal(one, model):
        raise UsageError(f"--accelerator is {one.name}, and a verification runs on VMs here: {reason}")
    if one.kind != "tpu":
        return {ALONE: one, JOINED: one, LINKED: "VMs with GPUs are joined, and not linked as slices"}
    alike = sorted(
        (
            other for other in accelerators.catalogue()
            if other.generation == one.generation and not machines.refusal(other, model)
        ),
        key=lambda other: other.chips,
    )  # fmt: skip
    alone, linked = ([other for other in alike if (other.hosts > 1) == several] for several in (False, True))
    return {
        ALONE: one if one.hosts == 1 else alone[0],
        JOINED: "TPU VMs are linked as slices, and never joined one by one",
        LINKED: one if one.hosts > 1 else linked[0],
    }


def cheapest(settings: Settings, *, spot: bool) -> str:
    """Return the name of the GPU whose VM costs least in the dearest zone of the settings.

    Raises:
        UsageError: No price of any is known.
    """
    model = accelerators.way_of(spot=spot, flex_start=False, reservation="")
    found: list[tuple[float, str]] = []
    for one in accelerators.catalogue():
        if one.kind != "gpu" or one.hosts != 1 or machines.refusal(one, model):
            continue
        known = dearest(Purchase(one, spot=spot), settings.zones, settings.prices, settings.listed)
        if isinstance(known, Price):
            found.append((known.usd_per_chip_hour * one.chips, one.name))
    if not found:
        raise UsageError(
            "no price of a GPU is known, so neither the cheapest one nor a budget can be: read Google's list with "
            f"`kinor prices --refresh`, or name the price of one for an hour with KINETIC_PRICES=l4{':spot' * spot}=…"
        )
    return min(found)[1]
