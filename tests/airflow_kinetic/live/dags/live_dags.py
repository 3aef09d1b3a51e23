"""The DAGs of the live tests. Their programs print their steps until a file says "go"; their tasks stop at given
points.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_kinetic import KineticJobSensor, KineticTPUOperator

try:
    from airflow.sdk import dag
except ImportError:  # of 2.11
    from airflow.decorators import dag

LONGEST = 1200.0  # seconds that anything here waits for its test
PAUSE = 0.8
BURST = 8  # lines at once
CROWD = 500
QUICK = 8

FOLDER = "{{ dag_run.conf['folder'] }}"
NAME = "{{ dag_run.conf['name'] }}"
ACCELERATOR = "{{ dag_run.conf.get('accelerator', 'cpu') }}"


def trains(folder: str) -> dict[str, int]:
    """Says which step it is, and when, until it is let go. Each start of it leaves a file."""
    import kinetic_orchestration as kinetic

    host = kinetic.current()
    (Path(folder) / f"began-{host.job_id}-{host.attempt}-{host.host_index}-{os.getpid()}").touch()
    deadline = time.monotonic() + LONGEST
    beats = step = 0
    while not (Path(folder) / "go").exists() and time.monotonic() < deadline:
        for _ in range(1 if beats % 8 else BURST):
            print(f"step {step} at {time.time():.3f}", flush=True)
            step += 1
        beats += 1
        if host.host_index == 0:
            host.log_metrics(step=step, loss=round(2.0 / (1 + step / 8), 3))
        time.sleep(PAUSE)
    return {"steps": step, "hosts": host.host_count}


def stop_once(name: str) -> None:
    """Stand still here until the test kills this process: the first one that comes by, and no other."""
    marker = Path(os.environ["LIVE_TEST_FOLDER"]) / f"{name}.pid"
    written = marker.with_suffix(f".{os.getpid()}")
    written.write_text(str(os.getpid()))
    try:
        os.link(written, marker)
    except FileExistsError:
        return
    finally:
        written.unlink()
    time.sleep(LONGEST)


class Gate:
    """An object that blocks the packaging of a function that uses it: the job is claimed, and not yet created."""

    def __reduce__(self) -> Any:
        stop_once("in-the-submit")
        return (str, ("past the gate",))


GATE = Gate()


def trains_behind_the_gate(folder: str) -> dict[str, int]:
    print(GATE)
    return trains(folder)


class Held(KineticTPUOperator):
    """Stops after the submission, before Airflow learns that the task is deferred."""

    def defer(self, **kwargs: Any) -> None:
        stop_once(str(self.name))
        super().defer(**kwargs)


def train(operator: type[KineticTPUOperator] = KineticTPUOperator, **options: Any) -> KineticTPUOperator:
    given: dict[str, Any] = {
        "task_id": "train", "python_callable": trains, "op_args": [FOLDER], "name": NAME, "accelerator": ACCELERATOR,
        "deferrable": True, "retries": 1, "retry_delay": timedelta(seconds=1),
    }  # fmt: skip
    return operator(**{**given, **options})


@dag(schedule=None, max_active_runs=64)
def training():
    train()


@dag(schedule=None)
def tried_once():
    train(retries=0)


@dag(schedule=None)
def training_on_a_worker():
    train(deferrable=False)


@dag(schedule=None)
def killed_in_the_submit():
    train(python_callable=trains_behind_the_gate)


@dag(schedule=None)
def killed_before_the_deferral():
    train(Held)


@dag(schedule=None)
def out_of_time():
    train(retries=0, execution_timeout=timedelta(seconds=120), priority_weight=100)


@dag(schedule=None, dagrun_timeout=timedelta(seconds=200))
def run_out_of_time():
    train(retries=0, priority_weight=200)  # else that time may pass before it is its turn


def ranks(folder: str) -> float:
    """A training as the pictures of the documentation show it."""
    import math

    import kinetic_orchestration as kinetic

    host = kinetic.current()
    print(f"joined as host {host.host_index} of {host.host_count}, with 4 of 16 devices", flush=True)
    deadline = time.monotonic() + LONGEST
    epoch, loss = 0, math.inf
    while not (Path(folder) / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.7)
        epoch += 1
        loss = 2.3 * math.exp(-epoch / 12) + 0.1
        print(
            f"epoch {epoch}: loss {loss + 0.01 * host.host_index:.3f}, {410 - 3 * host.host_index} examples/s",
            flush=True,
        )
        if host.host_index == 0:
            host.log_metrics(step=epoch, loss=round(loss, 3), accuracy=round(1 - loss / 2.5, 3))
    return loss


@dag(schedule=None)
def weekly_ranker():
    train(python_callable=ranks)


def sleeps(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@dag(schedule=None)
def first_seconds():
    """Jobs that end at any moment of the first seconds after their deferral. A failure of Airflow's is final."""
    KineticTPUOperator.partial(
        task_id="train", python_callable=sleeps, accelerator="cpu", deferrable=True, retries=0, name=NAME
    ).expand(op_args=[[4.0 * index / QUICK] for index in range(QUICK)])


@dag(schedule=None)
def crowd():
    """One sensor that is deferred as any other, and many that never get to a worker."""
    job = "{{ dag_run.conf['job'] }}"
    KineticJobSensor(task_id="watch", job_id=job, deferrable=True, timeout=LONGEST)
    many = KineticJobSensor.partial(task_id="watch_too", deferrable=True, timeout=LONGEST, pool="closed")
    many.expand(job_id=[job] * (CROWD - 1))


for declare in (
    training, tried_once, training_on_a_worker, killed_in_the_submit, killed_before_the_deferral, out_of_time, run_out_of_time,
    first_seconds, weekly_ranker, crowd,
):  # fmt: skip
    declare()
