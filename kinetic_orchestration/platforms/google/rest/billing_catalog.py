"""Google's Billing Catalog: the list prices of TPU chips and of machines with GPUs, or an error that names the problem.

`rates_of` is pure: from SKUs (https://cloud.google.com/billing/v1/how-tos/catalog-api) to prices. v5e, v5p and v6e are
rows of Compute Engine, one chip for an hour. v2 to v4 are rows of another service, by devices and continents, in words
that vary, and keep the prices that come with the package; of TPU7x nobody knows whether its hour is that of a chip.

A machine with GPUs has rows for a GPU, a core and a GiB of memory of its family, and a GiB of disk for a month; a row
of B200 is a GPU with its share of the machine. The forms of descriptions are those that users have published
(sparecores/sc-crawler, dstackai/gpuhunt, Infracost). A row that is not plausible is left out and told, and so is one
of a GPU, a core or memory in words that are not known here; one of a TPU on demand or spot refuses the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import machine_parts
from kinetic_orchestration.plan.hardware.machines import HYPERDISK, PD_BALANCED, PD_SSD, PD_STANDARD
from kinetic_orchestration.plan.hardware.price_list import FLEX_START, HOURS, ON_DEMAND, SPOT, PriceList, Rate, check
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.rest.client import google

COMPUTE_ENGINE = "6F81-5844-456A"
SOURCE = "Google's Billing Catalog"
PAGE = 5000
MOST_PAGES = 50
APART = 4.0  # a price that differs from the known one by more than this factor is rejected
# Dollars for an hour: a value outside is no price of such a thing.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "chip": (0.01, 100.0), "core": (0.001, 1.0), "GiB of memory": (0.0001, 0.1), "GiB of disk": (0.000005, 0.01),
}  # fmt: skip

_TPUS = {"TpuV5e": "v5e", "TpuV5p": "v5p", "TpuV6e": "v6e"}
_TPUS_BY_FLEX_START = {"V5e": "v5e", "V5p": "v5p", "V6e": "v6e"}
_GPUS = {
    "Nvidia Tesla T4 GPU": "t4", "Nvidia L4 GPU": "l4", "Nvidia Tesla A100 GPU": "a100",
    "Nvidia Tesla A100 80GB GPU": "a100-80gb", "Nvidia H100 80GB GPU": "h100", "Nvidia H100 80GB Mega GPU": "h100-mega",
    "Nvidia H100 Mega 80GB GPU": "h100-mega", "Nvidia H100 80GB Plus GPU": "h100-mega", "H200 141GB GPU": "h200",
    "Nvidia H200 141GB GPU": "h200", "RTX 6000 96GB": "rtx-pro-6000",
}  # fmt: skip
_FAMILIES = {
    "N1 Predefined": "n1", "A2": "a2", "A3": "a3", "A3Plus": "a3plus", "A3Ultra": "a3ultra", "G2": "g2", "G4": "g4",
}  # fmt: skip
_DISKS = {
    "Balanced PD Capacity": PD_BALANCED, "SSD backed PD Capacity": PD_SSD, "Storage PD Capacity": PD_STANDARD,
    "Hyperdisk Balanced Capacity": HYPERDISK,
}  # fmt: skip
_MODELS = {
    "": ON_DEMAND, " attached to Spot Preemptible VMs": SPOT, " attached to DWS Defined Duration VMs": FLEX_START,
    "Spot Preemptible ": SPOT, "DWS Defined Duration ": FLEX_START,
}  # fmt: skip


def _one_of(*words: str) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


_AFTER = _one_of(*(form for form in _MODELS if form.startswith(" ")))
_BEFORE = _one_of(*(form for form in _MODELS if form.endswith(" ")))
# The whole description decides: the usage type of discounted rows is OnDemand as well.
_CHIP = re.compile(rf"({_one_of(*_TPUS, *_GPUS)})({_AFTER}|) running in \S.*")
_TPU_BY_FLEX_START = re.compile(rf"DWS Defined Duration ({_one_of(*_TPUS_BY_FLEX_START)}) running in \S.*")
_SLICE = re.compile(rf"({_BEFORE}|)A4 Nvidia (B200) \(1 gpu slice\) running in \S.*")
_PART = re.compile(rf"({_BEFORE}|)({_one_of(*_FAMILIES)})(?: Instance)? (Core|Ram) running in \S.*")
_DISK = re.compile(rf"({_one_of(*_DISKS)})(?: in \S.*)?")
_SSD = re.compile(rf"SSD backed Local Storage({_AFTER}|)(?: in \S.*)?")
_LEFT = re.compile(r"(DWS Calendar Mode|Reserved|Capacity Optimized|Commitment v\d:|TPU7x|TPU-v\d) ", re.IGNORECASE)
_OF_OUR_GPUS = re.compile(r"\b(T4|L4|A100|H100|H200|B200|RTX 6000 96GB)\b")
_MACHINES = ("CPU", "RAM", "N1Standard")  # groups of rows of cores and memory
_OF_OUR_MACHINES = re.compile(rf"\b({_one_of(*_FAMILIES)})\b")
_OTHERS = re.compile(r"Virtual Workstation|vGPU|Sole Tenancy|Custom|Premium|GB200", re.IGNORECASE)


class Row(NamedTuple):
    """What a SKU is the price of."""

    name: str  # in a price list
    model: str
    what: str  # of BOUNDS
    unit: str
    is_tpu: bool = False

    @property
    def decides(self) -> bool:
        """True if the whole list is refused when this row is not plausible, as it is not read as it is meant then."""
        return self.is_tpu and self.model != FLEX_START


class Implausible(ValueError):
    """A row is no price of what it says. The message has the reason."""


class CatalogPrices(NamedTuple):
    rates: tuple[Rate, ...]
    unknown: tuple[str, ...]  # descriptions of rows that name TPUs in words that are not known here
    read: int  # SKUs


def fetch(settings: Settings, known: PriceList) -> CatalogPrices:
    """Ask for all SKUs and take what is plausible of them. Raises BackendError; nothing is taken then."""
    rows: list[Any] = []
    params = {"currencyCode": "USD", "pageSize": str(PAGE)}
    with google(settings) as api:
        for _ in range(MOST_PAGES):
            answer = api.call("GET", "cloudbilling", f"v1/services/{COMPUTE_ENGINE}/skus", params=params)
            if not answer.ok:
                description = api_errors.classify(answer.status_of(), CallContext(settings.project)).sentence
                raise BackendError(
                    f"{SOURCE} gave none: {description}. The prices of {known.dates()} stay", "configuration"
                )
            skus = answer.body.get("skus", [])
            if not isinstance(skus, list):
                raise _refused("its answer has no list of SKUs", known)
            rows += skus
            if not (token := answer.body.get("nextPageToken")):
                break
            params["pageToken"] = str(token)
        else:
            raise _refused(f"its answer has no end after {MOST_PAGES} pages", known)
    return rates_of(rows, known)


def rates_of(skus: Iterable[Any], known: PriceList) -> CatalogPrices:
    """The prices in force of all SKUs that are known by the whole form of their description."""
    found: dict[tuple[str, str, str], Rate] = {}
    rows: dict[tuple[str, str, str], Row] = {}
    apart: set[tuple[str, str, str]] = set()
    unknown, read = list[str](), 0
    for sku in skus:
        read += 1
        if not isinstance(sku, Mapping):
            raise _refused(f"SKU {read} is no object", known)
        description = str(sku.get("description", ""))
        row = row_of(description, _category(sku).get("usageType"))
        if row is None:
            if _is_missed(description, _category(sku)):
                unknown.append(description[:120])
            continue
        try:
            rates = list(_rates(sku, row))
        except Implausible as error:
            if row.decides:
                raise _refused(str(error), known) from None
            unknown.append(str(error))
            continue
        for rate in rates:
            key = (rate.generation, rate.region, rate.model)
            if key in found and row.decides:
                raise _refused(f"two SKUs are {' '.join(key)}: {found[key].source} and {rate.source}", known)
            if key in found and found[key].usd != rate.usd:
                apart.add(key)
            found[key], rows[key] = rate, row
    good = {key: rate for key, rate in found.items() if _is_plausible(rate, rows[key], found, known, unknown)}
    if not any(rate.model == ON_DEMAND and rows[key].is_tpu for key, rate in good.items()):
        raise _refused(f"none of its {read} SKUs is a TPU on demand", known)
    unknown += [f"{' '.join(key)}: two SKUs have two prices" for key in sorted(apart)]
    return CatalogPrices(tuple(rate for key, rate in good.items() if key not in apart), tuple(unknown), read)


def row_of(description: str, usage: Any) -> Row | None:
    """Return what a SKU is the price of, by its description and its usage type; None for what is none of ours."""
    row = _row_of(description)
    if row is None:
        return None
    # Of slices of machines and of local SSDs, the rows of spot are said to be on demand.
    usual = "Preemptible" if row.model == SPOT else "OnDemand"
    either = row.model == SPOT and (row.name == "b200" or row.what == "GiB of disk")
    return row if usage == usual or (either and usage == "OnDemand") else None


def _row_of(description: str) -> Row | None:  # noqa: PLR0911 - a list of cases, the first that fits
    if match := _CHIP.fullmatch(description):
        name = _TPUS.get(match[1]) or _GPUS[match[1]]
        return Row(name, _MODELS[match[2]], "chip", "h", match[1] in _TPUS)
    if match := _TPU_BY_FLEX_START.fullmatch(description):
        return Row(_TPUS_BY_FLEX_START[match[1]], FLEX_START, "chip", "h", True)
    if match := _SLICE.fullmatch(description):
        return Row(match[2].lower(), _MODELS[match[1]], "chip", "h")
    if match := _PART.fullmatch(description):
        family, model = _FAMILIES[match[2]], _MODELS[match[1]]
        if match[3] == "Core":
            return Row(machine_parts.core(family), model, "core", "h")
        return Row(machine_parts.memory(family), model, "GiB of memory", "GiBy.h")
    if match := _DISK.fullmatch(description):
        return Row(_DISKS[match[1]], ON_DEMAND, "GiB of disk", "GiBy.mo")
    if match := _SSD.fullmatch(description):
        return Row(machine_parts.LOCAL_SSD, _MODELS[match[1]], "GiB of disk", "GiBy.mo")
    return None


def _category(sku: Mapping[str, Any]) -> Mapping[str, Any]:
    given = sku.get("category")
    return given if isinstance(given, Mapping) else {}


def _is_missed(description: str, category: Mapping[str, Any]) -> bool:
    """Return True for a row of a TPU or a GPU of ours, or of its machine, in words that are not known here."""
    group = str(category.get("resourceGroup"))
    if _LEFT.match(description):
        return False
    if group == "TPU" or "tpu" in description.lower():
        return True
    ours = _OF_OUR_GPUS if group == "GPU" else _OF_OUR_MACHINES if group in _MACHINES else None
    return ours is not None and bool(ours.search(description)) and not _OTHERS.search(description)


def _rates(sku: Mapping[str, Any], row: Row) -> Iterator[Rate]:
    """One for each region of the row, with the price that is in force: the last in time, its first tier above 0."""
    name = str(sku.get("skuId", "?"))
    try:
        last = sku["pricingInfo"][-1]
        expression = last["pricingExpression"]
        date = str(last["effectiveTime"])[:10]
        prices = [(_dollars(tier["unitPrice"])) for tier in expression["tieredRates"]]
        usd = float(next((price for price in prices if price > 0), Decimal(0)))
        unit = expression["usageUnit"]
        if row.unit == "GiBy.mo" and unit in ("GiBy.mo", "GiBy.h"):
            usd = usd / HOURS if unit == "GiBy.mo" else usd
        elif unit != row.unit:
            raise ValueError(f"it is charged by {unit!r}, not by {'the hour' if row.unit == 'h' else repr(row.unit)}")
        regions = [str(region) for region in sku["serviceRegions"]]
        for region in regions:
            rate = Rate(row.name, region, row.model, usd, date, f"{SOURCE}, SKU {name}")
            check(rate)
            yield rate
    except (KeyError, IndexError, TypeError, ValueError, InvalidOperation) as error:
        raise Implausible(f"SKU {name:.40} ({str(sku.get('description'))[:80]}): {error!s:.200}") from None


def _dollars(price: Mapping[str, Any]) -> Decimal:
    if price["currencyCode"] != "USD":
        raise ValueError(f"it is in {price['currencyCode']!r}, not in dollars")
    return Decimal(str(price.get("units") or "0")) + Decimal(int(price.get("nanos") or 0)) / 10**9


def _is_plausible(
    rate: Rate, row: Row, found: Mapping[tuple[str, str, str], Rate], known: PriceList, unknown: list[str]
) -> bool:
    """Return True for a price that may be one; what is left out is added to `unknown`."""
    why = _why_not(rate, row, found, known)
    if why and row.decides:
        raise _refused(why, known)
    unknown += [why] if why else []
    return not why


def _why_not(rate: Rate, row: Row, found: Mapping[tuple[str, str, str], Rate], known: PriceList) -> str:
    """Return why a price is none; "" if it may be one."""
    least, most = BOUNDS[row.what]
    what = "for a chip-hour" if row.what == "chip" else f"for an hour of a {row.what}"
    told = f"{rate.generation} in {rate.region}, {rate.model}, at ${rate.usd:g} {what}"
    if not least <= rate.usd <= most:
        return f"{told}: no {row.what} costs that"
    full = found.get((rate.generation, rate.region, ON_DEMAND))
    if full is not None and rate.usd > full.usd:
        return f"{told}, is dearer than on demand (${full.usd:g})"
    before = [old.usd for old in known.rates if (old.generation, old.model) == (rate.generation, rate.model)]
    if before and not min(before) / APART <= rate.usd <= max(before) * APART:
        return f"{told}, and it was ${min(before):g} to ${max(before):g}: more than {APART:g} times apart"
    return ""


def _refused(why: str, known: PriceList) -> BackendError:
    return BackendError(
        f"what {SOURCE} says is not plausible, and nothing of it was taken: {why}. The prices of {known.dates()} stay; "
        "your own go into KINETIC_PRICES",
        "configuration",
    )
