"""Thousands of random schedules of crashes: the promises hold in each, and every interesting state was reached."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration import lifecycle
from kinetic_orchestration.agent import rules
from tests.simulation.edges import simulated_edges
from tests.simulation.scenario import Failed, play, trace_of
from tests.simulation.world import World

SEEDS = 3_000
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


def _check(seeds: range, states: list[str]) -> None:
    worlds: list[World] = []
    failures, reached = [], Counter[str]()
    with simulated_edges(worlds):
        for seed in seeds:
            try:
                play(seed, worlds)
            except Failed as failed:
                failures.append(failed)
            reached.update(worlds[-1].reached)
    summary = "\n".join(str(failed).splitlines()[0] for failed in failures[:20])
    assert not failures, f"{len(failures)} of {len(seeds)} seeds broke a promise:\n{summary}\n\n{failures[0]}"
    assert [state for state in states if not reached[state]] == []


def test_never_two_results_never_a_lost_result_never_a_leaked_placement_and_every_interesting_state_was_reached() -> (
    None
):
    _check(range(SEEDS), REACHED)


@pytest.mark.offline
@pytest.mark.timeout(1800)
def test_the_same_of_many_more_schedules_in_which_seldom_states_were_reached_too() -> None:
    _check(range(SEEDS, SEEDS + MANY), [*REACHED, *SELDOM])


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    seed, root = 24, Path(__file__).parents[2]
    worlds: list[World] = []
    with simulated_edges(worlds):
        play(seed, worlds)
    elsewhere = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed)],
        cwd=root, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert elsewhere.stdout.rstrip("\n") == trace_of(worlds[-1])


def _never_spent(spent: Any, _budget: Any) -> Any:
    return spent


def _always_settled(_seen: Any, _policy: Any) -> bool:
    return True


def _first_exit_is_enough(view: rules.View) -> bool:
    return view.exit is not None and view.exit.code == 0


@pytest.mark.parametrize(
    ("module", "rule", "wrong"),
    [
        (lifecycle, "spend", _never_spent),
        (lifecycle, "settled", _always_settled),
        (rules, "_all_ended_well", _first_exit_is_enough),
    ],
)
def test_a_wrong_rule_is_found_and_its_seed_is_told(
    monkeypatch: pytest.MonkeyPatch, module: Any, rule: str, wrong: Callable[..., Any]
) -> None:
    """Who watches the simulation: with one rule replaced by a wrong one, some of the first seeds must fail."""
    monkeypatch.setattr(module, rule, wrong)
    worlds: list[World] = []
    with simulated_edges(worlds), pytest.raises(Failed, match=r"python -m tests\.simulation --seed \d+"):
        for seed in range(300):
            play(seed, worlds)
