"""One seed of a deployment whose jobs share what they learn of capacity, through the real records and the real choice.

Two zones have one hardware in two sizes. The first, which every job prefers, has nothing for a while; the second always
has some. Jobs come in processes of their own, whose requests to the store are late, fail, or end with their process.

The promises: nobody asks where it could have read that nothing is free; when that is old, one asks at a time; and when
the zone has some again, that is found within one age.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from kinetic_orchestration.capacity import choosing, facts, records
from kinetic_orchestration.capacity.facts import AGE, GOT, PROBE_LASTS, STOCKOUT, WINDOW, Fact, FactKey
from kinetic_orchestration.plan.values import Past, Plan
from kinetic_orchestration.protocol import names
from tests.simulation.world import EPOCH, Odds, SimulatedStore, Task, Violation, World
from tests.support import choices

DRY, OTHER = "us-east5-a", "us-east5-b"
JOBS, OFTEN = 120, 90.0  # jobs, and the longest time until the next one comes
SIZES = ("v6e-4", "v6e-16")
ODDS = Odds(delay=0.2, error=0.01, crash=0.002)
LATE = 60.0  # seconds that requests may take in all, of one decision


class Ask(NamedTuple):
    """A create call in the zone that had nothing, and when its place was decided."""

    token: str
    size: int
    decided: float
    began: float
    aged: bool  # its job could read that nothing was free there, and that this was old


class Deployment:
    """The jobs of one seed, and what they ask for."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        chance = self.world.random
        self.dry_from = EPOCH + chance.uniform(0, 1200)
        self.dry_until = self.dry_from + chance.uniform(1200, 4000)
        self.asks: list[Ask] = []
        self.ended: dict[str, float] = {}
        coming = 0.0
        for number in range(JOBS):
            coming += chance.uniform(1.0, OFTEN)
            plan = choices.plan(choices.candidate(chance.choice(SIZES), "spot", (DRY, OTHER)))
            self.world.spawn(f"job-{number}", self._job_of(number, plan), delay=coming, odds=ODDS)
        self.last = EPOCH + coming

    def _job_of(self, number: int, plan: Plan) -> object:
        def run(task: Task) -> None:
            del task
            self._run(f"job-{number}", plan)

        return run

    def _run(self, job: str, plan: Plan) -> None:
        world, store = self.world, SimulatedStore(self.world)
        past: Past | None = None
        for attempt in range(1, 40):
            token, began, last = f"{job}-{attempt}", world.now, past

            def choose(known: dict[FactKey, Fact], now: float, token: str = token, last: Past | None = last) -> object:
                if last is None:
                    return choosing.first(plan, known, now, seed=token)
                return choosing.following(plan, known, now, last, token)

            state, told = self._state(choosing.keys(plan)[0], began), len(world.trace)
            selection = records.decide(store, plan, token, choose)
            decided = world.now
            if any(what[2:3] == ("fails",) and what[1] == job for what in world.trace[told:]):
                world.reached.add("what is known could not be read")
                state = ""
            world.sleep(selection.wait)
            key = facts.key_of(plan.choices[0], selection.place)
            has_some = self._ask(token, key, began, decided, state, is_new=past is None)
            outcome = GOT if has_some else STOCKOUT
            records.learn(store, key, outcome, world.now, token)
            if has_some:
                return
            past = Past({"zone": selection.place, **selection.history()}, STOCKOUT, "nothing is free", began)

    def _ask(self, token: str, key: FactKey, began: float, decided: float, state: str, *, is_new: bool) -> bool:
        """The create call: True if it got hosts."""
        world = self.world
        is_dry = key.place == DRY and self.dry_from <= world.now < self.dry_until
        if key.place == DRY:
            if state == STOCKOUT and is_new:
                raise Violation(f"{token} asks for {key.size} chips where it could read that nothing is free")
            if state == facts.AGED and is_new:
                self._alone(token, key.size, began, decided)
            self.asks.append(Ask(token, key.size, decided, world.now, state == facts.AGED))
        world.note("asks", token, key.place, key.size, state, "nothing free" if is_dry else "got")
        world.sleep(world.random.uniform(5.0, 40.0))
        self.ended[token] = world.now
        return not is_dry

    def _alone(self, token: str, size: int, began: float, decided: float) -> None:
        """Judge one that tries again: nobody else does at that time."""
        self.world.reached.add("an aged place was tried again")
        for other in self.asks:
            ended = self.ended.get(other.token, float("inf"))
            if (
                other.aged
                and other.size == size
                and other.decided <= decided < other.began + PROBE_LASTS
                and ended > decided
            ):
                raise Violation(f"{token} and {other.token} both try again for {size} chips")

    def _state(self, key: FactKey, now: float) -> str:
        """Return what the records say of the first zone: by the last two attempts of one size, which is simpler than the rule
        and never stricter."""
        found, own = "", 0.0
        known = [json.loads(record.data) for name, record in self.world.records.items() if name.startswith(names.FACTS)]
        for fields in sorted(known, key=lambda fields: -fields["size"]):
            last = [one for one in fields["attempts"] if now - one["at"] < WINDOW - LATE][-2:]
            if fields["place"] != DRY or fields["size"] > key.size or not last:
                continue
            if fields["size"] == key.size:
                own = max((one["at"] for one in fields["attempts"] if one["outcome"] == GOT), default=0.0)
            if len(last) < 2 or any(one["outcome"] != STOCKOUT or one["at"] < own for one in last):
                continue
            age = now - last[-1]["at"]
            is_free = (fields["probe"] or {"until": 0.0})["until"] <= now
            if age < AGE - LATE:
                return STOCKOUT
            found = facts.AGED if age >= AGE and is_free and fields["size"] == key.size else found
        return found

    def play(self) -> None:
        self.world.run()
        dry = [ask for ask in self.asks if self.dry_from <= ask.began < self.dry_until]
        later = [ask for ask in self.asks if ask.began >= self.dry_until]
        if dry:
            self.world.reached.add("a zone had nothing")
        found_by = self.dry_until + AGE + PROBE_LASTS + 2 * OFTEN + LATE
        if self.last > found_by:
            self.world.reached.add("a zone had some again")
            if not any(ask.began <= found_by for ask in later):
                raise Violation("nobody found that the zone has some again")


def play(seed: int) -> Deployment:
    """Play one seed. Raises Violation."""
    deployment = Deployment(seed)
    try:
        deployment.play()
    finally:
        deployment.world.end()
    return deployment


def play_many(seeds: Iterable[int], *, stop: bool = False) -> int:
    """Play these, print what they reached and each that breaks a promise, and return how many do."""
    reached, broken = Counter[str](), 0
    for seed in seeds:
        try:
            reached.update(play(seed).world.reached)
        except Violation as violation:
            print(f"seed {seed}: {violation}", flush=True)
            broken += 1
            if stop:
                break
    for what, count in sorted(reached.items()):
        print(f"{count:7d}  {what}")
    return broken
