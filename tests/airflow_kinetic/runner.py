"""A process with Airflow in it, which runs the DAGs that it is told on standard input, one JSON object a line.

Airflow sets up logging, signals and a database for its whole process, so the tests keep it out of theirs.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import os
import re
import signal
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from names_of_airflow import VERSION

KEEPS_STATE = VERSION >= (3, 3)


def run_dag(dag_id: str, conf: dict[str, Any] | None = None) -> dict[str, Any]:
    """`dag.test()`: the state of each task instance, and what it left in XCom and as asset events."""
    from airflow.utils.session import create_session
    from names_of_airflow import AssetEvent, XComModel
    from sqlalchemy import select

    run = dags()[dag_id].test(run_conf=conf)
    with create_session() as session:
        states = {key(ti): str(ti.state) for ti in run.get_task_instances(session=session)}
        rows = session.scalars(select(XComModel).filter_by(run_id=run.run_id, dag_id=dag_id)).all()
        xcoms = {f"{key(row)}/{row.key}": XComModel.deserialize_value(row) for row in rows}
        events = [event.extra for event in session.scalars(select(AssetEvent).filter_by(source_run_id=run.run_id))]
    return {"state": str(run.state), "states": states, "xcoms": xcoms, "events": events}


_dags: dict[str, Any] = {}


def dags() -> dict[str, Any]:
    if not _dags:
        from names_of_airflow import DagBag

        folder = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
        in_bundle = {"bundle_path": folder, "bundle_name": "dags-folder"} if DagBag.__name__ == "BundleDagBag" else {}
        sys.path.append(str(folder))  # as a DAG processor does
        bag = DagBag(dag_folder=folder, **in_bundle)
        without_start = (
            VERSION < (3, 0),
            "DAG is missing the start_date parameter",
        )  # which 2.11 asks for with a schedule
        errors = {
            file: error
            for file, error in bag.import_errors.items()
            if not (without_start[0] and without_start[1] in error)
        }
        assert not errors, errors
        _dags.update(bag.dags)
    return _dags


def key(row: Any) -> str:
    return row.task_id if row.map_index < 0 else f"{row.task_id}[{row.map_index}]"


def kill_deferred(seconds: float) -> dict[str, Any]:
    """A trigger on an event loop, as a triggerer runs it: cancelled with a message, then told to kill."""
    import kinetic_orchestration as kinetic

    job = kinetic.command(["sleep", str(seconds)], accelerator="cpu")
    trigger = trigger_of(job)

    async def scene() -> tuple[Any, ...]:
        task = asyncio.create_task(anext(trigger.run()))
        while job.status().value != "RUNNING":
            await asyncio.sleep(0.05)
        task.cancel("killed by a user")
        try:
            await task
        except asyncio.CancelledError as error:
            began = time.monotonic()
            await trigger.on_kill()
            return error.args, time.monotonic() - began
        return (), 0.0

    message, seconds = asyncio.run(scene())
    deadline = time.monotonic() + 30
    while not job.status().final and time.monotonic() < deadline:
        time.sleep(0.05)
    return {"message": message, "seconds": seconds, "status": job.status().value}


def cancelled_before_3_3(seconds: float) -> dict[str, Any]:
    """A trigger that is cancelled without a message: while its task is deferred, and once a user has marked it; where a
    triggerer has the database. Elsewhere no supervisor is here to ask.
    """
    import kinetic_orchestration as kinetic

    run = dags()["waits_on_a_worker"].test()
    task = run.get_task_instances()[0]
    job = kinetic.command(["sleep", str(seconds)], accelerator="cpu")

    async def scene(trigger: Any) -> None:
        waits = asyncio.create_task(anext(trigger.run()))
        while job.status().value != "RUNNING":
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        waits.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waits
        assert waits.cancelled()

    found = []
    for state in ("deferred", "failed"):
        if VERSION < (3, 0):
            task.set_state(state)
        trigger = trigger_of(job)
        trigger.task_instance = task
        asyncio.run(scene(trigger))
        found.append(job.status().value if state == "deferred" else status_of(job.job_id))
    if not job.status().final:
        job.cancel("the test is over")
    return {"found": found}


def fire_early(ahead: float = 0.0, heard: bool = False) -> dict[str, Any]:
    """A trigger of a job that ended long ago, on a triggerer, where the task was deferred just now; by a clock that is
    so many seconds `ahead`, and by a worker whose supervisor `heard` of it at once.
    """
    import airflow_kinetic.triggers.kinetic as triggers
    import kinetic_orchestration as kinetic

    job = kinetic.command(["true"], accelerator="cpu")
    job.result()
    began = time.time()
    bound = triggers.seconds_to_settle(heard)
    deferred = began - bound + 1.0
    trigger = trigger_of(job, deferred=deferred + ahead, heard=heard)
    vars(trigger).update(task_instance=object(), _task_instance=object())  # by the release, one of them is read

    async def scene() -> Any:
        return await anext(trigger.run())

    event = asyncio.run(scene())
    return {"payload": event.payload, "job": job.job_id, "after": time.time() - deferred, "bound": bound,
            "took": time.time() - began, "kept": sorted(trigger.serialize()[1])}  # fmt: skip


def fire_while_the_scheduler_stands_still(still: int) -> dict[str, Any]:
    """The same, where Airflow's health page, which a server here stands for, tells one old heartbeat so many times, then
    the one after it, and then the next.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    beats, asked = [datetime.fromtimestamp(1.7e9 + second, UTC).isoformat() for second in (0, 5, 10)], []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            beat = beats[max(0, min(2, len(asked) - still))]
            body = json.dumps({"scheduler": {"status": "healthy", "latest_scheduler_heartbeat": beat}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        os.environ["AIRFLOW__API__BASE_URL"] = f"http://127.0.0.1:{server.server_port}/"
        fired = fire_early()
        server.shutdown()
    return {**fired, "asked": asked}


def forged_after_its_trigger(elsewhere: str) -> dict[str, Any]:
    """In a bucket, a success that becomes a preemption after the trigger saw it, before the task continues where
    another home is.
    """
    import pytest

    import kinetic_orchestration as kinetic
    from airflow_kinetic.shared.location import JobLocation
    from kinetic_orchestration.protocol import names, wire

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.support import bucket

    with pytest.MonkeyPatch.context() as patch:
        bucket.pretend(patch)
        patch.setenv("KINETIC_STORE", os.path.join(os.environ["KINETIC_HOME"], "store"))
        job = kinetic.command(["true"], accelerator="cpu")
        trigger = trigger_of(job)

        async def scene() -> Any:
            return await anext(trigger.run())

        event = asyncio.run(scene()).payload
        store, raised = job._job.store, "nothing"
        said = {"kind": wire.ABORTED, "writer": "x", "time": 0.0, "cause": wire.PREEMPTION, "host": 0}
        store.put(names.verdict(job.job_id, 1), wire.encode(said))
        patch.setenv("KINETIC_HOME", elsewhere)
        patch.setenv("KINETIC_STORE", str(JobLocation(**event["place"]).store))
        try:
            task_of(says_and_waits).execute_complete(a_try(State()), event)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
        return {"raised": raised, "second": store.read(names.intent(job.job_id, 2)) is not None}


def trigger_of(job: Any, **fields: Any) -> Any:
    """A trigger as it comes out of the database."""
    from airflow_kinetic.shared.location import JobLocation
    from airflow_kinetic.triggers.kinetic import KineticJobTrigger
    from kinetic_orchestration.plan.values import Cursor

    plan = job._job.plan()
    place = JobLocation(plan.store, plan.deployment, plan.backend)._asdict()
    given = {"place": place, "cursor": Cursor().to_json(), "deferred": time.time(), **fields}
    classpath, kept = KineticJobTrigger(job_id=job.job_id, **given).serialize()
    assert classpath == f"{KineticJobTrigger.__module__}.{KineticJobTrigger.__name__}"
    return KineticJobTrigger(**json.loads(json.dumps(kept)))


def provider() -> dict[str, Any]:
    """The data that Airflow itself derives from the provider."""
    import airflow
    import jsonschema
    from airflow.providers_manager import ProvidersManager
    from names_of_airflow import conf, task

    from airflow_kinetic import kinetic_task
    from airflow_kinetic.get_provider_info import get_provider_info

    schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)
    manager = ProvidersManager()
    manager.initialize_providers_configuration()  # as each of Airflow's commands does
    links = [name for name in manager.extra_links_class_names if name.startswith("airflow_kinetic.")]
    return {
        "known": "kinetic-orchestration" in manager.providers,
        "same": task.kinetic is kinetic_task,
        "links": links,
        "limit": conf.getint("kinetic", "xcom_limit"),
    }


def declare(options: dict[str, Any]) -> dict[str, Any]:
    """The error that a DAG file gets while it is parsed."""
    from airflow_kinetic import KineticTPUOperator, kinetic_task

    given = {"python_callable": print, **options}
    try:
        KineticTPUOperator(task_id="t", **given)
        kinetic_task(**{name: value for name, value in options.items() if name == "accelerator"})
    except ValueError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {}


def declare_each(rows: list[tuple[dict[str, Any], dict[str, str]]]) -> dict[str, Any]:
    """The error that a DAG file gets for the options of each row while it is parsed with these variables, by each way to
    declare a task."""
    from names_of_airflow import DAG

    from airflow_kinetic import KineticTPUOperator, kinetic_task

    ways: dict[str, Callable[..., Any]] = {
        "operator": lambda **given: KineticTPUOperator(task_id="t", python_callable=print, **given),
        "decorator": lambda **given: kinetic_task(**given)(counts)(1),
        "mapped": lambda **given: KineticTPUOperator.partial(task_id="t", python_callable=print, **given).expand(
            op_args=[["a"], ["b"]]
        ),
    }
    found: dict[str, list[str | None]] = {name: [] for name in ways}
    for options, environ in rows:
        os.environ.update(environ)
        for name, declared in ways.items():
            try:
                with DAG("declared", schedule=None):
                    declared(**options)
                found[name].append(None)
            except ValueError as error:
                found[name].append(f"{type(error).__name__}: {error}")
        for variable in environ:
            del os.environ[variable]
    return found


def options_by_each_way(given: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The options of a job by what a task, its templates, its decorator or its connection says. `others`: what else."""
    import dataclasses

    from names_of_airflow import DAG

    from airflow_kinetic import kinetic_task
    from airflow_kinetic.operators.request import draft_of, spec_of

    templates = {name: f"{{{{ params.{name} }}}}" for name in given}
    found: dict[str, Any] = {}
    for way, options, native in (
        ("the task", given, False), ("templates", templates, False), ("native templates", templates, True),
        ("the decorator", given, False), ("the connection", {}, False),
    ):  # fmt: skip
        with DAG("says", schedule=None, render_template_as_native_obj=native):
            if way == "the decorator":
                task = kinetic_task(**{**others, **options})(counts)(1).operator
            else:
                task = task_of(says_and_waits, op_args=["no marker"], **{**others, **options})
        task.render_template_fields({"params": given})
        extra = {"is_anonymous": True, "project": "p", **(given if way == "the connection" else {})}
        connection = {"conn_type": "google_cloud_platform", "extra": extra}
        os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"] = json.dumps(connection)
        spec = draft_of(task, {})[0].spec if way == "the connection" else spec_of(task, {})
        made = dataclasses.asdict(spec.options)
        found[way] = {name: made[name] for name in given}
    return found


def declare_mapped(
    ways: list[str],
    options: dict[str, Any] | None = None,
    mapped: dict[str, Any] | None = None,
    calls: list[dict[str, Any]] | None = None,
    default_args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The same of a task that is mapped, by each way to declare one."""
    from names_of_airflow import DAG, task, task_group

    from airflow_kinetic import KineticTPUOperator, kinetic_task

    given = options or {}

    @task
    def another() -> list[int]:
        return [1]

    def operator() -> None:
        made = KineticTPUOperator.partial(task_id="t", python_callable=counts, **given)
        made.expand_kwargs(calls) if calls else made.expand(**(mapped or {"op_args": [["a"], ["b"]]}))

    def of_another() -> None:
        KineticTPUOperator.partial(task_id="t", python_callable=counts, **given).expand(op_args=another())
        KineticTPUOperator.partial(task_id="whole", **given).expand_kwargs(another())

    def decorator() -> None:
        kinetic_task(**given)(counts).expand(file=["a", "b"])
        task.kinetic(**given)(counts).expand_kwargs(another())

    def overridden() -> None:
        kinetic_task(accelerator="cpu")(counts).override(task_id="t", **given).partial().expand(file=["a"])

    class Small(KineticTPUOperator):
        def __init__(self, *, size: str, **more: Any) -> None:
            super().__init__(python_callable=counts, accelerator=f"v5e-{size}", **more)

    def of_a_subclass() -> None:
        Small.partial(task_id="t").expand(size=["4", "8"])

    def in_a_mapped_group() -> None:
        @task_group
        def group(size: str) -> None:
            KineticTPUOperator(task_id="t", python_callable=counts, **{**given, "accelerator": size})
            kinetic_task(**{**given, "accelerator": size})(counts)(size)

        group.expand(size=["v5e-4", "v5e-8"])

    refused: list[str | None] = []
    stories = (operator, of_another, decorator, overridden, of_a_subclass, in_a_mapped_group)
    known = {story.__name__: story for story in stories}
    for way in ways:
        with DAG("declared", schedule=None, default_args=default_args or {}):
            try:
                known[way]()
                refused.append(None)
            except ValueError as error:
                refused.append(f"{type(error).__name__}: {error}")
    return {"refused": refused}


def declare_generators() -> dict[str, Any]:
    """The same of a function that yields, by each way to declare a task."""
    from names_of_airflow import DAG, task

    from airflow_kinetic import KineticTPUOperator, kinetic_task

    def yields(number: int) -> Any:
        yield number

    refused = []
    for declared in (
        lambda: KineticTPUOperator(task_id="t", python_callable=yields),
        lambda: KineticTPUOperator.partial(task_id="t", python_callable=yields).expand(op_args=[[1], [2]]),
        lambda: kinetic_task(accelerator="cpu")(yields)(1),
        lambda: task.kinetic(accelerator="cpu")(yields).expand(number=[1, 2]),
    ):
        with DAG("declared", schedule=None):
            try:
                refused.append(str(declared()))
            except TypeError as error:
                refused.append(f"{type(error).__name__}: {error}")
    return {"refused": refused}


def decisions(dag_id: str, task_id: str, exceptions: list[str]) -> dict[str, Any]:
    """The decisions of a task's retry policy on some failures."""
    import airflow_kinetic.exceptions

    policy = dags()[dag_id].get_task(task_id).retry_policy
    raised = [getattr(airflow_kinetic.exceptions, name)("a message") for name in exceptions]
    return {type(error).__name__: policy.evaluate(error, 1, 3).action.value for error in raised}


def tasks_of(dag_id: str) -> dict[str, Any]:
    return {"tasks": dags()[dag_id].task_ids}


class State:
    """A task's state store, as far as the operator knows it: what Airflow keeps over tries and clears, until the DAG run is
    deleted. An Airflow without one has no such object in a task's context: then this shows what is in the jobs' store.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self.requests = 0
        self.began = datetime.now(UTC)

    @property
    def kept(self) -> dict[str, Any]:
        """What is kept, by its key."""
        if KEEPS_STATE:
            return self._kept
        found = sorted(Path(os.environ["KINETIC_HOME"]).rglob("tasks/*.json"), key=lambda file: file.stat().st_mtime)
        return {"kinetic": json.loads(found[-1].read_text())} if found else {}

    @kept.setter
    def kept(self, kept: dict[str, Any]) -> None:
        self._kept = kept

    def get(self, key: str, default: Any = None) -> Any:
        self.requests += 1
        return self._kept.get(key, default)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        assert retention is NEVER_EXPIRE
        self.requests += 1
        self._kept[key] = json.loads(json.dumps(value))


def a_try(state: State, *, number: int = 1, max_tries: int = 1, clears: int = 0) -> dict[str, Any]:
    """The part of a task's context that the operator reads. The whole of it takes a scheduler: see the tests in
    `live`."""
    task = SimpleNamespace(
        dag_id="a_dag", task_id="a_task", run_id="a_run", map_index=-1, max_tries=max_tries, try_number=number,
        xcom_push=lambda **_: None,
    )  # fmt: skip
    run = SimpleNamespace(clear_number=clears, start_date=state.began + timedelta(days=clears))
    return {"ti": task, "dag_run": run, **({"task_state_store": state} if KEEPS_STATE else {})}


def task_of(
    function: Any, *, accelerator: str = "cpu", retries: int = 1, deferrable: bool = False, **options: Any
) -> Any:
    """The same task anew, as each try makes it."""
    from airflow_kinetic import KineticTPUOperator

    return KineticTPUOperator(
        task_id="a_task",
        python_callable=function,
        accelerator=accelerator,
        retries=retries,
        deferrable=deferrable,
        **options,
    )


def says_and_waits(marker: str) -> str:
    """A program that waits only when it runs for the first time."""
    path = Path(marker)
    if path.exists():
        return "again"
    path.touch()
    time.sleep(60)
    return "first"


def as_main_thread() -> None:
    """Airflow 2 looks for the caller of an operator in what its main thread alone has."""
    if VERSION < (3, 0):
        from airflow.models.baseoperator import ExecutorSafeguard

        ExecutorSafeguard._sentinel.callers = {}


def begun(task: Any, context: dict[str, Any], marker: str) -> Any:
    """A future of the task's end, once its program runs. As on a worker, whose main thread it holds."""
    done = ThreadPoolExecutor(1, initializer=as_main_thread).submit(task.execute, context)
    deadline = time.monotonic() + 60
    while not Path(marker).exists() and not done.done() and time.monotonic() < deadline:
        time.sleep(0.05)
    return done


def status_of(job_id: str) -> str:
    import kinetic_orchestration as kinetic

    job = kinetic.attach(job_id)
    deadline = time.monotonic() + 60
    while not job.status().final and time.monotonic() < deadline:
        time.sleep(0.05)
    return job.status().value


def ends(job_id: str) -> dict[str, Any]:
    return {"status": status_of(job_id)}


def killed_and_retried(marker: str) -> dict[str, Any]:
    state = State()
    task = task_of(says_and_waits, op_args=[marker])
    done = begun(task, a_try(state), marker)
    task.on_kill()
    error = done.exception(60)
    first = state.kept["kinetic"]
    # Somebody edits the DAG file meanwhile: the number of retries is another one.
    value = task_of(says_and_waits, retries=5, op_args=[marker]).execute(a_try(state, number=2))
    return {
        "raised": type(error).__name__, "value": value, "first": first, "then": state.kept["kinetic"],
        "status": status_of(first["job_id"]),
    }  # fmt: skip


def cleared_while_nobody_watched(marker: str) -> dict[str, Any]:
    state = State()
    done = begun(task_of(says_and_waits, op_args=[marker]), a_try(state), marker)
    first = state.kept["kinetic"]
    value = task_of(says_and_waits, op_args=[marker]).execute(a_try(state, number=2, max_tries=2))
    error = done.exception(60)
    return {
        "raised": type(error).__name__, "value": value, "first": first, "then": state.kept["kinetic"],
        "status": status_of(first["job_id"]),
    }  # fmt: skip


def cancelled_by_a_person(marker: str) -> dict[str, Any]:
    import kinetic_orchestration as kinetic

    state = State()
    done = begun(task_of(says_and_waits, op_args=[marker]), a_try(state), marker)
    kinetic.attach(state.kept["kinetic"]["job_id"]).cancel("enough")
    error = done.exception(60)
    return {"raised": type(error).__name__, "text": str(error)}


def found_again(marker: str) -> dict[str, Any]:
    """A worker that died without a word, and the next try."""
    from airflow_kinetic.shared.tries import ownership

    state = State()
    left = begun(task_of(says_and_waits, op_args=[marker]), a_try(state), marker)
    first = state.kept["kinetic"]["job_id"]
    retried = task_of(says_and_waits, op_args=[marker])
    done = begun(retried, a_try(state, number=2), marker)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (
        job_of(retried) is None or not ownership.is_owned_by(job_of(retried), retried.own_try().token)
    ):
        time.sleep(0.05)
    zombie = task_of(says_and_waits, op_args=[marker])
    zombie.own_try().job = job_of(retried)
    zombie.on_kill()  # of the worker that was replaced; it returns when all is done that it does
    alive = not is_cancelled(job_of(retried))
    then = state.kept["kinetic"]["job_id"]
    retried.on_kill()
    left.exception(60)
    return {"first": first, "then": then, "alive": alive, "raised": type(done.exception(60)).__name__}


def job_of(task: Any) -> Any:
    return task._try and task._try.job


def is_cancelled(job: Any) -> bool:
    from kinetic_orchestration.protocol import names

    return job.store.read(names.cancel(job.job_id)) is not None


def killed_falsely(seconds: float) -> dict[str, Any]:
    """A triggerer hung, another one took its trigger, and then the first is told that it was killed."""
    import kinetic_orchestration as kinetic

    job = kinetic.command(["sleep", str(seconds)], accelerator="cpu")
    stalled, keeper = trigger_of(job), trigger_of(job)

    async def scene() -> bool:
        waiting = asyncio.create_task(anext(stalled.run()))
        while stalled._job is None:
            await asyncio.sleep(0.05)
        taken = asyncio.create_task(anext(keeper.run()))
        while keeper._job is None:
            await asyncio.sleep(0.05)
        for task, trigger in ((waiting, stalled), (taken, keeper)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if trigger is stalled:
                await stalled.on_kill()
                lived = not is_cancelled(job._job)
        await keeper.on_kill()
        return lived

    return {"lived": asyncio.run(scene()), "status": status_of(job.job_id)}


def counts(file: str) -> int:
    """Count the calls, in a file."""
    path = Path(file)
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return len(path.read_text())


def cleared_with_fewer_retries(file: str) -> dict[str, Any]:
    """A task that may be tried three times, then twice, and is; then once, and is cleared: three tries all the time."""
    state = State()
    tries = ((2, {"number": 1}), (1, {"number": 2}), (0, {"number": 3, "clears": 1}))
    return {
        "values": [
            task_of(counts, op_args=[file], retries=retries).execute(a_try(state, max_tries=2, **given))
            for retries, given in tries
        ]
    }


def cleared_after_its_success(file: str, deferrable: bool) -> dict[str, Any]:
    """A task whose job succeeded and which Airflow had failed: cleared with each way, and a retry and a clear later."""
    from names_of_airflow import TaskDeferred

    state, values, deferred = State(), [], 0
    given = (("rerun", 1, 1, 0), ("adopt", 2, 2, 1), ("adopt", 3, 2, 1), ("adopt", 4, 4, 2), ("rerun", 5, 5, 3))
    for way, number, max_tries, clears in given:
        task = task_of(counts, op_args=[file], on_clear=way, deferrable=deferrable)
        context = a_try(state, number=number, max_tries=max_tries, clears=clears)
        try:
            values.append(task.execute(context))
        except TaskDeferred as waits:
            deferred += 1
            event = asyncio.run(asyncio.wait_for(anext(waits.trigger.run()), 60))
            values.append(task.execute_complete(context, json.loads(json.dumps(event.payload))))
    return {"values": values, "deferred": deferred}


def submitted_alone(marker: str) -> dict[str, Any]:
    """A task that does not wait: what it gives, and whether its job lives on when the task is over and killed."""
    import kinetic_orchestration as kinetic

    found = {}
    for deferrable in (False, True):
        state, name = State(), f"{marker}-{deferrable}"
        context = a_try(state)
        context["ti"].run_id = name
        task = task_of(says_and_waits, op_args=[name], wait=False)
        task.deferrable = deferrable
        value = task.execute(context)
        job = kinetic.attach(value)
        found[str(deferrable)] = value == state.kept["kinetic"]["job_id"] and not job.status().final
        job.cancel("the test is over")
    return found


def deleted_and_run_again(file: str) -> dict[str, Any]:
    """A try and a retry; then a DAG run of the same name, whose tasks have no state yet."""
    first, later = State(), State()
    tries = ((first, 1), (first, 2), (later, 1))
    values = [task_of(counts, op_args=[file]).execute(a_try(state, number=n)) for state, n in tries]
    return {"values": values, "requests": [first.requests, later.requests]}


class Gate:
    """An object whose packaging waits until the file `open` exists."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        folder = Path(self.folder)
        if not (folder / "waits").exists():
            (folder / "waits").touch()
            deadline = time.monotonic() + 120
            while not (folder / "open").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        return (str, ("past the gate",))


def hung_in_the_upload(marker: str, folder: str) -> dict[str, Any]:
    """A worker stands still while it packages; the next try makes the job; then the first goes on."""
    from airflow_kinetic.shared.tries import ownership

    def behind_the_gate() -> str:
        str(gate)
        return says_and_waits(marker)

    gate, kept, launched = Gate(folder), Path(folder, "kept"), Path(folder, "launched")
    child = os.fork()  # nothing else is packaged in a process while one does
    if not child:
        stalled = task_of(behind_the_gate)
        left = ThreadPoolExecutor(1).submit(stalled.execute, a_try(OnDisk(str(kept))))
        while job_of(stalled) is None and not left.done():
            time.sleep(0.02)
        part = launched.with_name("launched.part")
        part.write_text(job_of(stalled).job_id if job_of(stalled) else "")
        part.rename(launched)
        left.exception(60)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not (Path(folder, "waits").exists() and kept.exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    state = State()
    state.kept = json.loads(kept.read_text())
    second = task_of(behind_the_gate)
    done = begun(second, a_try(state, number=2), marker)
    alone = not launched.exists()
    Path(folder, "open").touch()
    while not launched.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    is_kept = ownership.is_owned_by(job_of(second), second.own_try().token)
    second.on_kill()
    done.exception(60)
    os.waitpid(child, 0)
    return {"alone": alone, "same": launched.read_text() == job_of(second).job_id, "kept_by_the_second": is_kept}


class Refusing(State):
    """One whose server refuses to keep anything, once somebody packages."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder, self.refused = Path(folder), {}

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / "waits").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        (self.folder / "open").touch()
        self.refused = value
        raise OSError("the server refused")


def not_kept(folder: str) -> dict[str, Any]:
    """A task whose server does not keep which job it means: what it raises, and which jobs there are."""
    import kinetic_orchestration as kinetic

    gate, state, raised = Gate(folder), Refusing(folder), "nothing"

    def behind_the_gate() -> str:
        return str(gate)

    try:
        task_of(behind_the_gate).execute(a_try(state))
    except OSError as error:
        raised = str(error)
    packaged = Path(folder, "waits").exists()
    return {"raised": raised, "meant": state.refused["job_id"], "packaged": packaged, "jobs": len(kinetic.list_jobs())}


def ends_soon_or_outlasts(file: str, marker: str) -> dict[str, Any]:
    """A deferrable task that would wait a minute for its job, which ends at once; and one that waits no time."""
    from names_of_airflow import TaskDeferred

    os.environ["AIRFLOW__KINETIC__DEFER_AFTER"] = "60"
    quick, state = task_of(counts, op_args=[file]), State()
    quick.deferrable = True
    found: dict[str, Any] = {"value": quick.execute(a_try(State()))}
    os.environ["AIRFLOW__KINETIC__DEFER_AFTER"] = "0.2"
    long = task_of(says_and_waits, op_args=[marker])
    long.deferrable = True
    try:
        long.execute(a_try(state))
    except TaskDeferred as deferred:
        found["deferred"] = deferred.trigger.job_id == state.kept["kinetic"]["job_id"]
    long.on_kill()
    return {**found, "status": status_of(state.kept["kinetic"]["job_id"])}


def loads_of_a_try(marker: str) -> dict[str, Any]:
    """The number of times that a try loads its settings: one that waits, and both parts of one that is deferred."""
    from names_of_airflow import TaskDeferred

    from kinetic_orchestration import attach
    from kinetic_orchestration.plan.configuration import settings

    loads, load = list[str](), settings.load

    def counted(*args: Any, **given: Any) -> Any:
        loads.append("load")
        return load(*args, **given)

    def taken() -> int:
        number = len(loads)
        loads.clear()
        return number

    os.environ["AIRFLOW__KINETIC__DEFER_AFTER"] = "0"
    settings.load = counted
    try:
        task_of(len, op_args=["abc"]).execute(a_try(State()))
        found = {"waits": taken()}
        state, deferred = State(), task_of(says_and_waits, op_args=[marker], deferrable=True)
        try:
            deferred.execute(a_try(state))
        except TaskDeferred as left:
            trigger = left.trigger
        found["is deferred"] = taken()
        job_id = state.kept["kinetic"]["job_id"]
        attach(job_id).cancel("enough")
        taken()
        event = {"how": "ended", "place": trigger.place, "job_id": job_id, "metrics": {}}
        with contextlib.suppress(Exception):  # as it was cancelled
            resumed = task_of(says_and_waits, op_args=[marker], deferrable=True)
            resumed.execute_complete(a_try(state), {**event, "spec_digest": trigger.cursor[-2]})
        found["is resumed"] = taken()
    finally:
        settings.load = load
    return found


def waits_without_triggers() -> dict[str, Any]:
    """A deferrable task, and a deferrable sensor of its job, in an Airflow that has its triggers elsewhere."""
    from airflow_kinetic import KineticJobSensor

    name, state = "airflow.triggers.base", State()
    kept = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            task = task_of(len, op_args=["abc"])
            task.deferrable = True
            value = task.execute(a_try(state))
            job_id = state.kept["kinetic"]["job_id"]
            sensor = KineticJobSensor(task_id="sees", job_id=job_id, deferrable=True, poke_interval=0.1)
            seen = sensor.execute(a_try(State()))
    finally:
        del sys.modules[name]
        if kept is not None:
            sys.modules[name] = kept
    told = [str(each.message) for each in caught if "Without it" in str(each.message)]
    return {"value": value, "seen": seen, "told": told}


def fields_of_a_run() -> dict[str, Any]:
    """The rendered fields of a task, one of which was set after its creation, and the fields that a page then shows."""
    task = task_of(says_and_waits, op_args=["{{ day }}"], labels={})
    task.zone = "{{ zone }}"
    task.render_template_fields({"day": "monday", "zone": "us-west4-a"})
    shown = {name: getattr(task, name) for name in task.template_fields}
    return {"shown": shown, "all": list(type(task).template_fields)}


def killed_before_it_opened() -> dict[str, Any]:
    """A worker or a triggerer left its token; the trigger of today has not reached the job yet when it is killed."""
    import kinetic_orchestration as kinetic
    from airflow_kinetic.shared.tries import ownership

    job = kinetic.command(["sleep", "60"], accelerator="cpu")
    replaced = trigger_of(job)
    time.sleep(0.1)
    ownership.take_ownership(job._job.store, job.job_id, ownership.new_token())
    time.sleep(0.1)
    trigger = trigger_of(job)
    asyncio.run(replaced.on_kill())
    lived = not is_cancelled(job._job)
    asyncio.run(trigger.on_kill())
    return {"lived": lived, "status": status_of(job.job_id)}


def cancelled_late(late: str, seconds: float, again: bool = False) -> dict[str, Any]:
    """A trigger is killed while its store is not there for a moment. `again`: and is cancelled again meanwhile, as a
    triggerer does each second until the trigger has ended.
    """
    import kinetic_orchestration as kinetic

    job = kinetic.command(["sleep", "60"], accelerator="cpu")
    trigger = trigger_of(job)
    path, there = Path(late), trigger.place["store"]
    path.write_text("no folder")
    trigger.place = {**trigger.place, "store": late}

    async def scene() -> None:
        killing = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(seconds)
        if again:
            killing.cancel("killed by a user")
            with contextlib.suppress(asyncio.CancelledError):
                await killing
        path.unlink()
        path.symlink_to(there)
        while not is_cancelled(job._job) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if not again:
            await killing

    deadline = time.monotonic() + 30
    asyncio.run(scene())
    return {"status": status_of(job.job_id)}


def speaks_and_waits(marker: str) -> None:
    print("said before", flush=True)
    Path(marker).touch()
    time.sleep(60)


def deferred_again(marker: str) -> dict[str, Any]:
    """The deferral of a task whose job exists already, and has printed something."""
    from names_of_airflow import TaskDeferred

    import kinetic_orchestration as kinetic
    from kinetic_orchestration.jobs.following.follower import Follower

    state = State()
    left = begun(task_of(speaks_and_waits, op_args=[marker]), a_try(state), marker)
    job = kinetic.attach(state.kept["kinetic"]["job_id"])._job
    deadline, said = time.monotonic() + 30, Follower(job)
    while not any(offset for _, offset in said.cursor.logs) and time.monotonic() < deadline:
        said.step(str)
        time.sleep(0.05)
    again = task_of(speaks_and_waits, op_args=[marker])
    again.deferrable = True
    try:
        again.execute(a_try(state, number=2))
    except TaskDeferred as deferred:
        fields = deferred.trigger.serialize()[1]
    again.on_kill()
    left.exception(60)
    return {"same": fields["job_id"] == job.job_id, "said": said.cursor.logs, "begins": fields["cursor"]}


def out_of_time_after_an_edit(marker: str) -> dict[str, Any]:
    """A trigger is out of time whose task has no `execution_timeout` any more when it goes on."""
    from names_of_airflow import TaskDeferred

    state, raised = State(), "nothing"
    task = task_of(says_and_waits, op_args=[marker], execution_timeout=timedelta(seconds=7))
    task.deferrable = True
    try:
        task.execute(a_try(state))
    except TaskDeferred as deferred:
        fields = {**deferred.trigger.serialize()[1], "deadline": time.time() + 1.0}
        trigger = type(deferred.trigger)(**json.loads(json.dumps(fields)))

    async def scene() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), 60)

    try:
        task_of(says_and_waits).execute_complete(a_try(state), asyncio.run(scene()).payload)
    except BaseException as error:  # Airflow's timeout is none of its exceptions
        raised = f"{type(error).__name__}: {error}"
    return {"raised": raised, "status": status_of(state.kept["kinetic"]["job_id"])}


def out_of_time_before_it_opened(marker: str) -> dict[str, Any]:
    """A trigger that no triggerer took before its task was out of time."""
    from names_of_airflow import TaskDeferred

    state, told = State(), {"raised": "nothing"}
    task = task_of(says_and_waits, op_args=[marker])
    task.deferrable = True
    try:
        task.execute(a_try(state))
    except TaskDeferred as deferred:
        fields = {**deferred.trigger.serialize()[1], "deadline": time.time() - 1.0}
        trigger = type(deferred.trigger)(**json.loads(json.dumps(fields)))

    async def scene() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), 60)

    event = asyncio.run(scene()).payload
    told |= {"how": event["how"], "digest": event["spec_digest"], "of_the_job": job_of(task).spec_digest}
    try:
        task_of(says_and_waits).execute_complete(a_try(state), event)
    except BaseException as error:  # Airflow's timeout is none of its exceptions
        told["raised"] = type(error).__name__
    return {**told, "status": status_of(state.kept["kinetic"]["job_id"])}


def counts_to_its_end() -> None:
    """A program that says a line all the time, and one when it is asked to end."""

    def end(*_: Any) -> None:
        print("last words", flush=True)
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    for number in range(600):
        print(f"line {number}", flush=True)
        time.sleep(0.1)


def last_lines_of_a_timeout() -> dict[str, Any]:
    """A deferred task that is out of time while its program speaks."""
    from names_of_airflow import TaskDeferred

    state, raised = State(), "nothing"
    task = task_of(counts_to_its_end)
    task.deferrable = True
    try:
        task.execute(a_try(state))
    except TaskDeferred as deferred:
        fields = {**deferred.trigger.serialize()[1], "deadline": time.time() + 4.0}
        trigger = type(deferred.trigger)(**json.loads(json.dumps(fields)))

    async def scene() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), 60)

    event = json.loads(json.dumps(asyncio.run(scene()).payload))
    time.sleep(1.0)  # until a worker has it
    try:
        task_of(counts_to_its_end).execute_complete(a_try(state), event)
    except BaseException as error:  # Airflow's timeout is none of its exceptions
        raised = type(error).__name__
    return {"raised": raised, "status": status_of(state.kept["kinetic"]["job_id"])}


def told_of_clears(marker: str) -> dict[str, Any]:
    """A retry that finds its job alive, after some task of the DAG run was cleared, and the DAG file edited."""
    state = State()
    left = begun(task_of(says_and_waits, op_args=[marker]), a_try(state), marker)
    retried = task_of(says_and_waits, op_args=[marker], accelerator="cpu:2")
    done = begun(retried, a_try(state, number=2, clears=1), marker)
    deadline = time.monotonic() + 30
    while job_of(retried) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    retried.on_kill()
    for future in (left, done):
        future.exception(60)
    return {"same": job_of(retried).job_id == state.kept["kinetic"]["job_id"]}


def refused() -> dict[str, Any]:
    """A task that needs hardware which is not there."""
    state, raised = State(), "nothing"
    try:
        task_of(counts, accelerator="v5e-1", op_args=["nowhere"]).execute(a_try(state))
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    return {"raised": raised, "kept": state.kept, "requests": state.requests}


def out_of_budget() -> dict[str, Any]:
    """A task of a DAG that has spent its budget, on a backend that is charged for."""
    from kinetic_orchestration.platforms.local.backend import LocalBackend

    state, raised = State(), "nothing"
    os.environ["KINETIC_BUDGETS"] = "a_dag=0USD"
    LocalBackend.charges = True
    try:
        task_of(counts, op_args=["nowhere"], retries=3).execute(a_try(state))
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    finally:
        LocalBackend.charges = False
    return {"raised": raised, "ran": Path("nowhere").exists()}


def refuses_another(marker: str) -> dict[str, Any]:
    """A retry with another argument, which finds the job of the try before alive and will not have it."""
    state, raised = State(), "nothing"
    left = begun(task_of(says_and_waits, op_args=[marker]), a_try(state), marker)
    try:
        retried = task_of(says_and_waits, op_args=[f"{marker}-2"], on_conflict="error", retries=3)
        retried.execute(a_try(state, number=2, max_tries=1))
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    left.exception(60)
    return {"raised": raised, "status": status_of(state.kept["kinetic"]["job_id"])}


class OnDisk(State):
    """A state on disk, for a process that is killed."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = Path(file)

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        super().set(key, value, retention=retention)
        part = self._file.with_name(f"{self._file.name}.part")
        part.write_text(json.dumps(self.kept))
        part.rename(self._file)


def killed_at(moments: list[Any], folder: str) -> dict[str, Any]:
    """A task in a process of its own gets SIGTERM, so many seconds after its beginning, or while its main thread has a
    certain lock. Airflow's own handler calls `on_kill`, and its supervisor sends SIGKILL five seconds later.
    """
    found = []
    another = a_try(State())
    another["ti"].run_id = "another_run"
    task_of(counts, op_args=[f"{folder}/warm"]).execute(another)  # all imports, once
    for number, moment in enumerate(moments):
        kept, marker = Path(folder, f"kept-{number}"), Path(folder, f"begun-{number}")
        child = os.fork()
        if not child:
            be_killed(moment, str(kept), str(marker))
        while not Path(f"{kept}.ready").exists():
            time.sleep(0.005)
        began = ended = time.monotonic()
        if not isinstance(moment, str):
            time.sleep(moment)
            began = time.monotonic()
            os.kill(child, signal.SIGTERM)
        hung = True
        while hung and time.monotonic() < began + 80:
            hung = os.waitpid(child, os.WNOHANG)[0] == 0
            ended = time.monotonic()
            time.sleep(0.02)
        if hung:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        status = "never made"
        if kept.exists() and json.loads(kept.read_text())["kinetic"]["job_id"]:
            import kinetic_orchestration as kinetic
            from kinetic_orchestration.errors import JobNotFound

            try:
                job = kinetic.attach(json.loads(kept.read_text())["kinetic"]["job_id"])
            except JobNotFound:
                pass
            else:
                if hung:
                    job.cancel("the test is over")
                status = status_of(job.job_id)
        raised = Path(f"{kept}.raised").read_text() if not hung else "nothing"
        found.append([moment, "hung" if hung else status, raised, round(ended - began, 2)])
    return {"found": found}


def be_killed(moment: Any, kept: str, marker: str) -> None:
    """Do the work of a task's process between its fork and its end."""
    raised = "nothing"
    try:
        task = task_of(says_and_waits, op_args=[marker])
        state = OnDisk(kept)
        signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
        Path(f"{kept}.ready").touch()
        if isinstance(moment, str):
            sys.settrace(while_locked(moment))
        task.execute(a_try(state))
    except BaseException as error:
        raised = f"{type(error).__name__}: {error}"
    finally:
        sys.settrace(None)
        Path(f"{kept}.raised").write_text(raised)
        os._exit(0)


def while_locked(name: str) -> Any:
    """A trace function that sends this process SIGTERM when the main thread first has that lock."""
    import structlog._output

    from kinetic_orchestration.jobs.watching.watchers import base, registry

    sent: list[bool] = []

    def is_locked(frame: Any) -> bool:
        wanted = {"the log's": structlog._output, "all watchers'": registry, "one watcher's": base}[name]
        if frame.f_globals.get("__name__") != wanted.__name__:
            return False
        lock = registry._watchers_lock
        if name != "all watchers'":
            lock = getattr(frame.f_locals.get("self"), "_lock", None)
        return lock is not None and lock.locked()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if not sent and event == "line" and is_locked(frame):
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return trace

    return trace


def reached_late(late: str, seconds: float) -> dict[str, Any]:
    """A trigger whose store is not there at first, as a share that is mounted a moment later; with 0: never."""
    import kinetic_orchestration as kinetic

    job = kinetic.command(["sleep", "60"], accelerator="cpu")
    trigger = trigger_of(job)
    path, there = Path(late), trigger.place["store"]
    path.write_text("no folder")
    trigger.place = {**trigger.place, "store": late}

    async def scene() -> Any:
        waiting = asyncio.create_task(anext(trigger.run()))
        began = time.monotonic()
        while not waiting.done() and trigger._job is None:
            if seconds and path.is_file() and time.monotonic() - began > seconds:
                path.unlink()
                path.symlink_to(there)
            await asyncio.sleep(0.05)
        took = time.monotonic() - began
        event = waiting.result() if waiting.done() else None
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return took, event

    took, event = asyncio.run(scene())
    job.cancel("the test is over")
    return {"seconds": took, "event": None if event is None else event.payload}


def looked_up_late(seconds: float, bound: float) -> dict[str, Any]:
    """A trigger whose connection is looked up for so long, where one try to reach a job may take `bound`."""
    import kinetic_orchestration as kinetic
    from airflow_kinetic.triggers import kinetic as triggers

    os.environ.pop("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", None)
    job = kinetic.command(["sleep", "60"], accelerator="v5e-1")
    trigger = trigger_of(job)
    os.environ["AIRFLOW__SECRETS__BACKEND"] = "slow_secrets.SlowSecrets"
    os.environ["AIRFLOW__SECRETS__BACKEND_KWARGS"] = json.dumps({"seconds": seconds})
    before, triggers.OPEN_SECONDS = triggers.OPEN_SECONDS, bound

    async def scene() -> Any:
        waiting = asyncio.create_task(anext(trigger.run()))
        while not waiting.done() and trigger._job is None:
            await asyncio.sleep(0.05)
        event = waiting.result() if waiting.done() else None
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return event

    began = time.monotonic()
    try:
        event = asyncio.run(scene())
    finally:
        triggers.OPEN_SECONDS = before
    took = time.monotonic() - began
    job.cancel("the test is over")
    return {"seconds": took, "event": None if event is None else event.payload}


def sensor_out_of_time(seconds: float) -> dict[str, Any]:
    """A deferred sensor of a job that takes longer than the sensor may."""
    from names_of_airflow import TaskDeferred

    import kinetic_orchestration as kinetic
    from airflow_kinetic import KineticJobSensor

    job = kinetic.command(["sleep", "60"], accelerator="cpu")
    give_up = time.monotonic() + 60
    while job.status().value != "RUNNING" and time.monotonic() < give_up:
        time.sleep(0.05)
    told = {"raised": "nothing"}
    sensor = KineticJobSensor(
        task_id="a_sensor", job_id=job.job_id, deferrable=True, execution_timeout=timedelta(seconds=seconds)
    )
    try:
        sensor.execute({})
    except TaskDeferred as deferred:
        trigger = type(deferred.trigger)(**json.loads(json.dumps(deferred.trigger.serialize()[1])))
        began = time.monotonic()

        async def scene() -> Any:
            return await asyncio.wait_for(anext(trigger.run()), 30)

        event = asyncio.run(scene())
        told["waited"] = time.monotonic() - began
        try:
            sensor.execute_complete({}, event.payload)
        except BaseException as error:  # Airflow's timeout is none of its exceptions
            told["raised"] = f"{type(error).__name__}: {error}"
    told["status"] = job.status().value
    job.cancel("the test is over")
    return told


def poked_while_its_store_is_away(project: str) -> dict[str, Any]:
    """A sensor that waits on a worker, of a job in the cloud, whose bucket does not answer for a while."""
    import kinetic_orchestration as kinetic
    from airflow_kinetic import KineticJobSensor
    from kinetic_orchestration.platforms.google.storage import requests
    from kinetic_orchestration.testing import Emulator

    done: list[Any] = []
    with Emulator(zones=("us-west4-a",), hosts=False) as cloud, requests.impatient(0.5):
        os.environ.update(cloud.environ(project=project))
        conn = {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": project}}
        os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"] = json.dumps(conn)
        cloud.stockout("us-west4-a", "wait")  # a cancel waits for the word of hosts, and here would be none to say it
        job = kinetic.command(["true"], accelerator="v5e-1", requirements=[])
        sensor = KineticJobSensor(task_id="a_sensor", job_id=job.job_id, deferrable=False)
        done.append(bool(sensor.poke({})))
        cloud.storage.fail("*", 503, times=None)
        done.append(bool(sensor.poke({})))
        cloud.storage.heal()
        job.cancel("the test is over")
        try:
            deadline = time.monotonic() + 60
            while not sensor.poke({}) and time.monotonic() < deadline:
                time.sleep(0.2)
        except Exception as error:
            done.append(type(error).__name__)
        cloud.wait_until_empty(150)
    return {"done": done}


def rendered_zones(zones: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The zones of a task once its templates are rendered."""
    from airflow_kinetic.operators.request import spec_of

    task = task_of(says_and_waits, op_args=["no marker"], zones=zones)
    task.render_template_fields({"params": params})
    return {"zones": spec_of(task, {}).options.cloud.zones}


def refused_elsewhere(accelerators: list[str]) -> dict[str, Any]:
    """Gather what a task says of each of them, where the environment means Google Cloud."""
    told = {}
    for name in accelerators:
        try:
            task_of(says_and_waits, op_args=["no marker"], accelerator=name).execute(a_try(State()))
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    return {"told": told}


def images_of(words: list[str], accelerator: str) -> dict[str, Any]:
    """The image of the plan that a task with each of them leads to."""
    from airflow_kinetic.operators.request import spec_of
    from kinetic_orchestration.jobs.request import settings_of
    from kinetic_orchestration.plan.planner import make_plan

    given = {"op_args": ["no marker"], "accelerator": accelerator}
    specs = [spec_of(task_of(says_and_waits, container_image=word, **given), {}) for word in words]
    return {"images": [make_plan(spec, settings_of(spec)).image for spec in specs]}


def clusters_of(tasks: list[dict[str, Any]], extra: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """The backend and the places of each task's plan and what a trigger is told, by a connection with this extra.

    `on_cluster` of a task: options of its `cloud=Kubernetes(…)`.
    """
    from airflow_kinetic.hooks.kinetic import KineticHook
    from airflow_kinetic.operators.request import draft_of
    from kinetic_orchestration import Kubernetes

    os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"] = json.dumps(
        {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, **extra}}
    )
    found = []
    for options in tasks:
        on_cluster = options.pop("on_cluster", None)
        cloud = None if on_cluster is None else Kubernetes(**on_cluster)
        task = task_of(says_and_waits, op_args=["no marker"], accelerator="l4", cloud=cloud, **options)
        task.render_template_fields({"params": params})
        asked, location = draft_of(task, {})
        place = [location.backend, location.project, location.cluster, location.namespace]
        found.append({"backend": asked.plan.backend, "places": list(asked.plan.zones), "told": place})
    hook = KineticHook(backend="gke", namespace="of-the-hook")
    return {"found": found, "hook": hook._location().settings()}


def choices_of(
    options: dict[str, Any], params: dict[str, Any], native: bool = False, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """How a task may get its hosts, once its templates are rendered; with `extra`, by a connection of that.

    `chosen` of its options: as a `Choice` each, as a DAG file may write them.
    """
    from names_of_airflow import DAG

    from airflow_kinetic.operators.request import draft_of, spec_of
    from kinetic_orchestration import Choice
    from kinetic_orchestration.plan.declare.choices import ways

    if chosen := options.pop("chosen", None):
        options["accelerator"] = [Choice(**one) for one in chosen]
    if extra is not None:
        os.environ["AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT"] = json.dumps(
            {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, **extra}}
        )
    with DAG("renders", schedule=None, render_template_as_native_obj=native):
        task = task_of(says_and_waits, op_args=["no marker"], **options)
    task.render_template_fields({"params": params})
    try:
        spec = spec_of(task, {})
        found = spec.options
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            plan = None if extra is None else draft_of(task, {})[0].plan
    except ValueError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    told = [[one.accelerator, *(one.capacity or ()), *(one.regions or ())] for one in ways(found)]
    candidates = [] if plan is None else list(plan.choices) or [plan]
    planned = [[one.slice.name, one.spot, list(one.zones)] for one in candidates]
    return {
        "ways": told,
        "by": found.by,
        "meant": list(spec.meant),
        "planned": planned,
        "planned_by": plan and plan.by,
        "kept": plan and plan.keep,
        "raced": plan and plan.race,
        "labels": plan and dict(plan.labels),
        "user": plan and plan.turn.get("user"),
        "warned": [str(one.message) for one in warned if one.category is UserWarning],
    }


def stored_with_its_dag(chosen: list[dict[str, Any]]) -> dict[str, Any]:
    """The accelerators of a task and of a mapped one, after their DAG went through Airflow's database."""
    from names_of_airflow import DAG, DagSerialization

    from airflow_kinetic import KineticTPUOperator
    from kinetic_orchestration import Choice

    choices = [Choice(**one) for one in chosen]
    with DAG("stored", schedule=None) as dag:
        KineticTPUOperator(task_id="one", python_callable=counts, accelerator=choices, capacity=["spot", "on-demand"])
        KineticTPUOperator.partial(task_id="mapped", python_callable=counts, by="price").expand(
            accelerator=[choices, "v5e-8", choices[0]]
        )
    read = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    one, mapped = read.task_dict["one"], read.task_dict["mapped"]
    return {
        "one": [one.accelerator, one.capacity],
        "mapped": mapped.expand_input.value["accelerator"],
        "by": mapped.partial_kwargs["by"],
    }


def rendered_arguments(options: dict[str, Any], params: dict[str, Any], native: bool = False) -> dict[str, Any]:
    from datetime import datetime

    from names_of_airflow import DAG

    from airflow_kinetic.operators.request import spec_of

    with DAG("renders", schedule=None, render_template_as_native_obj=native):
        task = task_of(says_and_waits, **options)
    task.render_template_fields({"params": params, "macros": SimpleNamespace(datetime=datetime)})
    try:
        spec_of(task, {})
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {}


def no_retry() -> Any:
    """A policy for which the failures of a store are final."""
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

    from airflow_kinetic.exceptions import StoreError

    return ExceptionRetryPolicy(rules=[RetryRule(exception=StoreError, action=RetryAction.FAIL)])


def told_of_an_unreachable_store(elsewhere: str, marker: str, *, fails_at_once: bool = False) -> dict[str, Any]:
    """A triggerer without the worker's folder; and what becomes of the task, and of its job after its last try."""
    state = State()
    begun(task_of(says_and_waits, op_args=[marker]), a_try(state), marker)
    kept = state.kept["kinetic"]
    import kinetic_orchestration as kinetic

    job = kinetic.attach(kept["job_id"])
    deadline = time.monotonic() + 60
    while job.status() is not kinetic.JobStatus.RUNNING and time.monotonic() < deadline:
        time.sleep(0.05)
    trigger = trigger_of(job)
    trigger.place = {**trigger.place, "store": elsewhere}
    began = time.monotonic()

    async def scene() -> Any:
        return await anext(trigger.run())

    event = json.loads(json.dumps(asyncio.run(scene()).payload))
    seconds = time.monotonic() - began
    told = []
    last: dict[str, Any] = {"retry_policy": no_retry()} if fails_at_once else {}
    for number, options in ((1, last),) if fails_at_once else ((1, last), (2, last)):
        worker_event = {**event, "place": kept["place"]}
        try:
            task_of(says_and_waits, **options).execute_complete(a_try(state, number=number), worker_event)
        except Exception as error:
            told.append((f"{type(error).__name__}: {error}", kinetic.attach(kept["job_id"]).status().value))
    return {"seconds": seconds, "how": event["how"], "told": told, "status": status_of(kept["job_id"])}


def deferral(marker: str, minutes: float) -> dict[str, Any]:
    """The data that Airflow stores when a task is deferred."""
    from names_of_airflow import TaskDeferred

    state = State()
    task = task_of(says_and_waits, op_args=[marker], execution_timeout=timedelta(minutes=minutes), poll_interval=0.5)
    task.deferrable = True
    began = time.time()
    try:
        task.execute(a_try(state))
    except TaskDeferred as deferred:
        classpath, fields = deferred.trigger.serialize()
        left = deferred.timeout.total_seconds() + time.time() - began
    task.on_kill()
    kept = {"classpath": classpath, "fields": json.loads(json.dumps(fields)), "back_stop": left}
    return {**kept, "deadline": fields["deadline"] - began, "status": status_of(state.kept["kinetic"]["job_id"])}


def failed_by_its_trigger(marker: str, number: int, error: str) -> dict[str, Any]:
    """The result of a task whose trigger broke, or was given up by Airflow itself."""
    import kinetic_orchestration as kinetic
    from kinetic_orchestration.protocol import names

    state = State()
    done = begun(task_of(says_and_waits, op_args=[marker]), a_try(state), marker)
    job = kinetic.attach(state.kept["kinetic"]["job_id"])
    raised = ""
    try:
        task_of(says_and_waits).resume_execution("__fail__", {"error": error}, a_try(state, number=number))
    except Exception as failure:
        raised = type(failure).__name__
    goes_on = job._job.store.read(names.cancel(job.job_id)) is None
    if goes_on:
        job.cancel("the test is over")
    done.exception(60)
    return {"raised": raised, "goes_on": goes_on, "status": status_of(job.job_id)}


def connection(
    extra: dict[str, Any] | None,
    impersonation_chain: Any = None,
    project_id: str | None = None,
    name: str = "kinetic_test",
) -> Any:
    """The Google Cloud credentials of a task, by a connection with this extra."""
    from airflow_kinetic.hooks.kinetic import KineticHook
    from kinetic_orchestration.platforms.google import credentials

    os.environ.pop(f"AIRFLOW_CONN_{name.upper()}", None)
    if extra is not None:
        conn = {"conn_type": "google_cloud_platform", "extra": extra}
        os.environ[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps(conn)
    try:
        hook = KineticHook(name, impersonation_chain)
        project = hook.project_of(project_id, "")
        again = KineticHook(name, impersonation_chain)
        with hook.acting():
            found = credentials.credentials()
            seen = credentials.project()
        with KineticHook(name, impersonation_chain, project_id="of-the-hook").acting_at("gs://models/ranker"):
            assert credentials.credentials() is found
            acts_in = credentials.project()
    except ValueError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    return {
        "project": project, "seen": seen, "kind": type(found).__name__, "same": again.identity()[0] is found,
        "acts in": acts_in,
        "target": getattr(found, "_target_principal", ""), "quota": getattr(found, "_quota_project_id", ""),
    }  # fmt: skip


def connections(extras: list[dict[str, Any]], file: str, renewed: str) -> dict[str, Any]:
    """The credentials of one connection after the other; the file of the last one's key is rewritten before it."""
    from airflow_kinetic.hooks.kinetic import KineticHook

    seen: list[dict[str, Any]] = []
    kept: list[Any] = []
    for number, extra in enumerate(extras):
        if number == len(extras) - 1:
            Path(file).write_text(renewed)
        conn = {"conn_type": "google_cloud_platform", "extra": extra}
        os.environ["AIRFLOW_CONN_KINETIC_TEST"] = json.dumps(conn)
        found = KineticHook("kinetic_test").identity()[0]
        if not any(found is other for other in kept):
            kept.append(found)
        who = next(at for at, other in enumerate(kept) if other is found)
        seen.append({"who": who, "account": getattr(found, "service_account_email", "")})
    chains = [f"{name}@p.iam.gserviceaccount.com" for name in "ab"]
    acting = [KineticHook("kinetic_test", chain).identity()[0]._target_principal for chain in chains]
    return {"seen": seen, "impersonated": acting}


def hanging_connection(key: str, file: str) -> dict[str, Any]:
    """A connection whose key lies where nobody answers, such as a share that is away, and another one meanwhile."""
    from airflow_kinetic.hooks.kinetic import KineticHook

    os.mkfifo(file)
    extras = {"HANGS": {"key_path": file}, "ANSWERS": {"is_anonymous": True, "project": "p"}}
    for name, extra in extras.items():
        conn = {"conn_type": "google_cloud_platform", "extra": extra}
        os.environ[f"AIRFLOW_CONN_KINETIC_{name}"] = json.dumps(conn)

    def identity(name: str) -> Any:
        return KineticHook(name).identity()

    with ThreadPoolExecutor() as pool:
        hanging, begun = pool.submit(identity, "kinetic_hangs"), time.monotonic()
        while True:
            try:
                end = os.open(file, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # nobody reads yet
                if hanging.done() or time.monotonic() - begun > 60:
                    Path(file).unlink()  # or whoever comes to it yet would wait for ever
                    return {"done": "nobody has read the key"}
                time.sleep(0.01)
        with os.fdopen(end, "w") as writer:
            answering = pool.submit(identity, "kinetic_answers")
            wait([answering], timeout=30)
            done = [answering.done(), hanging.done()]
            writer.write(key)
        return {"done": done, "project": answering.result()[1], "account": hanging.result()[0].service_account_email}


def jobs_of_a_hook(accelerator: str, options: dict[str, Any]) -> dict[str, Any]:
    """The jobs of user code in a task, by a connection that does not exist."""
    from airflow_kinetic.hooks.kinetic import KineticHook

    os.environ.pop("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", None)
    job = KineticHook().submit(abs, [-3], accelerator=accelerator, **options)
    there = [each.job_id for each in KineticHook().jobs()]
    value = KineticHook().job(job.job_id).result(timeout=60, stream_logs=False)
    found = {"value": value, "listed": job.job_id in there, "left": [each.job_id for each in KineticHook().jobs()]}
    waits = KineticHook().submit(time.sleep, args=[60], accelerator=accelerator, key="waits", **options)
    same = KineticHook().submit(time.sleep, args=[60], accelerator=accelerator, key="waits", **options)
    KineticHook().job(waits.job_id).cancel("the test is over")
    try:
        same.result(timeout=60, stream_logs=False)
    except Exception as error:
        found["raised"] = type(error).__name__
    return {**found, "same": same.job_id == waits.job_id}


def refused_hook() -> dict[str, Any]:
    """A place of Google's, by a connection that is not there, after one of this machine."""
    from airflow_kinetic.hooks.kinetic import KineticHook

    os.environ.pop("AIRFLOW_CONN_KINETIC_MISSING", None)
    with KineticHook("kinetic_missing").acting_at("/models/ranker"):
        pass
    found = {}
    try:
        KineticHook("kinetic_missing", cluster="of-training", namespace="ml").acting_at("/models/ranker")
    except Exception as error:
        found["cluster"] = f"{type(error).__name__}: {error}"
    try:
        KineticHook("kinetic_missing").acting_at("/models/ranker", "gs://models/ranker")
    except Exception as error:
        found["at"] = f"{type(error).__name__}: {error}"
    try:
        KineticHook("kinetic_missing", store="gs://nowhere/kinetic", deployment="d", project_id="p").job(
            "job-000000000000"
        )
    except Exception as error:
        found["refused"] = f"{type(error).__name__}: {error}"
    return found


def shares_a_store() -> dict[str, Any]:
    import gc

    import kinetic_orchestration as kinetic
    from airflow_kinetic.shared import location as places

    handle = kinetic.command(["true"], accelerator="cpu")
    plan = handle._job.plan()
    place = places.JobLocation(plan.store, plan.deployment, plan.backend)
    first, second = place.open(handle.job_id), place.open(handle.job_id)
    os.environ["KINETIC_MAX_HOSTS"] = "7"  # other settings
    third = place.open(handle.job_id)
    shared = first.store is second.store and first.backend is second.backend
    another = first.store is third.store or first.backend is third.backend
    handle.result()
    del first, second, third
    gc.collect()
    left = [key for key in (*places._stores, *places._backends) if plan.store in key[2]]
    return {"shared": shared, "another": another, "left": len(left)}


def nobody_takes_it(marker: str, seconds: float) -> dict[str, Any]:
    """A task that was marked before its deferral took hold: no trigger comes. And one whose trigger does, and is left
    by its triggerer again.
    """
    from names_of_airflow import TaskDeferred

    import kinetic_orchestration as kinetic
    from airflow_kinetic.operators import task_try
    from kinetic_orchestration.jobs.following import actions

    task_try.HANDED_OVER = seconds
    found = {}
    for name in ("marked", "taken"):
        state, context = State(), a_try(State(), number=2)
        context["task_state_store"], context["ti"].run_id = state, name
        task = task_of(says_and_waits, op_args=[f"{marker}-{name}"])
        task.deferrable = True
        try:
            task.execute(context)
        except TaskDeferred as deferred:
            found[name] = deferred.trigger, kinetic.attach(state.kept["kinetic"]["job_id"])
    trigger, taken = found["taken"]

    async def scene() -> None:
        waiting = asyncio.create_task(anext(trigger.run()))
        while trigger._job is None:
            await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(scene())
    marked = found["marked"][1]
    told = {"marked": status_of(marked.job_id), "why": marked.peek().outcome.verdict.reason}
    told |= {"anew": actions.may_begin_anew(marked._job), "lives": not taken.status().final}
    taken.cancel("the test is over")
    return told


def internals_there() -> dict[str, Any]:
    """Look for each name that this package uses of Airflow's inside, and for what it uses beyond these."""
    import airflow_kinetic
    from airflow_kinetic._compat import homes, internals, versions

    missing = [
        f"{internal.module}.{name}"
        for internal in internals.INTERNALS
        for name in internal.names
        if versions.at_least(internal.since) and not _is_found((internal.module, internal.older), name)
    ]
    used = {f"{home.module}:{home.name or name}" for name, (home, *_) in homes.HOMES.items()}
    for file in Path(airflow_kinetic.__file__).parent.rglob("*.py"):
        if file.parent.name == "_compat":  # what it imports is of older versions
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "airflow":
                used |= {f"{node.module}:{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                used |= {f"{alias.name}:" for alias in node.names if alias.name.split(".")[0] == "airflow"}
    listed = [f"{each.module}:{name.partition('.')[0]}" for each in internals.INTERNALS for name in each.names]
    told = {
        "unresolved": [name for name in homes.HOMES if not _resolves(name)],
        "missing": missing,
        "used": sorted(used),
        "listed": listed,
        "members": sorted(_members_used()),
    }
    return {**told, "of_the_context": sorted(_used_of_the_context())}


def _resolves(name: str) -> bool:
    from airflow_kinetic._compat import homes

    try:
        return homes.resolved(name) is not None
    except ImportError:
        return False


def _used_of_the_context() -> set[str]:
    """The keys of a task's context that this package's code reads, also by a name that it assigned in the same
    function, or that a function it calls has for it.
    """
    import airflow_kinetic

    found: set[str] = set()
    for file in Path(airflow_kinetic.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            names = {"accessor"} | {argument.arg for argument in function.args.args if argument.arg == "task"}
            for node in ast.walk(function):
                if isinstance(node, ast.Assign):
                    pairs = [(node.targets[0], node.value)]
                    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                        pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
                    names |= {ast.unparse(target) for target, value in pairs if _is_of_the_context(value)}
                elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and _is_of_the_context(node.value):
                    names.add(ast.unparse(node.target))
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and (
                    _is_of_the_context(node.value) or ast.unparse(node.value) in names
                ):
                    found.add(node.attr)
                elif isinstance(node, ast.Call) and ast.unparse(node).startswith(tuple(f"getattr({n}," for n in names)):
                    found.add(ast.literal_eval(node.args[1]))
    return found


def _is_of_the_context(node: ast.AST | None) -> bool:
    return node is not None and re.fullmatch(r"context(\[|\.get\()'\w+'(\]|\))", ast.unparse(node)) is not None


def _is_found(modules: tuple[str, ...], name: str) -> bool:
    """Return True if any of these modules is there, and has the name."""
    import importlib

    found = []
    for module in filter(None, modules):
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(module))
    return any(_is_there(module, name) for module in found)


def _is_there(module: Any, name: str) -> bool:
    """Return True if a module has the name: a class's field or an instance's attribute, too."""
    owner, _, member = name.partition(".")
    found = getattr(module, owner, None)
    return found is not None and (not member or member in _names_of(found))


def _names_of(kind: type) -> set[str]:
    """All that a class and what it is made of call their own."""
    names = set(dir(kind)) | {field.name for field in getattr(kind, "__attrs_attrs__", ())}
    for base in kind.__mro__:
        names |= {*getattr(base, "__annotations__", {}), *_given(base)}
    return names | {*inspect.signature(kind.__init__).parameters}


def _given(kind: type) -> set[str]:
    """The attributes that a class's own methods assign to `self`."""
    return {node.attr for node in _attributes(kind, "self") if isinstance(node.ctx, ast.Store)}


def _attributes(kind: type, *of: str) -> list[ast.Attribute]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) in of]


def _members_used() -> set[str]:
    """The members of Airflow's classes that this package's subclasses override and use."""
    import importlib
    import pkgutil

    import airflow_kinetic

    found: set[str] = set()
    modules = [
        importlib.import_module(m.name) for m in pkgutil.walk_packages(airflow_kinetic.__path__, "airflow_kinetic.")
    ]
    kinds = {kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)}
    for kind in kinds:
        airflows = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "airflow"]
        if not kind.__module__.startswith("airflow_kinetic") or not airflows:
            continue
        ours = [base for base in kind.__mro__ if base.__module__.startswith("airflow_kinetic")]
        own = set().union(*({*vars(base), *getattr(base, "__annotations__", {}), *_given(base)} for base in ours))
        uses = {node.attr for node in _attributes(kind, "self", "cls") if node.attr not in own}
        uses |= {node.attr for node in _attributes(kind, "super()")} | set(vars(kind))
        arguments = {name for base in airflows for name in inspect.signature(base.__init__).parameters}
        known = {
            name for base in airflows for name in (*vars(base), *getattr(base, "__annotations__", {}), *_given(base))
        }
        found |= {name for name in uses - arguments if name in known or name not in own}
    # Not what Python, or a class of Airflow's by its metaclass, writes into each class that is made of it.
    return {name for name in found if "__" not in name and name != "_abc_impl"}


STORIES: dict[str, Callable[..., dict[str, Any]]] = {
    story.__name__: story
    for story in (
        run_dag,
        kill_deferred,
        cancelled_before_3_3,
        fire_early,
        forged_after_its_trigger,
        provider,
        declare,
        declare_mapped,
        declare_generators,
        decisions,
        tasks_of,
        killed_and_retried,
        cleared_while_nobody_watched,
        cancelled_by_a_person,
        deferral,
        ends,
        failed_by_its_trigger,
        found_again,
        killed_falsely,
        killed_at,
        cleared_with_fewer_retries,
        told_of_clears,
        refused,
        out_of_budget,
        refuses_another,
        deleted_and_run_again,
        hung_in_the_upload,
        killed_before_it_opened,
        cancelled_late,
        deferred_again,
        out_of_time_after_an_edit,
        out_of_time_before_it_opened,
        reached_late,
        looked_up_late,
        sensor_out_of_time,
        poked_while_its_store_is_away,
        rendered_zones,
        declare_each,
        options_by_each_way,
        choices_of,
        stored_with_its_dag,
        rendered_arguments,
        refused_elsewhere,
        images_of,
        clusters_of,
        told_of_an_unreachable_store,
        connection,
        connections,
        hanging_connection,
        jobs_of_a_hook,
        refused_hook,
        shares_a_store,
        nobody_takes_it,
        internals_there,
        last_lines_of_a_timeout,
        cleared_after_its_success,
        submitted_alone,
        not_kept,
        ends_soon_or_outlasts,
        loads_of_a_try,
        waits_without_triggers,
        fields_of_a_run,
        fire_while_the_scheduler_stands_still,
    )
}


def main() -> None:
    warnings.simplefilter("default")
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        before = dict(os.environ)
        os.environ.update({"KINETIC_HOME": asked["home"], **asked["environ"]})
        with Path(asked["log"]).open("wb") as log:
            for descriptor in (1, 2):
                os.dup2(log.fileno(), descriptor)
            try:
                answer = STORIES[asked["story"]](**asked["arguments"])
            except BaseException as error:  # the test shows it
                answer = {"error": f"{type(error).__name__}: {error}"}
                import traceback

                traceback.print_exc()
        os.environ.clear()
        os.environ.update(before)
        answers.write(json.dumps({**answer, "log": asked["log"]}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
