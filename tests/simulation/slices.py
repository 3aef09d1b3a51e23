"""The simulated backend: slices whose hosts run the agent's real loop and rules, and may fail in every way.

Two kinds, by `Ground.cloud`. Like the local backend: a guard beside every agent, and a dead host can be seen. Like
a cloud: queueing, a view that lags, hosts that boot late or never, whole slices that vanish, hosts that live on
after their release, no guard, a deadline armed in the hosts themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kinetic_orchestration.errors import TooBig
from kinetic_orchestration.host import host
from kinetic_orchestration.host.attempt import race
from kinetic_orchestration.host.prepare import prepare
from kinetic_orchestration.host.prepare.preparation import Preparation
from kinetic_orchestration.host.view.files import FileView
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import (
    ABSENT,
    ELSEWHERE,
    GONE,
    PARTIAL,
    PRESENT,
    PROVISIONING,
    QUEUED,
    WOUNDED,
    Freed,
    Intent,
    Observation,
    Past,
    Plan,
)
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.records.base import RecordsError, read_bounded
from tests.simulation.world import Killed, Odds, SimulatedStore, Task, Unreachable, Violation, World

FAREWELL_PATIENCE = 2.0


class Truth:
    """The true events of one attempt, by which every verdict is judged."""

    def __init__(self) -> None:
        self.harm: set[str] = set()  # what the world did to its hosts
        self.exits: dict[int, int] = {}  # of programs that ended by themselves
        self.repairs = 0.0  # since when a node of its is under repair
        self.values: set[str] = set()  # of host 0's program
        self.refused = False
        self.started: set[int] = set()
        self.culprits: set[int] = set()  # hosts whose program failed, and not of another's failure
        self.lost: set[int] = set()  # hosts whose agent was killed
        self.shut = False  # one of its machines had its power button pressed
        self.beats: dict[int, list[float]] = {}
        self.submits = 0


class Program:
    """The user's code on one host."""

    def __init__(self, ends: float, code: int, value: str, stuck: bool, reaction: float) -> None:
        self.ends = ends
        self.code = code
        self.value = value
        self.stuck = stuck
        self.reaction = reaction  # between SIGTERM and its end
        self.echo = False  # it dies of another's failure,
        self.taken = False  # or of its machine's end


class Box:
    """One host of one placement."""

    def __init__(self, place: Place, index: int) -> None:
        self.place = place
        self.index = index
        self.made = place.ground.world.now
        self.task: Task | None = None
        self.agent: SimulatedHost | None = None
        self.guarded = not place.ground.cloud
        self.dead = False
        self.hidden = False  # dead, and nobody can see it
        self.zombie = False  # alive, and nobody can see it
        self.fate = ""

    @property
    def name(self) -> str:
        return f"{self.place.name}/{self.index}"

    @property
    def serves(self) -> tuple[str, int]:
        """The job and the attempt that it is at work for."""
        return self.place.job, self.place.attempt

    def assignment(self) -> Assignment:
        """Return the orders that its agent is told."""
        place = self.place
        return Assignment(
            "/simulated", place.job, place.attempt, self.index, place.hosts, place.spec_digest,
            f"{place.intent.boot}/{self.index}", "/simulated", "/simulated", "", "A=b",
        )  # fmt: skip


class Place:
    def __init__(self, ground: Ground, fields: Mapping[str, Any], intent: Intent, spec_digest: str) -> None:
        self.ground = ground
        self.name: str = fields["name"]
        self.job: str = fields["job"]
        self.attempt: int = fields["attempt"]
        self.hosts: int = fields["hosts"]
        self.machine: str = fields["machine"]
        self.intent = intent
        self.spec_digest = spec_digest
        self.boxes: dict[int, Box] = {}
        self.visible = self.queued = self.active = 0.0
        self.changed = ground.world.now


class Ground:
    """The ground on which slices live, and the faults that hit them."""

    def __init__(self, world: World, *, cloud: bool) -> None:
        self.world = world
        self.cloud = cloud
        self.places: dict[str, Place] = {}
        self.truths: dict[tuple[str, int], Truth] = {}
        self.living: set[Task] = set()
        self.running: list[SimulatedHost] = []
        self.calm = False
        self.harm = 0.0  # how likely something happens to an attempt
        self.user_failure = 0.0
        self.refusal = 0.0
        self.poll = 3.0
        self.host_odds = Odds()
        self.store = SimulatedStore(world, of_host=True)
        self.durations = (0.5, 5.0, 30.0)
        self.plan: Plan
        self.on_value: Callable[[], object] = lambda: None

    def truth(self, job: str, attempt: int) -> Truth:
        return self.truths.setdefault((job, attempt), Truth())

    # ---- hosts begin -------------------------------------------------------------------------------------

    def box_of(self, place: Place, index: int) -> Box:
        return Box(place, index)

    def make(self, place: Place, index: int) -> None:
        world = self.world
        box = place.boxes[index] = self.box_of(place, index)
        place.changed = world.now
        delay = world.random.uniform(0.02, 0.5)
        if self.cloud:
            delay += max(0.0, place.active - world.now) + world.random.uniform(0.0, 20.0)
            if place.intent.deadline:
                world.at(max(world.now, place.intent.deadline), lambda: self._deadline(box))
        if not self.calm and world.random.random() < self.harm / place.hosts:
            delay = self._fate(box, delay)
        if delay < float("inf"):
            self._boot(box, delay)

    def _boot(self, box: Box, delay: float) -> None:
        world = self.world
        box.task = world.spawn(
            f"host {box.name}", lambda task: self._live(box, task),
            delay=delay, odds=self.host_odds, skew=world.random.uniform(-600.0, 600.0),
        )  # fmt: skip
        self.living.add(box.task)

    def _fate(self, box: Box, delay: float) -> float:
        """Something will happen to this host. Returns when it boots."""
        world = self.world
        limits = self.plan.limits
        kinds = ["host", "host", "preempt", "preempt at the end", "unready", "slow boot"]
        if self.cloud:
            kinds += ["vanish", "reboot", "reboot", "partition", "partition", "preempt and vanish"]
            if limits.provision and limits.run:
                kinds += ["never boots", "silent"]
        else:
            kinds += ["agent", "agent"]
        if limits.run or limits.stall or limits.total:
            kinds.append("stuck")
        kind = world.random.choice(kinds)
        when = world.now + delay + world.random.choice((0.0, 3.0, 10.0, 40.0)) * world.random.random()
        if kind == "slow boot":
            self._harm(box, kind)
            return delay + world.random.uniform(10.0, 400.0)
        if kind == "never boots":
            self._harm(box, kind)
            return float("inf")
        if kind in ("unready", "stuck", "preempt at the end"):
            box.fate = kind
            return delay
        world.at(when, lambda: self._befall(box, kind))
        if kind == "reboot":
            world.at(when + world.random.uniform(5.0, 60.0), lambda: self._reboot(box))
        if kind == "preempt and vanish":
            world.at(when + world.random.uniform(1.0, 30.0), lambda: self._befall(box, "vanish"))
        return delay

    def _harm(self, box: Box, kind: str) -> None:
        self.truth(*box.serves).harm.add(kind)
        self.world.note("harm", kind, box.name)

    def _befall(self, box: Box, kind: str) -> None:
        place = box.place
        if self.calm or box.dead or place.boxes.get(box.index) is not box or self.places.get(place.name) is not place:
            return
        self._harm(box, kind)
        self.world.reached.add(f"harm: {kind}")
        if kind in ("agent", "silent"):
            box.hidden = self.cloud
            self._kill_agent(box)
        elif kind in ("host", "reboot"):
            box.guarded = False
            self._kill_agent(box)
        elif kind in ("preempt", "preempt and vanish"):
            for other in place.boxes.values() if self.cloud else (box,):
                if other.agent is not None:
                    other.agent.preempted = "a notice of preemption"
        elif kind == "vanish":
            del self.places[place.name]
            for other in place.boxes.values():
                other.guarded = False
                self._kill_agent(other)
        elif kind == "partition":  # nobody sees the slice any more, and its hosts live on
            del self.places[place.name]
            for other in place.boxes.values():
                other.zombie = True

    def _kill_agent(self, box: Box) -> None:
        if box.task is None or box.task.dead or box.task.greenlet.dead:
            return
        self.world.kill(box.task)
        self.living.discard(box.task)
        if box.guarded:
            guard = self.world.spawn(
                f"guard {box.name}", lambda _task: self._speak(box),
                delay=self.world.random.uniform(0.01, 2.0), odds=Odds(delay=self.host_odds.delay),
            )  # fmt: skip
            box.task = guard
            self.living.add(guard)
        else:
            box.dead = True

    def _reboot(self, box: Box) -> None:
        if box.dead and box.place.boxes.get(box.index) is box and self.places.get(box.place.name) is box.place:
            self.world.reached.add("a host was rebooted")
            box.dead = False
            self._boot(box, 0.0)

    def _deadline(self, box: Box) -> None:
        """The host's own startup script deletes it, whatever has become of the agent."""
        if box.place.boxes.get(box.index) is not box:
            return
        self.world.reached.add("a host ended itself at its deadline")
        self._harm(box, "deadline")
        box.guarded = False
        self._kill_agent(box)
        self._remove(box)

    # ---- hosts live --------------------------------------------------------------------------------------

    def _live(self, box: Box, task: Task) -> None:
        """Act as the agent's `main`: the agent, and the guard that reports for it if it fails."""
        agent = box.agent = SimulatedHost(self, box)
        try:
            agent.live()
        except Exception as error:
            if isinstance(error.__context__, Violation):  # else the agent's own last lines would hide it
                raise error.__context__ from error
            self._harm(box, f"agent failed: {error}")
            if not box.guarded:
                self.living.discard(task)
                box.dead = True
                return
            self._speak(box)
            return
        self.living.discard(task)
        self._remove(box)

    def _speak(self, box: Box) -> None:
        agent, task = SimulatedHost(self, box), self.world.current
        assert task is not None
        try:
            agent.write_verdict(
                wire.Verdict(
                    wire.ABORTED, agent.at.boot + "/guard", self.world.now, cause=wire.INFRASTRUCTURE, host=box.index,
                    reason=f"the agent of host {box.index} was ended by SIGKILL",
                )
            )  # fmt: skip
        except RecordsError:
            box.dead = True
        else:
            self.world.reached.add("a guard spoke for its agent")
            self._remove(box)
        self.living.discard(task)

    def _remove(self, box: Box) -> None:
        place = box.place
        if place.boxes.get(box.index) is box:
            del place.boxes[box.index]
            place.changed = self.world.now
            if not place.boxes and self.places.get(place.name) is place:
                del self.places[place.name]


class SimulatedHost(host.Host):
    """The real agent, with the program, the log and the guard's processes simulated."""

    def __init__(self, ground: Ground, box: Box, private: dict[str, dict[str, str]] | None = None) -> None:
        at = box.assignment()
        super().__init__(at, private or {}, view=FileView(ground.store, at, _Silence()))  # type: ignore[arg-type]
        os.close(self.supervisor.wake_in)
        os.close(self.supervisor.wake_out)
        self.supervisor.ask_to_end = self._ask_to_end  # type: ignore[method-assign]
        self.ground, self.world, self.box = ground, ground.world, box
        self.program: Program | None = None
        self.looked = 0.0

    def live(self) -> None:
        if not race.may_run(self.at, self.records):
            self.world.reached.add("a slice lost its race")
            return
        if read_bounded(self.records, names.verdict(self.at.job, self.at.attempt)) is not None:
            self.world.reached.add("a host started after its attempt's verdict")
            return
        try:
            self._open()
            self._loop()
        except host.Refused as error:
            self._decide(wire.CONFIGURATION, str(error), self.at.host)
        except Exception as error:
            self.ground._harm(self.box, f"agent failed: {error!r}")
            self._decide(wire.INFRASTRUCTURE, f"the agent failed: {error!r}", self.at.host)
        finally:
            self._end(0.0)
            self._farewell()

    def _wake(self) -> None:
        pass

    def _preparing(self) -> Preparation:
        return SimulatedPreparation(self)

    def _poll(self) -> None:
        self.looked = self.world.now
        super()._poll()
        if self.verdict is not None and self.box.zombie:
            self.world.reached.add("a zombie found a verdict")

    def _check_may_start(self) -> None:
        verdict = self.world.records.get(names.verdict(self.at.job, self.at.attempt))
        if verdict is not None and verdict.updated < self.looked:
            raise Violation(f"{self.box.name} starts its program after its attempt's verdict")

    def _start(self) -> None:
        self._check_may_start()
        if not self.ground.cloud:
            self._check_alone()
        started = self.ground.truth(self.at.job, self.at.attempt).started
        if self.at.host in started:
            raise Violation(f"{self.box.name} runs its program twice in one attempt")
        started.add(self.at.host)
        draw = self.world.random
        stuck = self.box.fate == "stuck" and not self.ground.calm
        if stuck:
            self.ground._harm(self.box, "stuck")
        self.supervisor.child = 1 << 40  # no process has this id
        self.program = Program(
            ends=float("inf") if stuck else self.world.now + draw.choice(self.ground.durations) * draw.random(),
            code=int(draw.random() < self.ground.user_failure / self.at.hosts),
            value=f"{draw.getrandbits(256):064x}",
            stuck=stuck,
            reaction=draw.choice((0.1, 3.0, 60.0)),
        )
        self.supervisor.running = True
        self.run_began = self.supervisor.active = time.monotonic()
        self._set_state(wire.RUNNING)

    def _check_alone(self) -> None:
        """Check that an attempt's program finds its devices free on one machine: the previous attempt's has ended."""
        for other in self.ground.running:
            lives = other.supervisor.child and other.box.task is not None and not other.box.task.dead
            same = other.at.job == self.at.job and other.box.place.machine == self.box.place.machine
            if lives and same and other.at.attempt != self.at.attempt:
                raise Violation(f"{self.box.name} starts its program beside that of {other.box.name}")
        self.ground.running.append(self)

    def _pump(self, within: float) -> None:
        now, program = self.world.now, self._heeding()
        waited = 1.0 + min(5.0, (time.monotonic() - self.began) / 20.0)  # agents that wait long look less often
        wake = now + self.ground.poll * waited * (0.05 + self.world.random.random())
        if within > host.TICK:
            wake = min(wake, now + within)
        self.world.sleep(max(0.01, min(wake, program.ends if program else wake) - now))
        if program is None:
            return
        if self.world.now >= program.ends:
            self._on_exit(program.code)
        elif not program.stuck:
            self.supervisor.active = time.monotonic()

    def _ask_to_end(self, _cause: str, grace: float) -> None:
        if self.supervisor.child and not self.supervisor.until:
            self.supervisor.until = time.monotonic() + grace

    def _heeding(self) -> Program | None:
        """Return the program while it lives; it ends some time after it was asked to."""
        if self.program is None or not self.supervisor.child:
            return None
        if self.supervisor.until and self.verdict is None:
            asked = self.supervisor.until - attempt_rules.GRACE[wire.PREEMPTION]
            self.program.ends = min(self.program.ends, max(self.world.now, asked + self.program.reaction))
        return self.program

    def _on_exit(self, code: int) -> None:
        self.supervisor.child = 0
        truth = self.ground.truth(self.at.job, self.at.attempt)
        truth.exits[self.at.host] = code
        if self._is_asked():
            self.world.reached.add("a program ended as it was asked to, and nobody had decided yet what of")
            return
        if self.program is not None and self.at.host == 0 and code == 0:
            truth.values.add(self.program.value)
            self.supervisor.files["outcome"] = self.program.value
            self.ground.on_value()
        if self.exit is None:
            self.exit = self._blamed(attempt_rules.exit_of(code, self._report(), command=False))
        self._set_state(wire.ENDING)
        self._record_exit()

    def _report(self) -> attempt_rules.Report | None:
        if self.program is None or self.supervisor.child:
            return None
        if self.program.code:
            return attempt_rules.Report("exception", self.program.code, message="boom")
        return attempt_rules.Report("value", 0, digest=self.program.value, size=1)

    def _commit(self) -> None:
        if self.box.fate == "preempt at the end":
            self.ground._harm(self.box, "preempt")
            self.preempted = "a notice of preemption"
            self.world.reached.add("preempted during the commit")
        super()._commit()

    def _end(self, grace: float) -> None:
        if self.box.task is not None and self.box.task.dead:
            raise Killed
        if self.supervisor.child and grace and self.program is not None:
            deadline = self.world.now + grace
            self.program.ends = min(self.program.ends, self.world.now + self.program.reaction)
            while self.supervisor.child and self.world.now < deadline:
                self._pump(deadline - self.world.now)
                self._beat()
        self.supervisor.child = 0

    def _dump_stacks(self) -> None:
        pass


class SimulatedPreparation(Preparation):
    """Takes its time, and fails as its host's box is fated to."""

    def __init__(self, agent: SimulatedHost) -> None:
        super().__init__(
            agent.at, agent.task, agent.view, agent.machine, {}, alone=True, scratch="", note=agent._note,
            wake=agent._wake,
        )  # fmt: skip
        self._agent = agent

    def _prepared(self) -> prepare.Ready:
        ground, box = self._agent.ground, self._agent.box
        ground.world.sleep(ground.world.random.random() * 2.0)
        if box.fate == "unready" and not ground.calm:
            ground._harm(box, "unready")
            cause = ground.world.random.choice((wire.INFRASTRUCTURE, wire.CONFIGURATION))
            raise prepare.NotReady("the environment could not be made", cause)
        return prepare.Ready("", "", [], [], "", [], [])


class _Silence:
    segment = offset = 0
    full = False

    def write(self, kind: str, payload: bytes) -> None:
        pass

    def flush(self) -> bool:
        return True

    close = flush


class SimulatedBackend:
    """The Backend protocol, as one client sees it."""

    kind = "simulated"

    def __init__(self, ground: Ground, machine: str) -> None:
        self._ground = ground
        self._world = ground.world
        self._machine = machine
        self.charges = self.shared = ground.cloud
        self.parallel = 1

    def check(self, plan: Plan) -> None:
        pass

    def emulates(self, slice_: Slice) -> bool:
        return True

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        return {
            "name": f"{job_id}-{attempt}", "job": job_id, "attempt": attempt,
            "hosts": plan.slice.hosts, "machine": "" if self._ground.cloud else self._machine,
        }  # fmt: skip

    def submit(self, asked: Submission) -> str:
        job_id, intent = asked.job_id, asked.intent
        ground, world = self._ground, self._world
        world.request("submit", intent.placement["name"], Unreachable)
        truth = ground.truth(job_id, intent.attempt)
        self._check_submit(job_id, intent.attempt)
        if not ground.calm and world.random.random() < ground.refusal:
            if world.random.random() < 0.7:
                world.reached.add("a submit had to wait")
                return "waiting for a place"
            truth.refused = True
            raise TooBig("this slice is too large")
        truth.submits += 1
        name = intent.placement["name"]
        place = ground.places.get(name)
        if place is None:
            place = self._new_place(asked)
            if ground.cloud:
                place.visible = world.now + world.random.choice((0.0, 0.0, 5.0, 30.0))
                place.queued = place.visible + world.random.choice((0.0, 10.0, 60.0)) * world.random.random()
                place.active = place.queued + world.random.uniform(1.0, 20.0)
        elif len(place.boxes) < place.hosts:
            world.reached.add("a partial placement was submitted again")
        for index in range(place.hosts):
            if index and not ground.cloud:
                if name not in ground.places:  # it was released: without its folder no host can take its lock
                    break
                place = ground.places[name]
            box = place.boxes.get(index)
            if box is None or (box.dead and not ground.cloud):
                ground.places[name] = place
                ground.make(place, index)
            if not ground.cloud and index + 1 < place.hosts:
                world.request("launch", f"{name}/{index}", Unreachable)
        world.request("submit", name, Unreachable, done=True)
        return ""

    def _new_place(self, asked: Submission) -> Place:
        return Place(self._ground, asked.intent.placement, asked.intent, asked.spec_digest)

    def _check_submit(self, job_id: str, attempt: int) -> None:
        verdict = self._world.records.get(names.verdict(job_id, attempt))
        if verdict is not None:
            task = self._world.current
            assert task is not None
            if verdict.updated < task.look_began:
                raise Violation(f"{task.name} submits attempt {attempt} of {job_id}, whose verdict it could see")
            self._world.reached.add("a stale submitter submitted after the verdict")

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        self._world.request("observe", placements[0]["name"], Unreachable)
        return [self._observe(placement) for placement in placements]

    def _observe(self, placement: Mapping[str, Any]) -> Observation:
        if placement["machine"] not in ("", self._machine):
            return Observation(ELSEWHERE, "the hosts run on another machine")
        place, now = self._ground.places.get(placement["name"]), self._world.now
        if place is None or not place.boxes or now < place.visible:
            return Observation(ABSENT)
        dead = [index for index, box in place.boxes.items() if box.dead and not box.hidden]
        if now < place.queued:
            return Observation(QUEUED)
        if now < place.active:
            return Observation(PROVISIONING)
        if dead:
            return Observation(GONE if len(dead) == len(place.boxes) else WOUNDED, f"host {dead[0]} was killed")
        return Observation(PRESENT if len(place.boxes) == place.hosts else PARTIAL)

    def cancel(self, placement: Mapping[str, Any]) -> None:
        self._world.request("wake", placement["name"], Unreachable)

    def release(self, placement: Mapping[str, Any]) -> Freed:
        ground, world = self._ground, self._world
        name = placement["name"]
        world.request("release", name, Unreachable)
        if placement["machine"] not in ("", self._machine):
            return Freed.UNDER_WAY
        if not ground.cloud and name in ground.places:
            world.sleep(FAREWELL_PATIENCE)
        place = ground.places.pop(name, None)
        if place is not None:
            self._check_release(place)
            live_on = ground.cloud and not ground.calm and world.random.random() < 0.2
            for box in list(place.boxes.values()):
                box.guarded = False
                if live_on:
                    box.zombie = True
                else:
                    ground._kill_agent(box)
            if live_on:
                world.reached.add("released hosts lived on")
        world.request("release", name, Unreachable, done=True)
        return Freed.DONE

    def _check_release(self, place: Place) -> None:
        """Check that no hosts are freed that live and whose attempt is running, or has just ended."""
        records, now, task = self._world.records, self._world.now, self._world.current
        verdict = records.get(names.verdict(place.job, place.attempt))
        assert task is not None
        looked = task.look_began or now

        def has(box: Box, what: str) -> bool:
            return names.host(place.job, place.attempt, box.index, what) in records

        def worked(box: Box) -> bool:
            """Return True for a host that had begun to work before its attempt ended: a slow submitter may create one
            later, which is not needed. A machine whose host had reported nothing when its releaser polled is not waited
            for: it may never report anything, and each minute of it costs. One that began between that poll and the
            release has at most begun to prepare.
            """
            started = records.get(names.host(place.job, place.attempt, box.index, "started.json"))
            if started is None or (verdict is not None and max(started.updated, box.made) >= verdict.updated):
                return False
            spoken = self._ground.truth(place.job, place.attempt).beats.get(box.index, [])
            return not self._ground.cloud or (bool(spoken) and spoken[0] <= looked)

        boxes = place.boxes.values()
        at_work = any(not box.dead and worked(box) and not has(box, "done.json") for box in boxes)
        beats = self._ground.truth(place.job, place.attempt).beats
        heard = [when for box in boxes for when in beats.get(box.index, ()) if when <= looked]
        by_hosts = verdict is not None and wire.Verdict.decode(verdict.data).kind != wire.CLOSED
        if heard and not by_hosts and looked - max(heard) > lifecycle.SILENT_BEATS:
            at_work = False  # whoever came back now would only say that it ends
        rebooted = "reboot" in self._ground.truth(place.job, place.attempt).harm
        visible = looked > place.visible and not rebooted  # what a listing did not show yet, its reader took for gone
        if at_work and visible and (verdict is None or now - verdict.updated < lifecycle.SETTLE_PATIENCE):
            raise Violation(f"{place.name} is released while its hosts are at work")

    def leftovers(self) -> Iterator[dict[str, Any]]:
        for name, place in list(self._ground.places.items()):
            if place.machine in ("", self._machine):
                yield {
                    "name": name, "job": place.job, "attempt": place.attempt, "hosts": place.hosts,
                    "machine": place.machine, "age": self._world.now - place.changed,
                }  # fmt: skip
