"""A pipeline of five steps on the emulated cloud, with slices that stay warm (`keep=`) and without: how often hosts are
created, how long it takes, and how soon the first line of a warm step is there.

Provisioning takes as long as is scripted here, which is little: on Google Cloud it takes minutes, so that the ratio of
the whole is then that of the creations. The floor of a first line is that of the same function on this machine, whose
job has nothing to wait for; both take turns. The steps are launched one after another by one process, as a worker's are.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

if TYPE_CHECKING:
    from kinetic_orchestration.testing import Emulator

STEPS = 5
ROUNDS = 3
PROVISION = 5.0  # seconds
ZONE = "us-west4-a"
ACCELERATOR = "v5e-1"
PATIENCE = 120.0
SLOWEST = 3.0  # times the first line on this machine

PROJECT = """
def step():
    print("first", flush=True)
    return 1
"""


def figures() -> Iterator[Figure]:
    from kinetic_orchestration.testing import Emulator

    yield measure.bounded("warm.load", os.getloadavg()[0], "processes", None)
    with measure.project(warm_steps=PROJECT):
        _local(steps=1)  # the first one warms up
        with Emulator(zones=(ZONE,), python=sys.executable, provision_seconds=PROVISION) as cloud:
            there = {**cloud.environ(), "KINETIC_ZONES": ZONE}
            _pipeline(cloud, there, {}, steps=1)  # stages what all have in common
            local, cold, warm = [], [], []
            for _ in range(ROUNDS):
                cold.append(_pipeline(cloud, there, {}))
                local += _local()
                warm.append(_pipeline(cloud, there, {"keep": "5m"}))
                local += _local()
    without, kept = (statistics.median(each.seconds for each in found) for found in (cold, warm))
    yield measure.bounded("warm.creations.without_keep", max(each.created for each in cold), "slices", None)
    yield measure.bounded("warm.creations", max(each.created for each in warm), "slices", 1)
    yield measure.figure("warm.five_steps", kept, "s", without, 0.75)
    lines = statistics.median(line for each in warm for line in each.lines[1:])
    yield measure.figure("warm.first_line", lines, "s", statistics.median(local), SLOWEST)
    first = statistics.median(each.lines[0] for each in cold)
    yield measure.figure("warm.first_line.without_keep", first, "s", statistics.median(local), None)


class _Pipeline(NamedTuple):
    seconds: float
    created: int
    lines: list[float]


def _local(steps: int = STEPS) -> list[float]:
    """Run the step on this machine, with its store of files."""
    return [_first_line({"accelerator": "cpu"})[0] for _ in range(steps)]


def _pipeline(cloud: Emulator, there: dict[str, str], options: dict[str, Any], steps: int = STEPS) -> _Pipeline:
    """Run a pipeline of steps; a step's first line is timed once the slice of the one before is free."""
    with mock.patch.dict(os.environ, there):
        return _on_cloud(cloud, options, steps)


def _on_cloud(cloud: Emulator, options: dict[str, Any], steps: int) -> _Pipeline:
    before, began, lines = _created(cloud), time.perf_counter(), []
    for number in range(steps):
        last = {"keep": "0s"} if options and number == steps - 1 else {}  # as the last step of a run has it
        line, store = _first_line({"accelerator": ACCELERATOR, **options, **last})
        lines.append(line)
        if options and not last:
            cloud.wait_until(lambda store=store: _is_free(store), PATIENCE)
    took = time.perf_counter() - began
    cloud.wait_until_empty(PATIENCE)
    return _Pipeline(took, _created(cloud) - before, lines)


def _created(cloud: Emulator) -> int:
    return int(cloud.ledger.count("created", "queued resource"))


def _is_free(store: Any) -> bool:
    from kinetic_orchestration.capacity.warm.records import slices

    return any(held.lease.state == "free" for held in slices(store))


def _first_line(options: dict[str, Any]) -> tuple[float, Any]:
    """Run one step. Returns the seconds from its launch until its first line is seen, and its store."""
    import importlib

    import kinetic_orchestration as kinetic
    from kinetic_orchestration.plan.values import Output

    first = 0.0

    def emit(event: object) -> None:
        nonlocal first
        if not first and isinstance(event, Output):
            first = time.perf_counter()

    step = importlib.import_module("warm_steps").step
    began = time.perf_counter()
    job = kinetic.run(**options)(step).run_async()
    outcome = job.follow(emit, timeout=PATIENCE)
    assert outcome is not None and outcome.status is kinetic.JobStatus.SUCCEEDED, outcome
    assert first
    return first - began, job._job.store
