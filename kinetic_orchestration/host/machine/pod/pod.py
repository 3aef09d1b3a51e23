"""A pod of a Kubernetes cluster, made for one host. It may be taken away, and has no right to ask its cluster anything.

What it must know came with its manifest: its orders, the names of the other pods, and its secrets, as variables.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Machine, Unanswered
from kinetic_orchestration.host.machine.pod import account
from kinetic_orchestration.host.machine.pod import start as pod_start
from kinetic_orchestration.host.machine.vm.vm import secrets_of
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.system.parallel import Ahead

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task

COMPANY = 300.0  # seconds within which the names of all pods must have addresses


class Pod(Machine):
    """A pod. Its own end is its cluster's to tell: SIGTERM is the notice."""

    is_own = True
    keeps_files = False
    ends_together = True
    keeps = ("TPU_",)  # by which libtpu finds its slice: GKE gives them to the pods that ask for chips
    hides = ("KUBERNETES_SERVICE_HOST", pod_start.ORDERS)  # with the first, JAX asks the cluster's API who it is

    def __init__(self, at: Assignment) -> None:
        super().__init__(at)
        self._orders = json.loads(os.environ[pod_start.ORDERS])
        self._kept: Ahead[dict[str, str]] | None = None
        self._is_placed = False

    def address(self) -> str:
        """Return this pod's name. The pods of an emulated cluster share one machine."""
        return super().address() if self._orders["emulated"] else self._name_of(self._at.host)

    def addresses(self, task: Task) -> list[str]:
        """Return the names of all pods, once each has an address. They are known before there is any pod."""
        found = [self._name_of(host) for host in range(self._at.hosts)]
        missing = found
        patience = task.provision or COMPANY  # as the barrier has it: some pods may wait for nodes
        until = time.monotonic() + patience
        for _ in bootstrap.tries(patience):
            missing = _unknown(missing, until)
            if not missing:
                return found
        raise Unanswered(
            f"the cluster's DNS gave no address for {', '.join(missing[:4])} within {patience:.0f} s: they "
            "have no node yet, its DNS does not run, or a network policy keeps pods from it"
        )

    def begin(self, task: Task) -> None:
        """Ask Secret Manager for the secrets that are there, on a thread."""
        several = int(self._orders["hosts_per_slice"]) > 1  # the host of a slice of one may have no place in it
        self._is_placed = several and task.accelerator.kind == "tpu" and not task.emulated
        if task.secrets:
            self._kept = Ahead(secrets_of, task.secrets, account.told)

    def secrets(self, note: Callable[[str], None]) -> dict[str, str]:
        """Return those of Secret Manager, and the variables that the manifest took from Secrets of the namespace."""
        self._check_place()
        try:
            kept = {} if self._kept is None else self._kept.result()
        except OSError as error:
            raise Unanswered(str(error)) from None
        return kept | {name: os.environ[name] for name in self._orders["secrets"] if name in os.environ}

    def start_facts(self) -> dict[str, float | str]:
        return {"pod": self._at.pod}

    def _name_of(self, host: int) -> str:
        name, each = self._orders["name"], self._orders["hosts_per_slice"]
        return f"{names.pod(name, *divmod(host, each))}.{name}"

    def _check_place(self) -> None:
        """Raise Unanswered if GKE gave this pod another place in its slice than the one it was started for, or none."""
        each = self._orders["hosts_per_slice"]
        index = self._at.host % each
        worker, told = os.environ.get("TPU_WORKER_ID", ""), os.environ.get("TPU_WORKER_HOSTNAMES", "")
        started = f"it was started as pod {index} of {each}"
        if self._is_placed and not (worker and told):
            raise Unanswered(
                f"GKE gave this pod TPU_WORKER_ID={worker!r} and TPU_WORKER_HOSTNAMES={told!r}, and {started}: libtpu "
                "would not find its slice. Nothing was run. GKE's webhook sets both when a pod is made, and "
                "'kubectl get pods -o yaml' shows what it set: if neither, see that the cluster is one of GKE and that "
                "no other webhook or policy changes its pods"
            )
        workers = len(told.split(","))
        if worker and (worker != str(index) or workers != each):
            raise Unanswered(
                f"GKE made this pod worker {worker} of {workers} (TPU_WORKER_ID, TPU_WORKER_HOSTNAMES), and {started}: "
                "libtpu would join another slice. Nothing was run"
            )


def _unknown(hosts: list[str], until: float) -> list[str]:
    """Return those that have no address yet. After `until` no other is asked for once one has none: of a DNS that does
    not answer, that is known only after many seconds for each."""
    found: list[str] = []
    for index, host in enumerate(hosts):
        if found and time.monotonic() > until:
            return found + hosts[index:]
        if not _is_known(host):
            found.append(host)
    return found


def _is_known(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False
