"""Reads the shares of chips that a deployment, its pipelines and its users may hold at once. Pure.

The text is that of a setting: `v5e=64,total=256,user:*=32,pipeline:retrain=128,user:ann/v5e=16`. A share of a
generation counts its chips; every other one counts chips by what they cost, a v5e's as 1.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.hardware.accelerators import Slice, catalogue
from kinetic_orchestration.plan.hardware.price_list import BUILT_IN, PriceList
from kinetic_orchestration.plan.hardware.prices import Price, Purchase, price

UNIT = "v5e"  # the chip that counts as 1
TOTAL = "total"
ANYBODY = "*"
SCOPES = ("user", "pipeline")
NOBODY = "unknown"  # the user of a job that names none
_NAME = re.compile(r"[a-z0-9_-]{1,63}")
_FORM = "write shares as v5e=64,total=256,user:*=32,pipeline:retrain=128,user:ann/v5e=16"


class Share(NamedTuple):
    """The most chips that somebody may hold at once.

    Attributes:
        scope: "user" or "pipeline"; "" for the whole deployment.
        who: Its name, as a label; "*" for each whom no share of that scope names.
        generation: The one whose chips it counts; "" if it counts all, by what they cost.
        most: How many.
    """

    scope: str
    who: str
    generation: str
    most: float

    def __str__(self) -> str:
        who = f"{self.scope}:{self.who}" if self.scope else ""
        what = self.generation if self.generation or who else TOTAL
        return f"{'/'.join(filter(None, (who, what)))}={self.most:g}"


class Bound(NamedTuple):
    """One share as it binds a job.

    Attributes:
        name: By which the chips of all jobs that it binds are counted together.
        need: Chips of this job, as the share counts them.
        most: The share.
        is_default: No share names whom it binds.
    """

    name: str
    need: float
    most: float
    is_default: bool = False

    def __str__(self) -> str:
        return f"{self.name}={self.most:g}"


def parse(name: str, text: str) -> tuple[Share, ...]:
    """Return the shares of a text.

    Args:
        name: The setting's name, for errors.
        text: Shares with commas between them.

    Raises:
        UsageError: It is none, names what is no accelerator, or says two things about one share.
    """
    found: dict[tuple[str, str, str], Share] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        share = _parsed(name, entry)
        if share[:3] in found:
            raise UsageError(f"{name} has two shares of the same: {found[share[:3]]} and {share}. Keep one")
        found[share[:3]] = share
    return tuple(found.values())


@functools.lru_cache(maxsize=8)  # each declared job asks for it
def read(name: str, text: str) -> tuple[Share, ...]:
    """Return the shares of a setting, as `parse` does. Raises UsageError also for a share that not even the smallest
    slice fits in."""
    found = parse(name, text)
    for share in found:
        least = min((one.chips for one in catalogue() if one.generation == share.generation), default=0)
        if share.most < least:
            raise UsageError(
                f"{name} has {str(share)!r}, and the smallest slice of {share.generation} has {least} chip"
                f"{'' if least == 1 else 's'}: no job could ever run in that share. Raise it to {least} or more, or "
                "leave it out"
            )
    return found


def _parsed(name: str, entry: str) -> Share:
    key, is_given, value = entry.rpartition("=")
    scope, has_scope, rest = key.strip().rpartition(":")
    who, has_who, what = rest.rpartition("/") if has_scope else ("", "", rest)
    if has_scope and not has_who:
        who, what = what, ""
    if not is_given or (has_scope and (scope not in SCOPES or not who)):
        raise UsageError(f"{name} has {entry!r}: {_FORM}")
    try:
        most = float(value)
    except ValueError:
        most = math.nan
    if not 0 < most < math.inf:
        raise UsageError(f"{name} has {entry!r}: a share is a number of chips above 0, as in v5e=64")
    generation = "" if what == TOTAL else what
    if generation and generation not in _generations():
        known = ", ".join(_generations())
        raise UsageError(f"{name} has {entry!r}: {generation!r} is no accelerator. It can be {TOTAL} or one of {known}")
    if not has_scope and not what:
        raise UsageError(f"{name} has {entry!r}: {_FORM}")
    if scope and who != ANYBODY and not _NAME.fullmatch(who):
        raise UsageError(
            f"{name} has {entry!r}: write the name of a {scope} as the labels of its jobs have it, with 63 "
            "of a-z, 0-9, '-' and '_' at most"
        )
    return Share(scope, who, generation, most)


@functools.cache
def _generations() -> tuple[str, ...]:
    return tuple(dict.fromkeys(slice_.generation for slice_ in catalogue() if slice_.kind != "cpu"))


def text_of(shares: Sequence[Share]) -> str:
    """Return the text that `parse` reads."""
    return ",".join(map(str, shares))


@functools.lru_cache(maxsize=4096)
def bounds(
    shares: tuple[Share, ...], generation: str, chips: int, weight: float, user: str, pipeline: str
) -> tuple[Bound, ...]:
    """Return each share that binds a job, those of the deployment first.

    A share that names its user or pipeline comes in place of the one of anybody that counts the same.

    Args:
        shares: All shares.
        generation: That of the job's chips.
        chips: How many it takes.
        weight: What one of them counts where chips count by what they cost.
        user: The job's user, as a label; "" if it is not known.
        pipeline: Its pipeline, as a label; "" for none.
    """
    found = []
    for scope, who in (("", ""), ("pipeline", pipeline), ("user", user or NOBODY)):
        for what in (generation, "") if who or not scope else ():
            named = {share.who: share for share in shares if share.scope == scope and share.generation == what}
            share = named.get(who) or (named.get(ANYBODY) if scope else None)
            if share is not None:
                name = str(share._replace(who=who)).partition("=")[0]
                need = chips if what else chips * weight
                found.append(Bound(name, need, share.most, bool(scope) and share.who == ANYBODY))
    return tuple(found)


class Weight(NamedTuple):
    """The number of chips of v5e that one chip counts for.

    Attributes:
        counts: The number.
        by: What it is by, for users.
    """

    counts: float
    by: str


def weight(slice_: Slice, own: Mapping[str, float] | None = None, listed: PriceList = BUILT_IN) -> Weight:
    """Return for how many chips of v5e one of a slice counts: by the prices on demand, each with its share of the
    machine and its disks, where no zone is named; if one is not known, by the peak of its bf16 operations, and if that
    is not known either, as 1.

    Args:
        slice_: The slice.
        own: Prices from settings, which come first.
        listed: The price list.
    """
    unit = next(one for one in catalogue() if one.generation == UNIT)
    asked, of_unit = (price(Purchase(replace(one, spot=False)), None, own, listed) for one in (slice_, unit))
    if (
        isinstance(asked, Price)
        and isinstance(of_unit, Price)
        and asked.usd_per_chip_hour
        and of_unit.usd_per_chip_hour
    ):
        return Weight(round(asked.usd_per_chip_hour / of_unit.usd_per_chip_hour, 3), "by its price on demand")
    why = "as no price of it is known"
    if by_peak := round(slice_.peak_bf16_tflops_per_chip / unit.peak_bf16_tflops_per_chip, 3):
        return Weight(by_peak, f"by the peak of its bf16 operations, {why}")
    return Weight(1.0, why)


def refusal(name: str, shares: Sequence[Share], asked: str, job: Sequence[Bound]) -> str:
    """Return why a job can never have its turn, as a sentence; "" if it can.

    Args:
        name: The setting's name.
        shares: All shares.
        asked: The job's hardware, for users.
        job: The shares that bind it.
    """
    for bound in job:
        if bound.need > bound.most:
            default = " (the default, as no share names it)" if bound.is_default else ""
            return (
                f"{asked} takes {bound.need:g} chips of the share {bound}{default}, and so could never run. Ask for "
                f"fewer chips, or raise the share: {name}={text_of(shares)!r}"
            )
    return ""


def never_of_deployment(shares: tuple[Share, ...], asked: str, generation: str, chips: int) -> str:
    """Return why the deployment's own shares can never hold a job, as far as it takes no prices; "" if they may.

    Args:
        shares: All shares.
        asked: The job's hardware, for users.
        generation: That of its chips.
        chips: How many it takes; 0 if they are not counted.
    """
    exact = (generation, TOTAL) if generation == UNIT else (generation,)
    found = bounds(shares, generation, chips, 1.0, "", "")
    return refusal("KINETIC_CHIPS", shares, asked, [bound for bound in found if bound.name in exact])
