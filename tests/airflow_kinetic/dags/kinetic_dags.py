"""DAGs as users write them, one for each story that the tests tell."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag, task
from helper_of_dags import doubled

from airflow_kinetic import KineticTPUOperator, kinetic_task

OFFSET = 100


def in_this_file(number: int) -> int:
    return doubled(number) + OFFSET


def with_templates(day: str, *, run: str, run_id: str) -> dict[str, str]:
    print("one line for", day)
    return {"day": day, "run": run, "same": str(run == run_id)}


@dag(schedule=None)
def waits_on_a_worker():
    KineticTPUOperator(
        task_id="train",
        python_callable=with_templates,
        op_args=["{{ dag.dag_id }}"],
        op_kwargs={"run": "{{ run_id }}"},
        accelerator="{{ 'v5e' }}-1",
        deferrable=False,
    )


@dag(schedule=None)
def waits_on_a_triggerer():
    @task.kinetic(accelerator="v5e-16", deferrable=True)
    def train(number: int) -> dict[str, int]:
        import time

        import kinetic_orchestration as kinetic

        host = kinetic.current()
        print("first line of", host.host_index)
        time.sleep(0.5)
        host.log_metrics(step=1, loss=0.25)
        print("same\nsame\ndone")
        return {"value": in_this_file(number), "hosts": host.host_count}

    @task
    def after(value: int) -> int:
        return value + 1

    after(train(4)["value"])


@dag(schedule=None)
def is_mapped():
    @kinetic_task(accelerator="cpu", deferrable=True)
    def square(base: int, number: int) -> int:
        return base + number * number

    @task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    total(square.partial(base=10).expand(number=[1, 2, 3]))


@dag(schedule=None)
def fails():
    @task.kinetic(accelerator="cpu", deferrable=True)
    def train():
        def deep_inside():
            raise ValueError("the learning rate exploded")

        deep_inside()

    train()


@dag(schedule=None)
def returns_more_than_json():
    @task.kinetic(accelerator="cpu")
    def train() -> dict:
        return {"loss": 0.5, "weights": b"\x00" * 1000}

    @task
    def where(value: str) -> str:
        return value

    where(train())


@dag(schedule=None)
def is_retried():
    @task.kinetic(accelerator="cpu", deferrable=True, retries=1, retry_delay=timedelta(0))
    def train(marker: str) -> str:
        path = Path(marker)
        path.write_text(path.read_text() + "x")
        if len(path.read_text()) == 1:
            raise RuntimeError("only the first time")
        return path.read_text()

    train("{{ dag_run.conf['marker'] }}")


@dag(schedule=None)
def asks_for_its_task_instance():
    @task.kinetic(accelerator="cpu")
    def train(ti):
        return ti

    train()


for declare in (
    waits_on_a_worker, waits_on_a_triggerer, is_mapped, fails, returns_more_than_json, is_retried,
    asks_for_its_task_instance,
):  # fmt: skip
    declare()
