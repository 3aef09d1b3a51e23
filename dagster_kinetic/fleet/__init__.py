"""Many jobs from one step. `MapResult` is exported for results that were pickled by this package's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic_orchestration.protocol.system.lazy import lazily

if TYPE_CHECKING:
    from dagster_kinetic.fleet.jobs import MapResult as MapResult

__getattr__, __dir__ = lazily(__name__, {"MapResult": "jobs"})
