"""Random schedules on a simulated Cloud TPU API: no slice is ever leaked, no result doubled, no zone asked in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinetic_orchestration.host.attempt import self_delete
from kinetic_orchestration.jobs import launch, lifecycle
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import open_job
from kinetic_orchestration.jobs.lifecycle import Policy
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.jobs.watching.look import look
from kinetic_orchestration.jobs.watching.poll import Poll
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.values import ABSENT, PRESENT, Limits, Observation, Plan, Retry
from kinetic_orchestration.platforms.google import vms
from tests.simulation import planted
from tests.simulation.checks import check, check_fails, check_repeats, scene
from tests.simulation.cloud import Cloud
from tests.simulation.cloud_scenario import BELIEVES, DEPLOYMENT, SLICES, STORE, ZONES, CloudSchedule, Distance
from tests.simulation.mended import BROKE_ON_THE_CLOUD
from tests.simulation.scenario import STAGED
from tests.simulation.vms import CloudGround, DistantStore
from tests.simulation.world import Task, World
from tests.simulation.zones import QUEUE, Odds, Zone

SEEDS = 300  # the gate plays more, which it draws by the date
MANY = 10_000

# What a run of all seeds must have met at least once; a simulation that never gets there cannot fail.
REACHED = """
a create call met what was there
a create call was made again and recognised
a delete got stuck
a delete was refused
a failed job was asked for again
a guard spoke for its agent
a host started after its attempt's verdict
a job succeeded after attempts without hosts
a job that everybody had left was asked for later
a machine lived on after its node
a machine may not delete its slice
a machine was rebooted
a program died of another's death
a state that nobody knows
a whole log was read
a zombie found a verdict
a zone did not answer
aborted: cancelled
aborted: configuration
aborted: deadline
aborted: infrastructure
aborted: preemption
aborted: user
another zone was tried
attempt 2 committed
attempt 3 committed
closed by a client: cancelled
closed by a client: configuration
closed by a client: deadline
closed by a client: infrastructure
closed by a client: internal
closed by a client: preemption
closed by a client: quota
closed by a client: stockout
closed without an intent: cancelled
closed without an intent: configuration
closed without an intent: deadline
everything was suspended for a while
failed in the queue: dry
failed in the queue: expired
failed in the queue: failing
harm: agent
harm: all silent
harm: cut off
harm: denied
harm: host
harm: maintenance
harm: never boots
harm: notice
harm: preempt at the end
harm: preempted
harm: reboot
harm: repair for ever
harm: slow boot
harm: stuck
harm: unready
harm: user
host 0 deleted its slice
host 1 deleted its slice
no zone was left
preempted during the commit
preempted, and the node shows 11
refused: failing
refused: forbidden
refused: no quota
refused: no quota in the region
refused: quotas
refused: refused
somebody else was reaping
the answer to a create was lost
the answer to a release was lost
the limit of provision ended a job after several attempts
the queue never said that it was active
the rate of creates was limited
the reaper released a placement: its attempt has its verdict
the zones were listed one by one
two launchers raced for one identity
waited in a queue
""".strip().splitlines()
SELDOM = """
a cancel was heard in a queue
a node outlived its queued resource
a commit was faster than a cancel
a job ended with its owner
a machine reached its deadline
a program died of its machine's end
a repair took too long
a stale submitter submitted after the verdict
aborted: stall
harm: repair
harm: user deletes all
killed after intent.json
killed after the create call
killed after verdict.json
killed before intent.json
killed before the create call
machines waited for the reaper, for want of rights
nobody who may start an attempt did
only the reaper could release
preempted, and the node shows 12
preempted, and the node shows 16
preempted, and the node shows 5
preempted, and the node shows None
the answer to a submit was lost
the reaper came just before a deadline
the reaper released a placement: FAILED, and nobody follows it
the reaper released a placement: SUSPENDED, and nobody follows it
the reaper released a placement: past its deadline
""".strip().splitlines()


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.timeout(600)
def test_every_promise_holds_in_hundreds_of_schedules_and_every_interesting_state_was_reached() -> None:
    check(range(SEEDS), REACHED, CloudSchedule)


def test_what_broke_a_promise_once_does_so_no_more() -> None:
    check(BROKE_ON_THE_CLOUD, [], CloudSchedule)


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_every_promise_holds_in_thousands_of_schedules_and_seldom_states_were_reached_too() -> None:
    check(range(SEEDS, SEEDS + MANY), [*REACHED, *SELDOM], CloudSchedule)


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats(CloudSchedule)


def _asked_in_an_hour(jobs: int) -> tuple[int, int]:
    """The number of requests of one process that follows that many queued jobs: its watcher's, and all its
    followers'."""
    world = World(1)
    cloud = Cloud(world, {zone: Zone(zone, QUEUE, float("inf")) for zone in ZONES}, Odds())
    world.distance = Distance(world, CloudGround(world, cloud))
    plan = Plan(
        "train", SLICES[0], "tpu-vm", STORE, DEPLOYMENT, Limits(run=600.0), Retry(), project="p", zones=ZONES[:1]
    )

    def main(task: Task) -> tuple[int, int]:
        store, backend = DistantStore(world), world.distance.backend_of(task)
        for number in range(jobs):
            identity = Identity(DEPLOYMENT, "simulation", str(number))
            job, _ = launch.claim(store, backend, identity, BELIEVES)
            written = launch.admit(store, job, identity, plan, STAGED, BELIEVES)
            launched = open_job(job, store, backend, BELIEVES, written=written)
            launch.provision(launched, is_new=True)
            world.fork("follower", lambda _task, of=launched: follow(Follower(of)))
        world.sleep(3600.0)
        before = _counts(task)
        world.sleep(3600.0)
        after = _counts(task)
        return after[0] - before[0], after[1] - before[1]

    return scene(world, "orchestrator", main)


def _counts(process: Task) -> tuple[int, int]:
    by_watcher = [thread.asked for thread in process.threads if "kinetic-watch" in thread.name]
    return sum(by_watcher), sum(thread.asked for thread in process.threads) - sum(by_watcher)


def test_a_watcher_asks_no_more_for_many_jobs_than_for_one_and_followers_hardly_ask() -> None:
    alone, few, many = (_asked_in_an_hour(jobs) for jobs in (1, 5, 40))
    assert alone[0] == few[0] == many[0] <= 2 * 3600 / 10
    for jobs, (_, by_followers) in ((1, alone), (5, few), (40, many)):
        assert by_followers <= 2 * jobs * (3600 / 300 + 1)  # a cancel and a verdict, in case their rings were lost


def test_a_scene_of_the_attempt_before_says_nothing_of_the_next_one() -> None:
    """Its hosts had been there for long when the next attempt was intended, which was then closed for that: a watcher
    that had been stopped for a quarter of an hour was believed by its follower.
    """
    world, job = World(1), "job-0123456789ab"
    world.distance = Distance(world, CloudGround(world, Cloud(world, {}, Odds())))

    def main(task: Task) -> tuple[Any, str, float]:
        store, cache = DistantStore(world), AttemptCache()
        placement = {"backend": "tpu-vm", "project": "p", "zone": ZONES[0], "name": "kinetic-an-attempt-1"}
        poll = Poll(world.now - 1000.0, {}, {job: Observation(PRESENT)}, {job: placement})
        seen = look(store, world.distance.backend_of(task), job, 2, Policy(), cache=cache, poll=poll)
        return seen.intent, seen.observation.state, cache.present_since

    assert scene(world, "orchestrator", main) == (None, ABSENT, 0.0)


@pytest.mark.offline
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bug", planted.PLANTED, ids=lambda bug: bug.name)
def test_every_planted_bug_is_found(bug: planted.Planted) -> None:
    assert planted.find(bug), f"no seed finds this: {bug.name}"


def _everything_is_ours(_settings: Any, _name: str, _labels: Any) -> bool:
    return True


def _as_if_each_attempt_had_hosts(cursor: Any) -> int:
    return int(cursor.attempt)


def _at_once(*_: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("module", "rule", "wrong"),
    [
        (vms, "is_ours", _everything_is_ours),
        (lifecycle, "shown", _as_if_each_attempt_had_hosts),
        (self_delete, "_wait_for_others", _at_once),
    ],
)
def test_a_wrong_rule_is_found_and_its_seed_is_told(
    monkeypatch: pytest.MonkeyPatch, module: Any, rule: str, wrong: Callable[..., Any]
) -> None:
    """Test the simulation: with one rule replaced by a wrong one, some of the first seeds must fail."""
    monkeypatch.setattr(module, rule, wrong)
    check_fails(range(300), CloudSchedule)


@pytest.mark.parametrize("bug", planted.PLANTED, ids=lambda bug: bug.name)
def test_what_is_planted_replaces_one_place_of_the_code_as_it_is_now(bug: planted.Planted) -> None:
    assert (planted.ROOT / "kinetic_orchestration" / bug.file).read_text("utf-8").count(bug.right) == 1
