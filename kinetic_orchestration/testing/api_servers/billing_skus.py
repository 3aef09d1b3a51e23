"""SKUs in the shape of Google's Billing Catalog, as `services.skus.list` returns them.

The descriptions and prices are those that users have published of 2026-08 (docs/pipelines/emulator.md names the
sources). Between the rows that a price is read from lie those that look like one: reserved, committed, flex-start and
TPU7x.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal

from kinetic_orchestration.testing.model.state.resources import Json

SERVICE = "6F81-5844-456A"


def sku(
    description: str,
    usd: float | str,
    regions: Sequence[str],
    usage: str = "OnDemand",
    *,
    group: str = "TPU",
    unit: str = "h",
    currency: str = "USD",
    effective: str = "2026-08-11T06:00:00Z",
) -> Json:
    """One SKU. Its id is made up from what it says."""
    made = hashlib.sha256(f"{description}{regions}".encode()).hexdigest().upper()
    ident = f"{made[:4]}-{made[4:8]}-{made[8:12]}"
    units, _, rest = f"{Decimal(str(usd)):.9f}".partition(".")
    return {
        "name": f"services/{SERVICE}/skus/{ident}",
        "skuId": ident,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine", "resourceFamily": "Compute", "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1,
                    "tieredRates": [
                        {
                            "startUsageAmount": 0,
                            "unitPrice": {"currencyCode": currency, "units": units, "nanos": int(rest)},
                        }
                    ],
                    "usageUnitDescription": "hour",
                    "baseUnit": "s",
                    "baseUnitDescription": "second",
                    "baseUnitConversionFactor": 3600,
                },
                "currencyConversionRate": 1,
                "effectiveTime": effective,
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "REGIONAL" if len(regions) == 1 else "MULTI_REGIONAL", "regions": list(regions)},
    }  # fmt: skip


def skus() -> list[Json]:
    """The SKUs that an emulated cloud lists unless a test gives it others."""
    spot = "attached to Spot Preemptible VMs running in"
    return [
        sku("TpuV5e running in Las Vegas", "1.2", ["us-west4"]),
        sku(f"TpuV5e {spot} Las Vegas", "0.578", ["us-west4"], "Preemptible"),
        sku("DWS Defined Duration V5e running in Las Vegas", "0.6", ["us-west4"]),
        sku("TpuV5p running in Columbus", "4.2", ["us-east5"]),
        sku("Reserved TpuV5p in Delhi in Calendar Mode", "2.94", ["asia-south2"]),
        sku("TpuV6e running in Columbus", "2.7", ["us-east5"]),
        sku(f"TpuV6e {spot} Columbus", "1.4033", ["us-east5"], "Preemptible"),
        sku("DWS Defined Duration V6e running in Columbus", "1.35", ["us-east5"]),
        sku("Reserved V6e TPU in Columbus in Calendar Mode", "1.89", ["us-east5"]),
        sku("Capacity Optimized TpuV6e running in Columbus", "2.7", ["us-east5"]),
        sku("Commitment v1: TpuV6e running in Columbus for 1 Year", "1.89", ["us-east5"], "Commit1Yr"),
        sku("TpuV6e running in Netherlands", "2.97", ["europe-west4"]),
        sku(f"TpuV6e {spot} Netherlands", "1.782", ["europe-west4"], "Preemptible"),
        sku("TpuV6e running in Dallas", "2.7", ["us-south1"]),
        sku("TPU7x running in Americas", "12", ["us-west1", "us-central1", "us-east1"]),
        sku("Nvidia H100 80GB GPU running in Columbus", "9.796", ["us-east5"], group="GPU"),
    ]
