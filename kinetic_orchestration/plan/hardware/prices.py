"""The price of what a job holds: of one chip for an hour, by settings or by a `PriceList`. Pure.

A GPU has its share of what its VM costs besides, and a TPU that of the boot disk of a VM of Compute Engine
(`machine_parts`).
One rule holds for all: each part that is charged for has a price, or the whole has none, and it is said of which part,
where, and what helps. A part without a price never counts as nothing, since limits of money rest on these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kinetic_orchestration.plan.hardware import machine_parts, machines
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.hardware.machine_parts import Part
from kinetic_orchestration.plan.hardware.machines import BootDisk
from kinetic_orchestration.plan.hardware.price_list import (
    BUILT_IN,
    FLEX_START,
    ON_DEMAND,
    RESERVATION,
    SPOT,
    PriceList,
    Rate,
)
from kinetic_orchestration.plan.messages import command

# Behind the name of a chip in KINETIC_PRICES, by the way in which it is got.
_BEHIND = {ON_DEMAND: "", SPOT: f":{SPOT}", FLEX_START: f":{FLEX_START}", RESERVATION: f":{RESERVATION}"}
UNCOUNTED: Mapping[str, str] = {
    "tpu7x": "as Google's list has it by the hour, and not whether of a chip or of the four of a host"
}
"""Generations with rows whose unit nobody knows, and the reason."""


@dataclass(frozen=True, slots=True)
class Purchase:
    """Hardware that is paid for, and the way in which it is got.

    Attributes:
        slice: One slice of it.
        slices: How many of these.
        spot: It is spot capacity; a slice that says so by its name is, too.
        flex_start: It comes by flex-start.
        reserved: It comes from a reservation, which is paid for by its own contract.
        disk: The boot disk of each host. With none, GPUs have the usual one, and nothing is charged for a TPU's.
        of_google: Google has its machines. The list has no prices of GPUs that are elsewhere.
    """

    slice: Slice
    slices: int = 1
    spot: bool = False
    flex_start: bool = False
    disk: BootDisk | None = None
    of_google: bool = True
    reserved: bool = False

    @property
    def is_spot(self) -> bool:
        return self.spot or self.slice.spot

    @property
    def model(self) -> str:
        """The way in which it is got, as a price list has it."""
        if self.is_spot:
            return SPOT
        return RESERVATION if self.reserved else FLEX_START if self.flex_start else ON_DEMAND

    @property
    def chips(self) -> int:
        """The number of chips of all slices; a processor has none."""
        return 0 if self.slice.kind == "cpu" else self.slice.chips * self.slices


@dataclass(frozen=True, slots=True)
class Price:
    usd_per_chip_hour: float
    region: str  # where it applies; "" for a price that names no region
    source: str  # how it is shown: what price this is, and how old
    date: str  # "" for a price from settings
    stands_in: str = ""  # what it is in place of the one that is asked for, which is not known


@dataclass(frozen=True, slots=True)
class Unknown:
    """No price is known.

    Attributes:
        of: Of what there is none, and where, for users.
        fix: What to do about it.
    """

    of: str
    fix: str

    def __str__(self) -> str:
        return f"no price is known of {self.of}: {self.fix}"


def price(
    of: Purchase, zone: str | None = None, own: Mapping[str, float] | None = None, listed: PriceList = BUILT_IN
) -> Price | Unknown:
    """Return the price of one chip for an hour, with its share of all that is charged for beside it.

    What comes as spot or by flex-start has the price on demand, which is the most that it costs, where none of that way
    is listed, and its source says so. A reservation has a price from settings alone: no list has its rate, and that of
    another way is not its. A region that is not listed, or not known, has the price of the dearest that is; without a
    zone it is that of the first region.

    Args:
        of: What is bought.
        zone: A zone, a region, or a place whose region is not known.
        own: Prices from settings, which come first. The keys are `v5e`, or `v5e/us-central1` for one region, each with
            `:spot`, `:flex-start` or `:reservation` behind it for what is got that way; without one they are for what
            is on demand, and for flex-start where it has none of its own. They may also price what the list does not
            know, such as `a100`.
        listed: The list.
    """
    region = region_of(zone)
    if zone and not region:
        return _in_a_cluster(dearest(of, (), own, listed))
    if (usd := _own(of, region, own or {})) is not None:
        return Price(usd, region, "price from settings", "")
    if of.model == RESERVATION:
        told = f"{_there(of, region)} from a reservation, which has no list price, as it costs what its contract says"
        return _unknown(of, told, region, is_listed=False)
    if not of.of_google and of.slice.kind == "gpu":
        return _unknown(of, f"{of.slice.name} on machines that are not Google's", region)
    return _by_list(of, region, listed)


def _by_list(of: Purchase, region: str, listed: PriceList) -> Price | Unknown:
    """The price in a region, or what stands in for it."""
    name, regions = of.slice.generation, listed.regions(of.slice.generation)
    is_listed = of.slice.kind != "gpu" or machines.serves(of.slice)
    if not regions or not is_listed:
        is_listed = is_listed and of.slice.kind == "gpu"  # a refresh has all TPUs that it can have
        why = f", {UNCOUNTED[name]}" if name in UNCOUNTED else ""
        return _unknown(of, f"{_there(of, region)}{why}", region, is_listed)
    if region in regions or (region and listed.rate(name, region, of.model)):
        return _in(of, region, region, listed)
    asked = [_in(of, found, region, listed) for found in regions]
    known = [one for one in asked if isinstance(one, Price)]
    return _highest(known) if known and region else (known or asked)[0]


def _there(of: Purchase, region: str) -> str:
    return f"{of.slice.name} in {region}" if region else of.slice.name


def _own(of: Purchase, region: str, own: Mapping[str, float]) -> float | None:
    """Return the price from settings, the more exact first; None if there is none."""
    behind = (_BEHIND[of.model], *([""] if of.model == FLEX_START else []))
    keys = [f"{of.slice.generation}{where}{way}" for where in (f"/{region}", "") for way in behind]
    return next((own[key] for key in keys if key in own), None)


def dearest(
    of: Purchase, zones: Sequence[str], own: Mapping[str, float] | None = None, listed: PriceList = BUILT_IN
) -> Price | Unknown:
    """Return the highest price that may be asked in these zones, none of which is known to be the one.

    It is unknown as soon as that in one of them is. Without zones, or for places of which the region is not known, it
    is the highest of all regions.
    """
    regions = [region_of(zone) for zone in zones]
    if regions and all(regions):
        asked = [price(of, region, own, listed) for region in dict.fromkeys(regions)]
        return next((one for one in asked if isinstance(one, Unknown)), None) or _highest(asked)
    asked = [price(of, region, own, listed) for region in ("", *listed.regions(of.slice.generation))]
    known = [one for one in asked if isinstance(one, Price)]
    return _highest(known) if known else asked[0]


def incomplete(slices: Iterable[Slice], listed: PriceList) -> Iterator[str]:
    """Yield which of these GPUs the list has no whole price of although it has one of the GPU, where, and why; for
    users. Each is told once, whatever its number."""
    told = set[str]()
    for slice_ in slices:
        if slice_.kind != "gpu" or slice_.generation in told or not machines.serves(slice_):
            continue
        told.add(slice_.generation)
        by_names: dict[str, list[str]] = {}
        for region in listed.regions(slice_.generation):
            names = [part.name for part, rate in _rates(Purchase(slice_), region, listed) if rate is None]
            if names:
                by_names.setdefault(_joined(names), []).append(region)
        for missing, regions in by_names.items():
            yield f"no price of {slice_.generation} in {', '.join(regions)}, as the list has none of {missing} there"


def region_of(zone: str | None) -> str:
    """us-central1 of us-central1-a; a region stays what it is, and a cluster's is not known."""
    if "/" in (zone or ""):
        return ""
    parts = (zone or "").split("-")
    return "-".join(parts[:2])


def _in_a_cluster(found: Price | Unknown) -> Price | Unknown:
    if isinstance(found, Unknown) or not (found.region and found.date):  # of any region, or from settings
        return found
    source = f"{found.source} for {found.region}, the dearest, as the cluster's is not known"
    return replace(found, source=source, stands_in=_of_another(found.region))


def _in(of: Purchase, found: str, region: str, listed: PriceList) -> Price | Unknown:
    """The price in a region of the list, which may stand in for another."""
    parts = _rates(of, found, listed)
    if missing := [part for part, rate in parts if rate is None]:
        words = _joined([f"{part.words} ({part.name!r})" for part in missing])
        nor = f", nor of any in {region}" if region not in ("", found) else ""
        return _unknown(of, f"{words} of {of.slice.name} in {found or 'any region'}{nor}", region)
    rates = [(part, rate) for part, rate in parts if rate is not None]
    chips = rates[0][0].amount
    usd = sum(rate.usd * part.amount for part, rate in rates) / chips
    told = [rate for part, rate in rates if not part.is_disk or of.model == ON_DEMAND]
    source = _source(told, of.model, region)
    elsewhere = region and told[0].region not in ("", region)
    stands_in = _of_another(found) if elsewhere else "on demand" if any(one.model != of.model for one in told) else ""
    if beside := [part.words for part, _ in rates[1:]]:
        source += f", with {'its share of ' if chips > 1 else ''}{_joined(beside)}"
    return Price(usd, found, source, min(rate.date for _, rate in rates), stands_in)


def _of_another(region: str) -> str:
    return f"of {region}, the dearest"


def _rates(of: Purchase, region: str, listed: PriceList) -> list[tuple[Part, Rate | None]]:
    """The price of each part in a region, the chips first; None for one that the list does not have."""
    found = []
    for part in machine_parts.parts_of(of.slice, of.disk):
        rate = None if part.is_disk else listed.rate(part.name, region, of.model)
        found.append((part, rate or listed.rate(part.name, region, ON_DEMAND)))
    return found


def _source(rates: Sequence[Rate], model: str, region: str) -> str:
    """Return the kind of these prices, and how old they are. A discounted price that is not known has the one
    on demand in its place, which is the most it may be."""
    kinds, dates = {rate.model for rate in rates}, sorted({rate.date for rate in rates})
    kind = "" if model == ON_DEMAND or model not in kinds else f"{model} "
    source = f"{kind}list price of {dates[0]}{f' to {dates[-1]}' if len(dates) > 1 else ''}"
    if region and rates[0].region not in ("", region):
        source += f" for {rates[0].region}, the dearest, as none is known for {region}"
    if model not in kinds:
        source += f", on demand and so at most, as none is known for {model}"
    elif len(kinds) > 1:
        source += f", in part on demand and so at most, as none is known for {model}"
    return source


def _unknown(of: Purchase, what: str, region: str, is_listed: bool = True) -> Unknown:
    key = f"{of.slice.generation}{f'/{region}' if region else ''}{_BEHIND[of.model]}"
    of_chip = ("chip", "boot disk" if of.disk is not None else "")
    chip, beside = ("GPU", "machine") if of.slice.kind == "gpu" else of_chip
    share = f", with its share of the {beside}," if beside else ""
    name = f"name the price of a {chip} for an hour{share} with KINETIC_PRICES={key}=…"
    if not beside or not of.of_google or not is_listed:
        return Unknown(what, name)
    read = f"read Google's list with `{command('prices', '--refresh')}`, which says what it lacks"
    return Unknown(what, f"{read}, or {name}")


def _highest(known: Iterable[Price | Unknown]) -> Price:
    return max((one for one in known if isinstance(one, Price)), key=lambda one: one.usd_per_chip_hour)


def _joined(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
