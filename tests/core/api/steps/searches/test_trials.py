"""Rules of a search: what a study hears, what a trial is told as, and who goes on with it."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_orchestration.api.steps.searches.trials import (
    ADOPT,
    COMPLETE,
    DROP,
    FAIL,
    JOB,
    LEAVE,
    PRUNED,
    RUNNING,
    UNMARKED,
    Feed,
    Patience,
    Trial,
    best_of,
    told_as,
    value_in,
    who_goes_on,
)
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.values import JobStatus

pytestmark = pytest.mark.fast


def trial(number: int = 0, state: str = RUNNING, **fields: Any) -> Trial:
    return Trial(**{"number": number, "state": state, "parameters": {"lr": 0.1}, "born": "x", **fields})


def test_a_study_hears_each_step_once_and_in_rising_order() -> None:
    feed = Feed("loss", last=2)
    told = [(1, step) for step in range(5)] + [(2, step) for step in range(3, 7)]
    heard = [feed.take(step, {"loss": 10.0 * attempt + step}, attempt) for attempt, step in told]
    assert [one for one in heard if one] == [(3, 13.0), (4, 14.0), (5, 25.0), (6, 26.0)]


def test_a_study_hears_one_metric_alone_and_none_without_a_name() -> None:
    assert Feed("loss").take(1, {"accuracy": 1.0}, 1) is None
    assert Feed(None).take(1, {"loss": 1.0}, 1) is None


def test_reports_without_a_step_are_counted_in_each_attempt() -> None:
    feed = Feed("loss")
    heard = [feed.take(None, {"loss": 1.0}, attempt) for attempt in (1, 1, 2, 2, 2)]
    assert [one and one[0] for one in heard] == [0, 1, None, None, 2]


@pytest.mark.parametrize(
    ("status", "ends", "state"),
    [
        (JobStatus.SUCCEEDED, "", COMPLETE),
        (JobStatus.SUCCEEDED, PRUNED, COMPLETE),  # it was faster than the cancel
        (JobStatus.SUCCEEDED, FAIL, FAIL),  # its metric was not a number
        (JobStatus.CANCELLED, PRUNED, PRUNED),
        (JobStatus.CANCELLED, FAIL, FAIL),
        (JobStatus.CANCELLED, "", FAIL),  # by its user
        (JobStatus.FAILED, PRUNED, FAIL),
        (JobStatus.FAILED, "", FAIL),
    ],
)
def test_what_a_trial_is_told_as(status: JobStatus, ends: str, state: str) -> None:
    assert told_as(status, ends) == state


@pytest.mark.parametrize(
    ("one", "drives", "seen_for", "does"),
    [
        (trial(marks={JOB: "job-1"}), True, 0.0, LEAVE),  # another driver is alive
        (trial(marks={JOB: "job-1"}), False, 0.0, ADOPT),
        (trial(marks={JOB: "job-1"}), None, 0.0, ADOPT),  # of another machine: two that follow one job do no harm
        (trial(), None, UNMARKED / 2, LEAVE),  # its driver may be about to mark it
        (trial(), None, UNMARKED, ADOPT),
        (trial(), False, 0.0, ADOPT),  # known dead: nobody is about to
        (trial(is_whole=False), False, 0.0, DROP),
        (trial(), True, UNMARKED, LEAVE),
        (trial(is_whole=False), None, UNMARKED, DROP),
    ],
)
def test_who_goes_on_with_a_trial(one: Trial, drives: bool | None, seen_for: float, does: str) -> None:
    assert who_goes_on(one, (), drives, seen_for) == does
    assert who_goes_on(one, {one.number: "mine"}, drives, seen_for) == LEAVE


def test_a_search_is_given_up_when_all_trials_fail_and_not_when_one_works() -> None:
    bad, mixed = Patience(2), Patience(2)
    for state in (FAIL, FAIL):
        assert not bad.is_over
        bad.saw(state)
    for state in (FAIL, PRUNED, FAIL, FAIL):
        mixed.saw(state)
    assert bad.is_over and not mixed.is_over


@pytest.mark.parametrize(
    ("result", "wanted", "value"), [(0.5, "loss", 0.5), (3, None, 3.0), ({"loss": 0.5, "x": 1}, "loss", 0.5)]
)
def test_the_value_of_a_trial(result: Any, wanted: str | None, value: float) -> None:
    assert value_in(result, wanted) == value


@pytest.mark.parametrize("result", [None, "0.5", True, {"accuracy": 1.0}, [1.0, 2.0]])
def test_a_result_without_a_number_is_refused_with_what_to_do(result: Any) -> None:
    with pytest.raises(UsageError, match="or a dict with the number 'loss'"):
        value_in(result, "loss")


def test_the_best_trial_is_complete_and_has_a_number() -> None:
    found = [
        trial(0, COMPLETE, value=float("nan")),
        trial(1, PRUNED, value=0.0),
        trial(2, COMPLETE, value=0.3),
        trial(3, COMPLETE, value=0.2),
        trial(4, FAIL),
    ]
    best, largest = (best_of(found, maximizes=maximizes) for maximizes in (False, True))
    assert best is not None and largest is not None
    assert (best.number, largest.number) == (3, 2)
    assert best_of(found[:2], maximizes=False) is None
