"""One seed on the simulated cloud of a job whose attempts ask several places at once.

As `candidate_scenario`, with one way in several zones or with several candidates. The judge knows each place of each
attempt: only one may run the program, whoever dies at whatever moment; what has not won leaves no record of the
attempt, is deleted by its own hosts or by whoever follows, and ends nothing that may still come.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.values import Plan
from kinetic_orchestration.platforms.google.tpu import states
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire import CLOSED, Verdict
from tests.simulation import zones as api
from tests.simulation.candidate_scenario import CandidateJudge, CandidateSchedule
from tests.simulation.cloud import QueuedResource, TpuNode
from tests.simulation.cloud_scenario import ZONES, CloudSchedule
from tests.simulation.scenario import FREE
from tests.simulation.vms import CloudGround
from tests.simulation.world import Violation, World

OF_JOB = (wire.CANCELLED, wire.DEADLINE)  # causes of ends that have nothing to do with places
OVER = (states.FAILED, states.SUSPENDING, states.SUSPENDED, states.DELETING)


class Place(NamedTuple):
    choice: int
    zone: str


class RaceJudge(CandidateJudge):
    """Sees what is made in each place, and which of them speaks for its attempt."""

    def __init__(self, world: World, ground: CloudGround, plan: Plan, identity: Identity) -> None:
        super().__init__(world, ground, plan, identity)
        if not plan.choices:
            self.options = {(0, zone) for zone in plan.zones}
        self.places: dict[tuple[str, int], list[Place]] = {}
        self.asked: dict[tuple[str, int, int], QueuedResource] = {}

    def winner(self, job: str, attempt: int) -> int | None:
        record = self.world.records.get(names.won(job, attempt))
        return None if record is None else int(json.loads(record.data)["rival"])

    def _open_zones(self) -> list[str]:
        """The zones of all candidates in which the project may have anything."""
        known = self.ground.api.zones
        zones = [zone for _, zone in sorted(self.options)]
        closed = {zone.rsplit("-", 1)[0] for zone in zones if known[zone].weather == api.NEVER_REGION}
        return [
            zone for zone in zones if known[zone].weather not in api.LASTING and zone.rsplit("-", 1)[0] not in closed
        ]

    # ---- records

    def on_write(self, name: str, data: bytes) -> None:
        parts = name.split("/")
        if name.endswith("/intent.json"):
            self._on_places(parts[1], int(parts[4]), json.loads(data)["placement"])
        elif name.endswith("/won.json"):
            self._on_win(parts[1], int(parts[4]), json.loads(data)["rival"])
        elif "/lost-" in name:
            self._on_lost(parts[1], int(parts[4]), Verdict.decode(data))
        elif parts[0] == "beats" and parts[-1].isdecimal():
            self._check_speaker(parts[1], int(parts[2]), name)
        elif len(parts) > 3 and parts[2] == "out":
            self._check_speaker(parts[1], int(parts[3]), name)
        super().on_write(name, data)

    def _on_places(self, job: str, attempt: int, placement: dict[str, Any]) -> None:
        told = [placement, *placement.get("rivals", ())]
        places = self.places[job, attempt] = [Place(one.get("choice", 0), one["zone"]) for one in told]
        if len(places) > 1:
            self.world.reached.add(f"{len(places)} places were asked at once")
        if len(set(places)) < len(places) or len(places) > self.whole.race or not {*places} <= self.options:
            raise Violation(f"attempt {attempt} of {job} asks {places}")

    def _on_win(self, job: str, attempt: int, number: int) -> None:
        """From now on the attempt is of this place."""
        self.world.reached.add(f"place {number} won")
        self.chosen[job, attempt], self.zones[job, attempt] = self.places[job, attempt][number]

    def _on_lost(self, job: str, attempt: int, ended: Verdict) -> None:
        if self.winner(job, attempt) is None and "none of them has started its agent" in ended.reason:
            self.world.reached.add("a silent place was given up, and not its race")
        task = self.world.current
        if self.winner(job, attempt) is None and task is not None and task.name.startswith("reap"):
            self.world.reached.add("the reaper gave up one place")

    def _check_speaker(self, job: str, attempt: int, name: str) -> None:
        """No host writes a record of an attempt whose race its place has not won."""
        current = self.world.current
        machine = None if current is None else self.ground.machine_of.get(current.process)
        if machine is None or "rival" not in machine.told:
            return
        if machine.told["rival"] != self.winner(job, attempt):
            raise Violation(f"{machine.name} writes {name}, and has not won")

    def _on_verdict(self, job: str, attempt: int, verdict: Verdict) -> None:
        if verdict.kind != CLOSED:
            self._check_speaker(job, attempt, "the verdict")
        elif len(self.places.get((job, attempt), ())) > 1 and self._is_for_its_places(job, attempt, verdict):
            self._check_all_failed(job, attempt, verdict)
        super()._on_verdict(job, attempt, verdict)

    def _is_for_its_places(self, job: str, attempt: int, verdict: Verdict) -> bool:
        """Tell whether an attempt is closed for what has become of its places, which none has won."""
        task = self.world.current
        is_reaped = task is not None and task.name.startswith("reap") and verdict.cause not in OF_JOB
        return verdict.cause in FREE or (is_reaped and self.winner(job, attempt) is None)

    def _check_all_failed(self, job: str, attempt: int, verdict: Verdict) -> None:
        """An attempt that is closed for want of hosts had no place that might still have given some."""
        for number, place in enumerate(self.places[job, attempt]):
            has_failed = names.lost(job, attempt, number) in self.world.records
            asked = self.asked.get((job, attempt, number))
            if not has_failed and (asked is None or (asked.state not in OVER and not asked.harmed)):
                raise Violation(f"attempt {attempt} of {job} is closed ({verdict.reason}), and {place} may have hosts")
        self.world.reached.add("a race was closed once all its places had failed")

    def _check_zone(self, job: str, attempt: int) -> None:
        """No place is asked again that has nothing for it; what each has said is in a record of its own. Where hosts
        were, there is something, whatever another place has said of its whole region."""
        closed = set[tuple[int, str]]()
        for number in range(1, attempt):
            for rival, place in enumerate(self.places[job, number]):
                record = self.world.records.get(names.lost(job, number, rival))
                said = json.loads(record.data).get("reason", "") if record is not None else ""
                closed |= {
                    one for one in self.options if one[0] == place.choice and self._is_closed(said, place.zone, one[1])
                }
            closed -= {
                tuple(place) for rival, place in enumerate(self.places[job, number]) if self._had(job, number, rival)
            }
        again = closed & {tuple(place) for place in self.places[job, attempt]}
        if self.verdicts[job, attempt - 1].cause not in FREE:  # where its hosts were, there is something
            again -= {tuple(place) for place in self.places[job, attempt - 1]}
        if again:
            raise Violation(f"attempt {attempt} of {job} asks again where there is nothing for it: {again}")

    def _had(self, job: str, attempt: int, rival: int) -> bool:
        """Return True if a place of an attempt that is over had hosts: it has won, or its end was that of the attempt."""
        lost = self.world.records.get(names.lost(job, attempt, rival))
        cause = self.verdicts[job, attempt].cause
        is_end = lost is not None and cause not in FREE and Verdict.decode(lost.data).cause == cause
        return is_end or self.winner(job, attempt) == rival

    # ---- slices

    def may_create(self, queued: QueuedResource) -> None:
        told = queued.told
        job, attempt, number = told["job"], told["attempt"], told.get("rival", 0)
        places = self.places.get((job, attempt), [])
        if number >= len(places):
            raise Violation(f"{queued.id} is made for place {number} of {places}")
        self.asked.setdefault((job, attempt, number), queued)
        own, task = places[number], self.world.current
        before = self.zones[job, attempt], self.chosen[job, attempt]
        self.zones[job, attempt], self.chosen[job, attempt] = own.zone, own.choice
        self.made.pop((job, attempt), None)
        try:
            super().may_create(queued)
        finally:
            self.zones[job, attempt], self.chosen[job, attempt] = before
        self._check_not_given_up(job, attempt, number)
        won = self.world.records.get(names.won(job, attempt))
        if won is not None and self.winner(job, attempt) != number:
            self.world.reached.add("a place was asked after its race")
            if task is not None and won.updated < task.look_began:
                raise Violation(f"{task.name} asks {own} for attempt {attempt} of {job}, whose race was over")

    def _check_not_given_up(self, job: str, attempt: int, number: int) -> None:
        """Check that whoever asks a place could not know that it was given up: by then who has won is read as well."""
        lost, task = self.world.records.get(names.lost(job, attempt, number)), self.world.current
        if lost is None or task is None:
            return
        self.world.reached.add("a place was asked that was given up meanwhile")
        read = (task.name, "read", names.won(job, attempt))
        last = next((entry[0] for entry in reversed(self.world.trace) if entry[1:4] == read), 0.0)
        if lost.updated < last:
            raise Violation(f"{task.name} asks place {number} of attempt {attempt} of {job}, which was given up")

    def may_delete(self, name: str, what: QueuedResource | TpuNode) -> None:
        """A place that has not won may go at any time once another has, or by itself; and so may one that has failed."""
        queued = what if isinstance(what, QueuedResource) else what.queued
        task = self.world.current
        if name not in self.foreign and queued is not None and task is not None and "rival" in queued.told:
            job, attempt, number = queued.told["job"], queued.told["attempt"], queued.told["rival"]
            won, machine = self.winner(job, attempt), self.ground.machine_of.get(task.process)
            lost = names.lost(job, attempt, number) in self.world.records
            if (won is not None and won != number) or (won is None and (machine is not None or lost)):
                self._act(job)
                self.world.reached.add("a loser deleted itself" if machine is not None else "a loser was released")
                return
        super().may_delete(name, what)


class RaceSchedule(CandidateSchedule):
    """Everything that one seed draws for a job whose attempts race."""

    option = " --races"
    kind_of_judge = RaceJudge
    judge: RaceJudge

    def _open(self, draw: Any) -> None:
        if draw.random() < 0.5:
            super()._open(draw)
        else:
            CloudSchedule._open(self, draw)
            zones = tuple(draw.sample(ZONES, draw.choice((2, 3, 4))))
            self.plan = replace(self.plan, zones=zones, cloud={})
        self.plan = replace(self.plan, race=draw.choice((2, 2, 3)))

    def _fates(self, draw: Any) -> tuple[str, ...]:
        """In some, most slices are READY and never speak, so that a race waits for a place whose turn in a queue comes
        late."""
        fates = super()._fates(draw)
        return fates + ("never boots",) * 3 * len(fates) * (draw.random() < 0.25)

    def _people(self) -> None:
        """In some, everybody leaves while places wait, of which one then fails, and the reaper alone comes by."""
        draw = self.world.random
        if draw.random() < 0.2:
            self.orphaned = True
            self._inform_judge()
            if draw.random() < 0.5:
                self._fail_one_alone(draw)
            for number in range(1, 5):
                self._client(self._reap, number * (reaper.UNCLAIMED + draw.uniform(1.0, 60.0)))
        super()._people()

    def _fail_one_alone(self, draw: Any) -> None:
        """All places wait in their queues until everybody has left; then one fails, and the others still wait when the
        reaper comes."""
        world, zones = self.world, sorted({zone for _, zone in self.judge.options})
        known = [self.ground.api.zones[zone] for zone in zones]
        for zone in known:
            zone.weather, zone.until = api.QUEUE, world.now + draw.uniform(1000.0, 2500.0)
        dry = draw.choice(known)
        left = world.now + draw.uniform(20.0, 100.0)
        self.healed = max(self.healed, world.now + 2500.0)
        world.at(left, self._leave)
        world.at(left + draw.uniform(0.0, 100.0), lambda: setattr(dry, "weather", api.DRY))
