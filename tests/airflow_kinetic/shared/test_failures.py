"""The display of a job's exception by its task, without a task."""

from __future__ import annotations

import traceback

import pytest

from airflow_kinetic.shared import outcome
from kinetic_orchestration.plan.values import JobStatus, Outcome
from kinetic_orchestration.protocol import wire


def raised(kind: str) -> BaseException:
    try:
        try:
            raise KeyError("rate")
        except KeyError as error:
            if kind == "caused":
                raise ValueError("no learning rate") from error
            if kind == "grouped":
                raise ExceptionGroup("two of it", [error, _deeper()]) from None
        if kind == "plain":
            raise ValueError("negative")
    except Exception as error:
        return error
    raise AssertionError(kind)


def _deeper() -> Exception:
    try:
        _raise()
    except ValueError as error:
        return error
    raise AssertionError


def _raise() -> None:
    raise ValueError("the one that is deepest")


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("plain", 'raise ValueError("negative")'),
        ("caused", 'raise ValueError("no learning rate") from error'),
        ("grouped", 'raise ValueError("the one that is deepest")'),
    ],
)
def test_the_last_frame_is_the_line_that_raised(kind: str, source: str) -> None:
    shown = outcome.last_frame("".join(traceback.format_exception(raised(kind)))).splitlines()
    assert shown[0].startswith('  File "')
    assert shown[1].strip() == source
    assert all(set(line.strip()) <= set("^~") for line in shown[2:])


def test_of_a_text_without_frames_there_is_no_last_one() -> None:
    assert outcome.last_frame("ValueError: x") == outcome.last_frame("") == ""


def ended() -> Outcome:
    failure = wire.Failure(
        "builtins.ValueError", "x", 'Traceback:\n  File "train.py", line 1, in f\n    raise\nValueError: x'
    )
    verdict = wire.Verdict(wire.ABORTED, "host", 0.0, cause=wire.USER, host=2, failure=failure)
    return Outcome(JobStatus.FAILED, 1, verdict, wire.USER)


@pytest.mark.parametrize("kind", ["plain", "caused"])
def test_the_remote_traceback_is_the_last_of_the_causes(kind: str) -> None:
    error = raised(kind)
    own = error.__cause__
    assert isinstance(error, Exception)
    outcome.log_failure(error, ended(), "job-1")
    assert error.__cause__ is own or kind == "plain"
    last: BaseException = error
    while last.__cause__ is not None:
        last = last.__cause__
    assert isinstance(last, outcome.RemoteTraceback)
    assert "on host 2 of job job-1" in str(last)
    assert "in f" in str(last)


def test_causes_that_go_round_end() -> None:
    error, other = ValueError("x"), ValueError("y")
    error.__cause__, other.__cause__ = other, error
    outcome.log_failure(error, ended(), "job-1")
    assert error.__cause__ is other
