"""What every test shares: a home of its own, and the proof that it left nothing running there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.agent import processes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """KINETIC_HOME for this test alone. Afterwards no process of it may live, and no lock may be left."""
    yield from _own_home(tmp_path / "home", monkeypatch)


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same for all tests of a module, whose jobs then find their project staged."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield from _own_home(tmp_path_factory.mktemp("shared") / "home", monkeypatch)


def _own_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in [name for name in os.environ if name.startswith("KINETIC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_HOME", str(folder))
    yield folder
    left = _left(folder, within=10.0)
    for process in left:
        processes.send(process.pid, signal.SIGKILL)
    locks = sorted(path.name for path in (folder / "run").glob("*/host-*.json")) if not left else []
    assert not left, f"processes were left behind: {left}"
    assert not locks, f"locks were left behind: {locks}"


def _left(folder: Path, within: float) -> list[processes.Process]:
    """Processes that carry a placement of this home in their environment, once they had time to end."""
    deadline = time.monotonic() + within
    while True:
        left = list(_of(folder))
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _of(folder: Path) -> Iterator[processes.Process]:
    wanted = f"KINETIC_PLACEMENT={folder}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environ = Path(f"/proc/{entry}/environ").read_bytes()
            arguments = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if wanted in environ or f"home={folder}".encode() in arguments.split(b"\0"):
            process = processes.find(int(entry))
            if process is not None and not process.zombie:
                yield process
