"""Slices that are kept warm after their jobs: the ground of `slices`, whose hosts go on to the next attempt.

A host that has ended its attempt cleans itself, says so, and waits for what becomes of the lease; host 0 offers the
slice once all are clean. A process of its own deletes the slice at the deadline that was armed last, whoever died.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from kinetic_orchestration.host.attempt import idle, race, self_delete
from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.machine import Machine
from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean
from kinetic_orchestration.jobs.following.held_time import longest
from kinetic_orchestration.plan.values import Intent, Plan
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.records.base import RecordsError, Signal
from tests.simulation.slices import Box, Ground, Place, SimulatedHost
from tests.simulation.world import SimulatedStore, Task, Violation, World

RESOURCE = "kept/locations/zone-a/queuedResources/"  # of the simulated slices, before their names
STORE = "gs://simulated/kept/test"


class Became(BaseException):
    """The process of a host runs another agent from here on."""

    def __init__(self, words: list[str]) -> None:
        super().__init__()
        self.words = words


class KeptPlace(Place):
    """One slice, from its creation to its end."""

    def __init__(self, ground: Ground, fields: Mapping[str, Any], intent: Intent, spec_digest: str) -> None:
        super().__init__(ground, fields, intent, spec_digest)
        self.orders: dict[str, Any] = {}  # by which it was made
        self.last = 0.0
        self.harm: set[str] = set()
        self.gone = False  # deleted
        self.plan: Plan
        self.latest = 0.0  # by which it is gone
        self.offered = 0.0  # until when, at last

    def hosts_of(self) -> list[KeptBox]:
        return [box for box in self.boxes.values() if isinstance(box, KeptBox)]

    @property
    def rival(self) -> int:
        """Its number in the race of the attempt that it was made for; -1 if there was none."""
        return int(self.orders.get("rival", -1))

    @property
    def key(self) -> str:
        """The key of the orders of its claims; "" if there can be none."""
        return str(self.orders.get("lease_key", ""))


class KeptBox(Box):
    place: KeptPlace

    def __init__(self, place: KeptPlace, index: int) -> None:
        super().__init__(place, index)
        self.at = Assignment.from_words(words(place.orders, index))
        self.armed = place.intent.deadline  # when it deletes the slice in any case; 0.0 for never
        self.clean = -1  # the epoch after whose attempt it is
        self.rebooted = False
        self.broken = False  # the machine, and not its processes alone
        self.notice = ""
        self.seal = b"{}"  # what the next agent is told by a pipe

    @property
    def serves(self) -> tuple[str, int]:
        return self.at.job, self.at.attempt

    @property
    def epoch(self) -> int:
        return self.at.epoch

    def assignment(self) -> Assignment:
        return self.at


def words(told: Mapping[str, Any], host: int) -> list[str]:
    """Return the agent's command line, as bootstrap.agent_arguments, on a machine without files."""
    found = {name: told[name] for name in ("store", "job", "attempt", "hosts", "spec", "resource", "deadline")} | {
        "host": host, "choice": told.get("choice", 0), "rival": told.get("rival", -1), "boot": f"{told['boot']}/{host}", "run": "/simulated",
        "home": "/simulated", "python": "", "marker": "A=b",
    }  # fmt: skip
    return [f"{name}={value}" for name, value in found.items()]


class KeptMachine(Machine):
    """The machine of a host, as its agent sees it."""

    box: KeptBox | None = None

    def notice(self) -> str:
        return self.box.notice if self.box is not None else ""


class KeptGround(Ground):
    """The ground on which slices are kept. `judge` is asked before a slice is offered, deleted, or put to work."""

    judge: Any

    def __init__(self, world: World) -> None:
        super().__init__(world, cloud=True)
        world.distance = SimpleNamespace(ground=self, records=None)
        self.box_of_task: dict[Task, KeptBox] = {}
        self.store = LeaseStore(world, lambda: self.lost, of_host=True)
        world.distance.records = self.store
        self.lost = 0.0  # how likely a write of a lease is told that it lost although it won
        self.doubt = 0.0  # how likely a host is not clean
        self.idle_harm = 0.0  # how likely something happens to a slice after its first attempt
        self.slow = 0.0  # how likely a host takes long to clean itself
        self.flex = 0.0  # how likely a slice does not last for ever
        self.slow_orders = 0.0  # how likely it takes long to write the orders of a claim
        self.kept: dict[str, KeptPlace] = {}  # that ever were
        self.old_claims: dict[str, bytes] = {}

    def box_of(self, place: Place, index: int) -> Box:
        assert isinstance(place, KeptPlace)
        return KeptBox(place, index)

    def made(self, place: KeptPlace, orders: dict[str, Any], plan: Plan) -> None:
        """Tell a new slice by which orders it was made."""
        self.kept[place.name] = place
        place.orders = orders
        if self.world.random.random() < self.flex:
            place.last = self.world.now + longest(plan) * self.world.random.uniform(1.0, 3.0)
            place.orders["last"] = place.last
            self.world.at(place.last, lambda: self._taken(place))
        self.judge.on_made(place, plan)

    def _taken(self, place: KeptPlace) -> None:
        """Its last moment has come: the cloud takes its machines away."""
        if not place.gone and place.boxes:
            self.world.reached.add("a slice came to its last moment")
            self._harm(next(iter(place.hosts_of())), "last moment")
            place.gone = True
            self.places.pop(place.name, None)
            for box in place.boxes.values():
                self._kill_agent(box)

    def longest(self, plan: Plan) -> float:
        return longest(plan)

    def boxes(self) -> list[KeptBox]:
        return [box for place in self.kept.values() for box in place.hosts_of()]

    # ---- what befalls them -------------------------------------------------------------------------------

    def _harm(self, box: Box, kind: str) -> None:
        super()._harm(box, kind)
        assert isinstance(box, KeptBox)
        box.place.harm.add(kind)
        self.judge.on_harm(box.place, kind)

    def _befall(self, box: Box, kind: str) -> None:
        assert isinstance(box, KeptBox)
        place, was_dead = box.place, box.dead
        super()._befall(box, kind)
        box.broken = box.broken or (box.dead and not was_dead and kind in ("host", "reboot"))
        place.gone = place.gone or (kind == "vanish" and place.name not in self.places and box.dead and not was_dead)

    def _reboot(self, box: Box) -> None:
        """The machine is told of its first attempt again, as it was to begin with."""
        assert isinstance(box, KeptBox)
        if box.dead and not box.place.gone:
            box.at, box.broken, box.rebooted = Assignment.from_words(words(box.place.orders, box.index)), False, True
            self._arm(box, box.place.intent.deadline)
        super()._reboot(box)

    def befall_later(self, place: KeptPlace) -> None:
        """Something may happen to a slice that was offered, while nobody has it or when somebody has."""
        draw = self.world.random
        if self.calm or draw.random() >= self.idle_harm or not place.boxes:
            return
        boxes = list(place.boxes.values())
        box = draw.choice((place.boxes.get(0, boxes[0]), draw.choice(boxes)))  # of host 0 the others expect most
        kind = draw.choice(("host", "host", "silent", "vanish", "partition", "reboot", "notice"))
        if kind == "notice":  # it is taken away some seconds later
            when = self.world.now + draw.choice((5.0, 60.0, 300.0)) * draw.random()
            self.world.at(when, lambda: self._notify(place))
            self.world.at(when + 30.0, lambda: self._befall(box, "vanish"))
            return
        when = self.world.now + draw.choice((5.0, 5.0, 60.0, 300.0)) * draw.random()
        self.world.at(when, lambda: self._befall(box, kind))
        if kind == "reboot":
            self.world.at(when + draw.uniform(5.0, 60.0), lambda: self._reboot(box))

    def _notify(self, place: KeptPlace) -> None:
        for box in place.hosts_of():
            box.notice = "a notice of preemption"
            if box.agent is not None:
                box.agent.preempted = box.notice
        if place.hosts_of():
            self._harm(place.hosts_of()[0], "preempt")

    # ---- deadlines ---------------------------------------------------------------------------------------

    def _arm(self, box: KeptBox, when: float) -> None:
        box.armed = when
        if when:
            self.world.at(max(self.world.now, when), lambda: self._deadline(box))

    def _deadline(self, box: Box) -> None:
        assert isinstance(box, KeptBox)
        place = box.place
        if place.gone or box.broken or not box.armed or self.world.now < box.armed - 0.5:
            return
        self.world.reached.add("a slice was deleted at its deadline")
        self.judge.on_delete_of(place, f"deadline {box.name}")
        self._harm(box, "deadline")
        self.delete(place, f"deadline {box.name}")

    def delete(self, place: KeptPlace, by: str) -> None:
        """The call by which a slice goes, with all its machines."""
        if place.gone:
            return
        self.world.note("deleted", place.name, by)
        place.gone = True
        if self.places.get(place.name) is place:
            del self.places[place.name]
        mine = lambda box: box.task is not None and box.task is self.world.current  # noqa: E731
        for box in sorted(place.hosts_of(), key=mine):  # whoever deletes its own slice does not live on
            box.guarded, box.dead = False, True
            if box.task is not None:
                self.living.discard(box.task)
                self.world.kill(box.task)

    def _remove(self, box: Box) -> None:
        """A host of such a slice does not go alone."""

    # ---- what the real code asks its machine for -----------------------------------------------------------

    @property
    def box(self) -> KeptBox:
        """The machine on which whoever asks runs."""
        assert self.world.current is not None
        return self.box_of_task[self.world.current.process]

    def metadata(self, _name: str) -> str:
        return json.dumps(self.box.place.orders)

    def machine_of(self, at: Assignment) -> Machine:
        machine = KeptMachine(at)
        machine.box = self.box
        return machine

    def clean(self, _folder: str, _marker: str) -> None:
        """Act as cleaning.clean."""
        box, draw = self.box, self.world.random
        self.world.sleep(draw.random() * (100.0 if draw.random() < self.slow else 4.0))
        if box.rebooted:
            raise Unclean("it has booted since")
        if not self.calm and draw.random() < self.doubt:
            self.world.reached.add("a host was not clean")
            raise Unclean("a process did not end")
        box.clean = box.epoch

    def rearm(self, _at: Assignment, when: float) -> None:
        """Act as rearming.rearm: the process that was to delete the slice is ended, and another one begun."""
        box = self.box
        box.armed = 0.0
        self.world.sleep(0.1)
        self._arm(box, when)

    def end_slice(self, taken: Callable[[], object]) -> None:
        """Act as bootstrap.end_slice."""
        self.world.sleep(0.5 * self.world.random.random())
        box = self.box
        if not box.place.gone:
            self.judge.on_delete_of(box.place, f"host {box.name}")
            taken()
        self.delete(box.place, f"host {box.name}")

    def fetch(self, _store: str, _digest: str) -> str:
        """Act as bootstrap.fetch."""
        self.world.sleep(self.world.random.random())
        return "/simulated/agent.zip"

    def words(self, told: Mapping[str, Any], host: int) -> list[str]:
        return words(told, host)

    def told(self, data: bytes) -> None:
        """Write into the pipe of the next agent."""
        self.box.seal = data

    def became(self, told: list[str]) -> Became:
        return Became(told)

    def abort(self, told: Mapping[str, Any], host: int, reason: str) -> None:
        """Act as bootstrap.abort."""
        self.store.create(bootstrap.verdict_name(told), bootstrap.verdict(told, host, reason, bootstrap.Failed.cause))

    # ---- hosts live --------------------------------------------------------------------------------------

    def _live(self, box: Box, task: Task) -> None:
        assert isinstance(box, KeptBox)
        self.box_of_task[task] = box
        while self._served(box, task):
            pass
        self.living.discard(task)
        box.dead = True

    def _served(self, box: KeptBox, task: Task) -> bool:
        """Run one agent, and what the guard does then. Returns True if there is a next one."""
        private = json.loads(box.seal)
        box.agent, whole = KeptHost(self, box, private), True
        try:
            box.agent.live()
        except Exception as error:
            if isinstance(error.__context__, Violation):
                raise error.__context__ from error
            self._harm(box, f"agent failed: {error}")
            whole = self._spoken(box)
            if not whole:
                return False
            whole = False
        self.world.end_threads(task)  # they were the agent's
        if box.place.gone:
            return False
        try:
            if self.judge.keep_of(box.at.job) >= 0.0:
                idle.stay(box.at, whole=whole, goes_down=lambda: False)
            self_delete.delete_own_slice(box.at)
        except Became as became:
            before = box.epoch
            box.at, box.clean = Assignment.from_words(became.words), -1
            self.judge.on_next(box, before)
            self.world.note("goes on", box.name, *box.serves, box.epoch)
            return True
        return False

    def _spoken(self, box: KeptBox) -> bool:
        """Return True if the guard could report that the agent has failed, or has nothing to report: its place has not
        won the race of the attempt."""
        agent = KeptHost(self, box, json.loads(box.seal))
        reason = f"the agent of host {box.index} failed"
        writer = agent.at.boot + "/guard"
        verdict = wire.Verdict(
            wire.ABORTED, writer, self.world.now, cause=wire.INFRASTRUCTURE, host=box.index, reason=reason
        )
        try:
            if race.has_won(agent.at, agent.records):
                agent.write_verdict(verdict)
        except RecordsError:
            return False
        return True


class KeptHost(SimulatedHost):
    """The agent of a host whose slice may be kept."""

    box: KeptBox
    ground: KeptGround

    def _start(self) -> None:
        super()._start()
        self.ground.judge.on_program(self.box)

    def _on_exit(self, code: int) -> None:
        super()._on_exit(code)
        self.ground.judge.on_program_end(self.box)

    def _end(self, grace: float) -> None:
        super()._end(grace)
        self.ground.judge.on_program_end(self.box)


class LeaseStore(SimulatedStore):
    """As one process sees it: its first try of a write may have won although the second is told that it lost."""

    trusted = False

    def __init__(self, world: World, lost: Callable[[], float], *, of_host: bool = False) -> None:
        super().__init__(world, of_host=of_host)
        self._lost = lost

    def signals(self, prefix: str) -> Iterator[Signal]:
        self._world.request("list", prefix, self._failure)
        records = self._world.records
        return iter([Signal(name, *records[name]) for name in sorted(records) if name.startswith(prefix)])

    def close(self) -> None:
        pass

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        return self._retried(name, super().swap(name, data, generation))

    def create(self, name: str, data: bytes) -> int | None:
        return self._retried(name, super().create(name, data))

    def _retried(self, name: str, written: int | None) -> int | None:
        if written is not None and name.startswith(names.SLICES) and self._world.random.random() < self._lost():
            self._world.note("412 of one's own write")
            self._world.reached.add("a retried write of a lease was refused although its first try had won")
            return None
        return written
