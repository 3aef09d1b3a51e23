"""An emulated Compute Engine of its own for each test, which may leave nothing there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.platforms.shared import places
from kinetic_orchestration.testing import Emulator
from tests.support.faults import break_hosts, load_jobs
from tests.support.jobs import placements
from tests.support.on_compute import free_rest

ZONES = ("us-central1-a", "us-central1-b", "us-east4-c")
NONE = kinetic.Retry(infra=0, preemption=0)
Break = Callable[[str], None]


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Functions to run as jobs, from a small project that needs no package: hosts run them with their own Python."""
    return load_jobs(tmp_path_factory.mktemp("compute") / "project", "compute_jobs")


@pytest.fixture(scope="session")
def submitters(jobs: Any) -> Iterator[Any]:
    """Processes of their own that submit, cancel and read, and may be killed at any line."""
    from tests.end_to_end.cloud.submitter import Submitters

    with Submitters(jobs) as found:
        yield found


@pytest.fixture
def hosts_break(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Hosts from now on run these lines before all else; they know the agent's modules."""
    return functools.partial(break_hosts, monkeypatch)


@pytest.fixture
def cloud(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """Three zones, tried in this order; whatever a test broke is mended before the cloud must become empty."""
    monkeypatch.setattr(places, "FIRST_WAIT", 0.5)
    monkeypatch.setattr(places, "PAUSE", 0.2)
    monkeypatch.setattr(retries, "PAUSES", (0.05, 0.1))
    with Emulator(zones=ZONES, python=sys.executable) as emulated:
        for name, value in {**emulated.environ(backend="compute"), "KINETIC_ZONES": ",".join(ZONES)}.items():
            monkeypatch.setenv(name, value)
        yield emulated
        emulated.clear_faults()
        emulated.compute.clear_faults()
        emulated.storage.heal()
        free_rest(emulated)
        emulated.ledger.assert_nothing_left()


def run(function: Any, *arguments: Any, **options: Any) -> JobHandle[Any]:
    """A job on one L4, or on what `options` say, that has been submitted."""
    return kinetic.run(**{"accelerator": "l4", "backend": "compute", **options})(function).run_async(*arguments)


def instances(cloud: Emulator, job: JobHandle[Any]) -> list[str]:
    """The names of the job's VMs that exist."""
    return [path.rpartition("/")[2] for path in cloud.compute.instances if job.job_id.removeprefix("job-") in path]


def vm(cloud: Emulator, job: JobHandle[Any], host: int = 0) -> Any:
    """One machine of a job."""
    found = cloud.compute.chosen(sorted(instances(cloud, job))[host]).host
    assert found is not None
    machine = found.wait()  # type: ignore[attr-defined]
    assert machine is not None
    return machine


def where(job: JobHandle[Any]) -> list[str]:
    """The zone of each attempt."""
    return [placement["zone"] for placement in placements(job)]


def made(cloud: Emulator) -> int:
    """The number of VMs created so far."""
    return cloud.ledger.count("created", "instance")
