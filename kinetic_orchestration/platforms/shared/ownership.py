"""Labels of everything that is created for an attempt: whose it is, and for whom it is billed.

Pure. Values have the letters that Google Cloud and Kubernetes both allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kinetic_orchestration.plan.configuration import resource_labels
from kinetic_orchestration.plan.values import Intent, Plan

LABELS_LIMIT = 64
NO_RACE = -1

OURS = resource_labels.OURS
DEPLOYMENT = f"{OURS}deployment"
JOB = f"{OURS}job"
ATTEMPT = f"{OURS}attempt"
EXPIRES = f"{OURS}expires"
SPEC = f"{OURS}spec"
SLICES = f"{OURS}slices"
RIVAL = f"{OURS}rival"
MARK = f"{OURS}mark"
WHO = ("pipeline", "step", "run", "owner")


class Owned(NamedTuple):
    """The contents of the labels on a resource of ours."""

    deployment: str
    job: str
    attempt: int
    expires: float
    spec: str
    rival: int = NO_RACE  # its number among the places of a race


def owned(found: Mapping[str, str]) -> Owned | None:
    """The contents of a resource's labels, or None for a resource that is not ours or has incomplete labels."""
    job, attempt, expires = found.get(JOB, ""), found.get(ATTEMPT, ""), found.get(EXPIRES, "")
    if not job or not attempt.isdecimal() or not expires.isdecimal():
        return None
    rival = found.get(RIVAL, "")
    number = int(rival) if rival.isdecimal() and len(rival) < 3 else NO_RACE
    return Owned(found.get(DEPLOYMENT, ""), job, int(attempt), float(expires), found.get(SPEC, ""), number)


def racing(owned: Owned) -> dict[str, int]:
    """Return the field of a placement that was found by its labels which says what place of a race it is, if any."""
    return {"rival": owned.rival} if owned.rival != NO_RACE else {}


def labels_of(plan: Plan, intent: Intent, job_id: str, spec_digest: str) -> dict[str, str]:
    """Ours, who asked for it, then the user's own: they show up in the billing export."""
    ours = {
        DEPLOYMENT: resource_labels.label(plan.deployment),
        JOB: resource_labels.label(job_id),
        ATTEMPT: str(intent.attempt),
        EXPIRES: str(int(intent.deadline)),
        SPEC: spec_digest[:20],
        **({SLICES: str(plan.slices)} if plan.slices > 1 else {}),
        **({RIVAL: str(intent.placement["rival"])} if "rival" in intent.placement else {}),
    }
    asked = {**{name: str(plan.cloud.get(name) or "") for name in WHO}, **plan.labels}
    return dict([*ours.items(), *resource_labels.sent(asked).items()][:LABELS_LIMIT])
