"""List prices of chips: a table that comes with the package, and what `ko prices --refresh` has put over it in a home.

Dollars for one chip and one hour; beside them, of machines with GPUs, for a core and for a GiB of memory or disk
(`machine_parts`). Each price has the date on which it was true and the source it was read from. It does not know how
they are asked for, nor what a job costs.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware.machines import HYPERDISK, PD_BALANCED, PD_SSD
from kinetic_orchestration.plan.messages import command, warn_once

PRICES_DATE = "2024-12-23"
SOURCE = "the package"
ON_DEMAND, SPOT, FLEX_START = "on demand", "spot", "flex-start"
# generation → region ("" = any) → on demand, spot. The first region stands in where no zone is named.
PRICES: Mapping[str, Mapping[str, tuple[float, float | None]]] = {
    "v3": {"": (2.00, None)},
    "v4": {"": (3.22, None)},
    "v5e": {"us-central1": (1.20, 0.63), "us-west4": (1.20, 0.51), "europe-west4": (1.56, 0.663)},
    "v5p": {"us-east5": (4.20, 2.415)},
    "v6e": {
        "us-east1": (2.70, 1.89),
        "us-east5": (2.70, 1.89),
        "europe-west4": (2.97, 2.08),
        "asia-northeast1": (3.24, 2.27),
    },
}
# Region → dollars for a GiB of a boot disk for a month, where Compute Engine has TPU VMs. They are those of pd-ssd, and
# a GiB of the other types costs less, but no dated price of Hyperdisk was found:
# Cyclenerd/google-cloud-pricing-cost-calculator:pricing.yml, which is made from Google's Billing Catalog.
DISKS: Mapping[str, float] = {"us-east1": 0.17, "us-east5": 0.17, "europe-west4": 0.187, "asia-northeast1": 0.221}
DISKS_DATE = "2025-03-06"
HOURS = 730.0  # of a month, as Google counts them
FILE = "prices.json"
VERSION = 1
LARGEST = 1 << 20
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class Rate(NamedTuple):
    """One price: of a generation, in a region, on demand, spot or by flex-start."""

    generation: str  # or the name of another part of a machine
    region: str  # "" for any
    model: str
    usd: float
    date: str
    source: str


@dataclass(frozen=True, slots=True)
class PriceList:
    rates: tuple[Rate, ...]
    refreshed: str = ""  # when the newest of them were read; "": only what comes with the package
    _found: dict[tuple[str, str, str], Rate] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for rate in self.rates:
            self._found[rate.generation, rate.region, rate.model] = rate

    def regions(self, generation: str) -> list[str]:
        """The regions with an on-demand price; the first is the default."""
        wanted = (rate for rate in self._found.values() if rate.generation == generation and rate.model == ON_DEMAND)
        return [rate.region for rate in wanted]

    def rate(self, generation: str, region: str, model: str) -> Rate | None:
        return self._found.get((generation, region, model))

    def dates(self) -> str:
        """The oldest and the newest date, for those who sum up."""
        dates = sorted({rate.date for rate in self._found.values()})
        return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"

    def with_rates(self, rates: Iterable[Rate], refreshed: str) -> PriceList:
        """A copy with newer prices in place of the old ones."""
        newer = {(rate.generation, rate.region, rate.model): rate for rate in rates}
        return PriceList(tuple({**self._found, **newer}.values()), refreshed)


def _built_in() -> Iterator[Rate]:
    for generation, regions in PRICES.items():
        for region, pair in regions.items():
            for model, usd in zip((ON_DEMAND, SPOT), pair, strict=True):
                if usd is not None:
                    yield Rate(generation, region, model, usd, PRICES_DATE, SOURCE)
    for region, usd in DISKS.items():
        for disk in (PD_BALANCED, PD_SSD, HYPERDISK):
            yield Rate(disk, region, ON_DEMAND, usd / HOURS, DISKS_DATE, f"{SOURCE}, as of {PD_SSD}")


BUILT_IN = PriceList(tuple(_built_in()))


def read(home: Path) -> PriceList:
    """The table in force for a home; an invalid one is reported, and the package's own is used."""
    path = home / FILE
    try:
        about = path.stat()
    except OSError:
        return BUILT_IN
    return _read(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> PriceList:
    import json

    del changed  # only the key: another file is read again
    try:
        if size > LARGEST:
            raise ValueError(f"it has {size} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != VERSION:
            raise ValueError(f"it is of version {document['version']!r}")
        rates = [Rate(**row) for row in document["rates"]]
        for rate in rates:
            check(rate)
        return BUILT_IN.with_rates(rates, str(document["refreshed"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        warn_once(
            f"{path} is no table of prices ({error}), so those of {PRICES_DATE} are taken: to write it anew, "
            + command("prices", "--refresh")
        )
        return BUILT_IN


def check(rate: Rate) -> None:
    """Raises ValueError for what cannot be a price."""
    texts = (rate.generation, rate.region, rate.model, rate.date, rate.source)
    if not all(isinstance(text, str) and len(text) < 200 and text.isprintable() for text in texts):
        raise ValueError(f"{rate!r:.200} has a field that is no text")
    if rate.model not in (ON_DEMAND, SPOT, FLEX_START) or not _DATE.fullmatch(rate.date):
        raise ValueError(f"{rate!r:.200} is of no known kind, or has no date")
    if isinstance(rate.usd, bool) or not isinstance(rate.usd, int | float) or not 0 < rate.usd < math.inf:
        raise ValueError(f"{rate!r:.200} has no price above 0")


def write(home: Path, rates: Iterable[Rate], refreshed: str) -> Path:
    """Keep what was read; whole or not at all."""
    import json

    path = home / FILE
    document: dict[str, Any] = {
        "version": VERSION, "refreshed": refreshed, "rates": [rate._asdict() for rate in rates],
    }  # fmt: skip
    new = path.with_name(f".{FILE}.{os.getpid()}")
    try:
        new.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise UsageError(f"the prices cannot be kept in {path}: {error.strerror}") from None
    return path
