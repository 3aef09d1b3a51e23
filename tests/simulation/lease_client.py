"""The clients of kept slices: the backend that they use, and what their homes remember."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.plan.values import Freed, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.platforms.shared.orders import orders_of
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names
from tests.simulation.kept_slices import RESOURCE, KeptGround, KeptPlace
from tests.simulation.slices import SimulatedBackend
from tests.simulation.world import Unreachable, Violation

ZONE, PROJECT = "zone-a", "p"


@dataclass(frozen=True, slots=True)
class HomeTrust(Trust):
    """The trust of processes that share a home, whose files are lines in memory."""

    lines: dict[str, list[str]] = field(default_factory=dict, repr=False)

    def remember(self, store: Store, job_id: str, kind: str, digest: str) -> None:
        if digest not in self.remembered(store, job_id, kind):
            self.lines.setdefault(job_id, []).append(f"{kind} {digest}")

    def remembered(self, store: Store, job_id: str, kind: str) -> list[str]:
        del store
        return [line.partition(" ")[2] for line in self.lines.get(job_id, ()) if line.startswith(f"{kind} ")]


def home(name: str, signing_key: str) -> HomeTrust:
    return HomeTrust(Path("/simulated") / name, signing_key, everything=True)


class KeptBackend(SimulatedBackend):
    """The backend of slices that may be kept, as one client sees it."""

    kind = "kept"
    _ground: KeptGround

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        del previous
        return {
            "backend": self.kind, "project": PROJECT, "zone": ZONE, "hosts": plan.slice.hosts, "slices": 1, "wait": 0.0,
            "name": names.slice_of(plan.store, plan.deployment, job_id, attempt), "machine": "",
        }  # fmt: skip

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        return placement.get("zone") == ZONE and placement.get("project") == PROJECT

    def hand_over(self, asked: Submission) -> dict[str, Any]:
        draw = self._world.random
        if draw.random() < self._ground.slow_orders and not self._ground.calm:
            self._world.sleep(draw.uniform(10.0, 200.0))
        self._world.request("hand over", asked.intent.placement["name"], Unreachable)
        return self._orders(asked)

    def _orders(self, asked: Submission) -> dict[str, Any]:
        return {**orders_of(asked), "resource": f"{RESOURCE}{asked.intent.placement['name']}"}

    def submit(self, asked: Submission) -> str:
        if asked.intent.placement.get("lease"):
            raise Violation(f"{asked.job_id} makes a slice where it is to claim one")
        return super().submit(asked)

    def _new_place(self, asked: Submission) -> KeptPlace:
        fields = {**asked.intent.placement, "job": asked.job_id, "attempt": asked.intent.attempt}
        place = KeptPlace(self._ground, fields, asked.intent, asked.spec_digest)
        self._ground.made(place, self._orders(asked), asked.plan)
        return place

    def rate_limit(self, placement: Mapping[str, Any]) -> None:
        """Looks are not limited."""

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        return super().observe([{**one, "machine": ""} for one in placements])

    def release(self, placement: Mapping[str, Any]) -> Freed:
        world, name = self._world, placement["name"]
        world.request("release", name, Unreachable)
        place = self._ground.kept.get(name)
        if place is not None and name in self._ground.places:
            assert world.current is not None
            self._ground.judge.on_delete_of(place, world.current.name)
            self._ground.delete(place, world.current.name)
        world.request("release", name, Unreachable, done=True)
        return Freed.DONE

    def leftovers(self) -> Iterator[dict[str, Any]]:
        for name, place in list(self._ground.places.items()):
            yield {
                "backend": self.kind, "project": PROJECT, "zone": ZONE, "name": name, "job": place.job,
                "attempt": place.attempt, "hosts": place.hosts, "slices": 1, "machine": "",
                "age": self._world.now - place.changed, "expires": place.intent.deadline,
                **({"rival": place.rival} if place.rival >= 0 else {}),
            }  # fmt: skip
