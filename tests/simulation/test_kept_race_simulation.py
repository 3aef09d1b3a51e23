"""Random schedules of jobs that keep their slices and ask several places at once: one of them runs the program and may be
kept, and none is left."""

from __future__ import annotations

import pytest

from tests.simulation.checks import check, check_repeats
from tests.simulation.kept_race_scenario import KeptRaceSchedule

FEW = 6
SEEDS = 60  # the gate plays more, which it draws by the date
MANY = 5_000

# What a run of all seeds must have met at least once; a simulation that never gets there cannot fail.
REACHED = """
2 places were asked at once
3 places were asked at once
a job claimed the slice of another
a loser deleted itself
a loser was released
a program ran on a kept slice
a slice lost its race
a slice that had won its race was claimed
a slice that had won its race was offered
an attempt is to take a free slice
host ended a lease: free
place 0 won
place 1 won
place 2 won
""".strip().splitlines()


def test_every_promise_holds_in_a_few_schedules() -> None:
    check(range(FEW), [], KeptRaceSchedule)


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.timeout(600)
def test_every_promise_holds_in_many_schedules_and_every_interesting_state_was_reached() -> None:
    check(range(FEW, SEEDS), REACHED, KeptRaceSchedule)


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_every_promise_holds_in_thousands_of_schedules() -> None:
    check(range(SEEDS, SEEDS + MANY), REACHED, KeptRaceSchedule)


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats(KeptRaceSchedule)
