"""Bounds the cost of a verification, and selects the steps that fit: pure, by the price table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kinetic_orchestration.cli.verify.clouds import compute_engine
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware import accelerators, cost
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, PriceList

FOUR = 4


@dataclass(frozen=True, slots=True)
class Wish:
    """The slices that a step needs: a number, one after another, each charged for at most that long."""

    name: str
    proves: str
    slices: int = 0
    minutes: float = 0.0
    four_hosts: bool = False
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    wish: Wish
    slice: Slice | None
    usd: float
    left_out: str = ""  # why

    @property
    def seconds(self) -> float:
        """The seconds for which each of its slices may be charged."""
        return self.wish.minutes * 60.0

    @property
    def rate(self) -> float:
        """Dollars a second of one slice."""
        whole = self.wish.slices * self.seconds
        return self.usd / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    steps: tuple[Planned, ...]
    usd: float
    price: str  # of a chip for an hour, with its date

    @property
    def most(self) -> float:
        """Return the highest cost of all steps that are not left out."""
        return sum(step.usd for step in self.steps if not step.left_out)


def plan(
    wishes: Sequence[Wish],
    accelerator: str,
    usd: float,
    zones: Sequence[str],
    *,
    spot: bool = False,
    prices: Mapping[str, float] | None = None,
    listed: PriceList = BUILT_IN,
    only: Sequence[str] = (),
    backend: str = "tpu-vm",
) -> Budget:
    """Select, in order, each step that the budget still allows, and every step without a slice.

    A slice costs what the dearest of `zones` asks: by `prices` from settings, then by the list.
    """
    if usd < 0:
        raise UsageError(f"--budget is {usd:g}: give dollars, 0 for what costs nothing alone")
    one = accelerators.parse(accelerator)
    if backend == "compute":
        compute_engine.check(one, spot=spot)
    elif one.hosts != 1 or one.api != "tpu-vm":
        raise UsageError(
            f"--accelerator is {accelerator}, and a verification runs on slices of one host that the Cloud TPU API "
            "makes, such as v5e-1 or v6e-1; its step of four hosts takes the smallest slice of that generation"
        )
    four = of_four_hosts(one)
    dearest = _dearest(one, zones or accelerators.zones(one), spot, prices, listed)
    found: list[Planned] = []
    spent = 0.0
    out: set[str] = set()
    for wish in wishes:
        slice_ = None if not wish.slices else four if wish.four_hosts else one
        most = 0.0
        if slice_ is not None:
            most = slice_.chips * dearest.usd_per_chip_hour * wish.slices * wish.minutes / 60
        step = Planned(wish, slice_, most)
        if reason := _left_out(step, out, only) or over(step, usd, spent):
            out.add(wish.name)
            step = replace(step, left_out=reason)
        else:
            spent += most
        found.append(step)
    unit = "GPU" if one.kind == "gpu" else "chip"
    return Budget(tuple(found), usd, f"${dearest.usd_per_chip_hour:.2f} a {unit} and hour, {dearest.source}")


def over(step: Planned, usd: float, spent: float) -> str:
    """The reason why a step is skipped once that much is spent; "" if it may run."""
    left = max(usd - spent, 0.0)
    if step.usd > left + 1e-9:
        return f"budget: it can cost ${step.usd:,.2f}, and ${left:,.2f} are left"
    return ""


def of_four_hosts(slice_: Slice) -> Slice | None:
    """The smallest of its generation with four hosts."""
    found = [
        other
        for other in accelerators.catalogue()
        if (other.generation, other.hosts, other.api) == (slice_.generation, FOUR, "tpu-vm")
    ]
    return min(found, key=lambda other: other.chips, default=None)


def _left_out(step: Planned, out: set[str], only: Sequence[str]) -> str:
    if only and step.wish.name not in only:
        return "not asked for"
    if missing := [name for name in step.wish.needs if name in out]:
        return f"needs {' and '.join(missing)}"
    return "no slice of this generation has four hosts" if step.wish.slices and step.slice is None else ""


def _dearest(
    slice_: Slice, zones: Sequence[str], spot: bool, prices: Mapping[str, float] | None, listed: PriceList
) -> cost.Price:
    asked = (cost.price(slice_, zone, spot, prices, listed) for zone in zones or ("",))
    found = [price for price in asked if price is not None]
    if not found:
        raise UsageError(
            f"no price is known for {slice_.name}, so a budget cannot be kept: name the price of a chip for an hour "
            f"with KINETIC_PRICES={slice_.generation}{':spot' * spot}=…"
        )
    return max(found, key=lambda price: price.usd_per_chip_hour)
