"""The view of TensorBoard and W&B on a job's data: runs in an environment that has both."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read(folders: list[str]) -> list[dict[str, Any]]:
    """The data that the two programs find there."""
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from wandb.proto.wandb_internal_pb2 import Record

    def of_tensorboard(folder: str) -> dict[str, list[int]]:
        runs = EventMultiplexer().AddRunsFromDirectory(f"{folder}/tensorboard").Reload()
        return {
            f"{run}/{tag}": [event.step for event in runs.Scalars(run, tag)]
            for run, data in runs.Runs().items()
            for tag in data["scalars"]
        }

    def records(path: Path) -> Any:
        """W&B's file is a log as LevelDB's: a header of 7 bytes, and blocks with pieces of records."""
        data, at, whole = path.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if 32768 - at % 32768 < 7:
                at += 32768 - at % 32768
                continue
            size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
            whole = (b"" if kind in (1, 2) else whole) + data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):
                yield Record.FromString(whole)

    def of_wandb(path: Path) -> dict[str, Any]:
        found = list(records(path))
        return {
            "run": [record.run.run_id for record in found if record.WhichOneof("record_type") == "run"],
            "steps": [record.history.step.num for record in found if record.WhichOneof("record_type") == "history"],
            "ended": any(record.WhichOneof("record_type") == "exit" for record in found),
        }

    return [
        {
            "tensorboard": of_tensorboard(folder),
            "wandb": [of_wandb(path) for path in sorted(Path(folder).glob("wandb/offline-run-*/*.wandb"))],
        }
        for folder in folders
    ]


def told_twice(trackers: Any, folder: str) -> dict[str, Any]:
    """The data of a run whose first attempt had all on the disk, more than its checkpoint knows of."""
    import dataclasses

    import kinetic_orchestration as kinetic

    here = dataclasses.replace(kinetic.current(), output_dir=folder)
    with trackers(here) as first:
        for step in range(1, 14):
            first.tell(step, loss=1 / step)
    kept = {"rows": first.get_state()["rows"][:8]}
    with trackers(dataclasses.replace(here, attempt=2)) as second:
        second.set_state(kept)
        for step in range(9, 21):
            second.tell(step, loss=1 / step)
    return read([folder])[0]
