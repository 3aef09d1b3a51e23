"""What nobody wants any more is removed, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import errors, settings
from kinetic_orchestration.agent import names, processes
from kinetic_orchestration.job import open_place
from kinetic_orchestration.reaper import reap

DAY = 86400.0


@kinetic.run(accelerator="cpu")
def quick(value: int) -> int:
    return value


@kinetic.run(accelerator="cpu")
def sleeper() -> None:
    time.sleep(600)


def _reap(**changes: object) -> list[str]:
    store, backend = open_place()
    here = settings.load(None, **changes)
    return [f"{item.what} {item.why}" for item in reap(store, backend, here)]


def _age(home: Path, days: float) -> None:
    """Make every record of the store look that old."""
    for path in (home / "store").rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - days * DAY
            os.utime(path, (then, then))


def test_a_job_past_its_retention_goes_with_what_only_it_needed(home: Path) -> None:
    job = quick.run_async(1)
    assert job.result(timeout=60) == 1
    _age(home, 40)
    store, _ = open_place()
    assert "job" in {line.split()[0] for line in _reap()}
    assert store.read(names.spec(job.job_id)) is None
    assert not [entry for entry in store.list("blobs/") if entry.size]
    with pytest.raises(errors.JobNotFound):
        kinetic.attach(job.job_id)


def test_a_failed_job_is_kept_longer_than_a_good_one(home: Path) -> None:
    job = quick.run_async(1)
    job.result(timeout=60)
    bad = _failing.run_async()
    with pytest.raises(ValueError, match="no"):
        bad.result(timeout=60)
    _age(home, 40)
    _reap()
    store, _ = open_place()
    assert store.read(names.spec(job.job_id)) is None
    assert store.read(names.spec(bad.job_id)) is not None
    _age(home, 60)
    _reap()
    assert store.read(names.spec(bad.job_id)) is None


@kinetic.run(accelerator="cpu")
def _failing() -> None:
    raise ValueError("no")


def test_a_live_job_and_its_blobs_are_never_touched(home: Path) -> None:
    job = sleeper.run_async()
    _age(home, 400)
    assert _reap() == []
    assert job.status() in (kinetic.JobStatus.PENDING, kinetic.JobStatus.RUNNING)
    job.cancel(cleanup_timeout=30)


def test_a_placement_whose_attempt_has_its_verdict_is_released(home: Path) -> None:
    """The guard and the agent were killed after the verdict, and the program lives on: F25, on this machine."""
    job = sleeper.run_async()
    deadline = time.monotonic() + 30
    while job.status() is not kinetic.JobStatus.RUNNING and time.monotonic() < deadline:
        time.sleep(0.02)
    store, backend = open_place()
    (placement,) = list(backend.leftovers())  # type: ignore[attr-defined]
    tree = processes.marked(f"KINETIC_PLACEMENT={placement['run']}")
    assert tree
    store.create(names.verdict(job.job_id, 1), b'{"wire":1,"kind":"closed","writer":"t","time":0,"cause":"cancelled"}')
    for process in sorted(tree, key=lambda process: process.pid):
        processes.send(process.pid, signal.SIGKILL)
    _age(home, 1)
    _reap()
    assert not processes.marked(f"KINETIC_PLACEMENT={placement['run']}")
    assert not Path(placement["run"]).exists()


def test_a_job_ends_with_its_owner_if_that_was_asked(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_owner_lost="abort": the submitter is killed, its beat ends, and the hosts end the job."""
    program = tmp_path / "submitter.py"
    program.write_text(
        "import time, kinetic_orchestration as kinetic\n"
        "from kinetic_orchestration.agent import rules\n"
        "@kinetic.run(accelerator='cpu')\n"
        "def sleeper():\n    time.sleep(600)\n"
        "print(sleeper.run_async().job_id, flush=True)\n"
        "time.sleep(600)\n"
    )
    env = {**os.environ, "KINETIC_ON_OWNER_LOST": "abort"}
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=env) as submitter:
        assert submitter.stdout is not None
        job = kinetic.attach(submitter.stdout.readline().strip())
        assert job.status() is not kinetic.JobStatus.CANCELLED
        submitter.kill()
    owner = home / "store" / "local" / names.owner(job.job_id)
    then = owner.stat().st_mtime - 40  # as if it had been silent for so long
    os.utime(owner, (then, then))
    with pytest.raises(errors.JobCancelled, match="its owner has given no sign of life"):
        job.result(timeout=60)
