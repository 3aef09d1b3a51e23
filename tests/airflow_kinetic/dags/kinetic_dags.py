"""DAGs as users write them, one for each story that the tests tell."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import Asset, dag, get_current_context, task
from helper_of_dags import doubled

from airflow_kinetic import KineticData, KineticJobSensor, KineticReleaseOperator, KineticTPUOperator, kinetic_task
from kinetic_orchestration import Choice, Limits

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
        gcp_conn_id="there_is_no_such_connection",  # and none is opened for a job on this machine
        backend="local",
        deferrable=False,
    )


@dag(schedule=None)
def has_a_secret_and_a_cost_limit():
    @task.kinetic(accelerator="cpu:2", processes=2, secrets={"STORY_TOKEN": "story"}, limits=Limits(cost=5))
    def train() -> str:
        import os

        print("local rank", os.environ["LOCAL_RANK"], "of", os.environ["LOCAL_WORLD_SIZE"])
        return os.environ["STORY_TOKEN"][::-1]

    train()


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

    @kinetic_task(accelerator="cpu")
    def total(numbers: list[int]) -> int:
        assert type(numbers) is list, "what Airflow hands over lazily travels as it looks"
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


def given(number: str) -> str:
    return number


def notes_its_try(context) -> None:
    with Path(os.environ["KINETIC_HOME"], f"tries-of-{context['ti'].task_id}").open("a") as tries:
        tries.write(str(context["ti"].try_number))


def loses_its_worker_once(context, result) -> None:
    """Fail after the job has ended, and before Airflow knows it."""
    if context["ti"].try_number == 1:
        raise RuntimeError("as a worker that is lost")


@dag(schedule=None)
def is_given_another_argument():
    for task_id, on_conflict in (("takes_it", "return"), ("refuses_it", "error")):
        KineticTPUOperator(
            task_id=task_id, python_callable=given, op_args=["{{ ti.try_number }}"], accelerator="cpu",
            on_conflict=on_conflict, retries=2, retry_delay=timedelta(0), pre_execute=notes_its_try,
            post_execute=loses_its_worker_once, deferrable=False,
        )  # fmt: skip


@dag(schedule=None)
def runs_two_processes():
    @task.kinetic(accelerator="cpu:2", processes=2)
    def train() -> str:
        return os.environ["WORLD_SIZE"]

    train()


@dag(schedule=None)
def asks_for_its_task_instance():
    @task.kinetic(accelerator="cpu")
    def train(ti):
        return ti

    train()


def scaled(number: int, *, by: int) -> int:
    return number * by


@dag(schedule=None)
def keeps_slices_side_by_side():
    """The mapped one and the failed one are not the last, nor is the first, nor one that does not wait for all: the
    release is for those.
    """
    kept = {"accelerator": "cpu", "keep": "10m", "deferrable": False}

    @task.kinetic(**kept)
    def first() -> int:
        return 1

    @task.kinetic(**kept)
    def each(number: int) -> int:
        return number

    @task.kinetic(**kept)
    def fails(number: int) -> int:
        raise ValueError(number)

    @task.kinetic(**kept)
    def never(number: int) -> int:
        return number

    @task.kinetic(**kept, trigger_rule="one_success")
    def early() -> int:
        return 0

    began = first()
    failed = never(fails(began))
    others = [began >> each.expand(number=[1, 2]), failed]
    last = [began, *others] >> early()
    [*others, last] >> KineticReleaseOperator(task_id="release")


@dag(schedule=None)
def shares_a_slice_in_the_cloud():
    """Its second task fails once, and its last one is skipped unless the run's conf says otherwise."""
    kept = {"accelerator": "v5e-1", "keep": "10m", "requirements": [], "deferrable": True}

    @task.kinetic(**kept)
    def first() -> int:
        return 1

    @task.kinetic(**kept, retries=1, retry_delay=timedelta(0))
    def again(number: int, marker: str) -> int:
        path = Path(marker)
        if not path.exists():
            path.touch()
            raise RuntimeError("only the first time")
        return number + 1

    @task.short_circuit
    def goes_on() -> bool:
        return bool(get_current_context()["dag_run"].conf["last"])

    @task.kinetic(**kept)
    def last(number: int) -> int:
        return number + 1

    tried = again(first(), "{{ dag_run.conf['marker'] }}")
    ended = last(tried)
    tried >> goes_on() >> ended >> KineticReleaseOperator(task_id="release")


@dag(schedule=None)
def expands_whole_calls():
    KineticTPUOperator.partial(task_id="scale", python_callable=scaled, accelerator="cpu").expand_kwargs(
        [{"op_args": [2], "op_kwargs": {"by": 5}}, {"op_args": [3], "op_kwargs": {"by": 7}, "name": "larger"}]
    )


@dag(schedule=None)
def runs_a_script():
    KineticTPUOperator(
        task_id="train",
        script="script_of_dags.py",
        op_args=["--rate", "{{ dag.dag_id }}", 3],
        env={"KIND": "{{ 'tem' + 'plated' }}"},
        accelerator="cpu:{{ 1 + 1 }}",
        processes=2,
        metrics="torchrun",
        deferrable=True,
    )


@dag(schedule=None)
def trains_in_the_cloud():
    KineticTPUOperator(
        task_id="train",
        script="script_of_dags.py",
        op_args=["in the cloud"],
        env={"KIND": ""},
        accelerator="v5e-1",
        gcp_conn_id="of_the_cloud",
        requirements=[],
        deferrable=True,
    )


@dag(schedule=None)
def chooses_in_the_cloud():
    KineticTPUOperator(
        task_id="train",
        script="script_of_dags.py",
        op_args=["in the cloud"],
        env={"KIND": ""},
        accelerator=[Choice("v5e-4", regions=["us-west4"]), {"accelerator": "v5e-1", "regions": ["us-central1"]}],
        gcp_conn_id="of_the_cloud",  # which says how they are bought
        requirements=[],
        deferrable=True,
        outlets=[Asset("chosen")],
    )


@dag(schedule=None)
def makes_an_asset():
    @task.kinetic(
        accelerator="cpu", deferrable=True, outlets=[Asset("a_model")], get_logs=False,
        profile="{{ dag_run.conf.get('profile') }}",
    )  # fmt: skip
    def train(framework: str) -> dict[str, float]:
        import importlib

        import kinetic_orchestration as kinetic

        module = importlib.import_module(framework)
        host = kinetic.current()
        print("this line is not asked for")
        for step in range(8):
            if framework == "jax":
                module.numpy.ones(8).sum().block_until_ready()
            host.progress(step + 1, 8)
        host.log_metrics(step=1, loss=0.75)
        host.log_metrics(step=2, loss=0.25, gap=float("inf"))
        return {"loss": 0.25}

    train("{{ dag_run.conf.get('framework', 'json') }}")


@dag(schedule=None)
def is_out_of_time():
    @task.kinetic(accelerator="cpu", deferrable=True, execution_timeout=timedelta(seconds=40))
    def train():
        import time

        print("begun", flush=True)
        time.sleep(120)

    train()


@dag(schedule=None)
def is_given_no_json():
    @task
    def since():
        from datetime import UTC, datetime

        return datetime(2025, 6, 1, tzinfo=UTC)

    @task.kinetic(accelerator="cpu", retries=2, retry_delay=timedelta(0), pre_execute=notes_its_try)
    def train(settings):
        return settings

    train({"data": [{"since": since()}]})


@dag(schedule=None)
def senses():
    @task
    def submit(number: int) -> str:
        import kinetic_orchestration as kinetic

        return kinetic.run(accelerator="cpu")(in_this_file).run_async(number).job_id

    @task
    def submit_failing() -> str:
        import kinetic_orchestration as kinetic

        return kinetic.command(["python", "-c", "raise SystemExit(3)"], accelerator="cpu").job_id

    KineticJobSensor(task_id="deferred", job_id=submit(1), deferrable=True)
    KineticJobSensor(task_id="poked", job_id=submit(2), poke_interval=0.2, timeout=60)
    KineticJobSensor(task_id="of_a_failure", job_id=submit_failing(), deferrable=True)


@dag(schedule=None)
def watches_by_its_id():
    """Watch a mapped task, whose job ids are in XCom, index by index."""
    train = kinetic_task(accelerator="cpu", deferrable=True)(doubled).expand(number=[3])
    watch = KineticJobSensor(
        task_id="watch", job_id="{{ ti.xcom_pull(task_ids='doubled', key='kinetic_job_id', map_indexes=0) }}",
        deferrable=True,
    )  # fmt: skip
    train >> watch


@dag(schedule=None)
def reads_what_a_task_wrote():
    @task.kinetic(accelerator="cpu")
    def write() -> str:
        import kinetic_orchestration as kinetic

        folder = Path(kinetic.current().output_dir, "made")
        folder.mkdir()
        (folder / "text").write_text("read")
        return str(folder)

    @task.kinetic(accelerator="cpu", deferrable=True)
    def read(folder: str, *, listed: list[str]) -> list[str]:
        return [Path(folder, "text").read_text(), Path(listed[0]).read_text()]

    written = write()
    read(KineticData(written), listed=[KineticData("{{ ti.xcom_pull(task_ids='write') }}/text")])


for declare in (
    reads_what_a_task_wrote,
    waits_on_a_worker, has_a_secret_and_a_cost_limit, waits_on_a_triggerer, is_mapped, fails, returns_more_than_json, is_retried,
    asks_for_its_task_instance, expands_whole_calls, runs_a_script, trains_in_the_cloud, chooses_in_the_cloud, makes_an_asset,
    is_out_of_time, is_given_no_json, senses, is_given_another_argument, runs_two_processes,
    watches_by_its_id, keeps_slices_side_by_side, shares_a_slice_in_the_cloud,
):  # fmt: skip
    declare()
