"""A process with Airflow's OpenLineage provider, which asks operators for their lineage as its listener does: before the
job is there, when it has succeeded, and when it has failed. The jobs are real ones, of this machine.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import attr
from airflow.providers.openlineage.extractors import ExtractorManager
from airflow.utils.state import TaskInstanceState

import kinetic_orchestration as kinetic
from airflow_kinetic import KineticTPUOperator
from kinetic_orchestration import Data
from kinetic_orchestration.api.handle import job_behind


@kinetic.run(accelerator="cpu")
def train(points: object) -> None: ...


@kinetic.run(accelerator="cpu")
def broken(points: object) -> None:
    raise ValueError("no such column: price")


def main(folder: str) -> None:
    given = [Data(folder), Data("gs://bucket/points/")]
    task = KineticTPUOperator(
        task_id="train", python_callable=train, op_args=given, volumes={"/more": Data("gs://bucket/volume/")}
    )
    told = {"start": told_by(task, TaskInstanceState.RUNNING)}
    for state, function in ((TaskInstanceState.SUCCESS, train), (TaskInstanceState.FAILED, broken)):
        handle = function.run_async(Data(folder))
        task.own_try().job = job_behind(handle)
        try:
            with task.own_try().executing():
                handle.result()
        except ValueError:
            assert state == TaskInstanceState.FAILED
        told[str(state.value)] = {**told_by(task, state), "job": handle.job_id, "folder": handle.output_dir}
    print(json.dumps(told))


def told_by(task: KineticTPUOperator, state: TaskInstanceState) -> dict[str, Any]:
    found = ExtractorManager().extract_metadata(
        dagrun=SimpleNamespace(run_id="a run", conf={}), task=task, task_instance_state=state, task_instance=None
    )
    facets = {name: attr.asdict(facet) for name, facet in found.run_facets.items()}
    return {
        "inputs": [[data.namespace, data.name] for data in found.inputs],
        "outputs": [[data.namespace, data.name] for data in found.outputs],
        "tags": {tag["key"]: tag["value"] for tag in facets.get("tags", {"tags": []})["tags"]},
        "error": facets.get("errorMessage", {}).get("message", ""),
    }


if __name__ == "__main__":
    main(sys.argv[1])
