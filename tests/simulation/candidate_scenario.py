"""One seed on the simulated cloud of a job with a choice: slices of several sizes, bought in several ways.

As `cloud_scenario`, with two or three candidates, some of the same zones. The judge looks at each attempt with the plan
of the candidate that its intent names, and at what is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.values import Candidate, Plan
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire import Verdict
from tests.simulation.cloud import QueuedResource
from tests.simulation.cloud_scenario import SLICES, TWICE, ZONES, CloudJudge, CloudSchedule
from tests.simulation.scenario import FREE
from tests.simulation.vms import CloudGround
from tests.simulation.world import Violation, World


class CandidateJudge(CloudJudge):
    """Sees by which candidate each attempt was made."""

    def __init__(self, world: World, ground: CloudGround, plan: Plan, identity: Identity) -> None:
        super().__init__(world, ground, plan, identity)
        self.whole = plan
        self.options = {(number, zone) for number, one in enumerate(plan.choices) for zone in one.zones}
        self.of = "", 0  # the attempt that is looked at
        self.chosen: dict[tuple[str, int], int] = {}
        self.made: dict[tuple[str, int], set[tuple[str, int]]] = {}  # where, and of how many hosts

    @contextmanager
    def _of(self, job: str, attempt: int) -> Iterator[None]:
        """Look with the plan of the attempt; of one without a place, with all zones of all candidates."""
        choice, before, self.of = self.chosen.get((job, attempt)), self.plan, (job, attempt)
        every = tuple(dict.fromkeys(zone for _, zone in sorted(self.options)))
        self.plan = replace(self.whole, zones=every) if choice is None else self.whole.at(choice)
        try:
            yield
        finally:
            self.plan = before

    def on_write(self, name: str, data: bytes) -> None:
        if name.endswith("/intent.json"):
            _, job, _, _, attempt, _ = name.split("/")
            placement = json.loads(data)["placement"]
            choice = self.chosen[job, int(attempt)] = placement.get("choice", 0)
            if (choice, placement["zone"]) not in self.options:
                raise Violation(f"attempt {attempt} of {job} is placed where no candidate may be: {placement}")
        super().on_write(name, data)

    def _on_verdict(self, job: str, attempt: int, verdict: Verdict) -> None:
        with self._of(job, attempt):
            super()._on_verdict(job, attempt, verdict)

    def _check_zone(self, job: str, attempt: int) -> None:
        """Check the option of this attempt against the messages of the last ones."""
        own = self._option(job, attempt)
        before, verdict = self._option(job, attempt - 1), self.verdicts[job, attempt - 1]
        closed = self._closed(job, attempt)
        if own in closed:
            raise Violation(f"attempt {attempt} of {job} asks again where there is nothing for it: {own}")
        if verdict.cause in FREE and own[0] != before[0]:
            self.world.reached.add("another candidate was tried")
        if "requests per minute" in verdict.reason and own != before:
            raise Violation(f"attempt {attempt} of {job} leaves {before} because of a rate limit")
        if verdict.cause == wire.PREEMPTION and own == before and self.options - closed != {own}:
            raise Violation(f"attempt {attempt} of {job} stays where it was preempted: {own}")
        if verdict.cause == wire.PREEMPTION and own[0] != before[0]:
            self.world.reached.add("another candidate followed a preemption")
        row = 0
        for number in range(attempt - 1, 0, -1):
            if self.verdicts[job, number].cause != wire.INTERNAL or self._option(job, number) != own:
                break
            row += 1
        if row > TWICE and len(self.options - closed) > 1:
            raise Violation(f"attempt {attempt} of {job} stays in {own} after {row} internal errors")

    def _closed(self, job: str, attempt: int) -> set[tuple[int, str]]:
        """Return where there is nothing for a job, as the attempts before this one were told."""
        closed = set[tuple[int, str]]()
        for number in range(1, attempt):
            choice, zone = self._option(job, number)
            said = self.verdicts[job, number].reason
            closed |= {one for one in self.options if one[0] == choice and self._is_closed(said, zone, one[1])}
        return closed

    def _option(self, job: str, attempt: int) -> tuple[int, str]:
        return self.chosen[job, attempt], self.zones[job, attempt]

    def may_create(self, queued: QueuedResource) -> None:
        """An attempt is made by its own candidate, in its own place, and nowhere else."""
        job, attempt = queued.told["job"], queued.told["attempt"]
        with self._of(job, attempt):
            super().may_create(queued)
            one, is_known = self.plan, names.spec(job) in self.world.records
        told = queued.told["hosts"], queued.told.get("choice", 0), queued.hardware, queued.spot
        if is_known and told != (one.hosts, self.chosen[job, attempt], one.slice.accelerator_type, one.spot):
            raise Violation(f"{queued.id} is made otherwise than attempt {attempt} of {job} was promised: {told}")
        made = self.made.setdefault((job, attempt), set())
        made.add((queued.zone, queued.told["hosts"]))
        if len(made) > 1:
            raise Violation(f"attempt {attempt} of {job} was made in two places: {sorted(made)}")

    def _open_zones(self) -> list[str]:
        """Other candidates are other zones, too, unless the job was told that there is nothing for it."""
        return [zone for _, zone in sorted(self.options - self._closed(*self.of))]


class CandidateSchedule(CloudSchedule):
    """Everything that one seed draws for a job with a choice."""

    option = " --candidates"
    kind_of_judge = CandidateJudge

    def _open(self, draw: Any) -> None:
        super()._open(draw)
        first = replace(self.plan, cloud={})
        choices = [Candidate.of(first, {})]
        for _ in range(draw.choice((1, 1, 2))):
            zones = tuple(draw.sample(ZONES, draw.choice((1, 2, 4))))
            slice_ = draw.choice(SLICES)
            slices = first.slices if slice_.hosts == 1 else 1
            choices.append(replace(choices[0], slice=slice_, slices=slices, zones=zones, spot=draw.random() < 0.5))
        self.plan = replace(first, choices=tuple(choices), by=draw.choice(("order", "order", "start")))
