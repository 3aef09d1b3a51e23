"""What hosts of every kind of VM run, and the emulated cloud that makes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.testing.emulator import Emulator
from tests.support.faults import load_jobs


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_jobs(tmp_path_factory.mktemp("vm") / "project", "vm_jobs")


@pytest.fixture
def cloud(home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """A cloud of the one zone that the test's module names."""
    with Emulator(zones=[request.module.ZONE], python=sys.executable) as emulated:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulated.storage.url)
        yield emulated
        emulated.clear_faults()
