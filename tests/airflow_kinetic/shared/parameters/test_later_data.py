"""Data whose address another task or a template tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import task

from airflow_kinetic import KineticData, KineticServeBatchOperator, KineticTPUOperator
from kinetic_orchestration.errors import DataNotFound, UsageError
from tests.airflow_kinetic.conftest import Airflow

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow


def resolved(data: KineticData, **context: Any) -> Any:
    reads = KineticTPUOperator(task_id="reads", python_callable=len, accelerator="cpu", op_args=[data])
    context["task"] = reads
    reads.render_template_fields(context)  # type: ignore[arg-type]
    return next(iter(reads.op_args))


def test_a_task_reads_what_a_task_before_it_has_written(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="reads_what_a_task_wrote")
    assert done["states"] == {"write": "success", "read": "success"}, done["log"][-5000:]
    assert done["xcoms"]["read/return_value"] == ["read", "read"]


@pytest.mark.parametrize("address", ["gs://b/{{ day }}/model", "gs://b/{{ day }}/model/"])
def test_an_address_of_a_folder_in_a_bucket_has_its_slash(address: str) -> None:
    found = resolved(KineticData(address, folder=True, fuse=True), day="monday")
    assert (found.path, found.is_dir, found.fuse) == ("gs://b/monday/model/", True, True)


def test_a_path_stays_one_and_what_is_none_is_refused_when_the_task_begins(tmp_path: Path) -> None:
    assert resolved(KineticData(str(tmp_path), folder=True)).path == str(tmp_path)
    with pytest.raises(DataNotFound, match="nowhere does not exist"):
        resolved(KineticData("{{ place }}/nowhere"), place=str(tmp_path))
    data: Any = KineticData([3])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"KineticData\('\[3\]'\) is a list after rendering"):
        resolved(data)


def test_it_is_refused_where_airflow_cannot_keep_it_or_nothing_renders_it() -> None:
    later = KineticData("gs://b/model", folder=True)
    batch = {"task_id": "batch", "accelerator": "cpu"}
    by_default = KineticServeBatchOperator.partial(model=later, **batch)
    mapped = KineticServeBatchOperator.partial(prompts=["a"], **batch)
    function = task.kinetic(**batch)(resolved)
    says = r"task batch is mapped, and Airflow cannot store KineticData\('gs://b/model', folder=True\).*address as text"
    for expand in (
        lambda: by_default.expand(prompts=[["a"], ["b"]]),
        lambda: mapped.expand(model=[later, later]),
        lambda: mapped.expand_kwargs([{"model": later}]),
        lambda: function.expand(data=[later]),
        lambda: function.expand_kwargs([{"data": later}]),
    ):
        with pytest.raises(UsageError, match=says):
            expand()
    volumes: Any = {"/data": later}
    with pytest.raises(UsageError, match=r"volume '/data' is KineticData\(.*known only when the task begins.*argument"):
        KineticTPUOperator(task_id="reads", python_callable=len, accelerator="cpu", volumes=volumes)
