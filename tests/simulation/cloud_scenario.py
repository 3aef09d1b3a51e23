"""One seed on the simulated cloud: zones with their weather, slices with their fates, and the promises about both.

As `scenario`, with the real backend over a simulated API, and the real watcher and hosts, for whom each look is a
request. The judge is asked before anything is made or deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinetic_orchestration.errors import BackendError, Corrupt, StoreError
from kinetic_orchestration.host.attempt import self_delete
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import ME, Job
from kinetic_orchestration.jobs.trust import ALONE, Trust
from kinetic_orchestration.jobs.watching.watchers.polling import PollingWatcher
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.values import (
    Change,
    Cursor,
    Event,
    Glimpse,
    JobStatus,
    Limits,
    Outcome,
    Output,
    Plan,
    Retry,
)
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.platforms.google.tpu import backend as tpu_vm
from kinetic_orchestration.platforms.google.tpu import states
from kinetic_orchestration.platforms.shared import ownership
from kinetic_orchestration.platforms.shared.rate_limit import Pace
from kinetic_orchestration.protocol import attempt_rules, names, wire
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.protocol.wire import Verdict
from tests.simulation import zones as api
from tests.simulation.cloud import Cloud, QueuedResource, SimulatedTpus, TpuNode
from tests.simulation.scenario import DAY, FREE, Judge, Schedule
from tests.simulation.vms import FATES, LATE, UNFOLLOWED, CloudGround, DistantStore
from tests.simulation.world import Odds, Task, Violation, World
from tests.simulation.zones import Zone

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-b", "us-west4-a")
SLICES = [accelerators.parse(name) for name in ("v5e-4", "v5e-8", "v5e-16")]
FREE_HARM = {
    wire.STOCKOUT: {api.REFUSED, api.DRY, "expired"},
    wire.QUOTA: {api.QUOTAS, *api.LASTING},
    wire.INTERNAL: {api.FAILING},
}
STORE, DEPLOYMENT = "gs://simulated/store", "test"
STRANGE_JOB = "job-0123456789ab"  # whose attempt strangers are named like, by this store's rule and by another's
OURS = names.slice_of(STORE, DEPLOYMENT, STRANGE_JOB, 1)
OTHERS = names.slice_of("gs://another/store", DEPLOYMENT, STRANGE_JOB, 1)
BELIEVES = Trust(everything=True)
PATIENCE = 100 * 3600.0  # a delete may take days
REQUESTS = 60_000
TWICE = 2  # so often an error of the cloud's own making is answered in the same zone
HEARD = 240.0  # a cancel, by whoever follows a job that waits in a queue
REPAIR = 900.0
# After a verdict and a machine's boot: the longest grace, the last turn of those that delete, a log that is not whole.
ENDED = 1200.0

# How many requests one may make: so many at once, and so many a second. By a part of the name; the rest are followers.
MOST = {
    "kinetic-watch": (20, 4 / 5.0),
    "kinetic-view": (100, 1.3),
    "kinetic-log": (10, 1.0),
    "kinetic-prepare": (5, 0.0),
    "guard": (60, 0.1),
    "deadline": (30, 0.2),  # a delete, and whether both the queued resource and the node have gone
    "host": (60, 0.05),
    "reap": (400, 0.5),
    "": (200, 1.4),
}


class Distance:
    """The distance between clients and machines: each process has a watcher and a backend of its own."""

    def __init__(self, world: World, ground: CloudGround) -> None:
        self.world = world
        self.ground = ground
        self.watchers: dict[Task, PollingWatcher] = {}
        self.backends: dict[Task, tpu_vm.TpuVmBackend] = {}
        self.paces: dict[tuple[Task, str], Pace] = {}

    @property
    def records(self) -> DistantStore:
        return self.ground.store

    def watcher_of(self, store: Any, backend: Any) -> PollingWatcher:
        assert self.world.current is not None
        process = self.world.current.process
        if process not in self.watchers:
            self.watchers[process] = PollingWatcher(store, backend)
        return self.watchers[process]

    def backend_of(self, process: Task) -> tpu_vm.TpuVmBackend:
        """The backend of a process, which holds its knowledge of calls."""
        if process not in self.backends:
            settings = settings_of(f"process {process.number}")
            backend = tpu_vm.TpuVmBackend(settings)
            backend.rate_limit = self.rate_limit  # type: ignore[method-assign] # of this process alone
            backend._tpus = SimulatedTpus(settings, self.ground.api)
            self.backends[process] = backend
        return self.backends[process]

    def rate_limit(self, placement: Mapping[str, Any]) -> Pace:
        """The rate limit of this process; slower than a real one, so that many polls are left out."""
        assert self.world.current is not None
        key = self.world.current.process, placement["zone"]
        return self.paces.setdefault(key, Pace(per_second=0.1, at_once=3))

    def restarted(self, process: Task) -> None:
        self.paces = {key: pace for key, pace in self.paces.items() if key[0] is not process}
        self.watchers.pop(process, None)
        self.backends.pop(process, None)


def settings_of(emulator: str = "") -> Settings:
    return Settings(
        Path("/simulated"),
        STORE,
        DEPLOYMENT,
        "tpu-vm",
        project="p",
        zones=ZONES,
        retention=DAY / 4.0,
        emulator=emulator,
    )


class CloudJudge(Judge):
    """Sees every write and every call that makes or deletes."""

    ground: Any
    most: Mapping[str, tuple[int, float]] = MOST
    free = FREE

    def __init__(self, world: World, ground: CloudGround, plan: Plan, identity: Identity) -> None:
        super().__init__(world, ground, plan, identity)  # type: ignore[arg-type]
        self.zones: dict[tuple[str, int], str] = {}
        self.waits: dict[tuple[str, int], float] = {}
        self.deadlines: dict[tuple[str, int], float] = {}
        self.near_deadline: Callable[[QueuedResource], object] = lambda _queued: None
        self.foreign: set[str] = set()
        self.steady = True  # nobody is ever stopped for long
        self.attentive = False  # and somebody follows who never fails
        self.heard_within = 2 * attempt_rules.OWNER_PATIENCE
        self.forgotten: set[tuple[str, int]] = set()  # attempts whose delete was refused, by a follower that is gone
        self.acted: dict[tuple[Task, str], float] = {}  # when a process last made, ended or freed something of a job
        ground.api.made = self._act
        ground.api.may_create, ground.api.may_delete = self.may_create, self.may_delete

    def on_write(self, name: str, data: bytes) -> None:
        parts = name.split("/")
        if parts[0] == "beats" and not parts[-1].isdecimal():
            return
        if name.endswith("/intent.json"):
            placement = json.loads(data)["placement"]
            self.zones[parts[1], int(parts[4])] = placement["zone"]
            self.waits[parts[1], int(parts[4])] = placement["wait"]
            self._check_total(parts[1], int(parts[4]))
        elif name.endswith("/cancel.json") and self.attentive and not self.ground.calm:
            self.world.at(self.world.now + HEARD, lambda: self._check_cancel(parts[1], self.world.now - HEARD))
        super().on_write(name, data)
        if name.endswith("/verdict.json"):
            self._act(parts[1])
            self.world.at(self.world.now + ENDED, lambda: self._check_deleted(parts[1], int(parts[3])))

    def _act(self, job: str) -> None:
        """Record an action: anything that the task read before is old."""
        if self.world.current is not None:
            self.acted[self.world.current, job] = self.world.now

    def check_seen(self, task: Task, job: str, acted: float, seen: float) -> None:
        """Check that the data of a follower's step are not older than its own last action."""
        if seen < acted:
            raise Violation(f"{task.name} believes of {job} what was so {acted - seen:.1f} s before its own last act")

    def _check_cancel(self, job: str, since: float) -> None:
        attempt = max((number for name, number in self.intents if name == job), default=0)
        if self.ground.calm or self.world.suspended or not attempt or self.intents[job, attempt] > since:
            return
        waits = not self.ground.truth(job, attempt).beats
        if waits and (job, attempt) not in self.verdicts:
            raise Violation(f"attempt {attempt} of {job} waits on, {HEARD:.0f} s after its cancel")
        if waits:
            self.world.reached.add("a cancel was heard in a queue")

    def _check_total(self, job: str, attempt: int) -> None:
        age, limit = self.world.now - self.created[job], self.plan.limits.total
        if limit and self.steady and not self.world.suspended and age > float(limit) + 120.0:
            raise Violation(f"attempt {attempt} of {job} is intended {age:.0f} s after the job was made")

    def _check_deleted(self, job: str, attempt: int) -> None:
        """Some time after the verdict: whoever is well on a slice has seen to its deletion."""
        if not self.ground.calm:
            self.world.at(self.world.now + ENDED, lambda: self._check_deleted(job, attempt))
            return
        for queued in self.ground.api.queued.values():
            if (queued.told["job"], queued.told["attempt"]) == (job, attempt) and queued.name not in self.foreign:
                well = [one.name for one in self.ground.living if one.node.queued is queued and one.is_well]
                up = max((one.up for one in self.ground.living if one.node.queued is queued), default=0.0)
                if well and queued.state != states.DELETING and self.world.now > up + ENDED:
                    raise Violation(f"{queued.id} has its verdict, and {well} do not delete it")

    def _check_expired(self, queued: QueuedResource) -> None:
        """Some time after the deadline: the process that was armed has seen to the deletion."""
        if self.ground.api.queued.get(queued.name) is not queued or queued.state == states.DELETING:
            return
        if not self.ground.calm:
            self.world.at(self.world.now + LATE, lambda: self._check_expired(queued))
            return
        mine = [one for one in self.ground.living if one.node.queued is queued and not one.denied]
        armed = [
            one.name
            for one in mine
            if self.world.now > one.up + LATE
            and any(task.name.startswith("deadline") and not task.dead for task in one.tasks)
        ]
        if armed:
            raise Violation(f"{queued.id} is there long after its deadline, and {armed} do not delete it")

    # ---- attempts ------------------------------------------------------------------------------------------

    def _on_intent(self, job: str, attempt: int) -> None:
        super()._on_intent(job, attempt)
        if attempt > 1:
            self._check_zone(job, attempt)

    def _check_zone(self, job: str, attempt: int) -> None:
        """Check the zone of this attempt against the messages of the last one."""
        zone, world = self.zones[job, attempt], self.world
        before, verdict = self.zones[job, attempt - 1], self.verdicts[job, attempt - 1]
        if "reservation" in self.plan.cloud and zone != self.plan.zones[0]:
            raise Violation(f"attempt {attempt} of {job} leaves its reservation for {zone}")
        for number in range(1, attempt):
            said = self.verdicts[job, number].reason
            if self._is_closed(said, self.zones[job, number], zone):
                raise Violation(f"attempt {attempt} of {job} asks {zone} again, which has nothing for it: {said}")
        if verdict.cause in FREE and zone != before:
            world.reached.add("another zone was tried")
        if "requests per minute" in verdict.reason and zone != before:
            raise Violation(f"attempt {attempt} of {job} leaves {before} because of a rate limit")
        row = 0
        for number in range(attempt - 1, 0, -1):
            if self.verdicts[job, number].cause != wire.INTERNAL or self.zones[job, number] != zone:
                break
            row += 1
        open_zones = self._open_zones()
        if row > TWICE and len(open_zones) > 1 and "reservation" not in self.plan.cloud:
            raise Violation(f"attempt {attempt} of {job} stays in {zone} after {row} internal errors")

    def _is_closed(self, said: str, told: str, zone: str) -> bool:
        """Return True if what was said of one zone means that there is nothing in the other."""
        scope = told.rsplit("-", 1)[0] if "Limit: 0 in region" in said else told
        return ("Limit: 0 in" in said or "access is unauthorized" in said) and zone.startswith(scope)

    def _open_zones(self) -> list[str]:
        """The zones in which the project may have anything at all."""
        known = self.ground.api.zones
        closed = {zone.rsplit("-", 1)[0] for zone in self.plan.zones if known[zone].weather == api.NEVER_REGION}
        return [
            zone
            for zone in self.plan.zones
            if known[zone].weather not in api.LASTING and zone.rsplit("-", 1)[0] not in closed
        ]

    def _justified(self, job: str, attempt: int, verdict: Verdict) -> bool:  # noqa: PLR0911 - a table
        truth, world, limits = self.ground.truth(job, attempt), self.world, self.plan.limits
        intent, cause = self.intents.get((job, attempt)), verdict.cause
        if cause in FREE:
            world.reached.add(f"free: {cause}")
            return bool(truth.harm & FREE_HARM[cause])
        if cause == wire.CANCELLED and "owner" in verdict.reason:
            return super()._justified(job, attempt, verdict)
        if cause == wire.CANCELLED:
            return names.cancel(job) in world.records or bool(truth.harm & {"user", "user deletes all"})
        if cause == wire.CONFIGURATION:
            return self._misconfigured(job, attempt, truth, verdict)
        if cause == wire.USER:
            strict = not self.ground.host_odds.error and "cut off" not in truth.harm and not world.suspended
            if strict and verdict.host is not None and verdict.host not in truth.culprits:
                raise Violation(f"attempt {attempt} of {job} blames host {verdict.host}, and {truth.culprits} failed")
            return bool(truth.culprits)
        if cause == wire.PREEMPTION:
            if self.plan.spot and verdict.kind == wire.CLOSED:  # such capacity goes in many ways
                return bool(truth.harm)
            return bool(truth.harm & {"notice", "preempted", "maintenance"})
        if cause == wire.DEADLINE and "its deadline passed" in verdict.reason:
            return world.now > self.deadlines[job, attempt]
        if cause == wire.DEADLINE:
            started = self.without_hosts_since(job, attempt)
            ages = [
                (limits.total, world.now - self.created[job]),
                (limits.provision, world.now - started),
                (limits.run, world.now - (world.now if intent is None else intent)),
            ]
            if "no host started within" in verdict.reason:
                world.reached.add("the limit of provision ended a job")
                if attempt > 1 and self.verdicts[job, attempt - 1].cause in FREE:
                    world.reached.add("the limit of provision ended a job after several attempts")
                    if "; the last answer was: " not in verdict.reason:
                        raise Violation(f"attempt {attempt} of {job} waited in vain, and does not say for what")
                ages = [ages[1]]
            return any(limit and age > float(limit) for limit, age in ages)
        if cause == wire.STALL:
            return bool(truth.harm) or bool(any(truth.exits.values()))
        if "REPAIRING for more than" in verdict.reason:
            world.reached.add("a repair took too long")
            return truth.repairs > 0.0 and world.now - truth.repairs > REPAIR
        return bool(truth.harm - set(FREE_HARM[wire.STOCKOUT])) or self._late(job, attempt, verdict)

    def _misconfigured(self, job: str, attempt: int, truth: Any, verdict: Verdict) -> bool:
        if "who may start attempt" in verdict.reason:
            self.world.reached.add("nobody who may start an attempt did")
            return True
        if "reservation" in verdict.reason or "place is left" in verdict.reason:
            self.world.reached.add("no zone was left")
            if "reservation" in self.plan.cloud:
                return bool(truth.harm or self.ground.truth(job, attempt - 1).harm)
            dropped = [zone for zone in self.plan.zones if self.ground.api.zones[zone].weather in api.LASTING]
            regions = {
                zone.rsplit("-", 1)[0] for zone in dropped if self.ground.api.zones[zone].weather == api.NEVER_REGION
            }
            return all(zone in dropped or zone.rsplit("-", 1)[0] in regions for zone in self.plan.zones)
        return bool(truth.harm & {"unready", "denied", api.REFUSED})

    def _late(self, job: str, attempt: int, verdict: Verdict) -> bool:
        """Return True if no process was there to create the hosts in time."""
        return self.world.suspended > 0 or bool(self.ground.host_odds.error)

    # ---- slices --------------------------------------------------------------------------------------------

    def may_create(self, queued: QueuedResource) -> None:
        world, task = self.world, self.world.current
        job, attempt = queued.told["job"], queued.told["attempt"]
        assert task is not None
        intent = world.records.get(names.intent(job, attempt))
        if intent is None and names.spec(job) in world.records:
            raise Violation(f"{queued.id} is made without an intent")
        waited, limit = world.now - self.without_hosts_since(job, attempt), self.plan.limits.provision
        if limit and self.steady and world.now > self.healed + 60.0 and waited > float(limit) + 60.0:
            raise Violation(f"{queued.id} is made after {waited:.0f} s without hosts")
        if self.zones.get((job, attempt), queued.zone) != queued.zone:
            raise Violation(f"{queued.id} is made in {queued.zone}, and was promised in {self.zones[job, attempt]}")
        self._check_valid(queued)
        if (early := self.intents.get((job, attempt), 0.0) + self.waits.get((job, attempt), 0.0) - world.now) > 0.0:
            raise Violation(f"{queued.id} is made {early:.1f} s too early")
        self.deadlines[job, attempt] = queued.told["deadline"]
        world.at(queued.told["deadline"] + LATE, lambda: self._check_expired(queued))
        world.at(queued.told["deadline"] - 100.0 * world.random.random(), lambda: self.near_deadline(queued))
        self._check_wanted(task, job, attempt)

    def _check_wanted(self, task: Task, job: str, attempt: int) -> None:
        """Check that whoever submits an attempt could not see that nobody wants it any longer."""
        world = self.world
        cancel = world.records.get(names.cancel(job))
        if cancel is not None and cancel.updated < task.look_began:
            raise Violation(f"{task.name} submits attempt {attempt} of {job}, whose cancel it could see")
        verdict = world.records.get(names.verdict(job, attempt))
        if verdict is not None:
            world.reached.add("a stale submitter submitted after the verdict")
            if verdict.updated < task.look_began:
                raise Violation(f"{task.name} submits attempt {attempt} of {job}, whose verdict it could see")

    def _check_valid(self, queued: QueuedResource) -> None:
        """A request waits no longer than the job may, and where there are other zones, than one is worth."""
        limit, patience = self.plan.limits.provision, self.plan.zone_patience
        if limit and queued.valid > float(limit) + 1.0:
            raise Violation(f"{queued.id} may wait for {queued.valid:.0f} s, and its job for {limit:.0f} s")
        elsewhere = len(self._open_zones()) > 1
        if patience and elsewhere and "reservation" not in self.plan.cloud and queued.valid > patience + 1.0:
            raise Violation(f"{queued.id} may wait for {queued.valid:.0f} s in a zone that is worth {patience:.0f} s")

    def may_delete(self, name: str, what: QueuedResource | TpuNode) -> None:
        """Check that a deletion is of our resource, and not of one that lives and is needed."""
        world, task = self.world, self.world.current
        assert task is not None
        if name in self.foreign:
            raise Violation(f"{task.name} deletes {name}, which is not ours")
        queued = what if isinstance(what, QueuedResource) else what.queued
        if queued is None:
            return
        job, attempt = queued.told["job"], queued.told["attempt"]
        if names.intent(job, attempt + 1) not in world.records:  # else it changes nothing of what is looked at by now
            self._act(job)
        machine = self.ground.machine_of.get(task.process)
        verdict = world.records.get(names.verdict(job, attempt))
        late = world.now > queued.told["deadline"]
        harm = self.ground.truth(job, attempt).harm
        dead = {"cut off", "agent", "process", "deadline"} & harm  # with nobody on it who could write one
        # Who ends a machine is told by its cloud, and its hosts leave without a verdict.
        shut = self.ground.truth(job, attempt).shut
        if machine is not None and verdict is None and not late and not dead and not shut:
            raise Violation(f"{task.name} deletes its slice before the verdict")
        if task.name.startswith("deadline") and world.now < queued.told["deadline"] - 5.0:
            raise Violation(f"{task.name} deletes {name} before its deadline")
        in_order = verdict is not None and not harm and not world.suspended and queued.state != states.DELETING
        if machine is not None and in_order and verdict is not None:
            # A slice that was made after its verdict, while nobody looked, is deleted by its hosts once they are up.
            age = world.now - max(verdict.updated, machine.up)
            self._check_last_act(machine, age, self._at_work(queued))
        if machine is not None or late:
            return
        if verdict is None and names.spec(job) in world.records:
            raise Violation(f"{task.name} deletes {name} before the verdict")
        if verdict is None or harm or queued.state != states.ACTIVE:
            return
        age, at_work = world.now - verdict.updated, self._at_work(queued)
        if at_work and age < lifecycle.SETTLE_PATIENCE and not self.ground.api.odds.lag:
            raise Violation(f"{task.name} deletes {name} while {at_work} are at work")

    def _check_last_act(self, machine: Any, age: float, at_work: list[str]) -> None:
        """A host in good health deletes in its turn, and does not cut the others short."""
        most = attempt_rules.GRACE[wire.CANCELLED] + self_delete.FIRST_TURN + self_delete.TURN * machine.hosts + 120.0
        if self.ground.host_odds.error:
            return
        if at_work and age < self_delete.LATE:
            raise Violation(f"{machine.name} deletes its slice while {at_work} are at work")
        if not self.ground.api.odds.refuses and age > most:
            raise Violation(f"{machine.name} deletes its slice {age:.0f} s after the verdict")

    def _at_work(self, queued: QueuedResource) -> list[str]:
        """The machines of a slice whose agents have begun and not ended, as far as anybody could hear of it: between its
        first record and its first beat an agent has done nothing yet."""

        def has(machine: Any, what: str) -> bool:
            return names.host(machine.job, machine.attempt, machine.index, what) in self.world.records

        def has_spoken(machine: Any) -> bool:
            return names.beat(machine.job, machine.attempt, machine.index) in self.world.records

        mine = [machine for machine in self.ground.living if machine.node.queued is queued]
        return [one.name for one in mine if has(one, "started.json") and has_spoken(one) and not has(one, "done.json")]

    def check_requests(self) -> None:
        """Check in a healed world that no task makes more requests than its kind and its life explain."""
        for task in self.world.tasks:
            kind = next((kind for kind in self.most if kind in task.name), "")
            at_once, a_second = self.most[kind]
            most = at_once + a_second * (task.last - task.first)
            if not kind:  # whoever comes later goes through all attempts, a few times
                most += 50 * len(self.intents)
            if task.first >= self.healed and task.asked > most:
                raise Violation(f"{task.name} asked {task.asked} times in {task.last - task.first:.0f} s")

    def check_logs(self) -> None:
        """Check each host's log in the store: its lines once and in order, and all of them if no fault befell it."""
        for (job, attempt, host), printed in self.ground.lines.items():
            prefix = names.host(job, attempt, host, "log/")
            segments = sorted(name for name in self.world.records if name.startswith(prefix))
            read = [frame for name in segments for frame in frames.decode(self.world.records[name].data, 0, 0)[0]]
            lines = [int(frame.payload.split()[1]) for frame in read if frame.kind == frames.OUT]
            whole = not self.ground.truth(job, attempt).harm and self.judged(job, attempt)
            if lines != list(range(1, len(lines) + 1)) or (whole and len(lines) < printed):
                raise Violation(f"host {host} of attempt {attempt} of {job} printed {printed} lines, and shows {lines}")

    def judged(self, job: str, attempt: int) -> bool:
        """Return True if the hosts ended it themselves, and so had the time to write all."""
        verdict = self.verdicts.get((job, attempt))
        return verdict is not None and verdict.kind == wire.COMMITTED

    def told(self, job: str, outcome: Outcome) -> None:
        super().told(job, outcome)
        free = sum(self.verdicts[job, number].cause in FREE for number in range(1, outcome.attempt))
        placeless = self.verdicts[job, outcome.attempt].unplaced
        if names.spec(job) in self.world.records and outcome.attempts != max(1, outcome.attempt - free - placeless):
            raise Violation(f"{outcome.attempts} attempts are shown of {outcome.attempt}, of which {free} were free")
        if outcome.cause in FREE:
            raise Violation(f"{job} ends because an attempt had no hosts: {outcome}")
        if free and outcome.status is JobStatus.SUCCEEDED:
            self.world.reached.add("a job succeeded after attempts without hosts")


class CloudSchedule(Schedule):
    """Everything that one seed draws, on the simulated cloud."""

    option = " --cloud"
    believed = BELIEVES
    failures = (StoreError, BackendError)
    patience, requests = PATIENCE, REQUESTS
    ground: Any
    judge: CloudJudge
    kind_of_judge: type[CloudJudge] = CloudJudge
    provision: tuple[float | None, ...] = (None, 300.0, 1800.0, 7200.0)  # limits of it

    def __init__(self, seed: int, worlds: list[World]) -> None:
        world, self.seed = World(seed), seed
        self.world, worlds[:] = world, [world]
        retries._throttled.clear()
        draw = world.random
        self.healed = world.now + draw.choice((100.0, 1500.0, 5000.0)) * draw.uniform(0.2, 1.0)
        self._open(draw)
        ground = self.ground
        ground.plan = self.plan
        ground.harmful = draw.choice((0.0, 1.0, 1.0))
        self.orphaned = draw.random() < 0.2
        ground.fates = self._fates(draw)
        ground.user_failure = draw.choice((0.0, 0.0, 0.5))
        self._draw_odds(draw)
        self._draw_rate(draw)
        self.again = draw.random() < 0.3
        self.identity = Identity(DEPLOYMENT, "simulation", str(self.seed))
        self.judge = self.kind_of_judge(world, ground, self.plan, self.identity)
        self._inform_judge()
        world.on_write, world.on_delete = self.judge.on_write, self.judge.on_delete
        self.clients = self.staging = 0
        self.forgotten = self.judge.forgotten
        self._strangers()
        self._people()

    def _open(self, draw: Any) -> None:
        """Draw the cloud, the ground, what is between them and the processes, and the plan."""
        world = self.world
        asked = ZONES[: draw.choice((1, 2, 3, 4))]
        known = {name: self._zone(name, draw, world.now) for name in ZONES}
        cloud = Cloud(
            world, known,
            api.Odds(
                lag=draw.choice((0.0, 0.0, 3.0)),
                stuck=draw.choice((0.0, 0.0, 0.3)),
                refuses=draw.choice((0.0, 0.0, 0.3)),
                unreachable=draw.choice((0.0, 0.0, 0.1)),
                orphans=draw.choice((0.0, 0.0, 0.0, 0.3)),
                narrow=draw.random() < 0.2,
                forgetful=draw.random() < 0.3,
            ),
        )  # fmt: skip
        self.ground = CloudGround(world, cloud)
        world.distance = self.distance = Distance(world, self.ground)
        slice_ = draw.choice((SLICES[0], SLICES[0], SLICES[1], SLICES[2]))
        slices = draw.choice((1, 1, 1, 2)) if slice_.hosts == 1 else 1
        kind: dict[str, Any] = draw.choice(({}, {}, {}, {"spot": True}, {"cloud": {"reservation": "r"}}))
        self.plan = self._plan("tpu-vm", slice_, slices, asked, (0.0, 60.0, 900.0), project="p", **kind)

    def _plan(
        self, backend: str, slice_: Slice, slices: int, zones: tuple[str, ...], patience: tuple[float, ...], **kind: Any
    ) -> Plan:
        """Draw the rest of a plan, which has the same limits and retries everywhere."""
        draw = self.world.random
        return Plan(
            name="train",
            slice=slice_,
            slices=slices,
            backend=backend,
            store=STORE,
            deployment=DEPLOYMENT,
            zones=zones,
            zone_patience=draw.choice(patience),
            compile_cache=False,
            limits=Limits(
                provision=draw.choice(self.provision),
                run=draw.choice((100.0, 400.0)),
                total=draw.choice((None, None, None, None, 400.0, 2000.0)),
                stall=draw.choice((None, 100.0)),
            ),
            abort_without_owner=draw.random() < 0.05,
            retry=Retry(user=draw.choice((0, 0, 1)), preemption=draw.choice((0, 1, 100)), infra=draw.choice((0, 1, 3))),
            **kind,
        )

    def _fates(self, draw: Any) -> tuple[str, ...]:
        """Add the disasters of machines."""
        del draw
        return FATES + UNFOLLOWED * self.orphaned

    def _draw_odds(self, draw: Any) -> None:
        busy = draw.choice((0.03, 0.15))
        self.ground.host_odds = Odds(delay=busy, error=draw.choice((0.0, 0.0, 0.0, 0.02)))
        self.odds = Odds(
            delay=busy,
            stall=draw.choice((0.0, 0.0, 0.01)),
            error=draw.choice((0.0, 0.0, 0.02)),
            crash=draw.choice((0.0, 0.003, 0.02)),
        )

    def _draw_rate(self, draw: Any) -> None:
        if draw.random() < 0.2:
            when = self.world.now + draw.choice((0.0, 30.0)) * draw.random()
            self.world.at(when, lambda: self._limit_rate(draw.choice((30.0, 300.0))))

    def _inform_judge(self) -> None:
        self.judge.orphaned = self.orphaned
        self.judge.near_deadline = self._reap_early
        self.judge.steady = not self.odds.stall
        self.judge.attentive = self.odds.any == self.odds.delay and not self.orphaned

    def _zone(self, name: str, draw: Any, now: float) -> Zone:
        kind = draw.choice((*(api.FREE,) * 6, *api.PASSING, draw.choice(api.LASTING)))
        until = now + draw.choice((60.0, 600.0, 3600.0)) * draw.random()
        return Zone(name, kind, until, draw.choice((1, 2, 8)))

    def _limit_rate(self, seconds: float) -> None:
        self.ground.api.rate_until = self.world.now + seconds

    def _labels(self) -> dict[str, str]:
        """The labels by which an attempt of ours, that is long over, would be known."""
        return {
            ownership.DEPLOYMENT: DEPLOYMENT, ownership.JOB: STRANGE_JOB, ownership.ATTEMPT: "1",
            ownership.EXPIRES: str(int(self.world.now - 1e6)), ownership.SPEC: "0" * 20,
        }  # fmt: skip

    def _strangers(self) -> None:
        """Resources in the project that are not ours: unlabelled, another deployment's, or only named like ours."""
        cloud, now = self.ground.api, self.world.now
        parent, labels = f"projects/p/locations/{ZONES[0]}", self._labels()
        told = {"job": STRANGE_JOB, "attempt": 1, "hosts_per_slice": 1, "deadline": 0.0, "boot": ""}
        for name, marks in (("a-training", {}), (OTHERS, labels), (f"{OURS}x", labels), (OURS, {})):
            body = {
                "tpu": {
                    "nodeSpec": [{"nodeId": name, "node": {"labels": marks, "metadata": {"kinetic": json.dumps(told)}}}]
                }
            }
            queued = QueuedResource(f"{parent}/queuedResources/{name}", body, now - 1e6)
            queued.state = states.FAILED
            node = TpuNode(f"{parent}/nodes/{name}", None, marks, 0, now - 1e6)
            node.state = 2
            cloud.queued[queued.name], cloud.nodes[node.name] = queued, node
            self.judge.foreign |= {queued.name, node.name}
            cloud.show(queued)
            cloud.show(node)

    def _people(self) -> None:
        world, draw = self.world, self.world.random
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            self._client(self._launch, draw.choice((0.0, 1.0, 30.0)) * draw.random())
        if draw.random() < 0.3:
            self._client(self._attach, draw.uniform(1.0, 200.0))
        queues = self.ground.api.zones[self.plan.zones[0]].weather == api.QUEUE
        if draw.random() < (0.5 if queues else 0.15):
            self._client(self._cancel, draw.choice((2.0, 60.0, 400.0)) * draw.random())
        if draw.random() < 0.05:
            self.ground.on_value = lambda: self._client(self._cancel, draw.random())
        if draw.random() < 0.3:
            self._client(self._reap, draw.uniform(1.0, 1500.0))
        if draw.random() < 0.05 and not self.plan.abort_without_owner:  # not all of a cloud stands still with a laptop
            world.at(world.now + draw.uniform(1.0, 600.0), lambda: world.suspend(draw.choice((60.0, 7200.0))))
        world.at(self.healed, self._heal)
        if self.orphaned and draw.random() < 0.7:
            world.at(world.now + draw.choice((30.0, 300.0)) * draw.random(), self._leave)

    def _leave(self) -> None:
        """Kill all clients at the same time."""
        for task in self.world.tasks:
            if task.process is task and task.name.startswith(("launch", "attach", "owner")) and not task.greenlet.dead:
                self.world.kill(task)

    def _heal(self) -> None:
        self.ground.api.rate_until = 0.0
        world = self.world
        world.note("healed")
        self.judge.healed = world.now
        self.ground.api.calm = True
        self.ground.host_odds = self.odds = Odds(delay=0.02)
        for task in world.tasks:
            task.odds = self.odds
            task.first, task.last, task.asked = world.now, world.now, 0
        world.limits = (world.now + PATIENCE, world.requests + REQUESTS)
        for when in (3600.0, 30 * 3600.0):
            world.at(world.now + when, self._reap_if_nobody_else_may)
        if not self.orphaned:
            self._client(self._launch, 1.0)
            return
        for when in (600.0, 1200.0):
            self._client(self._reap, when)

    def _reap_if_nobody_else_may(self) -> None:
        """Run the reaper on its schedule, if machines lack the permission to delete; it would hide the others' work
        elsewhere."""
        if any(machine.denied for machine in self.ground.living):
            self.world.reached.add("machines waited for the reaper, for want of rights")
            self._client(self._reap, 0.0)

    # ---- what they do ----------------------------------------------------------------------------------------

    def _place(self, task: Task) -> Any:
        return DistantStore(self.world), self.distance.backend_of(task.process)

    def _restarted(self, task: Task) -> None:
        self.distance.restarted(task.process)

    def _trust(self) -> Trust:
        return self.world.random.choice((BELIEVES, BELIEVES, ALONE))

    def _knows_nothing_of_acts(self, task: Task, job: Job) -> float:
        """A new follower has not heard of any, not even of its own process'."""
        self.judge.acted.pop((task, job.job_id), None)
        return 0.0

    def _followed(self, job: Job, task: Task) -> Outcome:
        draw, world = self.world.random, self.world
        reader = Reader(self, job.job_id) if draw.random() < 0.2 else None
        follower, known = Follower(job), self._knows_nothing_of_acts(task, job)
        seen: Glimpse | None = None

        def on_step(stepped: Follower) -> None:
            nonlocal known, seen
            if stepped.seen is not None and stepped.seen is not seen:
                seen = stepped.seen
                if seen.intent is not None:  # else there is nothing to be seen but the time
                    self.judge.check_seen(task, job.job_id, known, seen.now)
            known = self.judge.acted.get((task, job.job_id), 0.0)
            if stepped.refused and stepped.outcome is None and draw.random() < 0.2:
                raise StoreError("the process of this follower is gone")

        while True:
            try:
                outcome = follow(follower, reader, on_step=on_step)
            except (StoreError, BackendError, Corrupt):
                world.sleep(5.0)
                if draw.random() < 0.5:
                    for refused in follower.refused:
                        world.reached.add("a refused delete was forgotten with its follower")
                        if refused.attempt < follower.cursor.attempt - 1:
                            self.forgotten.add((job.job_id, refused.attempt))
                    follower = Follower(job, Cursor.from_json(json.loads(json.dumps(follower.cursor.to_json()))))
                    known = self._knows_nothing_of_acts(task, job)
                continue
            assert outcome is not None
            self.judge.told(job.job_id, outcome)
            if reader is not None:
                reader.check(outcome)
            return outcome

    def _reap(self, task: Task) -> None:
        store, backend = self._place(task)
        try:
            if self.world.random.random() < 0.5 and not reaper._claim(store):
                self.world.reached.add("somebody else was reaping")
                return
            for reaped in reaper._placements(store, backend, dry_run=False, believed=BELIEVES):
                self.world.note("reaped", *reaped)
                why = "past its deadline" if "deadline passed" in reaped.why else reaped.why
                if reaped.what == "placement" and reaped.result != reaper.UNREAD:
                    self.world.reached.add(f"the reaper released a placement: {why}")
            list(reaper._beats(store, dry_run=False))
            store.put(names.REAPED, wire.encode({"writer": ME, "ended": True}))
        except (StoreError, BackendError):
            pass

    def _reap_early(self, queued: QueuedResource) -> None:
        """Run the reaper a moment before the deadline of a running slice."""
        if self.ground.api.queued.get(queued.name) is queued and queued.state == states.ACTIVE:
            self.world.reached.add("the reaper came just before a deadline")
            self._client(self._reap, 0.0)

    def _reap_all(self, task: Task) -> None:
        """Run the reaper as often as a schedule does, until nothing is left."""
        store, backend = self._place(task)
        for _ in range(8):
            for reaped in reaper._placements(store, backend, dry_run=False, believed=BELIEVES):
                self.world.note("reaped", *reaped)
                why = "past its deadline" if "deadline passed" in reaped.why else reaped.why
                self.world.reached.add(f"the reaper released a placement: {why}")
            if not self.ours():
                return
            self.world.sleep(600.0)

    # ---- to the end ------------------------------------------------------------------------------------------

    def ours(self) -> list[Any]:
        cloud = self.ground.api
        return [one for one in (*cloud.queued.values(), *cloud.nodes.values()) if one.name not in self.judge.foreign]

    def run(self) -> None:
        world = self.world
        world.run()
        if left := self.ours():
            world.reached.add("only the reaper could release")
            self._check_asked(left)
            last = max(float(one.labels[ownership.EXPIRES]) for one in left)
            self._later(max(0.0, last - world.now) + reaper.EXPIRED + 1.0, self._reap_all)
        self._nothing_left()
        if self.orphaned and self.judge.created:
            world.reached.add("a job that everybody had left was asked for later")
        self._later(DAY, self._ask_all)
        self._later(reaper.UNCLAIMED + 1.0, self._reap_all)
        self._nothing_left()
        if world.random.random() < 0.3:
            self._later(DAY, self._cancel_all)
            self._nothing_left()
        self._still_there()
        self.judge.check_requests()
        self.judge.check_logs()

    def _check_asked(self, left: list[Any]) -> None:
        """A job that was followed to its end leaves to the reaper only what does not go although it was asked to."""
        stale = "a stale submitter submitted after the verdict" in self.world.reached
        kept = [
            one.name
            for one in left
            if self._is_unasked(one) and (one.told["job"], one.told["attempt"]) not in self.forgotten
        ]
        if kept and not self.orphaned and not stale:
            raise Violation(f"nobody has asked for the deletion of {kept}")

    def _is_unasked(self, one: Any) -> bool:
        """Return True for what followers are to delete, and none has."""
        return isinstance(one, QueuedResource) and not one.asked

    def _nothing_left(self) -> None:
        living = sorted(machine.name for machine in self.ground.living)
        if self.ours() or living:
            raise Violation(f"leaked: {sorted(one.name for one in self.ours())} {living}")

    def _still_there(self) -> None:
        cloud = self.ground.api
        missing = self.judge.foreign - set(cloud.queued) - set(cloud.nodes)
        if missing:
            raise Violation(f"foreign and gone: {sorted(missing)}")


class Reader:
    """A reader of a job's log and changes."""

    def __init__(self, schedule: CloudSchedule, job: str) -> None:
        self.schedule = schedule
        self.job = job
        self.lines: dict[tuple[int, int], list[bytes]] = {}
        self.seen: set[tuple[int, int, int, int]] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Output) and event.kind == frames.OUT:
            key = event.attempt, event.host, event.segment, event.offset
            if key not in self.seen:  # at least once
                self.seen.add(key)
                self.lines.setdefault((event.attempt, event.host), []).append(event.text)
        elif isinstance(event, Change) and event.phase == "resuming":
            verdict = self.schedule.judge.verdicts[self.job, event.attempt - 1]
            if verdict.cause in FREE:
                raise Violation(f"an attempt without hosts is shown: {event.message}")

    def check(self, outcome: Outcome) -> None:
        """Check each host's lines in their order, and all of a job that succeeded."""
        for (attempt, host), texts in self.lines.items():
            numbers = [int(line.split()[1]) for text in texts for line in text.splitlines()]
            if numbers != list(range(1, len(numbers) + 1)):
                raise Violation(f"of host {host} in attempt {attempt} these lines were read: {numbers}")
            printed = self.schedule.ground.lines.get((self.job, attempt, host), 0)
            if outcome.status is JobStatus.SUCCEEDED and attempt == outcome.attempt and host == 0:
                if len(numbers) != printed and not self.schedule.ground.truth(self.job, attempt).harm:
                    raise Violation(f"of host {host} {len(numbers)} lines of {printed} were read")
                self.schedule.world.reached.add("a whole log was read")
