"""One seed of jobs that keep their slices warm for each other, and of which each attempt that takes none asks several
places at once.

As `lease_scenario`, whose promises hold here as well. The judge also knows who has won each race: only that slice runs
the program and writes for the attempt, only it may ever be offered, and what has lost is deleted without a lease.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kinetic_orchestration.jobs.cleanup.leased import OVERDUE
from kinetic_orchestration.plan.values import Past, Plan
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.wire.lease import ENDED, Lease
from tests.simulation.kept_slices import KeptBox, KeptPlace
from tests.simulation.lease_client import PROJECT, KeptBackend
from tests.simulation.lease_scenario import BOUND, LeaseJudge, LeaseSchedule
from tests.simulation.world import Task, Violation

ZONES = ("zone-a", "zone-b", "zone-c")


class RaceBackend(KeptBackend):
    """The backend of kept slices, in several zones, with all verbs: what asks several places passes them on."""

    def resolve(self, plan: Plan) -> Plan:
        return plan

    def require(self, plan: Plan) -> None:
        """Whatever is asked for is allowed."""

    def prepare(self) -> None:
        """There is nothing to load."""

    def dry_run(self, plan: Plan) -> str:
        return plan.name

    def secrets(self) -> tuple[tuple[str, str], ...]:
        return ()

    def forget(self, secret: str, job_id: str) -> bool:
        return True

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        return super().place(plan, job_id, attempt, previous) | {"zone": plan.zones[attempt % len(plan.zones)]}

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        return placement.get("zone") in ZONES and placement.get("project") == PROJECT


class KeptRaceJudge(LeaseJudge):
    """Sees who wins each race, and what becomes of those who lose."""

    def winner(self, job: str, attempt: int) -> int | None:
        record = self.world.records.get(names.won(job, attempt))
        return None if record is None else int(json.loads(record.data)["rival"])

    def has_lost(self, place: KeptPlace) -> bool:
        return place.rival >= 0 and self.winner(place.job, place.attempt) not in (None, place.rival)

    def on_write(self, name: str, data: bytes) -> None:
        parts = name.split("/")
        if name.endswith("/won.json"):
            self.world.reached.add(f"place {json.loads(data)['rival']} won")
        elif parts[0] == "beats" and parts[-1].isdecimal():
            self._check_speaker(parts[1], int(parts[2]), name)
        elif len(parts) > 3 and (parts[2] == "out" or _is_by_hosts(name, data)):
            self._check_speaker(parts[1], int(parts[3]), name)
        super().on_write(name, data)

    def _check_speaker(self, job: str, attempt: int, name: str) -> None:
        """No host writes a record of an attempt whose race its place has not won."""
        current = self.world.current
        box = None if current is None else self.ground.box_of_task.get(current.process)
        if box is None or box.at.rival < 0 or box.serves != (job, attempt):
            return
        if box.at.rival != self.winner(job, attempt):
            raise Violation(f"{box.name} writes {name}, and has not won")

    def _on_placement(self, job: str, attempt: int, placement: Mapping[str, Any]) -> None:
        places = [placement, *placement.get("rivals", ())]
        if len(places) > 1:
            self.world.reached.add(f"{len(places)} places were asked at once")
            if placement.get("lease"):
                raise Violation(f"attempt {attempt} of {job} takes a kept slice, and asks {places[1:]} as well")
        if len({place["zone"] for place in places}) < len(places) or len({place["name"] for place in places}) < len(
            places
        ):
            raise Violation(f"attempt {attempt} of {job} asks the same place twice: {places}")
        super()._on_placement(job, attempt, placement)

    # ---- leases ------------------------------------------------------------------------------------------

    def _on_offer(self, old: Lease | None, new: Lease) -> None:
        place = self.places[new.slice]
        if old is None and place.rival >= 0:
            if self.winner(place.job, place.attempt) != place.rival:
                raise Violation(f"{new.slice} is offered, which has lost its race")
            self.world.reached.add("a slice that had won its race was offered")
        super()._on_offer(old, new)

    def _on_claim(self, old: Lease, new: Lease) -> None:
        super()._on_claim(old, new)
        self._check_idle(old, new)
        if self.places[new.slice].rival >= 0:
            self.world.reached.add("a slice that had won its race was claimed")

    def _on_end(self, old: Lease | None, new: Lease) -> None:
        super()._on_end(old, new)
        if old is not None:
            self._check_idle(old, new)

    def _check_idle(self, old: Lease, new: Lease) -> None:
        """Nobody is charged for a slice that has long deleted itself."""
        if len(new.idle) > len(old.idle) and not self.world.suspended:
            began, ended = new.idle[-1][:2]
            if ended - began > old.until - old.since + OVERDUE + BOUND and self.places[new.slice].gone:
                raise Violation(f"{new.slice} is gone, and counts as idle for {ended - began:.0f} s")

    def _fits(self, lease: Lease, plan: Plan, task: Task) -> bool:
        return lease.placement["zone"] in plan.zones and super()._fits(lease, plan, task)

    # ---- slices and programs -----------------------------------------------------------------------------

    def on_delete_of(self, place: KeptPlace, by: str) -> None:
        if not self.has_lost(place):
            super().on_delete_of(place, by)
            return
        record = self.world.records.get(names.lease(place.name))
        if record is not None and Lease.decode(record.data).state != ENDED:
            raise Violation(f"{place.name} has lost its race, and has a lease")
        self.world.reached.add(f"a loser {'deleted itself' if by.startswith('host') else 'was released'}")

    def on_program(self, box: KeptBox) -> None:
        if box.at.rival >= 0 and self.winner(*box.serves) != box.at.rival:
            raise Violation(f"{box.name} begins the program of {box.serves}, whose race it has not won")
        for other, key in self.running.items():
            if key == box.serves and other.place is not box.place and other.task is not None and not other.task.dead:
                raise Violation(f"{box.name} begins the program of {key} beside {other.name}")
        super().on_program(box)


def _is_by_hosts(name: str, data: bytes) -> bool:
    return name.endswith("/verdict.json") and wire.Verdict.decode(data).kind != wire.CLOSED


class KeptRaceSchedule(LeaseSchedule):
    """Everything that one seed draws of jobs that keep their slices and race."""

    option = " --leases --races"
    kind_of_judge = KeptRaceJudge
    kind_of_backend = RaceBackend

    def _plan(self, plan: Plan) -> Plan:
        draw = self.world.random
        zones = tuple(draw.sample(ZONES, draw.choice((2, 3))))
        return replace(plan, zones=zones, race=draw.choice((1, 2, 2, 3)))
