"""Simulated VMs of Compute Engine: as those of `vms`, each of them a host by its orders, that ends all VMs of its attempt.

A spot VM is told 120 s before its end, or 30, or not; a machine that fails stays TERMINATED and is billed for its disk.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from kinetic_orchestration.host.machine import bootstrap as boot
from tests.simulation.compute import ACCOUNT, REPAIRING, RUNNING, SOMEBODY, Compute, Instance
from tests.simulation.vms import CloudGround, Machine
from tests.simulation.world import Task, Violation, World

GPUS_PATIENCE = 300.0
NOTICES = {"preempted": 0.0, "notice": 30.0, "long notice": 120.0}
FATES = (
    *("preempted", "notice", "long notice", "host error", "host error", "user", "user deletes all", "repair"),
    *("repair for ever", "guest", "maintenance", "reboot", "agent", "host", "all silent", "cut off"),
    *("never boots", "slow boot", "unready", "no gpu", "stuck", "preempt at the end", "denied"),
)
UNFOLLOWED = ("all silent", "all silent", "host", "host", "agent", "never boots")
_FROM_THE_START = FATES[16:]
_OF_ALL_VMS = ("reboot", "agent", "all silent", "cut off", "maintenance")  # which `vms` knows


class InstanceMachine(Machine):
    """The one machine of an instance."""

    def __init__(self, ground: ComputeGround, one: Instance) -> None:
        super().__init__(ground, one, 0)  # type: ignore[arg-type]
        self.told, self.index, self.name = one.told, one.index, one.id
        self.asked = Counter[tuple[Task, str]]()  # what each of its processes asked to delete, and how often

    def _going(self) -> float:
        return float(self.node.going)  # type: ignore[attr-defined]


class ComputeGround(CloudGround):
    """The zones in which instances live, and the faults that hit them."""

    api: Any
    kind_of_machine: type[InstanceMachine] = InstanceMachine

    def __init__(self, world: World, api: Compute) -> None:
        super().__init__(world, api)  # type: ignore[arg-type]
        self.fates = FATES
        api.account_of = lambda: ACCOUNT if self.machine() is not None else ""

    def gpus(self) -> str:
        """Act as gpus.missing: return what a host lacks in the end."""
        machine, world = self.machine(), self.world
        assert machine is not None
        if machine.fate != "no gpu" or self.calm:
            world.sleep(world.random.choice((0.0, 5.0, 60.0)) * world.random.random())
            return ""
        world.sleep(GPUS_PATIENCE)
        return f"the driver shows none of 1 GPUs after {GPUS_PATIENCE:.0f} s, and no program was run"

    # ---- fates -------------------------------------------------------------------------------------------

    def _boot(self, node: Any) -> None:
        one, draw, group = node, self.world.random, node.queued
        machine = self.kind_of_machine(self, one)
        one.machines, kind = [machine], ""
        if not self.calm and not group.harmed and draw.random() < self.harmful / group.told["hosts"]:
            group.harmed = True
            kind = draw.choice(self.fates)
        if kind in _FROM_THE_START:
            self.harm(group, kind)
            self.world.reached.add(f"harm: {kind}")
        machine.fate = kind if kind in ("unready", "no gpu", "stuck", "preempt at the end") else ""
        machine.denied = kind == "denied"
        machine.lingers = draw.choice((0.0, 0.0, 20.0, 300.0)) if self.harmful else 0.0
        if kind == "never boots":
            return
        machine.boot(draw.uniform(1.0, 40.0) + (draw.uniform(10.0, 1500.0) if kind == "slow boot" else 0.0))
        if kind and kind not in _FROM_THE_START:
            when = self.world.now + draw.choice((10.0, 50.0, 100.0)) * draw.uniform(0.3, 1.3)
            self.world.at(when, lambda: self._befall(kind, group, one, machine))

    def _is_up(self, node: Any) -> bool:
        return bool(node.state == RUNNING)

    def _befall(self, kind: str, queued: Any, node: Any, victim: Machine) -> None:
        if kind in _OF_ALL_VMS:
            super()._befall(kind, queued, node, victim)
            return
        api, draw = self.api, self.world.random
        if self.calm or api.nodes.get(node.name) is not node or not self._is_up(node) or victim.gone:
            return
        self.harm(queued, kind)
        self.world.reached.add(f"harm: {kind}")
        if kind in NOTICES:
            self._preempt(node, NOTICES[kind])
        elif kind in ("host error", "guest"):
            api.happens(kind, node)
            api.stop(node)
        elif kind == "host":
            victim.power_off()
        elif kind in ("user", "user deletes all"):
            for one in [node] if kind == "user" else api.nodes_of(queued):
                api._begin("delete", one.name, SOMEBODY, ended=True)
                api.end(one)
        elif kind not in ("repair", "repair for ever"):
            self._befall_more(kind, queued, node)
        else:
            node.state = REPAIRING
            self.truth(queued.told["job"], queued.told["attempt"]).repairs = self.world.now
            api.show(node)
            victim.stop()
            if kind == "repair":
                self.world.at(self.world.now + draw.uniform(30.0, 600.0), lambda: self._repaired(node))

    def _befall_more(self, kind: str, queued: Any, node: Any) -> None:
        raise LookupError(f"nobody knows what {kind!r} is")

    def _preempt(self, one: Instance, notice: float) -> None:
        """A VM is taken away, so long after it was told; its programs may end before it."""
        draw, now = self.world.random, self.world.now
        if notice:
            for machine in one.machines:
                machine.tell("preempted")
                if draw.random() < 0.5:
                    self.world.at(now + notice * draw.random(), machine.end_program)
        self.world.at(now + notice * (1.0 if notice > 30.0 else draw.random()), lambda: self._taken(one))

    def _taken(self, one: Instance) -> None:
        if self.api.nodes.get(one.name) is one and not one.going:
            self.api.happens("preempted", one)
            self.api.end(one, at_once=True)

    def take(self, box: Machine) -> None:
        self._taken(box.node)  # type: ignore[arg-type]

    def _repaired(self, node: Any) -> None:
        if self.api.nodes.get(node.name) is node and node.state == REPAIRING:
            node.state = RUNNING
            self.api.show(node)
            for machine in node.machines:
                self._reboot(machine)

    # ---- the network of machines -------------------------------------------------------------------------

    def _exchanged(self, machine: Machine, method: str, url: str) -> boot.Reply:
        path = url.partition("/compute/v1/")[2].partition("?")[0]
        if not path:
            return super()._exchanged(machine, method, url)
        if path.endswith("/testIamPermissions"):
            kind = path.split("/")[-3]
            rights = [] if machine.denied else [f"compute.{kind}.delete", f"compute.{kind}.get"]
            return boot.Reply(200, {}, json.dumps({"permissions": rights}).encode())
        if method == "DELETE":
            return self._deleted(machine, path)
        return _reply(self.api.answered(method, path, None, {}))

    def _deleted(self, machine: Any, path: str) -> boot.Reply:
        world, task = self.world, self.world.current
        assert task is not None
        machine.asked[task.process, path] += 1
        if machine.denied:
            world.reached.add("a machine may not delete its VM")
            return boot.Reply(403, {}, b"{}")
        own, others = self._parts(machine)
        if path not in {own, *others}:
            raise Violation(f"{machine.name} deletes {path}")
        if task.name.startswith("deadline"):
            world.reached.add("a machine reached its deadline")
            self.harm(machine.node.queued, "deadline")
        answer = self.api.answered("DELETE", path, None, {})
        if answer.ok:
            whose = f"its own {self.part}" if path == own else f"another's {self.part}"
            world.reached.add(f"host {min(1, machine.index)} deleted {whose}")
        return _reply(answer)

    part = "VM"

    def _parts(self, machine: Any) -> tuple[str, list[str]]:
        """What a host deletes at its end: what it runs on, and the others of its attempt."""
        base = machine.told["resource"]
        members = [base] if machine.hosts == 1 else [f"{base}-{number}" for number in range(machine.hosts)]
        own: str = machine.node.name
        return own, [name for name in members if name != own]


def _reply(answer: Any) -> boot.Reply:
    return boot.Reply(answer.status, {}, json.dumps(answer.body).encode())
