"""Many seeds, played by several processes: a seed is the same schedule in each of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from typing import NamedTuple

from tests.simulation.edges import simulated_edges
from tests.simulation.scenario import Failed, Schedule, play
from tests.simulation.world import World

SIZE = 40  # seeds that a process plays before it tells what came of them, at most
PARTS = 4  # for each process, at least, so that all have something to do until the end


class Part(NamedTuple):
    """The results of some seeds."""

    seeds: Sequence[int]
    broken: list[tuple[int, str]]
    reached: Counter[str]
    requests: int
    cpu: float


def play_part(seeds: Sequence[int], kind: type[Schedule], stop: bool) -> Part:
    worlds: list[World] = []
    broken: list[tuple[int, str]] = []
    reached, requests, used = Counter[str](), 0, time.process_time()
    with simulated_edges(worlds):
        for number, seed in enumerate(seeds, 1):
            try:
                play(seed, worlds, kind=kind, lines=0)
            except Failed as failed:
                broken.append((seed, str(failed).splitlines()[0]))
            reached.update(worlds[0].reached)
            requests += worlds[0].requests
            if stop and broken:
                seeds = seeds[:number]
                break
    return Part(seeds, broken, reached, requests, time.process_time() - used)


class Players:
    """The processes that play seeds, whatever the kinds of their schedules."""

    def __init__(self, processes: int, pool: ProcessPoolExecutor | None) -> None:
        self._processes = processes
        self._pool = pool

    def play(self, seeds: Sequence[int], kind: type[Schedule], *, stop: bool = False) -> Iterator[Part]:
        """Return the parts in the order of the seeds. `stop`: no process continues a part in which a promise is
        broken."""
        size = max(1, min(SIZE, len(seeds) // (PARTS * self._processes)))
        parts = [seeds[start : start + size] for start in range(0, len(seeds), size)]
        play = map if self._pool is None else self._pool.map
        return play(play_part, parts, repeat(kind), repeat(stop))


@contextlib.contextmanager
def players_of(processes: int) -> Iterator[Players]:
    """Yield processes that play seeds; one plays them here. What they have not begun at the end is never played."""
    if processes < 2:
        yield Players(1, None)
        return
    context, ignore = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(processes, context, signal.signal, ignore) as pool:
        try:
            yield Players(processes, pool)
        finally:
            pool.shutdown(cancel_futures=True)
