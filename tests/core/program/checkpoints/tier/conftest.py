"""A bucket with the checkpoints of a host, and the folder of its machine for copies of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.host.prepare import tier as places
from kinetic_orchestration.program.checkpoints.commits import Commit
from kinetic_orchestration.program.checkpoints.store import open_checkpoints
from kinetic_orchestration.program.checkpoints.tier.folder import SHARE
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.core.program.conftest import Host


@pytest.fixture(autouse=True)
def room(tmp_path: Path) -> None:
    """Tell a full disk apart from a defect: copies are kept where a part of it stays free."""
    disk = shutil.disk_usage(tmp_path)
    needed = disk.total // SHARE + (1 << 30)
    assert disk.free > needed, f"the disk of {tmp_path} has {disk.free >> 30} GiB free, and needs {needed >> 30}"


@pytest.fixture(scope="module")
def storage() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


class Place:
    """A bucket in which a training stores its checkpoints, and its machine."""

    def __init__(self, storage: StorageServer, address: str, home: Path) -> None:
        self.storage = storage
        self.address = address
        self.home = home
        self.root = home / "tier" / places.key_of(address)

    def copies(self, name: str = "t") -> list[Path]:
        """Return all files that are kept on the machine, locks excepted."""
        return sorted(path for path in (self.root / name).glob("slot-*/*") if path.is_file())

    def commits(self, name: str = "t") -> list[Commit]:
        """Return the committed checkpoints, oldest first."""
        there = open_checkpoints(f"{self.address}/{name}", "reader")
        try:
            return [there.read(one.folder) for one in reversed(there.folders()) if one.committed]
        finally:
            there.close()

    def fetched(self, since: int = 0) -> list[str]:
        """Return the parts that were downloaded whole or in pieces."""
        return [
            call.where.rpartition("/")[2]
            for call in self.storage.calls[since:]
            if call.verb == "get" and call.where.endswith(".safetensors")
        ]


@pytest.fixture
def place(
    storage: StorageServer, host: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """This process as a host on a machine of its own, whose checkpoints are in a bucket."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    monkeypatch.delenv("TMPDIR", raising=False)
    address = f"{storage.make_bucket('b-' + os.urandom(6).hex())}/prod/checkpoints/key"
    found = Place(storage, address, tmp_path / "home")
    monkeypatch.setenv(places.DISK, str(found.root))
    host()
    monkeypatch.setenv("KINETIC_CHECKPOINT_DIR", address)
    yield found
    storage.heal()
    places.keep_only(str(found.home))


@pytest.fixture
def begin(place: Place, host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make this process the host of another attempt, by another program on the same machine."""

    def become(attempt: int) -> None:
        host(attempt)
        monkeypatch.setenv("KINETIC_CHECKPOINT_DIR", place.address)

    return become
