"""The number of answers that a submission waits for, one after another, before its create call: at a real distance they
determine its duration. Each request takes `DELAY`; requests that overlap were made concurrently, on any machine.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.platforms.google import preflight
from kinetic_orchestration.platforms.google.storage import store
from kinetic_orchestration.testing import Emulator

DELAY = 0.75
CREATE = "CreateQueuedResource"

# Identity; staging (a question for each thing that is there already); spec; intent; "has it ended already?"
WARM = 5
# The project's newest manifest with the question for this one; its packs; the new pack; the new manifest.
EDITED = WARM + 3
# The store's stamp; the preflight, whose longest part writes to the bucket and deletes again.
COLD = EDITED + 3
# Of those that are asked at once, some come late on a machine that is busy. One after another they were 21 when warm.
LATE = 6


class Line:
    """The arrival time of each request, and the most of them that can have waited for each other."""

    def __init__(self) -> None:
        self.came: list[tuple[float, str]] = []

    def begin(self) -> None:
        self.came.clear()

    def note(self, what: str) -> None:
        self.came.append((time.monotonic(), what))

    def before_create(self) -> list[str]:
        """One for each answer that was waited for before the next question was asked."""
        found: list[str] = []
        over = 0.0
        for at, what in sorted(self.came):
            if what == CREATE:
                return found
            if at >= over:
                found.append(what)
                over = at + DELAY
        raise AssertionError(f"no create call among {self.came}")


@pytest.fixture
def line(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    line = Line()
    with Emulator(python=sys.executable, hosts=False, zones=("us-west4-a",)) as cloud:
        for name, value in cloud.environ().items():
            monkeypatch.setenv(name, value)
        meet, answer, call = cloud.storage.meet, cloud.rest.answer, cloud.call

        def meet_later(request: Any) -> Any:
            line.note(f"{request.method} {request.target.partition('?')[0]}")
            return meet(request)

        def answer_later(method: str, target: str, headers: Any, body: bytes) -> tuple[int, bytes]:
            line.note(f"{method} {target.partition('?')[0]}")
            time.sleep(DELAY)
            return answer(method, target, headers, body)

        def called(name: str, *rest: Any, **more: Any) -> Any:
            if name == CREATE:
                line.note(CREATE)
            return call(name, *rest, **more)

        monkeypatch.setattr(cloud.storage, "meet", meet_later)
        monkeypatch.setattr(cloud.rest, "answer", answer_later)
        monkeypatch.setattr(cloud, "call", called)
        cloud.storage.delay("*", DELAY)
        yield line
        _wait_for_threads("kinetic-reap")
        cloud.storage.heal()


def _wait_for_threads(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(30.0)


@pytest.fixture
def submit(line: Line, jobs: Any) -> Callable[..., list[str]]:
    def submit(*arguments: Any) -> list[str]:
        line.begin()
        kinetic.run(accelerator="v5e-1")(jobs.returns).run_async(*arguments)
        waited = line.before_create()
        _wait_for_threads("kinetic-reap")
        return waited

    return submit


def forget_this_process() -> None:
    store._stamped.clear()
    preflight._passed.clear()


@pytest.mark.turn(3)
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_submission_waits_for_few_answers_before_its_create_call(submit: Callable[..., list[str]], jobs: Any) -> None:
    submit("the first, which makes the store")
    warm = submit("another call")
    assert len(warm) <= WARM + LATE, warm
    again = submit("another call")
    assert len(again) <= WARM + LATE, again

    project = Path(jobs.__file__).with_name("beside.py")
    project.write_text("edited = True\n")
    edited = submit("an edited project")
    assert len(edited) <= EDITED + LATE, edited

    forget_this_process()
    cold = submit("another call of another process")
    assert len(cold) <= WARM + 3 + LATE, cold

    project.write_text("edited = 'again'\n")
    forget_this_process()
    cold = submit("an edited project of another process")
    assert len(cold) <= COLD + LATE, "\n".join(cold)
