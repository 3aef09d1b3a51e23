"""A backend that lets a process observe an untrusted job, and do nothing else for it.

Any user who can write to a store can write a job into it, with any plan and any intent. So such a job gets this backend
in place of its own, and any decision about it, by any record, stays within its own records: nothing is created or
requested, no slice, folder or secret is ended or removed, and only places that this process's own settings name are
observed. Its hosts still obey its records, delete themselves, and are found by the reaper by their labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.values import UNKNOWN, Freed, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import Backend, Submission


class ReadOnlyBackend:
    """A backend that only observes."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.kind = f"read-only {backend.kind}"
        self.charges, self.shared, self.parallel = backend.charges, backend.shared, backend.parallel
        self.resolve, self.check, self.require = backend.resolve, backend.check, backend.require
        self.emulates = backend.emulates
        self.dry_run, self.names_place, self.rate_limit = backend.dry_run, backend.names_place, backend.rate_limit

    def prepare(self) -> None:
        """There is no first call."""

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        raise _refused(f"attempt {attempt} of {job_id} is given no place")

    def submit(self, asked: Submission) -> str:
        raise _refused(f"attempt {asked.intent.attempt} of {asked.job_id} is not started")

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """Observe the places that our settings name; of others nothing is known, and nothing follows from that."""
        seen = [Observation(UNKNOWN, "it is not looked at from here: nobody vouches for its spec")] * len(placements)
        ours = [index for index, placement in enumerate(placements) if self.backend.names_place(placement)]
        if ours:
            observed = self.backend.observe([placements[index] for index in ours])
            for index, observation in zip(ours, observed, strict=True):
                seen[index] = observation
        return seen

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Do nothing: hosts poll the record by themselves."""

    def leftovers(self) -> Iterable[dict[str, Any]]:
        return ()

    def secrets(self) -> Iterable[tuple[str, str]]:
        return ()

    def forget(self, secret: str, job_id: str) -> bool:
        return False

    def release(self, placement: Mapping[str, Any]) -> Freed:
        return Freed.UNDER_WAY  # its hosts end by themselves


def _refused(what: str) -> BackendError:
    return BackendError(f"{what}: nobody vouches for its spec here")
