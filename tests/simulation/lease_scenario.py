"""Plays one seed of jobs that keep their slices warm for each other: who claims which, who dies, what must hold.

Clients run the real `launch`, `Follower` and reaper, hosts the real agent. The judge sees each lease that is written,
each slice that is deleted and each program that begins.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kinetic_orchestration.capacity.warm.releasing import release_slice
from kinetic_orchestration.errors import JobNotFound, StoreError
from kinetic_orchestration.jobs import launch
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.identity import job_id as job_id_of
from kinetic_orchestration.plan.values import JobStatus, Limits, Outcome, Plan, Retry
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.wire.lease import CLAIMED, ENDED, FREE, Lease
from tests.simulation.kept_slices import KeptBox, KeptGround, KeptPlace, LeaseStore
from tests.simulation.lease_client import PROJECT, ZONE, HomeTrust, KeptBackend, home
from tests.simulation.scenario import DAY, REQUESTS, STAGED, Judge, Schedule
from tests.simulation.scenario import FREE as MOVED
from tests.simulation.world import Odds, SimulatedStore, Task, Unreachable, Violation, World

SLICES = [accelerators.parse(name) for name in ("v5e-4", "v5e-8", "v5e-16")]
SPARE = 100.0  # seconds after the end of an offer, at which what was armed deletes the slice
UNTAKEN = 90.0  # seconds after the end of an offer, in which a host that is well has ended it
STOPPED = 90.0  # seconds in which a program ends whose lease was lost
STALE = 60.0  # seconds between what a claim is decided by and its write, of one that nothing holds up
OFFERED = 60.0  # seconds after a verdict in which hosts may be about to offer their slice
NOT_HAD = ("was not to be had", "nobody who has the key")  # in the reason of an attempt that has claimed nothing
BOUND = 60.0  # seconds after what was armed, in which a slice is gone


class Want:
    """A job that somebody wants."""

    def __init__(self, identity: Identity, plan: Plan) -> None:
        self.identity, self.plan, self.generation = identity, plan, 0

    @property
    def key(self) -> str:
        return names.identity(self.identity.key)


class LeaseJudge(Judge):
    """Sees every lease, every deletion of a slice, and every program."""

    ground: KeptGround  # type: ignore[assignment]
    free = MOVED

    def __init__(self, world: World, ground: KeptGround, wants: list[Want]) -> None:
        super().__init__(world, ground, wants[0].plan, wants[0].identity)
        ground.judge = self
        self.wants = {want.key: want for want in wants}
        self.of_job = {job_id_of(want.identity, number): want for want in wants for number in range(1, 5)}
        self.claims: dict[tuple[str, int], tuple[str, int]] = {}
        self.places: dict[str, KeptPlace] = {}
        self.running: dict[KeptBox, tuple[str, int]] = {}
        self.steady = True  # nobody is ever stopped for long
        self.trusts: dict[str, HomeTrust] = {}
        self.told_offer: Callable[[float], object] = lambda _until: None
        self.told_claim: Callable[[KeptPlace], object] = lambda _place: None
        self.cut_off = False  # hosts may get no answer from the store
        self.forging = False
        self.forged: set[str] = set()
        self.forced: set[str] = set()  # slices that somebody has released by force

    # ---- what hosts ask ----------------------------------------------------------------------------------

    def keep_of(self, job: str) -> float:
        keep = self.of_job[job].plan.keep
        return -1.0 if keep is None else keep

    def on_harm(self, place: KeptPlace, kind: str) -> None:
        """Whoever has a slice suffers what befalls it."""
        record = self.world.records.get(names.lease(place.name))
        if record is not None and place.name not in self.forged:
            lease = Lease.decode(record.data)
            self.ground.truth(lease.job, lease.attempt).harm.add(kind)

    # ---- records -----------------------------------------------------------------------------------------

    def on_write(self, name: str, data: bytes) -> None:
        parts = name.split("/")
        if parts[0] == "slices":
            if name.endswith("/lease.json"):
                self._on_lease(parts[1], data)
            return
        if parts[0] == "identities":
            want = self.wants[name]
            self.identity, self.generation = want.identity, want.generation
            super().on_write(name, data)
            want.generation = self.generation
            return
        if parts[0] == "jobs" and parts[1] in self.of_job:
            self.plan = self.of_job[parts[1]].plan
        if name.endswith("/intent.json"):
            self._on_placement(parts[1], int(parts[4]), json.loads(data)["placement"])
        super().on_write(name, data)

    def told(self, job: str, outcome: Outcome) -> None:
        self.plan = self.of_job[job].plan
        super().told(job, outcome)

    def _on_placement(self, job: str, attempt: int, placement: Mapping[str, Any]) -> None:
        """Check that an attempt that may take a free slice takes one."""
        task, plan = self.world.current, self.of_job[job].plan
        assert task is not None
        if placement.get("lease"):
            self.world.reached.add("an attempt is to take a free slice")
            if plan.keep is None:
                raise Violation(f"attempt {attempt} of {job} takes a slice, and has no keep")
            taken = self.places.get(placement["lease"]["slice"])
            if taken is None or not self._has_key(taken, task):
                raise Violation(f"{task.name} has attempt {attempt} of {job} take a slice whose key it has not")
            return
        if plan.keep is None:
            return
        lost = [self.verdicts.get((job, number)) for number in (attempt - 1, attempt - 2)]
        if all(one is not None and one.cause == wire.INTERNAL for one in lost):
            self.world.reached.add("after two lost claims an attempt asked for a slice of its own")
            return
        had_claimed = (job, attempt - 1) in self.claims.values()  # others that were kept may be as dead
        if lost[0] is not None and lost[0].cause == wire.INTERNAL and had_claimed:
            self.world.reached.add("after a claim that no host followed an attempt asked for a slice of its own")
            return
        for name, lease, updated in self._leases():
            seen = updated < task.look_began and self.world.now < lease.until - STALE
            if lease.state != FREE or not seen or name in self.forged or not self._fits(lease, plan, task):
                continue
            raise Violation(f"{task.name} asks for a new slice for attempt {attempt} of {job}, and {name} is free")

    def _leases(self) -> Iterator[tuple[str, Lease, float]]:
        for name, record in list(self.world.records.items()):
            if name.startswith("slices/") and name.endswith("/lease.json"):
                yield name.split("/")[1], Lease.decode(record.data), record.updated

    def _fits(self, lease: Lease, plan: Plan, task: Task) -> bool:
        place = self.places[lease.slice]
        lasting = not lease.last or self.world.now + self.ground.longest(plan) < lease.last - STALE
        return place.plan.slice == plan.slice and lasting and self._has_key(place, task)

    def _has_key(self, place: KeptPlace, task: Task) -> bool:
        known = self.trusts[task.machine].slice_key(self.ground.store, place.job, place.attempt)  # type: ignore[arg-type]
        return bool(place.key) and known == place.key

    # ---- leases ------------------------------------------------------------------------------------------

    def _on_lease(self, slice_: str, data: bytes) -> None:
        record = self.world.records.get(names.lease(slice_))
        if self.forging:
            self.forged.add(slice_)
            return
        new, old = Lease.decode(data), None if record is None else Lease.decode(record.data)
        if slice_ not in self.places:
            raise Violation(f"a lease of {slice_} is written, which was never made: {new.why}")
        state = "" if old is None else old.state
        self.world.note("lease", slice_, state, new.state, new.epoch, new.job, new.attempt, new.why)
        if slice_ in self.forged and new.state != ENDED:
            raise Violation(f"the forged lease of {slice_} becomes {new.state}")
        if new.state == FREE and state in ("", CLAIMED):
            self._on_offer(old, new)
        elif new.state == CLAIMED and state == FREE and old is not None:
            self._on_claim(old, new)
        elif new.state == ENDED and state != ENDED:
            self._on_end(old, new)
        else:
            raise Violation(f"the lease of {slice_} was {state}, and becomes {new.state}")

    def _on_offer(self, old: Lease | None, new: Lease) -> None:
        world, key = self.world, (new.job, new.attempt)
        place, verdict, keep = self.places[new.slice], self.verdicts.get(key), self.keep_of(new.job)
        if verdict is None or not self._may_be_offered(key):
            raise Violation(f"{new.slice} is offered after {key}, which came to {verdict}, with keep {keep}")
        if new.until > world.now + keep + 1.0 or (place.last and new.until > place.last):
            raise Violation(f"{new.slice} is offered until {new.until - world.now:.0f} s from now")
        holder = (place.job, place.attempt) if old is None else (old.job, old.attempt)
        if holder != key or (old is not None and new.epoch != old.epoch):
            raise Violation(f"{new.slice} is offered by {key} in epoch {new.epoch}, and {holder} had it")
        if self._dirty(place, new.epoch):
            raise Violation(f"{new.slice} is offered, and {self._dirty(place, new.epoch)} are not clean")
        world.reached.add(f"a slice was offered in epoch {min(new.epoch, 2)}")
        if verdict.kind != wire.COMMITTED:
            how = "a trial was pruned" if verdict.cause == wire.CANCELLED else "a failure of the program"
            world.reached.add(f"a slice was offered after {how}")
        if place.hosts > 1:
            world.reached.add("a slice of several hosts was offered")
        place.offered = new.until
        if new.until + SPARE > place.intent.deadline:
            world.reached.add("an offer lasted longer than the deadline that was armed first")
        self.ground.befall_later(place)
        self.told_offer(new.until)
        self._bound(place, new.until + SPARE)
        world.at(new.until + UNTAKEN, lambda: self._check_taken_or_gone(place, new))

    def _dirty(self, place: KeptPlace, epoch: int) -> list[str]:
        return [box.name for box in place.hosts_of() if not box.dead and box.epoch <= epoch and box.clean != epoch]

    def _bound(self, place: KeptPlace, latest: float) -> None:
        """Some time after an offer ended, or a deadline: whoever died, the slice is gone."""

        def check() -> None:
            if place.gone or self.world.suspended or self.world.now < place.latest:
                return
            armed = [box.name for box in place.hosts_of() if box.armed and not box.broken]
            if armed:
                raise Violation(f"{place.name} is there long after its time, and {armed} do not delete it")

        place.latest = max(latest, self.world.now) + BOUND
        self.world.at(place.latest, check)

    def _on_claim(self, old: Lease, new: Lease) -> None:
        world, key, task = self.world, (new.job, new.attempt), self.world.current
        place, plan = self.places[new.slice], self.of_job[new.job].plan
        assert task is not None
        held_up = not self.steady or world.suspended
        intent = world.records.get(names.intent(*key))
        promised = {} if intent is None else wire.decode(intent.data)["placement"].get("lease") or {}
        if (promised.get("slice"), promised.get("epoch")) != (new.slice, new.epoch):
            raise Violation(f"{key} claims epoch {new.epoch} of {new.slice}, and its intent promised {promised}")
        if new.epoch != old.epoch + 1 or (new.slice, new.epoch) in self.claims:
            raise Violation(f"{key} claims epoch {new.epoch} of {new.slice} after epoch {old.epoch}")
        if plan.keep is None or place.plan.slice != plan.slice:
            raise Violation(f"{key} claims {new.slice}, which is none for it")
        if world.now > old.until + STALE and not held_up:
            raise Violation(f"{key} claims {new.slice} {world.now - old.until:.0f} s after its time")
        if new.last and world.now + self.ground.longest(plan) > new.last + STALE and not held_up:
            raise Violation(f"{key} claims {new.slice}, which does not last for so long")
        orders = new.orders_for_hosts(place.key)
        if orders is None or (orders["job"], orders["attempt"]) != key:
            raise Violation(f"{key} claims {new.slice} with orders that its hosts cannot read: {orders}")
        verdict = world.records.get(names.verdict(*key))
        if verdict is not None and verdict.updated < task.look_began:
            raise Violation(f"{key} claims {new.slice}, and {task.name} could see its verdict")
        self.claims[new.slice, new.epoch] = key
        self.ground.old_claims[new.slice] = new.encode()
        self.ground.truth(*key).harm |= place.harm
        world.reached.add("a slice was claimed")
        world.reached.add(
            "a retry claimed its own slice" if old.job == new.job else "a job claimed the slice of another"
        )
        if new.epoch > 1:
            world.reached.add("a slice was claimed more than once")
        if place.last:
            world.reached.add("a slice that does not last for ever was claimed")
        self._bound(place, new.until)
        self.told_claim(place)

    def _on_end(self, old: Lease | None, new: Lease) -> None:
        world, task = self.world, self.world.current
        assert task is not None
        who = task.name.split()[0]
        if old is not None and old.state == CLAIMED and new.slice in (self.forged | self.forced):
            self.ground.truth(old.job, old.attempt).harm.add("released by force, or forged")
        if old is None and who not in ("host", "reap", "release"):
            self._check_awaited(new, task)
        if old is None or new.slice in self.forged:
            return
        if old.state == FREE and who == "host" and world.now > old.until and not task.name.endswith("/0"):
            world.reached.add("another host ended what host 0 had offered")
        if old.state == CLAIMED:
            if any(box.place.name == old.slice for box in self.running):
                world.reached.add("a lease was ended while a program ran")
            place, key = self.places[old.slice], (old.job, old.attempt)
            world.at(world.now + STOPPED, lambda: self._check_stopped(place, key))
        if new.slice in self.forced:
            return
        key, place, now = (old.job, old.attempt), self.places[old.slice], world.now
        verdict, record = self.verdicts.get(key), world.records.get(names.verdict(*key))
        excused = bool(place.harm) or world.suspended or not self.steady or self.cut_off
        if old.state == CLAIMED and verdict is None and who != "host" and now < old.until + SPARE:
            raise Violation(f"{task.name} ends the lease of {old.slice}, which {key} holds")
        if old.state == CLAIMED and verdict is None and who == "host" and not excused:
            raise Violation(f"{task.name} ends the lease of {old.slice} at work")
        if old.state == CLAIMED and record is not None and who not in ("host", "reap", "release") and not excused:
            self._check_awaited(old, task)
        if old.state == FREE and who not in ("host", "reap", "release"):
            raise Violation(f"{task.name} ends the lease of {old.slice}, which is free")
        if old.state == FREE and who == "host" and now < old.until - 1.0 and not excused:
            raise Violation(f"{task.name} ends the offer of {old.slice} too early")
        if old.state == FREE and who == "reap" and now < old.until + SPARE - 1.0:
            raise Violation(f"{task.name} ends the offer of {old.slice} too early")
        world.reached.add(f"{who if who in ('host', 'reap', 'release') else 'a follower'} ended a lease: {old.state}")

    def _check_awaited(self, lease: Lease, task: Task) -> None:
        """Check that no follower ends what the hosts of an attempt are about to offer."""
        key, now = (lease.job, lease.attempt), self.world.now
        record = self.world.records.get(names.verdict(*key))
        if record is None or not self._may_be_offered(key) or self.world.suspended or not self.steady:
            return
        if now - record.updated < OFFERED and record.updated < task.look_began:
            raise Violation(f"{task.name} ends the lease of {lease.slice}, whose hosts are about to offer it")

    def _check_taken_or_gone(self, place: KeptPlace, lease: Lease) -> None:
        """Some time after the end of an offer: a host that is well has seen to the end of its slice."""
        record = self.world.records.get(names.lease(place.name))
        now = None if record is None else Lease.decode(record.data)
        if now is None or (now.state, now.epoch) != (FREE, lease.epoch) or place.gone or self.world.suspended:
            return
        well = [box.name for box in place.hosts_of() if not box.dead]
        if well and not self.cut_off:
            raise Violation(f"nobody has taken {place.name} in time, and {well} do not delete it")

    def _check_stopped(self, place: KeptPlace, key: tuple[str, int]) -> None:
        left = [box.name for box, of in self.running.items() if box.place is place and of == key and not box.dead]
        if left and not self.ground.host_odds.error and not self.world.suspended:
            raise Violation(f"{left} work on, {STOPPED:.0f} s after their lease was lost")

    # ---- slices and programs -----------------------------------------------------------------------------

    def on_made(self, place: KeptPlace, plan: Plan) -> None:
        self.places[place.name] = place
        place.plan = plan
        self._bound(place, place.intent.deadline)

    def on_delete_of(self, place: KeptPlace, by: str) -> None:
        world = self.world
        record = world.records.get(names.lease(place.name))
        lease = None if record is None else Lease.decode(record.data)
        if by.startswith("deadline"):
            if lease is None or place.harm - {"deadline"} or world.suspended or place.name in self.forged:
                return
            latest = lease.until + (SPARE if lease.state == FREE else 0.0)
            if lease.state != ENDED and world.now < latest - 1.0:
                raise Violation(f"{by} deletes {place.name}, which is {lease.state}, {latest - world.now:.0f} s early")
            return
        if lease is None and not self._may_be_offered((place.job, place.attempt)):
            return
        if lease is None and by == f"host {place.name}/0":  # who alone could offer it
            return
        if (lease is None or lease.state != ENDED) and self.cut_off:
            world.reached.add("a host deleted its slice, and could not tell the store")
        elif lease is None or lease.state != ENDED:
            raise Violation(f"{by} deletes {place.name}, whose lease is {lease and lease.state}")

    def _may_be_offered(self, key: tuple[str, int]) -> bool:
        verdict = self.verdicts.get(key)
        ended_well = verdict is not None and (
            verdict.kind == wire.COMMITTED
            or (verdict.kind == wire.ABORTED and verdict.cause == wire.USER)
            or (verdict.kind == wire.ABORTED and verdict.cause == wire.CANCELLED and self._was_pruned(key[0]))
        )
        return ended_well and self.keep_of(key[0]) > 0.0

    def _was_pruned(self, job: str) -> bool:
        cancel = self.world.records.get(names.cancel(job))
        return cancel is not None and wire.decode(cancel.data).get("leaves") is True

    def on_program(self, box: KeptBox) -> None:
        place = box.place
        for other, key in self.running.items():
            if other.place is place and key != box.serves and other.task is not None and not other.task.dead:
                raise Violation(f"{box.name} begins the program of {box.serves} beside that of {key}")
        if box.epoch and self.claims.get((place.name, box.epoch)) != box.serves:
            raise Violation(f"{box.name} begins the program of {box.serves}, which has no claim of epoch {box.epoch}")
        for other in place.hosts_of():
            if other.epoch < box.epoch and other.clean != other.epoch and not other.dead:
                raise Violation(f"{box.name} begins a program, and {other.name} is not clean")
        self.running[box] = box.serves
        if box.epoch:
            self.world.reached.add("a program ran on a kept slice")

    def on_next(self, box: KeptBox, before: int) -> None:
        """A host goes on to an attempt, after one of the epoch `before`."""
        if box.epoch <= before:
            raise Violation(f"{box.name} has seen epoch {before}, and obeys a claim of epoch {box.epoch}")

    def on_program_end(self, box: KeptBox) -> None:
        if self.running.pop(box, None) is not None and box.epoch and self.world.now > box.place.offered + SPARE:
            self.world.reached.add("a program ran longer than the offer of its slice would have lasted")

    def _justified(self, job: str, attempt: int, verdict: wire.Verdict) -> bool:
        task = self.world.current
        if verdict.kind == wire.CLOSED and verdict.cause == wire.INTERNAL:  # its claim was lost
            self.world.reached.add("a claim was lost")
            taken = json.loads(self.world.records[names.intent(job, attempt)].data)["placement"].get("lease") or {}
            for slice_, lease, _ in self._leases():
                if slice_ == taken.get("slice"):
                    self._check_lost((job, attempt), lease, taken["epoch"], verdict.reason)
            return True
        if "lease" in verdict.reason and verdict.cause == wire.INFRASTRUCTURE and task is not None:
            place = next((one.place for one in self.ground.boxes() if one.serves == (job, attempt)), None)
            return place is not None
        return super()._justified(job, attempt, verdict)

    def _check_lost(self, key: tuple[str, int], lease: Lease, epoch: int, reason: str) -> None:
        """Check that an attempt which gives up its slice had claimed it, or could not: what becomes of hosts is no
        matter of who has not claimed them."""
        if key in self.claims.values() or lease.slice in self.forged:
            return
        if not any(told in reason for told in NOT_HAD):
            raise Violation(f"{key} gives up {lease.slice}, which it never claimed: {reason}")
        if lease.state == FREE and lease.epoch >= epoch:
            self.world.reached.add("a claim was lost whose slice is free again")
        task, place = self.world.current, self.places[lease.slice]
        assert task is not None
        is_free = lease.state == FREE and lease.epoch < epoch and self.world.now < lease.until - STALE
        if is_free and not place.gone and self._has_key(place, task):
            raise Violation(f"{task.name} gives up {lease.slice} for {key}, which it could claim: {reason}")


class LeaseSchedule(Schedule):
    """Everything that one seed draws."""

    option = " --leases"
    kind_of_judge: type[LeaseJudge] = LeaseJudge
    kind_of_backend: type[KeptBackend] = KeptBackend

    def __init__(self, seed: int, worlds: list[World]) -> None:
        world = self.world = World(seed)
        worlds[:] = [world]
        draw = world.random
        self.ground = ground = KeptGround(world)
        limits = Limits(
            provision=draw.choice((150.0, 300.0)),
            run=draw.choice((60.0, 300.0, 300.0)),
            stall=draw.choice((None, 20.0)),
        )
        retry = Retry(user=draw.choice((0, 1)), preemption=100, infra=draw.choice((1, 3)))
        shapes = draw.choice(((SLICES[0],), (SLICES[1],), (SLICES[2],), (SLICES[2],), (SLICES[0], SLICES[2])))
        self.wants = [
            Want(
                Identity("test", "simulation", f"{seed}-{number}"),
                self._plan(Plan(
                    name=f"job{number}", slice=draw.choice(shapes), backend="kept", store="gs://simulated/kept",
                    deployment="test", limits=limits, retry=retry, project=PROJECT, zones=(ZONE,),
                    keep=draw.choice((60.0, 300.0, 300.0, 600.0, 600.0, 0.0, None)),
                )),
            )
            for number in range(draw.choice((2, 4, 6, 8)))
        ]  # fmt: skip
        self.plan, self.identity = self.wants[0].plan, self.wants[0].identity
        ground.plan = self.plan
        self._draw_faults()
        self.pace = draw.choice((2.0, 10.0))
        self.healed = world.now + draw.choice((200.0, 900.0, 3500.0)) * draw.random()
        self.orphaned = draw.random() < 0.2
        self.judge: LeaseJudge = self.kind_of_judge(world, ground, self.wants)  # type: ignore[assignment]
        self.judge.orphaned, self.judge.steady = self.orphaned, not self.odds.stall
        self.judge.trusts, self.judge.told_offer = self.trusts, self._on_offer
        self.judge.told_claim = self._on_claim
        self.judge.cut_off = ground.host_odds.error > 0.0
        world.on_write, world.on_delete = self.judge.on_write, self.judge.on_delete
        self.clients = self.staging = 0
        self.followed = set()
        self._people()

    def _plan(self, plan: Plan) -> Plan:
        """Return the plan of a job, for which more may be drawn."""
        return plan

    def _draw_faults(self) -> None:
        ground, draw = self.ground, self.world.random
        ground.harm = draw.choice((0.0, 0.0, 0.3))
        ground.idle_harm = draw.choice((0.0, 0.3, 0.8))
        ground.doubt, ground.slow = draw.choice((0.0, 0.0, 0.1)), draw.choice((0.0, 0.2))
        ground.lost = draw.choice((0.0, 0.1, 0.3))
        ground.user_failure = draw.choice((0.0, 0.0, 0.5))
        ground.refusal = draw.choice((0.0, 0.0, 0.2))
        signing_key = draw.choice(("", "", "a signing key"))
        self.trusts = {machine: home(machine, signing_key) for machine in ("here", "elsewhere")}
        ground.flex = draw.choice((0.0, 0.0, 0.5))
        ground.slow_orders = draw.choice((0.0, 0.0, 0.3))
        self.forges = draw.choice((0.0, 0.0, 0.0, 0.0, 0.3))
        if float(self.plan.limits.run or 0.0) >= 300.0 and draw.random() < 0.8:
            ground.durations = (5.0, 50.0, 200.0, 200.0)
        ground.poll = draw.choice((1.0, 4.0))
        self._draw_odds()

    # ---- who takes part ----------------------------------------------------------------------------------

    def _people(self) -> None:
        world, draw = self.world, self.world.random
        late = draw.choice((0, 1, 3, 3))
        left, self.late = self.wants[late:], self.wants[:late]
        at_once = draw.random() < 0.4
        while left:
            pipeline = [left.pop() for _ in range(min(len(left), draw.choice((1, 2, 3))))]
            when = 150.0 if at_once and left else draw.choice((0.0, 30.0, 400.0)) * draw.random()
            for _ in range(draw.choice((1, 1, 2))):
                machine = draw.choice(("here", "here", "here", "elsewhere"))
                self._client(self._named("pipeline", self._pipeline, pipeline), when + draw.random() * 5.0, machine)
        for _ in range(draw.choice((0, 1, 1))):
            want = draw.choice(self.wants)
            self._client(self._named("cancel", self._cancel_one, want), draw.uniform(5.0, 400.0))
        for _ in range(draw.choice((0, 1, 3, 6))):
            self._client(self._reap, draw.uniform(50.0, 3000.0))
        for _ in range(draw.choice((0, 0, 1, 2))):
            self._client(self._release, draw.uniform(50.0, 900.0))
        if draw.random() < 0.25:
            world.at(world.now + draw.uniform(60.0, 600.0), self._forge)
        if draw.random() < 0.1:
            world.at(world.now + draw.uniform(1.0, 300.0), lambda: world.suspend(draw.choice((60.0, 7200.0))))
        world.at(self.healed, self._heal)

    def _on_offer(self, until: float) -> None:
        """Somebody comes for what is offered: several at once, or one at the last moment."""
        world, draw = self.world, self.world.random
        if draw.random() < self.forges:
            world.at(world.now + draw.uniform(1.0, 30.0), self._forge)
        if not self.late or draw.random() < 0.3:
            return
        if draw.random() < 0.5:
            when = draw.random() * 20.0
            for want in self.late:
                self._client(self._named("pipeline", self._pipeline, [want]), when + draw.random())
            self.late = []
        else:
            left = draw.choice((2.0 + 3.0 * draw.random(), 5.0 + 20.0 * draw.random()))
            when = max(0.0, until - world.now - left)
            self._client(self._named("pipeline", self._pipeline, [self.late.pop()]), when)
        for _ in range(draw.choice((0, 0, 0, 3))):
            self._client(self._release, when + draw.random() * 6.0)

    def _on_claim(self, place: KeptPlace) -> None:
        """While a slice serves an attempt, the reaper comes, above all once it is older than its labels say, or somebody
        wants it gone."""
        draw = self.world.random
        late = self.world.now - place.intent.deadline
        if late > 0.0 or draw.random() < 0.1:
            self._client(self._reap, draw.uniform(2.0, 80.0))
        if late > 0.0:
            self._client(self._reap, max(0.0, reaper.EXPIRED - late) + draw.uniform(2.0, 40.0))
        if draw.random() < 0.2:
            self._client(self._named("release", self._end_one, place.name), draw.uniform(2.0, 60.0))

    @staticmethod
    def _named(name: str, main: Callable[..., object], *what: Any) -> Callable[[Task], object]:
        def act(task: Task) -> object:
            return main(task, *what)

        act.__name__ = name
        return act

    def _heal(self) -> None:
        world = self.world
        world.note("healed")
        self.judge.healed = world.now
        self.ground.calm, self.ground.lost = True, 0.0
        self.ground.host_odds = self.odds = Odds(delay=0.02)
        for task in world.tasks:
            task.odds = self.odds
        world.limits = (world.now + self.patience, world.requests + REQUESTS * (2 + len(self.wants)))
        if not self.orphaned:
            for want in self.wants:
                self._client(self._named("pipeline", self._pipeline, [want]), 1.0 + world.random.random() * 60.0)

    # ---- what they do ------------------------------------------------------------------------------------

    def _place(self, task: Task) -> tuple[SimulatedStore, KeptBackend]:  # type: ignore[override]
        store = LeaseStore(self.world, lambda: self.ground.lost)
        return store, self.kind_of_backend(self.ground, task.machine)

    def _opened(self, task: Task, job: str) -> Job:
        store, backend = self._place(task)
        return open_job(job, store, backend, self.trusts[task.machine])

    def _pipeline(self, task: Task, wants: list[Want]) -> None:
        """A run of an orchestrator: one step after the other."""
        for want in wants:
            while True:
                try:
                    outcome = self._followed(self._launched_one(task, want), task)
                    break
                except self.failures:
                    self.world.sleep(5.0)
            if outcome.status is not JobStatus.SUCCEEDED:
                return

    def _launched_one(self, task: Task, want: Want) -> Job:
        (store, backend), trust = self._place(task), self.trusts[task.machine]
        job, is_new = launch.claim(store, backend, want.identity, trust)
        written = None
        if is_new:
            self.world.sleep(self.world.random.random() * 3.0)
            written = launch.admit(store, job, want.identity, want.plan, STAGED, trust)
        launched = open_job(job, store, backend, trust, written=written)
        launch.provision(launched, is_new=written is not None)
        return launched

    def _cancel_one(self, task: Task, want: Want) -> None:
        try:
            job = job_id_of(want.identity, max(1, want.generation))
            leaves = job.endswith(
                tuple("01234567")
            )  # as a search does with a bad trial; no draw, which moves all others
            actions.cancel(self._opened(task, job), "enough", task.name, leaves=leaves)
            self.world.reached.add("a job was pruned" if leaves else "a job was cancelled")
        except (*self.failures, JobNotFound):
            pass

    def _release(self, task: Task) -> None:
        """Somebody wants no idle slice any longer."""
        store, _ = self._place(task)
        try:
            for entry in list(store.list(names.SLICES)):
                if entry.name.endswith("/lease.json"):
                    slice_ = entry.name.split("/")[1]
                    self._release_one(task, slice_)
        except (StoreError, Unreachable):
            pass

    def _release_one(self, task: Task, slice_: str) -> None:
        store, backend = self._place(task)
        draw, why = self.world.random, "nobody needs it"
        if draw.random() < 0.5:
            return
        force = draw.random() < 0.3
        if force:
            self.judge.forced.add(slice_)
        freed = release_slice(store, backend, slice_, why, writer=task.name, force=force)
        self.world.note("released", slice_, freed.value, force)
        self.world.reached.add(f"somebody released a slice{' by force' if force else ''}: {freed.value}")

    def _end_one(self, task: Task, slice_: str) -> None:
        """Somebody releases a slice by force, and is killed before it is deleted."""
        store, _ = self._place(task)
        self.judge.forced.add(slice_)
        try:
            leases.end(store, slice_, "it is wanted", writer=task.name, now=store.now(), may=lambda _: True)
            self.world.reached.add("a lease was ended, and its slice was left")
        except (StoreError, Unreachable):
            pass

    def _forge(self) -> None:
        """Somebody who can write to the store, and has no key, writes a claim; or writes an old one again."""
        world = self.world
        for name, record in list(world.records.items()):
            if not name.endswith("/lease.json"):
                continue
            lease = Lease.decode(record.data)
            if lease.state != FREE:
                continue
            old = self.ground.old_claims.get(lease.slice) if world.random.random() < 0.5 else None
            want = world.random.choice(self.wants)
            forged = lease.claimed(
                job_id_of(want.identity, 1), 1, deadline=world.now + 900.0, origin={}, writer="forger", now=world.now
            )
            spec = world.records.get(names.spec(forged.job))
            known = {"spec": digest.of_bytes(spec.data)} if spec is not None else {}
            orders = {
                **self.judge.places[lease.slice].orders,
                "job": forged.job,
                "attempt": 1,
                "boot": "forged",
                **known,
            }
            self.judge.forging = True
            world.write(name, old or forged.with_orders(orders, "another key").encode())
            self.judge.forging = False
            world.note("forged", name, "an old claim" if old else "a new claim")
            world.reached.add("an old claim was written again" if old else "a claim was forged")

    def _reap(self, task: Task) -> None:
        store, backend = self._place(task)
        for slice_, lease, _ in self.judge._leases():
            place = self.judge.places[slice_]
            is_old = lease.state == CLAIMED and self.world.now > place.intent.deadline + reaper.EXPIRED
            if is_old and (lease.job, lease.attempt) not in self.judge.verdicts and not place.gone:
                self.world.reached.add("the reaper met a slice at work, whose labels have a deadline in the past")
        try:
            for reaped in reaper._placements(store, backend, dry_run=False, believed=self.trusts[task.machine]):
                self.world.note("reaped", *reaped)
                self.world.reached.add(f"the reaper released a placement: {reaped.why}")
        except (StoreError, Unreachable):
            pass

    def _ask_all(self, task: Task) -> None:
        for job in list(self.judge.created):
            self._followed(self._opened(task, job), task)

    # ---- to the end --------------------------------------------------------------------------------------

    def run(self) -> None:
        world = self.world
        world.run()
        if self.ground.living:
            raise Violation(f"hosts live for ever: {sorted(task.name for task in self.ground.living)}")
        for machine in ("here", "elsewhere"):
            self._later(reaper.UNCLAIMED + 1.0, self._reap, machine)
        self._later(reaper.UNCLAIMED + 1.0, self._reap)
        self._nothing_left()
        self._later(DAY, self._ask_all)
        for _ in range(2):
            self._later(reaper.UNCLAIMED + 1.0, self._reap)
        self._nothing_left()
        over = {job for job, outcome in self.judge.outcomes.items() if outcome.status is not JobStatus.PENDING}
        if missing := set(self.judge.created) - over:
            raise Violation(f"these jobs never end: {sorted(missing)}")
