"""Budgets: the most that the jobs of a pipeline, or of all pipelines, may cost in a calendar month (UTC). Pure.

    retrain=500USD,total=2000USD,*=300USD:warn

A budget is in US dollars, as prices are. It knows neither what a job is nor what was spent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from kinetic_orchestration.errors import UsageError

TOTAL = "total"  # of all pipelines of the deployment together
EACH = "*"  # pipeline that has none of its own
REFUSE, WARN = "refuse", "warn"
_AMOUNT = re.compile(r"\$?\s*(?P<usd>\d+(?:\.\d+)?)\s*(?:USD|\$)?", re.IGNORECASE | re.ASCII)
_FORM = "such as retrain=500USD, *=300USD:warn or total=2000USD"


class Budget(NamedTuple):
    """The most that may be spent in a month.

    Attributes:
        pipeline: Of which pipeline, or `TOTAL`.
        usd: The dollars.
        action: `REFUSE` or `WARN`: what happens to a job that is submitted when nothing is left.
    """

    pipeline: str
    usd: float
    action: str = REFUSE

    def __str__(self) -> str:
        of = "all pipelines together" if self.pipeline == TOTAL else f"pipeline {self.pipeline}"
        return f"the budget of {of}, {dollars(self.usd)} a month"


class Spent(NamedTuple):
    """The cost of a month's jobs so far. `unpriced`: how many of them have no known price, and are not in it."""

    usd: float = 0.0
    jobs: int = 0
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class Judgment:
    """The answer to a job that is to be submitted: why it is refused, or what its user is warned of; else ""."""

    refusal: str = ""
    warning: str = ""


def read(name: str, text: str) -> tuple[Budget, ...]:
    """Return the budgets that a setting names. Raises UsageError."""
    found: dict[str, Budget] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        pipeline, equals, rest = (part.strip() for part in entry.rpartition("="))
        if not (equals and pipeline):
            raise UsageError(
                f"{name} has {entry!r}: write PIPELINE=DOLLARS, {_FORM}; a comma separates budgets, and is in no number"
            )
        if pipeline in found:
            raise UsageError(f"{name} names {pipeline!r} twice: leave one out")
        amount, colon, action = (part.strip() for part in rest.partition(":"))
        if colon and action not in (REFUSE, WARN):
            raise UsageError(f"{name} has {entry!r}: behind the colon, write {REFUSE} (the default) or {WARN}")
        found[pipeline] = Budget(pipeline, _usd(name, entry, pipeline, amount), action or REFUSE)
    return tuple(found.values())


def _usd(name: str, entry: str, pipeline: str, amount: str) -> float:
    if known := _AMOUNT.fullmatch(amount):
        return float(known["usd"])
    number = re.search(r"\d+(?:\.\d+)?", amount)
    if number is None or amount.startswith("-"):
        raise UsageError(f"{name} has {entry!r}, which names no amount of money: write dollars, {_FORM}")
    raise UsageError(
        f"{name} has {entry!r}: budgets are in US dollars, as list prices are, and {amount!r} is not. Convert it, and "
        f"write {pipeline}={number[0]}USD for {number[0]} dollars"
    )


def applying(budgets: Sequence[Budget], pipeline: str) -> list[Budget]:
    """Return the budgets that a job of the pipeline has to keep: its own or that of each, and that of all."""
    named = {budget.pipeline: budget for budget in budgets}
    own = named.get(pipeline) if pipeline != TOTAL else None
    each = named.get(EACH)
    if own is None and each is not None:
        own = each._replace(pipeline=pipeline)
    return [budget for budget in (own, named.get(TOTAL)) if budget is not None]


def judge(budget: Budget, spent: Spent, month: str, worst: float | None, no_price: str = "") -> Judgment:
    """Return what a budget says to one more job.

    Args:
        budget: The budget.
        spent: What the month's jobs have cost, those that still run up to now.
        month: The month, as 2026-11.
        worst: The most that the job may cost by its limits; None if it has none.
        no_price: Why its price is not known; "" if it is.
    """
    so_far = f"{dollars(spent.usd)} were spent on {_jobs(spent.jobs)}"
    seen = "to see what was spent: `kinor cost --by pipeline`; budgets are set in KINETIC_BUDGETS"
    if spent.usd >= budget.usd:
        return _said(
            budget,
            f"{budget}, is used up: {so_far} in {month} (UTC). It is given anew with the next month. Raise it, or let "
            f"it only warn ({budget.pipeline}={budget.usd:g}USD:warn); {seen}",
        )
    if no_price or spent.unpriced:
        return _said(
            budget,
            f"{budget}, cannot be judged: {no_price or _price_of_all(spent, month)}. Beside that, {so_far}. To run all "
            f"the same, let it only warn ({budget.pipeline}={budget.usd:g}USD:warn); {seen}",
        )
    left = budget.usd - spent.usd
    if worst is not None and worst > left:
        return Judgment(
            warning=f"this job may cost up to {dollars(worst)} by its limits, and {dollars(left)} are left of "
            f"{budget}: {so_far} in {month} (UTC). It runs, and a budget ends no job: "
            "limits.cost does, and limits.run says how long it takes"
        )
    return Judgment()


def _said(budget: Budget, why: str) -> Judgment:
    return Judgment(refusal=f"nothing was submitted: {why}") if budget.action == REFUSE else Judgment(warning=why)


def _price_of_all(spent: Spent, month: str) -> str:
    of = "the cost of 1 job" if spent.unpriced == 1 else f"the cost of {spent.unpriced} jobs"
    return (
        f"{of} of {month} is not known, for want of a price or for damaged records. `kinor cost --by pipeline` says of "
        "which, and counts anew once the price is named in KINETIC_PRICES or read with `kinor prices --refresh`"
    )


class Forecast(NamedTuple):
    """The cost of a pipeline to come: a run, and a month of them."""

    median: float
    high: float  # the 90th percentile
    runs: float  # in the month

    @property
    def month_median(self) -> float:
        return self.median * self.runs

    @property
    def month_high(self) -> float:
        return self.high * self.runs


def forecast(costs: Sequence[float], runs: float) -> Forecast | None:
    """Return the forecast for so many runs, by what past ones have cost; None without any."""
    return Forecast(_quantile(costs, 0.5), _quantile(costs, 0.9), runs) if costs else None


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share lies, between two values on the line from one to the other."""
    ordered, place = sorted(values), share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def month_of(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m")


def day_of(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")


def began(month: str) -> float:
    """Return when a month begins, in seconds since the epoch."""
    return datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC).timestamp()


def ended(month: str) -> float:
    """Return when a month ends, which is when the next one begins."""
    year, number = (int(part) for part in month.split("-"))
    return began(f"{year + number // 12:04}-{number % 12 + 1:02}")


def dollars(usd: float) -> str:
    return f"${usd:,.2f}" if not 0 < usd < 0.01 else "less than $0.01"


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"
