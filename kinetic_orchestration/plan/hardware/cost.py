"""The cost of a job's chips: list prices as a table, and estimates with the date of their prices.

The prices are those of a `PriceList`; settings override them. A GPU has its share of what its VM costs besides
(`machine_parts`). If none is known the answer is None, never a guess. This
module does not know what ran, or what was billed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware import machine_parts, machines
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, FLEX_START, ON_DEMAND, SPOT, PriceList, Rate
from kinetic_orchestration.plan.messages import command

NO_PRICE = "no price known"


@dataclass(frozen=True, slots=True)
class Price:
    usd_per_chip_hour: float
    region: str  # where it applies; "" for a price that names no region
    source: str  # how it is shown: what price this is, and how old
    date: str  # "" for a price from settings


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
        here = "$0.00 on this machine" if self.uncharged else ""
        priced = self.usd is not None and self.usd_per_chip_hour is not None
        if self.uncharged and not (priced and self.chip_hours):
            return f"cost: {here}"
        if self.usd is None or self.usd_per_chip_hour is None:
            there = f"{NO_PRICE} for {self.hardware} ({_hours(self.chip_hours)})"
        else:
            where = f"{self.hardware} in {self.region}" if self.region else self.hardware
            rate = f"{_hours(self.chip_hours)} at {_rate(self.usd_per_chip_hour)}, {self.note}"
            there = f"on {where} {_about(self.usd)} ({rate})"
        return f"cost: {here}; {there}" if here else f"cost: {there}"


@dataclass(frozen=True, slots=True)
class Total:
    """One period of a `summary`. What ran on this machine counts as a job that held no chips."""

    period: str
    jobs: int
    uncharged: int
    unpriced: int
    chip_hours: float
    usd: float
    queued_seconds: float = 0.0
    ready_seconds: float = 0.0
    program_seconds: float = 0.0
    productive_seconds: float = 0.0
    counted_seconds: float = 0.0  # held by attempts that reported steps

    @property
    def goodput(self) -> float | None:
        return self.productive_seconds / self.counted_seconds if self.counted_seconds else None


def price(
    slice: Slice,
    zone: str | None = None,
    spot: bool = False,
    overrides: Mapping[str, float] | None = None,
    listed: PriceList = BUILT_IN,
    *,
    flex_start: bool = False,
) -> Price | None:
    """The price of one chip of `slice` for an hour, or None if none is known. That of a GPU contains its share of its
    VM, and names what it does not contain.

    The keys of `overrides` are `v5e`, or `v5e/us-central1` for one region, each with `:spot` behind it for
    spot capacity. They may also price what the table does not know, such as `a100`. What comes by flex-start has the
    price on demand where no other is listed.
    """
    spot = spot or slice.spot
    region = _region(zone)
    own = overrides or {}
    for key in (f"{slice.generation}/{region}", slice.generation):
        if (usd := own.get(f"{key}:spot" if spot else key)) is not None:
            return Price(usd, region, "price from settings", "")
    known = listed.regions(slice.generation)
    if not known:
        return None
    found = region if region in known else known[0]
    model = SPOT if spot else FLEX_START if flex_start else ON_DEMAND
    if slice.kind == "gpu":
        return _of_vm(slice, region, found, model, listed)
    rate = listed.rate(slice.generation, found, model) or listed.rate(slice.generation, found, ON_DEMAND)
    assert rate is not None
    return Price(rate.usd, found, _source((rate,), model, region), rate.date)


def _of_vm(slice: Slice, region: str, found: str, model: str, listed: PriceList) -> Price | None:
    """The price of a GPU with its share of its VM; None if the list has none of the GPU itself."""
    if not machines.serves(slice):
        return None
    gpu, *others = machine_parts.parts_of(slice)
    rates: list[Rate] = []
    usd, told, missing = 0.0, list[str](), list[str]()
    for part in (gpu, *others):
        own = None if part.is_disk else listed.rate(part.name, found, model)
        rate = own or listed.rate(part.name, found, ON_DEMAND)
        if rate is None:
            missing.append(part.words)
            continue
        told += [part.words] if part is not gpu else []
        usd += rate.usd * part.amount
        rates += [] if part.is_disk and model != ON_DEMAND else [rate]
    share = "its share of " if gpu.amount > 1 else ""
    source = _source(rates, model, region)
    source += f", with {share}{_listed(told)}" if told else ""
    source += f", without {_listed(missing)}, for which none is known" if missing else ""
    return Price(usd / gpu.amount, found, source, min(rate.date for rate in rates))


def _source(rates: Sequence[Rate], model: str, region: str) -> str:
    """What prices these are, and how old. A discounted price that is not known has the one on demand in its place."""
    kinds, dates = {rate.model for rate in rates}, sorted({rate.date for rate in rates})
    kind = "" if model == ON_DEMAND or model not in kinds else f"{model} "
    source = f"{kind}list price of {dates[0]}{f' to {dates[-1]}' if len(dates) > 1 else ''}"
    if region and rates[0].region not in ("", region):
        source += f" for {rates[0].region}, none known for {region}"
    if model not in kinds:
        source += f", none known for {model}"
    elif len(kinds) > 1:
        source += f", in part on demand, as none is known for {model}"
    return source


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def estimate(
    slice: Slice,
    seconds: float,
    *,
    zone: str | None = None,
    spot: bool = False,
    overrides: Mapping[str, float] | None = None,
    slices: int = 1,
    uncharged: bool = False,
    listed: PriceList = BUILT_IN,
    service: str = "",
    flex_start: bool = False,
) -> Estimate:
    """Estimate the cost of holding a slice for `seconds`, whether or not its chips compute.

    service: what has it under its own name here; "" for Cloud TPU, which has names of its own for slices.
    """
    per_hour = price(slice, zone, spot, overrides, listed, flex_start=flex_start)
    chips = 0 if slice.kind == "cpu" else slice.chips * slices
    chip_hours = chips * max(seconds, 0.0) / 3600
    return Estimate(
        accelerator=slice.name,
        hardware=_hardware(slice, service),
        region=_region(zone) or (per_hour.region if per_hour else ""),
        chip_hours=chip_hours,
        usd=per_hour.usd_per_chip_hour * chip_hours if per_hour else None,
        usd_per_chip_hour=per_hour.usd_per_chip_hour if per_hour else None,
        note=per_hour.source if per_hour else "" if uncharged else NO_PRICE,
        date=per_hour.date if per_hour else "",
        uncharged=uncharged,
        spot=spot or slice.spot,
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
) -> Estimate:
    """Attempts of one job, which may have been in several zones, as one."""
    chip_hours = sum(part.chip_hours for part in stays)
    prices = [part.usd for part in stays if part.usd is not None]
    usd = sum(prices) if len(prices) == len(stays) else None
    rates = {part.usd_per_chip_hour for part in stays}
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
    )


def check_usd(usd: float) -> None:
    if not isinstance(usd, int | float) or math.isnan(usd):
        raise UsageError(f"limits.cost is {usd!r}: give dollars, as a number")
    if usd <= 0:
        raise UsageError(f"limits.cost is {usd!r}: a job that may cost nothing cannot run; leave it out for no limit")


def affordable(
    usd: float,
    slice: Slice,
    zones: Sequence[str],
    *,
    slices: int = 1,
    spot: bool = False,
    overrides: Mapping[str, float] | None = None,
    listed: PriceList = BUILT_IN,
    flex_start: bool = False,
) -> float:
    """The seconds for which `usd` pays, in the dearest of the zones."""
    check_usd(usd)
    rates = []
    for zone in zones or ("",):
        found = price(slice, zone, spot, overrides, listed, flex_start=flex_start)
        if found is None:
            region = _region(zone)
            key = f"{slice.generation}{f'/{region}' if region else ''}{':spot' if spot or slice.spot else ''}"
            raise UsageError(
                f"limits.cost is ${usd:,.2f}, and no price is known for {slice.name} in {zone or 'any zone'}, so it "
                f"cannot be kept: {_read_list(slice)}name the price of a chip for an hour with KINETIC_PRICES={key}=…, "
                "or use limits.run"
            )
        rates.append(found.usd_per_chip_hour)
    per_second = max(rates) * slice.chips * slices / 3600
    if not per_second:
        raise UsageError(f"limits.cost is ${usd:,.2f}, and {slice.name} costs nothing by KINETIC_PRICES: leave one out")
    return usd / per_second


def _read_list(slice: Slice) -> str:
    return f"read Google's list with `{command('prices', '--refresh')}`, " if slice.kind == "gpu" else ""


def times(estimate: Estimate) -> str:
    """The times next to the cost: queued, charged, and in a program or, if known, in steps that counted."""
    attempts = "1 attempt" if estimate.attempts == 1 else f"{estimate.attempts} attempts"
    told = f"{attempts}, {_seconds(estimate.queued_seconds)} queued, {_seconds(estimate.ready_seconds)} READY"
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
    return [_total(name, groups[name]) for name in sorted(groups)]


def _total(period: str, estimates: list[Estimate]) -> Total:
    paid = [estimate for estimate in estimates if not estimate.uncharged]
    return Total(
        period=period,
        jobs=len(estimates),
        uncharged=len(estimates) - len(paid),
        unpriced=sum(estimate.usd is None for estimate in paid),
        chip_hours=sum(estimate.chip_hours for estimate in paid),
        usd=sum(estimate.usd or 0.0 for estimate in paid),
        queued_seconds=sum(estimate.queued_seconds for estimate in estimates),
        ready_seconds=sum(estimate.ready_seconds for estimate in estimates),
        program_seconds=sum(estimate.program_seconds for estimate in estimates),
        productive_seconds=sum(estimate.productive_seconds or 0.0 for estimate in estimates),
        counted_seconds=sum(estimate.ready_seconds for estimate in estimates if estimate.goodput is not None),
    )


def _period(time: float, period: str) -> str:
    formats = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
    return datetime.fromtimestamp(time, UTC).strftime(formats[period])


def _region(zone: str | None) -> str:
    """us-central1 of us-central1-a; a region stays what it is, and a cluster's is not known."""
    if "/" in (zone or ""):
        return ""
    parts = (zone or "").split("-")
    return "-".join(parts[:2])


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
