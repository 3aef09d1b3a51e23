"""Schedules: how often something runs in a calendar month (UTC), by an interval or by five fields of cron. Pure.

A line of cron is read as the schedulers of Dagster and Airflow read it, which is as croniter does: a field is `*`, a
number, a range, also one around the end (`fri-mon`), a list or steps (`*/5`, `1-9/2`); months and days of the week may
have their English names; an L is a month's last day, 5#2 its second Friday and L5 its last one. If both days are
given, either is enough, also beside steps (`*/2`), which is not so in the original.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from kinetic_orchestration.errors import UsageError

DAY = 86400.0
NAMED: Mapping[str, str] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_LAST = 0  # of the days of a month
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    names: Mapping[str, int]


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of the month", 1, 31, {}),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS),
)


@dataclass(frozen=True, slots=True)
class Every:
    """A schedule by an interval, in seconds."""

    seconds: float

    def runs(self, month: str) -> float:
        """Return how often it runs in a month, on average."""
        return _days(month) * DAY / self.seconds


@dataclass(frozen=True, slots=True)
class Cron:
    """A schedule by a line of cron, whose times are UTC."""

    line: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool  # one of the days is enough, as both are given
    numbered: frozenset[tuple[int, int]] = frozenset()  # the weekdays are the nth of a month; 0: the last

    def runs(self, month: str) -> float:
        """Return how often it runs in a month."""
        year, number = (int(part) for part in month.split("-"))
        if number not in self.months:
            return 0.0
        days = sum(self._on(date(year, number, day)) for day in range(1, _days(month) + 1))
        return float(days * len(self.hours) * len(self.minutes))

    def _on(self, day: date) -> bool:
        last = _days(f"{day:%Y-%m}")
        by_month = day.day in self.days or (_LAST in self.days and day.day == last)
        by_week = day.isoweekday() % 7 in self.weekdays
        if self.numbered:
            number = (day.day - 1) // 7 + 1
            is_last = day.day > last - 7
            by_week = bool(
                self.numbered & {(day.isoweekday() % 7, one) for one in (number, *((0,) if is_last else ()))}
            )
        return by_month or by_week if self.either_day else by_month and by_week


def every(name: str, seconds: float | None) -> Every:
    """Return the schedule of an interval. Raises UsageError if it is none."""
    if not seconds or seconds < 1:
        raise UsageError(f"{name} is no interval: give a time such as 15m, 6h or 1d")
    return Every(seconds)


def cron(name: str, line: str) -> Cron:
    """Return the schedule of a line of cron. Raises UsageError."""
    fields = NAMED.get(line.strip().lower(), line).split()
    if len(fields) != len(_FIELDS):
        raise UsageError(
            f"{name} is {line!r}, which has {len(fields)} fields instead of five (minute, hour, day of the month, "
            'month, day of the week), as "0 3 * * *"'
        )
    minutes, hours, days, months = (
        _values(name, line, text, field) for text, field in zip(fields[:4], _FIELDS[:4], strict=True)
    )
    either = not {fields[2], fields[4]} & {"*", "?"}
    if numbered := _numbered(fields[4]):
        if either:
            raise UsageError(
                f"{name} is {line!r}, which has a numbered day of the week beside days of the month: keep one"
            )
        return Cron(line, minutes, hours, days, months, frozenset(), False, numbered)
    weekdays = _values(name, line, fields[4], _FIELDS[4])
    return Cron(line, minutes, hours, days, months, frozenset(day % 7 for day in weekdays), either)


def _numbered(text: str) -> frozenset[tuple[int, int]]:
    """Return the weekdays that are the nth or the last of a month; none if the field is of other days, or of none."""
    found = set()
    for part in text.lower().split(","):
        day, _, nth = part.partition("#")
        weekday = _number(day.removeprefix("l") if not nth else day, _FIELDS[4])
        if weekday < 0 or not (nth in ("1", "2", "3", "4", "5") if "#" in part else day.startswith("l")):
            return frozenset()
        found.add((weekday % 7, int(nth or 0)))
    return frozenset(found)


def _values(name: str, line: str, text: str, field: _Field) -> frozenset[int]:
    found: set[int] = set()
    whole = 6 if field.names is _DAYS else field.most
    for part in text.lower().split(","):
        if part == "l" and field is _FIELDS[2]:
            found.add(_LAST)
            continue
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*" or (part == "?" and field in (_FIELDS[2], _FIELDS[4])):
            low, high = field.least, whole
        else:
            low = _number(first, field)
            high = _number(last, field) if dash else field.most if slash else low
        width = int(step) if step.isascii() and step.isdecimal() else 0
        around = field.least <= high < low and not slash  # around the end
        if low < 0 or (high < low and not around) or (slash and not width):
            raise UsageError(
                f"{name} is {line!r}, whose {field.name} {text!r} is none: it goes from {field.least} to {field.most}, "
                "as *, 3, 1-5, 1,15 or */10"
            )
        found.update(
            [*range(low, whole + 1), *range(field.least, high + 1)] if around else range(low, high + 1, width or 1)
        )
    return frozenset(found)


def _number(text: str, field: _Field) -> int:
    """Return a number of the field; -1 if it is none."""
    number = field.names.get(text, int(text) if text.isascii() and text.isdecimal() else -1)
    return number if field.least <= number <= field.most else -1


def _days(month: str) -> int:
    year, number = (int(part) for part in month.split("-"))
    return calendar.monthrange(year, number)[1]
