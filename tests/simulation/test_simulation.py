"""Thousands of random schedules of crashes: the promises hold in each, and every interesting state was reached."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest

from kinetic_orchestration.host.attempt.owners import Owner
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.plan.identity import Identity
from kinetic_orchestration.plan.values import Limits, Plan, Retry
from kinetic_orchestration.protocol import attempt_rules, names, wire
from tests.simulation import __main__ as simulation
from tests.simulation.__main__ import first_of, main
from tests.simulation.checks import check, check_fails, check_repeats
from tests.simulation.cloud_scenario import CloudSchedule
from tests.simulation.edges import simulated_edges
from tests.simulation.mended import BROKE, CLOUD, COMPUTE, GROUPS, LOCAL, Mend, still_broken
from tests.simulation.scenario import REQUESTS, SLICES, Judge, Schedule
from tests.simulation.slices import Ground
from tests.simulation.world import EPOCH, Odds, SimulatedStore, Task, Violation, World

SEEDS = 1_500  # the gate plays more, which it draws by the date
MANY = 10_000

# What a run of all seeds must have met at least once; a simulation that never gets there cannot fail.
REACHED = """
a commit was faster than a cancel
a failed job was asked for again
a guard spoke for its agent
a host ended itself at its deadline
a host started after its attempt's verdict
a host was rebooted
a job that everybody had left was asked for later
a job was asked for after it was forgotten
a partial placement was submitted again
a stale submitter submitted after the verdict
a submit had to wait
a zombie found a verdict
aborted: cancelled
aborted: configuration
aborted: deadline
aborted: infrastructure
aborted: preemption
aborted: stall
aborted: user
attempt 2 committed
attempt 3 committed
closed by a client: cancelled
closed by a client: configuration
closed by a client: deadline
closed by a client: infrastructure
closed without an intent: cancelled
closed without an intent: deadline
everything was suspended for a while
failed: configuration
failed: deadline
failed: infrastructure
failed: preemption
failed: stall
failed: user
harm: agent
harm: host
harm: partition
harm: preempt
harm: preempt and vanish
harm: reboot
harm: silent
harm: vanish
hosts elsewhere were given up
killed after intent.json
killed after spec.json
killed after the create call
killed before intent.json
killed before spec.json
killed before the create call
preempted during the commit
records were collected
released hosts lived on
the answer to a create was lost
the answer to a release was lost
the answer to a submit was lost
the reaper met a placement
two launchers raced for one identity
""".strip().splitlines()
SELDOM = """
killed before verdict.json
a stale intent after the verdict
killed after verdict.json
only the reaper could release
the reaper released a placement: its attempt has its verdict
the reaper released a placement: its hosts died and nobody follows them
""".strip().splitlines()


@pytest.mark.slow
@pytest.mark.turn(3)
def test_never_two_results_never_a_lost_result_never_a_leaked_placement_and_every_interesting_state_was_reached() -> (
    None
):
    check(range(SEEDS), REACHED)


def test_what_broke_a_promise_once_does_so_no_more() -> None:
    check(BROKE, [])


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("mend", [*LOCAL, *CLOUD, *COMPUTE, *GROUPS], ids=lambda mend: mend.seeds[0])
def test_each_seed_that_broke_a_promise_breaks_it_again_without_its_mend(mend: Mend) -> None:
    assert still_broken(mend) == set(mend.seeds), f"drop what is missing: it holds nothing any more ({mend.reason})"


def test_many_seeds_are_played_by_several_processes_and_told_as_if_by_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for processes in ("1", "2"):
        monkeypatch.setattr(sys, "argv", ["simulation", "--first=9909200", "--seeds=60", "--processes", processes])
        assert main() == 0
        told.append(capsys.readouterr().out.rsplit(";", 1)[0])
    assert told[0] == told[1]
    assert "60 seeds from 9909200 on" in told[0]


def test_each_day_has_seeds_of_its_own_and_one_that_breaks_a_promise_is_told_with_the_command_that_plays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    today, tomorrow = first_of(date(2026, 11, 24)), first_of(date(2026, 11, 25))
    assert tomorrow - today == 1_000_000
    monkeypatch.setattr(attempt_rules, "_all_ended_well", _first_exit_is_enough)
    monkeypatch.setattr(sys, "argv", ["simulation", "--by-date", "--seeds", "300", "--stop", "--processes", "1"])
    assert main() == 1
    told = capsys.readouterr().out
    first, seed = (int(re.search(pattern, told)[1]) for pattern in (r"from (\d+) on", r"(?m)^seed (\d+): "))  # type: ignore[index]
    assert first_of(datetime.now(UTC).date()) - first in (0, 1_000_000)  # midnight
    assert first <= seed < first + 300
    assert f"python -m tests.simulation --seed {seed}\n" in told


def test_of_each_kind_so_many_are_played_as_the_gate_plays_and_one_that_breaks_a_promise_fails_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation, "EACH", {Schedule: 4, CloudSchedule: 2})
    monkeypatch.setattr(sys, "argv", ["simulation", "--first=9909200", "--each", "--processes", "1"])
    assert main() == 0
    played = re.findall(r"(?m)^(\d+) seeds from 9909200 on, [1-9]\d* requests, 0 broke", capsys.readouterr().out)
    assert played == ["4", "2"]
    monkeypatch.setattr(simulation, "EACH", {Schedule: 40, CloudSchedule: 1})
    monkeypatch.setattr(attempt_rules, "_all_ended_well", _first_exit_is_enough)
    assert main() == 1


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_the_same_of_many_more_schedules_in_which_seldom_states_were_reached_too() -> None:
    check(range(SEEDS, SEEDS + MANY), [*REACHED, *SELDOM])


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats()


@pytest.mark.parametrize("back", [True, False])
def test_an_owner_that_wakes_after_its_hosts_has_its_whole_patience_to_say_so(back: bool) -> None:
    """All of them slept; by its age alone, its last beat is one of long ago."""
    worlds = [World(1)]
    world, found = worlds[0], []

    def owner(task: Task) -> None:
        store = SimulatedStore(world)
        for pause in (0.0, 5.0, 5.0, *((20.0,) * 3 if back else ())):  # it sleeps after the third
            world.sleep(pause)
            store.put(names.owner("job"), b"{}")

    def watcher(task: Task) -> None:
        heard = Owner()
        while world.now < EPOCH + 7300.0 and heard.silence <= attempt_rules.OWNER_PATIENCE:
            world.sleep(1.0)
            heard.heard(world.records[names.owner("job")], world.now)
        found.append(world.now - EPOCH)

    with simulated_edges(worlds):
        world.spawn("owner", owner, odds=Odds(delay=0.0))
        world.spawn("host", watcher, delay=1.0, odds=Odds(delay=0.0))
        world.at(EPOCH + 15.5, lambda: world.suspend(7200.0))
        world.run()
    assert found[0] == pytest.approx(7302.0 if back else 7215.5 + attempt_rules.OWNER_PATIENCE, abs=2.0)


@pytest.mark.parametrize("anew", [True, False])
def test_jobs_that_do_not_end_in_a_healed_world_break_a_promise_and_one_that_is_asked_for_anew_is_one_more(
    anew: bool,
) -> None:
    """Each of its hosts has requests of its own to make."""
    worlds = [World(1)]
    world = worlds[0]
    identity = Identity("test", "simulation", "1")
    plan = Plan("train", SLICES[0], "local", "memory://", "test", Limits(), Retry())
    judge = Judge(world, Ground(world, cloud=False), plan, identity)
    world.on_write = judge.on_write
    world.limits = (world.now + 100.0, REQUESTS)

    def asks(task: Task) -> None:
        store = SimulatedStore(world)
        for generation in (1, 2) if anew else (1,):
            store.put(f"identities/{generation}", wire.encode({"generation": generation}))
        world.limits = (world.limits[0], world.limits[1] - REQUESTS)  # the first job's are those that there were
        while world.requests < REQUESTS + 1_000:
            store.read(names.cancel("job"))
            world.sleep(0.001)

    with simulated_edges(worlds):
        world.spawn("follower", asks, odds=Odds(delay=0.0))
        if anew:
            world.run()
        else:
            with pytest.raises(Violation, match="healed, and yet its jobs do not come to an end"):
                world.run()
        world.end()


def test_a_healed_world_has_so_much_time_and_no_more() -> None:
    worlds = [World(1)]
    world = worlds[0]
    world.limits = (world.now + 100.0, REQUESTS)

    def waits(task: Task) -> None:
        while True:
            world.sleep(30.0)

    with simulated_edges(worlds):
        world.spawn("follower", waits)
        with pytest.raises(Violation, match="healed, and yet its jobs do not come to an end"):
            world.run()
        world.end()
    assert world.now - EPOCH == pytest.approx(120.0, abs=1.0)


def _never_spent(spent: Any, _budget: Any) -> Any:
    return spent


def _always_settled(_seen: Any, _policy: Any) -> bool:
    return True


def _first_exit_is_enough(seen: attempt_rules.Situation) -> bool:
    return seen.exit is not None and seen.exit.code == 0


@pytest.mark.parametrize(
    ("module", "rule", "wrong"),
    [
        (lifecycle, "spend", _never_spent),
        (lifecycle, "settled", _always_settled),
        (attempt_rules, "_all_ended_well", _first_exit_is_enough),
    ],
)
def test_a_wrong_rule_is_found_and_its_seed_is_told(
    monkeypatch: pytest.MonkeyPatch, module: Any, rule: str, wrong: Callable[..., Any]
) -> None:
    """Test the simulation: with one rule replaced by a wrong one, some of the first seeds must fail."""
    monkeypatch.setattr(module, rule, wrong)
    check_fails(range(300))
