"""Simulated pods: each runs the agent's real loop on its real view, and ends with the code that it would end with.

SIGTERM is the only notice. A pod can be taken away with and without it, evicted by Kueue with its whole set, lose its
node, live on where nobody sees it, be killed in any of its processes, or be frozen in all of them.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from kinetic_orchestration.host.attempt import self_delete
from kinetic_orchestration.host.machine.pod import start as pod_start
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.records.base import RecordsError
from tests.simulation.cluster import Cluster, JobSet, Pod
from tests.simulation.threads import Event
from tests.simulation.vms import ECHO, CloudGround, Machine, VmHost
from tests.simulation.world import Odds, Task, World

SIGTERM = 15
OOM = "OOMKilled"
FATES = (
    "deleted", "evicted", "evicted", "taken", "node lost", "node silent", "set deleted", "suspended by hand",
    "agent", "host", "out of memory", "all killed", "cut off", "frozen",
    "never boots", "slow boot", "unready", "stuck", "evicted at the end",
)  # fmt: skip
UNFOLLOWED = ("all killed", "host", "agent", "node lost", *("frozen",) * 6)
OF_A_QUEUE = ("kueue",) * 8
OF_A_NAMESPACE = ("namespace deleted",) * 3
_FROM_THE_START = FATES[14:]


class PodMachine(Machine):
    """The process of one pod."""

    def __init__(self, ground: PodGround, pod: Pod) -> None:
        super().__init__(ground, pod, pod.host % int(pod.set.told["hosts_per_slice"]))
        self.pod, self.name = pod, pod.id

    def boot(self, delay: float) -> None:
        world = self.ground.world
        skew = world.random.uniform(-600.0, 600.0)

        def start(name: str, main: Any) -> Task:
            task = world.spawn(f"{name} {self.name}", main, delay=delay, odds=self.ground.host_odds, skew=skew)
            self.tasks.append(task)
            self.ground.machine_of[task] = self
            return task

        self.up, self.over = world.now + delay, Event(world)
        clean: list[bool] = []
        self.task = start("host", lambda _task: self._begin(self.over, clean))
        start("guard", lambda _task: self._guard(self.over, clean))
        self.ground.living[self] = None

    def tell(self, notice: str) -> None:
        """SIGTERM, to the agent or to the program that fetches it."""
        super().tell(notice)
        if self.agent is not None:
            self.agent._on_term(SIGTERM, None)
            self.agent.bell.set()

    def freeze(self, seconds: float) -> None:
        """Have none of its processes go any further, for so long or, if 0, for good; for Kubernetes it runs."""
        world = self.ground.world
        for task in self.tasks:
            world.freeze(task)
        if seconds:
            world.at(world.now + seconds, lambda: [world.thaw(task) for task in self.tasks])

    def _begin(self, over: Event, clean: list[bool]) -> None:
        """Act as `start.main`: no agent for whom it is too late, or who is taken away before it is there."""
        world, told = self.ground.world, self.told
        late = told["deadline"] and world.now > told["deadline"]
        if late or self.notice:
            world.reached.add(
                "a pod started after its deadline" if late else "a pod was taken before its agent was there"
            )
            cause, why = (wire.DEADLINE, "deadline passed") if late else (wire.PREEMPTION, "received SIGTERM")
            if not late and self.hosts > 1:
                self._await_another_word()
            self._abort(cause, f"host {self.index} could not start its agent: {why}")
            clean.append(True)
            over.set()
            return
        self._live(over, clean)

    def _await_another_word(self) -> None:
        """Act as its namesake of `start`."""
        world, records = self.ground.world, self._host().view.records
        until = world.now + pod_start.HEARD
        while world.now < until:
            with suppress(RecordsError):
                if records.read(names.verdict(self.job, self.attempt)) is not None:
                    world.reached.add("a pod was told before its agent was there, and somebody else said why")
                    return
            world.sleep(pod_start.LOOK)

    def _host(self) -> PodHost:
        agent = PodHost(self.ground, self, self._assignment())
        if self.notice:
            agent._on_term(SIGTERM, None)
        return agent

    def _guard(self, over: Event, clean: list[bool]) -> None:
        """Act as guard.be_the_guard: report for an agent that died, and end the pod with the attempt's code."""
        over.wait()
        if not clean:
            self._speak_for_agent()
        code = self_delete.exit_code(self._assignment())
        self.ground.living.pop(self, None)
        self.ground.api.exited(self.pod, code)

    def _assignment(self) -> Assignment:
        told = self.told
        return Assignment(
            told["store"], self.job, self.attempt, self.index, self.hosts, told["spec"], f"{told['boot']}/{self.index}",
            "/simulated", "/simulated", "", "A=b", "", str(told["deadline"]), "", self.pod.uid,
        )  # fmt: skip

    def _check_deadline(self) -> None:
        """Nothing in a pod sees to that: its cluster does."""


class PodHost(VmHost):
    """The real agent of a pod."""

    def __init__(self, ground: Any, box: PodMachine, at: Assignment) -> None:
        os.environ[pod_start.ORDERS] = json.dumps(box.told | {"emulated": True})
        try:
            super().__init__(ground, box, at)
        finally:
            del os.environ[pod_start.ORDERS]

    def _report(self) -> attempt_rules.Report | None:
        """Programs that die of one that was asked to end say so in words that no rule knows."""
        report = super()._report()
        culprits = self.ground.truth(self.at.job, self.at.attempt).culprits
        if report is None or report.message != ECHO or culprits:
            return report
        self.world.reached.add("a program died of another that was asked to end, and did not say so")
        return report._replace(type="RuntimeError", message="a remote process exited prematurely")

    def _commit(self) -> None:
        if self.box.fate == "evicted at the end" and not self.box.gone:
            self.box.fate = ""
            self.ground._harm(self.box, "evicted")
            self.world.reached.add("evicted during the commit")
            pod = self.box.pod
            self.world.at(
                self.world.now + 10.0 * self.world.random.random(), lambda: self.ground.api.take(pod, told=True)
            )
        super()._commit()


class PodGround(CloudGround):
    """The clusters in which pods live, and the faults that hit them."""

    api: Any

    def __init__(self, world: World, cluster: Cluster) -> None:
        super().__init__(world, cluster)  # type: ignore[arg-type]
        self.fates = FATES

    def _boot(self, node: Any) -> None:
        pod, draw = node, self.world.random
        machine = PodMachine(self, pod)
        pod.machines = [machine]
        jobset, kind = pod.set, ""
        if not self.calm and not jobset.harmed and draw.random() < self.harmful / jobset.hosts:
            jobset.harmed = True
            kind = draw.choice(self.fates)
        if kind in _FROM_THE_START:
            self.harm(jobset, kind)
            self.world.reached.add(f"harm: {kind}")
        machine.fate = kind if kind in ("unready", "stuck", "evicted at the end") else ""
        if kind == "never boots":
            return
        machine.boot(draw.uniform(0.5, 20.0) + (draw.uniform(10.0, 1500.0) if kind == "slow boot" else 0.0))
        if kind and kind not in _FROM_THE_START:
            when = self.world.now + draw.choice((10.0, 50.0, 100.0)) * draw.uniform(0.1, 1.3)
            self.world.at(when, lambda: self._strike(kind, jobset, pod, machine))

    def _strike(self, kind: str, jobset: JobSet, pod: Pod, machine: PodMachine) -> None:
        api, draw = self.api, self.world.random
        if self.calm or api.queued.get(jobset.name) is not jobset or jobset.is_over or pod.code is not None:
            return
        self.harm(jobset, kind)
        self.world.reached.add(f"harm: {kind}")
        if kind == "deleted":
            api.end(pod)
        elif kind in ("evicted", "taken"):
            api.take(pod, told=kind == "evicted")
        elif kind in ("node lost", "node silent"):
            api.lose(pod, lives=kind == "node silent")
        elif kind in ("kueue", "suspended by hand"):
            api.evict(jobset)
        elif kind == "set deleted":
            api.remove(jobset)
        elif kind == "namespace deleted":
            api.delete_namespace(jobset.zone)
        elif kind == "agent":
            machine.kill_agent()
        elif kind in ("host", "out of memory"):
            api.kill(pod, 137, OOM if kind == "out of memory" else "Error")
        elif kind == "all killed":
            for each in api.pods_of(jobset):
                api.kill(each)
        elif kind == "frozen":
            first = min(api.pods_of(jobset), key=lambda one: one.host)  # the one by which the others' end is told
            if first.machines and first.code is None and draw.random() < 0.7:
                machine = first.machines[0]
            machine.freeze(draw.choice((60.0, 200.0, 1000.0, 0.0, 0.0, 0.0)) * draw.uniform(0.5, 1.0))
        elif kind == "cut off":
            for task in machine.tasks:
                for one in (task, *task.threads):
                    one.odds = Odds(error=0.9)
            self.world.at(self.world.now + draw.choice((30.0, 300.0)), lambda: self._joined(machine))
