"""Random schedules on a simulated Compute Engine: no VM and no disk is ever leaked, and no result doubled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kinetic_orchestration.plan.values import PROVISIONING, Limits, Observation, Plan, Retry
from kinetic_orchestration.platforms.google.compute import request
from kinetic_orchestration.platforms.google.compute.backend import ComputeBackend
from kinetic_orchestration.platforms.google.vms import would_submit
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing.api_rules import compute_refusals as refusals
from tests.simulation.checks import check, check_repeats, scene
from tests.simulation.cloud_scenario import DEPLOYMENT, STORE, settings_of
from tests.simulation.compute import CLIENT, STOPPING, Compute, Group, Instance
from tests.simulation.compute_scenario import SLICES, ZONES, ComputeDistance, ComputeSchedule
from tests.simulation.instances import FATES, ComputeGround
from tests.simulation.mended import BROKE_ON_COMPUTE
from tests.simulation.world import World
from tests.simulation.zones import FREE, Odds, Zone

SEEDS = 300  # the gate plays more, which it draws by the date
MANY = 10_000

# What a run of all seeds must have met at least once; a simulation that never gets there cannot fail.
REACHED = [f"harm: {fate}" for fate in dict.fromkeys(FATES)]
REACHED += """
VMs with 2 processes each
VMs with 4 processes each
a VM shut down
a VM was given no more time to shut down
a cancel was heard in a queue
a delete got stuck
a delete met an insert that was under way
a delete was refused
a disk outlived its VM
a failed job was asked for again
a guard spoke for its agent
a host started after its attempt's verdict
a job succeeded after attempts without hosts
a job that everybody had left was asked for later
a job was told who deleted its VM
a machine lived on after its node
a machine may not delete its VM
a machine reached its deadline
a machine was rebooted
a program died of another's death
a stale submitter submitted after the verdict
a stockout named zones that have some
a whole log was read
a zone did not answer
aborted: cancelled
aborted: configuration
aborted: deadline
aborted: infrastructure
aborted: preemption
aborted: user
an accepted delete did nothing
an agent did what its guard would have done
an insert met what was there
an insert succeeded, and its VM was never shown
an insert was made again and recognised
another zone was tried
attempt 2 committed
attempt 3 committed
closed by a client: cancelled
closed by a client: configuration
closed by a client: deadline
closed by a client: infrastructure
closed by a client: internal
closed by a client: quota
closed by a client: stockout
closed without an intent: cancelled
closed without an intent: configuration
closed without an intent: deadline
everything was suspended for a while
flex-start vanished without a word
flex-start waited
host 0 deleted another's VM
host 0 deleted its own VM
host 1 deleted another's VM
host 1 deleted its own VM
killed after the create call
killed before the create call
no zone was left
operations were forgotten
preempted during the commit
refused at the call: dry
refused at the call: failing
refused at the call: forbidden
refused at the call: no quota
refused at the call: no quota in the region
refused at the call: quotas
refused at the call: refused
refused by its operation: dry
refused by its operation: failing
refused by its operation: forbidden
refused by its operation: no quota
refused by its operation: no quota in the region
refused by its operation: quotas
refused by its operation: refused
somebody else was reaping
the answer to a create was lost
the answer to a release was lost
the answer to a submit was lost
the limit of provision ended a job after several attempts
the rate of inserts was limited
the reaper released a placement: its attempt has its verdict
the reaper released a placement: past its deadline
two launchers raced for one identity
""".strip().splitlines()
SELDOM = """
Google ended a VM that had run for as long as it may
a commit was faster than a cancel
a host waited in vain for one that nobody made
a job ended with its owner
a program died of its machine's end
a zombie found a verdict
aborted: stall
closed by a client: preemption
harm: guard, then user
killed after intent.json
killed after verdict.json
killed before intent.json
nobody who may start an attempt did
only the reaper could release
the reaper came just before a deadline
the reaper released a placement: TERMINATED, and nobody follows it
the reaper released a placement: a later attempt has taken its place
""".strip().splitlines()


@pytest.mark.slow
@pytest.mark.turn(8)
@pytest.mark.timeout(300)
def test_every_promise_holds_in_hundreds_of_schedules_and_every_interesting_state_was_reached() -> None:
    check(range(SEEDS), REACHED, ComputeSchedule)


def test_what_broke_a_promise_once_does_so_no_more() -> None:
    check(BROKE_ON_COMPUTE, [], ComputeSchedule)


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_every_promise_holds_in_thousands_of_schedules_and_seldom_states_were_reached_too() -> None:
    check(range(SEEDS, SEEDS + MANY), [*REACHED, *SELDOM], ComputeSchedule)


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats(ComputeSchedule)


def _scene(slice_: Any, act: Callable[[World, Compute, Plan], Observation], odds: Odds = Odds()) -> Observation:  # noqa: B008 - frozen
    """Return the observations in zones that have everything."""
    world = World(1)
    compute = Compute(world, {zone: Zone(zone, FREE, 0.0) for zone in ZONES}, odds)
    world.distance = ComputeDistance(world, ComputeGround(world, compute))
    limits = Limits(run=600.0)
    plan = Plan("train", slice_, "compute", STORE, DEPLOYMENT, limits, Retry(), project="p", zones=ZONES[:1])
    return scene(world, "somebody", lambda _task: act(world, compute, plan))


def _backend(process: str) -> ComputeBackend:
    return ComputeBackend(replace(settings_of(process), backend="compute", zones=ZONES))


def test_vms_that_a_list_does_not_show_yet_are_there() -> None:
    """They had been seen by their names, and so seemed gone."""

    def submits_and_looks(_world: World, compute: Compute, plan: Plan) -> Observation:
        backend = _backend("one")
        placement = backend.place(plan, "job-000000000000", 1)
        for _ in range(2):  # of the second time each is found there
            assert backend.submit(would_submit(plan, placement)) == ""
        assert len(compute.nodes) == 2
        for operation in compute.operations:
            compute._end(operation)
        return backend.observe([placement])[0]

    seen = _scene(SLICES[1], submits_and_looks, Odds(lag=1e6, forgetful=True))
    assert seen.state == PROVISIONING, seen


def test_operations_that_were_listed_before_an_insert_are_listed_again_once_its_vm_shows_that_it_ends() -> None:
    """A stockout counted as a failure of the VM, as the list from before the insert did not have it."""

    def looks_before_and_after(world: World, compute: Compute, plan: Plan) -> Observation:
        backend, placement = _backend("one"), _backend("another").place(plan, "job-000000000000", 1)
        backend.observe([placement])
        body = request.render(would_submit(plan, placement))[0]
        path = f"{request.zone_of(placement)}/instances/{body['name']}"
        one = Instance(path, Group(path, {"hosts": 1}), body, world.now)
        compute._make(one)
        one.state = STOPPING
        refusal = refusals.stockout("p", ZONES[0], "g2-standard-4", "", (), "stockout")
        compute._end(compute._begin("insert", path, CLIENT), refusal)
        return backend.observe([placement])[0]

    assert _scene(SLICES[0], looks_before_and_after).cause == wire.STOCKOUT
