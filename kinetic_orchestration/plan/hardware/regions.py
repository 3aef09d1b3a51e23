"""Regions and zones: their names, those in which a bucket lies, and the charge for reading from elsewhere. Pure.

Source: https://docs.cloud.google.com/storage/docs/locations. Reads within a bucket's region, or within either region of
a dual-region, bear no data transfer charge; reads of a multi-region always do. Dollars are not shown: no price of a GiB
with a source and a date is known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kinetic_orchestration.errors import NoPlace, UsageError

_REGION = r"[a-z]+-[a-z]+[0-9]+"  # compiled when they are first asked
_ZONE = rf"{_REGION}-[a-z0-9]+"

# Where Google names a pair of regions by one word.
_PAIRS = {
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
    "EUR4": ("europe-north1", "europe-west4"),
    "NAM4": ("us-central1", "us-east1"),
}
_LETTERS = {"us-central1": "abcf", "us-east1": "bcd", "europe-west1": "bcd"}  # of zones, unless they are a, b and c
_AREAS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}
_NOT_IN_THE_EU = ("europe-west2", "europe-west6")


class Location(NamedTuple):
    """The location of a bucket. Either it has `regions`, or it is a large area and has all of those."""

    bucket: str
    name: str  # as Google writes it: US-CENTRAL1, NAM4, US
    regions: tuple[str, ...] = ()

    @property
    def is_area(self) -> bool:
        return not self.regions

    def holds(self, zone: str) -> bool:
        region = region_of(zone)
        if self.regions:
            return region in self.regions
        return region.startswith(_AREAS[self.name]) and not (self.name == "EU" and region in _NOT_IN_THE_EU)

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.regions)})" if len(self.regions) > 1 else self.name


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def is_region(text: str) -> bool:
    """Return True if a region may have that name."""
    return re.fullmatch(_REGION, text) is not None


def check_zone(name: str, zone: str) -> None:
    """Raise UsageError, with what to write instead, if no zone can have that name. `name`: what has it."""
    if re.fullmatch(_ZONE, zone):
        return
    near = f"it is a region, so name zones of it, such as '{zone}-a'" if is_region(zone) else ""
    near = near or "zones have names such as 'us-central1-a', and `gcloud compute zones list` shows them"
    raise UsageError(f"{name} has {zone!r}, which is no zone: {near}")


def zones_of(region: str) -> tuple[str, ...]:
    """The zones of a region, whatever they have. Source: docs.cloud.google.com/compute/docs/regions-zones."""
    return tuple(f"{region}-{letter}" for letter in _LETTERS.get(region, "abc"))


def location(bucket: str, fields: Mapping[str, Any]) -> Location | None:
    """The location from a bucket's metadata; None for an unknown one."""
    name = str(fields.get("location", "")).upper()
    placed = fields.get("customPlacementConfig")
    pair = placed.get("dataLocations") if isinstance(placed, Mapping) else None
    if isinstance(pair, Sequence) and not isinstance(pair, str) and pair:
        return Location(bucket, name, tuple(str(region).lower() for region in pair))
    if name in _PAIRS:
        return Location(bucket, name, _PAIRS[name])
    if name in _AREAS:
        return Location(bucket, name)
    return Location(bucket, name, (name.lower(),)) if "-" in name else None


def near(zones: Iterable[str], bucket: Location, what: str) -> tuple[str, ...]:
    """The zones in the bucket's location, in their order. `what` is the hardware, for a refusal: there may be none."""
    zones = tuple(zones)
    found = tuple(zone for zone in zones if bucket.holds(zone))
    if zones and not found:
        regions = ", ".join(dict.fromkeys(map(region_of, zones)))
        raise NoPlace(
            f"{what} is not known to be in {bucket}, where the bucket {bucket.bucket} lies. Take a bucket in {regions} "
            f"(KINETIC_STORE=gs://…), or name zones elsewhere, between which and the bucket data is billed as "
            f"inter-region egress: KINETIC_ZONES={','.join(zones)}"
        )
    return found


def egress(zones: Iterable[str], bucket: Location) -> str:
    """Describe the charge for the data that hosts in these zones read, for users; "" for no zones."""
    zones = tuple(zones)
    outside = [zone for zone in zones if not bucket.holds(zone)]
    if outside:
        return f"{', '.join(outside)} outside the bucket's {bucket}: data is billed as inter-region egress"
    if not zones:
        return ""
    if bucket.is_area:
        return f"all zones are in the bucket's {bucket}, a multi-region: reading it is billed as data transfer"
    return f"none: all zones are in the bucket's {bucket}"
