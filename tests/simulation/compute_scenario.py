"""One seed on the simulated Compute Engine: zones with their weather, VMs with their fates, and the promises about both.

As `cloud_scenario`, with the backend for Compute Engine over its real client, whose session a simulated API answers.
An attempt of several hosts is several VMs, which are made and end one by one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire import Verdict
from tests.simulation import zones as api
from tests.simulation.cloud_scenario import (
    ENDED,
    MOST,
    OTHERS,
    OURS,
    STRANGE_JOB,
    CloudJudge,
    CloudSchedule,
    Distance,
    settings_of,
)
from tests.simulation.compute import RUNNING, SOMEBODY, STOPPING, BootDisk, Compute, Group, Instance
from tests.simulation.instances import FATES, UNFOLLOWED, ComputeGround
from tests.simulation.vms import LATE
from tests.simulation.world import Task, Violation
from tests.simulation.zones import Zone

ZONES = ("us-central1-a", "us-central1-b", "europe-west4-b", "us-west4-a")
L4 = accelerators.parse("l4")
OFF = 60.0  # seconds for which a process may believe that a VM runs which does not: lists lag, and answers are late
FREED = 400.0  # after a verdict, in which a follower has the VMs deleted
TAKEN = ("Google takes the machine of this VM back", "this VM is being")  # as a host with a notice says it
TOLD_AHEAD = {"notice", "long notice", "preempted", "maintenance"}  # what befell it then
GONE = re.compile(r" is (gone|STOPPING|TERMINATED): ")  # how it is told that a VM ends, before the reason
COMPANY = 300.0  # so long the hosts wait for each other's addresses
SLICES = [L4, accelerators.on_hosts(L4, 2), accelerators.on_hosts(L4, 3)]
SHARED = (("l4x2", 2), ("l4x2", 2), ("l4x4", 4))  # VMs that have a process for each of their GPUs


class ComputeDistance(Distance):
    """Each process has a backend with a client of its own."""

    backends: dict[Task, Any]

    def backend_of(self, process: Task) -> Any:
        if process not in self.backends:
            settings = replace(settings_of(f"process {process.number}"), backend="compute", zones=ZONES)
            backend = ComputeBackend(settings)
            backend.rate_limit = self.rate_limit  # type: ignore[method-assign] # of this process alone
            self.backends[process] = backend
        return self.backends[process]


class ComputeJudge(CloudJudge):
    """Knows that VMs are made and end one by one, and that Google ends those that nobody ends."""

    # Each host that is not there is asked for by its name.
    most: Mapping[str, tuple[int, float]] = MappingProxyType(
        {**MOST, "kinetic-watch": (40, 6 / 5.0), "guard": (80, 0.3)}
    )

    def _is_closed(self, said: str, told: str, zone: str) -> bool:
        """Return True if a refusal in a zone, that has none of the quota, is one of the other zone, too."""
        weather = self.ground.api.zones[told].weather
        if weather == api.NEVER_REGION and "Limit: 0.0 in region" in said:
            return told.rsplit("-", 1)[0] == zone.rsplit("-", 1)[0]
        return (weather == api.UNKNOWN_ZONE and "does not exist in zone" in said and told == zone) or (
            weather == api.NEVER and "Limit: 0.0 globally" in said
        )

    def _check_deleted(self, job: str, attempt: int) -> None:
        """Some time after the verdict: whoever is well on one of the VMs has seen to the deletion of all."""
        if not self.ground.calm:
            self.world.at(self.world.now + ENDED, lambda: self._check_deleted(job, attempt))
            return
        for one in self._there(job, attempt):
            mine = [box for box in self.ground.living if box.node.queued is one.queued]
            well = [box.name for box in mine if box.is_well and self.world.now > max(box.up, one.started) + ENDED]
            if well and self._runs(one):
                raise Violation(f"{one.id} has its verdict, and {well} do not delete it")

    def on_write(self, name: str, data: bytes) -> None:
        super().on_write(name, data)
        if name.endswith("/verdict.json"):
            parts = name.split("/")
            self.world.at(self.world.now + FREED, lambda: self._check_freed(parts[1], int(parts[3])))
        elif name.endswith("/freed.json"):
            _, job, _, _, attempt, _ = name.split("/")
            self._check_late(job, int(attempt))

    def _check_late(self, job: str, attempt: int) -> None:
        """Check that VMs which are said to have been charged for until now were so until a moment ago, or that their
        release stalled: when that took effect, the process that asked for it cannot know."""
        world, groups = self.world, self.ground.api.queued.values()
        mine = next((one for one in groups if (one.told["job"], one.told["attempt"]) == (job, attempt)), None)
        if mine is None or names.refused(job, attempt) in world.records or world.suspended:
            return
        world.reached.add("VMs were freed late, and it is remembered")
        off = max((one.off or world.now for one in mine.members), default=world.now)
        if world.current is not None and world.current.stalled > off:
            return
        if off < world.now - OFF:
            raise Violation(f"{mine.id} is said to be charged for until now, {world.now - off:.0f} s after all was off")

    def _check_freed(self, job: str, attempt: int) -> None:
        """Some time after the verdict, in a healed world: whoever followed the job has seen its VMs go."""
        if self.world.now < self.healed + FREED:
            self.world.at(self.world.now + FREED, lambda: self._check_freed(job, attempt))
            return
        runs_on = [one.id for one in self._there(job, attempt) if self._runs(one) and one.asked]
        if runs_on and self._is_left(job, attempt):
            raise Violation(f"{runs_on} were to be deleted after their verdict, and run on")

    def _is_left(self, job: str, attempt: int) -> bool:
        """Return True if somebody who lives has followed the job to its end, and forgotten nothing."""
        stale = "a stale submitter submitted after the verdict" in self.world.reached
        told = job in self.outcomes and not self.world.suspended
        return told and not (self.orphaned or stale or (job, attempt) in self.forgotten)

    def _check_expired(self, queued: Group) -> None:
        """Some time after the deadline: the processes that were armed have seen to the deletion of all."""
        if not self.ground.calm:
            self.world.at(self.world.now + LATE, lambda: self._check_expired(queued))
            return
        for one in self._there(queued.told["job"], queued.told["attempt"]):
            mine = [box for box in self.ground.living if box.node.queued is queued and not box.denied]
            armed = [
                box.name
                for box in mine
                if self.world.now > max(box.up, one.started) + LATE
                and any(task.name.startswith("deadline") and not task.dead for task in box.tasks)
            ]
            if armed and self._runs(one):
                raise Violation(f"{one.id} is there long after its deadline, and {armed} do not delete it")

    def _there(self, job: str, attempt: int) -> list[Any]:
        """Return the resources that the hosts of an attempt delete at its end, as far as they are not going."""
        mine = [one for one in self.ground.api.nodes.values() if one.name not in self.foreign]
        return [one for one in mine if (one.told["job"], one.told["attempt"]) == (job, attempt) and not one.going]

    def _runs(self, one: Any) -> bool:
        return bool(one.state == RUNNING)

    def _own(self, machine: Any) -> Any:
        """Return the resource that a host deletes last."""
        return machine.node

    def may_delete(self, name: str, what: Any) -> None:
        """Check also that a host ends after the VMs that it was to end first."""
        if isinstance(what, BootDisk):
            if name in self.foreign:
                raise Violation(f"the disk {name} is deleted, which is not ours")
            return
        super().may_delete(name, what)
        task = self.world.current
        assert task is not None
        machine = self.ground.machine_of.get(task.process)
        if machine is None or what is not self._own(machine):
            return
        others = [one for one in self._there(machine.job, machine.attempt) if one is not what]
        unasked = [one.id for one in others if not machine.asked[task.process, one.name]]
        if unasked:
            raise Violation(f"{task.name} deletes its own {self.ground.part} before {unasked}")

    def _justified(self, job: str, attempt: int, verdict: Verdict) -> bool:  # noqa: PLR0911 - a table
        harm = self.ground.truth(job, attempt).harm
        if verdict.reason.startswith("no host started within"):  # it may quote what ended the attempt before
            return super()._justified(job, attempt, verdict)
        if "(maxRunDuration)" in verdict.reason:
            self.world.reached.add("a job was told that its VM had run for as long as it may")
            return "limit" in harm
        if f"{SOMEBODY} deleted it" in verdict.reason:
            self.world.reached.add("a job was told who deleted its VM")
            is_late = self._is_reaped(job, attempt, verdict)
            return (verdict.cause == wire.CANCELLED or is_late) and bool(harm & {"user", "user deletes all"})
        if "was made and is not there" in verdict.reason:
            return "hidden" in harm
        if "while the request for" in verdict.reason:  # what is never shown cannot be told from what waits no longer
            return verdict.cause == wire.STOCKOUT and bool(harm & {"expired", "hidden"})
        if match := re.search(r"where the hosts of (\S+) are was not told", verdict.reason):
            self.world.reached.add("a host waited in vain for one that nobody made")
            other = self.ground.api.nodes.get(match[1])
            return other is None or bool(other.going) or self.world.now - other.created < COMPANY
        if match := re.search(r"(\S+), the VM of another host, is", verdict.reason):
            self.world.reached.add("a host did not wait for one whose VM is gone")
            other = next((one for name, one in self.ground.api.nodes.items() if name.endswith(f"/{match[1]}")), None)
            runs = other is not None and not other.going and other.state == "RUNNING"
            return not runs or self.world.now - other.created < COMPANY
        if "did not start within" in verdict.reason and self._is_late(job, attempt, verdict.host):
            self.world.reached.add("a host came too late for the others")
            return True
        if verdict.cause == wire.INFRASTRUCTURE and self.ground.api.odds.forgets and harm:
            return True
        if self.plan.spot and harm == {"preempted"} and verdict.kind == wire.CLOSED and GONE.search(verdict.reason):
            self.world.reached.add("a preemption was read from the operations of its zone")
            return verdict.cause == wire.PREEMPTION or self._is_reaped(job, attempt, verdict)
        if verdict.cause == wire.PREEMPTION and not self.plan.spot:
            return False  # Google takes others back, too, which is no preemption, whoever tells of it
        if not self.plan.spot and verdict.kind == wire.ABORTED and verdict.reason.startswith(TAKEN):
            self.world.reached.add("a host told that its VM, which is not spot, is taken back")
            return verdict.cause == wire.INFRASTRUCTURE and bool(harm & TOLD_AHEAD)
        if verdict.cause == wire.PREEMPTION:
            return bool(harm & TOLD_AHEAD)
        return super()._justified(job, attempt, verdict)

    def _is_reaped(self, job: str, attempt: int, verdict: Verdict) -> bool:
        """Return True for an end at the deadline, whatever its reason is: the last that was seen of its VMs."""
        return verdict.cause == wire.DEADLINE and self.world.now > self.deadlines[job, attempt]

    def _is_late(self, job: str, attempt: int, host: int | None) -> bool:
        """Return True if the VM of a host is not there or has not run for long: its insert may be refused for minutes,
        while the others run."""
        nodes = self.ground.api.nodes.values()
        mine = [one for one in nodes if (one.told["job"], one.told["attempt"], one.index) == (job, attempt, host)]
        return not any(one.started and self.world.now - one.started > COMPANY for one in mine)


class ComputeSchedule(CloudSchedule):
    """Everything that one seed draws, on the simulated Compute Engine."""

    option = " --compute"
    judge: ComputeJudge
    api: type[Compute] = Compute
    kind_of_ground: type[ComputeGround] = ComputeGround
    kind_of_judge: type[ComputeJudge] = ComputeJudge
    fates: tuple[str, ...] = FATES
    ways: tuple[dict[str, Any], ...] = (  # of getting VMs
        *({}, {}, {"spot": True}, {"spot": True}, {"cloud": {"flex_start": True}}, {"cloud": {"reservation": "r"}}),
    )

    def _open(self, draw: Any) -> None:
        world = self.world
        nothing = draw.random() < 0.03
        known = {name: self._zone(name, draw, world.now) for name in ZONES}
        for zone in known.values():
            if nothing or zone.weather == api.NEVER:
                zone.weather = api.NEVER if nothing else api.NEVER_REGION
        compute = self.api(
            world, known,
            self._habits(draw, api.Odds(
                lag=draw.choice((0.0, 0.0, 3.0, 8.0)),
                stuck=draw.choice((0.0, 0.0, 0.3)),
                refuses=draw.choice((0.0, 0.0, 0.3)),
                unreachable=draw.choice((0.0, 0.0, 0.1, 0.5)),
                orphans=draw.choice((0.0, 0.0, 0.0, 0.3)),
                forgetful=draw.random() < 0.3,
                hidden=draw.choice((0.0, 0.0, 0.0, 0.2)),
                idle=draw.choice((0.0, 0.0, 0.7)),
                forgets=draw.random() < 0.1,
            )),
        )  # fmt: skip
        self.ground = self.kind_of_ground(world, compute)
        world.distance = self.distance = ComputeDistance(world, self.ground)
        slice_, slices = self._slices(draw)
        slice_, processes = self._shared(self.seed, slice_)
        kind = draw.choice(self.ways)
        zones = ZONES[: draw.choice((1, 2, 3, 4))]
        patience = 0.0, 100.0, 900.0
        self.plan = self._plan("compute", slice_, slices, zones, patience, project="p", processes=processes, **kind)

    def _fates(self, draw: Any) -> tuple[str, ...]:
        del draw
        return self.fates + UNFOLLOWED * self.orphaned

    def _slices(self, draw: Any) -> tuple[Slice, int]:
        """Draw a slice, and how many of it are joined."""
        return draw.choice((SLICES[0], SLICES[0], SLICES[1], SLICES[2])), 1

    def _shared(self, seed: int, slice_: Slice) -> tuple[Slice, int]:
        """Draw for how long VMs may shut down, and whether several processes share each: apart, so that whatever else a
        seed draws is the same without. Return the slice, and the number of these processes."""
        draw, processes = random.Random(f"{seed} of several processes"), 1
        self.ground.api.shutdown = draw.choice((0.0, 0.0, 30.0, 90.0))
        if draw.random() < 0.3:
            name, processes = draw.choice(SHARED)
            vms = slice_.hosts if processes == 2 else 1  # of each host there are many requests
            slice_ = accelerators.on_hosts(accelerators.parse(name), vms)
            self.world.reached.add(f"VMs with {processes} processes each")
        return slice_, processes

    def _habits(self, draw: Any, odds: api.Odds) -> api.Odds:
        """Draw what else differs between seeds."""
        del draw
        return odds

    def _zone(self, name: str, draw: Any, now: float) -> Zone:
        zone = super()._zone(name, draw, now)
        zone.times = draw.choice((1, 2, 8))
        return zone

    def _strangers(self) -> None:
        """VMs in the project that are not ours: unlabelled, another deployment's, or only named like ours."""
        compute, now, labels = self.ground.api, self.world.now, self._labels()
        strangers = ("a-training", {}), (OTHERS, labels), (f"{OURS}x", labels), (f"{OURS}-a", labels), (OURS, {})
        for name, marks in strangers:
            path = f"projects/p/zones/{ZONES[0]}/instances/{name}"
            told = {"job": STRANGE_JOB, "attempt": 1, "hosts": 1, "host": 0, "deadline": 0.0, "resource": path}
            body = {
                "labels": marks,
                "scheduling": {"provisioningModel": "STANDARD", "maxRunDuration": {"seconds": "1"}},
                "metadata": {"items": [{"key": "kinetic", "value": json.dumps(told)}]},
            }
            one = Instance(path, Group(path, told), body, now - 1e6)
            compute._make(one)
            one.state, one.started = RUNNING, now - 1e6
            self.judge.foreign |= {path, path.replace("/instances/", "/disks/")}
            compute.show(one)

    # ---- to the end --------------------------------------------------------------------------------------

    def _everything(self) -> list[Any]:
        compute = self.ground.api
        return [*compute.nodes.values(), *compute.disks.values()]

    def ours(self) -> list[Any]:
        return [one for one in self._everything() if one.name not in self.judge.foreign]

    def _still_there(self) -> None:
        missing = self.judge.foreign - {one.name for one in self._everything()}
        if missing:
            raise Violation(f"foreign and gone: {sorted(missing)}")

    def _is_unasked(self, one: Any) -> bool:
        return isinstance(one, Instance) and not one.asked and one.state != STOPPING
