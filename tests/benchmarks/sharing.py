"""Counts the requests of a thousand jobs that wait for their share of chips, by their place in the line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure


def figures() -> Iterator[Figure]:
    from tests.support.waiting_lines import rates

    with tempfile.TemporaryDirectory() as folder:
        found = rates(Path(folder))
    yield measure.bounded("sharing.requests.first", found.front, "1/min", 15.0)
    yield measure.bounded("sharing.requests.middle", found.middle, "1/min", 4.0)
    yield measure.bounded("sharing.requests.back", found.back, "1/min", 2.5)
    yield measure.bounded("sharing.requests.decider", found.holder, "1/min", 80.0)
    yield measure.bounded("sharing.writes.book", found.writes, "1/min", 25.0)
