"""Carries out what the lifecycle decided. Each action is idempotent; records decide between two that act at once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kinetic_orchestration import lifecycle
from kinetic_orchestration.agent import digest, names, wire
from kinetic_orchestration.backends import Backend
from kinetic_orchestration.errors import BackendError, JobNotFound, KineticError
from kinetic_orchestration.stores import Store
from kinetic_orchestration.values import Glimpse, Plan
from kinetic_orchestration.watch import decoded

ME = f"{os.getpid()}-{secrets.token_hex(6)}"  # this process, as a writer of records

DEADLINE_ALLOWANCE = 15 * 60.0
SECRETS_PATIENCE = 60.0  # a process without them only ends an attempt that nobody else has started for so long


@dataclass(frozen=True, slots=True)
class Job:
    """A job as every process can rebuild it from the store: its spec, and where it lies and runs."""

    job_id: str
    store: Store
    backend: Backend
    policy: lifecycle.Policy
    spec_digest: str

    def spec(self) -> dict[str, Any]:
        record = self.store.read(names.spec(self.job_id))
        if record is None:
            raise JobNotFound(missing(self.job_id, self.store))
        return decoded(record.data, names.spec(self.job_id))

    def plan(self) -> Plan:
        return Plan.from_json(self.spec()["plan"])


def open_job(job_id: str, store: Store, backend: Backend) -> Job:
    record = store.read(names.spec(job_id)) if isinstance(job_id, str) and job_id.replace("-", "").isalnum() else None
    if record is None:
        raise JobNotFound(missing(job_id, store))
    plan = Plan.from_json(decoded(record.data, names.spec(job_id))["plan"])
    return Job(job_id, store, backend, policy_of(plan, record.updated), digest.of_bytes(record.data))


def missing(job_id: str, store: Store) -> str:
    return (
        f"there is no job {job_id!r} in {store.url}: look at `kinetic-orchestration jobs`, and check that "
        "KINETIC_STORE and KINETIC_DEPLOYMENT are those of the submitter"
    )


def policy_of(plan: Plan, created: float) -> lifecycle.Policy:
    limits = plan.limits
    return lifecycle.Policy(
        hosts=plan.slice.hosts,
        user=plan.retry.user,
        preemption=plan.retry.preemption,
        infra=plan.retry.infra,
        provision=float(limits.provision or 0.0),
        total=float(limits.total or 0.0),
        created=created,
    )


def perform(action: lifecycle.Action, job: Job, attempt: int, seen: Glimpse, environ: Mapping[str, str]) -> str:
    """Do it; returns a sentence when the job has to wait for something."""
    if isinstance(action, lifecycle.Intend):
        intend(job, attempt)
    elif isinstance(action, lifecycle.Submit):
        return submit(job, attempt, seen, environ)
    elif isinstance(action, lifecycle.Interrupt):
        assert seen.intent is not None
        job.backend.cancel(seen.intent.placement)
    elif isinstance(action, lifecycle.Close):
        close(job, attempt, action.cause, action.reason)
    else:
        release(job, action.attempt)
    return ""


def intend(job: Job, attempt: int) -> None:
    plan = job.plan()
    run = float(plan.limits.run or 0.0)
    allowed = run + float(plan.limits.provision or 0.0) + DEADLINE_ALLOWANCE if run else 0.0
    job.store.create(
        names.intent(job.job_id, attempt),
        wire.encode(
            {
                "attempt": attempt,
                "boot": secrets.token_hex(8),
                "placement": job.backend.place(plan, job.job_id, attempt),
                "allowed": allowed,  # seconds from this record's own time to the attempt's deadline; 0: none
                "writer": ME,
            }
        ),
    )


def submit(job: Job, attempt: int, seen: Glimpse, environ: Mapping[str, str]) -> str:
    assert seen.intent is not None
    plan = job.plan()
    unset = [name for name in plan.secrets if name not in environ]
    if unset:
        if seen.now - seen.intent.created < SECRETS_PATIENCE:  # whoever has them may be about to submit
            return f"waiting for a process that has {', '.join(unset)} in its environment"
        reason = (
            f"{', '.join(unset)} must come from the environment of the process that starts attempt {attempt}, and is "
            "not set there"
        )
        close(job, attempt, wire.CONFIGURATION, reason)
        return ""
    try:
        return job.backend.submit(
            plan, job.job_id, job.spec_digest, seen.intent, {name: environ[name] for name in plan.secrets}
        )
    except BackendError as error:
        close(job, attempt, wire.INFRASTRUCTURE, str(error))
        return ""
    except KineticError as error:
        close(job, attempt, wire.CONFIGURATION, str(error))
        raise


def close(job: Job, attempt: int, cause: str, reason: str) -> None:
    if job.store.read(names.spec(job.job_id)) is None:  # forgotten, and its verdicts with it
        raise JobNotFound(missing(job.job_id, job.store))
    verdict = wire.Verdict(wire.CLOSED, ME, job.store.now(), cause=cause, reason=reason)
    job.store.create(names.verdict(job.job_id, attempt), verdict.encode())
    ring(job)


def cancel(job: Job, reason: str, by: str) -> None:
    """Ask for the end. Whoever runs the job sees the record; it stays, so a later attempt sees it too."""
    job.store.create(names.cancel(job.job_id), wire.encode({"reason": reason, "by": by, "writer": ME}))
    ring(job)


def release(job: Job, attempt: int) -> bool:
    record = job.store.read(names.intent(job.job_id, attempt))
    return record is None or job.backend.release(decoded(record.data, "an intent")["placement"])


def ring(job: Job) -> None:
    job.store.ring(job.job_id)
