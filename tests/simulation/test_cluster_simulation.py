"""Random schedules on simulated clusters: no set is ever leaked, no result doubled, no pod of another life joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinetic_orchestration.host.attempt.opening import Opening
from kinetic_orchestration.plan.values import ABSENT, Freed, Observation
from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
from kinetic_orchestration.protocol import wire
from tests.simulation.checks import check, check_fails, check_repeats
from tests.simulation.cluster_scenario import ClusterSchedule

SEEDS = 150  # `nox -s simulate` plays more, which it draws by the date
MANY = 5_000

# What a run of all seeds must have met at least once; a simulation that never gets there cannot fail.
REACHED = """
a Job was about to fail while pods of it ended
a create call met what was there
a failed job was asked for again
a guard spoke for its agent
a host started after its attempt's verdict
a job succeeded after attempts without hosts
a job that everybody had left was asked for later
a list had pages
a page had expired
a pod had no node while its siblings ran
a pod was taken before its agent was there
a pod was told before its agent was there, and somebody else said why
a set went by itself an hour after its end
aborted: cancelled
aborted: deadline
aborted: infrastructure
aborted: preemption
aborted: user
another place was tried
attempt 2 committed
closed by a client: cancelled
closed by a client: deadline
closed by a client: infrastructure
closed by a client: quota
everything was suspended for a while
harm: evicted
harm: kueue
harm: stuck
harm: unready
pods of a set came a second time
pods waited for nodes
the API was busy
the answer to a create was lost
the answer to a list was lost
the reaper released a placement: its attempt has its verdict
two launchers raced for one identity
waited in a queue
""".strip().splitlines()
SELDOM = """
a frozen host 0 was given up by the others
a job ended with its namespace
a machine lived on after its node
a place was left for want of patience
a pod of another life did not join
a pod started after its deadline
a pod stayed long after its deletion
a set was refused by a namespace that is gone
a stale submitter submitted after the verdict
aborted: configuration
closed by a client: preemption
closed by a client: stockout
harm: agent
harm: all killed
harm: deleted
harm: frozen
harm: host
harm: namespace deleted
harm: node lost
harm: node silent
harm: out of memory
harm: set deleted
harm: suspended by hand
killed after the create call
killed before the create call
the answer to a submit was lost
the cluster ended a set at its deadline
the reaper released a placement: past its deadline
""".strip().splitlines()


@pytest.mark.slow
@pytest.mark.turn(3)
def test_every_schedule_keeps_every_promise() -> None:
    check(range(SEEDS), REACHED, ClusterSchedule)


@pytest.mark.offline
@pytest.mark.timeout(3600)
def test_very_many_schedules_do() -> None:
    check(range(SEEDS, MANY), [*REACHED, *SELDOM], ClusterSchedule)


def test_the_same_seed_is_the_same_schedule_byte_for_byte_in_every_process() -> None:
    check_repeats(ClusterSchedule)


def _everything_is_ours(_backend: Any, _found: Any) -> bool:
    return True


def _as_if_nothing_were_there(_backend: Any, _placement: Any, error: Any) -> Observation:
    return Observation(ABSENT, str(error))


def _as_if_it_were_freed(_backend: Any, _placement: Any) -> Freed:
    return Freed.DONE


def _as_if_it_were_the_first(opening: Any, *, shares_machine: bool) -> None:
    del shares_machine
    life = wire.encode({"boot": opening._at.boot, "pid": 1, "machine": "m", **opening._machine.start_facts()})
    opening._view.records.create(opening._at.own("started.json"), life)


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.parametrize(
    ("module", "rule", "wrong", "told", "first"),
    [
        (KubernetesBackend, "_is_ours", _everything_is_ours, "which is not ours", 0),
        (KubernetesBackend, "_unseen", _as_if_nothing_were_there, "was ended for no reason|before the verdict", 30),
        (KubernetesBackend, "release", _as_if_it_were_freed, "nobody has asked for the deletion|leaked", 10),
        (Opening, "claim", _as_if_it_were_the_first, "runs its program twice", 160),
    ],
)
def test_a_wrong_rule_is_found_and_its_seed_is_told(
    monkeypatch: pytest.MonkeyPatch, module: Any, rule: str, wrong: Callable[..., Any], told: str, first: int
) -> None:
    """Test the simulation: with one rule replaced by a wrong one, some of 600 seeds must fail; the `first` that is played
    is near one that did."""
    monkeypatch.setattr(module, rule, wrong)
    check_fails((*range(first, 600), *range(first)), ClusterSchedule, told)
