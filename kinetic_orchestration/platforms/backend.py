"""The protocol of a backend, on which attempts run. Backends do not know each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import Freed, Intent, Observation, Past, Plan, Staged


@dataclass(frozen=True)
class Submission:
    """An attempt whose hosts are to be made."""

    plan: Plan
    staged: Staged
    job_id: str
    spec_digest: str
    intent: Intent
    secrets: Mapping[str, str] = field(repr=False)
    key: str = field(default="", repr=False)
    """The key of this attempt alone, with which its hosts sign their result."""
    installer: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the package installer for hosts of this machine. They may hold passwords."""


class Backend(Protocol):
    """Synchronous, bounded, idempotent verbs. A host starts its own agent: after `submit` the client observes."""

    @property
    def charges(self) -> bool:
        """Whether hosts cost money for as long as they exist."""

    @property
    def shared(self) -> bool:
        """Whether every machine that uses this deployment sees the same hosts, so one of them may clean up for all."""

    @property
    def parallel(self) -> int:
        """How many calls may usefully be under way at once; 1 if a call takes microseconds."""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that can never run here, before anything is sent."""

    def prepare(self) -> None:
        """Load, beside what is done meanwhile, what the first call needs. Nothing is asked."""

    def emulates(self, slice_: Slice) -> bool:
        """Whether ordinary processors stand for the slice's chips here."""

    def dry_run(self, plan: Plan) -> str:
        """What the first attempt would ask for, for people; '' where nothing is asked of anybody."""

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        """Where this attempt will be: a deterministic name, JSON. Nothing is made. Raises NoPlace."""

    def submit(self, asked: Submission) -> str:
        """Make the placement's hosts if they are not there. Returns a sentence if it must wait, else ''."""

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """What is there now, for many at once."""

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        """Tell whether this process's own settings name the place, whoever else does: its project, a zone there is."""

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Wake the hosts, so that they see the cancel record now."""

    def leftovers(self) -> Iterable[dict[str, Any]]:
        """Every placement of this deployment that can be found: what the reaper looks at.

        Each with its `job` and `attempt`, and with its `age`, or with when it was `created` by a clock that the store's
        goes by, too. One that costs money also with what it `expires` at and its `state` in the backend's own words,
        DELETING once its end is under way. A `zone` that could not be read is an entry, too, which says why it is
        `unread`.
        """

    def secrets(self) -> Iterable[tuple[str, str]]:
        """The job and the name of each secret that is still kept for hosts outside the store."""

    def forget(self, secret: str, job_id: str) -> bool:
        """Destroy one of them, if it is this deployment's and the job's own; True once it is gone."""

    def release(self, placement: Mapping[str, Any]) -> Freed:
        """Free everything of this placement. What cannot be freed now is no exception."""
