"""The DAGs of the live tests about the surroundings of tasks. Programs continue until a file says "go"."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, dag, task
from fitting.steps import fit

from airflow_kinetic import KineticTPUOperator, kinetic_task

LONGEST = 1200.0  # seconds that anything here waits for its test
PAUSE = 0.4
POURED = 200  # lines of each host at once
NUMBERS = 60_000
LAST = 1_500  # lines

IN_THE_CLOUD: dict[str, Any] = {
    "gcp_conn_id": "of_the_cloud", "store": os.environ["LIVE_TEST_STORE"], "deployment": "live",
    "zones": ["us-west4-a", "us-central1-a"], "spot": True,
}  # fmt: skip
FOLDER = "{{ dag_run.conf['folder'] }}"
NAME = "{{ dag_run.conf['name'] }}"


def says(folder: str) -> dict[str, int]:
    """Print the step and the time until it is let go; many at once for each file `pour-1`, `pour-2`, … Each start
    leaves a file.
    """
    import kinetic_orchestration as kinetic

    host, here = kinetic.current(), Path(folder)
    (here / f"began-{host.job_id}-{host.attempt}-{host.host_index}-{os.getpid()}").touch()
    deadline = time.monotonic() + LONGEST
    step, poured = 0, 0
    while not (here / "go").exists() and time.monotonic() < deadline:
        pours = (here / f"pour-{poured + 1}").exists()
        poured += pours
        for _ in range(POURED if pours else 1):
            print(f"step {step} at {time.time():.3f}", flush=True)
            step += 1
            time.sleep(0.006 if pours else 0)  # four hosts have a millisecond of their own each time
        time.sleep(PAUSE)
    return {"steps": step, "hosts": host.host_count}


def ends_in_a_flood(folder: str) -> None:
    """Says nothing until it is let go, and then all at once, as its last words."""
    deadline = time.monotonic() + LONGEST
    print("step -1", flush=True)
    while not (Path(folder) / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    print("\n".join(f"step {step} at {time.time():.3f}" for step in range(LAST)), flush=True)


def learns(folder: str) -> dict[str, Any]:
    """Trains until its slice is taken away; the attempt after that takes a few steps more, and ends when it is let go.
    Says where it goes on.
    """
    import kinetic_orchestration as kinetic

    host = kinetic.current()
    training = kinetic.Training(every=2, name="ranker")
    state, begun = training.restore({"steps": 0})
    print(f"goes on after step {begun} of {host.checkpoint_dir}", flush=True)
    step, deadline = begun, time.monotonic() + LONGEST
    while step < begun + 6 if begun else time.monotonic() < deadline:
        step += 1
        state["steps"] += 1
        training.step(step, state, loss=1 / step)
        print(f"step {step} is done", flush=True)
        time.sleep(PAUSE)
    while not (Path(folder) / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    training.finish(state)
    return {"begun": begun, "steps": state["steps"], "kept": host.checkpoint_dir}


def embeds() -> dict[str, list[int]]:
    """JSON, and far more of it than goes to XCom."""
    return {"embedding": list(range(NUMBERS))}


def train(task_id: str = "train", function: Any = says, **options: Any) -> KineticTPUOperator:
    given: dict[str, Any] = {
        "task_id": task_id, "python_callable": function, "op_args": [FOLDER], "name": NAME, "accelerator": "cpu",
        "deferrable": True, "retries": 2, "retry_delay": timedelta(seconds=1), "backend": "local",
    }  # fmt: skip
    return KineticTPUOperator(**{**given, **options})


def on_a_cloud(**options: Any) -> KineticTPUOperator:
    return train(**{**IN_THE_CLOUD, "backend": None, **options})


@dag(schedule=None)
def weekly_ranker():
    on_a_cloud(function=learns, accelerator="v5e-16", outlets=[Asset("ranker")])


@dag(schedule=None)
def on_vms():
    """A VM with a GPU, as the hardware says, and a slice of several VMs, as its task says."""
    gpu = task.kinetic(task_id="on_a_gpu", accelerator="l4", deferrable=True, retries=2, **IN_THE_CLOUD)
    model = gpu(learns)(f"{FOLDER}/on_a_gpu")

    @task
    def steps(model: dict[str, Any]) -> int:
        return model["steps"]

    steps(model)
    on_a_cloud(
        task_id="on_a_slice", function=says, accelerator="v6e-16", op_args=[f"{FOLDER}/on_a_slice"], backend="compute"
    )


@dag(schedule=None)
def two_triggerers():
    train(accelerator="v5e-16")


@dag(schedule=None)
def last_words():
    train(function=ends_in_a_flood)


@dag(schedule=None)
def in_pools():
    """Two tasks in each of two pools with one slot."""
    for pool in ("frees", "keeps"):
        for number in (1, 2):
            train(
                f"{pool}_{number}", pool=pool, op_args=[f"{FOLDER}/{pool}_{number}"], name=f"{NAME}-{pool}-{number}",
                priority_weight=3 - number,  # else the second may go before the first when that comes back for its end
            )  # fmt: skip


@dag(schedule=None)
def of_a_package():
    @task
    def writes() -> str:
        """Return the result of writing into the DAGs folder."""
        try:
            (Path(__file__).parent / "written").touch()
        except OSError as error:
            return type(error).__name__
        return "was written"

    @kinetic_task(accelerator="cpu", deferrable=True, backend="local")
    def of_the_file(number: int) -> int:
        return number + fit(2)

    writes() >> train("fit", fit, op_args=[2]) >> of_the_file(1)


@dag(schedule=None)
def large_value():
    store = os.environ["LIVE_TEST_STORE"]

    @task
    def reads(uri: str) -> int:
        import kinetic_orchestration as kinetic

        job_id = uri.partition("/jobs/")[2].partition("/")[0]
        value = kinetic.attach(job_id, store=store, deployment="live").result()
        return sum(value["embedding"])

    embedded = train("embeds", embeds, op_args=[], store=store, deployment="live", gcp_conn_id="of_the_cloud")
    reads(embedded.output)


for declare in (weekly_ranker, on_vms, two_triggerers, last_words, in_pools, of_a_package, large_value):
    declare()
