"""Reads off a job's own records what the lineage of its model says of it.

It takes a job by its handle, and writes nothing.
"""

from __future__ import annotations

import math
from typing import Any

from kinetic_orchestration.api.handle import JobHandle, attach
from kinetic_orchestration.api.opening import split_address
from kinetic_orchestration.errors import JobNotFound, KineticError, UsageError
from kinetic_orchestration.plan.messages import warn
from kinetic_orchestration.plan.values import Metrics, Staged


def handle_of(job: JobHandle[Any] | str | None, model: str) -> JobHandle[Any] | None:
    """Return the job of a model: the one given, else the one in whose folder of outputs the model is.

    Raises:
        JobNotFound: There is no job of the id that was given.
    """
    if isinstance(job, JobHandle):
        return job
    if isinstance(job, str) and job:
        return attach(job)
    if job is not None:
        raise UsageError(f"job={job!r}: give a JobHandle or the id of a job")
    try:
        if split_address(model)[0] == model:
            return None
        return attach(model)
    except KineticError as error:
        if not isinstance(error, JobNotFound):
            warn(f"the lineage of {model} has no job, since that cannot be read: {error}")
        return None


def facts_of(handle: JobHandle[Any]) -> dict[str, Any]:
    """Return the fields of a lineage that are about a job: itself, its code, data, requirements, cost and metrics.

    Raises:
        UsageError: The job has not ended, so its outputs may change.
    """
    status = handle.status()
    if not status.final:
        raise UsageError(
            f"{handle.job_id} has not ended ({status.value.lower()}), so its model may change while it is copied: wait "
            "for its result, then promote"
        )
    job = handle._job
    staged, plan = Staged.from_json(job.spec()["staged"]), job.plan()
    environment = staged.environment
    lock = (
        {"lock": environment.lock, "python": environment.python, "packages": environment.packages}
        if environment
        else {}
    )
    return {
        "job": {
            "id": handle.job_id,
            "name": handle.func_name,
            "status": status.value,
            "store": job.store.url,
            "submitted": handle.created_at,
            "accelerator": handle.accelerator,
            "where": handle.where,
            "attempts": handle.attempts(),
            "origin": dict(handle.origin),
        },
        "code": {"tree": staged.tree, "call": staged.payload.digest if staged.payload else "", "argv": list(plan.argv)},
        "data": [
            {"digest": piece.digest, **({"uri": where} if (where := piece.url or piece.here) else {})}
            for piece in staged.data
        ],
        "requirements": lock or {"interpreter": staged.python},
        "cost": _cost(handle),
        "metrics": _metrics(handle),
    }


def _cost(handle: JobHandle[Any]) -> dict[str, Any]:
    found = handle.cost()
    return {
        "usd": found.usd,
        "charged": not found.uncharged,
        "chip_hours": round(found.chip_hours, 6),
        "ready_seconds": round(found.ready_seconds, 3),
        "hardware": found.hardware,
        "prices_of": found.date,
    }


def _metrics(handle: JobHandle[Any]) -> dict[str, float]:
    """Return the last finite value of each metric that host 0 has reported."""
    found: dict[str, float] = {}
    for event in handle.events():
        if isinstance(event, Metrics) and event.host == 0:
            found |= {name: float(value) for name, value in event.values.items() if math.isfinite(value)}
    return found
