"""An emulated cloud of its own for each test, which points this process at it and may leave nothing there."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.capacity.warm import releasing
from kinetic_orchestration.capacity.warm.records import slices
from kinetic_orchestration.jobs.job import ME
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.cases import here
from tests.support.faults import load_jobs

ZONES = ("us-west4-a", "us-central1-a", "europe-west4-b")
GONE_WITHIN = 150.0  # the second host deletes after 55 s, should the first be dead


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Functions to run as jobs, from a small project that needs no package: hosts run them with their own Python."""
    return load_jobs(tmp_path_factory.mktemp("cloud") / "project", "cloud_jobs")


@pytest.fixture(scope="session")
def submitters(jobs: Any) -> Iterator[Any]:
    """Processes of their own that submit, cancel and read, and may be killed at any line."""
    from tests.end_to_end.cloud.submitter import Submitters

    with Submitters(jobs) as found:
        yield found


@pytest.fixture
def cloud(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """Three zones, tried in this order; whatever a test broke is mended before the cloud must become empty."""
    with Emulator(zones=ZONES, python=sys.executable) as emulated:
        for name, value in {**emulated.environ(), "KINETIC_ZONES": ",".join(ZONES)}.items():
            monkeypatch.setenv(name, value)
        yield emulated
        emulated.clear_faults()
        emulated.storage.heal()
        emulated.wait_until_empty(GONE_WITHIN)
        emulated.ledger.assert_nothing_left()


@pytest.fixture
def nothing_kept(cloud: Emulator) -> Iterator[None]:
    """Release what a test has left warm, as its user would."""
    yield
    cloud.clear_faults()
    cloud.storage.heal()
    store, backend = here()
    deadline = time.monotonic() + GONE_WITHIN
    while cloud.leaks() and time.monotonic() < deadline:  # a slice that is still cleaned is offered in a moment
        for held in slices(store):
            releasing.release_slice(store, backend, held.lease.slice, "the test is over", writer=ME, force=True)
        time.sleep(0.2)
