"""The checks of a job that keeps its slice for others, or asks several places at once: which job can. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kinetic_orchestration.errors import Unsupported, UsageError
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.choices import naming, told, ways
from kinetic_orchestration.plan.declare.spec import LOCAL, Options, cluster_of, image_of, processes_of, slice_of
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.protocol.schema import MOST_PLACES

PODS_END = (
    "a pod ends with its program, and its node is the cluster's, which itself keeps it for a while after the last pod "
    "(GKE for about ten minutes); leave keep out"
)
CONTAINER_STAYS = (
    "what a container leaves on its machine cannot be told from what was there before; leave one of them out"
)
AGENTS_APART = "no agent of several on a machine can tell that the others have left it clean; leave one of them out"
QUEUE_DECIDES = "the queue of its cluster decides where an attempt runs. Leave race out, or name a backend of VMs"
FOR_THOSE_THAT_CAN = ("keep", "race")  # options that a resource or a connection means for those of its jobs that can
LONGEST_KEEP = 24 * 3600.0  # seconds for which an unclaimed slice is kept


def check_race(found: Sequence[Options]) -> None:
    """Refuse a number of places that no race has."""
    race: Any = found[0].race
    if isinstance(race, bool) or not isinstance(race, int) or not 1 <= race <= MOST_PLACES:
        raise UsageError(
            f"race is {race!r}: give the places that are asked at once, 2 or {MOST_PLACES}, or leave it out. Each of "
            "them is paid for from the moment its hosts are there until it is released"
        )


def check_held(found: Sequence[Options], *, keeps: bool) -> None:
    """Refuse to keep a slice, or to ask several places, where that is not possible."""
    for one in found:
        with naming(told(one), found):
            if keeps and (why := unkept(one)):
                raise Unsupported(why)
            if one.race > 1 and (where := cluster_of(one)):
                raise Unsupported(f"race={one.race} is not possible on {where}: {QUEUE_DECIDES}")


def unkept(options: Options) -> str:
    """Return why the slice of a job of one way cannot be kept, by its options alone; "" if it may be. On this machine,
    if it is named, there is nothing to keep."""
    if where := cluster_of(options):
        return f"keep= is not possible on {where}: {PODS_END}"
    if options.backend != LOCAL and image_of(options):
        return f"keep= with container_image= is not possible: {CONTAINER_STAYS}"
    if options.backend != LOCAL and processes_of(options, slice_of(options)) > 1:
        return f"keep= with processes= is not possible: {AGENTS_APART}"
    return ""


def without_unfit(
    options: Options, defaults: Mapping[str, str], name: str, unfit: Callable[[Options, str], str]
) -> Options:
    """Return the options without those that a resource or a connection means for its jobs that can have them, and that
    this one cannot have; users are told once.

    Args:
        options: Those of the job.
        defaults: Which of FOR_THOSE_THAT_CAN nobody else has said, and whose they are, for users.
        name: That of the job.
        unfit: Returns why a job of one way cannot have such an option, "" if it can: `unfit_by_options`, or what more
            is known.
    """
    found, none = options, Options()
    for option, whose in defaults.items():
        value, silent = getattr(options, option), getattr(none, option)
        if value != silent and (why := next(filter(None, (unfit(one, option) for one in ways(options))), "")):
            left_out(f"{option}={value!r}", whose, name, why)
            found = replace(found, **{option: silent})
    return found


def left_out(option: str, whose: str, name: str, why: str) -> None:
    """Tell once that a job does not have an option that a resource or a connection means for those that can."""
    warn_once(f"{option} of {whose} is left out for {name}: {why}")


def unfit_by_options(options: Options, option: str) -> str:
    """Return why a job of one way cannot have one of FOR_THOSE_THAT_CAN, by its options alone; "" if it may."""
    if option == "keep":
        return unkept(options)
    return f"it is not possible on {where}: {QUEUE_DECIDES}" if (where := cluster_of(options)) else ""


def check_keep(given: Any) -> float | None:
    """Return the seconds for which slices are kept after a job; None for a job that neither leaves nor takes one.

    Raises:
        UsageError: It is no such time.
    """
    if isinstance(given, bool) or (isinstance(given, float) and math.isnan(given)):
        raise UsageError(f"keep is {given!r}: give seconds, or a text such as '10m', or leave it out")
    if isinstance(given, int | float) and not given >= 0:
        raise UsageError(f"keep is {given!r}: it cannot be negative; leave it out for slices that end with their job")
    kept = settings.seconds("keep", given)
    if kept is not None and kept > LONGEST_KEEP:
        raise UsageError(
            f"keep is {given!r}: a slice is kept for {settings.duration(LONGEST_KEEP)} at most, since it costs money "
            "all the while"
        )
    return kept
