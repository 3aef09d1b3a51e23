"""The cost of what a job holds, by its price (`prices`): estimates with the date of their prices, and limits of money.

This module does not know what ran, or what was billed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, PriceList
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, Unknown, dearest, price, region_of


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a job's attempts; for an uncharged job, what the named hardware would cost.

    The seconds are those of `usage`, which defines them.
    """

    accelerator: str
    hardware: str
    region: str
    chip_hours: float
    usd: float | None
    usd_per_chip_hour: float | None
    note: str
    date: str
    uncharged: bool
    spot: bool = False
    attempts: int = 0  # that had hosts
    queued_seconds: float = 0.0
    ready_seconds: float = 0.0
    program_seconds: float = 0.0  # in which the program ran
    parts: Mapping[str, float] = field(default_factory=dict)  # as `usage` has them; {} if no step was reported
    beside_seconds: float = 0.0  # of places of races that did not win; not in the READY seconds
    beside_usd: float | None = 0.0  # of these, in `usd`
    idle_seconds: float = 0.0  # for which kept slices served nobody: of the chip-hours and the cost, not of READY
    here: str = "this machine"  # where nothing is charged, for users

    @property
    def productive_seconds(self) -> float | None:
        """The seconds of training steps that were not repeated; None if no steps were reported."""
        return self.parts.get("steps")

    @property
    def goodput(self) -> float | None:
        """The share of the charged time that went into steps that counted."""
        productive = self.productive_seconds
        return productive / self.ready_seconds if self.ready_seconds and productive is not None else None

    def __str__(self) -> str:
        """The line about the cost at a job's end, for users."""
        here = f"$0.00 on {self.here}" if self.uncharged else ""
        priced = self.usd is not None and self.usd_per_chip_hour is not None
        if self.uncharged and not (priced and self.chip_hours):
            return f"cost: {here}"
        if self.usd is None or self.usd_per_chip_hour is None:
            there = f"unknown for {self.hardware} ({_hours(self.chip_hours)}): {self.note}"
        else:
            where = f"{self.hardware} in {self.region}" if self.region else self.hardware
            rate = f"{_hours(self.chip_hours)} at {_rate(self.usd_per_chip_hour)}, {self.note}"
            there = f"on {where} {_about(self.usd)} ({rate}{self._beside})"
        return f"cost: {here}; {there}" if here else f"cost: {there}"

    @property
    def _beside(self) -> str:
        """Return the part of it that places of races cost which did not win, for users."""
        if not self.beside_seconds:
            return ""
        usd = f", {_about(self.beside_usd)}" if self.beside_usd is not None else ""
        return f", of which {self.beside_seconds:.0f} s of places that did not win their race{usd}"


@dataclass(frozen=True, slots=True)
class Total:
    """One period of a `summary`. What ran on this machine counts as a job that held no chips.

    Attributes:
        usd: What it cost; None if no price is known of a part of it.
        least_usd: What the jobs cost of which a price is known.
    """

    period: str
    jobs: int
    uncharged: int
    unpriced: int
    chip_hours: float
    usd: float | None
    least_usd: float
    queued_seconds: float = 0.0
    ready_seconds: float = 0.0
    program_seconds: float = 0.0
    productive_seconds: float = 0.0
    counted_seconds: float = 0.0  # held by attempts that reported steps
    idle_seconds: float = 0.0

    @property
    def goodput(self) -> float | None:
        return self.productive_seconds / self.counted_seconds if self.counted_seconds else None


def estimate(
    of: Purchase,
    seconds: float,
    *,
    zone: str | None = None,
    overrides: Mapping[str, float] | None = None,
    uncharged: bool = False,
    listed: PriceList = BUILT_IN,
    service: str = "",
    here: str = "this machine",
) -> Estimate:
    """Estimate the cost of holding what is bought for `seconds`, whether or not its chips compute.

    service: what has it under its own name here; "" for Cloud TPU, which has names of its own for slices.
    here: where it is if nothing is charged.
    """
    found = price(of, zone, overrides, listed)
    known = found if isinstance(found, Price) else None
    chip_hours = of.chips * max(seconds, 0.0) / 3600
    return Estimate(
        accelerator=of.slice.name,
        hardware=_hardware(of.slice, service),
        region=region_of(zone) or (known.region if known else ""),
        chip_hours=chip_hours,
        usd=known.usd_per_chip_hour * chip_hours if known else None,
        usd_per_chip_hour=known.usd_per_chip_hour if known else None,
        note=known.source if known else "" if uncharged else str(found),
        date=known.date if known else "",
        uncharged=uncharged,
        here=here,
        spot=of.is_spot,
        ready_seconds=max(seconds, 0.0),
    )


def _hardware(slice: Slice, service: str) -> str:
    if service:
        return f"{service} {slice.name}"
    return f"Cloud TPU {slice.accelerator_type}" if slice.accelerator_type else slice.name


def together(
    stays: Sequence[Estimate],
    *,
    attempts: int,
    queued: float,
    ready: float,
    productive: float,
    parts: Mapping[str, float] = MappingProxyType({}),
    beside: Sequence[Estimate] = (),
    idle: float = 0.0,
) -> Estimate:
    """Attempts of one job, which may have been in several zones, as one, with what places of races cost `beside`."""
    every = [*stays, *beside]
    chip_hours = sum(part.chip_hours for part in every)
    usd = _sum(every)
    rates = {part.usd_per_chip_hour for part in every}
    rate = rates.pop() if len(rates) == 1 else usd / chip_hours if usd is not None and chip_hours else None
    return replace(
        stays[-1],
        region=", ".join(dict.fromkeys(part.region for part in stays if part.region)),
        chip_hours=chip_hours,
        usd=usd,
        usd_per_chip_hour=rate,
        note="; ".join(dict.fromkeys(part.note for part in stays if part.note)),
        attempts=attempts,
        queued_seconds=queued,
        ready_seconds=ready,
        program_seconds=productive,
        parts=dict(parts),
        beside_seconds=sum(part.ready_seconds for part in beside),
        beside_usd=_sum(beside),
        idle_seconds=idle,
    )


def _sum(parts: Sequence[Estimate]) -> float | None:
    prices = [part.usd for part in parts if part.usd is not None]
    return sum(prices) if len(prices) == len(parts) else None


def check_usd(usd: Any) -> None:
    """Raise UsageError unless a job may cost that."""
    if isinstance(usd, bool) or not isinstance(usd, int | float) or math.isnan(usd):
        raise UsageError(
            f"limits.cost is {usd!r}: give US dollars, as list prices are, as a number such as 40; convert other "
            "currencies"
        )
    if usd <= 0:
        raise UsageError(f"limits.cost is {usd!r}: a job that may cost nothing cannot run; leave it out for no limit")
    if math.isinf(usd):
        raise UsageError(f"limits.cost is {usd!r}: give an amount of US dollars, or leave it out for no limit")


def affordable(
    usd: float,
    of: Purchase,
    zones: Sequence[str],
    overrides: Mapping[str, float] | None = None,
    listed: PriceList = BUILT_IN,
) -> float:
    """Return the seconds for which `usd` pays, in the dearest of the zones.

    Raises:
        UsageError: A price that it takes is not known, or `usd` is no amount.
    """
    check_usd(usd)
    if not of.chips:
        raise UsageError(
            f"limits.cost is ${usd:,.2f}, and {of.slice.name} is no accelerator, for which alone prices are known: use "
            "limits.run instead"
        )
    found = dearest(of, zones, overrides, listed)
    if isinstance(found, Unknown):
        raise UsageError(f"limits.cost is ${usd:,.2f} and cannot be kept, as {found}, or use limits.run instead")
    return usd / (found.usd_per_chip_hour * of.chips / 3600)


def times(estimate: Estimate) -> str:
    """The times next to the cost: queued, charged, and in a program or, if known, in steps that counted."""
    attempts = "1 attempt" if estimate.attempts == 1 else f"{estimate.attempts} attempts"
    told = f"{attempts}, {_seconds(estimate.queued_seconds)} queued, {_seconds(estimate.ready_seconds)} READY"
    if estimate.idle_seconds:
        told = f"{told}, {_seconds(estimate.idle_seconds)} kept idle"
    if estimate.goodput is None or estimate.productive_seconds is None:
        return f"{told}, {_seconds(estimate.program_seconds)} program time"
    return f"{told}, {_seconds(estimate.productive_seconds)} productive, goodput {estimate.goodput:.0%}"


def went_to(estimate: Estimate) -> str:
    """The uses of the time, without those of zero; "" if no steps were reported."""
    of = {"checkpoint": "checkpoint stall", "program": "program time"}
    return ", ".join(f"{of.get(name, name)} {_seconds(took)}" for name, took in estimate.parts.items() if took >= 0.05)


def summary(rows: Iterable[tuple[float, Estimate]], period: Literal["day", "week", "month"] = "day") -> list[Total]:
    """Totals per period (UTC) of attempts given as (seconds since the epoch, estimate), the oldest first."""
    groups: dict[str, list[Estimate]] = {}
    for time, estimate in rows:
        groups.setdefault(_period(time, period), []).append(estimate)
    return [total(name, groups[name]) for name in sorted(groups)]


def total(period: str, estimates: Sequence[Estimate]) -> Total:
    """Return the total of one period's jobs."""
    paid = [estimate for estimate in estimates if not estimate.uncharged]
    known = [estimate.usd for estimate in paid if estimate.usd is not None]
    return Total(
        period=period,
        jobs=len(estimates),
        uncharged=len(estimates) - len(paid),
        unpriced=len(paid) - len(known),
        chip_hours=sum(estimate.chip_hours for estimate in paid),
        usd=sum(known) if len(known) == len(paid) else None,
        least_usd=sum(known),
        queued_seconds=sum(estimate.queued_seconds for estimate in estimates),
        ready_seconds=sum(estimate.ready_seconds for estimate in estimates),
        program_seconds=sum(estimate.program_seconds for estimate in estimates),
        productive_seconds=sum(estimate.productive_seconds or 0.0 for estimate in estimates),
        counted_seconds=sum(estimate.ready_seconds for estimate in estimates if estimate.goodput is not None),
        idle_seconds=sum(estimate.idle_seconds for estimate in estimates),
    )


def _period(time: float, period: str) -> str:
    formats = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
    return datetime.fromtimestamp(time, UTC).strftime(formats[period])


def _seconds(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def _about(usd: float) -> str:
    return "less than $0.01" if 0 < usd < 0.01 else f"about ${usd:,.2f}"


def _rate(usd: float) -> str:
    text = f"{usd:,.4f}".rstrip("0")
    return f"${text}{'0' * max(0, 2 - len(text.rpartition('.')[2]))}"


def _hours(hours: float) -> str:
    return f"{hours:,.2f} chip-hours" if hours >= 0.01 or not hours else f"{hours:.4f} chip-hours"
