"""Scores of an evaluation, and what they are compared with.

Pure: reads results as lm-eval writes them (`results.<task>["<metric>,<filter>"]`, release 0.4.13) and says which of
them are too low or too high. Knows neither servers nor files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kinetic_orchestration.errors import UsageError

_ERROR = "_stderr"


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of one task.

    Attributes:
        task: Name of the task.
        metric: Name of the metric.
        filter: Way in which the answers were read before they were compared; "none" if there is only one.
        value: The score.
        error: Its standard error; None if there is none.
        samples: Number of prompts.
    """

    task: str
    metric: str
    filter: str
    value: float
    error: float | None = None
    samples: int = 0

    @property
    def name(self) -> str:
        """The metric, with its filter after a comma unless that is the only one."""
        return self.metric if self.filter == "none" else f"{self.metric},{self.filter}"


class Bound(NamedTuple):
    task: str
    metric: str  # with its filter, if one is named: "exact_match,strict"
    least: float | None
    most: float | None


Bounds = tuple[Bound, ...]


def checked_bounds(at_least: Any, at_most: Any) -> Bounds:
    """Return the bounds of both tables. Raises UsageError for one that is no table of tasks, metrics and numbers."""
    least = (Bound(task, metric, value, None) for task, metric, value in _entries("at_least", at_least))
    most = (Bound(task, metric, None, value) for task, metric, value in _entries("at_most", at_most))
    return (*least, *most)


def _entries(name: str, given: Any) -> Iterator[tuple[str, str, float]]:
    if given is None:
        return
    wrong = UsageError(
        f'{name} is {given!r:.200}: give numbers by task and metric, {{"gsm8k": {{"exact_match": 0.5}}}}'
    )
    if not isinstance(given, Mapping):
        raise wrong
    for task, metrics in given.items():
        if not isinstance(metrics, Mapping) or not metrics:
            raise wrong
        for metric, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise wrong
            yield str(task), str(metric), float(value)


def scores_in(document: Mapping[str, Any]) -> tuple[Score, ...]:
    """Return all scores in a file of results, by task, metric and filter. What is no number is left out."""
    results, counts = document.get("results"), document.get("n-samples")
    if not isinstance(results, Mapping):
        return ()
    found = []
    for task, metrics in sorted(results.items()):
        if not isinstance(metrics, Mapping):
            continue
        counted = counts.get(task) if isinstance(counts, Mapping) else None
        samples = counted.get("effective", 0) if isinstance(counted, Mapping) else 0
        for key, value in sorted(metrics.items()):
            metric, comma, filter_ = str(key).partition(",")
            if not comma or metric.endswith(_ERROR) or (number := _number(value)) is None:
                continue
            error = _number(metrics.get(f"{metric}{_ERROR},{filter_}"))
            found.append(Score(str(task), metric, filter_, number, error, int(_number(samples) or 0)))
    return tuple(found)


def _number(value: Any) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def by_name(scores: Iterable[Score]) -> dict[str, float]:
    """Return all scores by `task/metric`, with the filter after a comma unless it is the only one."""
    return {f"{one.task}/{one.name}": one.value for one in scores}


def below(scores: Iterable[Score], bounds: Bounds) -> tuple[str, ...]:
    """Return why the scores do not pass, one sentence for each bound that is not met; () if they pass."""
    known = list(scores)
    return tuple(reason for bound in bounds if (reason := _reason(known, bound)))


def _reason(scores: Sequence[Score], bound: Bound) -> str:
    of_task = [score for score in scores if score.task == bound.task]
    if not of_task:
        tasks = _listed(sorted({score.task for score in scores}))
        return f"{bound.task}: there is no such task among the results: {tasks or 'there are none'}"
    metric, named, filter_ = bound.metric.partition(",")
    meant = [score for score in of_task if score.metric == metric and (not named or score.filter == filter_)]
    if not meant:
        return f"{bound.task}: there is no {bound.metric}; it has {_listed(one.name for one in of_task)}"
    if len(meant) > 1:
        return f"{bound.task}: {metric} has several filters: name one, {_listed((one.name for one in meant), 'or')}"
    value = meant[0].value
    if bound.least is not None and not value >= bound.least:
        return f"{bound.task}: {bound.metric} is {value:g}, and at least {bound.least:g} is required"
    if bound.most is not None and not value <= bound.most:
        return f"{bound.task}: {bound.metric} is {value:g}, and at most {bound.most:g} is required"
    return ""


def _listed(names: Iterable[str], word: str = "and") -> str:
    *most, last = [*names] or [""]
    return f"{', '.join(most)} {word} {last}" if most else last
