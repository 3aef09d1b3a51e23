"""One seed on the simulated Compute Engine with slices of TPUs: groups with their fates, and the promises about them.

As `compute_scenario`, where the VMs of an attempt are the members of groups, which are made and end as a whole.
"""

from __future__ import annotations

import json
import re
from typing import Any

from kinetic_orchestration.host.machine.vm import member
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.platforms.google.compute import states
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire import Verdict
from tests.simulation import zones as api
from tests.simulation.cloud_scenario import HEARD, OTHERS, OURS, STRANGE_JOB
from tests.simulation.compute import SOMEBODY, Group
from tests.simulation.compute_scenario import COMPANY, ZONES, ComputeJudge, ComputeSchedule
from tests.simulation.groups import MANAGERS, POLICIES, TEMPLATES, Grouped, Kept, Manager, Member
from tests.simulation.instances import FATES, ComputeGround, InstanceMachine
from tests.simulation.world import Task, Violation

SLICES = [
    (accelerators.parse(name), slices) for name, slices in (("v5p-8", 1), ("v6e-16", 1), ("v6e-8", 2), ("v5p-8", 2))
]
REGION = ZONES[0].rsplit("-", 1)[0]
WATCHER = "kinetic-watch"  # the thread of a process that looks at what is followed there
PACE = 1.5 * member.PACE  # between two questions for another slice: the last one may be so long before the deadline
LOOKS, SEEN = 8, 60.0  # at something, and the seconds between the first and the last, until something is done about it
GROUP_FATES = (*FATES, "topology", "topology", "user", "user deletes all", "preempted")


class MemberMachine(InstanceMachine):
    """The one machine of a member, which knows its place in its slice."""

    def unit(self) -> tuple[int, int]:
        return self.told["slices"], 0

    def answer(self, path: str) -> tuple[int, str]:
        one: Any = self.node
        told = {
            "instance/name": one.id,
            "instance/attributes/agent-worker-number": str(one.worker),
            "instance/attributes/tpu-env": f"NODE_ID: '{one.manager.id}'\nWORKER_ID: '{one.worker}'",
            "instance/attributes/created-by": f"projects/1/zones/{one.zone}/instanceGroupManagers/{one.manager.id}",
            "instance/attributes/worker-network-endpoints": ",".join(
                f"unknown:unknown:10.0.0.{one.index - one.worker + number}" for number in range(one.manager.size)
            ),
        }
        found = told.get(path.partition("?")[0])
        return super().answer(path) if found is None else (200, found)


class GroupGround(ComputeGround):
    kind_of_machine = MemberMachine
    part = "group"

    def _befall(self, kind: str, queued: Any, node: Any, victim: Any) -> None:
        if kind != "user deletes all":
            super()._befall(kind, queued, node, victim)
        elif not self.calm and self.api.nodes.get(node.name) is node and self._is_up(node) and not node.manager.going:
            self.harm(queued, kind)
            self.world.reached.add(f"harm: {kind}")
            for manager in self.api.attempt_of(node) if self.world.random.random() < 0.5 else [node.manager]:
                self.api._begin("delete", manager.name, SOMEBODY, ended=True)
                self.api.end_group(manager)

    def _befall_more(self, kind: str, queued: Any, node: Any) -> None:
        assert kind == "topology"
        self.api.degrade(node.manager)

    def _parts(self, machine: Any) -> tuple[str, list[str]]:
        base: str = machine.told["resource"]
        own, slices = machine.node.manager.name, machine.hosts // machine.node.manager.size
        groups = [base] if slices == 1 else [f"{base}-{number}" for number in range(slices)]
        return own, [name for name in groups if name != own]


class GroupJudge(ComputeJudge):
    """Knows that the members of a group end with it, and never alone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.looks: dict[tuple[Task, str], list[float]] = {}  # of a process at a group that waits for too long

    def _there(self, job: str, attempt: int) -> list[Any]:
        found = [one for one in self.ground.api.managers.values() if one.name not in self.foreign and not one.going]
        return [one for one in found if (one.told["job"], one.told["attempt"]) == (job, attempt)]

    def _runs(self, one: Any) -> bool:
        return True  # members or not: it makes some as soon as it can

    def _own(self, machine: Any) -> Any:
        return machine.node.manager

    def may_create(self, queued: Any) -> None:
        if not isinstance(queued, Kept):
            super().may_create(queued)
            return
        task, (job, attempt) = self.world.current, queued.ident
        assert task is not None
        if names.intent(job, attempt) not in self.world.records and names.spec(job) in self.world.records:
            raise Violation(f"{queued.name} is made without an intent")
        self.deadlines.setdefault((job, attempt), float(queued.labels[ownership.EXPIRES]))
        zone = self.zones.get((job, attempt), "")
        if zone and queued.place != zone.rsplit("-", 1)[0]:
            raise Violation(f"{queued.name} is made in {queued.place}, and was promised in {zone}")
        self._check_wanted(task, job, attempt)

    def may_delete(self, name: str, what: Any) -> None:
        task = self.world.current
        assert task is not None
        if isinstance(what, Member) and what.manager.name in self.ground.api.managers and name not in self.foreign:
            raise Violation(f"{task.name} deletes {name} without its group")
        if not isinstance(what, Kept):
            super().may_delete(name, what)
            return
        if name in self.foreign:
            raise Violation(f"{task.name} deletes {name}, which is not ours")
        if self.ground.machine_of.get(task.process) is not None:
            raise Violation(f"{task.name} deletes {name}, which is left to others")
        users = [one for one in self.ground.api.managers.values() if name in (one.template, one.policy)]
        if running := [one.id for one in users if not one.asked]:
            raise Violation(f"{task.name} deletes {name} before {running}")
        job, attempt = what.ident
        late = self.world.now > float(what.labels[ownership.EXPIRES])
        if names.verdict(job, attempt) not in self.world.records and names.spec(job) in self.world.records and not late:
            raise Violation(f"{task.name} deletes {name} before the verdict")

    def may_wait(self, manager: Manager) -> None:
        """Check some time after a group's request is over that it waits no longer, if somebody could see to it."""
        if manager.until != float("inf") and manager.name not in self.foreign:
            since = max(manager.until, self.world.now)  # it may be asked for by who comes late
            self.world.at(since + HEARD, lambda: self._check_wait(manager))

    def reads(self, manager: Manager) -> None:
        """Check that whoever watches a group sees to it that it does not wait on for long after its request was over."""
        told, task, now = manager.told, self.world.current, self.world.now
        waits = manager.bulk and not (manager.had or manager.going) and now > manager.until
        if task is None or WATCHER not in task.name or not waits or (told["job"], told["attempt"]) in self.verdicts:
            return
        looks = self.looks.setdefault((task.process, manager.name), [])
        looks.append(now)
        if len(looks) > LOOKS and now - looks[0] > SEEN and not self.world.suspended:
            raise Violation(f"{manager.id} is seen to wait on for {SEEN:.0f} s, and its request was over")

    def _check_wait(self, manager: Manager) -> None:
        told, ground = manager.told, self.ground
        is_over = ground.api.managers.get(manager.name) is not manager or manager.going or manager.members
        if is_over or ground.calm or self.world.suspended or not self.attentive or not manager.bulk:
            return
        if (told["job"], told["attempt"]) not in self.verdicts:
            raise Violation(f"{manager.id} waits on, {HEARD:.0f} s after its request was over")

    def _justified(self, job: str, attempt: int, verdict: Verdict) -> bool:  # noqa: PLR0911 - a table
        harm = self.ground.truth(job, attempt).harm
        if verdict.reason.startswith("no host started within"):  # it may quote what ended the attempt before
            return super()._justified(job, attempt, verdict)
        if verdict.cause == wire.CANCELLED and SOMEBODY in verdict.reason:
            self.world.reached.add("a job was told who deleted its group or its VM")
            return bool(harm & {"user", "user deletes all"})
        if "while the request for" in verdict.reason:
            over = [one for one in self._there(job, attempt) if one.until <= self.world.now]
            gave_up = [one for one in over if not (one.bulk or one.had)]
            if gave_up:
                self.world.reached.add("a group that had given up was told as a stockout")
            return verdict.cause == wire.STOCKOUT and bool(gave_up or any(one.bulk for one in over))
        if "until the attempt's deadline" in verdict.reason:
            return self.world.now > self.deadlines[job, attempt] - PACE
        unsaid = "Google deleted it" in verdict.reason or states.WHOM_TO_ASK in verdict.reason
        if unsaid and harm == {"user deletes all"} and not self.ground.api.odds.forgets:
            return False
        if match := re.search(r"(\S+), the group of another slice, (.*)", verdict.reason):
            self.world.reached.add("a host did not wait for a slice that will not come")
            return self._comes_never(match[1], match[2], verdict.cause)
        if match := re.search(r"(\S+)-\d+, the VM of another host, is", verdict.reason):
            other = self._manager(match[1])
            if other is not None and not other.going and other.bulk and not other.had:
                return False  # it waits, and may for long
        return super()._justified(job, attempt, verdict)

    def _comes_never(self, name: str, why: str, cause: str) -> bool:
        other = self._manager(name)
        if (cause == wire.STOCKOUT) != ("could wait" in why):
            return False
        if other is None or other.going or "topology" in why:
            return True
        if "could wait" in why:
            return other.until <= self.world.now
        if "asks for none" in why:
            return not (other.bulk or other.members)
        return "is not there" in why and self.world.now - other.created < COMPANY

    def _manager(self, name: str) -> Manager | None:
        return next((one for one in self.ground.api.managers.values() if one.id == name), None)


class GroupSchedule(ComputeSchedule):
    """Everything that one seed draws, on the simulated Compute Engine with slices."""

    option = " --groups"
    judge: GroupJudge
    api = Grouped
    kind_of_ground = GroupGround
    kind_of_judge = GroupJudge
    fates = GROUP_FATES
    ways = (*ComputeSchedule.ways, {"cloud": {"flex_start": True}}, {"cloud": {"flex_start": True}})

    def __init__(self, seed: int, worlds: list[Any]) -> None:
        super().__init__(seed, worlds)
        self.ground.api.may_wait, self.ground.api.reads = self.judge.may_wait, self.judge.reads

    def _shared(self, seed: int, slice_: Slice) -> tuple[Slice, int]:
        del seed
        return slice_, 1

    def _slices(self, draw: Any) -> tuple[Slice, int]:
        found: tuple[Slice, int] = draw.choice((SLICES[0], SLICES[0], *SLICES[1:]))
        return found

    def _habits(self, draw: Any, odds: api.Odds) -> api.Odds:
        return odds._replace(remakes=draw.random() < 0.3, gives_up=draw.random() < 0.3)

    def _strangers(self) -> None:
        """VMs, groups, templates and policies that are not ours: without a description, or another deployment's."""
        super()._strangers()
        grouped, now, labels = self.ground.api, self.world.now, self._labels()
        theirs = json.dumps({"kinetic": {**labels, ownership.DEPLOYMENT: "theirs"}})
        for name, said in (
            ("a-training", ""),
            (OTHERS, json.dumps({"kinetic": labels})),
            (f"{OURS}x", json.dumps({"kinetic": labels})),
            (OURS, "made by hand: {"),
            (f"{OURS}-0", theirs),
        ):
            for kind in (POLICIES, TEMPLATES):
                path = f"projects/p/regions/{REGION}/{kind}/{name}"
                kept = grouped.kept[path] = Kept(path, {"description": said}, now - 1e6)
                kept.ready = True
                grouped.show(kept)
                self.judge.foreign.add(path)
            path = f"projects/p/zones/{ZONES[0]}/{MANAGERS}/{name}"
            told = {"job": STRANGE_JOB, "attempt": 1, "hosts": 1, "deadline": 0.0, "resource": path}
            body = {
                "description": said, "instanceTemplate": f"projects/p/regions/{REGION}/{TEMPLATES}/{name}",
                "targetSize": 1, "baseInstanceName": f"{name}-###[1]",
            }  # fmt: skip
            manager = grouped.managers[path] = Manager(path, body, Group(path, told), now - 1e6)
            manager.bulk = False
            grouped.show(manager)
            self.judge.foreign.add(path)

    # ---- to the end --------------------------------------------------------------------------------------

    def _everything(self) -> list[Any]:
        return [*super()._everything(), *self.ground.api.described]

    def _is_unasked(self, one: Any) -> bool:
        return isinstance(one, Manager) and not one.asked and not one.going
