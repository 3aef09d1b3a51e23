"""A host on Compute Engine that a managed instance group has made: one of the VMs of a TPU slice.

Where the others of its slice are, and in which order, its metadata says. The order of another slice is known by the
names of its VMs alone, if names and workers have the same order, which Google has not published: each host checks that
on itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Unauthorized
from kinetic_orchestration.host.machine.vm.instance import DELETE_GROUP, GET, Instance, address_of, lacking
from kinetic_orchestration.host.machine.vm.vm import SILENCE, missing_rights
from kinetic_orchestration.protocol.system.parallel import Several

if TYPE_CHECKING:
    from kinetic_orchestration.protocol.assignment import Assignment

AT_ONCE = 8  # questions for addresses


class Member(Instance):
    """A VM that is a member of a group, by the name of the group and a number from 001 on."""

    def _addresses(self, slices: int) -> list[str]:
        """Return those of this slice from its metadata, of others by the names of their VMs."""
        at = self._at
        each = at.hosts // slices
        mine = bootstrap.addresses(bootstrap.metadata("instance/attributes/worker-network-endpoints") or "")
        own = at.host // each if len(mine) == each else -1
        if each > 1 and (slices > 1 or own < 0):
            self._check_order(at.host % each)
        names = [name for number in range(slices) if number != own for name in members(group(at, number), each)]
        found = Several(self._address_of, names, most=AT_ONCE).result() if names else []
        if own >= 0:
            found[own * each : own * each] = mine
        return found

    def _check_order(self, worker: int) -> None:
        """Raise Unauthorized unless this VM is in its slice where its name says."""
        name = self._name()
        if name.rpartition("-")[2] != f"{worker + 1:03}":
            raise Unauthorized(
                f"{name} is worker {worker} of its slice by its metadata, and another by its name: so the names of "
                "VMs, which are all that is known of other slices, do not say which worker each is. Nothing was run. "
                'Run the job on one slice, or on Cloud TPU (backend="tpu-vm") or GKE (backend="gke")'
            )

    def _check_rights(self, project: str) -> str:
        """Ask what can be asked: a group itself has no such question, but its list of instances has."""
        group = bootstrap.parts(self._at.resource, *self._at.unit())[-1].replace(bootstrap.GROUPS, "/instanceGroups/")
        missing, unknown = missing_rights(f"{group}/testIamPermissions", (DELETE_GROUP,))
        lost, unseen = missing_rights(f"{self._own()}/testIamPermissions", (GET,))
        if missing or lost:
            where = f"the group {group.rpartition('/')[2]} that has made it"
            raise lacking([*missing, *lost], where, "the slice", self._at.resource)
        return unknown or unseen

    def _own(self) -> str:
        return _url(self._at.resource, self._name())

    def _name(self) -> str:
        return (bootstrap.metadata("instance/name", patience=SILENCE) or "").strip()

    def _address_of(self, name: str) -> str:
        return address_of(_url(self._at.resource, name), self._at.resource)


def members(group: str, number: int) -> list[str]:
    """Return the names of a group's VMs."""
    return [f"{group}-{index:03}" for index in range(1, number + 1)]


def url_of(at: Assignment, host: int) -> str:
    """Return the URL of a host's VM, by the name that follows from its number, whether or not it is of a group."""
    if bootstrap.GROUPS not in at.resource:
        return bootstrap.parts(at.resource, at.hosts, at.hosts - 1)[host]
    slice_, worker = divmod(host, at.hosts // at.slices)
    return _url(at.resource, members(group(at, slice_), worker + 1)[-1])


def group(at: Assignment, number: int) -> str:
    """Return the name of the group of a slice."""
    name = at.resource.rpartition("/")[2]
    return name if at.slices == 1 else f"{name}-{number}"


def _url(resource: str, name: str) -> str:
    zone = resource.partition(bootstrap.GROUPS)[0]
    return f"{bootstrap.endpoint('compute')}/compute/v1/{zone}/instances/{name}"
