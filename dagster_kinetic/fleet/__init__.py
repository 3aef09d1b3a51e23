"""Many jobs from one step. `MapResult` is exported for results that were pickled by this package's name."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "MapResult":
        from dagster_kinetic.fleet.jobs import MapResult

        return MapResult
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
