"""A process with Airflow in it, which runs the DAGs that it is told on standard input, one JSON object a line.

Airflow sets up logging, signals and a database for its whole process, so the tests keep it out of theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_dag(dag_id: str, conf: dict[str, Any] | None = None) -> dict[str, Any]:
    """`dag.test()`: the state of each task instance, and what it left in XCom."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    run = dags()[dag_id].test(run_conf=conf)
    with create_session() as session:
        states = {key(ti): str(ti.state) for ti in run.get_task_instances(session=session)}
        rows = session.scalars(XComModel.get_many(run_id=run.run_id, dag_ids=dag_id)).all()
        xcoms = {f"{key(row)}/{row.key}": XComModel.deserialize_value(row) for row in rows}
    return {"state": str(run.state), "states": states, "xcoms": xcoms}


_dags: dict[str, Any] = {}


def dags() -> dict[str, Any]:
    if not _dags:
        from airflow.dag_processing.dagbag import BundleDagBag

        folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
        bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="dags-folder")
        assert not bag.import_errors, bag.import_errors
        _dags.update(bag.dags)
    return _dags


def key(row: Any) -> str:
    return row.task_id if row.map_index < 0 else f"{row.task_id}[{row.map_index}]"


def kill_deferred(seconds: float) -> dict[str, Any]:
    """A trigger on an event loop, as a triggerer runs it: cancelled with a message, then told to kill."""
    import kinetic_orchestration as kinetic
    from airflow_kinetic.triggers.kinetic import KineticJobTrigger

    job = kinetic.command(["sleep", str(seconds)], accelerator="cpu")
    trigger = rebuilt(KineticJobTrigger(**place_of(job), cursor=[1, "", [], [0, 0, 0]], deferred=time.time()))

    async def scene() -> tuple[Any, ...]:
        task = asyncio.create_task(anext(trigger.run()))
        while job.status().value != "RUNNING":
            await asyncio.sleep(0.05)
        task.cancel("killed by a user")
        try:
            await task
        except asyncio.CancelledError as error:
            await trigger.on_kill()
            return error.args
        return ()

    message = asyncio.run(scene())
    deadline = time.monotonic() + 30
    while not job.status().final and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"message": message, "status": job.status().value}


def fire_early() -> dict[str, Any]:
    """A trigger of a job that ended long ago, on a triggerer, where the task was deferred just now."""
    import airflow_kinetic.triggers.kinetic as triggers
    import kinetic_orchestration as kinetic

    job = kinetic.command(["true"], accelerator="cpu")
    job.result()
    deferred = time.time() - triggers.SETTLED + 1.0
    trigger = rebuilt(triggers.KineticJobTrigger(**place_of(job), cursor=[1, "", [], [0, 0, 0]], deferred=deferred))
    trigger._task_instance = object()

    async def scene() -> Any:
        return await anext(trigger.run())

    event = asyncio.run(scene())
    return {"payload": event.payload, "job": job.job_id, "after": time.time() - deferred, "bound": triggers.SETTLED}


def place_of(job: Any) -> dict[str, str]:
    plan = job._job.plan()
    return {"job_id": job.job_id, "store": plan.store, "deployment": plan.deployment, "backend": plan.backend}


def rebuilt(trigger: Any) -> Any:
    """As it comes out of the database."""
    classpath, fields = trigger.serialize()
    module, _, name = classpath.rpartition(".")
    return getattr(sys.modules[module], name)(**json.loads(json.dumps(fields)))


def provider() -> dict[str, Any]:
    """What Airflow itself makes of the provider."""
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk import task

    from airflow_kinetic import kinetic_task

    found = ProvidersManager().providers.get("kinetic-orchestration")
    return {"known": found is not None, "same": task.kinetic is kinetic_task}


def declare(options: dict[str, Any], minutes: float | None = None) -> dict[str, Any]:
    """What a DAG file is told while it is parsed, and the bound that the job would have."""
    from datetime import timedelta

    from airflow_kinetic import KineticTPUOperator

    timeout = None if minutes is None else timedelta(minutes=minutes)
    try:
        task = KineticTPUOperator(task_id="t", python_callable=print, execution_timeout=timeout, **options)
    except ValueError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {"total": task._options().limits.total}


STORIES: dict[str, Callable[..., dict[str, Any]]] = {
    story.__name__: story for story in (run_dag, kill_deferred, fire_early, provider, declare)
}


def main() -> None:
    warnings.simplefilter("default")
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ["KINETIC_HOME"] = asked["home"]
        with Path(asked["log"]).open("wb") as log:
            for descriptor in (1, 2):
                os.dup2(log.fileno(), descriptor)
            try:
                answer = STORIES[asked["story"]](**asked["arguments"])
            except BaseException as error:  # the test shows it
                answer = {"error": f"{type(error).__name__}: {error}"}
                import traceback

                traceback.print_exc()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
