"""The protocol of a backend, on which attempts run. Backends do not import each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import Freed, Intent, Observation, Past, Plan, Staged

if TYPE_CHECKING:
    from kinetic_orchestration.platforms.shared.places import Refusal


@dataclass(frozen=True)
class Submission:
    """An attempt whose hosts are to be created.

    Attributes:
        plan: Everything that was decided about the job.
        staged: Digests of the job's content in the store.
        job_id: The job.
        spec_digest: Digest of the job's spec, by which a host recognises the spec that it reads from the store.
        intent: The attempt, with its number, its placement and its deadline.
        secrets: Values by the names of their variables. They are never written to the store.
        key: Key of this attempt alone, with which its hosts sign their result; "" if the job is not signed.
        installer: Settings of the package installer for hosts of this machine. They may hold passwords.
        lease_key: Key of the orders by which other jobs may have the slice after this one; "" if it is not kept.
    """

    plan: Plan
    staged: Staged
    job_id: str
    spec_digest: str
    intent: Intent
    secrets: Mapping[str, str] = field(repr=False)
    key: str = field(default="", repr=False)
    installer: Mapping[str, str] = field(default_factory=dict, repr=False)
    lease_key: str = field(default="", repr=False)


class RateLimit(Protocol):
    """The rate at which this process may observe one part of a platform."""

    def wait(self) -> float:
        """Return the seconds until the next observation is allowed."""

    def take(self) -> bool:
        """Count an observation; False if it is not allowed yet."""


class Backend(Protocol):
    """The operations by which a client creates, observes and releases the hosts of an attempt.

    Each operation is synchronous, bounded in time and idempotent: any number of clients may call it for the same
    attempt, and each may die in the middle. A host starts its own agent, so after `submit` a client only observes. A
    placement is the JSON object that `place` returned; it is stored in the attempt's intent, and every later operation
    receives it from there.
    """

    @property
    def kind(self) -> str:
        """Name that two backends of a process share only if they observe alike: their jobs share one watcher."""

    @property
    def charges(self) -> bool:
        """True if hosts cost money for as long as they exist."""

    @property
    def shared(self) -> bool:
        """True if every machine that uses this deployment sees the same hosts, so that one of them may clean up for
        all."""

    @property
    def parallel(self) -> int:
        """The useful number of concurrent calls; 1 if a call takes microseconds."""

    def resolve(self, plan: Plan) -> Plan:
        """Return the plan with what this machine's configuration adds to it, by which any other machine understands it.
        Sends nothing.

        Args:
            plan: The plan of a job that is about to be submitted.

        Raises:
            UsageError: The configuration is missing or contradicts the plan.
        """

    def check(self, plan: Plan) -> None:
        """Refuse a plan that can never run on this backend. Sends nothing.

        Args:
            plan: The plan of a job that is about to be submitted.

        Raises:
            UsageError: The backend cannot run this plan. The message says what to change.
        """

    def require(self, plan: Plan) -> None:
        """Check that the platform will let a job with this plan run, once in a while. May send requests.

        Args:
            plan: The plan of a job that is about to be submitted.

        Raises:
            BackendError: Permissions or resources are missing. The message says how to get them.
        """

    def prepare(self) -> None:
        """Load in the background what the first request needs, such as a client library. Sends no request."""

    def emulates(self, slice_: Slice) -> bool:
        """Return True if ordinary processors stand in for the slice's chips.

        Args:
            slice_: The requested slice.
        """

    def dry_run(self, plan: Plan) -> str:
        """Return the request of the first attempt as text for people, or "" if the backend asks no API.

        Args:
            plan: The plan that `kinor plan` prints.
        """

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        """Choose a placement for an attempt. Creates nothing.

        Its name is deterministic, so that a client that repeats an attempt finds the hosts that another one created.

        Args:
            plan: The job's plan.
            job_id: The job.
            attempt: Number of the attempt, from 1.
            previous: Placement and end of the attempt before, or None for the first one.

        Returns:
            The placement as a JSON object, with the key `backend`. Remote backends also have `zone`, `name` and `wait`,
                the seconds to wait before `submit`.

        Raises:
            NoPlace: No place is left in which the hosts could be created.
        """

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
        """Return the current state of many placements.

        Args:
            placements: Placements of any jobs of this deployment.

        Returns:
            One observation for each, in the same order. A failed request gives UNKNOWN, from which nothing follows.
        """

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        """Return the limit that all placements of the same zone share, or None if observations are not limited.

        Args:
            placement: Placement of a job whose follower a watcher wakes.
        """

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        """Return True if this process's own settings name the place: its project, and a zone that exists.

        Placements come from the store. This check keeps a client from sending requests to places that only a forged
        record names.

        Args:
            placement: A placement that was read from the store.
        """

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Notify the hosts of a placement that the job's cancel record was written. Hosts also find it without this
        call, but later.

        Args:
            placement: The placement of the newest attempt.
        """

    def leftovers(self) -> Iterable[dict[str, Any]]:
        """Return every placement of this deployment that can be found, for the reaper.

        Returns:
            Placements, each with its `job`, its `attempt`, and its `age` in seconds or the time at which it was
                `created` by the store's clock. One that costs money also has `expires` (its deadline) and `state` in
                the backend's own words, DELETING once deletion has begun. A `zone` that could not be read is an entry
                as well, with the reason in `unread`.
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


@runtime_checkable
class TellsRefusal(Protocol):
    """A backend that knows what the answer of a place means beyond the cause by which the attempt ended."""

    def refusal(self, plan: Plan, past: Past) -> Refusal:
        """Return what the end of an attempt means for its place, and for others of the plan.

        Args:
            plan: The plan of that attempt.
            past: Its placement and its end.
        """


@runtime_checkable
class KeepsSlices(Protocol):
    """A backend whose slices can serve another job after theirs."""

    def hand_over(self, asked: Submission) -> dict[str, Any]:
        """Return the orders that the hosts of a kept slice get for an attempt, as those that are created get them, once
        everything that they need besides the store is where they look for it. May be repeated.

        Args:
            asked: The attempt, whose placement is that of the slice.

        Raises:
            BackendError: What they need could not be put there.
        """


@runtime_checkable
class Races(Protocol):
    """A backend whose attempts may ask several places at once."""

    def note_ends(self, intent: Intent, job_id: str) -> None:
        """Record why places have failed, of an attempt that is about to be closed: the next one goes by each answer."""

    def note_held(self, intent: Intent, job_id: str) -> None:
        """Record since when the hosts of places were seen to be charged for: those of losers are paid for, too."""

    def release_losers(self, placement: Mapping[str, Any]) -> Freed:
        """Release the places that have not won. May be called again."""

    def give_up(self, intent: Intent, job_id: str, ended: Mapping[int, tuple[str, str]]) -> Freed:
        """Release places that cannot win any more, by number with cause and reason, while others still may: nobody asks
        them again. May be called again."""


@runtime_checkable
class KeepsBootLog(Protocol):
    """A backend whose platform keeps what a machine has shown while it booted, whatever became of its software."""

    def last_words(self, placement: Mapping[str, Any], machines: Sequence[int]) -> str:
        """Return the end of that for users, or "" if there is nothing. Bounded, and never raises.

        Args:
            placement: The placement.
            machines: The numbers of those of its machines whose hosts have never spoken.
        """
