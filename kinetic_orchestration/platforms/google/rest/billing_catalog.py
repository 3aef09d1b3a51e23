"""Google's Billing Catalog: the list prices of TPU chips and of machines with GPUs, or an error that names the problem.

`rates_of` is pure: from SKUs (https://cloud.google.com/billing/v1/how-tos/catalog-api) to prices. v5e, v5p and v6e are
rows of Compute Engine, one chip for an hour. v2 to v4 are rows of another service, by devices and continents, in words
that vary, and keep the prices that come with the package; of TPU7x nobody knows whether its hour is that of a chip.

A machine with GPUs has rows for a GPU, a core and a GiB of memory of its family, and a GiB of disk for a month; a row
of B200 is a GPU with its share of the machine. The forms of descriptions are those that users have published
(sparecores/sc-crawler, dstackai/gpuhunt, Infracost). A row counts by its whole description, and for the regions that
it lists, never for those that it describes. What is left out is told: a row of a TPU, a GPU, a core or memory in words
that are not known here, two rows of one thing, a price that is not plausible. If that is one of a TPU on demand or
spot, the list is not read as it is meant, and is refused whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from kinetic_orchestration.errors import BackendError, CredentialsError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware import machine_parts
from kinetic_orchestration.plan.hardware.machines import HYPERDISK, PD_BALANCED, PD_SSD, PD_STANDARD
from kinetic_orchestration.plan.hardware.price_list import (
    FLEX_START,
    HOURS,
    ON_DEMAND,
    SPOT,
    PriceList,
    Rate,
    check,
)
from kinetic_orchestration.plan.hardware.prices import UNCOUNTED
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import CallContext, Status
from kinetic_orchestration.platforms.google.api_errors import Row as ErrorRow
from kinetic_orchestration.platforms.google.rest.client import google
from kinetic_orchestration.protocol import wire

COMPUTE_ENGINE = "6F81-5844-456A"
SOURCE = "Google's Billing Catalog"
PAGE = 5000
MOST_PAGES = 50
APART = 4.0  # a price that differs from the known one by more than this factor is rejected
_TPUS = {"TpuV5e": "v5e", "TpuV5p": "v5p", "TpuV6e": "v6e"}
_TPUS_BY_FLEX_START = {"V5e": "v5e", "V5p": "v5p", "V6e": "v6e"}
_GPUS = {
    "Nvidia Tesla T4 GPU": "t4", "Nvidia L4 GPU": "l4", "Nvidia Tesla A100 GPU": "a100",
    "Nvidia Tesla A100 80GB GPU": "a100-80gb", "Nvidia H100 80GB GPU": "h100", "Nvidia H100 80GB Mega GPU": "h100-mega",
    "Nvidia H100 Mega 80GB GPU": "h100-mega", "Nvidia H100 80GB Plus GPU": "h100-mega", "H200 141GB GPU": "h200",
    "H100 80GB GPU": "h100", "H100 80GB Mega GPU": "h100-mega", "H100 Mega 80GB GPU": "h100-mega",
    "H100 80GB Plus GPU": "h100-mega", "Nvidia H200 141GB GPU": "h200", "RTX 6000 96GB": "rtx-pro-6000",
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
_SLICE = re.compile(rf"({_BEFORE}|)(?:A4 )?Nvidia (B200) \(1 gpu slice\) running in \S.*")
_PART = re.compile(rf"({_BEFORE}|)({_one_of(*_FAMILIES)})(?: Instance)? (Core|Ram) running in \S.*")
_DISK = re.compile(rf"({_one_of(*_DISKS)})(?: in \S.*)?")
_SSD = re.compile(rf"SSD backed Local Storage({_AFTER}|)(?: in \S.*)?")
_TPU_WORDS = _one_of(*_TPUS, *_TPUS_BY_FLEX_START, "TPU7x")
# Rows that are known, and are the price of nothing that a job asks for: capacity that was booked for a time or for
# years, the way "capacity optimized" that nobody explains, and the old service's devices. Their usage type says
# OnDemand as well, but for commitments.
_LEFT = re.compile(
    rf"Reserved ({_TPU_WORDS}) in \S.* in Calendar Mode|Reserved ({_TPU_WORDS}) TPU in \S.* in Calendar Mode"
    rf"|DWS Calendar Mode \S.* (running )?in \S.*|Reserved ({_one_of(*_GPUS)}) in \S.*"
    rf"|Capacity Optimized ({_one_of(*_TPUS)}) running in \S.*"
    r"|Commitment v\d: \S.* in \S.* for [13] Years?|TPU-v[234] (Accelerator|Pod)\b.*",
    re.IGNORECASE,
)
_UNCOUNTED = re.compile(rf"(TPU7x)({_AFTER}|) running in \S.*|DWS Defined Duration (?:TPU)?(7x) running in \S.*")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_OF_OUR_GPUS = re.compile(r"\b(T4|L4|A100|H100|H200|B200|RTX 6000 96GB)\b")
_MACHINES = ("CPU", "RAM", "N1Standard")  # groups of rows of cores and memory
_OF_OUR_MACHINES = re.compile(rf"\b({_one_of(*_FAMILIES)})\b")
_OTHERS = re.compile(r"Virtual Workstation|vGPU|Sole Tenancy|Custom|Premium|GB200", re.IGNORECASE)


class Row(NamedTuple):
    """The thing of which a SKU is the price."""

    name: str  # in a price list
    model: str
    what: str  # of `price_list.BOUNDS`
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


# What Google says of an API key that it does not take.
_OF_KEYS: tuple[ErrorRow, ...] = (
    ErrorRow((), r"API key (not valid|expired)", ("API_KEY_INVALID",), wire.CONFIGURATION, api_errors.FATAL,
        "KINETIC_BILLING_KEY is no key that Google knows, or one that has expired or was deleted: see "
        "console.cloud.google.com/apis/credentials"),
    ErrorRow((), r"Requests to this API \S+ method \S+ are blocked", ("API_KEY_SERVICE_BLOCKED",),
        wire.CONFIGURATION, api_errors.FATAL,
        "the key of KINETIC_BILLING_KEY is restricted to other APIs: add the Cloud Billing API to it at "
        "console.cloud.google.com/apis/credentials"),
    ErrorRow((), r"API key has an? .* restriction|referer .* are blocked|client application .* are blocked",
        ("API_KEY_IP_ADDRESS_BLOCKED", "API_KEY_HTTP_REFERRER_BLOCKED", "API_KEY_ANDROID_APP_BLOCKED",
         "API_KEY_IOS_APP_BLOCKED"),
        wire.CONFIGURATION, api_errors.FATAL,
        "the key of KINETIC_BILLING_KEY may be used from other addresses or programs alone: change that at "
        "console.cloud.google.com/apis/credentials"),
)  # fmt: skip


def fetch(settings: Settings, known: PriceList) -> CatalogPrices:
    """Ask for all SKUs, with the key of the settings or else this process's login, and take what is plausible of them.

    Raises BackendError, or CredentialsError for want of both; nothing is taken then.
    """
    rows: list[Any] = []
    params = {"currencyCode": "USD", "pageSize": str(PAGE)}
    try:
        opened = google(settings, settings.billing_key)
        with opened as api:
            for _ in range(MOST_PAGES):
                answer = api.call("GET", "cloudbilling", f"v1/services/{COMPUTE_ENGINE}/skus", params=params)
                if not answer.ok:
                    said = _told(answer.status_of(), settings)
                    raise BackendError(
                        f"{SOURCE} gave none: {said}. The prices of {known.dates()} stay", "configuration"
                    )
                skus = answer.body.get("skus", [])
                if not isinstance(skus, list):
                    raise _refused("its answer has no list of SKUs", known)
                rows += skus
                if not (token := answer.body.get("nextPageToken")):
                    return rates_of(rows, known)
                params["pageToken"] = str(token)
    except CredentialsError as error:
        raise CredentialsError(f"{error} Or set KINETIC_BILLING_KEY: an API key is enough to read prices.") from error
    raise _refused(f"its answer has no end after {MOST_PAGES} pages", known)


def _told(status: Status, settings: Settings) -> str:
    """Return an error with what to do about it. A call with a key counts against the project of the key."""
    if not settings.billing_key:
        return api_errors.classify(status, CallContext(settings.project, service="cloudbilling")).sentence
    row = api_errors.row_of(status, _OF_KEYS)
    if row is None:
        return api_errors.classify(status, CallContext(service="cloudbilling")).sentence
    return f"{status.message} ({api_errors.name_of(status.code)}). {row.advice}"


_Key = tuple[str, str, str]  # of a rate: generation, region, model


def rates_of(skus: Iterable[Any], known: PriceList) -> CatalogPrices:
    """The prices in force of all SKUs that are known by the whole form of their description."""
    found: dict[_Key, Rate] = {}
    rows: dict[_Key, Row] = {}
    twice: dict[_Key, list[str]] = {}
    told, read = list[str](), 0
    for sku in skus:
        read += 1
        if not isinstance(sku, Mapping):
            raise _refused(f"SKU {read} is no object", known)
        description = str(sku.get("description", ""))
        row = row_of(description, _category(sku).get("usageType"))
        if row is None:
            told += _missed(description, _category(sku))
            continue
        try:
            rates = list(_rates(sku, row))
        except Implausible as error:
            if row.decides:
                raise _refused(str(error), known) from None
            told.append(str(error))
            continue
        told += _of_nowhere(sku)
        for rate in rates:
            key = (rate.generation, rate.region, rate.model)
            if key in found:
                twice.setdefault(key, [found[key].source]).append(rate.source)
            found[key], rows[key] = rate, row
    good = {key: rate for key, rate in found.items() if _is_plausible(rate, rows[key], found, known, told)}
    if not any(rate.model == ON_DEMAND and rows[key].is_tpu for key, rate in good.items()):
        raise _refused(f"none of its {read} SKUs is a TPU on demand", known)
    told += [f"{' '.join(key)}: of {' and '.join(of)} none is taken" for key, of in sorted(twice.items())]
    return CatalogPrices(tuple(rate for key, rate in good.items() if key not in twice), tuple(told), read)


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


def _missed(description: str, category: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to tell of a row that is not taken: one of a TPU or a GPU of ours, or of its machine, in words that
    are not known here, or one of a unit that is not known."""
    if _UNCOUNTED.fullmatch(description):
        yield f"{description[:120]}: {UNCOUNTED['tpu7x']}; KINETIC_PRICES=tpu7x=… names its price"
    elif not _LEFT.fullmatch(description):
        group = str(category.get("resourceGroup"))
        ours = _OF_OUR_GPUS if group == "GPU" else _OF_OUR_MACHINES if group in _MACHINES else None
        is_ours = ours is not None and bool(ours.search(description)) and not _OTHERS.search(description)
        if is_ours or group == "TPU" or "tpu" in description.lower():
            yield description[:120]


def _of_nowhere(sku: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to tell of a row that is of no region, as those of all the world are."""
    strange = [str(region) for region in sku["serviceRegions"] if not _REGION.fullmatch(str(region))]
    if strange or not sku["serviceRegions"]:
        yield f"{str(sku.get('description'))[:120]}: it is of no region, but of {', '.join(strange)[:80] or 'nothing'}"


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
        if not isinstance(regions := sku["serviceRegions"], list):
            raise ValueError("it has no list of regions")
        for region in filter(_REGION.fullmatch, map(str, regions)):
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
    what = "for a chip-hour" if row.what == "chip" else f"for an hour of a {row.what}"
    told = f"{rate.generation} in {rate.region}, {rate.model}, at ${rate.usd:g} {what}"
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
