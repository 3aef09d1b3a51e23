"""Random schedules on a simulated Compute Engine with slices: no group, no VM and nothing they are made of is leaked."""

from __future__ import annotations

import pytest

from tests.simulation.checks import check, check_repeats
from tests.simulation.group_scenario import GROUP_FATES, GroupSchedule
from tests.simulation.mended import BROKE_ON_GROUPS

SEEDS = 200  # the gate plays more, which it draws by the date
MANY = 10_000

# What a run of all seeds must have met at least once; a simulation that never gets there cannot fail.
REACHED = """
a delete got stuck
a delete was refused
a disk outlived its VM
a failed job was asked for again
a group came before its policy or its template was ready
a group has no members: dry
a group has no members: failing
a group has no members: forbidden
a group has no members: no quota in the region
a group has no members: queue
a group has no members: quotas
a group has no members: refused
a group waited for longer than it was to
a guard spoke for its agent
a host started after its attempt's verdict
a job succeeded after attempts without hosts
a job that everybody had left was asked for later
a job was told who deleted its group or its VM
a machine lived on after its node
a place did not answer of its groups, templates or policies
a policy or a template met what was there
a policy or a template was in use
a program died of another's death
a refused delete was forgotten with its follower
a stockout named zones that have some
a whole log was read
a zone did not answer
aborted: cancelled
aborted: deadline
aborted: infrastructure
aborted: user
an accepted delete of a group did nothing
an insert met what was there
an insert was made again and recognised
another zone was tried
attempt 2 committed
closed by a client: cancelled
closed by a client: configuration
closed by a client: deadline
closed by a client: infrastructure
closed by a client: quota
closed by a client: stockout
closed without an intent: configuration
closed without an intent: deadline
everything was suspended for a while
host 0 deleted another's group
host 0 deleted its own group
host 1 deleted another's group
host 1 deleted its own group
no zone was left
only the reaper could release
operations were forgotten
somebody else was reaping
the answer to a create was lost
the answer to a release was lost
the answer to a submit was lost
the limit of provision ended a job
the rate of inserts was limited
the reaper released a placement: its attempt has its verdict
the reaper released a placement: past its deadline
two launchers raced for one identity
""".strip().splitlines()
SELDOM = [f"harm: {fate}" for fate in dict.fromkeys(GROUP_FATES)]
SELDOM += """
a cancel was heard in a queue
a group has no members: no quota
a group made a member again
a host came too late for the others
a host waited in vain for one that nobody made
a job ended with its owner
a machine may not delete its VM
a machine reached its deadline
a machine was rebooted
a repair took too long
a stale submitter submitted after the verdict
a zombie found a verdict
aborted: configuration
aborted: preemption
attempt 3 committed
closed by a client: internal
closed by a client: preemption
closed without an intent: cancelled
killed after intent.json
killed after the create call
killed after verdict.json
killed before intent.json
killed before the create call
the insert of a group was refused
the limit of provision ended a job after several attempts
the reaper came just before a deadline
""".strip().splitlines()


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.timeout(600)
def test_every_promise_holds_in_many_schedules_and_every_interesting_state_was_reached() -> None:
    check(range(SEEDS), REACHED, GroupSchedule)


def test_what_broke_a_promise_once_does_so_no_more() -> None:
    check(BROKE_ON_GROUPS, [], GroupSchedule)


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_every_promise_holds_in_thousands_of_schedules_and_seldom_states_were_reached_too() -> None:
    check(range(SEEDS, SEEDS + MANY), [*REACHED, *SELDOM], GroupSchedule)


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats(GroupSchedule)
