"""Simulated VMs of Compute Engine: as those of `vms`, each of them a host by its orders, that ends all VMs of its attempt.

A spot VM is told 120 s before its end, or 30, or not; a machine that fails stays TERMINATED and is billed for its disk.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from kinetic_orchestration.host.machine import bootstrap as boot
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.assignment import Assignment
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
# What besides befalls VMs that several processes share: one of them dies, its guard or its agent, or both at once.
OF_ONE_PROCESS = (
    *("process", "process", "process", "guard", "guard", "guard, then user", "guard, then user", "agent", "agent"),
)
TOLD = 60.0  # that an agent died, by its guard
LEAVES = (
    30.0  # from the end of its agent, or from when its VM is asked to end, until a process beside the first has left
)
SIGTERM = 15
_FROM_THE_START = FATES[16:]
_OF_ALL_VMS = ("reboot", "agent", "all silent", "cut off", "maintenance")  # which `vms` knows


class InstanceMachine(Machine):
    """The one host of an instance, or one of several, each of which is a process for one of its GPUs."""

    def __init__(self, ground: ComputeGround, one: Instance, process: int = 0) -> None:
        super().__init__(ground, one, 0)  # type: ignore[arg-type]
        self.told, self.process = one.told, process
        self.processes: int = one.told.get("processes", 1)
        self.arms = process == 0
        self.index = one.index + process
        self.name = f"{one.id}/{process}" if self.processes > 1 else one.id
        self.asked = Counter[tuple[Task, str]]()  # what each of its processes asked to delete, and how often
        self.defenseless: set[Task] = set()  # processes that SIGTERM ends

    def unit(self) -> tuple[int, int]:
        return self.hosts // self.processes, self.index // self.processes

    def _assignment(self) -> Assignment:
        """Act as start.main, which forks for the next one."""
        told = self.told
        found = Assignment(
            told["store"], self.job, self.attempt, self.index - self.process, self.hosts, told["spec"],
            f"{told['boot']}/{self.index - self.process}", "/simulated", "/simulated", "", "A=b", told["resource"],
            str(told["deadline"]), slices=told.get("slices", 1), processes=self.processes,
        )  # fmt: skip
        for _ in range(self.process):
            found = found.next()
        return found

    @property
    def lives(self) -> bool:
        """True while its agent, or its guard, does."""
        return any(not (task.dead or task.greenlet.dead) for task in (self.task, self.guard) if task is not None)

    def press(self) -> None:
        """SIGTERM, to each of its processes: the power button of its VM is pressed."""
        world = self.ground.world
        self.goes_down = self.goes_down or world.now
        for task in self.tasks:
            if task.name.startswith("deadline") or task in self.defenseless:
                world.kill(task)
        if self.agent is None:
            self.power_off()  # its startup script heeds no signal
        elif not self.ended:
            self.agent._on_term(SIGTERM, None)
            self.agent.bell.set()

    def answer(self, path: str) -> tuple[int, str]:
        """Say also whether its VM may be preempted."""
        if path == "instance/scheduling/preemptible":
            return 200, str(self.node.spot).upper()  # type: ignore[attr-defined]
        return super().answer(path)

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
        api.press, api.is_off = self.press, self.is_off

    def gpus(self) -> str:
        """Act as gpus.missing: return what a host lacks in the end."""
        machine, world = self.machine(), self.world
        assert machine is not None
        if machine.fate != "no gpu" or self.calm:
            world.sleep(world.random.choice((0.0, 5.0, 60.0)) * world.random.random())
            return ""
        world.sleep(GPUS_PATIENCE)
        return f"the driver shows none of 1 GPUs after {GPUS_PATIENCE:.0f} s, and no program was run"

    def beside(self, machine: Any) -> list[Any]:
        return list(machine.node.machines)

    def press(self, one: Instance) -> None:
        """The power button of an instance is pressed."""
        self.truth(one.told["job"], one.told["attempt"]).shut = True
        for machine in one.machines:
            machine.press()

    def is_off(self, one: Instance) -> bool:
        """Return True once all its processes have ended. Of those beside the first each does soon after its agent."""
        if not any(machine.lives for machine in one.machines):
            return True
        harm, now = self.truth(one.told["job"], one.told["attempt"]).harm, self.world.now
        for machine in one.machines[1:]:
            since = max(machine.ended, machine.goes_down)
            waits = machine.lives and machine.ended and now - since > LEAVES
            if waits and not (self.host_odds.error or self.world.suspended or "cut off" in harm):
                raise Violation(f"{machine.name} waits for {now - since:.0f} s, and its VM is to go down")
        return False

    def defenseless(self) -> None:
        """Act as signal.signal of SIGTERM, with SIG_DFL."""
        machine, task = self.machine(), self.world.current
        assert isinstance(machine, InstanceMachine) and task is not None
        machine.defenseless.add(task.process)

    # ---- fates -------------------------------------------------------------------------------------------

    def _boot(self, node: Any) -> None:
        one, draw, group = node, self.world.random, node.queued
        processes = one.told.get("processes", 1)
        hosts = one.machines = [self.kind_of_machine(self, one), *self._more(one, processes)]
        kind, fates = "", self.fates + OF_ONE_PROCESS * (processes > 1)
        if not self.calm and not group.harmed and draw.random() < self.harmful * processes / group.told["hosts"]:
            group.harmed = True
            kind = draw.choice(fates)
        if kind in _FROM_THE_START:
            self.harm(group, kind)
            self.world.reached.add(f"harm: {kind}")
        victim = draw.choice(hosts) if processes > 1 else hosts[0]
        victim.fate = kind if kind in ("unready", "stuck", "preempt at the end") else ""
        lingers = draw.choice((0.0, 0.0, 20.0, 300.0)) if self.harmful else 0.0
        for machine in hosts:
            machine.fate = "no gpu" if kind == "no gpu" else machine.fate
            machine.denied, machine.lingers = kind == "denied", lingers
        if kind == "never boots":
            return
        delay = draw.uniform(1.0, 40.0) + (draw.uniform(10.0, 1500.0) if kind == "slow boot" else 0.0)
        for machine in hosts:
            machine.boot(delay)
        if kind and kind not in _FROM_THE_START:
            when = self.world.now + draw.choice((10.0, 50.0, 100.0)) * draw.uniform(0.3, 1.3)
            self.world.at(when, lambda: self._befall(kind, group, one, victim))

    def _more(self, one: Instance, processes: int) -> list[InstanceMachine]:
        """The hosts of an instance beside its first."""
        return [InstanceMachine(self, one, process) for process in range(1, processes)]

    def _is_up(self, node: Any) -> bool:
        return bool(node.state == RUNNING)

    def _befall(self, kind: str, queued: Any, node: Any, victim: Machine) -> None:
        if kind in _OF_ALL_VMS:
            super()._befall(kind, queued, node, victim)
            if kind == "agent":
                self.world.at(self.world.now + TOLD, lambda: self._check_told(victim))
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
            for machine in self.beside(victim):
                machine.power_off()
        elif kind in OF_ONE_PROCESS:
            self._kill(victim, whole=kind == "process")
            if kind == "guard, then user":
                self.world.at(
                    self.world.now + draw.uniform(0.0, 30.0), lambda: self._befall("user", queued, node, victim)
                )
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

    def _kill(self, victim: Machine, *, whole: bool) -> None:
        """The kernel ends the guard of one process, and its agent, too, if it is the `whole` of it."""
        if victim.guard is not None:
            self.world.kill(victim.guard)
        if whole:
            victim.kill_agent()

    def _check_told(self, victim: Machine) -> None:
        """Some time after the death of an agent: the guard beside it has said so."""
        is_known = names.verdict(victim.job, victim.attempt) in self.world.records
        lost = self.truth(victim.job, victim.attempt).lost
        strict = not (self.host_odds.error or self.world.suspended or victim.goes_down)
        if strict and victim.index in lost and victim.is_well and not is_known:
            raise Violation(f"the agent of {victim.name} died, and nobody has said so for {TOLD:.0f} s")

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
            has_time = self.api.shutdown and any(machine.notice for machine in one.machines)
            self.api.end(one, at_once=not has_time)

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
        """Return the VMs that a host deletes at its end: its own, and the others of its attempt."""
        base, number = machine.told["resource"], machine.hosts // machine.processes
        members = [base] if number == 1 else [f"{base}-{index}" for index in range(number)]
        own: str = machine.node.name
        return own, [name for name in members if name != own]


def _reply(answer: Any) -> boot.Reply:
    return boot.Reply(answer.status, {}, json.dumps(answer.body).encode())
