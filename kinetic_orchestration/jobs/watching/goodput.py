"""Goodput as the field has it: the time of training steps that were not done again, of the time the hardware was held.

Pure. The input is what an attempt's records say; time of a program that is not accounted for is its program time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

# In the order in which they come; all but the first are of the time that the hardware was held.
PARTS = ("queue", "provision", "prepare", "restore", "compile", "steps", "redone", "checkpoint", "program", "teardown")


class Took(NamedTuple):
    """Parts of the time that an attempt's hosts were held, from its records, in seconds."""

    provision: float = 0.0  # from READY, or the boot of host 0 if that is earlier, until its agent began
    prepare: float = 0.0  # until the program began
    teardown: float = 0.0  # from its end on
    trainings: Mapping[str, Sequence[float]] = {}  # as `wire.SPENT` has them


def parts(attempts: Iterable[tuple[float, float, Took]]) -> dict[str, float]:
    """Return the parts of a job's time, from its attempts, oldest first, each with its queued and held time."""
    every = list(attempts)
    found = dict.fromkeys(PARTS, 0.0)
    for number, (queued, held, took) in enumerate(every):
        found["queue"] += queued
        found["provision"] += took.provision
        found["prepare"] += took.prepare
        found["teardown"] += took.teardown
        known = took.provision + took.prepare + took.teardown
        for name, (begun, done, steps, first, restoration, stall) in took.trainings.items():
            later = [other.trainings[name][0] for _, _, other in every[number + 1 :] if name in other.trainings]
            again = min(steps, steps / max(1.0, done - begun - 1) * max(0.0, done - min(later, default=done)))
            found["steps"] += steps - again
            found["redone"] += again
            found["compile"] += first
            found["restore"] += restoration
            found["checkpoint"] += stall
            known += steps + first + restoration + stall
        found["program"] += max(0.0, held - known)
    return {name: round(seconds, 3) for name, seconds in found.items()}


def is_known(attempts: Iterable[tuple[float, float, Took]]) -> bool:
    """Return True if anything told of steps."""
    return any(took.trainings for _, _, took in attempts)
