"""One seed, one schedule of attempts that share chips: who comes when, who dies, and the promises that must hold.

Every process runs the real `capacity.shares`. The judge sees each book that is written and each attempt that gets hosts,
and counts by itself what is held and used.
"""

from __future__ import annotations

import math
from collections import Counter

from kinetic_orchestration.capacity.races import records as races
from kinetic_orchestration.capacity.shares import line, records, rules
from kinetic_orchestration.capacity.shares.rules import Book, Key, Want
from kinetic_orchestration.errors import StoreError
from kinetic_orchestration.plan.configuration.chip_shares import parse
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.wire.lease import CLAIMED, ENDED, FREE, Lease
from tests.simulation.scenario import Schedule
from tests.simulation.world import Odds, SimulatedStore, Task, Violation, World

SKEW = 0.2  # seconds by which processes know the store's time
CHIPS = {"v5e": 1.0, "v5p": 3.5}  # what each counts
SHARES = (
    "v5e=16", "total=16", "v5e=16,user:*=8", "total=32,user:*=16,user:ann=8", "v5e=16,v5p=8,total=40",
    "total=24,pipeline:*=16,pipeline:retrain=24", "v5e=16,total=28,user:*=16,user:bob/v5e=4",
)  # fmt: skip
HALF_LIFE, ENTRY, PATIENCE = 86_400.0, 300.0, 3600.0  # as they are documented
STRANGERS = 55  # who come until after the big one has to have had its turn; the job after them has one attempt
DIES = 900.0  # seconds after its deadline in which the last host has ended itself
SELF_DELETE = 200.0  # seconds after its verdict in which hosts end themselves
GOING = 19.0  # seconds after hosts have said that they go, within which they are gone
LONGEST_LINE = 12 * 3600.0
DAMAGE = b"{"


class Judge:
    """Sees every book, and every attempt that gets hosts."""

    def __init__(self, world: World, shares: str) -> None:
        self.world, self.shares = world, parse("the shares", shares)
        self.held: dict[Key, Want] = {}  # as much of it as is there
        self.losers: dict[Key, Want] = {}  # places of races that have not won, and are there
        self.had: set[Key] = set()
        self.closed: dict[Key, float] = {}  # when their verdicts were written
        self.gone: dict[Key, float] = {}  # since when the loser of a race is said to be
        self.refused: set[Key] = set()
        self.begun: set[Key] = set()
        self.book = Book()
        self.at = 0.0  # of that book
        self.turns: dict[str, tuple[Want, float, float, float]] = {}  # token → want, from, at the earliest to, to
        self.writes: list[float] = []
        self.is_forgotten = False  # what was used before the book was lost

    # ---- the book ----------------------------------------------------------------------------------------

    def on_write(self, name: str, data: bytes) -> None:
        if name.endswith("/intent.json"):
            _, job, _, _, attempt, _ = name.split("/")
            self.begun.add((job, int(attempt)))
        if name.endswith("/verdict.json"):
            _, job, _, attempt, _ = name.split("/")
            self.closed.setdefault((job, int(attempt)), self.world.now)
        if "/gone-" in name:
            _, job, _, _, attempt, _ = name.split("/")
            self.gone.setdefault((job, int(attempt)), self.world.now)
        if name != names.BOOK:
            return
        if data == DAMAGE:
            return
        now, book = self.world.now, records.book_of(data)
        keys = Counter(grant.want.key for grant in book.grants)
        if twice := [key for key, count in keys.items() if count > 1]:
            raise Violation(f"{twice[0]} has two turns")
        tokens = {grant.token: grant for grant in book.grants}
        for token, grant in tokens.items():
            if token not in self.turns:
                self._on_grant(token, grant)
            elif grant.at != self.turns[token][1]:
                raise Violation(f"the turn of {grant.want.key} was decided again")
        for token, (want, since, _, end) in list(self.turns.items()):
            if token not in tokens and end == math.inf:
                self._on_freed(token, want, since)
        self._check_uses(book)
        self._check_pace(now)
        self.book, self.at = book, now

    def _on_grant(self, token: str, grant: rules.Grant) -> None:
        world, want = self.world, grant.want
        world.note("turn", *want.key)
        is_again = self.is_forgotten and want.key in self.begun
        if (
            abs(grant.at - world.now) > 250.0
            and not is_again
            and world.current is not None
            and not world.current.odds.stall
        ):
            raise Violation(f"the turn of {want.key} is stamped {world.now - grant.at:.0f} s ago")
        self.turns[token] = want, grant.at, math.inf, math.inf

    def _on_freed(self, token: str, want: Want, since: float) -> None:
        world = self.world
        if want.key in self.held or want.key in self.losers:
            raise Violation(f"the turn of {want.key} is freed, and its hosts are there")
        world.note("freed", *want.key)
        earliest = self.closed.get(want.key, since)
        self.turns[token] = want, since, min(max(since, earliest), world.now), world.now
        if want.key not in self.had and want.key not in self.closed:
            world.reached.add("a turn was freed that nobody had used")
        elif want.key not in self.closed:
            world.reached.add("a turn was freed at its deadline")

    def on_loss(self) -> None:
        """The book is gone, and with it what everybody has used. Whoever was told of its turn before has it."""
        self.is_forgotten, self.turns = True, {}

    def _check_uses(self, book: Book) -> None:
        """Integrate again what everybody has used, from all turns that ever were."""
        if self.is_forgotten:
            return
        least, most, slack = Counter[str](), Counter[str](), Counter[str]()
        for want, since, earliest, end in self.turns.values():
            at = book.uses.get(want.whose, rules.Use(0.0, self.world.now)).at
            whose, chips = want.whose, want.chips * CHIPS[want.generation]
            entry = chips * ENTRY * 0.5 ** (max(0.0, at - since) / HALF_LIFE)
            least[whose] += entry + chips * _faded(since, min(at, earliest), at)  # type: ignore[assignment]
            most[whose] += entry + chips * _faded(since, min(at, end), at)  # type: ignore[assignment]
            gone = min(self.gone.get(want.key, math.inf), self.closed.get(want.key, math.inf))
            given_back = chips - chips / want.places
            least[whose] -= given_back * _faded(max(gone, since), min(at, earliest), at)  # type: ignore[assignment]
            slack[whose] += chips * 10 * SKEW + 2.0  # type: ignore[assignment]
        for whose in least:
            used = book.uses.get(whose, rules.Use(0.0, self.world.now)).used
            if not least[whose] * 0.99 - slack[whose] <= used <= most[whose] * 1.01 + slack[whose]:
                raise Violation(
                    f"{whose} has used {least[whose]:.0f} to {most[whose]:.0f}, and the book says {used:.0f}"
                )

    def _check_pace(self, now: float) -> None:
        self.writes = [*(one for one in self.writes if now - one < 60.0), now]
        if len(self.writes) > 60:
            raise Violation("the book is written more than once a second")

    # ---- hosts -------------------------------------------------------------------------------------------

    def begins(self, want: Want) -> None:
        world = self.world
        world.note("hosts", *want.key)
        if want.key in self.had:
            raise Violation(f"{want.key} gets hosts a second time")
        grant = self.book.grant(want.key)
        if grant is None:
            raise Violation(f"{want.key} gets hosts, and has no turn")
        self.had.add(want.key)
        self.held[want.key] = want
        for who, used, most in self._totals(want):
            if used > most + 1e-6:
                beside = f", and of races that others have won {sorted(self.losers)}" if self.losers else ""
                raise Violation(f"{who} holds {used:g} of {most:g} chips: {sorted(self.held)}{beside}")
            if used == most:
                world.reached.add("a share was held whole")

    def races(self, key: Key) -> None:
        """One place has won, and is what the attempt holds; the others are there until they are gone."""
        want = self.held[key]
        each = want.chips // want.places
        self.held[key] = want._replace(chips=each)
        self.losers[key] = want._replace(chips=want.chips - each)

    def loses(self, key: Key) -> None:
        """The place of a race that has not won is gone."""
        if self.losers.pop(key, None) is not None:
            self.world.note("a loser is gone", *key)

    def hands_over(self, key: Key, want: Want) -> None:
        """A slice that was kept serves another attempt."""
        self.ends(key)
        self.world.reached.add("a kept slice was taken")
        if key in self.losers:
            self.world.reached.add("a kept slice was taken while a place that had lost was there")
        self.begins(want)

    def ends(self, key: Key) -> None:
        if self.held.pop(key, None) is not None:
            self.world.note("hosts gone", *key)

    def _totals(self, want: Want) -> list[tuple[str, float, float]]:
        """Count each share that binds a want, from what is held."""
        found = []
        for share in self.shares:
            named = {one.who for one in self.shares if one.scope == share.scope and one.generation == share.generation}
            who = want.user if share.scope == "user" else want.pipeline if share.scope else ""
            is_own = share.scope == "" or share.who == who or (share.who == "*" and who and who not in named)
            if not is_own or share.generation not in ("", want.generation):
                continue
            used = 0.0
            for one in (*self.held.values(), *self.losers.values()):
                theirs = one.user if share.scope == "user" else one.pipeline if share.scope else ""
                if theirs == who and share.generation in ("", one.generation):
                    used += one.chips * (1.0 if share.generation else CHIPS[one.generation])
            found.append((f"{share} of {who}", used, share.most))
        return found


def slice_of(key: Key) -> str:
    return f"slice-{key[0]}-{key[1]}"


def key_of(slice_: str) -> Key:
    job, _, attempt = slice_.removeprefix("slice-").rpartition("-")
    return job, int(attempt)


def _faded(since: float, end: float, now: float) -> float:
    """A second of use for each second from `since` to `end`, as much as counts at `now`."""
    if end <= since:
        return 0.0
    rate = HALF_LIFE / math.log(2.0)
    return rate * (0.5 ** ((now - end) / HALF_LIFE) - 0.5 ** ((now - since) / HALF_LIFE))


class SharedStore(SimulatedStore):
    """As one process sees it: its first try of a swap may have won although the second is told that it lost. `looks`:
    when anybody has last looked for an intent that was not there."""

    def __init__(self, world: World, task: Task, lost: float, looks: dict[str, float]) -> None:
        super().__init__(world)
        self._task, self._lost, self._looks = task, lost, looks

    def now(self) -> float:
        return self._world.now + self._task.skew / 600.0 * SKEW

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int = 0) -> Record | None:
        found = super().read(name, start, end, limit=limit)
        if found is None and name.endswith("/intent.json"):
            self._looks[name] = self._world.now
        return found

    def swap(self, name: str, data: bytes, generation: int) -> int | None:
        return self._retried(super().swap(name, data, generation))

    def create(self, name: str, data: bytes) -> int | None:
        return self._retried(super().create(name, data)) if name == names.BOOK else super().create(name, data)

    def _retried(self, written: int | None) -> int | None:
        if written is not None and self._world.random.random() < self._lost:
            self._world.note("412 of one's own write")
            self._world.reached.add("a retried write was refused although its first try had won")
            return None
        return written


class ShareSchedule(Schedule):
    """Everything that one seed draws."""

    option = " --shares"

    def __init__(self, seed: int, worlds: list[World]) -> None:
        world = self.world = World(seed)
        worlds[:] = [world]
        draw = world.random
        self.shares = draw.choice(SHARES)
        self.judge = Judge(world, self.shares)
        world.on_write = self._on_write
        self.is_flood = draw.random() < 0.15
        self.odds = Odds(delay=0.1) if self.is_flood else Odds(
            delay=draw.choice((0.03, 0.15, 0.4)),
            stall=draw.choice((0.0, 0.0, 0.02)),
            error=draw.choice((0.0, 0.0, 0.03)),
            crash=draw.choice((0.0, 0.02, 0.08)),
        )  # fmt: skip
        self.lost = 0.0 if self.is_flood else draw.choice((0.0, 0.1, 0.3))
        self.leaves = 0.0 if self.is_flood else draw.choice((0.0, 0.2, 0.5))  # hosts that say nothing at their end
        self.hesitates = 0.0 if self.is_flood else draw.choice((0.0, 0.5))
        self.refuses = 0.0 if self.is_flood else draw.choice((0.0, 0.1))
        self.jobs: list[Want] = []
        self.done: set[str] = set()
        self.granted_at: dict[Key, float] = {}
        self.clients = 0
        self.looks: dict[str, float] = {}
        self.slices: dict[str, Key] = {}  # that are kept, or are about to be, and whose they are
        self.promised: dict[Key, str] = {}  # the slice that an attempt is to take, as its intent says
        (self._flood if self.is_flood else self._crowd)()
        if not self.is_flood and draw.random() < 0.3:
            world.at(world.now + draw.choice((30.0, 900.0, 1500.0, 4000.0)) * draw.random(), self._lose)

    # ---- who comes ---------------------------------------------------------------------------------------

    def _crowd(self) -> None:
        world, draw = self.world, self.world.random
        for _ in range(draw.choice((2, 5, 9))):
            want = self._drawn(draw.choice((0.0, 0.0, 300.0, 1200.0)), draw.choice((0, 0, 0, 1)))
            came = draw.choice((0.0, 1.0, 60.0, 900.0)) * draw.random()
            for _ in range(draw.choice((1, 1, 2, 3))):
                self._client(lambda task, want=want: self._follow(task, want), came + draw.random() * 5.0)
        world.at(world.now + draw.choice((600.0, 2500.0, 6000.0)) * draw.random(), self._heal)

    def _flood(self) -> None:
        """Small ones come without end, and a big one, which is not to wait until they have ended."""
        draw = self.world.random
        if draw.random() < 0.5:
            self._strangers()
            return
        self.shares = draw.choice(("v5e=16", "total=16", "v5e=16,user:*=16"))
        self.judge.shares = parse("the shares", self.shares)
        user = draw.choice(("ann", "bob"))
        for number in range(30):
            want = self._want("v5e", draw.choice((4, 8)), 0, draw.choice((300.0, 600.0)), user, "")
            self._client(lambda task, want=want: self._follow(task, want), number * 75.0 * draw.uniform(0.8, 1.2))
        big = self._want("v5e", 16, 0, draw.choice((0.0, 600.0)), draw.choice(("ann", "bob")), "")
        self._client(lambda task: self._follow(task, big), 300.0)
        self._has_its_turn(big, 300.0 + 1900.0, "a big one had its turn among small ones")

    def _strangers(self) -> None:
        """Small ones come without end, each of somebody who has used nothing; the big one's user has, just before."""
        draw = self.world.random
        self.shares = draw.choice(("v5e=16", "total=16", "v5e=16,user:*=16"))
        self.judge.shares = parse("the shares", self.shares)
        for number in range(STRANGERS):
            want = self._want("v5e", 8, 0, 1200.0, f"u{number}", "")
            came = 30.0 + number * 130.0 * draw.uniform(0.8, 1.2)
            self._client(lambda task, want=want: self._follow(task, want), came)
        before = self._want("v5e", 16, 0, 600.0, "ann", "")
        self._client(lambda task: self._follow(task, before), 0.0)
        big = self._want("v5e", 16, 0, draw.choice((0.0, 600.0)), "ann", "")
        self._client(lambda task: self._follow(task, big), 300.0)
        at_most = 300.0 + PATIENCE + 2900.0
        self._has_its_turn(big, at_most, "a big one had its turn among small ones of users who had used nothing")

    def _has_its_turn(self, big: Want, at_most: float, what: str) -> None:
        world = self.world

        def judged() -> None:
            if big.key not in self.judge.had:
                raise Violation(f"{big.key} waits for ever behind small ones")
            world.reached.add(what)

        world.at(world.now + at_most, judged)
        world.limits = (world.now + LONGEST_LINE, world.requests + 1_000_000)

    def _drawn(self, longest: float, priority: int) -> Want:
        draw = self.world.random
        generations = [one for one in CHIPS if f"{one}=" in self.shares] or list(CHIPS)
        user = draw.choice(("ann", "bob", "cy", ""))
        pipeline = draw.choice(("", "", "retrain", "report"))
        while True:
            want = Want("job-0", 1, draw.choice(generations), draw.choice((2, 4, 8, 16)), user=user, pipeline=pipeline)
            want = want._replace(weight=CHIPS[want.generation])
            if all(bound.need <= bound.most for bound in want.bounds(self.judge.shares)):
                break
        return self._want(want.generation, want.chips, priority, longest, user, pipeline)

    def _want(self, generation: str, chips: int, priority: int, longest: float, user: str, pipeline: str) -> Want:
        job = f"job-{len(self.jobs):x}"
        user = user or "unknown"
        want = Want(job, 1, generation, chips, CHIPS[generation], priority, longest, user, pipeline)
        if not self.is_flood:
            places = 2 if chips > 1 and self.world.random.random() < 0.25 else 1
            want = want._replace(places=places, keeps=self.world.random.random() < 0.4)
        self.jobs.append(want)
        return want

    def _heal(self) -> None:
        """Stop all faults, and let somebody follow each job."""
        world = self.world
        world.note("healed")
        self.odds, self.lost, self.leaves = Odds(delay=0.02), 0.0, 0.0
        for task in world.tasks:
            task.odds = self.odds
        for want in list(self.jobs):
            self._client(lambda task, want=want: self._follow(task, want), world.random.random() * 60.0)
        world.limits = (world.now + LONGEST_LINE + 20_000.0, world.requests + 1_000_000)

    def _lose(self) -> None:
        """Somebody removes the book, or writes over it."""
        world = self.world
        if names.BOOK in world.records:
            self.judge.on_loss()
            if world.random.random() < 0.5:
                world.write(names.BOOK, DAMAGE)
            else:
                del world.records[names.BOOK]
            world.note("the book is lost")
            world.reached.add(
                "the book of turns was lost while hosts were held" if self.judge.held else "the book of turns was lost"
            )

    # ---- what they do ------------------------------------------------------------------------------------

    def _follow(self, task: Task, want: Want) -> None:
        """A process that follows a job until it has ended."""
        store = SharedStore(self.world, task, self.lost, self.looks)
        while True:
            try:
                attempt = self._attempt_of(store, want.job)
                if attempt is None:
                    return
                self._attempt(store, task, want._replace(attempt=attempt))
            except StoreError:
                self.world.sleep(5.0)

    def _attempt_of(self, store: SharedStore, job: str) -> int | None:
        """The first attempt that is not over; None if the job is."""
        last = 1 + (int(job[4:], 16) % 3 == 0)
        for attempt in range(1, last + 1):
            key, is_over = (job, attempt), store.read(names.verdict(job, attempt)) is not None
            is_left = (key in self.judge.held or key in self.judge.losers) and slice_of(key) not in self.slices
            if not is_over or is_left:
                return attempt
        for attempt in range(1, last + 1):
            if slice_of((job, attempt)) not in self.slices:
                line.give_back(store, (job, attempt))
        return None

    def _attempt(self, store: SharedStore, task: Task, want: Want) -> None:
        place = line.Line(store, want, self.judge.shares, 1.0)
        while not self._is_over(store, want):
            if want.key not in self.judge.had and not self._began(store, task, place):
                continue
            self.world.sleep(60.0)
        self._released(store, want)

    def _is_over(self, store: SharedStore, want: Want) -> bool:
        if store.read(names.verdict(*want.key)) is not None:
            return True
        intent = store.read(names.intent(*want.key))
        if intent is None or not (allowed := wire.decode(intent.data)["allowed"]):
            return False
        if store.now() > intent.updated + allowed + 60.0:
            self._close(store, want)
            return True
        return False

    def _close(self, store: SharedStore, want: Want) -> None:
        verdict = wire.Verdict(wire.CLOSED, "simulated", store.now(), cause=wire.DEADLINE)
        store.create(names.verdict(*want.key), verdict.encode())

    def _began(self, store: SharedStore, task: Task, place: line.Line) -> bool:
        """Ask for the turn, write the intent, ask again, and request hosts."""
        want = place.want
        if not self._has_turn(task, place):
            return False
        if self.world.random.random() < self.hesitates:  # until its turn is about to be freed
            self._hesitate(want)
        allowed = want.longest * 0.9
        placement = {"name": slice_of(want.key), **({"rival": 0, "rivals": [{"rival": 1}]} if want.places > 1 else {})}
        intent = {"attempt": want.attempt, "boot": "boot", "placement": placement, "allowed": allowed}
        store.create(names.intent(*want.key), wire.encode(intent))
        if store.read(names.verdict(*want.key)) is not None or not self._has_turn(task, place, uses=True):
            return False
        taken = self._way(store, place)
        if taken is not None:
            self._request(store, task, want, taken)
        return taken is not None

    def _way(self, store: SharedStore, place: line.Line) -> str | None:
        """Take a slice that serves nobody, or none, once none of the others is there that have the chips of the turn.
        Returns the one that was taken; None if it has no turn any more."""
        key = place.want.key
        while (turn := place.use()).granted:
            if key not in self.promised:
                self.promised[key] = self._own(store, place.want, turn.after)
            own = self.promised[key]
            if not all(name == own or self._makes_way(store, name) for name in turn.after):
                self.world.sleep(10.0)
            elif not own or self._takes(store, own, place.want):
                return own
            else:
                self.promised[key] = ""
        return None

    def _own(self, store: SharedStore, want: Want, after: tuple[str, ...]) -> str:
        others = sorted(self.slices.keys() - {*after}) if self.world.random.random() < 0.5 else []
        each = () if want.places > 1 else (*after, *others)
        return next((name for name in each if self._fits(store, name, want)), "")

    def _fits(self, store: SharedStore, name: str, want: Want) -> bool:
        held = leases.read(store, name)
        return held is not None and held.lease.state == FREE and self._chips(name) == (want.generation, want.chips)

    def _takes(self, store: SharedStore, name: str, want: Want) -> bool:
        held, now = leases.read(store, name), store.now()
        if held is None or held.lease.is_of(*want.key):
            return held is not None
        if held.lease.state != FREE or now >= held.lease.until:
            return False
        taken = held.lease.claimed(*want.key, deadline=now + 1e6, origin={}, writer="simulated", now=now)
        return leases.write(store, taken, held)

    def _on_write(self, name: str, data: bytes) -> None:
        """Whoever claims a slice has its hosts at once: the claim is what they begin by."""
        self.judge.on_write(name, data)
        if name.endswith("/lease.json") and (lease := Lease.decode(data)).state == CLAIMED:
            of = self.slices.pop(lease.slice)
            want = next(one for one in self.jobs if one.job == lease.job)._replace(attempt=lease.attempt)
            self.judge.hands_over(of, want)
            self._runs(want)

    def _makes_way(self, store: SharedStore, name: str) -> bool:
        """End the lease of a slice. Returns True once it is gone, or serves an attempt again."""
        leases.end(store, name, "its chips", writer="simulated", now=store.now(), may=lambda one: one.state == FREE)
        self.world.reached.add("a kept slice was released for others")
        held = leases.read(store, name)
        if held is None or held.lease.state != ENDED:
            return True
        if name in self.slices:
            return False
        line.leave_slice(store, key_of(name))  # as its cloud says
        return True

    def _chips(self, name: str) -> tuple[str, int]:
        held = self.judge.held.get(key_of(name))
        return ("", 0) if held is None else (held.generation, held.chips)

    def _hesitate(self, want: Want) -> None:
        """Sleep for about as long as a turn is kept that nobody uses, or until this one is said to be freed."""
        world, draw = self.world, self.world.random
        if draw.random() < 0.5:
            world.sleep(draw.uniform(0.99, 1.25) * rules.START)
            return
        for _ in range(400):
            grant = self.judge.book.grant(want.key)
            if grant is None or grant.leaving:
                break
            world.sleep(2.0)
        marked = world.now
        if draw.random() < 0.5:  # and whoever is to free it has seen that nobody has begun
            for _ in range(400):
                if self.looks.get(names.intent(*want.key), 0.0) > marked:
                    break
                world.sleep(0.1)
            world.sleep(draw.random() * 0.3)
        else:
            world.sleep(draw.random() * 4.0)

    def _has_turn(self, task: Task, place: line.Line, *, uses: bool = False) -> bool:
        turn = place.use() if uses else place.turn()
        if not turn.granted:
            if "in line" not in turn.says:
                raise Violation(f"{place.want.key} waits, and is told {turn.says!r}")
            self.world.sleep(max(1.0, turn.again - self.world.now))
        return turn.granted

    def _request(self, store: SharedStore, task: Task, want: Want, taken: str) -> None:
        """One request to the cloud, which comes late now and then. Machines look whether they may still begin."""
        world, judge = self.world, self.judge
        world.request("submit", f"{want.job}/{want.attempt}", StoreError)
        if taken:
            line.leave_slice(store, key_of(taken))
            return
        is_late = names.verdict(*want.key) in world.records or world.now > self._deadline(want)
        if is_late or want.key in judge.had:
            return
        judge.begins(want)
        if want.places > 1:
            self._race(store, want)
        self._runs(want)

    def _deadline(self, want: Want) -> float:
        intent = self.world.records[names.intent(*want.key)]
        allowed = wire.decode(intent.data)["allowed"]
        return intent.updated + allowed if allowed else math.inf

    def _runs(self, want: Want) -> None:
        world, deadline = self.world, self._deadline(want)
        most = want.longest * 0.7 if want.longest else 900.0
        if want.keeps and want.places > 1 and world.random.random() < 0.5:  # shorter than a deletion takes
            most = 40.0
        runs = world.random.uniform(20.0, most)
        silent = bool(want.longest) and world.random.random() < self.leaves
        world.at(min(world.now + runs, max(world.now, deadline)), lambda: self._ended(want, silent, deadline))

    def _ended(self, want: Want, silent: bool, deadline: float) -> None:
        """A program ends; its hosts write a verdict, and end themselves a while later if nobody frees them."""
        world, judge = self.world, self.judge
        if silent:
            world.reached.add("hosts said nothing at their end")
            world.at(deadline + world.random.random() * 300.0, lambda: judge.ends(want.key))
            return
        if names.verdict(*want.key) not in world.records:
            world.write(names.verdict(*want.key), wire.Verdict(wire.COMMITTED, "host", world.now).encode())
        judge.closed.setdefault(want.key, world.now)
        if want.keeps and world.random.random() < 0.8:
            self.slices[slice_of(want.key)] = want.key
            world.at(world.now + world.random.uniform(5.0, 150.0), lambda: self._offered(want))
            return
        goes = SELF_DELETE
        if world.random.random() < 0.5:
            done = world.random.uniform(0.0, SELF_DELETE - GOING)
            world.at(world.now + done, lambda: world.write(names.host(*want.key, 0, "done.json"), wire.encode({})))
            goes = done + world.random.uniform(1.0, GOING)
        world.at(world.now + goes, lambda: want.key in judge.refused or judge.ends(want.key))

    def _race(self, store: SharedStore, want: Want) -> None:
        """One of two places has won; hosts of the other say that they go, or somebody sees that they are gone."""
        world, draw = self.world, self.world.random
        name, gone = names.gone(*want.key, 1), world.now + draw.uniform(1.0, draw.choice((60.0, 200.0, 500.0)))
        self.judge.races(want.key)
        world.write(names.won(*want.key), wire.encode({"rival": 0, "writer": "host"}))
        if draw.random() < 0.5:
            said = max(world.now, gone - draw.uniform(1.0, GOING))
            world.at(said, lambda: name in world.records or world.write(name, wire.encode({})))

        def is_gone() -> None:
            self.judge.loses(want.key)
            if draw.random() < 0.7:
                self._client(lambda task: self._sees_gone(task, want), 0.1)

        world.at(gone, is_gone)

    def _sees_gone(self, task: Task, want: Want) -> None:
        store = SharedStore(self.world, task, self.lost, self.looks)
        try:
            races.saw_gone(store, *want.key, 1)
            if want.key in self.judge.held:
                line.note_gone(store, want.key)
                self.world.reached.add("a loser's chips were given back at once")
        except StoreError:
            pass

    def _offered(self, want: Want) -> None:
        """Its hosts are clean, and offer the slice; after a while they end it, unless somebody has taken it."""
        world, name, now = self.world, slice_of(want.key), self.world.now
        until = now + world.random.choice((60.0, 600.0, 3000.0))
        offer = Lease(
            name, 0, FREE, "0" * 64, {"name": name}, want.job, want.attempt, want.job, want.attempt, until, "host",
            since=now,
        )  # fmt: skip
        if want.key in self.judge.held and want.key not in self.judge.refused:
            world.write(names.lease(name), offer.encode())
            world.reached.add("a slice was kept")
            self._waits_for_claim(name, want)
        else:
            self.slices.pop(name, None)
            world.at(world.now + SELF_DELETE, lambda: want.key in self.judge.refused or self.judge.ends(want.key))

    def _waits_for_claim(self, name: str, want: Want) -> None:
        """Its hosts look at the lease, end it in time, and go once it has ended."""
        world = self.world
        lease = Lease.decode(world.records[names.lease(name)].data)
        if lease.state == CLAIMED:
            return
        if lease.state == FREE and world.now >= lease.until:
            world.write(names.lease(name), lease.ended("nobody took it", writer="host", now=world.now).encode())
        if lease.state == FREE:
            world.at(world.now + 5.0, lambda: self._waits_for_claim(name, want))
        else:
            world.at(world.now + world.random.uniform(0.0, 200.0), lambda: self._slice_gone(name, want))

    def _slice_gone(self, name: str, want: Want) -> None:
        self.slices.pop(name, None)
        self.judge.ends(want.key)

    def _released(self, store: SharedStore, want: Want) -> None:
        """Free the hosts of an attempt that is over, and give its turn back."""
        world, judge = self.world, self.judge
        judge.closed.setdefault(want.key, world.now)
        if slice_of(want.key) in self.slices:  # it is kept, and has its chips
            return
        if want.key in judge.held and want.key not in judge.refused and world.random.random() < self.refuses:
            store.create(names.refused(*want.key), wire.encode({"writer": "simulated"}))
            if want.key in judge.held:
                judge.refused.add(want.key)
                world.reached.add("hosts could not be freed")
                world.at(world.now + 2000.0, lambda: self._freed_late(want))
        while want.key in judge.refused and want.key in judge.held:
            world.sleep(100.0)
        world.request("release", f"{want.job}/{want.attempt}", StoreError)
        judge.ends(want.key)
        judge.loses(want.key)
        line.give_back(store, want.key)

    def _freed_late(self, want: Want) -> None:
        self.judge.ends(want.key)
        self.world.write(names.freed(*want.key), wire.encode({"writer": "simulated"}))

    # ---- at the end --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play it. Every job comes to its end, and nothing is left in the line."""
        world = self.world
        world.run()
        if self.judge.held or self.judge.losers:
            raise Violation(f"hosts are left: {sorted(self.judge.held)}")
        for want in self.jobs:
            if names.verdict(want.job, 1) not in world.records:
                raise Violation(f"{want.key} never had its turn")
        left = [name for name in world.records if name.startswith(names.WANTS)]
        if left and not self.is_flood:
            world.reached.add("the object of a dead process was left")
