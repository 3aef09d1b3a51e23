"""Budgets: how they are written, which of them a job has to keep, and what they say to it."""

from __future__ import annotations

import re

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import budgets, settings
from kinetic_orchestration.plan.configuration.budgets import Budget, Spent

MONTH = "2026-11"


@pytest.mark.parametrize("amount", ["500", "$500", "500USD", "500 usd", "500$", "$ 500.00", "500.00USD"])
def test_a_budget_is_written_as_people_write_dollars(amount: str) -> None:
    assert budgets.read("b", f"retrain={amount}") == (Budget("retrain", 500.0, "refuse"),)


def test_budgets_of_a_pipeline_of_each_and_of_all_may_refuse_or_warn() -> None:
    found = budgets.read("b", "retrain=500USD, *=300:warn ,total=2000USD:refuse,a=b=1")
    assert found == (
        Budget("retrain", 500.0, "refuse"), Budget("*", 300.0, "warn"), Budget("total", 2000.0, "refuse"),
        Budget("a=b", 1.0, "refuse"),
    )  # fmt: skip
    assert budgets.applying(found, "retrain") == [found[0], found[2]]
    assert budgets.applying(found, "nightly") == [Budget("nightly", 300.0, "warn"), found[2]]
    assert budgets.applying(found, "total") == [Budget("total", 300.0, "warn"), found[2]]
    assert budgets.applying((), "retrain") == [] == budgets.applying(budgets.read("b", ""), "x")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retrain=500EUR", "budgets are in US dollars.*'500EUR' is not.*write retrain=500USD for 500 dollars"),
        ("retrain=€500", "budgets are in US dollars.*write retrain=500USD"),
        ("retrain=500 euros", "'500 euros' is not"),
        ("retrain=12.5 GBP:warn", "write retrain=12.5USD"),
        ("retrain=500CAD$", "'500CAD\\$' is not"),
        ("retrain=much", "names no amount of money: write dollars, such as retrain=500USD"),
        ("retrain=", "names no amount"),
        ("retrain=-5USD", "names no amount"),
        ("retrain=nan", "names no amount"),
        ("retrain=inf", "names no amount"),
        ("retrain=1,000USD", "'000USD'.*a comma separates budgets"),
        ("500USD", "write PIPELINE=DOLLARS"),
        ("=500USD", "write PIPELINE=DOLLARS"),
        ("retrain=5,retrain=6", "names 'retrain' twice"),
        ("retrain=5USD:ignore", "behind the colon, write refuse .* or warn"),
        ("retrain=5USD:", "behind the colon"),
    ],
)
def test_what_is_no_budget_is_refused_when_the_settings_are_read(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=r"^KINETIC_BUDGETS (has|names) ") as error:
        settings.load({"KINETIC_BUDGETS": text})
    assert re.search(said, str(error.value)), str(error.value)


def test_a_profile_has_them_as_a_table(home: object) -> None:
    assert settings.load(budgets={"retrain": 500, "total": "2000USD:warn"}).budgets == (
        Budget("retrain", 500.0), Budget("total", 2000.0, "warn"),
    )  # fmt: skip


def judged(budget: str, spent: Spent, worst: float | None = None, no_price: str = "") -> budgets.Judgment:
    return budgets.judge(budgets.read("b", budget)[0], spent, MONTH, worst, no_price)


def test_a_budget_that_is_used_up_refuses_the_next_job_or_only_warns() -> None:
    assert judged("retrain=10", Spent(9.99, 3)) == budgets.Judgment()
    for spent in (10.0, 10.01):
        refusal = judged("retrain=10", Spent(spent, 3)).refusal
        assert refusal.startswith("nothing was submitted: the budget of pipeline retrain, $10.00 a month, is used up:")
        assert f"${spent:,.2f} were spent on 3 jobs in 2026-11 (UTC)" in refusal
        assert (
            "`kinor cost --by pipeline`" in refusal and "KINETIC_BUDGETS" in refusal and "retrain=10USD:warn" in refusal
        )
        told = judged("retrain=10:warn", Spent(spent, 3))
        assert not told.refusal and "is used up" in told.warning
    assert "all pipelines together" in judged("total=10", Spent(10.0, 1)).refusal
    assert judged("retrain=0", Spent()).refusal, "nothing may be spent"


def test_what_the_job_itself_may_cost_is_told_if_it_is_more_than_what_is_left() -> None:
    assert not judged("retrain=10", Spent(4.0, 1), 6.0).warning
    told = judged("retrain=10", Spent(4.0, 1), 6.01)
    assert not told.refusal
    assert "may cost up to $6.01 by its limits, and $6.00 are left of the budget of pipeline retrain" in told.warning
    assert not judged("retrain=10", Spent(4.0, 1)).warning, "it has no limits"


def test_a_cost_that_is_not_known_never_counts_as_nothing() -> None:
    refusal = judged("retrain=10", Spent(4.0, 5, unpriced=3)).refusal
    assert "cannot be judged: the cost of 3 jobs of 2026-11 is not known" in refusal
    assert "KINETIC_PRICES" in refusal and "kinor prices --refresh" in refusal and "retrain=10USD:warn" in refusal
    assert (
        "cannot be judged: no price is known of x"
        in judged("retrain=10", Spent(), None, "no price is known of x").refusal
    )
    assert "cannot be judged" in judged("retrain=10:warn", Spent(4.0, 5, unpriced=1)).warning
    assert "is used up" in judged("retrain=4", Spent(4.0, 5, unpriced=3)).refusal, "whatever the others cost"


def test_a_month_is_one_of_utc() -> None:
    assert budgets.month_of(1798761599.0) == "2026-12" and budgets.month_of(1798761600.0) == "2027-01"
    assert budgets.ended("2026-12") == budgets.began("2027-01") == 1798761600.0
    assert budgets.ended("2026-11") == budgets.began("2026-12")


def test_a_forecast_has_the_median_and_the_dearest_tenth() -> None:
    assert budgets.forecast([], 30) is None
    one = budgets.forecast([2.0], 30)
    assert one is not None and (one.median, one.high, one.month_median, one.month_high) == (2, 2, 60, 60)
    found = budgets.forecast([float(number) for number in range(10, -1, -1)], 31)
    assert found is not None and (found.median, found.high, found.month_high) == (5, 9, 279)
    two = budgets.forecast([1.0, 2.0], 1)
    assert two is not None and (two.median, two.high) == (pytest.approx(1.5), pytest.approx(1.9))
