"""The sign of life of whoever submitted a job: nothing that is slow, or fails, may hold it back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kinetic_orchestration.errors import JobNotFound
from kinetic_orchestration.jobs.cleanup import owner
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.lifecycle import Policy
from kinetic_orchestration.platforms.local.backend import LocalBackend
from kinetic_orchestration.platforms.local.store import LocalStore, open_local
from kinetic_orchestration.protocol import names
from tests.support.waits import wait_until


class Slow(LocalStore):
    """A store in which reading a job blocks at the request for the time."""

    gate = threading.Event()
    trouble: Exception | None = None

    def now(self) -> float:
        self.gate.wait(30)
        if self.trouble is not None:
            raise self.trouble
        return super().now()


def test_a_look_that_takes_long_or_fails_holds_back_nobodys_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "OWNER_BEAT", 0.05)
    open_local(tmp_path / "store", "test")
    store = Slow(str(tmp_path / "store" / "test"), "test")
    backend = LocalBackend(tmp_path, 1, str(tmp_path), "test")
    jobs = [Job(f"job-00000000000{number}", store, backend, Policy(), "0" * 64) for number in (1, 2)]

    def beats() -> list[int]:
        records = [store.read(names.owner(job.job_id)) for job in jobs]
        return [record.generation for record in records if record is not None]

    def go_on(times: int = 3) -> None:
        for _ in range(times):
            before = beats()
            wait_until(
                lambda before=before: all(new != old for new, old in zip(beats(), before, strict=True)), within=60
            )

    for job in jobs:
        owner.beat(job)
    try:
        go_on()  # while the first look hangs
        store.trouble = RuntimeError("nobody expected that")
        store.gate.set()
        go_on()
    finally:
        store.trouble = JobNotFound("it has ended, and is forgotten")
        store.gate.set()
    wait_until(lambda: not owner._owned and not owner._going_on, within=60)
    store.trouble = None
    store.gate.clear()
    owner.beat(jobs[0])  # by threads that begin anew
    owner.beat(jobs[1])
    go_on(1)
    store.trouble = JobNotFound("it has ended, and is forgotten")
    store.gate.set()
    wait_until(lambda: not owner._owned and not owner._going_on, within=60)
