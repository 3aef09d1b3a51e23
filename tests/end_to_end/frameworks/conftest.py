"""Environments of the frameworks, which this session builds once, whichever of its workers comes first."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

DISK = os.environ.get("DISK_OF_TESTS")  # of the gate, whose temporary files may lie in memory


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for all workers of this session; the last of them removes it."""
    base = tmp_path_factory.getbasetemp()
    shared = Path(DISK) if DISK else base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "framework-environments"
    with (folder.parent / "framework-environments.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        folder.mkdir(exist_ok=True)  # not before: who is at its end may just be removing it
        yield folder
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def frameworks(shared_home: Path, environments: Path) -> Path:
    """The module's home, with the session's environments in it."""
    shared_home.mkdir(parents=True, exist_ok=True)
    (shared_home / "environments").symlink_to(environments)
    return shared_home


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    """A folder for gigabytes, such as hosts that each make an environment: on a disk in any case."""
    if not DISK:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=DISK, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
