"""Random schedules of attempts that share chips: never above a share, nobody stuck, each turn given once."""

from __future__ import annotations

import pytest

from kinetic_orchestration.capacity.shares import records
from kinetic_orchestration.capacity.shares.line import Line
from kinetic_orchestration.capacity.shares.rules import Book, Grant, Want
from kinetic_orchestration.plan.configuration.chip_shares import parse
from kinetic_orchestration.protocol import names, wire
from tests.simulation.checks import check, check_repeats, scene
from tests.simulation.share_scenario import SharedStore, ShareSchedule, slice_of
from tests.simulation.world import EPOCH, Task, World

FIRST, SEEDS = 240, 120  # with all states; the gate plays more, which it draws by the date
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
@pytest.mark.turn(0)
@pytest.mark.timeout(600)
def test_every_promise_holds_in_many_schedules_and_every_interesting_state_was_reached() -> None:
    check(range(FIRST, FIRST + SEEDS), REACHED, ShareSchedule)


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_every_promise_holds_in_thousands_of_schedules() -> None:
    check(range(SEEDS, SEEDS + MANY), REACHED, ShareSchedule)


def test_whoever_takes_one_of_two_slices_that_yield_has_the_other_one_released_first() -> None:
    """Test the simulation: each yields for another share, of which the judge sees that it is never exceeded."""
    schedule = ShareSchedule(0, worlds := list[World]())
    (world,), judge = worlds, schedule.judge
    world._queue.clear()
    big, small, taker = (
        Want(job, 1, "v5e", chips, user=user, keeps=True)
        for job, chips, user in (("job-0", 16, "ann"), ("job-1", 8, "bob"), ("job-2", 16, "bob"))
    )
    schedule.jobs, judge.shares = [big, small, taker], parse("the shares", "v5e=24,user:*=16")
    judge.on_loss()  # nothing is known of what was used before
    left = [Grant(one, EPOCH, one.job, kept=slice_of(one.key), yields=taker.key) for one in (big, small)]
    world.write(names.BOOK, records.bytes_of(Book(grants=(*left, Grant(taker, EPOCH, "turn")))))
    for one in (big, small, taker):
        intent = {"attempt": 1, "boot": "b", "placement": {"name": slice_of(one.key)}, "allowed": 0.0}
        world.write(names.intent(*one.key), wire.encode(intent))
    for one in (big, small):
        judge.begins(one)
        schedule.slices[slice_of(one.key)] = one.key
        schedule._offered(one)

    def takes(task: Task) -> str | None:
        store = SharedStore(world, task, 0.0, {})
        return schedule._way(store, Line(store, taker, judge.shares, 1.0))

    assert scene(world, "taker", takes) == slice_of(big.key)
    assert [*judge.held] == [taker.key]


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats(ShareSchedule)
