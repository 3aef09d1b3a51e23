"""A host on Compute Engine: an instance that stands alone, or one of several that reach each other by TCP only.

What it may do, and where the others are, it asks for each instance by its own name: the account of a VM needs no right
in the whole project.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Unanswered, Unauthorized
from kinetic_orchestration.host.machine.vm import gpus, network
from kinetic_orchestration.host.machine.vm.vm import Vm, account_name, addresses_when_all_there, missing_rights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kinetic_orchestration.protocol.wire.task import Task

PERMISSIONS = ("compute.instances.delete", "compute.instances.get")
OF_OTHERS = 300.0  # seconds after which JAX on the other hosts would give this one up, and that would look like theirs
SPARE = 30.0  # seconds by which the wait for GPUs ends before any other, whose failure says less


class Instance(Vm):
    """A VM of Compute Engine."""

    def devices(self, task: Task, note: Callable[[str], None]) -> None:
        """Wait for the GPUs; of a container its VM has waited for them."""
        if task.accelerator.kind != "gpu" or task.image:
            return
        left = float(self._at.deadline or "inf") - bootstrap.store_time()
        patience = patience_with_gpus(self._at.hosts, task.provision, left)
        if lack := gpus.missing(task.devices, note, patience=patience, root=bootstrap.root()):
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
        """Return those that each instance has by Compute Engine's word."""
        return [_address_of(url) for url in sorted_parts(self._at.resource, self._at.hosts)]

    def _check_rights(self, project: str) -> str:
        own = bootstrap.parts(self._at.resource, self._at.hosts, self._at.host)[-1]
        missing, unknown = missing_rights(f"{own}/testIamPermissions", PERMISSIONS)
        if missing:
            account = account_name()
            raise Unauthorized(
                f"the service account {account} lacks {' and '.join(missing)} on its own VM "
                f"{own.rpartition('/')[2]}, so that the VM could not delete itself and might cost money until the "
                f"limit of its run time. Nothing was run. {bootstrap.grant(self._at.resource, account)}"
            )
        return unknown

    def _rule(self, addresses: Sequence[str]) -> str:
        """Return the command that creates the firewall rule for these hosts."""
        own = bootstrap.parts(self._at.resource, self._at.hosts, self._at.host)[-1]
        reply = bootstrap.request("GET", own, patience=10.0)
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


def patience_with_gpus(hosts: int, provision: float, left: float) -> float:
    """Return for how many seconds GPUs are waited for.

    provision: For so long the hosts wait for each other; 0.0 for no limit. left: Until the VM deletes itself.
    """
    longest = gpus.PATIENCE if hosts == 1 else OF_OTHERS - SPARE
    return max(0.0, min(longest, (provision or float("inf")) - SPARE, left - SPARE))


def sorted_parts(resource: str, hosts: int) -> list[str]:
    """Return the URL of each host's instance, in the order of the hosts."""
    return bootstrap.parts(resource, hosts, hosts - 1)


def _address_of(url: str) -> str:
    def read(found: Any) -> list[str]:
        return [str(found["networkInterfaces"][0]["networkIP"])]

    def denied(reason: str) -> str:
        resource = "projects/" + url.partition("/projects/")[2]
        account = account_name()
        return (
            f"where {resource.rpartition('/')[2]} is could not be read by the service account {account}: {reason}. "
            f"{bootstrap.grant(resource, account)}"
        )

    return addresses_when_all_there(url, 1, read, denied)[0]


def _subnet(addresses: Sequence[str]) -> str:
    """Return the range of this machine's subnet by its metadata, or else the addresses of the hosts."""
    path = "instance/network-interfaces/0"
    ip, mask = (bootstrap.metadata(f"{path}/{what}", patience=5.0) for what in ("ip", "subnetmask"))
    try:
        if ip and mask:
            return str(ipaddress.ip_network(f"{ip.strip()}/{mask.strip()}", strict=False))
    except ValueError:
        pass
    return ",".join(f"{address}/32" for address in addresses)
