"""Random schedules of jobs with a choice on a simulated cloud: one candidate and one place for each attempt."""

from __future__ import annotations

import pytest

from tests.simulation.candidate_scenario import CandidateSchedule
from tests.simulation.checks import check, check_repeats

SEEDS = 200  # the gate plays more, which it draws by the date
FEW = 20
MANY = 10_000

# What a run of all seeds must have met at least once; a simulation that never gets there cannot fail.
REACHED = """
a job succeeded after attempts without hosts
aborted: preemption
another candidate followed a preemption
another candidate was tried
attempt 2 committed
closed by a client: internal
closed by a client: preemption
closed by a client: quota
closed by a client: stockout
failed in the queue: dry
failed in the queue: expired
""".strip().splitlines()


def test_every_promise_holds_in_a_few_schedules() -> None:
    check(range(FEW), [], CandidateSchedule)


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.timeout(600)
def test_every_promise_holds_in_many_schedules_and_every_interesting_state_was_reached() -> None:
    check(range(FEW, SEEDS), REACHED, CandidateSchedule)


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_every_promise_holds_in_thousands_of_schedules() -> None:
    check(range(SEEDS, SEEDS + MANY), REACHED, CandidateSchedule)


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats(CandidateSchedule)
