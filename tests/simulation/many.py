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

SIZE = 40  # seeds that a process plays before it tells what came of them


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


@contextlib.contextmanager
def played_by(
    processes: int, seeds: Sequence[int], kind: type[Schedule], *, stop: bool = False
) -> Iterator[Iterator[Part]]:
    """Yield the parts in the order of the seeds. `stop`: no process continues a part in which a promise is broken."""
    parts = [seeds[start : start + SIZE] for start in range(0, len(seeds), SIZE)]
    if processes < 2 or len(parts) < 2:
        yield map(play_part, parts, repeat(kind), repeat(stop))
        return
    context, ignore = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(min(processes, len(parts)), context, signal.signal, ignore) as players:
        try:
            yield players.map(play_part, parts, repeat(kind), repeat(stop))
        finally:
            players.shutdown(cancel_futures=True)
