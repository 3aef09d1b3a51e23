"""docs/pipelines/airflow.md: every program of it is a DAG that loads, and its tables say what is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import airflow_kinetic.exceptions
from airflow_kinetic.get_provider_info import DEFAULTS
from tests.airflow_kinetic.conftest import Airflow
from tests.support import pages

PAGE = pages.page("docs/pipelines/airflow.md")

pytestmark = pytest.mark.timeout(300)  # the first one starts Airflow


def names(heading: str, column: int) -> set[str]:
    """The names in code style in a column of the table below a heading."""
    part = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in part.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return {name for row in rows[1:] for name in re.findall(r"`([^`]+)`", row[column])}


@pytest.mark.slow
@pytest.mark.turn(2)
def test_the_first_task_of_the_page_runs(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="first_training")
    assert done["states"] == {"train": "success", "report": "success"}
    assert done["xcoms"]["report/return_value"] == "a loss of 0.10"


def test_its_operators_run_a_function_and_a_script(airflow: Airflow, home: Path) -> None:
    # Its zones mean the cloud.
    done = airflow("run_dag", home, dag_id="nightly", environ={"KINETIC_BACKEND": "local"})
    assert done["states"] == {"train": "success", "evaluate": "success"}
    assert done["xcoms"]["train/return_value"] == pytest.approx(0.00125)
    assert done["events"][0]["job_id"].startswith("job-")
    assert re.search(r"evaluated: --run manual__", done["log"])


def test_its_mapped_tasks_run(airflow: Airflow, home: Path) -> None:
    done = airflow("run_dag", home, dag_id="sweep")
    assert done["xcoms"]["best/return_value"] == 0.0
    assert done["state"] == "success"


def test_its_retry_policy_tells_the_causes_apart(airflow: Airflow, home: Path) -> None:
    exceptions = ["UsageError", "JobTimedOut", "JobLost", "JobFailed"]
    done = airflow("decisions", home, dag_id="patient", task_id="train", exceptions=exceptions)
    assert [done[name] for name in exceptions] == ["fail", "fail", "retry", "default"]


def test_every_program_of_the_page_is_a_dag_file_of_its_own() -> None:
    assert len(pages.programs("docs/pipelines/airflow.md")) == len(pages.blocks("docs/pipelines/airflow.md"))


@pytest.mark.parametrize(
    ("dag_id", "tasks"),
    [
        ("after_another", ["trained"]), ("leftovers", ["reap"]), ("of_ones_own", ["submits"]), ("training", ["train"]),
        ("on_vms", ["train", "train_on_a_slice"]), ("any_slice", ["train", "evaluate"]),
    ],
)  # fmt: skip
def test_its_sensor_its_reaper_its_hook_its_vms_and_the_readmes_task_are_tasks(
    airflow: Airflow, home: Path, dag_id: str, tasks: list[str]
) -> None:
    assert airflow("tasks_of", home, dag_id=dag_id)["tasks"] == tasks


def test_its_tables_say_what_is_there() -> None:
    from airflow_kinetic.operators.kinetic import KineticTPUOperator
    from airflow_kinetic.shared.parameters.arguments import TRAVELLING

    assert {f"{name}`, `{default}" for name, default in DEFAULTS.items()} == {
        f"{row[0]}`, `{row[1]}" for row in re.findall(r"^\| `(\w+)` \| `(\d+)` \|", PAGE, re.M)
    }
    told = names("Retries by cause", 1)
    assert told <= set(airflow_kinetic.exceptions.__all__)
    options = {name.partition("=")[0] for name in names("The operator and the decorator", 1) if "=" in name}
    assert options <= set(inspect.signature(KineticTPUOperator.__init__).parameters)
    context = PAGE.partition("**Of the task's context**")[2].partition("`ti`")[0]
    assert set(re.findall(r"`(\w+)`", context)) == TRAVELLING
