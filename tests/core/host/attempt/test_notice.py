"""What a host that was told to end makes of the others' beats."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic_orchestration.host.attempt.notice import Notice
from kinetic_orchestration.protocol import attempt_rules, wire

pytestmark = pytest.mark.fast

TOLD = "this host received SIGTERM"


class View:
    """The beats of the other hosts, as they were read last."""

    def __init__(self) -> None:
        self.beats: dict[int, tuple[int, wire.Beat | None]] = {}
        self.read_at = 0.0

    def beat_of(self, host: int) -> tuple[int, wire.Beat | None]:
        return self.beats.get(host, (0, None))

    def beats_read_at(self) -> float:
        return self.read_at


class Clock:
    """The notice of host 0 of three, whose view is read when it is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.view: Any = View()
        self.notice = Notice(SimpleNamespace(hosts=3, host=0), self.view)  # type: ignore[arg-type]
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def beat(self, host: int, generation: int, **said: Any) -> None:
        self.view.beats[host] = generation, wire.Beat(**{"state": wire.RUNNING, **said})

    def missing(self, after: float) -> tuple[int, ...]:
        self.now = self.view.read_at = 100.0 + after
        return self.notice.read(TOLD).missing


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(monkeypatch)
    made.beat(1, 7)
    made.beat(2, 7)
    made.notice.read(TOLD)
    return made


def test_a_host_counts_as_missing_until_it_shows_a_new_beat_or_was_told_as_well(clock: Clock) -> None:
    assert clock.missing(0.5) == (1, 2)
    clock.beat(1, 8)
    assert clock.missing(1.0) == (2,)
    clock.beat(2, 8, told=True)
    assert clock.missing(1.5) == ()


def test_a_beat_that_was_written_before_the_notice_and_read_after_it_is_no_sign_of_life(clock: Clock) -> None:
    clock.beat(1, 8)
    assert clock.missing(0.5) == (1, 2)


def test_one_that_was_not_told_long_after_all_would_have_been_shows_that_none_died(clock: Clock) -> None:
    clock.beat(1, 8)
    clock.missing(1.0)
    clock.beat(1, 9)
    assert clock.missing(2.0) == (2,)
    assert clock.missing(attempt_rules.TOLD + 0.5) == (2,)
    clock.beat(1, 10)
    assert clock.missing(attempt_rules.TOLD + 1.0) == ()


@pytest.mark.parametrize("said", [{"state": wire.DONE}, {"state": wire.ENDING, "exit": 0}])
def test_a_host_whose_program_has_ended_or_that_never_came_is_not_missing(clock: Clock, said: dict[str, Any]) -> None:
    clock.beat(1, 8, **said)
    del clock.view.beats[2]
    assert clock.missing(attempt_rules.HEARD) == ()


def test_a_host_tells_whether_another_was_told(clock: Clock) -> None:
    assert not clock.notice.read("").another_told
    clock.beat(2, 8, told=True)
    assert clock.notice.read("").another_told
    clock.beat(2, 9, told=True, state=wire.DONE)
    assert not clock.notice.read("").another_told
