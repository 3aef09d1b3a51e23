"""List prices of chips: a table that comes with the package, and what `kinor prices --refresh` has put over it.

Dollars for one chip and one hour; beside them, of machines with GPUs, for a core and for a GiB of memory or disk
(`machine_parts`). Each price has the date on which it was true and the source it was read from. A refreshed list is a
document of the same form in a home and in a deployment's store (`capacity.prices`); neither is believed unchecked. It
does not know how they are asked for, nor what a job costs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kinetic_orchestration import __version__
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware.machines import HYPERDISK, PD_BALANCED, PD_SSD
from kinetic_orchestration.plan.messages import command, warn_once
from kinetic_orchestration.protocol import names

if TYPE_CHECKING:
    from datetime import datetime  # whoever only declares a job loads neither

    from kinetic_orchestration.protocol.schema import Fields

ON_DEMAND, SPOT, FLEX_START = "on demand", "spot", "flex-start"
RESERVATION = "reservation"
"""The way of buying that no list has a price of."""
PACKAGE = "the package"
_PUBLISHED = f"{PACKAGE}, of a published row of Google's list"
_OLD = f"{PACKAGE}, of dstackai/gpuhunt's table"
# Generation, region ("" = any), way, dollars for one chip, date, source. Of a generation, the first region on demand
# stands in where no zone is named. Of the older table no price of spot is taken: those move within days, and some are
# above the price on demand, so that they are not all of one chip; nor are those of v3, whose unit it does not say.
PRICES: tuple[tuple[str, str, str, float, str, str], ...] = (
    ("v4", "", ON_DEMAND, 3.22, "2024-12-23", _OLD),
    ("v5e", "us-central1", ON_DEMAND, 1.20, "2024-12-23", _OLD),
    ("v5e", "us-west4", ON_DEMAND, 1.20, "2026-08-07", _PUBLISHED),
    ("v5e", "us-west4", SPOT, 0.607, "2026-08-11", _PUBLISHED),
    ("v5e", "us-west4", FLEX_START, 0.60, "2026-08-07", _PUBLISHED),
    ("v5e", "europe-west4", ON_DEMAND, 1.56, "2024-12-23", _OLD),
    ("v5e", "asia-southeast1", SPOT, 0.78, "2026-08", _PUBLISHED),
    ("v5p", "us-east5", ON_DEMAND, 4.20, "2026-08", _PUBLISHED),
    ("v6e", "us-east5", ON_DEMAND, 2.70, "2026-08", _PUBLISHED),
    ("v6e", "us-east5", SPOT, 1.4033, "2026-08", _PUBLISHED),
    ("v6e", "us-east5", FLEX_START, 1.35, "2026-08", _PUBLISHED),
    ("v6e", "us-east1", ON_DEMAND, 2.70, "2024-12-23", _OLD),
    ("v6e", "us-south1", ON_DEMAND, 2.70, "2026-08", _PUBLISHED),
    ("v6e", "europe-west4", ON_DEMAND, 2.97, "2026-08", _PUBLISHED),
    ("v6e", "europe-west4", SPOT, 1.782, "2026-08", _PUBLISHED),
    ("v6e", "europe-west4", FLEX_START, 1.35, "2026-08", _PUBLISHED),
    ("v6e", "asia-northeast1", ON_DEMAND, 3.24, "2026-08", _PUBLISHED),
)
# Region → dollars for a GiB of a boot disk for a month, where Compute Engine has TPU VMs. They are those of pd-ssd, and
# a GiB of the other types costs less, but no dated price of Hyperdisk was found:
# Cyclenerd/google-cloud-pricing-cost-calculator:pricing.yml, which is made from Google's Billing Catalog.
DISKS: Mapping[str, float] = {"us-east1": 0.17, "us-east5": 0.17, "europe-west4": 0.187, "asia-northeast1": 0.221}
DISKS_DATE = "2025-03-06"
HOURS = 730.0  # of a month, as Google counts them
FILE = names.PRICES
VERSION = 1
LARGEST = names.limit_of(names.PRICES)
MOST = 20_000  # prices of one list
STALE = 30  # days
# Dollars for an hour: a value outside is no price of such a thing, and a limit of money would rest on it.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "chip": (0.01, 100.0), "core": (0.001, 1.0), "GiB of memory": (0.0001, 0.1), "GiB of disk": (0.000005, 0.01),
}  # fmt: skip
_DAY = r"20\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"


@cache
def _rate() -> Fields:
    """Return the form of one price."""
    from kinetic_orchestration.protocol import schema

    return schema.Fields(
        {
            "generation": schema.line(60),
            "region": schema.matching(r"[a-z]+-[a-z]+\d+", empty=True),
            "model": schema.one_of(ON_DEMAND, SPOT, FLEX_START),
            "usd": schema.number(0, 1e6),
            "date": schema.matching(rf"{_DAY}|20\d\d-(?:0[1-9]|1[0-2])"),
            "source": schema.line(schema.WORD),
        }
    )


@cache
def _list() -> Fields:
    """Return the form of a document of prices."""
    from kinetic_orchestration.protocol import schema

    return schema.Fields(
        {
            "version": schema.whole(VERSION, VERSION),
            "refreshed": schema.matching(rf"{_DAY}T\d\d:\d\d:\d\dZ"),
            "rates": schema.many(_rate(), MOST),
        }
    )


class Rate(NamedTuple):
    """One price: of a generation, in a region, on demand, spot or by flex-start."""

    generation: str  # or the name of another part of a machine
    region: str  # "" for any
    model: str
    usd: float
    date: str  # a day, or a month if no more is known
    source: str


@dataclass(frozen=True, slots=True)
class PriceList:
    rates: tuple[Rate, ...]
    refreshed: str = ""  # when they were read, as `now` has it; "": only what comes with the package
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
    for row in PRICES:
        yield Rate(*row)
    for region, usd in DISKS.items():
        for disk in (PD_BALANCED, PD_SSD, HYPERDISK):
            yield Rate(disk, region, ON_DEMAND, usd / HOURS, DISKS_DATE, f"{PACKAGE}, as of {PD_SSD}")


BUILT_IN = PriceList(tuple(_built_in()))


def unit_of(name: str) -> str:
    """Return what a price of this name is for one of, a key of `BOUNDS`."""
    if name.endswith(" core"):
        return "core"
    if name.endswith(" memory"):
        return "GiB of memory"
    return "GiB of disk" if name.startswith(("pd-", "hyperdisk-", "local-ssd")) else "chip"


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
    del changed  # only the key: another file is read again
    try:
        if size > LARGEST:
            raise ValueError(f"it has {size} bytes")
        return parse(path.read_bytes())
    except (OSError, ValueError) as error:
        tell_damaged(str(path), error)
        return BUILT_IN


def tell_damaged(where: str, error: Exception) -> None:
    warn_once(
        f"{where} is no table of prices ({error}), so those of {BUILT_IN.dates()} are taken: to write it anew, "
        + command("prices", "--refresh")
    )


def parse(data: bytes) -> PriceList:
    """Return the list of a document, over the package's own. Raises ValueError for all that is no such document."""
    import json

    try:
        document = json.loads(data)
        _list()(document)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if (_moment(document["refreshed"]) - _now()).days >= 1:
        raise ValueError(f"it was refreshed at {document['refreshed']}, which is to come")
    rates = [Rate(*(row[name] for name in Rate._fields)) for row in document["rates"]]
    for rate in rates:
        check(rate)
    return BUILT_IN.with_rates(rates, document["refreshed"])


def check(rate: Rate) -> None:
    """Raises ValueError for what cannot be a price."""
    _rate()(rate._asdict())  # Wrong is a ValueError
    least, most = BOUNDS[unit := unit_of(rate.generation)]
    if not least <= rate.usd <= most:
        what = "for a chip-hour" if unit == "chip" else f"for an hour of a {unit}"
        told = f"{rate.generation} in {rate.region}, {rate.model}, at ${rate.usd:g} {what}"
        raise ValueError(f"{told}: no {unit} costs that")


def to_bytes(rates: Iterable[Rate], refreshed: str) -> bytes:
    """Return the document of what was read from Google. Raises UsageError for more than a reader takes."""
    import json

    document = {
        "version": VERSION,
        "release": __version__,
        "refreshed": refreshed,
        "rates": [rate._asdict() for rate in rates],
    }
    data = (json.dumps(document, separators=(",", ":")) + "\n").encode()
    if len(data) > LARGEST:
        raise UsageError(f"the prices cannot be kept: they have {len(data)} bytes, and no reader takes above {LARGEST}")
    return data


def now() -> str:
    """Return the time as a list says when it was refreshed."""
    return _now().strftime("%Y-%m-%dT%H:%M:%SZ")


def write(home: Path, data: bytes) -> Path:
    """Keep a document (`to_bytes`) in a home; whole or not at all."""
    path = home / FILE
    new = path.with_name(f".{FILE}.{os.getpid()}")
    try:
        new.write_bytes(data)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise UsageError(f"the prices cannot be kept in {path}: {error.strerror}") from None
    return path


def staleness(listed: PriceList, at: datetime | None = None) -> str:
    """Return a sentence about a list that is older than `STALE`, for users; "" for a newer one."""
    read_at = listed.refreshed or max(rate.date for rate in listed.rates)
    days = ((at or _now()) - _moment(read_at)).days
    if days <= STALE:
        return ""
    what = f"were read on {read_at[:10]}" if listed.refreshed else f"are of {listed.dates()}, as the package has them"
    return f"the list prices {what}, {days} days ago; to read today's from Google: {command('prices', '--refresh')}"


def unmatched(before: PriceList, listed: PriceList, fetched: Iterable[Rate]) -> Iterator[str]:
    """Yield which prices of before no row of what was read has renewed, and what becomes of them; for users.

    Args:
        before: The list before a refresh.
        listed: The list after it.
        fetched: What was read.
    """
    renewed = {(rate.generation, rate.region, rate.model) for rate in fetched}
    regions: dict[tuple[str, str, str], list[str]] = {}
    for rate in before.rates:
        key = rate.generation, rate.region, rate.model
        if key not in renewed:
            stays = listed.rate(*key)
            fate = f"that of {stays.date} stays" if stays is not None else "it is not known any more"
            regions.setdefault((rate.generation, rate.model, fate), []).append(rate.region or "any region")
    for (generation, model, fate), found in sorted(regions.items()):
        yield f"no row has the price of {generation} in {', '.join(sorted(found))}, {model}: {fate}"


def _now() -> datetime:
    from datetime import UTC, datetime

    return datetime.now(UTC)


def _moment(text: str) -> datetime:
    """Return a time or a date, of a month its first day. Raises ValueError."""
    from datetime import UTC, datetime

    return datetime.strptime((text + "-01")[:10] if len(text) == 7 else text[:10], "%Y-%m-%d").replace(tzinfo=UTC)
