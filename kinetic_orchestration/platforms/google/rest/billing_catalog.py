"""Google's Billing Catalog: the list prices of TPU chips, or an error that names the problem.

`rates_of` is pure: from SKUs (https://cloud.google.com/billing/v1/how-tos/catalog-api) to prices. v5e, v5p and v6e are
rows of Compute Engine, one chip for an hour. v2 to v4 are rows of another service, by devices and continents, in words
that vary, and keep the prices that come with the package; no job reaches TPU7x.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from kinetic_orchestration.errors import BackendError
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.price_list import ON_DEMAND, SPOT, PriceList, Rate, check
from kinetic_orchestration.platforms.google import api_errors
from kinetic_orchestration.platforms.google.api_errors import CallContext
from kinetic_orchestration.platforms.google.rest.client import google

COMPUTE_ENGINE = "6F81-5844-456A"
SOURCE = "Google's Billing Catalog"
PAGE = 5000
MOST_PAGES = 50
LEAST, MOST = 0.01, 100.0  # dollars for a chip-hour: a value outside is no price of a TPU
APART = 4.0  # a price that differs from the known one by more than this factor is rejected

_GENERATIONS = {"TpuV5e": "v5e", "TpuV5p": "v5p", "TpuV6e": "v6e"}
_NAMED = "|".join(_GENERATIONS)
# The whole beginning of a description decides: the usage type of discounted rows is OnDemand as well.
_TAKEN = (
    (re.compile(rf"({_NAMED}) running in \S"), "OnDemand", ON_DEMAND),
    (re.compile(rf"({_NAMED}) attached to Spot Preemptible VMs running in \S"), "Preemptible", SPOT),
)
_LEFT = re.compile(r"(DWS Defined Duration|Reserved|Capacity Optimized|Commitment v\d:|TPU7x|TPU-v\d) ", re.IGNORECASE)


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
                raise _implausible("its answer has no list of SKUs", known)
            rows += skus
            if not (token := answer.body.get("nextPageToken")):
                break
            params["pageToken"] = str(token)
        else:
            raise _implausible(f"its answer has no end after {MOST_PAGES} pages", known)
    return rates_of(rows, known)


def rates_of(skus: Iterable[Any], known: PriceList) -> CatalogPrices:
    """The prices in force of all SKUs that are known by the whole form of their description."""
    found: dict[tuple[str, str, str], Rate] = {}
    unknown, read = [], 0
    for sku in skus:
        read += 1
        if not isinstance(sku, Mapping):
            raise _implausible(f"SKU {read} is no object", known)
        description = str(sku.get("description", ""))
        given = sku.get("category")
        category: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        model = generation = ""
        for pattern, usage, kind in _TAKEN:
            if (match := pattern.match(description)) and category.get("usageType") == usage:
                generation, model = _GENERATIONS[match[1]], kind
        if not model:
            if (category.get("resourceGroup") == "TPU" or "tpu" in description.lower()) and not _LEFT.match(
                description
            ):
                unknown.append(description[:120])
            continue
        for rate in _rates(sku, generation, model, known):
            key = (rate.generation, rate.region, rate.model)
            if key in found:
                raise _implausible(f"two SKUs are {' '.join(key)}: {found[key].source} and {rate.source}", known)
            found[key] = rate
    for rate in found.values():
        _check_plausible(rate, found, known)
    if not any(rate.model == ON_DEMAND for rate in found.values()):
        raise _implausible(f"none of its {read} SKUs is a TPU on demand", known)
    return CatalogPrices(tuple(found.values()), tuple(unknown), read)


def _rates(sku: Mapping[str, Any], generation: str, model: str, known: PriceList) -> Iterator[Rate]:
    """One for each region of the row, with the price that is in force: the last in time, its first tier above 0."""
    name = str(sku.get("skuId", "?"))
    try:
        last = sku["pricingInfo"][-1]
        expression = last["pricingExpression"]
        date = str(last["effectiveTime"])[:10]
        prices = [(_dollars(tier["unitPrice"])) for tier in expression["tieredRates"]]
        usd = next((price for price in prices if price > 0), Decimal(0))
        if expression["usageUnit"] != "h":
            raise ValueError(f"it is charged by {expression['usageUnit']!r}, not by the hour")
        regions = [str(region) for region in sku["serviceRegions"]]
        for region in regions:
            rate = Rate(generation, region, model, float(usd), date, f"{SOURCE}, SKU {name}")
            check(rate)
            yield rate
    except (KeyError, IndexError, TypeError, ValueError, InvalidOperation) as error:
        raise _implausible(f"SKU {name:.40} ({str(sku.get('description'))[:80]}): {error!s:.200}", known) from None


def _dollars(price: Mapping[str, Any]) -> Decimal:
    if price["currencyCode"] != "USD":
        raise ValueError(f"it is in {price['currencyCode']!r}, not in dollars")
    return Decimal(str(price.get("units") or "0")) + Decimal(int(price.get("nanos") or 0)) / 10**9


def _check_plausible(rate: Rate, found: Mapping[tuple[str, str, str], Rate], known: PriceList) -> None:
    row = f"{rate.generation} in {rate.region}, {rate.model}, at ${rate.usd:g} for a chip-hour"
    if not LEAST <= rate.usd <= MOST:
        raise _implausible(f"{row}: no chip costs that", known)
    full = found.get((rate.generation, rate.region, ON_DEMAND))
    if rate.model == SPOT and full is not None and rate.usd > full.usd:
        raise _implausible(f"{row}, is dearer than on demand (${full.usd:g})", known)
    before = [old.usd for old in known.rates if (old.generation, old.model) == (rate.generation, rate.model)]
    if before and not min(before) / APART <= rate.usd <= max(before) * APART:
        raise _implausible(
            f"{row}, and it was ${min(before):g} to ${max(before):g}: more than {APART:g} times apart", known
        )


def _implausible(why: str, known: PriceList) -> BackendError:
    return BackendError(
        f"what {SOURCE} says is not plausible, and nothing of it was taken: {why}. The prices of {known.dates()} stay; "
        "your own go into KINETIC_PRICES",
        "configuration",
    )
