"""An emulated Compute Engine without machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.testing import Emulator
from tests.support.jobs import WITHIN


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    monkeypatch.setattr("kinetic_orchestration.platforms.google.rest.retries.PAUSES", (0.01,))
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KINETIC_ZONES", "us-central1-a")
    with Emulator(tmp_path / "cloud", hosts=False) as running:
        for name, value in running.environ(backend="compute").items():
            monkeypatch.setenv(name, value)
        yield running
        running.wait_until_empty(WITHIN)
