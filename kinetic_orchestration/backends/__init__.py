"""Where attempts run: one Protocol, opened lazily by name. Backends do not know each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from kinetic_orchestration.accelerators import Slice
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.settings import Settings
from kinetic_orchestration.values import Intent, Observation, Plan


class Backend(Protocol):
    """Synchronous, bounded, idempotent verbs. A host starts its own agent: after `submit` the client observes."""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that can never run here, before anything is sent."""

    def emulates(self, slice_: Slice) -> bool:
        """Whether ordinary processors stand for the slice's chips here."""

    def place(self, plan: Plan, job_id: str, attempt: int) -> dict[str, Any]:
        """Where this attempt will be: a deterministic name, JSON. Nothing is made."""

    def submit(self, plan: Plan, job_id: str, spec_digest: str, intent: Intent, secrets: Mapping[str, str]) -> str:
        """Make the placement's hosts if they are not there. Returns a sentence if it must wait, else ''."""

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """What is there now, for many at once."""

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Wake the hosts, so that they see the cancel record now."""

    def leftovers(self) -> Iterable[dict[str, Any]]:
        """Every placement that can be found here, with its `job`, `attempt` and `age`: what the reaper looks at."""

    def release(self, placement: Mapping[str, Any]) -> bool:
        """Free everything of this placement; True once nothing is left."""


def open_backend(name: str, settings: Settings) -> Backend:
    if name == "local":
        from kinetic_orchestration.backends.local import LocalBackend

        return LocalBackend(settings.home, settings.max_hosts, settings.store, settings.deployment)
    raise UsageError(f"there is no backend {name!r}")
