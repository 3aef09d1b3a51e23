"""Simulated TPU VMs: each runs the agent's real loop, its real view, log writer and notices, and retires for real.

Every boot arms the deadline, starts an agent and the guard that speaks for it. A machine can be taken away with and
without notice, reboot, hang, lose its network or its rights, or live on where nobody sees it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from email.utils import formatdate
from typing import Any

from kinetic_orchestration.host import guard, host
from kinetic_orchestration.host.machine import bootstrap as boot
from kinetic_orchestration.host.prepare import prepare
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.records.base import RecordsError, Signal
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.system.parallel import REQUESTS
from tests.simulation.cloud import Cloud, QueuedResource, TpuNode
from tests.simulation.slices import Program, SimulatedHost, Truth
from tests.simulation.threads import Event
from tests.simulation.world import Killed, Odds, SimulatedStore, Task, Violation, World

NOTICE_SECONDS = 30.0
LATE = 300.0  # after its deadline a slice is gone, unless a delete gets stuck
ECHO = "[Errno 104] Connection reset by peer"


class DistantStore(SimulatedStore):
    """The Store protocol where each verb is a request, and an object is never added to."""

    url = "gs://simulated/store/test"
    trusted, metered = False, True
    has_files, may_corrupt = False, True
    parallel = REQUESTS

    def signal(self, name: str, data: bytes) -> int:
        assert len(data) <= 4096
        self._world.request("signal", name, self._failure)
        generation = self._world.write(name, data)
        self._world.request("signal", name, self._failure, done=True)
        return generation

    def signals(self, prefix: str) -> Any:
        self._world.request("list", prefix, self._failure)
        records = self._world.records
        found = sorted([name for name in self._world.signals if name.startswith(prefix)])
        return iter([Signal(name, *records[name]) for name in found])

    def _look_begins(self, name: str) -> bool:
        return name.endswith("/cancel.json")  # the intent may be remembered, and that of the attempt before is read

    def put(self, name: str, data: bytes) -> int:
        if name.startswith("jobs/") and not name.endswith("/owner.json"):
            raise Violation(f"{name} is written to again")
        return super().put(name, data)

    def ring(self, text: str) -> bool:
        return self.hint(names.ring(text), f"{self._world.random.getrandbits(64):x}".encode())

    def hint(self, name: str, data: bytes) -> bool:
        try:
            self.signal(name, data)
        except Exception:
            return False
        return True

    def close(self) -> None:
        pass


class Machine:
    """One VM, or what one of several hosts has on it."""

    arms = True  # its deadline

    def __init__(self, ground: CloudGround, node: TpuNode, worker: int) -> None:
        assert node.queued is not None
        told = self.told = node.queued.told
        self.ground, self.node, self.worker = ground, node, worker
        self.index = node.index * told["hosts_per_slice"] + worker
        self.job: str = told["job"]
        self.attempt: int = told["attempt"]
        self.hosts: int = told["hosts"]
        self.name = f"{node.id}/{worker}"
        self.machine = "elsewhere"
        self.place = self
        self.task: Task | None = None  # its agent
        self.guard: Task | None = None
        self.agent: VmHost | None = None
        self.tasks: list[Task] = []
        self.fate = ""
        self.zombie = False
        self.gone = False
        self.off = False  # it is there, and nothing runs on it
        self.lingers = 0.0  # so long it lives on when nobody sees it any more
        self.denied = False  # its account lacks rights
        self.goes_down = 0.0  # since when it is asked to end
        self.ended = 0.0  # when its agent did
        self.notice = ""
        self.heard = (0.0, 0.0)  # as boot._heard, of the process of the deadline
        self.up = 0.0  # when it booted last
        self.noticed = Event(ground.world)

    # ---- what befalls it -----------------------------------------------------------------------------------

    def boot(self, delay: float) -> None:
        world = self.ground.world
        skew = world.random.uniform(-600.0, 600.0)

        def start(name: str, main: Any, after: float) -> Task:
            task = world.spawn(f"{name} {self.name}", main, delay=after, odds=self.ground.host_odds, skew=skew)
            self.tasks.append(task)
            self.ground.machine_of[task] = self
            return task

        self.up = world.now + delay
        over = Event(world)
        clean: list[bool] = []
        if self.arms:
            start("deadline", self._deadline, delay)
        self.task = start("host", lambda _task: self._live(over, clean), delay)
        self.guard = start("guard", lambda _task: self._guard(over, clean), delay)
        self.over = over
        self.ground.living[self] = None

    def kill_agent(self) -> None:
        """The guard is there to speak for it."""
        if self.task is not None and not self.task.dead and not self.task.greenlet.dead:
            self.ground.truth(self.job, self.attempt).lost.add(self.index)
            self.ground.world.kill(self.task)
            self.ended = self.ground.world.now
            self.over.set()

    def stop(self) -> None:
        """Kill all tasks of the machine."""
        for task in self.tasks:
            if not task.dead and not task.greenlet.dead:
                self.ground.world.kill(task)
        self.tasks.clear()

    def power_off(self) -> None:
        self.off = True
        self.stop()
        self.ground.living.pop(self, None)

    def destroy(self) -> None:
        if self.gone:
            return
        if self.lingers and not self.ground.calm:
            self.zombie = True
            self.ground.world.reached.add("a machine lived on after its node")
            lingers, self.lingers = self.lingers, 0.0
            self.ground.world.at(self.ground.world.now + lingers, self.destroy)
            return
        self.gone = True
        self._check_deadline()
        self.power_off()

    def _check_deadline(self) -> None:
        """The script that armed it sees to the end, whoever else is there."""
        world = self.ground.world
        armed = any(task.name.startswith("deadline") and not task.greenlet.dead for task in self.tasks)
        late = (self._going() or world.now) - max(self.told["deadline"], self.node.created, self.up)
        if (
            armed
            and not self.denied
            and not self.node.orphan
            and not world.suspended
            and self.ground.api.calm
            and late > LATE
        ):
            raise Violation(f"{self.name} lived {late:.0f} s longer than its deadline")

    def _going(self) -> float:
        """Since when it is being deleted; 0.0 if it is not."""
        return self.node.queued.going if self.node.queued is not None else 0.0

    def tell(self, notice: str) -> None:
        self.notice = notice
        self.noticed.set()

    # ---- its life ------------------------------------------------------------------------------------------

    def _deadline(self, _task: Task) -> None:
        """Act as boot.arm, which forks for it."""
        told = self.told
        slice_ = told["resource"], *self.unit()
        while not boot._is_deleted(slice_, told["deadline"]):
            self.ground.world.sleep(10.0)

    def unit(self) -> tuple[int, int]:
        """Return the number of parts in which its slice is deleted, and its own part, as boot.main knows them when it arms that."""
        return self.told["hosts"], self.told.get("host", 0)

    @property
    def is_well(self) -> bool:
        """There is somebody on it who sees to its end: nobody has killed the guard, and it has the rights."""
        return not (self.denied or self.off or self.gone) and any(
            task.name.startswith("guard") and not task.dead for task in self.tasks
        )

    def end_program(self) -> None:
        """End the programs before the machine."""
        agent = self.agent
        if (
            agent is None
            or agent.program is None
            or not agent.supervisor.child
            or agent.program.stuck
            or agent.program.echo
        ):
            return
        program, draw = agent.program, self.ground.world.random
        program.taken, program.ends, program.code = True, self.ground.world.now, draw.choice((1, 143, -15))
        self.ground.world.reached.add("a program died of its machine's end")
        agent.bell.set()

    def _assignment(self) -> Assignment:
        told = self.told
        return Assignment(
            told["store"], self.job, self.attempt, self.index, self.hosts, told["spec"], f"{told['boot']}/{self.index}",
            "/simulated", "/simulated", "", "A=b", told["resource"], str(told["deadline"]),
            slices=told.get("slices", 1), choice=told.get("choice", 0), rival=told.get("rival", -1),
        )  # fmt: skip

    def _live(self, over: Event, clean: list[bool]) -> None:
        agent = self.agent = self._host()
        try:
            agent.live()
            clean.append(True)
        except Exception as error:
            if isinstance(error.__context__, Violation):
                raise error.__context__ from error
            self.ground.truth(self.job, self.attempt).harm.add("agent")
            self.ground.world.note("agent failed", repr(error))
        finally:
            self.ended = self.ground.world.now
            over.set()
        if self.guard is not None and self.guard.dead:  # as guard.be_the_agent, which does its work then
            self.ground.world.reached.add("an agent did what its guard would have done")
            if not clean:
                self._speak_for_agent()
            guard.clean_up(self._assignment(), goes_down=lambda: bool(agent.ended))

    def _guard(self, over: Event, clean: list[bool]) -> None:
        """Act as guard.be_the_guard: report for an agent that died, and end the machine."""
        over.wait()
        if not clean:
            self._speak_for_agent()
        guard.clean_up(self._assignment(), goes_down=lambda: self.goes_down > 0.0)

    def _speak_for_agent(self) -> None:
        with suppress(RecordsError):
            guard.speak(self._host(), -9, f"the agent of host {self.index} was ended by SIGKILL")
        self.ground.world.reached.add("a guard spoke for its agent")

    def _abort(self, cause: str, reason: str) -> None:
        agent = self._host()
        with suppress(RecordsError):
            agent.write_verdict(
                wire.Verdict(
                    wire.ABORTED, agent.at.boot + "/guard", self.ground.world.now, cause=cause, host=self.index,
                    reason=reason,
                )
            )  # fmt: skip

    def _host(self) -> VmHost:
        return VmHost(self.ground, self, self._assignment())

    # ---- what it may ask -----------------------------------------------------------------------------------

    def answer(self, path: str) -> tuple[int, str]:
        """Answer as its metadata server."""
        path, _, query = path.partition("?")
        if path == "instance/preempted":
            if "wait_for_change" in query and not self.notice:
                self._wait_for_notice()
            return 200, "TRUE" if self.notice == "preempted" else "FALSE"
        if path == "instance/maintenance-event":
            if "wait_for_change" in query and self.notice != "maintenance":
                self._wait_for_notice()
            return 200, "TERMINATE_ON_HOST_MAINTENANCE" if self.notice == "maintenance" else "NONE"
        if path == "instance/network-interfaces/0/ip":
            return 200, f"10.0.0.{self.index}"
        if path == "instance/attributes/tpu-env":
            return 200, f"NODE_ID: '{self.node.id}'\nWORKER_ID: '{self.worker}'"
        if path == "instance/attributes/worker-network-endpoints":
            return 200, ",".join(f"10.0.0.{number}" for number in range(self.told["hosts_per_slice"]))
        return 404, ""

    def _wait_for_notice(self) -> None:
        """Wait for the notice; a waiting request is answered a little later than a new one."""
        world = self.ground.world
        if self.noticed.wait(60.0):
            world.sleep(world.random.choice((0.0, 3.0)) * world.random.random())


class CloudGround:
    """The ground on which slices of VMs live, and the faults that hit them."""

    cloud = True
    on_value: Any = staticmethod(lambda: None)

    def __init__(self, world: World, cloud: Cloud) -> None:
        self.world = world
        self.api = cloud
        self.truths: dict[tuple[str, int], Truth] = {}
        self.living: dict[Machine, None] = {}
        self.machine_of: dict[Task, Machine] = {}
        self.running: list[Any] = []
        self.harmful = 0.0
        self.fates = FATES
        self.user_failure = 0.0
        self.poll = 8.0
        self.host_odds = Odds()
        self.durations = (5.0, 50.0, 150.0)
        self.store = DistantStore(world, of_host=True)
        self.lines: dict[tuple[str, int, int], int] = {}  # that programs have printed
        cloud.boot, cloud.harm = self._boot, self.harm

    @property
    def calm(self) -> bool:
        return self.api.calm

    def truth(self, job: str, attempt: int) -> Truth:
        return self.truths.setdefault((job, attempt), Truth())

    def harm(self, queued: QueuedResource | None, kind: str) -> None:
        assert queued is not None
        self.truth(queued.told["job"], queued.told["attempt"]).harm.add(kind)
        self.world.note("harm", kind, queued.id)

    def _harm(self, box: Machine, kind: str) -> None:
        self.harm(box.node.queued, kind)

    def beside(self, machine: Any) -> list[Any]:
        """All hosts that share the hardware of one of them, with it."""
        return [machine]

    def machine(self) -> Machine | None:
        """The machine on which the current process runs."""
        current = self.world.current
        return None if current is None else self.machine_of.get(current.process)

    # ---- fates ---------------------------------------------------------------------------------------------

    def _boot(self, node: TpuNode) -> None:
        queued, draw = node.queued, self.world.random
        assert queued is not None
        node.machines = [Machine(self, node, worker) for worker in range(queued.told["hosts_per_slice"])]
        kind = ""
        if not self.calm and not queued.harmed and draw.random() < self.harmful:
            queued.harmed = True
            kind = draw.choice(self.fates)
        victim = draw.choice(node.machines)
        if kind in ("never boots", "slow boot", "unready", "stuck", "preempt at the end", "denied"):
            self.harm(queued, kind)
            self.world.reached.add(f"harm: {kind}")
        when = self.world.now + draw.choice((10.0, 50.0, 100.0)) * draw.uniform(0.3, 1.3)
        for machine in node.machines:
            delay = draw.uniform(1.0, 40.0)
            if machine is victim:
                if kind == "never boots":
                    continue
                delay += draw.uniform(10.0, 1500.0) if kind == "slow boot" else 0.0
                machine.fate = kind if kind in ("unready", "stuck", "preempt at the end") else ""
            machine.denied = kind == "denied"
            machine.lingers = draw.choice((0.0, 0.0, 20.0, 300.0)) if self.harmful else 0.0
            machine.boot(delay)
        if kind in _BEFALLS:
            self.world.at(when, lambda: self._befall(kind, queued, node, victim))

    def _befall(self, kind: str, queued: QueuedResource, node: TpuNode, victim: Machine) -> None:
        api, draw, now = self.api, self.world.random, self.world.now
        if self.calm or api.nodes.get(node.name) is not node or not self._is_up(node) or victim.gone:
            return
        self.harm(queued, kind)
        self.world.reached.add(f"harm: {kind}")
        if kind == "notice":
            for each in api.nodes_of(queued):
                for machine in each.machines:
                    machine.tell("preempted")
                    if draw.random() < 0.5:
                        self.world.at(now + draw.choice((0.0, 0.0, 5.0)) * draw.random(), machine.end_program)
            self.world.at(now + NOTICE_SECONDS * draw.random(), lambda: self._preempted(queued))
        elif kind == "preempted":
            self._preempted(queued)
        elif kind == "user":
            api.take(queued, shows=draw.choice((5, None)), suspends=draw.choice((0.0, 5.0, 60.0)), initiator=1)
        elif kind == "user deletes all":
            queued.state, queued.initiator = 5, 1
            api.show(queued)
            for each in api.nodes_of(queued):
                api._delete_node(each)
            api.settle_later(queued)
        elif kind in ("repair", "repair for ever"):
            node.state, node.health = 6, 5
            self.truth(queued.told["job"], queued.told["attempt"]).repairs = now
            api.show(node)
            for machine in node.machines:
                machine.stop()
            if kind == "repair":
                self.world.at(now + draw.uniform(30.0, 600.0), lambda: self._repaired(node))
        elif kind == "maintenance":
            for machine in node.machines:
                machine.tell("maintenance")
        elif kind == "reboot":
            delay = draw.uniform(5.0, 120.0)
            for machine in self.beside(victim):
                machine.stop()
                self.world.at(now + delay, lambda machine=machine: self._reboot(machine))
        elif kind == "agent":
            victim.kill_agent()
        elif kind == "host":
            victim.power_off()
        elif kind == "all silent":
            for machine in node.machines:
                for task in machine.tasks:
                    if not task.name.startswith("deadline") and not task.dead and not task.greenlet.dead:
                        self.world.kill(task)
        elif kind == "cut off":
            for task in [task for machine in self.beside(victim) for task in machine.tasks]:
                task.odds = Odds(error=0.9)
                for thread in task.threads:
                    thread.odds = task.odds
            self.world.at(now + draw.choice((30.0, 300.0)), lambda: self._joined(victim))

    def _is_up(self, node: TpuNode) -> bool:
        return node.state == 2

    def take(self, box: Machine) -> None:
        """Take away a machine that was told of it."""
        if box.node.queued is not None:
            self._preempted(box.node.queued)

    def _preempted(self, queued: QueuedResource) -> None:
        draw = self.world.random
        if self.api.queued.get(queued.name) is queued and queued.state not in (5, 7, 8):
            shows = draw.choice((11, 11, 5, 16, 12, None))
            self.world.reached.add(f"preempted, and the node shows {shows}")
            self.api.take(queued, shows=shows, suspends=draw.choice((0.0, 5.0, 60.0, 100_000.0)), initiator=2)

    def _repaired(self, node: TpuNode) -> None:
        if self.api.nodes.get(node.name) is node and node.state == 6:
            node.state, node.health = 2, 0
            self.api.show(node)
            for machine in node.machines:
                self._reboot(machine)

    def _reboot(self, machine: Machine) -> None:
        if (
            not machine.gone
            and not machine.off
            and not machine.tasks
            and self.api.nodes.get(machine.node.name) is machine.node
        ):
            self.world.reached.add("a machine was rebooted")
            machine.boot(self.world.random.uniform(1.0, 20.0))

    def _joined(self, machine: Machine) -> None:
        for task in [task for each in self.beside(machine) for task in each.tasks]:
            task.odds = self.host_odds
            for thread in task.threads:
                thread.odds = self.host_odds

    # ---- the network of machines ---------------------------------------------------------------------------

    def exchange(
        self, method: str, url: str, body: bytes | None = None, headers: Any = None, timeout: float = 30.0
    ) -> boot.Reply:
        """Act as boot.exchange, by which machines make all requests but those to the store."""
        machine, world = self.machine(), self.world
        assert machine is not None
        try:
            return self._exchange(machine, world, method, url)
        finally:
            boot._heard = machine.heard

    def _exchange(self, machine: Machine, world: World, method: str, url: str) -> boot.Reply:
        if "/computeMetadata/v1/" in url:
            status, text = machine.answer(url.partition("/computeMetadata/v1/")[2])
            return boot.Reply(status, {"Metadata-Flavor": "Google"}, text.encode())
        try:
            world.request("release" if method == "DELETE" else "ask", url.rpartition("/")[2], RecordsError)
            reply = self._exchanged(machine, method, url)
            world.request("release" if method == "DELETE" else "ask", url.rpartition("/")[2], RecordsError, done=True)
        except RecordsError as error:
            return boot.Reply(0, {}, str(error).encode())
        return reply

    def _exchanged(self, machine: Machine, method: str, url: str) -> boot.Reply:
        if method == "DELETE":
            return self._deleted(machine, url)
        if ":testIamPermissions" in url:
            return boot.Reply(200, {}, b"{}" if machine.denied else b'{"permissions": ["tpu.nodes.delete"]}')
        if method == "GET" and "/v2/" in url and self.api.view(url.partition("/v2/")[2]) is None:
            return boot.Reply(404, {}, b"{}")
        if method == "GET" and "/queuedResources/" in url:
            return boot.Reply(200, {}, b"{}")
        if method == "GET" and "/nodes/" in url:
            told = [{"ipAddress": f"10.0.1.{number}"} for number in range(machine.told["hosts_per_slice"])]
            return boot.Reply(200, {}, json.dumps({"networkEndpoints": told}).encode())
        return boot.Reply(404, {"Date": formatdate(self.world.now, usegmt=True)}, b"{}")

    def _deleted(self, machine: Machine, url: str) -> boot.Reply:
        resource = url.partition("/v2/")[2].partition("?")[0]
        if machine.denied:
            self.world.reached.add("a machine may not delete its slice")
            return boot.Reply(403, {}, b"{}")
        if resource not in (machine.told["resource"], machine.node.name):
            raise Violation(f"{machine.name} deletes {resource}")
        if self.world.current is not None and self.world.current.name.startswith("deadline"):
            self.world.reached.add("a machine reached its deadline")
            self.harm(machine.node.queued, "deadline")
        try:
            (self.api.delete_node if "/nodes/" in resource else self.api.delete)(resource)
        except Exception as error:
            return boot.Reply(int(getattr(error, "code", 500)), {}, b"{}")
        self.world.reached.add(f"host {min(1, machine.index)} deleted its slice")
        return boot.Reply(200, {}, b"{}")


FATES = (
    "notice", "notice", "preempted", "preempted", "user", "user deletes all", "repair", "repair for ever",
    "maintenance", "reboot", "agent", "host", "all silent", "cut off", "cut off", "never boots", "slow boot", "unready",
    "stuck", "preempt at the end", "denied",
)  # fmt: skip
UNFOLLOWED = ("all silent", "all silent", "host", "host", "agent")  # what tries those whom nobody follows
_BEFALLS = FATES[:15]


class VmHost(SimulatedHost):
    """The real agent of a VM; only its program is simulated, and what it would put on its disk."""

    def __init__(self, ground: Any, box: Any, at: Assignment) -> None:
        host.Host.__init__(self, at, {})
        os.close(self.supervisor.wake_in)
        os.close(self.supervisor.wake_out)
        self.supervisor.ask_to_end = self._ask_to_end  # type: ignore[method-assign]
        self.ground, self.world, self.box = ground, ground.world, box
        self.program: Program | None = None
        self.looked = 0.0
        self.bell = Event(self.world)
        self.printed = 0

    _preparing = host.Host._preparing

    def _wake(self) -> None:
        self.bell.set()

    def _check_may_start(self) -> None:
        """Check nothing: its view of others may be as old as its cadence, and older while the store refuses."""

    def _prepared(self) -> Any:
        self.world.sleep(self.world.random.random() * 20.0)
        if self.box.fate == "unready" and not self.ground.calm:
            cause = self.world.random.choice((wire.INFRASTRUCTURE, wire.CONFIGURATION))
            raise prepare.NotReady("the environment could not be made", cause)
        return prepare.Ready("", "", [], [], "", [], [])

    def _pump(self, within: float) -> None:
        now, program = self.world.now, self._heeding()
        left = max(0.5, self.ground.poll * (0.3 + self.world.random.random()))
        if within > host.TICK:
            left = min(left, within)
        if program is not None:
            left = min(left, max(0.01, program.ends - now))
        self.bell.wait(left if within else 0.01)
        self.bell.clear()
        if program is None:
            return
        self._hear_others(program)
        if self.world.now >= program.ends:
            self._on_exit(program.code)
        elif not program.stuck and self.world.random.random() < 0.5:
            self.printed += 1
            self.supervisor.write(frames.OUT, f"line {self.printed}\n".encode())
            self.ground.lines[self.at.job, self.at.attempt, self.at.host] = self.printed

    def _hear_others(self, program: Program) -> None:
        """A program whose sibling died dies of that, or hangs."""
        if program.echo or program.stuck:
            return
        truth = self.ground.truth(self.at.job, self.at.attempt)
        if any(truth.exits.values()):
            program.echo = True
            program.code = 1
            program.ends = min(program.ends, self.world.now + self.world.random.uniform(0.2, 4.0))

    def _on_exit(self, code: int) -> None:
        truth = self.ground.truth(self.at.job, self.at.attempt)
        if code and not (self.program is not None and (self.program.echo or self.program.taken)):
            truth.culprits.add(self.at.host)
        super()._on_exit(code)

    def _report(self) -> attempt_rules.Report | None:
        if self.program is not None and not self.supervisor.child and self.program.code and self.program.echo:
            self.world.reached.add("a program died of another's death")
            return attempt_rules.Report("exception", 1, "ConnectionResetError", ECHO)
        return super()._report()

    def _commit(self) -> None:
        if self.box.fate == "preempt at the end" and not self.box.gone:
            self.box.fate = ""
            self.ground._harm(self.box, "preempted")
            for machine in self.ground.beside(self.box):
                machine.tell("preempted")
            self.world.at(self.world.now + 10.0 * self.world.random.random(), self._taken)
            self.world.reached.add("preempted during the commit")
        host.Host._commit(self)

    def _taken(self) -> None:
        self.ground.take(self.box)

    def _end(self, grace: float) -> None:
        if self.box.task is not None and self.box.task.dead:
            raise Killed
        super()._end(grace)

    def _dump_stacks(self) -> None:
        pass
