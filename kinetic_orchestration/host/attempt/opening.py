"""Opening of a host: it takes its orders before other hosts see it, and makes sure that it was not started before."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from kinetic_orchestration.host.attempt import race
from kinetic_orchestration.host.machine.machine import Machine, Promise
from kinetic_orchestration.host.process import topology
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import TooLarge, read_bounded, read_intact
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.protocol.system.parallel import Ahead
from kinetic_orchestration.protocol.wire.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic_orchestration.host.attempt.lease import Watch
    from kinetic_orchestration.host.view.view import View
    from kinetic_orchestration.protocol import attempt_rules
    from kinetic_orchestration.protocol.assignment import Assignment


class Refused(Exception):
    """This host must not run its spec: it is not the one that was submitted, or is of a newer wire version."""


class Restarted(Exception):
    """This host has started before in this attempt; the program that ran then is lost."""

    def __init__(self, before: Mapping[str, object], now: Mapping[str, object]) -> None:
        was, machine = (str(life.get("machine", "")).partition("/")[0] for life in (before, now))
        if before.get("pod") != now.get("pod"):
            super().__init__(
                f"the pod of this host was replaced in mid-run: {now.get('pod')} came after {before.get('pod')}"
            )
            return
        super().__init__(
            "this machine was restarted in mid-run (another boot id)" if was != machine
            else "the agent of this host was started again in mid-run"
        )  # fmt: skip


def machine_of(at: Assignment) -> Machine:
    """Return the machine that a host was given: this one, a pod, or a VM by the service that has it. Only that one is
    imported.
    """
    if at.batch:
        from kinetic_orchestration.host.machine.pod.slurm_node import SlurmNode

        return SlurmNode(at)
    if at.pod:
        from kinetic_orchestration.host.machine.pod.pod import Pod

        return Pod(at)
    if not at.resource:
        return Machine(at)
    if "/locations/" in at.resource:
        from kinetic_orchestration.host.machine.vm.node import TpuNode

        return TpuNode(at)
    if "/instanceGroupManagers/" in at.resource:
        from kinetic_orchestration.host.machine.vm.member import Member

        return Member(at)
    from kinetic_orchestration.host.machine.vm.instance import Instance

    return Instance(at)


class Opening:
    """Steps of the opening, in their order: other hosts may see each."""

    def __init__(self, at: Assignment, view: View, machine: Machine) -> None:
        self._at = at
        self._view = view
        self._machine = machine
        self._spec: Ahead[bytes | None] | None = None
        self._promised: Ahead[Promise | None] | None = None
        self._placed: Ahead[str] | None = None
        self._lease: Watch | None = None

    def begin(self, key: str) -> bool:
        """Request the spec and the intent, concurrently where a read is a request. Returns False if nothing is to run:
        the attempt has ended, or another place has won its race. `key`: that of the attempt's seals; "" for none.
        """
        if not race.may_run(self._at, self._view.records, key):
            return False
        records = self._view.records
        in_background = records.parallel > 1
        self._spec = Ahead(read_intact, records, names.spec(self._at.job), self._at.spec, in_background=in_background)
        self._promised = Ahead(self._machine.promise, records, in_background=in_background)
        if read_bounded(records, names.verdict(self._at.job, self._at.attempt)) is None:
            return True
        self._come_late()
        return False

    def read(self) -> Task:
        """Return the task. Raises Refused if its spec is not the one that was submitted, or is of a later wire."""
        records, name = self._view.records, names.spec(self._at.job)
        if self._promised is None:
            self._promised = Ahead(self._machine.promise, records, in_background=records.parallel > 1)
        self._placed = Ahead(self._machine.address, in_background=self._machine.requests_address)
        try:
            spec = read_intact(records, name, self._at.spec) if self._spec is None else self._spec.result()
        except TooLarge as error:
            raise Refused(str(error)) from None
        if spec is None:
            raise Refused(
                f"{name} is not the one that was submitted: its digest differs. Nothing of it was run; submit the job "
                "again"
            )
        try:
            task = Task.decode(spec, name, self._at.choice)
        except (wire.Newer, wire.Unreadable) as error:
            raise Refused(str(error)) from None
        if task.shape and self._at.resource:
            from kinetic_orchestration.host.attempt import lease

            self._lease = lease.begin(self._at, task, records)
        return task

    def _come_late(self) -> None:
        """Have a host whose attempt ended before it began end the lease of its slice, if that may have one by now: its
        machine was made again, or boots anew."""
        if self._at.resource:
            from kinetic_orchestration.host.attempt import lease

            lease.expect(self._at)

    def lost_lease(self) -> attempt_rules.Exit | None:
        """Return the failure of a host whose slice is no longer its attempt's; None for any other."""
        return None if self._lease is None else self._lease.lost()

    def shares_machine(self) -> bool:
        """Return True if all hosts are on one machine, emulated hosts included. Raises Unplaced."""
        assert self._placed is not None
        return topology.is_loopback(self._placed.result())

    def promise(self, affordable: float) -> Promise:
        """Return what the attempt was promised, which is no more than is `affordable` to the job."""
        assert self._promised is not None
        promised = self._promised.result()
        if promised is None:
            return Promise()
        return Promise(
            min(affordable, promised.affordable or affordable), min(promised.moved, self._at.attempt - 1)
        )  # fmt: skip

    def claim(self, *, shares_machine: bool) -> None:
        """Write the record that this host has started. Raises Restarted if it has started before."""
        record: dict[str, object] = {
            "boot": self._at.boot,
            "pid": os.getpid(),
            "machine": processes.machine(),
            **self._machine.start_facts(),
        }
        chooses = shares_machine or self._machine.shares_ports
        if self._at.host == 0 and self._at.hosts > 1 and chooses:
            record["ports"] = _free_ports(self._at.hosts)
        life, name = wire.encode(record), self._at.own("started.json")
        records = self._view.records
        if records.create(name, life) is None and (before := read_bounded(records, name)) not in (life, None):
            raise Restarted(wire.fields_of(before, wire.STARTED, name), record)


def _free_ports(hosts: int) -> dict[str, int]:
    """Return consecutive ports below the ephemeral range that are free now; host 0 picks them for all hosts."""
    import random
    import socket

    chooser = random.SystemRandom()
    for _ in range(200):
        base = chooser.randrange(20_000, 32_000 - hosts - 3)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + hosts + 3):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return {"jax": base, "torch": base + 1, "megascale": base + 2, "tensorflow": base + 3}
    raise OSError("no free ports between 20000 and 32000")
