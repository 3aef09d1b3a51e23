"""Compute Engine, as a verification uses it: a slice is one VM, of whose several hosts each is one."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kinetic_orchestration.cli.verify.clouds.cloud import ASKED, DELETED, MISSING, SEEN, Question, Slice, Told
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.declare import resource_labels
from kinetic_orchestration.plan.declare.cloud import Compute
from kinetic_orchestration.plan.hardware import accelerators, cost, machines
from kinetic_orchestration.plan.hardware.accelerators import Slice as Accelerator
from kinetic_orchestration.platforms.google.compute import states
from kinetic_orchestration.platforms.google.compute.client import DISKS, INSTANCES, Instances, Refused
from kinetic_orchestration.platforms.google.rest.call_listeners import OK, Call
from kinetic_orchestration.platforms.shared import ownership

VM = "VM"
_ONE = re.compile(r"(GET|DELETE) compute/v1/(projects/[^/]+/zones/[^/]+/instances/[^/]+)")
_MADE = re.compile(r"POST compute/v1/(projects/[^/]+/zones/[^/]+)/instances")
_WORDS = {404: "NotFound", 409: "Conflict"}


class ComputeCalls:
    SERVICE = "compute"

    def told(self, call: Call) -> Told | None:
        body = call.request.get("body") or {}
        if made := _MADE.fullmatch(call.method):
            return Told(ASKED, VM, f"{made[1]}/instances/{body.get('name', '')}", "", dict(body))
        if (one := _ONE.fullmatch(call.method)) is None:
            return None
        if one[1] == "DELETE":
            return Told(DELETED, VM, one[2]) if call.status == OK else None
        word = MISSING if call.status == MISSING else str(call.answer.get("status", "")) if call.status == OK else ""
        return Told(SEEN, VM, one[2], word) if word else None

    def name_of(self, call: Call) -> str:
        del call
        return ""

    def echoed(self, kind: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        del kind
        return {"labels": asked.get("labels", {})}  # of the rest, a poll asks for little


class ComputeEngine:
    backend = "compute"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._api = Instances(settings)

    def option(self, zones: Sequence[str], hosts: int) -> Compute:
        return Compute(zones=list(zones), hosts=hosts)

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

    def polls(self, slice_: Slice) -> Iterator[Callable[[], bool]]:
        yield lambda: self._api.get(slice_.resource) is None
        yield lambda: self._api.get(_disk_of(slice_)) is None

    def deleted(self, slice_: Slice) -> Mapping[str, Question]:
        return {
            "get a VM that was deleted": lambda: _found(self._api.get(slice_.resource)),
            "get the disk of a VM that was deleted": lambda: _found(self._api.get(_disk_of(slice_))),
        }

    def delete(self, slice_: Slice) -> None:
        self._api.delete(slice_.resource)

    def is_going(self, slice_: Slice) -> bool:
        found = self._api.get(slice_.resource)
        return found is None or found.status in states.ENDING

    def removals(self, slice_: Slice) -> Iterator[Question]:
        yield lambda: self._api.delete(slice_.resource)
        yield lambda: self._api.delete(_disk_of(slice_))

    def word(self, error: Exception) -> str:
        if isinstance(error, _Missing):
            return _WORDS[404]
        if isinstance(error, Refused):
            return _WORDS.get(error.status, f"HTTP {error.status}")
        return type(error).__name__

    def command(self, slice_: Slice) -> str:
        _, project, _, zone, _, name = slice_.resource.split("/")
        return f"gcloud compute instances delete {name} --delete-disks=all --zone={zone} --project={project}"


class _Missing(Exception):
    """A resource was asked for, and the answer was that there is none."""


def _found(found: Any) -> Any:
    if found is None:
        raise _Missing
    return found


def _disk_of(slice_: Slice) -> str:
    return slice_.resource.replace("/instances/", "/disks/")


def check(one: Accelerator, *, spot: bool) -> None:
    """Refuse an accelerator that is no single VM.

    Raises:
        UsageError: It says why, and what to name instead.
    """
    reason = machines.refusal(one, machines.model_of(spot=spot, flex_start=False, reservation=""))
    if reason or one.hosts != 1:
        raise UsageError(f"--accelerator is {one.name}, and a verification runs on single VMs here: {reason or 'l4'}")


def cheapest(settings: Settings, *, spot: bool) -> str:
    """Return the name of the GPU whose VM costs least in the dearest zone of the settings.

    Raises:
        UsageError: No price of any is known.
    """
    model = machines.model_of(spot=spot, flex_start=False, reservation="")
    found: list[tuple[float, str]] = []
    for one in accelerators.catalogue():
        if one.kind != "gpu" or one.hosts != 1 or machines.refusal(one, model):
            continue
        asked = [cost.price(one, zone, spot, settings.prices, settings.listed) for zone in settings.zones or ("",)]
        known = [price.usd_per_chip_hour for price in asked if price is not None]
        if known and len(known) == len(asked):
            found.append((max(known) * one.chips, one.name))
    if not found:
        raise UsageError(
            "no price of a GPU is known, so neither the cheapest one nor a budget can be: read Google's list with "
            f"`ko prices --refresh`, or name the price of one for an hour with KINETIC_PRICES=l4{':spot' * spot}=…"
        )
    return min(found)[1]
