"""Rules of a search: which reports a study hears, what a trial's end is told as, and who goes on with a trial. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.values import JobStatus

RUNNING, COMPLETE, PRUNED, FAIL = "RUNNING", "COMPLETE", "PRUNED", "FAIL"

# What a driver writes beside a trial.
JOB = "kinetic_job"  # the job's id, before the job is submitted
DRIVER = "kinetic_driver"  # the process that asked for it
ENDS = "kinetic_ends"  # what the trial is told as once its job has ended early, before the job is asked to
WHY = "kinetic_why"  # why it failed

UNMARKED = 60.0  # seconds that a driver may take from asking for a trial to marking it
LONGEST_WHY = 1000  # characters

ADOPT, LEAVE, DROP = "adopt", "leave", "drop"


class Trial(NamedTuple):
    """A trial as its study has it.

    Attributes:
        number: Its number in the study.
        state: RUNNING, COMPLETE, PRUNED or FAIL.
        parameters: Its parameters, by name.
        born: What its study has noted of its beginning. It never changes, all drivers read the same text, and a trial
            of another study of this name has another one.
        value: What it was told as; of a pruned one its last report, of a failed one None.
        last: The last step that was reported; -1 before the first.
        marks: What drivers wrote beside it.
        is_whole: False as long as parameters are missing, since its driver is just asking, or died then.
    """

    number: int
    state: str
    parameters: Mapping[str, Any]
    born: str
    value: float | None = None
    last: int = -1
    marks: Mapping[str, str] = MappingProxyType({})
    is_whole: bool = True


class Feed:
    """Chooses the reports of one metric that a study hears: each step once, in rising order.

    An attempt that resumes from a checkpoint reports steps again, and a follower that begins anew hears all of them.

    Args:
        metric: Name of the metric; None for none.
        last: The last step that the study has heard.
    """

    def __init__(self, metric: str | None, last: int = -1) -> None:
        self._metric = metric
        self._last = last
        self._attempt = self._count = 0

    def take(self, step: int | None, values: Mapping[str, float], attempt: int) -> tuple[int, float] | None:
        """Return the step and the value to report, or None. Reports without a step are counted in each attempt."""
        if self._metric is None or self._metric not in values:
            return None
        if attempt != self._attempt:
            self._attempt, self._count = attempt, 0
        number = self._count if step is None else step
        self._count += 1
        if number <= self._last:
            return None
        self._last = number
        return number, values[self._metric]


class Patience:
    """Counts failures, for a search in which all trials fail.

    Args:
        most: Failures in a row from the first trial on after which no other is asked for.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._failed = 0
        self._has_worked = False

    def saw(self, state: str) -> None:
        """Count a trial that has ended."""
        self._has_worked = self._has_worked or state in (COMPLETE, PRUNED)
        self._failed += state == FAIL

    @property
    def is_over(self) -> bool:
        """True if all trials failed, and these were enough of them."""
        return not self._has_worked and self._failed >= self._most


def told_as(status: JobStatus, ends: str) -> str:
    """Return what a trial is told as, by its job's end and by what the driver had `ends` it as. A job that was faster
    than that has its own value."""
    if status is JobStatus.SUCCEEDED:
        return FAIL if ends == FAIL else COMPLETE
    return PRUNED if status is JobStatus.CANCELLED and ends == PRUNED else FAIL


def who_goes_on(trial: Trial, mine: Collection[int], drives: bool | None, seen_for: float) -> str:
    """Decide about a trial that has not ended.

    Args:
        trial: The trial.
        mine: Numbers of the trials that this process follows.
        drives: Whether the process that asked for it is alive: None if that is not known, as on another machine, or
            before it has marked the trial.
        seen_for: Seconds for which this process has seen it without a job. What its study notes of its beginning is no
            measure: Optuna writes the local time of whoever asked, without its zone, and clocks differ.

    Returns:
        ADOPT to go on with its job, DROP to tell it as failed, LEAVE for now.
    """
    if trial.number in mine or drives:
        return LEAVE
    if JOB in trial.marks:
        return ADOPT
    if drives is None and seen_for < UNMARKED:  # its driver may be about to
        return LEAVE
    return ADOPT if trial.is_whole else DROP


def value_in(result: Any, wanted: str | None) -> float:
    """Return the value of a trial from its job's result: the result itself, or its entry `wanted`.

    Raises:
        UsageError: There is no number.
    """
    found = result.get(wanted) if isinstance(result, Mapping) and wanted is not None else result
    try:
        if isinstance(found, bool | str | bytes) or found is None:
            raise TypeError
        return float(found)  # also of an array with one entry
    except (TypeError, ValueError):
        entry = "" if wanted is None else f", or a dict with the number {wanted!r}"
        raise UsageError(
            f"a trial's function returned {result!r:.200}, and its value has to be a number{entry}: return one, or "
            "give value= the name of the entry, or a function of the result. The job's result is kept: the same search "
            "goes on with it"
        ) from None


def is_better(one: float, other: float, *, maximizes: bool) -> bool:
    """Return True if one value is better than another."""
    return one > other if maximizes else one < other


def best_of(found: Collection[Trial], *, maximizes: bool) -> Trial | None:
    """Return the complete trial with the best value, the first of equals; None if there is none."""
    best: Trial | None = None
    for one in found:
        if one.state != COMPLETE or one.value is None or math.isnan(one.value):
            continue
        if best is None or best.value is None or is_better(one.value, best.value, maximizes=maximizes):
            best = one
    return best
