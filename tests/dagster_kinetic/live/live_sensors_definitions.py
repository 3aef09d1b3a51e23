"""The definitions of `dagster dev`: a detached asset with its downstream assets, one that fails, and both sensors."""

import os
import time
from pathlib import Path

import dagster as dg

from dagster_kinetic import (
    HostContext,
    KineticResource,
    build_kinetic_completion_sensor,
    build_kinetic_reaper_sensor,
    kinetic_asset,
)


@kinetic_asset(accelerator="cpu", detached=True, check_specs=[dg.AssetCheckSpec("sound", asset="slow_model")])
def slow_model(host: HostContext):
    deadline = time.monotonic() + 900
    while not Path(os.environ["KINETIC_HOME"], "go").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return dg.MaterializeResult(
        value=42, metadata={"answer": 42}, check_results=[dg.AssetCheckResult(check_name="sound", passed=True)]
    )


@dg.asset
def slow_report(slow_model: int) -> str:
    return f"it is {slow_model}"


@kinetic_asset(accelerator="cpu", detached=True)
def slow_failure(host: HostContext):
    raise KeyError("no such column")


defs = dg.Definitions(
    assets=[slow_model, slow_report, slow_failure],
    sensors=[
        build_kinetic_completion_sensor(minimum_interval_seconds=2),
        build_kinetic_reaper_sensor(minimum_interval_seconds=5),
    ],
    resources={"kinetic": KineticResource()},
)
