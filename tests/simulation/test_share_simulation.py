"""Random schedules of attempts that share chips: never above a share, nobody stuck, each turn given once."""

from __future__ import annotations

import pytest

from tests.simulation.checks import check, check_repeats
from tests.simulation.share_scenario import ShareSchedule

SEEDS = 120  # the gate plays more, which it draws by the date
MANY = 5_000

# What a run of all seeds must have met at least once; a simulation that never gets there cannot fail.
REACHED = """
a big one had its turn among small ones
a big one had its turn among small ones of users who had used nothing
a kept slice was released for others
a kept slice was taken
a loser's chips were given back at once
a retried write was refused although its first try had won
a share was held whole
a slice was kept
a turn was freed at its deadline
a turn was freed that nobody had used
hosts could not be freed
hosts said nothing at their end
killed after intent.json
killed before intent.json
the answer to a create was lost
the answer to a swap was lost
""".strip().splitlines()


@pytest.mark.slow
@pytest.mark.turn(3)
def test_every_promise_holds_in_many_schedules_and_every_interesting_state_was_reached() -> None:
    check(range(SEEDS), REACHED, ShareSchedule)


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_every_promise_holds_in_thousands_of_schedules() -> None:
    check(range(SEEDS, SEEDS + MANY), REACHED, ShareSchedule)


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats(ShareSchedule)
