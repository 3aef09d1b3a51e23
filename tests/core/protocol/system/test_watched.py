"""Time counts as watched from look to look, whatever a clock does while a process stands still."""

from __future__ import annotations

import pytest

from kinetic_orchestration.protocol.system import watched
from kinetic_orchestration.protocol.system.watched import Watched

pytestmark = pytest.mark.fast


def after(*looks: float, patience: float, why: str = "late") -> float:
    """The seconds for which a reason was watched that was seen at those times."""
    found = Watched("late", looks[0])
    for look in looks:
        found = found.again(why, look, patience)
    return found.seconds


def test_looks_that_follow_each_other_count_for_the_time_between_them() -> None:
    assert after(0.0, 5.0, 10.0, 15.0, patience=60.0) == 15.0
    assert after(0.0, 5.0, 10.0, patience=10.0) == 10.0


@pytest.mark.parametrize("patience", [10.0, 25.0, 60.0, 600.0])
def test_no_pause_between_two_looks_makes_a_verdict_however_long_it_was(patience: float) -> None:
    asleep = after(0.0, 86400.0, patience=patience)
    assert 0.0 < asleep <= min(patience / 2, watched.BLINK)
    assert after(86400.0, 0.0, patience=patience) == 0.0  # of a clock that went back


def test_another_reason_begins_anew() -> None:
    assert Watched("late", 0.0, 40.0).again("gone", 5.0, 60.0) == Watched("gone", 5.0)
