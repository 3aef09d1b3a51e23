"""Random schedules of jobs whose attempts ask several places at once: one of them runs the program, and none is left."""

from __future__ import annotations

import pytest

from tests.simulation.checks import check, check_repeats
from tests.simulation.race_scenario import RaceSchedule

SEEDS = 200  # the gate plays more, which it draws by the date
FEW = 20
MANY = 10_000

# What a run of all seeds must have met at least once; a simulation that never gets there cannot fail.
REACHED = """
2 places were asked at once
3 places were asked at once
a loser deleted itself
a loser was released
a race was closed once all its places had failed
a silent place was given up, and not its race
a slice lost its race
place 0 won
place 1 won
place 2 won
the reaper gave up one place
""".strip().splitlines()


def test_every_promise_holds_in_a_few_schedules() -> None:
    check(range(FEW), [], RaceSchedule)


@pytest.mark.slow
@pytest.mark.turn(6)
@pytest.mark.timeout(600)
def test_every_promise_holds_in_many_schedules_and_every_interesting_state_was_reached() -> None:
    check(range(FEW, SEEDS), REACHED, RaceSchedule)


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_every_promise_holds_in_thousands_of_schedules() -> None:
    check(range(SEEDS, SEEDS + MANY), REACHED, RaceSchedule)


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats(RaceSchedule)
