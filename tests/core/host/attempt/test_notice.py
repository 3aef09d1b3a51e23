"""A host that was told to end judges the others by their beats."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic_orchestration.host.attempt.notice import Notice
from kinetic_orchestration.host.machine.machine import Machine
from kinetic_orchestration.protocol import attempt_rules, wire

pytestmark = pytest.mark.fast

TOLD = "this host received SIGTERM"


class View:
    """The beats of the other hosts, as they were read last."""

    def __init__(self) -> None:
        self.beats: dict[int, tuple[int, wire.Beat | None]] = {}
        self.read_at = 0.0
        self.seconds = 5.0

    def beat_of(self, host: int) -> tuple[int, wire.Beat | None]:
        return self.beats.get(host, (0, None))

    def beats_read_at(self) -> float:
        return self.read_at

    def shows_notice(self) -> bool:
        return True

    def cadence(self) -> float:
        return self.seconds


class Clock:
    """The notice of host 0 of three, whose view is read when it is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.view: Any = View()
        at: Any = SimpleNamespace(hosts=3, host=0)
        self.notice = Notice(at, self.view, Machine(at))
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


@pytest.mark.parametrize("said", [None, {"state": wire.DONE}])
def test_a_host_that_is_done_or_never_came_is_not_missing(clock: Clock, said: dict[str, Any] | None) -> None:
    if said is None:
        del clock.view.beats[1]
    else:
        clock.beat(1, 8, **said)
    assert clock.missing(attempt_rules.HEARD) == (2,)
    assert clock.notice.read(TOLD).absent == ((1,) if said is None else ())


def test_hosts_that_beat_too_seldom_to_be_waited_for_are_never_missing(clock: Clock) -> None:
    clock.view.seconds = attempt_rules.HEARD - attempt_rules.SPARE
    assert clock.missing(0.5) == (1, 2)
    clock.view.seconds += 0.1
    assert clock.missing(1.0) == ()


def test_a_host_tells_which_others_were_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    clock.beat(1, 7)

    def told(after: float) -> tuple[int, ...]:
        clock.now = clock.view.read_at = 100.0 + after
        return clock.notice.read("").told

    assert told(1.0) == ()
    clock.beat(2, 8, told=True)
    assert told(2.0) == (2,)
    clock.beat(2, 9, told=True, state=wire.DONE)
    assert told(3.0) == ()
    assert not clock.notice.is_heard


def test_a_host_waits_for_the_others_from_the_first_moment_on(clock: Clock) -> None:
    """Before anything is read anew."""
    at: Any = SimpleNamespace(hosts=3, host=0)
    fresh = Notice(at, clock.view, Machine(at))
    assert fresh.read("").missing == ()
    assert fresh.read(TOLD).missing == (1, 2)


def test_where_ends_are_explained_a_host_knows_which_others_were_ended_also_once_they_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    at: Any = SimpleNamespace(hosts=3, host=0)
    machine = Machine(at)
    machine.is_explained = True
    notice = Notice(at, clock.view, machine)
    clock.beat(1, 7)

    def company(after: float) -> attempt_rules.Company:
        clock.now = clock.view.read_at = 100.0 + after
        return notice.company("", "")

    assert company(1.0) == attempt_rules.Company(is_explained=True)
    clock.beat(2, 8, told=True)
    assert (company(2.0).told, company(2.0).age) == ((2,), 0.0)
    clock.beat(2, 9, told=True, state=wire.DONE)
    assert (company(7.0).told, company(7.0).age) == ((2,), 5.0)
    assert not notice.is_heard
    notice.company("", TOLD)
    assert notice.is_heard
    assert Notice(at, clock.view, Machine(at)).company(TOLD, TOLD) == attempt_rules.Company()
