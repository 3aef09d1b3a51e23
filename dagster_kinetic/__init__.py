"""Training steps on TPUs that feel native in Dagster: a function becomes an asset, and runs on every host of a slice.

from dagster_kinetic import HostContext, KineticResource, kinetic_asset
"""

from __future__ import annotations

from dagster_shared.libraries import DagsterLibraryRegistry

from dagster_kinetic.decorators import kinetic_asset, kinetic_op
from dagster_kinetic.resource import KineticResource
from kinetic_orchestration import __version__
from kinetic_orchestration.context import HostContext

__all__ = ["HostContext", "KineticResource", "kinetic_asset", "kinetic_op"]

DagsterLibraryRegistry.register("dagster-kinetic", __version__, is_dagster_package=False)
