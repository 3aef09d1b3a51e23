"""Shared parts of the emulated cloud's tests: running jobs, their results, and the requests of a client."""

from __future__ import annotations

from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.capacity.warm.records import slices
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.platforms.registry import open_backend, open_store
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol.wire.lease import FREE, Lease
from kinetic_orchestration.testing import Emulator
from tests.support.waits import wait_until

FOUR_HOSTS = "v5e-16"


def run(function: Any, *arguments: Any, **options: Any) -> JobHandle[Any]:
    """A job on the smallest slice, or on what `options` say, that has been submitted."""
    return kinetic.run(**{"accelerator": "v5e-1", **options})(function).run_async(*arguments)


def nodes(cloud: Emulator, job: JobHandle[Any]) -> list[str]:
    """The full names of the job's nodes that exist."""
    return [str(node["name"]) for node in cloud.nodes() if job.job_id.removeprefix("job-") in str(node["name"])]


def vm(cloud: Emulator, job: JobHandle[Any], host: int = 0) -> Any:
    """One machine of a job on one slice."""
    (node,) = nodes(cloud, job)
    found = cloud.vms(node)[host]
    assert found is not None
    return found


def here() -> tuple[Store, Any]:
    """Return the store and the backend of this process's deployment."""
    found = settings.load()
    return open_store(found.store, found.deployment), open_backend("tpu-vm", found)


def leases() -> list[Lease]:
    """Return the leases of all slices that were kept."""
    return [held.lease for held in slices(here()[0])]


def free(count: int = 1) -> Lease:
    """Wait until so many slices are offered; return the newest."""
    wait_until(lambda: [one.state for one in leases()].count(FREE) == count, lambda: str(leases()), within=90.0)
    return max((one for one in leases() if one.state == FREE), key=lambda one: one.since)
