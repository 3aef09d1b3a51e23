"""The shape of a slice, by which a kept one is matched with the jobs that it may serve. Pure.

A kept slice serves a job that would have asked for exactly the same hardware, in the same way and as the same account.
The zone is not part of that, as a job may name several; nor are labels, names and limits, which are the job's own.
"""

from __future__ import annotations

import hashlib
import json

from kinetic_orchestration.plan.values import Plan

# What of the options of a cloud a slice is made with. All others are of the request or of its job.
_OF_A_SLICE = (
    *("reservation", "reservation_bound", "flex_start", "network", "subnetwork", "external_ips", "secure_boot"),
    *("service_account", "tags", "data_disks", "image", "disk_gib", "disk_type"),
)


def shape_of(plan: Plan) -> str:
    """Return the digest of all that a slice is made with, for the plan of an attempt."""
    cloud = {name: value for name in _OF_A_SLICE if (value := plan.cloud.get(name)) not in (None, "", [], (), 0)}
    shape = {
        "backend": plan.backend,
        "project": plan.project,
        "slice": [plan.slice.generation, plan.slice.topology, plan.slice.accelerator_type, plan.slice.name],
        "runtime": plan.cloud.get("runtime_version") or plan.slice.runtime_version,
        "hosts": [plan.machines, plan.slices],
        "spot": plan.spot or plan.slice.spot,
        "cloud": {**cloud, "external_ips": bool(plan.cloud.get("external_ips", True))},
    }
    return hashlib.sha256(json.dumps(shape, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
