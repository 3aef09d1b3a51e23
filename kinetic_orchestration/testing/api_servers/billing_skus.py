"""SKUs in the shape of Google's Billing Catalog, as `services.skus.list` returns them.

The descriptions and prices are those that users have published of 2026-08 and 2026-09 (docs/pipelines/emulator.md names
the sources). Between the rows that a price is read from lie those that look like one: reserved, committed, of a
calendar, slices of a card and TPU7x.
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
        *_gpus(),
    ]


def _gpus() -> list[Json]:
    """Whole machines of four families in us-central1, and one GPU whose machine is not listed elsewhere."""
    here, spot, flex = ["us-central1"], "attached to Spot Preemptible VMs", "attached to DWS Defined Duration VMs"
    wide = [*here, "us-east1"]

    def core(text: str, usd: str, *usage: str) -> Json:
        return sku(f"{text} running in Americas", usd, wide, *usage, group="CPU")

    def ram(text: str, usd: str, *usage: str) -> Json:
        return sku(f"{text} running in Americas", usd, wide, *usage, group="RAM", unit="GiBy.h")

    def gpu(text: str, usd: str, *usage: str) -> Json:
        return sku(text, usd, here, *usage, group="GPU")

    return [
        sku("Nvidia H100 80GB GPU running in Columbus", "9.796", ["us-east5"], group="GPU"),
        gpu("Nvidia L4 GPU running in Iowa", "0.5608"),
        gpu(f"Nvidia L4 GPU {spot} running in Iowa", "0.3359", "Preemptible"),
        gpu("Reserved Nvidia L4 GPU in Iowa", "0"),
        core("G2 Instance Core", "0.02498"),
        core("Spot Preemptible G2 Instance Core", "0.01499", "Preemptible"),
        core("Commitment v1: G2 Cpu in Americas for 1 Year", "0.015", "Commit1Yr"),
        ram("G2 Instance Ram", "0.00293"),
        ram("Spot Preemptible G2 Instance Ram", "0.001756", "Preemptible"),
        gpu("Nvidia Tesla A100 GPU running in Americas", "2.934"),
        gpu("Nvidia Tesla A100 80GB GPU running in Iowa", "3.93"),
        gpu(f"Nvidia Tesla A100 GPU {flex} running in Americas", "1.61"),
        core("A2 Instance Core", "0.03161"),
        core("DWS Defined Duration A2 Core", "0.0174"),
        ram("A2 Instance Ram", "0.00424"),
        gpu("Nvidia H100 80GB Plus GPU running in Americas", "10.344276"),
        gpu("Reserved Nvidia H100 80GB Mega GPU in Americas in Calendar Mode", "4.841121"),
        gpu(f"Nvidia H100 Mega 80GB GPU {flex} running in Americas", "4.423936"),
        core("A3Plus Instance Core", "0.026924"),
        ram("A3Plus Instance Ram", "0.002344"),
        gpu("A4 Nvidia B200 (1 gpu slice) running in Americas", "16.11"),
        gpu("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", "4.9542"),
        gpu("RTX 6000 96GB running in Iowa", "1.09565"),
        gpu("1/8 vGPU no lssd running in Iowa", "0.64688"),
        core("G4 Instance Core", "0.04891"),
        ram("G4 Instance Ram", "0.00587"),
        sku("Balanced PD Capacity", "0.1", wide, group="SSD", unit="GiBy.mo"),
        sku("Regional Balanced PD Capacity", "0.2", wide, group="SSD", unit="GiBy.mo"),
        sku("SSD backed PD Capacity", "0.17", wide, group="SSD", unit="GiBy.mo"),
        sku("Storage PD Capacity", "0.04", wide, group="PDStandard", unit="GiBy.mo"),
        sku("Hyperdisk Balanced Capacity in Iowa", "0.08", here, group="SSD", unit="GiBy.mo"),
        sku("SSD backed Local Storage", "0.08", wide, group="LocalSSD", unit="GiBy.mo"),
        sku(f"SSD backed Local Storage {spot}", "0.05", wide, group="LocalSSD", unit="GiBy.mo"),
    ]
