"""A host on Compute Engine that a managed instance group has made: one of the VMs of a TPU slice.

Where the others of its slice are, and in which order, its metadata says. The order of another slice is known by the
names of its VMs alone, if names and workers have the same order, which Google has not published: each host checks that
on itself. Another slice may be granted long after this one, and is waited for as long as its request may be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Unauthorized, Ungranted
from kinetic_orchestration.host.machine.vm.awaited import Awaited
from kinetic_orchestration.host.machine.vm.instance import DELETE_GROUP, GET, Instance, address_of, grant, lacking
from kinetic_orchestration.host.machine.vm.vm import SILENCE, account_name, addresses_of_slices, missing_rights
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.system.parallel import Several

if TYPE_CHECKING:
    from kinetic_orchestration.protocol.assignment import Assignment

AT_ONCE = 8  # questions for addresses
PACE = 20.0  # seconds between two questions for a slice that is not there: it may be hours, and many hosts ask


class Member(Instance):
    """A VM that is a member of a group, by the name of the group and a number from 001 on."""

    def _addresses(self, slices: int) -> list[str]:
        """Return those of this slice from its metadata, of others by the names of their VMs."""
        return addresses_of_slices(self._at, slices, self._addresses_of)

    def _addresses_of(self, numbers: Sequence[int], each: int) -> list[list[str]]:
        if each > 1:
            self._check_order(self._at.host % each)
        groups = [group(self._at, number) for number in numbers]
        if others := [one for one in groups if one != self._group()]:
            self._await(others)
        found = Several(self._address_of, [name for one in groups for name in names.members(one, each)], most=AT_ONCE)
        told = found.result()
        return [told[first : first + each] for first in range(0, len(told), each)]

    def _await(self, groups: Sequence[str]) -> None:
        """Return once all groups have their VMs. Raises Unauthorized, Ungranted, OSError as soon as one of them never
        will."""
        awaited = {name: Awaited(name) for name in groups}
        left = float(self._at.deadline or "inf") - bootstrap.store_time()
        for _ in bootstrap.tries(left, PACE):
            replies = Several(self._look, list(awaited), most=AT_ONCE).result()
            for name, reply in zip(list(awaited), replies, strict=True):
                if awaited[name].is_met(reply):
                    del awaited[name]
                elif why := awaited[name].end(reply):
                    raise Ungranted(why) if awaited[name].is_in_vain else OSError(why)
            if not awaited:
                return
        raise OSError(
            f"{', '.join(awaited)}: no VMs of these slices came until the attempt's deadline. Nothing was run"
        )

    def _look(self, name: str) -> bootstrap.Reply:
        """Return what is said of another slice's group. Raises Unauthorized."""
        url = f"{bootstrap.endpoint('compute')}/compute/v1/{self._at.resource.rpartition('/')[0]}/{name}"
        reply = bootstrap.request("GET", url, patience=0.0)
        if reply.status == 403 and not reply.passes():
            account = account_name()
            raise Unauthorized(
                f"what becomes of {name}, the group of another slice, could not be read by the service account "
                f"{account}: {reply.reason()}. {grant(self._at.resource, account)}"
            )
        return reply

    def _check_order(self, worker: int) -> None:
        """Raise Unauthorized unless this VM is in its slice where its name says."""
        name = self._name()
        if name != names.members(self._group(), worker + 1)[worker]:
            raise Unauthorized(
                f"{name} is worker {worker} of its slice by its metadata, and another by its name: so the names of "
                "VMs, which are all that is known of other slices, do not say which worker each is. Nothing was run. "
                'Run the job on one slice, or on Cloud TPU (backend="tpu-vm") or GKE (backend="gke")'
            )

    def _check_rights(self, project: str) -> str:
        """Ask what can be asked: a group itself has no such question, but its list of instances has."""
        own = bootstrap.parts(self._at.resource, *self._at.unit())[-1].replace(bootstrap.GROUPS, "/instanceGroups/")
        missing, unknown = missing_rights(f"{own}/testIamPermissions", (DELETE_GROUP,))
        lost, unseen = missing_rights(f"{self._own()}/testIamPermissions", (GET,))
        if missing or lost:
            where = f"the group {self._group()} that has made it"
            raise lacking([*missing, *lost], where, "the slice", self._at.resource)
        return unknown or unseen

    def _own(self) -> str:
        return _url(self._at.resource, self._name())

    def _name(self) -> str:
        return (bootstrap.metadata("instance/name", patience=SILENCE) or "").strip()

    def _group(self) -> str:
        return group(self._at, self._at.unit()[1])

    def _address_of(self, name: str) -> str:
        return address_of(_url(self._at.resource, name), self._at.resource)


def url_of(at: Assignment, host: int) -> str:
    """Return the URL of a host's VM, by the name that follows from its number, whether or not it is of a group."""
    if bootstrap.GROUPS not in at.resource:
        return bootstrap.parts(at.resource, at.machines, at.machines - 1)[at.machine_of(host)]
    slice_, worker = divmod(host, at.hosts // at.slices)
    return _url(at.resource, names.members(group(at, slice_), worker + 1)[worker])


def group(at: Assignment, number: int) -> str:
    """Return the name of the group of a slice."""
    return names.numbered(at.resource.rpartition("/")[2], at.slices)[number]


def _url(resource: str, name: str) -> str:
    zone = resource.partition(bootstrap.GROUPS)[0]
    return f"{bootstrap.endpoint('compute')}/compute/v1/{zone}/instances/{name}"
