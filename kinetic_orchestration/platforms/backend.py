"""The protocol of a backend, on which attempts run. Backends do not import each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import Freed, Intent, Observation, Past, Plan, Staged


@dataclass(frozen=True)
class Submission:
    """An attempt whose hosts are to be created."""

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
    """The operations by which a client creates, observes and releases the hosts of an attempt.

    Each operation is synchronous, bounded in time and idempotent: any number of clients may call it for the same
    attempt, and each may die in the middle. A host starts its own agent, so after `submit` a client only observes. A
    placement is the JSON object that `place` returned; it is stored in the attempt's intent, and every later operation
    receives it from there.
    """

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
        """Refuse a plan that can never run on this backend. Sends nothing.

        Args:
            plan: The plan of a job that is about to be submitted.

        Raises:
            UsageError: The backend cannot run this plan. The message says what to change.
        """

    def prepare(self) -> None:
        """Load in the background the modules that the first call needs. Makes no request."""

    def emulates(self, slice_: Slice) -> bool:
        """Return True if ordinary processors stand in for the slice's chips."""

    def dry_run(self, plan: Plan) -> str:
        """Return the request of the first attempt as text for users; "" if the backend makes no request."""

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        """Choose the placement of this attempt: JSON with a deterministic name. Creates nothing. Raises NoPlace."""

    def submit(self, asked: Submission) -> str:
        """Create the hosts of a placement unless they exist.

        Args:
            asked: The attempt, with everything that its hosts receive.

        Returns:
            A sentence if the call has to be repeated later, which the user sees as the reason for waiting; "" if it was
                accepted.

        Raises:
            BackendError: The hosts cannot be created. Its `cause` decides whether and where the next attempt is made.
            CredentialsError: The caller has no credentials, or they are refused.
        """

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """Return the current state of many placements, in their order."""

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        """Return True if this process's own settings name the place, by its project and zone, regardless of records."""

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Notify the hosts of a placement that the job's cancel record was written. Hosts also find it without this
        call, but later.

        Args:
            placement: The placement of the newest attempt.
        """

    def leftovers(self) -> Iterable[dict[str, Any]]:
        """Every placement of this deployment that can be found, for the reaper.

        Each has its `job` and `attempt`, and its `age`, or the time at which it was `created` by a clock that agrees
        with the store's. One that costs money also has the time at which it `expires` and its `state` in the backend's
        own words, DELETING once its deletion has begun. A `zone` that could not be read is an entry, too, with the
        reason in `unread`.
        """

    def secrets(self) -> Iterable[tuple[str, str]]:
        """Return job and name of each secret that is still stored for hosts outside the store."""

    def forget(self, secret: str, job_id: str) -> bool:
        """Delete a stored secret if it belongs to this deployment and to the job.

        Args:
            secret: Name of the secret, as `secrets` returned it.
            job_id: Its job.

        Returns:
            True once it no longer exists.
        """

    def release(self, placement: Mapping[str, Any]) -> Freed:
        """Free everything that a placement holds. A refusal is a result, and no exception.

        Args:
            placement: The placement of an attempt that has ended, or that no job wants.

        Returns:
            DONE if nothing is left, UNDER_WAY if the deletion has begun, REFUSED if it has to be requested again.
        """
