"""Bounds the cost of a verification, and selects the steps that fit: pure, by the price table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kinetic_orchestration.cli.verify.clouds import compute_engine
from kinetic_orchestration.cli.verify.clouds.cloud import ALONE, OF_FOUR_HOSTS, Kind
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware import accelerators, machines
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, PriceList
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, Unknown, dearest, price, region_of

FOUR = 4


@dataclass(frozen=True, slots=True)
class Wish:
    """The slices that a step needs: a number, of a kind, each charged for at most that long."""

    name: str
    proves: str
    slices: int = 0
    minutes: float = 0.0
    kind: Kind = ALONE
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

    Raises:
        UsageError: There is nothing to verify on with this accelerator, or it has no price.
    """
    if usd < 0:
        raise UsageError(f"--budget is {usd:g}: give dollars, 0 for what costs nothing alone")
    one = accelerators.parse(accelerator)
    slices = compute_engine.slices_of_kinds(one, spot=spot) if backend == "compute" else _slices_on_cloud_tpu(one)
    alone = slices[ALONE]
    assert isinstance(alone, Slice)
    dearest_of = {
        slice_.name: _dearest(_bought(slice_, spot, backend), zones or accelerators.zones(slice_), prices, listed)
        for slice_ in slices.values() if isinstance(slice_, Slice)
    }  # fmt: skip
    found: list[Planned] = []
    spent = 0.0
    out: set[str] = set()
    for wish in wishes:
        taken: Slice | str = slices[wish.kind] if wish.slices else ""
        slice_, most = None, 0.0
        if isinstance(taken, Slice):
            hourly = taken.chips * dearest_of[taken.name].usd_per_chip_hour
            slice_, most = taken, hourly * wish.slices * wish.minutes / 60
        step = Planned(wish, slice_, most)
        if reason := _left_out(step, taken, out, only) or over(step, usd, spent):
            out.add(wish.name)
            step = replace(step, left_out=reason)
        else:
            spent += most
        found.append(step)
    unit, dear = "GPU" if alone.kind == "gpu" else "chip", dearest_of[alone.name]
    told = f"${dear.usd_per_chip_hour:.2f} a {unit} and hour, {dear.source}"
    return Budget(tuple(found), usd, told + _advice(_bought(alone, spot, backend), zones, prices, listed))


def over(step: Planned, usd: float, spent: float) -> str:
    """The reason why a step is skipped once that much is spent; "" if it may run."""
    left = max(usd - spent, 0.0)
    if step.usd > left + 1e-9:
        return f"budget: it can cost ${step.usd:,.2f}, and ${left:,.2f} are left"
    return ""


def _slices_on_cloud_tpu(one: Slice) -> Mapping[Kind, Slice | str]:
    """Return the slice of each kind for steps on Cloud TPU; in place of one that there is not, the reason."""
    if one.hosts != 1 or one.api != "tpu-vm":
        raise UsageError(
            f"--accelerator is {one.name}, and a verification runs on slices of one host that the Cloud TPU API "
            "makes, such as v5e-1 or v6e-1; its step of four hosts takes the smallest slice of that generation"
        )
    found = [
        other
        for other in accelerators.catalogue()
        if (other.generation, other.hosts, other.api) == (one.generation, FOUR, "tpu-vm")
    ]
    four = min(found, key=lambda other: other.chips, default=None)
    return {ALONE: one, OF_FOUR_HOSTS: four or "no slice of this generation has four hosts"}


def _left_out(step: Planned, taken: Slice | str, out: set[str], only: Sequence[str]) -> str:
    if only and step.wish.name not in only:
        return "not asked for"
    if missing := [name for name in step.wish.needs if name in out]:
        return f"needs {' and '.join(missing)}"
    return taken if isinstance(taken, str) else ""


def _advice(of: Purchase, zones: Sequence[str], prices: Mapping[str, float] | None, listed: PriceList) -> str:
    """Return what helps where some zones have no price of their own, and that of another region counts; else ""."""
    without, known = list[str](), list[str]()
    for zone in zones:
        found = price(of, zone, prices, listed)
        has_own = isinstance(found, Price) and found.region in ("", region_of(zone))
        (known if has_own else without).append(zone)
    if not without:
        return ""
    regions = dict.fromkeys(map(region_of, without))
    advice = f"; `kinor prices --refresh` reads that of {' and '.join(regions)}"
    return f"{advice}, and --zone {known[0]} does without" if known else advice


def _bought(slice_: Slice, spot: bool, backend: str) -> Purchase:
    """Return what a job of a step buys: of Compute Engine with a boot disk, as the plan of the job has it."""
    disk = machines.boot_disk(machines.machine_of(slice_)) if backend == "compute" else None
    return Purchase(slice_, spot=spot, disk=disk)


def _dearest(of: Purchase, zones: Sequence[str], prices: Mapping[str, float] | None, listed: PriceList) -> Price:
    found = dearest(of, zones, prices, listed)
    if isinstance(found, Unknown):
        raise UsageError(f"a budget cannot be kept, as {found}")
    return found
