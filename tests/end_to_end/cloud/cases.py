"""Shared parts of the emulated cloud's tests: running jobs, their results, and the requests of a client."""

from __future__ import annotations

from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.testing import Emulator

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
