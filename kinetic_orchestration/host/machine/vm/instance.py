"""A host on Compute Engine: an instance that stands alone, or one of several that reach each other by TCP only; or one
of the processes that have a GPU each of such an instance.

What it may do, and where the others are, it asks for each instance by its own name: the account of a VM needs no right
in the whole project.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Unanswered, Unauthorized
from kinetic_orchestration.host.machine.vm import gpus, network
from kinetic_orchestration.host.machine.vm.vm import (
    DEAD,
    PREEMPTED,
    Vm,
    account_name,
    addresses_when_all_there,
    missing_rights,
    said,
)
from kinetic_orchestration.protocol import attempt_rules, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kinetic_orchestration.protocol.wire.task import Task

DELETE, GET = "compute.instances.delete", "compute.instances.get"
DELETE_GROUP = "compute.instanceGroups.delete"
# What a host's account needs, by the kind of the resource: a role, its rights, and whose names its condition holds.
_ROLES = {
    "instances": ("kineticHost", (GET, DELETE), ("instances",)),
    "instanceGroupManagers": (
        "kineticSliceHost",
        ("compute.instanceGroupManagers.get", "compute.instanceGroupManagers.delete", DELETE_GROUP, GET),
        ("instanceGroupManagers", "instanceGroups", "instances"),
    ),
}
OF_OTHERS = 300.0  # seconds after which JAX on the other hosts would give this one up, and that would look like theirs
JUDGED = 15.0  # seconds that whoever follows the job has to say why another host's VM is gone, before this one does
UNMADE = 120.0  # that a VM may not be there yet: what makes them may be told to wait for the next minute
SPARE = 30.0  # seconds by which the wait for GPUs ends before any other, whose failure says less


class Instance(Vm):
    """A VM of Compute Engine. Whoever deletes or stops it has its power button pressed, and so has Google for a machine
    that it takes back; but that is announced in the metadata."""

    is_explained = True

    def _noticed(self, path: str) -> str:
        """A spot VM is told as long ahead as its request asked for; others, and of other events, at an unknown time.
        Of a VM that is no spot VM, Google takes the machine back without any preemption that was agreed to: its cause
        is the one that the operations of its zone give (`states.taken_back`)."""
        spot = said("instance/scheduling/preemptible")
        self.lead = attempt_rules.SPOT_NOTICE if path == PREEMPTED and spot == "TRUE" else 0.0
        self.counts_as = wire.INFRASTRUCTURE if spot == "FALSE" else wire.PREEMPTION
        if path == PREEMPTED and spot == "FALSE":
            return "Google takes the machine of this VM back, which is no spot VM, as it does to defragment a zone"
        return super()._noticed(path)

    def devices(self, task: Task, note: Callable[[str], None]) -> None:
        """Wait for the GPUs; of a container its VM has waited for them. Say once an attempt which image it has: its
        request may name a family, of which another one is the newest by the time that somebody asks."""
        if self._at.host == 0 and (image := said("instance/image")):
            note(f"this VM was made from {image}")
        if task.accelerator.kind != "gpu" or task.image:
            return
        left = float(self._at.deadline or "inf") - bootstrap.store_time()
        patience = patience_with_gpus(self._at.machines, task.provision, left)
        if lack := gpus.missing(task.devices * self._at.processes, note, patience=patience, root=bootstrap.root()):
            raise Unanswered(lack)

    def meet(self, addresses: Sequence[str], has_started: Callable[[int], bool]) -> None:
        """Try the network between the hosts before a program depends on it. Raises Unauthorized."""
        if self._at.host == 0:
            network.receive(addresses[0], network.PORTS, self._at.hosts, has_started)
            return
        closed = network.knock(addresses[0], network.PORTS, self._at.host, lambda: has_started(0))
        if closed:
            raise Unauthorized(
                f"host {self._at.host} could not reach host 0 at {closed}, which runs: the network lets no connection "
                "through between the hosts of a job, and frameworks choose ports of their own. Nothing was run. Allow "
                f"all of TCP between them: {self._rule(addresses)}"
            )

    def network(self, task: Task) -> dict[str, str]:
        """Return the variables by which NCCL and gloo use the one network that these machines have."""
        return network.variables(network.interface()) if task.accelerator.kind == "gpu" else {}

    def _addresses(self, slices: int) -> list[str]:
        """Return those that each instance has by Compute Engine's word, for each of its hosts."""
        found = [address_of(url, self._at.resource) for url in sorted_parts(self._at.resource, self._at.machines)]
        return [found[self._at.machine_of(host)] for host in range(self._at.hosts)]

    def _check_rights(self, project: str) -> str:
        own = self._own()
        missing, unknown = missing_rights(f"{own}/testIamPermissions", (DELETE, GET))
        if missing:
            raise lacking(missing, f"its own VM {own.rpartition('/')[2]}", "the VM", self._at.resource)
        return unknown

    def _own(self) -> str:
        """Return the URL of this VM."""
        return bootstrap.parts(self._at.resource, *self._at.unit())[-1]

    def _rule(self, addresses: Sequence[str]) -> str:
        """Return the command that creates the firewall rule for these hosts."""
        reply = bootstrap.request("GET", self._own(), patience=10.0)
        try:
            found = reply.json() if reply.status == 200 else {}
            whole = str(found["networkInterfaces"][0]["network"]).partition("/projects/")[2]
            tags = [str(tag) for tag in found.get("tags", {}).get("items", ())]
        except (ValueError, LookupError, TypeError, AttributeError):
            whole, tags = "", []
        project, _, name = whole.partition("/global/networks/")
        where = f"--project={project or 'PROJECT'} --network={name or 'NETWORK'}"
        who = f"--source-tags={tags[0]} --target-tags={tags[0]}" if tags else f"--source-ranges={_subnet(addresses)}"
        return f"gcloud compute firewall-rules create kinetic-hosts {where} --allow=tcp {who}"


def lacking(missing: Sequence[str], where: str, what: str, resource: str) -> Unauthorized:
    """Return the refusal to run anything on a VM that could not delete itself."""
    account = account_name()
    return Unauthorized(
        f"the service account {account} lacks {' and '.join(missing)} on {where}, so that {what} could not delete "
        f"itself and might cost money until the limit of its run time. Nothing was run. {grant(resource, account)}"
    )


def grant(resource: str, account: str) -> str:
    """Return what its host's account needs to delete a resource, as commands."""
    _, project, *_, kind, _ = resource.split("/")
    role, permissions, narrowed = _ROLES[kind]
    begins = " || ".join(f'resource.name.extract("{one}/{{name}}").startsWith("kinetic-")' for one in narrowed)
    return (
        f"Grant its service account a role (update instead of create, if there is one): gcloud iam roles create {role} "
        f"--project={project} --permissions={','.join(permissions)}; gcloud projects add-iam-policy-binding {project} "
        f"--member=serviceAccount:{account} --role=projects/{project}/roles/{role} "
        f"--condition='title=kinetic,expression={begins}'"
    )


def patience_with_gpus(machines: int, provision: float, left: float) -> float:
    """Return for how many seconds GPUs are waited for.

    provision: For so long the hosts wait for each other; 0.0 for no limit. left: Until the VM deletes itself.
    """
    longest = gpus.PATIENCE if machines == 1 else OF_OTHERS - SPARE
    return max(0.0, min(longest, (provision or float("inf")) - SPARE, left - SPARE))


def sorted_parts(resource: str, number: int) -> list[str]:
    """Return the URL of each instance, in the order of the hosts."""
    return bootstrap.parts(resource, number, number - 1)


def address_of(url: str, resource: str) -> str:
    """Return the address of one instance of a resource. Raises Unauthorized, OSError."""

    def read(found: Any) -> list[str]:
        return [] if found.get("status") in DEAD else [str(found["networkInterfaces"][0]["networkIP"])]

    def denied(reason: str) -> str:
        account, name = account_name(), url.rpartition("/")[2]
        return (
            f"where {name} is could not be read by the service account {account}: {reason}. {grant(resource, account)}"
        )

    return addresses_when_all_there(url, 1, read, denied, _Life(url.rpartition("/")[2]).end)[0]


class _Life:
    """The instance of another host as the API has told of it, while its address is waited for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = ""  # the last that was shown
        self._since = 0.0  # when it was first not there, or dead

    def end(self, reply: bootstrap.Reply) -> str:
        """Return that the instance is gone, once that is sure; "" before."""
        if reply.status not in (200, 404):  # no answer says nothing
            return ""
        if reply.status == 200:
            self._state = _state_of(reply)
        if reply.status == 200 and self._state not in DEAD:
            self._since = 0.0
            return ""
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since < (JUDGED if self._state else UNMADE):
            return ""
        what = f"is {self._state}" if reply.status == 200 else "is gone" if self._state else "is not there"
        return f"{self._name}, the VM of another host, {what}, and is not waited for. Nothing was run"


def _state_of(reply: bootstrap.Reply) -> str:
    try:
        return str(reply.json().get("status", ""))
    except (ValueError, AttributeError):
        return ""


def _subnet(addresses: Sequence[str]) -> str:
    """Return the range of this machine's subnet by its metadata, or else the addresses of the hosts."""
    import ipaddress

    path = "instance/network-interfaces/0"
    ip, mask = (bootstrap.metadata(f"{path}/{what}", patience=5.0) for what in ("ip", "subnetmask"))
    try:
        if ip and mask:
            return str(ipaddress.ip_network(f"{ip.strip()}/{mask.strip()}", strict=False))
    except ValueError:
        pass
    return ",".join(f"{address}/32" for address in addresses)
