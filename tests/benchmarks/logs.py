"""A program's lines on their way to whoever follows it: how late they come, how many a second, and whether all do.

The floor is the same program in a plain subprocess, its pipe read with `readline`; like a host's program it
flushes each line. Against a program that fills its buffer first, which nobody can follow, a figure says so.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

LINES = 1_000_000
BARS = 300_000
ROUNDS = 3
TICKS, PER_SECOND = 1000, 200

PRODUCER = """\
import sys
import time


def tick(count, per_second):
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number / per_second - time.monotonic()))
        print(time.monotonic())


def flood(count):
    print(time.monotonic())
    for number in range(count):
        print("step", number, "loss 0.12345 accuracy 0.98765")


def bars(count):
    print(time.monotonic())
    for number in range(count):
        print(end=f"\\rstep {number}/{count}")


if __name__ == "__main__":
    if sys.argv[1] == "lines":
        sys.stdout.reconfigure(line_buffering=True)
    globals()[sys.argv[2]](*map(int, sys.argv[3:]))
"""

Sink = Callable[[bytes], object]


def figures() -> Iterator[Figure]:
    with measure.project(producer=PRODUCER) as folder:
        producer = importlib.import_module("producer")

        def by_pipe(*arguments: str) -> Callable[[Sink], None]:
            return lambda sink: _read_pipe([sys.executable, str(folder / "producer.py"), *arguments], sink)

        def by_job(function: Callable[..., None], *arguments: int) -> Callable[[Sink], None]:
            return lambda sink: _follow_job(function, arguments, sink)

        pipe = _delays(by_pipe("lines", "tick", str(TICKS), str(PER_SECOND)))
        ours = _delays(by_job(producer.tick, TICKS, PER_SECOND))
        yield measure.bounded("logs.delay_p50", ours[TICKS // 2], "ms", None, floor=pipe[TICKS // 2])
        yield measure.bounded("logs.delay_p99", ours[TICKS * 99 // 100], "ms", 50.0, floor=pipe[TICKS * 99 // 100])

        floods = [by_pipe("lines", "flood", str(LINES)), by_pipe("blocks", "flood", str(LINES))]
        floods.append(by_job(producer.flood, LINES))
        rounds = [[_flood(way) for way in floods] for _ in range(ROUNDS)]
        lines, blocks, job = (max(speed for speed, _ in column) for column in zip(*rounds, strict=True))
        yield measure.figure("logs.lines", job, "lines/s", lines, 0.5, at_least=True)
        yield measure.figure("logs.lines_against_blocks", job, "lines/s", blocks, None)
        sums = {total for row in rounds for _, total in row}
        yield measure.bounded("logs.lost", float(len(sums) - 1), "floods that differ", 0.0)
        bars = [_flood(way) for way in (by_pipe("lines", "bars", str(BARS)), by_job(producer.bars, BARS))]
        yield measure.bounded("logs.bars_lost", float(bars[0][1] != bars[1][1]), "floods that differ", 0.0)


def _delays(way: Callable[[Sink], None]) -> list[float]:
    """Milliseconds from each print to the arrival of its line, sorted."""
    delays: list[float] = []

    def sink(text: bytes) -> None:
        now = time.monotonic()
        delays.extend((now - float(line)) * 1e3 for line in text.splitlines())

    way(sink)
    assert len(delays) == TICKS, f"{TICKS} lines were printed, and {len(delays)} came"
    return sorted(delays)


def _flood(way: Callable[[Sink], None]) -> tuple[float, tuple[int, int]]:
    """Lines a second, from the program's first statement to the arrival of its last line; and their count and sum."""
    found: list[bytes] = []
    last = 0.0

    def sink(text: bytes) -> None:
        nonlocal last
        found.append(text)
        last = time.monotonic()

    way(sink)
    began, _, text = b"".join(found).partition(b"\n")
    count = text.count(b"\n")
    return count / (last - float(began)), (count, zlib.crc32(text))


def _read_pipe(argv: list[str], sink: Sink) -> None:
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while line := process.stdout.readline():
            sink(line)


def _follow_job(function: Callable[..., None], arguments: tuple[int, ...], sink: Sink) -> None:
    from kinetic_orchestration.jobs.following.drivers import follow
    from kinetic_orchestration.jobs.following.follower import Follower
    from kinetic_orchestration.jobs.launch import launch
    from kinetic_orchestration.jobs.request import draft
    from kinetic_orchestration.plan.declare.spec import JobSpec, Options
    from kinetic_orchestration.plan.values import Output

    def emit(event: Any) -> None:
        if isinstance(event, Output):
            sink(event.text)

    follow(Follower(launch(draft(JobSpec(function.__name__, Options("cpu"), function, arguments)).open())), emit)
