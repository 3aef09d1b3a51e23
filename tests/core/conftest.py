"""An emulated cloud without hosts, and in it a deployment for each test, which leaves nothing there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.platforms.google.rest import retries
from kinetic_orchestration.testing import Emulator
from tests.support.kept_slices import Here
from tests.support.on_cloud import enter_deployment


@pytest.fixture(scope="module")
def clouds(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """A cloud of the zones that the test's module names."""
    with Emulator(zones=request.module.ZONES, hosts=False, creates_per_minute=None) as cloud:
        yield cloud


@pytest.fixture
def here(
    clouds: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Here]:
    """A deployment whose jobs keep their slices."""
    enter_deployment(clouds, monkeypatch, request)
    yield Here(clouds, request.module.ZONES)
    clouds.sweep()
    clouds.wait_until_empty()


@pytest.fixture
def nothing_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records and resources need not be old for the reaper, which waits for nothing."""
    monkeypatch.setattr(retries, "CLIENT_SECONDS", 0.2)
    monkeypatch.setattr(reaper, "AGAIN", 0.05)
    for patience in ("SETTLED", "UNCLAIMED"):
        monkeypatch.setattr(reaper, patience, -1e6)
