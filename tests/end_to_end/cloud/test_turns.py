"""Jobs that share chips, over a whole emulated cloud: what a process asks while its job waits for its turn."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.capacity.shares import records
from kinetic_orchestration.capacity.shares.rules import SHOWN, Want
from kinetic_orchestration.plan.values import Change
from kinetic_orchestration.platforms.google.rest import call_listeners
from kinetic_orchestration.platforms.google.rest.call_listeners import Call
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.cloud.conftest import ZONES
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.turn(4)]
WITHIN = 120.0
LOOKED = 12.0  # seconds for which requests are counted


class Followed:
    """A job that a thread of its own follows, and what that thread asks the store."""

    def __init__(self, job: Any) -> None:
        self.job, self.told, self.has_ended = job, list[str](), threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self) -> None:
        if self.job.follow(self._heard, timeout=2 * WITHIN) is not None:
            self.has_ended.set()

    def _heard(self, event: object) -> None:
        if isinstance(event, Change):
            self.told.append(event.message)

    def waits(self, where: str) -> None:
        wait_until(lambda: any(where in message for message in self.told), f"{where} in {self.told}", within=WITHIN)


def launched(jobs: Any, *arguments: Any) -> Any:
    return kinetic.run(accelerator="v5e-4")(jobs.until).run_async(*arguments)


def come_before(store: Any, number: int) -> None:
    """Have so many others wait, each of which comes before every job of the tests."""
    for one in range(number):
        want = Want(f"job-{one:x}", 1, "v5e", 4, priority=9, user=f"u{one}", since=store.now())
        store.put(records.name_of(want), b"")


def test_a_job_far_back_in_the_line_asks_rarely_and_hears_of_its_end_at_once(
    cloud: Emulator, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 waiting jobs with shares at a bounded number of requests a minute for each, fewer the further back: all
    that the process asks which follows one, and not its place in the line alone."""
    monkeypatch.setenv("KINETIC_CHIPS", "v5e=4")
    asked = Counter[str]()

    def count(call: Call) -> None:
        if call.service == "storage":
            asked[threading.current_thread().name] += 1

    holds = launched(jobs, str(tmp_path / "go"))
    come_before(holds._job.store, 2 * SHOWN)
    with call_listeners.listening(count):
        first = Followed(launched(jobs, str(tmp_path / "go")))
        first.waits("in line for 4")
        back = Followed(launched(jobs, str(tmp_path / "go")))
        back.waits(f"behind {SHOWN} of")
        asked.clear()
        time.sleep(LOOKED)  # as long as requests are counted
        found = dict(asked)
        back.job.cancel()
        is_heard = back.has_ended.wait(WITHIN)
    for one in range(2 * SHOWN):
        records.leave(holds._job.store, (f"job-{one:x}", 1))
    (tmp_path / "go").touch()
    assert found.get(back.thread.name, 0) <= 4, f"the rest of its first step, if any: {found}"
    assert sum(found.values()) <= 3 * LOOKED, f"of the one that decides for all, and of the listings of both: {found}"
    assert is_heard
    assert back.job.status() is kinetic.JobStatus.CANCELLED
    assert holds.result(timeout=WITHIN)
    assert first.has_ended.wait(WITHIN)
    assert first.job.status() is kinetic.JobStatus.SUCCEEDED


def test_chips_of_a_request_that_found_nothing_are_free_once_it_is_deleted(
    cloud: Emulator, jobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has the whole share, so its next attempt needs the chips of the one before: not ten minutes later."""
    monkeypatch.setenv("KINETIC_CHIPS", "v5e=4")
    cloud.stockout(ZONES[0])
    cloud.slow_delete(1.0)
    job = kinetic.run(accelerator="v5e-4")(jobs.attempt).run_async()
    assert job.result(timeout=WITHIN) == 1
    assert job.zone == ZONES[1]
    cloud.wait_until_empty(60)
