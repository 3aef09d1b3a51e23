"""Definitions as users write them, in a module that keeps its annotations as text; worker processes run them too."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from dagster_kinetic import HostContext, KineticResource, kinetic_asset, kinetic_op
from kinetic_orchestration import current

if TYPE_CHECKING:
    from numpy import ndarray


class Training(dg.Config):
    factor: float = 2.0


@dg.asset
def numbers() -> list[int]:
    return [1, 2, 3]


@kinetic_asset(
    accelerator="cpu:2",
    processes=2,
    check_specs=[dg.AssetCheckSpec("enough", asset="total")],
    partitions_def=dg.StaticPartitionsDefinition(["monday", "tuesday"]),
    group_name="sums",
    owners=["team:numbers"],
    tags={"of": "tests"},
)
def total(host: HostContext, numbers: ndarray | list[int], config: Training):
    """Adds them up."""
    print("adding on", host.partition_key, "as local rank", os.environ["LOCAL_RANK"])
    value = sum(numbers) * config.factor
    return dg.MaterializeResult(
        value=value,
        metadata={"count": len(numbers)},
        check_results=[dg.AssetCheckResult(check_name="enough", passed=value > 10, metadata={"value": value})],
    )


@kinetic_asset(accelerator="v5e-16")
def slice_of_four(host):
    print(f"here is {host.host_index} of {host.host_count}")
    for step in range(3):
        host.log_metrics(step=step, loss=1 / (step + 1))
        host.progress(step + 1, 3, unit="steps")
    return host.host_count


def fails_once(host):
    """Fails until it finds a checkpoint of an earlier try; its value names the job of each try."""
    folder = Path(host.checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    earlier = len(os.listdir(folder))
    (folder / f"{earlier}-{host.job_id}").touch()
    print("going wrong")
    if not earlier:
        raise KeyError("no such column")
    return sorted(os.listdir(folder))


broken = kinetic_asset(accelerator="cpu", name="broken")(fails_once)


@kinetic_asset(accelerator="cpu", retry_policy=dg.RetryPolicy(max_retries=3))
def patient(host):
    return waits_for_a_word()


def waits_for_a_word(number: int = 0) -> str:
    """Says that it is there, and waits."""
    folder, job_id = Path(os.environ["KINETIC_TEST_FOLDER"]), current().job_id
    with (folder / "jobs").open("a") as file:
        file.write(job_id + "\n")
    deadline = time.monotonic() + 600
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return job_id


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=3))
def patient_map(kinetic: KineticResource) -> list[str]:
    return [each.get() for each in kinetic.map(waits_for_a_word, range(2), accelerator="cpu")]


@kinetic_op(accelerator="cpu")
def doubled(number: int) -> int:
    return 2 * number


@dg.op
def four() -> int:
    return 4


@dg.job(resource_defs={"kinetic": KineticResource()})
def doubling():
    doubled.alias("again")(doubled(four()))


assets = [patient, patient_map]
jobs = [dg.define_asset_job(f"{asset.key.to_user_string()}_job", [asset]) for asset in assets]


def patient_again() -> dg.JobDefinition:
    """The argument of `dg.reconstructable`."""
    return defs.resolve_job_def("patient_job")


def patient_map_again() -> dg.JobDefinition:
    return defs.resolve_job_def("patient_map_job")


defs = dg.Definitions(assets, jobs=[*jobs, doubling], resources={"kinetic": KineticResource()})


def waits(number: int, seconds: float) -> int:
    time.sleep(seconds)
    return number


def how_many() -> str:
    """Tell of how many processes this one is."""
    return os.environ["WORLD_SIZE"]
