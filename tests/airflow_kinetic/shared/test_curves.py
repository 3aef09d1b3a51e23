"""The picture of a job, as a task shows it at its end."""

from __future__ import annotations

from pathlib import Path

import kinetic_orchestration as kinetic
from airflow_kinetic.links.kinetic import KineticCurvesLink
from airflow_kinetic.operators.kinetic import KineticTPUOperator
from airflow_kinetic.operators.report import TaskReport


def trains(steps: int) -> int:
    for step in range(steps):
        kinetic.current().log_metrics(step=step, loss=1 / (step + 1))
    return steps


def test_a_task_links_the_picture_of_its_job_if_there_is_one(home: Path) -> None:
    task = KineticTPUOperator(task_id="train", python_callable=trains, accelerator="cpu")
    link = KineticCurvesLink()
    quiet, told = (kinetic.run(accelerator="cpu")(trains).run_async(steps) for steps in (0, 5))
    assert quiet.result(timeout=60) == 0
    assert TaskReport(task, {}, quiet._job).show_curves() == ""
    assert link.get_link(task, ti_key=None) == ""
    assert told.result(timeout=60) == 5
    page = TaskReport(task, {}, told._job).show_curves()
    assert page == f"{Path(told.output_dir).as_uri()}.svg"
    assert link.get_link(task, ti_key=None) == page
