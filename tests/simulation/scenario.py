"""One seed, one schedule: who does what and what goes wrong, and the promises that must hold at every moment.

Clients run the real `launch`, `actions`, `look` and `Follower`; the judge sees every record that is written and every
outcome that anybody is told.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kinetic_orchestration.errors import JobNotFound, StoreError, TooBig
from kinetic_orchestration.jobs import launch, lifecycle
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import Job, open_job
from kinetic_orchestration.jobs.trust import ALONE, Trust
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import accelerators
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.identity import job_id as job_id_of
from kinetic_orchestration.plan.values import Cursor, JobStatus, Limits, Outcome, Plan, Retry, Staged
from kinetic_orchestration.protocol import attempt_rules, names, wire
from tests.simulation.edges import simulated_edges
from tests.simulation.slices import Ground, Place, SimulatedBackend
from tests.simulation.world import Odds, SimulatedStore, Task, Unreachable, Violation, World

SLICES = [accelerators.parse(name) for name in ("v5e-4", "v5e-8", "v5e-16")]
STAGED = Staged(None, "", "", (), (), (), (), None, "")
PATIENCE = 8 * 3600.0  # a healed world ends within this much of its time
REQUESTS = 10_000  # and within so many requests
DAY = 86_400.0
HEARD_WITHIN = 10.0  # of a beat: a host may look, and be held up before it writes what follows

# What a cause is counted under; all others end a job at once. Not the table of the code under test.
BUDGETS = {wire.USER: "user", wire.PREEMPTION: "preemption", wire.INFRASTRUCTURE: "infra", wire.STALL: "infra"}

FREE = (wire.STOCKOUT, wire.QUOTA, wire.INTERNAL)  # of attempts that never had hosts


class Judge:
    """Sees every write, and says when a promise is broken."""

    free: tuple[str, ...] = ()  # causes after which another attempt may follow at no cost

    def __init__(self, world: World, ground: Ground, plan: Plan, identity: Identity) -> None:
        self.world, self.ground, self.plan, self.identity = world, ground, plan, identity
        self.verdicts: dict[tuple[str, int], wire.Verdict] = {}
        self.intents: dict[tuple[str, int], float] = {}
        self.movers: dict[tuple[str, int], str] = {}  # where those are who intended an attempt
        self.created: dict[str, float] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.owner_beats: dict[str, float] = {}
        self.back: dict[str, float] = {}  # owners who had been silent for long
        self.heard_within = HEARD_WITHIN
        self.generation = 0
        self.orphaned = False
        self.healed = float("inf")
        self.reborn: set[str] = set()  # asked for again in the very moment of being forgotten: its result may miss

    def on_write(self, name: str, data: bytes) -> None:
        parts = name.split("/")
        if parts[0] == "beats":
            self.ground.truth(parts[1], int(parts[2])).beats.setdefault(int(parts[3]), []).append(self.world.now)
        elif name.endswith("/verdict.json"):
            self._on_verdict(parts[1], int(parts[3]), wire.Verdict.decode(data))
        elif name.endswith("/intent.json"):
            self._on_intent(parts[1], int(parts[4]))
        elif name.endswith("/owner.json"):
            self._hear_owner(parts[1])
        elif parts[0] == "identities":
            self._on_generation(json.loads(data)["generation"])
        elif name.endswith("/spec.json"):
            if name in self.world.records:
                raise Violation(f"{parts[1]} has two specs")
            self.created[parts[1]] = self.world.now
            if names.verdict(parts[1], 1) in self.world.records:
                self.reborn.add(parts[1])

    def _hear_owner(self, job: str) -> None:
        """One who was silent for long enough, and is back at the last moment, is heard too late."""
        awake = self.world.now - self.world.suspended
        if awake - self.owner_beats.get(job, awake) > attempt_rules.OWNER_PATIENCE:
            self.back[job] = awake
        self.owner_beats[job] = awake

    def on_delete(self, name: str) -> None:
        if name.endswith("/attempts/1/verdict.json"):  # the last trace of a job: its name may be used again
            job = name.split("/")[1]
            for known in (self.verdicts, self.intents, self.ground.truths):
                for key in [key for key in known if key[0] == job]:
                    del known[key]
            self.created.pop(job, None)
            self.outcomes.pop(job, None)

    def _on_generation(self, generation: int) -> None:
        """A job is only followed by another one of its identity when it has failed, or is forgotten."""
        if generation <= self.generation:
            raise Violation(f"generation {generation} follows generation {self.generation}")
        self.generation = generation
        latest, requests = self.world.limits
        self.world.limits = (latest, requests + REQUESTS)  # it is one more job, of which each of its hosts asks
        previous = job_id_of(self.identity, generation - 1)
        if names.spec(previous) not in self.world.records:
            return
        last = max(attempt for job, attempt in self.verdicts if job == previous)
        cause, cancel = self.verdicts[previous, last].cause, self.world.records.get(names.cancel(previous))
        anew = cancel is not None and wire.decode(cancel.data).get("anew")  # by the reaper: its step may ask again
        if not cause or (cause == wire.CANCELLED and not anew):
            raise Violation(f"{previous} has not failed, and generation {generation} follows it")

    def _on_intent(self, job: str, attempt: int) -> None:
        self.world.note("intent", job, attempt)
        if names.intent(job, attempt) in self.world.records:
            raise Violation(f"attempt {attempt} of {job} has two intents")
        self.intents[job, attempt] = self.world.now
        if self.world.current is not None:
            self.movers[job, attempt] = self.world.current.machine
        if job in self.outcomes and attempt > self.outcomes[job].attempt:
            raise Violation(f"attempt {attempt} of {job} is intended after its outcome was told")
        cancel, task = self.world.records.get(names.cancel(job)), self.world.current
        if cancel is not None and task is not None and cancel.updated < task.look_began:
            raise Violation(f"{task.name} intends attempt {attempt} of {job}, whose cancel it could see")
        if (job, attempt) in self.verdicts:
            self.world.reached.add("a stale intent after the verdict")
        self._may_follow(job, attempt)

    def _may_follow(self, job: str, attempt: int) -> None:
        """An attempt needs a verdict before it that leaves something of its budget."""
        for number in range(1, attempt):
            verdict = self.verdicts.get((job, number))
            if verdict is None or verdict.cause not in (*BUDGETS, *self.free):
                raise Violation(f"attempt {attempt} of {job} follows {verdict}")
        for budget, left in self._left(job, attempt - 1).items():
            if left < 0:
                raise Violation(f"attempt {attempt} of {job} exceeds the {budget} budget")

    def _left(self, job: str, attempt: int) -> Counter[str]:
        """The rest of each budget, after that many attempts."""
        left = Counter({budget: getattr(self.plan.retry, budget) for budget in ("user", "preemption", "infra")})
        causes = [self.verdicts[job, number].cause for number in range(1, attempt + 1)]
        left.subtract(BUDGETS[cause] for cause in causes if cause not in self.free)
        return left

    def _on_verdict(self, job: str, attempt: int, verdict: wire.Verdict) -> None:
        world = self.world
        world.note("verdict", job, attempt, verdict.kind, verdict.cause, verdict.host, verdict.reason)
        if (job, attempt) in self.verdicts:
            raise Violation(f"attempt {attempt} of {job} has two verdicts")
        self._may_follow(job, attempt)
        self.verdicts[job, attempt] = verdict
        cancelled = names.cancel(job) in world.records
        if verdict.kind == wire.COMMITTED:
            self._on_commit(job, attempt, verdict)
            if cancelled:
                world.reached.add("a commit was faster than a cancel")
            if attempt > 1:
                world.reached.add(f"attempt {min(attempt, 3)} committed")
            return
        if verdict.kind == wire.CLOSED:
            world.reached.add(f"closed by a client: {verdict.cause}")
            self._check_place(job, attempt, verdict.unplaced)
            if (job, attempt) not in self.intents:
                world.reached.add(f"closed without an intent: {verdict.cause}")
        else:
            world.reached.add(f"aborted: {verdict.cause}")
        if not self._justified(job, attempt, verdict):
            raise Violation(f"attempt {attempt} of {job} was ended for no reason: {verdict}")

    def _check_place(self, job: str, attempt: int, unplaced: bool) -> None:
        """Check what a verdict records of its attempt's place: attempts are counted by it, even if an intent is written
        later."""
        intent, task = self.intents.get((job, attempt)), self.world.current
        assert task is not None
        if unplaced and intent is not None and intent < min(task.look_began, task.look_called):
            raise Violation(f"{task.name} says that attempt {attempt} of {job} has no place, whose intent it could see")
        if not unplaced and intent is None:
            raise Violation(f"{task.name} says that attempt {attempt} of {job} had a place, which nobody intended")

    def _on_commit(self, job: str, attempt: int, verdict: wire.Verdict) -> None:
        truth = self.ground.truth(job, attempt)
        if any(
            number != attempt and other.kind == wire.COMMITTED
            for (name, number), other in self.verdicts.items()
            if name == job
        ):
            raise Violation(f"{job} has two results")
        if job in self.outcomes:
            raise Violation(f"{job} commits after somebody was told {self.outcomes[job]}")
        if [truth.exits.get(number) for number in range(self.plan.hosts)] != [0] * self.plan.hosts:
            raise Violation(f"{job} commits attempt {attempt} whose hosts ended with {truth.exits}")
        if verdict.digest not in truth.values:
            raise Violation(f"{job} commits a value that its program did not return")

    def without_hosts_since(self, job: str, attempt: int) -> float:
        """The time since which the job is known to have been waiting for hardware."""
        while attempt > 1 and self.verdicts[job, attempt - 1].cause in FREE:
            attempt -= 1
        return self.intents.get((job, attempt), self.world.now)

    def _justified(self, job: str, attempt: int, verdict: wire.Verdict) -> bool:  # noqa: PLR0911 - a table
        """Return True if the world did to this attempt what its verdict states."""
        truth, world, limits = self.ground.truth(job, attempt), self.world, self.plan.limits
        intent, cause = self.intents.get((job, attempt)), verdict.cause
        if cause == wire.CANCELLED and "owner" in verdict.reason:
            awake = world.now - world.suspended
            late = awake - self.back.get(job, 0.0) < self.heard_within
            world.reached.add("a job ended with its owner")
            return late or awake - self.owner_beats.get(job, 0.0) > attempt_rules.OWNER_PATIENCE
        if cause == wire.CANCELLED:
            return names.cancel(job) in world.records
        if cause == wire.CONFIGURATION:
            return truth.refused or "unready" in truth.harm
        if cause == wire.USER:
            return any(truth.exits.values())
        if cause == wire.PREEMPTION:
            return any("preempt" in kind for kind in truth.harm)
        if cause == wire.STALL:
            return "stuck" in truth.harm or world.suspended > 0
        if cause == wire.DEADLINE:
            ages = [
                (limits.total, world.now - self.created[job]),
                (limits.provision, world.now - self.without_hosts_since(job, attempt)),
                (limits.run, world.now - intent if intent is not None else 0.0),
            ]
            return any(limit and age > float(limit) for limit, age in ages)
        if verdict.kind == wire.CLOSED and "sign of life" in verdict.reason:
            return self._silent(job, attempt)
        if "did not start within" in verdict.reason:
            return bool(truth.harm) or world.suspended > 0 or self._unnoticed(job, attempt)
        if "was not ready within" in verdict.reason and world.suspended > 0:
            return True  # the clock that the limit goes by went on, as in a paused container; that spends `infra` alone
        return bool(truth.harm - {"deadline", "slow boot", "stuck"})

    def _unnoticed(self, job: str, attempt: int) -> bool:
        """Return True if no process was there to create the hosts that the submitter left out when it died."""
        place = self.ground.places.get(f"{job}-{attempt}")
        return (
            self.orphaned
            or self.world.now - self.healed < 200.0
            or (place is not None and place.machine == "elsewhere")
        )

    def _silent(self, job: str, attempt: int) -> bool:
        """Some host had indeed been silent when the client looked."""
        assert self.world.current is not None
        looked = self.world.current.look_began
        beats = self.ground.truth(job, attempt).beats
        last = [max((when for when in times if when <= looked), default=0.0) for times in beats.values()]
        silent = min(last) if last else self.intents[job, attempt]
        self.world.reached.add("hosts elsewhere were given up")
        return looked - silent > (lifecycle.SILENT_BEATS if last else lifecycle.SILENT_START)

    def told(self, job: str, outcome: Outcome) -> None:
        """Record that a task read the end of a job."""
        world = self.world
        if names.spec(job) not in world.records:
            return  # it was forgotten at this very moment
        world.note("outcome", job, outcome.status.value, outcome.attempt, outcome.cause)
        known = self.outcomes.setdefault(job, outcome)
        if known != outcome:
            raise Violation(f"{job} has two outcomes: {known} and {outcome}")
        committed = [
            number
            for (name, number), verdict in self.verdicts.items()
            if name == job and verdict.kind == wire.COMMITTED
        ]
        if (outcome.status is JobStatus.SUCCEEDED) != bool(committed):
            raise Violation(f"{job} committed {committed}, and somebody was told {outcome}")
        if committed and job not in self.reborn:
            result = world.records.get(names.host(job, outcome.attempt, 0, "result"))
            if result is None or result.data.decode() != outcome.verdict.digest:
                raise Violation(f"the result of {job} is lost")
        if outcome.status is JobStatus.FAILED and outcome.cause in BUDGETS:
            left = self._left(job, outcome.attempt)[BUDGETS[outcome.cause]]
            if left != -1:
                raise Violation(f"{job} was given up with {left + 1} failures of its budget left")
        if outcome.status is JobStatus.FAILED:
            world.reached.add(f"failed: {outcome.cause}")


class Schedule:
    """Everything that one seed draws."""

    option = ""  # by which `python -m tests.simulation` plays such schedules
    believed = ALONE
    failures: tuple[type[Exception], ...] = (StoreError, Unreachable, TooBig)  # of calls, which are made again
    patience, requests = PATIENCE, REQUESTS  # of a healed world

    def __init__(self, seed: int, worlds: list[World]) -> None:
        world = self.world = World(seed)
        worlds[:] = [world]
        draw = world.random
        cloud = draw.random() < 0.4
        self.ground = ground = Ground(world, cloud=cloud)
        self.plan = ground.plan = Plan(
            name="train",
            slice=draw.choice((SLICES[0], SLICES[0], SLICES[1], SLICES[2])),
            backend="simulated" if cloud else "local",  # the one whose hosts are other machines
            store="memory://store",
            deployment="test",
            limits=Limits(
                provision=draw.choice((300.0, 600.0)) if cloud else draw.choice((None, None, 120.0)),
                run=draw.choice((60.0, 300.0)) if cloud else draw.choice((None, None, 40.0)),
                total=draw.choice((None, None, None, None, 60.0, 400.0)),
                stall=draw.choice((None, 20.0)),
            ),
            abort_without_owner=draw.random() < 0.1,
            retry=Retry(user=draw.choice((0, 0, 1)), preemption=draw.choice((0, 1, 100)), infra=draw.choice((0, 1, 3))),
        )
        ground.harm = draw.choice((0.0, 0.5, 1.0))
        if draw.random() < 0.05 and not self.plan.abort_without_owner:
            ground.durations = (5.0, 5.0, 1500.0 / self.plan.slice.hosts)
        ground.user_failure = draw.choice((0.0, 0.0, 0.5))
        ground.refusal = draw.choice((0.0, 0.0, 0.0, 0.2))
        ground.poll = 1.0 if self.plan.abort_without_owner else draw.choice((1.0, 4.0))
        self._draw_odds()
        self.pace = draw.choice((2.0, 10.0))
        self.healed = world.now + draw.choice((30.0, 150.0, 400.0)) * draw.random()
        self.orphaned = draw.random() < 0.2  # no client will come back
        self.again = draw.random() < 0.3  # a failed job is asked for again
        self.identity = Identity("test", "simulation", str(seed))
        self.judge = Judge(world, ground, self.plan, self.identity)
        self.judge.orphaned = self.orphaned
        world.on_write, world.on_delete = self.judge.on_write, self.judge.on_delete
        self.clients = 0
        self.staging = 0
        self.followed: set[tuple[str, str]] = set()  # jobs to their ends, and by whom: on which machine
        self._people()

    # ---- who takes part ----------------------------------------------------------------------------------

    def _draw_odds(self) -> None:
        """Draw how slow and how faulty the calls of hosts and clients are."""
        draw = self.world.random
        busy = draw.choice((0.03, 0.15, 0.4))
        self.ground.host_odds = Odds(delay=busy, error=draw.choice((0.0, 0.0, 0.0, 0.01)))
        self.odds = Odds(
            delay=busy,
            stall=draw.choice((0.0, 0.0, 0.02)),
            error=draw.choice((0.0, 0.0, 0.02)),
            crash=draw.choice((0.0, 0.01, 0.04)),
        )

    def _people(self) -> None:
        world, ground, draw = self.world, self.ground, self.world.random
        for _ in range(draw.choice((1, 1, 2, 3))):
            machine = draw.choice(("here",) * 6 + ("elsewhere",))
            self._client(self._launch, draw.choice((0.0, 1.0, 30.0)) * draw.random(), machine)
        if draw.random() < 0.4:
            self._client(self._attach, draw.uniform(1.0, 60.0), machine=draw.choice(("here", "elsewhere")))
        if draw.random() < 0.2:
            self._client(self._cancel, draw.choice((2.0, 20.0, 60.0)) * draw.random())
        if draw.random() < 0.1:  # somebody cancels at the very end
            ground.on_value = lambda: self._client(self._cancel, draw.random())
        if draw.random() < 0.2:
            self._client(self._reap, draw.uniform(1.0, 100.0))
        if draw.random() < 0.1:
            world.at(world.now + draw.uniform(1.0, 60.0), lambda: world.suspend(draw.choice((60.0, 7200.0))))
        world.at(self.healed, self._heal)

    def _client(self, main: Callable[[Task], object], delay: float, machine: str = "here") -> Task:
        self.clients += 1
        return self.world.spawn(
            f"{main.__name__.lstrip('_')} {self.clients}", main,
            delay=delay, machine=machine, odds=self.odds, skew=self.world.random.uniform(-600.0, 600.0),
        )  # fmt: skip

    def _heal(self) -> None:
        """Stop all faults, and start a client that wants the job."""
        world = self.world
        world.note("healed")
        self.judge.healed = world.now
        self.ground.calm = True
        self.ground.host_odds = self.odds = Odds(delay=0.02)
        for task in world.tasks:
            task.odds = self.odds
        world.limits = (world.now + PATIENCE, world.requests + REQUESTS)
        if not self.orphaned:
            self._client(self._launch, 1.0)
            return
        for when in (600.0, 1200.0):  # other jobs are submitted from these machines
            for machine in ("here", "elsewhere"):
                self._client(self._reap, when, machine)

    # ---- what they do ------------------------------------------------------------------------------------

    def _place(self, task: Task) -> tuple[SimulatedStore, SimulatedBackend]:
        return SimulatedStore(self.world), SimulatedBackend(self.ground, task.machine)

    def _launch(self, task: Task) -> None:
        """A program, or an orchestrator's step: launches, follows, and is started again when it fails."""
        generations = 0
        while True:
            try:
                job = self._launched(task)
                outcome = self._followed(job, task)
            except (*self.failures, JobNotFound):
                self.world.sleep(5.0)
                self._restarted(task)
                continue
            generations += 1
            if outcome.status is not JobStatus.FAILED or not self.again or generations > 2:
                return
            self.world.reached.add("a failed job was asked for again")

    def _restarted(self, task: Task) -> None:
        """A process that is started again has lost its memory of the cloud."""

    def _launched(self, task: Task) -> Job:
        """Launch like launch.launch, without the packing."""
        store, backend = self._place(task)
        job, is_new = launch.claim(store, backend, self.identity, self.believed)
        written = None
        if is_new:
            self.staging += 1
            if self.staging > 1:
                self.world.reached.add("two launchers raced for one identity")
            self.world.sleep(self.world.random.random() * 3.0)
            written = launch.admit(store, job, self.identity, self.plan, STAGED, self.believed)
            self.staging -= 1
        launched = open_job(job, store, backend, self.believed, written=written)
        launch.provision(launched, is_new=written is not None)
        if self.plan.abort_without_owner:
            store.put(names.owner(job), wire.encode({"owner": task.name}))
            self.world.spawn(f"owner {task.name}", lambda _task: self._own(launched, task), delay=5.0)
        return launched

    def _own(self, job: Job, task: Task) -> None:
        """Act as the owner's thread, which ends with its process."""
        while not task.greenlet.dead and job.job_id not in self.judge.outcomes:
            job.store.put(names.owner(job.job_id), wire.encode({"owner": task.name}))
            self.world.sleep(attempt_rules.OWNER_BEAT)

    def _attach(self, task: Task) -> None:
        """A sensor, a trigger or another machine that follows by the job's id."""
        while True:
            job = self._current(task)
            if job is not None:
                self._followed(job, task)
                return
            if self.ground.calm:
                return
            self.world.sleep(5.0)

    def _current(self, task: Task) -> Job | None:
        store, backend = self._place(task)
        trust = self._trust()
        try:
            for generation in (3, 2, 1):
                job = job_id_of(self.identity, generation)
                if store.read(names.spec(job)) is not None:
                    return open_job(job, store, backend, trust)
        except self.failures:
            pass
        return None

    def _trust(self) -> Trust:
        return self.believed

    def _followed(self, job: Job, task: Task) -> Outcome:
        world, draw = self.world, self.world.random
        follower, pace = Follower(job), self.pace
        emit = (lambda _event: None) if draw.random() < 0.1 else None
        while True:
            try:
                outcome = follower.step(emit)
            except (StoreError, Unreachable, TooBig):
                outcome = None
                if draw.random() < 0.5:  # the process was started again, with the cursor that it had kept
                    follower = Follower(job, Cursor.from_json(json.loads(json.dumps(follower.cursor.to_json()))))
            if outcome is not None:
                self.followed.add((job.job_id, task.machine))
                self.judge.told(job.job_id, outcome)
                if draw.random() < 0.2:
                    self._cleaned(job, outcome)
                return outcome
            world.sleep(pace * (0.5 + draw.random()))
            pace = min(60.0, pace * 1.1)

    def _cleaned(self, job: Job, outcome: Outcome) -> None:
        """Release all attempts like JobHandle.cleanup."""
        try:
            for attempt in range(1, outcome.attempt + 1):
                actions.release(job, attempt)
        except (StoreError, Unreachable):
            pass

    def _cancel(self, task: Task) -> None:
        job = self._current(task)
        if job is None:
            return
        try:
            actions.cancel(job, "enough", task.name)
        except StoreError:
            pass
        if self.world.random.random() < 0.5:
            self._followed(job, task)

    def _reap(self, task: Task) -> None:
        store, backend = self._place(task)
        try:
            if self.ground.places:
                self.world.reached.add("the reaper met a placement")
            for reaped in reaper._placements(store, backend, dry_run=False):
                self.world.note("reaped", *reaped)
                self.world.reached.add(f"the reaper released a placement: {reaped.why}")
        except (StoreError, Unreachable):
            pass

    # ---- to the end --------------------------------------------------------------------------------------

    def run(self) -> None:
        world, ground = self.world, self.ground
        world.run()
        if ground.living:
            raise Violation(f"hosts live for ever: {sorted(task.name for task in ground.living)}")
        if ground.places:
            world.reached.add("only the reaper could release")
            stale = "a stale submitter submitted after the verdict" in world.reached
            if not self.orphaned and not stale and any(map(self._was_to_be_freed, ground.places.values())):
                raise Violation(f"left to the reaper: {sorted(ground.places)}")
            for machine in ("here", "elsewhere"):
                self._later(reaper.UNCLAIMED + 1.0, self._reap, machine)
            self._nothing_left()
        if self.orphaned and self.judge.created:
            world.reached.add("a job that everybody had left was asked for later")
        self._later(DAY, self._ask_all)
        for machine in ("here", "elsewhere"):
            self._later(reaper.UNCLAIMED + 1.0, self._reap, machine)
        self._nothing_left()
        self._later(DAY, self._cancel_all)
        if world.random.random() < 0.1:
            self._forget()

    def _was_to_be_freed(self, place: Place) -> bool:
        """Return True if a follower to the job's end was to free the place. A job that failed and has a successor may
        have had no living follower there: a client that asks for its key again follows the successor. And a follower
        that arrives after others, elsewhere, went through many attempts, frees the last two and leaves the rest to the
        reaper.
        """
        newest = place.job == job_id_of(self.identity, self.judge.generation)
        there = any(job == place.job and place.machine in ("", machine) for job, machine in self.followed)
        last = max((attempt for job, attempt in self.judge.verdicts if job == place.job), default=place.attempt)
        mover = self.judge.movers.get((place.job, place.attempt + 1), place.machine)
        late = place.attempt < last - 1 and place.machine not in ("", mover)
        return place.machine != "elsewhere" and (newest or there) and not late

    def _forget(self) -> None:
        """Past their retention, while somebody still lists the jobs; the collector may die in the middle."""
        draw = self.world.random
        for main in (self._ask_all, self._launch):
            if draw.random() < 0.5:
                self._client(main, DAY + draw.choice((0.0, 1.0, 30.0)) * draw.random())
        self.odds = Odds(delay=0.5, crash=0.03)
        self._later(DAY, self._collect)
        self.odds = Odds(delay=0.1)
        self._later(DAY, self._ask_all)
        for _ in range(2):
            self._later(3.0 * DAY, self._collect)
        left = [name for name in self.world.records if name.startswith((names.JOBS, names.BEATS))]
        if self.judge.reborn or self.plan.abort_without_owner:  # it runs again, or its owner's last beat is left
            return
        if left:
            raise Violation(f"never collected: {left}")

    def _collect(self, task: Task) -> None:
        settings = Settings(Path("/simulated"), "memory://store", "test", "simulated", retention=DAY / 4.0)
        for _ in reaper._records(self._place(task)[0], settings, dry_run=False):
            self.world.reached.add("records were collected")

    def _later(self, when: float, main: Callable[[Task], object], machine: str = "here") -> None:
        world = self.world
        world.limits = (world.now + when + self.patience, world.requests + self.requests)
        self._client(main, when, machine)
        world.run()

    def _nothing_left(self) -> None:
        if self.ground.places or self.ground.living:
            raise Violation(f"leaked: {sorted(self.ground.places)} {sorted(task.name for task in self.ground.living)}")

    def _ask_all(self, task: Task) -> None:
        """A day later somebody asks how each job ended; one that everybody had left goes on then."""
        store, backend = self._place(task)
        for job_id in list(self.judge.created):
            try:
                self._followed(open_job(job_id, store, backend, self.believed), task)
            except JobNotFound:
                self.world.reached.add("a job was asked for after it was forgotten")

    def _cancel_all(self, task: Task) -> None:
        """Another day later somebody cancels, and asks again."""
        store, backend = self._place(task)
        for job_id in list(self.judge.created):
            job = open_job(job_id, store, backend, self.believed)
            actions.cancel(job, "too late", task.name)
            self._followed(job, task)


def run(seed: int, worlds: list[World], kind: type[Schedule] = Schedule) -> Schedule:
    """Plays one seed. `worlds` is what `simulated_edges` was given."""
    schedule = kind(seed, worlds)
    schedule.run()
    return schedule


def trace_of(world: World) -> str:
    return "\n".join(
        f"{when - world.trace[0][0]:12.3f}  {who:<24} {' '.join(str(word) for word in what)}"
        for when, who, *what in world.trace
    )


class Failed(AssertionError):
    """A seed that broke a promise, with its trace."""


def command_of(seed: int, kind: type[Schedule]) -> str:
    return f"python -m tests.simulation --seed {seed}{kind.option}"


def play(seed: int, worlds: list[World], *, kind: type[Schedule] = Schedule, lines: int = 400) -> Schedule:
    """Plays one seed and tells everything if a promise is broken."""
    try:
        return run(seed, worlds, kind)
    except (Violation, Exception) as error:
        worlds[0].end()
        told = trace_of(worlds[0]).splitlines()
        left = f"… {len(told) - lines} lines before\n" if len(told) > lines else ""
        raise Failed(
            f"seed {seed}: {type(error).__name__}: {error}\n{left}"
            + "\n".join(told[-lines:])
            + f"\nseed {seed}: {type(error).__name__}: {error}\nTo see it again: {command_of(seed, kind)}"
        ) from error


__all__ = ["Failed", "command_of", "play", "run", "simulated_edges", "trace_of"]
