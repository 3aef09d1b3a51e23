"""Training steps on TPUs that feel native in Dagster: a function becomes an asset, and runs on every host of a slice.

from dagster_kinetic import HostContext, KineticResource, kinetic_asset
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_shared.libraries import DagsterLibraryRegistry

from dagster_kinetic.assets.decorators import kinetic_asset, kinetic_multi_asset, kinetic_op
from dagster_kinetic.pipes import PipesKineticClient
from dagster_kinetic.resource.config import KineticRunConfig
from dagster_kinetic.resource.kinetic_resource import KineticResource
from dagster_kinetic.sensors.branches import dagster_plus_branches
from dagster_kinetic.sensors.completion import build_kinetic_completion_sensor
from dagster_kinetic.sensors.reaper import build_kinetic_reaper_sensor
from kinetic_orchestration import __version__
from kinetic_orchestration.program.context import HostContext
from kinetic_orchestration.protocol.system.lazy import lazily

if TYPE_CHECKING:
    from dagster_kinetic.assets.component import KineticJobComponent
    from dagster_kinetic.fleet.jobs import MapResult
    from dagster_kinetic.resource.inference import evaluation_check

__all__ = [
    "HostContext",
    "KineticJobComponent",
    "KineticResource",
    "KineticRunConfig",
    "MapResult",
    "PipesKineticClient",
    "build_kinetic_completion_sensor",
    "build_kinetic_reaper_sensor",
    "dagster_plus_branches",
    "evaluation_check",
    "kinetic_asset",
    "kinetic_multi_asset",
    "kinetic_op",
]

DagsterLibraryRegistry.register("dagster-kinetic", __version__, is_dagster_package=False)

# Loaded when they are first used: the one is for YAML projects, the other for steps that run.
_HOMES = {
    "KineticJobComponent": "assets.component",
    "MapResult": "fleet.jobs",
    "evaluation_check": "resource.inference",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
