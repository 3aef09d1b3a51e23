"""Tests how often a schedule runs in a month: as croniter says, which Dagster and Airflow go by."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta

import pytest

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.configuration import schedules

MONTHS = ("2026-02", "2026-11", "2026-12", "2028-02")
LINES = (
    "0 3 * * *", "*/15 * * * *", "0 0 1 * *", "30 6,18 * * 1-5", "0 12 * * sun", "0 12 * * 7", "5 4 31 * *",
    "0 0 1,15 * 5", "7-59/13 */6 * * *", "0 9 * feb,DEC mon-fri", "0 0 13 * fri", "0 0 29 2 *", "59 23 * * 0,6",
    "10/20 5 * * *", "@daily", "@hourly", "@weekly", "@monthly", "0 0 */2 * MON", "0 0 1 * */2", "0 0 */2 * */2",
    "0 0 13 * 0-6", "0 0 ? * MON", "0 0 13 * ?", "0 0 L * *", "0 0 L,15 * *", "0 0 L * MON", "0 0 * * 5#2", "0 0 * * fri#1,1#3",
    "0 0 * * L5", "0 0 * * 0#5", "0 22-2 * * *", "0 0 * * fri-mon", "0 0 28-3 * *", "0 0 1 nov-feb *",
)  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_cron_runs_as_often_as_croniter_says(line: str) -> None:
    croniter = pytest.importorskip("croniter").croniter
    for month in MONTHS:
        year, number = (int(part) for part in month.split("-"))
        first = datetime(year, number, 1, tzinfo=UTC)
        end = first + timedelta(days=calendar.monthrange(year, number)[1])
        times = croniter(line, first - timedelta(seconds=1))
        count = 0
        while times.get_next(datetime) < end:
            count += 1
        assert schedules.cron("--cron", line).runs(month) == count, month


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "has 0 fields instead of five"),
        ("0 3 * *", "has 4 fields"),
        ("0 0 3 * * *", "has 6 fields"),
        ("60 3 * * *", "minute '60' is none: it goes from 0 to 59"),
        ("0 24 * * *", "hour '24'"),
        ("0 0 0 * *", "day of the month '0'"),
        ("0 0 * 13 *", "month '13'"),
        ("0 0 * * 8", "day of the week '8'"),
        ("0 22-2/2 * * *", "hour '22-2/2'"),
        ("0 0 * * 5#2,1", "day of the week '5#2,1'"),
        ("0 0 * * 5#6", "day of the week '5#6'"),
        ("0 0 13 * 5#2", "a numbered day of the week beside days of the month"),
        ("*/0 * * * *", "minute '\\*/0'"),
        ("1,,2 * * * *", "minute '1,,2'"),
        ("1- * * * *", "minute '1-'"),
        ("-1 * * * *", "minute '-1'"),
        ("a * * * *", "minute 'a'"),
        ("٣ * * * *", "minute"),
        ("@reboot", "has 1 fields"),
        ("0 L * * *", "hour 'L'"),
        ("0 ? * * *", "hour '\\?'"),
    ],
)
def test_what_is_no_line_of_cron_is_refused_with_the_field(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--cron is .*({said})"):
        schedules.cron("--cron", line)


def test_the_presets_are_those_of_airflow() -> None:
    presets = pytest.importorskip("airflow.timetables._cron").cron_presets
    assert presets.items() <= schedules.NAMED.items()


def test_an_interval_runs_as_often_as_it_fits_into_the_month() -> None:
    assert schedules.every("--every", 86400.0).runs("2026-11") == 30
    assert schedules.every("--every", 86400.0).runs("2026-12") == 31
    assert schedules.every("--every", 3600.0).runs("2026-02") == 672
    for wrong in (None, 0.0, 0.5):
        with pytest.raises(UsageError, match="--every is no interval: give a time such as"):
            schedules.every("--every", wrong)
