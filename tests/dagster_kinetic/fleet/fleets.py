"""Steps of many jobs, as users write them; worker processes and a real server run them."""

import os
import time
from pathlib import Path

import dagster as dg

from dagster_kinetic import HostContext, KineticResource, kinetic_asset
from kinetic_orchestration import current


def waits(number: int, folder: str) -> int:
    """Says that it is there, and waits for a word."""
    (Path(folder) / f"here-{number}-{current().job_id}").touch()
    deadline = time.monotonic() + 900
    while not (Path(folder) / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return number * number


def trial(number: int) -> int:
    if number % 50 == 13:
        raise ValueError(f"{number} is unlucky")
    return number * number


def folder() -> str:
    return os.environ["KINETIC_TEST_FOLDER"]


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=2))
def waiting_fleet(context: dg.AssetExecutionContext, kinetic: KineticResource) -> list[int]:
    inputs = [(number, folder()) for number in range(5)]
    results = kinetic.map(waits, inputs, accelerator="cpu", context=context)
    return [result.get() for result in results]


@dg.asset
def more_than_a_table_holds(context: dg.AssetExecutionContext, kinetic: KineticResource) -> dg.MaterializeResult:
    results = kinetic.map(trial, range(120), accelerator="cpu", context=context, max_concurrent=16)
    assert [result.input for result in results] == list(range(120))
    assert all(result.value == result.input**2 for result in results if result.ok)
    failed = [result.input for result in results if not result.ok]
    return dg.MaterializeResult(metadata={"failed": failed, "ok": sum(result.ok for result in results)})


@kinetic_asset(accelerator="cpu", retry_policy=dg.RetryPolicy(max_retries=3))
def waiting_asset(host: HostContext) -> str:
    waits(1, folder())
    return host.job_id


fleet_job = dg.define_asset_job("fleet_job", ["waiting_fleet"])
defs = dg.Definitions(
    [waiting_fleet, more_than_a_table_holds, waiting_asset], jobs=[fleet_job], resources={"kinetic": KineticResource()}
)
