"""The data of all the small training programs, and the comparison of their losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kinetic_orchestration import Limits, run

# Hosts by the name of a slice: with 8, 2 × 4 and 4 × 4 devices.
SLICES = {1: "v5e-8", 2: "v4-8", 4: "v5e-16"}
BATCH, EPOCHS, ROWS = 32, 8, 64

# What hangs ends as a clear failure, well before pytest's own limit.
BOUNDED = Limits(run="360s")


def samples(index: int, count: int) -> tuple[Any, Any, int]:
    """A host's share of the same rows, and its share of a batch: every batch has the same rows however many hosts."""
    import numpy as np

    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 8)).astype(np.float32)
    y = np.tanh(x @ random.normal(size=(8, 1)).astype(np.float32))
    return x[index::count], y[index::count], BATCH // count


def curves(program: Callable[[], dict[str, list[float]]], **options: Any) -> dict[int, dict[str, list[float]]]:
    """The losses of each training of the program, by the number of hosts."""
    return {
        hosts: run(accelerator=name, limits=BOUNDED, **options)(program).run_async().result()
        for hosts, name in SLICES.items()
    }


def check_same(found: dict[int, dict[str, list[float]]], training: str, steps: int) -> None:
    """It learned, and one host, two and four saw the same losses on the way."""
    one = found[1][training]
    assert len(one) == steps and one[-1] < 0.7 * one[0], one
    for hosts in (2, 4):
        many = found[hosts][training]
        assert is_close(many, one), f"{hosts} hosts: {many}, 1 host: {one}"


def is_close(here: Sequence[float], there: Sequence[float]) -> bool:
    return len(here) == len(there) and all(
        math.isclose(one, other, rel_tol=2e-4, abs_tol=1e-6) for one, other in zip(here, there, strict=True)
    )
