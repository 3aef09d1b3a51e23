"""A model is trained again each week, and goes on where it was when its slice is taken away.

    python example_pipelines/dagster_weekly.py             one week, here and now, with an accident on the way
    dagster dev -f example_pipelines/dagster_weekly.py     the same in Dagster's own pages, with the schedule

`ranker` has a partition for each week, and the schedule runs each one when its week is over. Spot slices are cheap and
may be taken back at any moment: the body saves its state after each epoch in `host.checkpoint_dir`, which is the same
for every attempt of that week's job, so the next attempt begins where the last one ended. `lose_power_at` is the
accident.

To change for a real slice: the one line at the end of this file,
    KineticResource(project="my-project", store="gs://my-bucket/kinetic", require_hardware=True, spot=True)
"""

import io
import os
import signal
import sys
from pathlib import Path

import dagster as dg
import numpy as np

from dagster_kinetic import HostContext, KineticResource, kinetic_asset
from kinetic_orchestration import Retry

weeks = dg.WeeklyPartitionsDefinition(start_date="2026-01-04")
EPOCHS = 6


class Training(dg.Config):
    learning_rate: float = 0.5
    lose_power_at: int = 0  # the epoch at which the first attempt ends without a word; 0: never


@dg.asset(partitions_def=weeks)
def clicks(context: dg.AssetExecutionContext) -> np.ndarray:
    """Return what people clicked on in that week."""
    random = np.random.default_rng(int(context.partition_key.replace("-", "")))
    return random.normal(loc=3.0, scale=1.0, size=4096)


@kinetic_asset(accelerator="v5e-1", partitions_def=weeks, retry=Retry(user=1))
def ranker(host: HostContext, clicks: np.ndarray, config: Training) -> dg.MaterializeResult[float]:
    """Nothing but the mean, learned step by step. An epoch that was saved is not done again."""
    done, weight = load(host.checkpoint_dir)
    print(f"attempt {host.attempt} of week {host.partition_key} begins after epoch {done}")
    for epoch in range(done + 1, EPOCHS + 1):
        if epoch == config.lose_power_at and host.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for part in np.array_split(clicks, 8):
            weight -= config.learning_rate * float(np.mean(weight - part)) / 4
        host.log_metrics(step=epoch, loss=float(np.mean((weight - clicks) ** 2)))
        host.progress(epoch, EPOCHS, unit="epochs")
        save(host.checkpoint_dir, epoch, weight)
    return dg.MaterializeResult(value=weight, metadata={"weight": weight, "resumed_after": done})


def save(folder: str, epoch: int, weight: float) -> None:
    data = io.BytesIO()
    np.savez(data, epoch=epoch, weight=weight)
    if folder.startswith("gs://"):
        from google.cloud import storage

        storage.Blob.from_uri(f"{folder}/state.npz", client=storage.Client()).upload_from_string(data.getvalue())
        return
    path = Path(folder, "state.npz")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_bytes(data.getvalue())
    path.with_suffix(".new").replace(path)  # whole or not at all


def load(folder: str) -> tuple[int, float]:
    """The epoch that was saved last, and its weight."""
    if folder.startswith("gs://"):
        from google.cloud import storage

        blob = storage.Blob.from_uri(f"{folder}/state.npz", client=storage.Client())
        saved = blob.download_as_bytes() if blob.exists() else b""
    else:
        path = Path(folder, "state.npz")
        saved = path.read_bytes() if path.exists() else b""
    if not saved:
        return 0, 0.0
    state = np.load(io.BytesIO(saved))
    return int(state["epoch"]), float(state["weight"])


weekly = dg.define_asset_job("weekly")
defs = dg.Definitions(
    assets=[clicks, ranker],
    jobs=[weekly],
    schedules=[dg.build_schedule_from_partitioned_job(weekly, hour_of_day=3)],
    resources={"kinetic": KineticResource()},
)


def main() -> None:
    config = {"ops": {"ranker": {"config": {"lose_power_at": 4}}}}
    result = defs.resolve_job_def("weekly").execute_in_process(partition_key="2026-01-11", run_config=config)
    made = result.asset_materializations_for_node("ranker")[0].metadata
    print(
        f"\nresult   {result.output_for_node('ranker'):.2f}, in {made['~kinetic/attempts'].value} attempts; "
        f"the last one went on after epoch {made['resumed_after'].value}"
        f"\nthe UI   dagster dev -f {sys.argv[0]}"
    )


if __name__ == "__main__":
    main()
