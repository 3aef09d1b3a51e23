"""The backends of one job's candidates, as one: each call goes to that which its plan or its placement names.

An attempt has one candidate and one place, so what is made by one backend is observed and released by it alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import Freed, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import (
    Backend,
    KeepsBootLog,
    KeepsSlices,
    RateLimit,
    Submission,
    TellsRefusal,
)
from kinetic_orchestration.platforms.shared.places import Refusal


class Several:
    """Backends by their names. A plan that it is given is that of an attempt: of one candidate."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self._backends = dict(sorted(backends.items()))
        self.kind = "+".join(self._backends)
        every = self._backends.values()
        self.charges = any(one.charges for one in every)
        self.shared = all(one.shared for one in every)
        self.parallel = max(one.parallel for one in every)

    def _of(self, place: Mapping[str, Any]) -> Backend:
        return self._backends[place["backend"]]

    def resolve(self, plan: Plan) -> Plan:
        return self._backends[plan.backend].resolve(plan)

    def check(self, plan: Plan) -> None:
        self._backends[plan.backend].check(plan)

    def require(self, plan: Plan) -> None:
        self._backends[plan.backend].require(plan)

    def prepare(self) -> None:
        for one in self._backends.values():
            one.prepare()

    def emulates(self, slice_: Slice) -> bool:
        return any(one.emulates(slice_) for one in self._backends.values())

    def dry_run(self, plan: Plan) -> str:
        return self._backends[plan.backend].dry_run(plan)

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        return self._backends[plan.backend].place(plan, job_id, attempt, previous)

    def refusal(self, plan: Plan, past: Past) -> Refusal:
        return refusal_of(self._backends[plan.backend], plan, past)

    def submit(self, asked: Submission) -> str:
        return self._backends[asked.plan.backend].submit(asked)

    def hand_over(self, asked: Submission) -> dict[str, Any]:
        one = self._backends[asked.plan.backend]
        assert isinstance(one, KeepsSlices)
        return one.hand_over(asked)

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """Ask each backend once, for all of its placements."""
        found: dict[int, Observation] = {}
        for name, one in self._backends.items():
            mine = [index for index, placement in enumerate(placements) if placement["backend"] == name]
            if mine:
                found |= zip(mine, one.observe([placements[index] for index in mine]), strict=True)
        return [found[index] for index in range(len(placements))]

    def last_words(self, placement: Mapping[str, Any], machines: Sequence[int]) -> str:
        one = self._of(placement)
        return one.last_words(placement, machines) if isinstance(one, KeepsBootLog) else ""

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        return self._of(placement).rate_limit(placement)

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        return self._of(placement).names_place(placement)

    def cancel(self, placement: Mapping[str, Any]) -> None:
        self._of(placement).cancel(placement)

    def leftovers(self) -> Iterable[dict[str, Any]]:
        return itertools.chain.from_iterable(one.leftovers() for one in self._backends.values())

    def secrets(self) -> Iterable[tuple[str, str]]:
        """Those of one service may be listed by several of them."""
        return dict.fromkeys(itertools.chain.from_iterable(one.secrets() for one in self._backends.values()))

    def forget(self, secret: str, job_id: str) -> bool:
        return any(one.forget(secret, job_id) for one in self._backends.values())

    def release(self, placement: Mapping[str, Any]) -> Freed:
        return self._of(placement).release(placement)


def refusal_of(backend: Backend, plan: Plan, past: Past) -> Refusal:
    """Return what the end of an attempt means for its place; nothing beyond its cause, if its backend does not tell."""
    return backend.refusal(plan, past) if isinstance(backend, TellsRefusal) else Refusal()
