"""The group of another slice as Compute Engine has told of it, while its VMs are waited for.

Slices are granted one by one, maybe hours apart. A group waits for ever; until when its attempt does, its description
says, and whoever follows the job then ends it with what happened. This host does so a little later, for nobody may
follow, and what it runs on costs money meanwhile.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.vm.instance import JUDGED, UNMADE
from kinetic_orchestration.protocol import names

if TYPE_CHECKING:
    from typing import Any

OVER = 120.0  # seconds after the request's end that whoever follows the job has to say so, before this host does
_BROKEN = ("FAILED", "ACTIVE_DEGRADED")  # topologies on which no program runs
_ASKS_FOR_NONE = "has no VMs and asks for none"
_IN_VAIN = "has got no VMs for as long as it could wait for them"
_NOT_THERE = ("creating", "creatingWithoutRetries", "deleting")  # what a group does with VMs that are not, or going


class Awaited:
    """A group whose VMs are waited for, by its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_seen = False
        self._bad = ("", 0.0)  # why it cannot be used, and since when that is known
        self._until = float("inf")  # by this machine's monotonic clock
        self.is_in_vain = False  # it has got no VMs for as long as it was to wait for them

    def is_met(self, reply: bootstrap.Reply) -> bool:
        """Return True once all VMs are there, or were."""
        found = _read(reply)
        return _has_some(found) and not _asks(found) and not _wrong(found)

    def end(self, reply: bootstrap.Reply) -> str:
        """Return why it will never have VMs that can be used, once that is sure; "" before."""
        if reply.status not in (200, 404):  # no answer says nothing
            return ""
        now, found = time.monotonic(), _read(reply)
        if found and not self._is_seen:
            self._is_seen = True
            if until := _until(found):
                self._until = now + until - bootstrap.store_time()
        if now > self._until + OVER:
            self.is_in_vain = True
            return self._said(_IN_VAIN)
        why, patience = _wrong(found), JUDGED
        if reply.status == 404:
            why = "is gone" if self._is_seen else "is not there"
        elif found and not why and not _asks(found):
            why = _ASKS_FOR_NONE
        if why in ("is not there", _ASKS_FOR_NONE):  # who makes it may have to wait for a full minute
            patience = UNMADE
        if why != self._bad[0]:
            self._bad = why, now
        if not why or now - self._bad[1] < patience:
            return ""
        if why == _ASKS_FOR_NONE and now > self._until:
            self.is_in_vain = True
            return self._said(_IN_VAIN)
        return self._said(f"{why}, and is not waited for")

    def _said(self, what: str) -> str:
        return f"{self._name}, the group of another slice, {what}. Nothing was run"


def _read(reply: bootstrap.Reply) -> dict[str, Any]:
    try:
        found = reply.json() if reply.status == 200 else {}
    except ValueError:  # which may pass
        return {}
    return found if isinstance(found, dict) else {}


def _asks(found: dict[str, Any]) -> bool:
    """Return True for a group that has not got its VMs yet."""
    return bool(_of(found, "status", "bulkInstanceOperation").get("inProgress")) or bool(_number(found, "creating"))


def _has_some(found: dict[str, Any]) -> bool:
    """Return True if there are VMs of a group."""
    actions = _of(found, "currentActions")
    return any(_number(found, action) for action in actions if action not in _NOT_THERE)


def _wrong(found: dict[str, Any]) -> str:
    """Return what is wrong with a group that makes no VMs any more, or none that work together; "" for nothing."""
    if _number(found, "deleting"):
        return "is being deleted"
    topologies = _of(found, "status").get("appliedAcceleratorTopologies")
    first = topologies[0] if isinstance(topologies, list) and topologies else {}
    if isinstance(first, dict) and first.get("state") in _BROKEN:
        return f"has a topology that is {first['state']}"
    error = _of(found, "status", "bulkInstanceOperation", "lastProgressCheck").get("error")
    if error and not _asks(found) and not _has_some(found):
        return f"was refused its VMs ({json.dumps(error)[:500]})"
    return ""


def _until(found: dict[str, Any]) -> float:
    """Return until when a group may wait, in epoch seconds; 0.0 if it does not say."""
    try:
        return float(json.loads(found["description"])[names.UNTIL])
    except (ValueError, LookupError, TypeError):
        return 0.0


def _number(found: dict[str, Any], action: str) -> int:
    """Return how many of its VMs a group does something with."""
    number = _of(found, "currentActions").get(action)
    return number if isinstance(number, int) else 0


def _of(found: dict[str, Any], *path: str) -> dict[str, Any]:
    for name in path:
        inner = found.get(name)
        found = inner if isinstance(inner, dict) else {}
    return found
