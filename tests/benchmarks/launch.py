"""A function that prints one line: from the call to that line, and to its value, in a process that has launched before.

The floor is the same line from `python -c` in a plain subprocess.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

ROUNDS = 30

NOOP = """\
def noop():
    print("x")
    return 1
"""

Times = tuple[float, float]


def figures() -> Iterator[Figure]:
    with measure.project(noop=NOOP):
        taken: dict[str, list[Times]] = {"floor": [], "ours": []}
        for number in range(ROUNDS + 3):
            for name, work in (("floor", subprocess_once), ("ours", launch_once)):
                times = work()
                if number >= 3:
                    taken[name].append(times)
        floors, ours = ([statistics.median(column) for column in zip(*taken[name], strict=True)] for name in taken)
        least = [min(column) for column in zip(*taken["ours"], strict=True)]
        for at, (name, target) in enumerate((("launch.first_line", 6.0), ("launch.result", 5.0))):
            yield measure.figure(name, ours[at] * 1e3, "ms", floors[at] * 1e3, target, least=round(least[at] * 1e3, 2))


def subprocess_once() -> Times:
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", "print('x')"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        first = time.perf_counter() - began
        process.wait()
        return first, time.perf_counter() - began


def launch_once() -> Times:
    from noop import noop  # type: ignore[import-not-found]

    from kinetic_orchestration.jobs.following.drivers import follow
    from kinetic_orchestration.jobs.following.follower import Follower
    from kinetic_orchestration.jobs.launch import launch
    from kinetic_orchestration.jobs.request import draft
    from kinetic_orchestration.jobs.results import collect
    from kinetic_orchestration.plan.declare.spec import JobSpec, Options
    from kinetic_orchestration.plan.values import Output

    first = 0.0

    def emit(event: object) -> None:
        nonlocal first
        if not first and isinstance(event, Output):
            first = time.perf_counter()

    began = time.perf_counter()
    job = launch(draft(JobSpec("noop", Options("cpu"), noop)).open())
    outcome = follow(Follower(job), emit)
    assert outcome is not None and collect(job, outcome) == 1
    assert first
    return first - began, time.perf_counter() - began
