"""A node of a job of Slurm, on which one host runs. Slurm ends it by a signal, and tells others why.

Jobs of other users may run on the node, so ports are chosen. The hosts find each other by files in the attempt's
folder, which all nodes mount.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine.machine import Machine, Unanswered

if TYPE_CHECKING:
    from kinetic_orchestration.protocol.wire.task import Task

COMPANY = 300.0  # seconds within which all hosts have written their addresses: NFS may show a new file a minute late
LOOK = 0.1
SIGNALLED = 0.3  # seconds in which the signal that has ended a program reaches this process as well


class SlurmNode(Machine):
    """A node. Who ends its job, squeue tells whoever follows it: by the signal alone nobody could know."""

    is_own = True
    keeps_files = False
    is_explained = True
    shares_ports = True
    keeps = ("SLURM_CONF",)  # where Slurm is, for a program that submits another job
    hides = ("SLURM_CONF_SERVER",)

    def address(self) -> str:
        """Return the name of the node, by which the others reach it; loopback if it is none, as of several nodes that
        share one machine."""
        if self._at.hosts == 1:
            return super().address()
        for name in (os.environ.get("SLURMD_NODENAME", ""), socket.gethostname()):
            address = _found(name)
            if address and not address.startswith("127."):
                return name
        return super().address()

    def addresses(self, task: Task) -> list[str]:
        """Return the names that all hosts have written. Raises Unanswered."""
        own = os.path.join(self._at.run, f"address-{self._at.host}")
        with open(f"{own}.new", "w", encoding="ascii") as file:
            file.write(self.address())
        os.replace(f"{own}.new", own)
        until = time.monotonic() + (task.provision or COMPANY)
        while True:
            found = [self._written(host) for host in range(self._at.hosts)]
            if all(found):
                return found
            if time.monotonic() > until:
                missing = ", ".join(str(host) for host, name in enumerate(found) if not name)
                raise Unanswered(f"hosts {missing} have not written their address into {self._at.run}")
            os.listdir(self._at.run)  # NFS looks again
            time.sleep(LOOK)

    def _written(self, host: int) -> str:
        try:
            with open(os.path.join(self._at.run, f"address-{host}"), encoding="ascii") as file:
                return file.read(256).strip()
        except (OSError, ValueError):
            return ""

    def notice(self) -> str:
        """Wait a moment for the signal that may have ended the program: Slurm sends it to all processes of a job, one
        after the other. It is heard as the end of this host, of which others know the reason."""
        time.sleep(SIGNALLED)
        return ""


def _found(name: str) -> str:
    try:
        return str(socket.gethostbyname(name)) if name else ""
    except OSError:
        return ""
