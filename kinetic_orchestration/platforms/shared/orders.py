"""The orders of a host that is another machine: where the rest is, and the digests that it must have.

Pure: the same spec and intent give the same orders in any process. They contain no secrets: other users may read a
machine's metadata or a pod's manifest. The key in them is of this attempt alone, and any program on the machine may
report the attempt's result anyway. That of a slice that is kept gives orders to this slice alone.
"""

from __future__ import annotations

from typing import Any

from kinetic_orchestration.plan.values import Plan, Staged
from kinetic_orchestration.platforms.backend import Submission
from kinetic_orchestration.protocol import wire


def orders_of(asked: Submission) -> dict[str, Any]:
    """Return the orders that all hosts of an attempt share."""
    plan, staged, intent = asked.plan, asked.staged, asked.intent
    placement = intent.placement
    return {
        "wire": wire.WIRE,
        "store": f"{plan.store.rstrip('/')}/{plan.deployment}",
        "job": asked.job_id,
        "attempt": intent.attempt,
        "hosts": placement["hosts"] * plan.processes,
        "slices": placement["slices"],
        "hosts_per_slice": placement["hosts"] // placement["slices"],
        "spec": asked.spec_digest,
        "agent": staged.agent,
        "boot": intent.boot,
        "deadline": intent.deadline,
        "image": plan.image,
        "python": _python_ahead(plan, staged),
        "emulated": plan.emulated,
        **({"processes": plan.processes} if plan.processes > 1 else {}),
        **({"choice": intent.choice} if intent.choice else {}),
        **({"rival": placement["rival"]} if "rival" in placement else {}),
        **({"gpus": _gpus(plan)} if _gpus(plan) else {}),
        **({"key": asked.key} if asked.key else {}),
        **({"lease_key": asked.lease_key} if asked.lease_key else {}),
    }


def _gpus(plan: Plan) -> int:
    """The GPUs of a machine that has to wait for their driver itself; of a pod the cluster does."""
    return plan.slice.chips_per_host if plan.slice.kind == "gpu" and plan.backend == "compute" else 0


def _python_ahead(plan: Plan, staged: Staged) -> str | None:
    """The version of the Python in which the program may start before anything is prepared: "" for any, as a command
    becomes another program; None if its environment has yet to be built.
    """
    if plan.argv or staged.environment is None:
        return ""
    return staged.environment.python if staged.environment.is_bare else None
