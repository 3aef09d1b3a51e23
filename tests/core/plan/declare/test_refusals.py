"""Refusals while a job is declared: choices that contradict, shares that never fit, `keep` where nothing can be
kept, budgets in another currency, batches that do not divide."""

from __future__ import annotations

import re
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.choices import accelerators_of
from tests.support.refusals import ALLOWED, REFUSALS, Refusal


def declare(options: dict[str, Any]) -> None:
    kinetic.run(**{**options, "accelerator": accelerators_of(options["accelerator"])})(print)


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
def test_a_function_is_refused_where_it_is_decorated(row: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in row.environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=row.says):
        declare(row.options)


@pytest.mark.parametrize(("options", "environ"), ALLOWED.values(), ids=ALLOWED)
def test_what_may_be_is_not_refused_there(
    options: dict[str, Any], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    declare(options)


def test_settings_that_no_job_can_be_of_are_refused_wherever_they_are_read(tmp_path: Any) -> None:
    for variable, value, says in (
        ("KINETIC_CHIPS", "v5p=2", "the smallest slice of v5p has 4 chips"),
        ("KINETIC_CHIPS", "pipeline:retrain/v5p=3", "'pipeline:retrain/v5p=3', and the smallest slice of v5p has 4"),
        ("KINETIC_BUDGETS", "retrain=500 CHF", "budgets are in US dollars"),
    ):
        with pytest.raises(UsageError, match=says):
            settings.load({"KINETIC_HOME": str(tmp_path), variable: value})


@pytest.mark.parametrize(("cost", "is_right"), [(40, True), (0.5, True), ("40", False), ("15m", False), (True, False)])
def test_the_money_of_a_job_is_a_number_of_dollars_and_no_time(cost: Any, is_right: bool) -> None:
    if is_right:
        declare({"accelerator": "v5e-8", "limits": kinetic.Limits(cost=cost)})
        return
    with pytest.raises(UsageError, match=r"limits\.cost is .*: give US dollars"):
        declare({"accelerator": "v5e-8", "limits": kinetic.Limits(cost=cost)})


def test_a_limit_of_cost_without_an_end_is_refused_where_it_is_written() -> None:
    """It would be the number of no record: the job would be submitted, and could never be read."""
    with pytest.raises(UsageError, match=r"limits\.cost is inf: .*leave it out for no limit"):
        declare({"accelerator": "v5e-8", "limits": kinetic.Limits(cost=float("inf"))})


@pytest.mark.parametrize(("name", "text"), [("capacity", "spot,on-demand"), ("regions", "us-west4, us-central1")])
def test_a_text_of_several_is_refused_with_the_list_that_is_meant(name: str, text: str) -> None:
    meant = [part.strip() for part in text.split(",")]
    with pytest.raises(UsageError, match=rf"{name} is '{text}', one text: write the list {re.escape(repr(meant))}"):
        declare({"accelerator": "v5e-8", name: text})
