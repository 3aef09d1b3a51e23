"""Assertions of tests about many schedules, one of them, or a single scene."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.simulation.edges import simulated_edges
from tests.simulation.scenario import Failed, Schedule, play, trace_of
from tests.simulation.world import Task, World

T = TypeVar("T")


def check(seeds: Collection[int], states: list[str], kind: type[Schedule] = Schedule) -> None:
    """Plays them all, and up to twice as many more until each of the states was met. Asserts that it was, and that none
    breaks a promise.
    """
    worlds: list[World] = []
    failures, reached, played = [], Counter[str](), 0
    more = range(max(seeds) + 1, max(seeds) + 1 + 2 * len(seeds)) if states else ()
    with simulated_edges(worlds):
        for seed in (*seeds, *more):
            if played >= len(seeds) and all(reached[state] for state in states):
                break
            try:
                play(seed, worlds, kind=kind)
            except Failed as failed:
                failures.append(failed)
            reached.update(worlds[-1].reached)
            played += 1
    summary = "\n".join(str(failed).splitlines()[0] for failed in failures[:20])
    assert not failures, f"{len(failures)} of {played} seeds broke a promise:\n{summary}\n\n{failures[0]}"
    assert [state for state in states if not reached[state]] == [], f"after {played} seeds"


def check_repeats(kind: type[Schedule] = Schedule, seed: int = 24) -> None:
    """Assert that a seed is the same schedule byte for byte in every process: it depends neither on earlier ones nor on
    the iteration order of sets.
    """
    worlds: list[World] = []
    with simulated_edges(worlds):
        for before in range(seed - 4, seed + 1):
            play(before, worlds, kind=kind)
    elsewhere = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed), *kind.option.split()],
        cwd=Path(__file__).parents[2], env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True,
        timeout=150,
    )  # fmt: skip
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert elsewhere.stdout.rstrip("\n") == trace_of(worlds[-1])


def check_fails(seeds: Iterable[int], kind: type[Schedule] = Schedule, told: str = "") -> None:
    """Assert that some seed breaks a promise, which is told as is said here, and how to see it again."""
    worlds: list[World] = []
    again = rf"(?s)({told}).*python -m tests\.simulation --seed \d+{kind.option}"
    with simulated_edges(worlds), pytest.raises(Failed, match=again):
        for seed in seeds:
            play(seed, worlds, kind=kind)


class _Seen(BaseException):
    """Raised where a scene has shown enough of a world."""


def scene(world: World, name: str, act: Callable[[Task], T]) -> T:
    """A finding of a process in a world, which ends with it."""
    found: list[T] = []

    def main(task: Task) -> None:
        found.append(act(task))
        raise _Seen

    with simulated_edges([world]), pytest.raises(_Seen):
        world.spawn(name, main)
        world.run()
    world.end()
    return found[0]
