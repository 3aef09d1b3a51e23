"""A process with Airflow's OpenLineage provider, which asks an operator for its lineage as its listener does."""

from __future__ import annotations

import json
from types import SimpleNamespace

from airflow.providers.openlineage.extractors import ExtractorManager
from airflow.utils.state import TaskInstanceState

from airflow_kinetic import KineticTPUOperator
from kinetic_orchestration import Data


def train(points: object) -> None: ...


def main() -> None:
    task = KineticTPUOperator(
        task_id="train",
        python_callable=train,
        op_args=[Data("gs://bucket/points/")],
        volumes={"/more": Data("gs://bucket/volume/")},
    )
    ran = SimpleNamespace(output_dir="gs://bucket/kinetic/out")
    task.own_try().job = SimpleNamespace(task=lambda: ran)  # type: ignore[assignment] - a job that ended in a bucket
    found = ExtractorManager().extract_metadata(
        dagrun=SimpleNamespace(run_id="a run", conf={}),
        task=task,
        task_instance_state=TaskInstanceState.SUCCESS,
        task_instance=None,
    )
    told = {
        "inputs": [[data.namespace, data.name] for data in found.inputs],
        "outputs": [[data.namespace, data.name] for data in found.outputs],
    }
    print(json.dumps(told))


main()
