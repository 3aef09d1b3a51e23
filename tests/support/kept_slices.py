"""A deployment on an emulated cloud without hosts, whose jobs keep their slices; what hosts write is written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kinetic_orchestration.capacity.warm.shape import shape_of
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.cleanup.reaper import reap
from kinetic_orchestration.jobs.following import actions
from kinetic_orchestration.jobs.following.verdicts import glimpse
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.trust import Trust
from kinetic_orchestration.plan.values import Glimpse, Intent
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records import leases
from kinetic_orchestration.protocol.wire.lease import CLAIMED, FREE, Lease
from kinetic_orchestration.testing import Emulator
from tests.support.on_cloud import Place

ENDED_WELL = wire.Verdict(wire.COMMITTED, "host", 0.0)
TRUST = Trust(everything=True, signing_key="a key that all processes have")


def intent_of(job: Job, attempt: int = 1) -> Intent:
    found = glimpse(job, attempt).intent
    assert found is not None
    return found


def submit(job: Job, attempt: int = 1) -> str:
    """Ask for the place that an attempt intends; return why it cannot be had."""
    intent = intent_of(job, attempt)
    return actions.submit(job, attempt, Glimpse(job.store.now(), intent), {})


class Here(Place):
    """A deployment whose jobs keep their slices; what hosts write is written by hand."""

    trust = TRUST

    def __init__(self, cloud: Emulator, zones: tuple[str, ...]) -> None:
        super().__init__(cloud, zones)
        self.plan = replace(self.plan, keep=600.0)

    def kept(self, **plan: Any) -> tuple[Job, str]:
        """A job that ended well, and the name of its slice, whose labels say that it may go."""
        job = self.admit(**plan)
        actions.intend(job, 1)
        name = self.make(job.job_id, 1)
        self.store.create(names.verdict(job.job_id, 1), ENDED_WELL.encode())
        return job, name

    def lease(self, of: Job, name: str, **changes: Any) -> Lease:
        now = self.store.now()
        placement = self.backend.place(self.plan, of.job_id, 1)
        made = (of.job_id, 1)
        one = Lease(
            name, 0, FREE, shape_of(self.plan), placement, *made, *made, now + 600.0, "host", since=now
        )._replace(**changes)
        assert leases.write(self.store, one, leases.read(self.store, name))
        return one

    def claimed(self, job: Job, name: str, by: Job, **changes: Any) -> Lease:
        return self.lease(job, name, epoch=1, state=CLAIMED, job=by.job_id, until=self.store.now() + 3600.0, **changes)

    def reap(self, **how: Any) -> list[str]:
        found = reap(self.store, self.backend, self.settings, patience=60.0, **how)
        return [one.why for one in found if one.what == reaper.PLACEMENT]
