"""Machines for the agent's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support.on_vms import Site


@pytest.fixture(scope="module")
def storage() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


@pytest.fixture
def site(tmp_path: Path, home: Path, storage: StorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A bucket, Google's APIs as far as hosts ask them, and a room for VMs."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    site = Site(storage, tmp_path)
    yield site
    site.close()
    storage.heal()
