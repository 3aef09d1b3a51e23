"""Costs of the Airflow adapter beyond Airflow itself: a task, a thousand deferred ones, their requests, and a cancel.

Floors: the same no-op as an `ExternalPythonOperator` in an environment without any package, a deferrable operator whose
trigger fires at once, and a trigger that only sleeps. The import is a figure of the section `import`. A task's time is the one that Airflow tells of it, and what of
that is Airflow's own, the time of an operator that does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import measure
from tests.benchmarks.measure import ROOT, Figure

ROUNDS = 7
JOBS = 1000
COUNTED = (10, 500)  # tasks on one listing of a thousand
PACED = (1, 30, 500)  # tasks at any time, of which each second
TURNS = 4  # end, and as many begin,
SPAN = 20.0  # for so long
LONG_ENOUGH = 30.0  # seconds in which all hosts are told once that somebody reads
KILLS = 5
PATIENCE = 600.0
PROJECT = "emulated"

DAGS = """\
import contextlib
import datetime
import io
import json
import os
import sys
import time

from airflow.providers.standard.operators.python import ExternalPythonOperator
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import BaseOperator, dag

from airflow_kinetic import KineticTPUOperator


class Nothing(BaseOperator):
    def execute(self, context):
        return 1


class Bare(BaseOperator):
    def execute(self, context):
        now = datetime.datetime.now(datetime.timezone.utc)
        self.defer(trigger=DateTimeTrigger(now), method_name="go_on")

    def go_on(self, context, event):
        return 1


def noop():
    return 1


@dag(schedule=None)
def theirs():
    ExternalPythonOperator(
        task_id="noop", python_callable=noop, python=os.environ["LEAN_PYTHON"], expect_airflow=False
    )


@dag(schedule=None)
def ours():
    KineticTPUOperator(task_id="noop", python_callable=noop, accelerator="cpu", deferrable=False)


@dag(schedule=None)
def nothing():
    Nothing(task_id="noop")


@dag(schedule=None)
def bare():
    Bare(task_id="noop")


@dag(schedule=None)
def deferrable():
    KineticTPUOperator(task_id="noop", python_callable=noop, accelerator="cpu", deferrable=True)


each = [(theirs(), 0), (ours(), 0), (nothing(), 0), (bare(), 0), (deferrable(), 0), (deferrable(), 60)]


def seconds(of, defer_after):
    from airflow.utils.session import create_session

    os.environ["AIRFLOW__KINETIC__DEFER_AFTER"] = str(defer_after)
    run = of.test()
    with create_session() as session:
        [task] = run.get_task_instances(session=session)
        assert task.state == "success", task.state
        return task.duration


def alone():
    import kinetic_orchestration as kinetic

    began = time.perf_counter()
    with contextlib.redirect_stderr(io.StringIO()):
        assert kinetic.run(accelerator="cpu")(noop)() == 1
    return time.perf_counter() - began


if __name__ == "__main__":
    taken = [[*(seconds(*one) for one in each), alone()] for _ in range(1 + int(sys.argv[2]))]
    with open(sys.argv[1], "w") as file:
        json.dump(taken[1:], file)
"""


def figures() -> Iterator[Figure]:
    if not measure.has("airflow.sdk"):
        return
    with tempfile.TemporaryDirectory(prefix="kinetic-airflow-") as name:
        home = Path(name)
        yield from noop(home)
        yield from deferred(home)
        yield from cancelled(home)
        yield from ticks(home)
        yield from paced(home)


def noop(home: Path) -> Iterator[Figure]:
    """Time one process that runs one task after the other, as `dag.test()` does; the job in it, without Airflow;
    Airflow's own part of any task; and one that may be deferred, is or is not, next to an operator that is deferred for
    nothing.
    """
    program, taken, lean = home / "dags" / "noops.py", home / "taken.json", home / "lean"
    program.parent.mkdir()
    program.write_text(DAGS)
    measure.python("-m", "venv", "--without-pip", str(lean))
    env = environ(home, LEAN_PYTHON=str(lean / "bin" / "python"), KINETIC_HOME=str(home / "kinetic"))
    for command in (["-m", "airflow", "db", "migrate"], [str(program), str(taken), str(ROUNDS)]):
        ran = subprocess.run(
            [sys.executable, *command], env=env, cwd=program.parent, timeout=PATIENCE, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if ran.returncode:
            raise AssertionError(ran.stdout[-5000:])
    theirs, ours, nothing, bare, deferred, quick, alone = (
        statistics.median(times) for times in zip(*json.loads(taken.read_text()), strict=True)
    )
    yield measure.figure("airflow.noop_task", ours * 1e3, "ms", theirs * 1e3, 1.5, against="ExternalPythonOperator")
    yield measure.figure("airflow.noop_alone", alone * 1e3, "ms", theirs * 1e3, None, against="ExternalPythonOperator")
    yield measure.figure("airflow.nothing", nothing * 1e3, "ms", theirs * 1e3, None, against="ExternalPythonOperator")
    yield measure.figure("airflow.deferred_noop", deferred * 1e3, "ms", bare * 1e3, None, against="a bare trigger")
    yield measure.figure("airflow.deferrable_noop", quick * 1e3, "ms", bare * 1e3, None, against="a bare trigger")


def deferred(home: Path) -> Iterator[Figure]:
    """A thousand triggers on one loop, of jobs that run and say nothing: records, as in the section `waiting`."""
    from tests.benchmarks import waiting as records

    with measure.project(noop=records.NOOP) as folder:
        kinetic = folder.parent / "home"
        records._admit(JOBS)
        hosts = records._worker("hosts", str(kinetic), stdin=subprocess.PIPE)
        try:
            assert hosts.stdout is not None
            assert hosts.stdout.readline() == "held\n"
            kinds = [_worker(kind, env=environ(home, KINETIC_HOME=str(kinetic))) for kind in ("sleeps", "waits")]
            floor, ours = (json.loads(kind.communicate(timeout=PATIENCE)[0].splitlines()[-1]) for kind in kinds)
        finally:
            hosts.communicate()
    yield measure.bounded("airflow.deferred.memory", ours["bytes"], "bytes/task", None, floor=floor["bytes"])
    cpu = [max(kind["cpu"] * 100, 1e-4) for kind in (ours, floor)]
    yield measure.bounded("airflow.deferred.cpu", cpu[0], f"% of a core, {JOBS} tasks", None, floor=cpu[1])
    if ours["ended"]:
        raise AssertionError(f"{len(ours['ended'])} of the triggers fired, such as {ours['ended'][0]}")


def cancelled(home: Path) -> Iterator[Figure]:
    """Time from a trigger's `on_kill` to the end of the job's program."""
    from tests.benchmarks import cloud

    with (
        measure.project() as folder,
        _worker("kills", str(KILLS), env=environ(home, PYTHONPATH=str(ROOT)), cwd=folder) as kills,
    ):
        here = json.loads(kills.communicate(timeout=PATIENCE)[0].splitlines()[-1])
    yield measure.bounded("airflow.cancel.local", max(here), "s", 2.0)
    with cloud.site(provision_seconds=0.2) as site:
        env = environ(home, PYTHONPATH=str(ROOT), **_environ_of(site, "kills"))
        with _worker("kills", "1", env=env, cwd=site.folder / "project") as kills:
            there = json.loads(kills.communicate(timeout=PATIENCE)[0].splitlines()[-1])
        site.cloud.wait_until_empty(90.0)
    yield measure.bounded("airflow.cancel.cloud", max(there), "s", 2.0)


def ticks(home: Path) -> Iterator[Figure]:
    """Requests of one look at all jobs of a triggerer, without what tells their hosts that somebody reads."""
    from tests.benchmarks import cloud

    with cloud.site(zones=cloud.ZONES, hosts=False, creates_per_minute=None) as site:
        template, jobs, first = site.template(), [], None
        listed = site.folder / "jobs.json"
        for count in COUNTED:
            jobs += [site.add(template, number) for number in range(len(jobs), count)]
            listed.write_text(json.dumps(jobs))
            env = environ(home, **_environ_of(site, "many"))
            with _worker("defers", str(listed), env=env, stdin=subprocess.PIPE) as triggerer:
                assert triggerer.stdout is not None
                while triggerer.stdout.readline() != "all deferred\n":
                    assert triggerer.poll() is None
                site.count_looks(1)  # until each of them has looked for itself
                found = _look(site)
                triggerer.communicate("enough\n", timeout=PATIENCE)
            first = found if first is None else first
            for what in ("store", "tpu"):
                target = None if found is first else 1.2  # the beginning and the end of the count are in between two
                name = f"airflow.tick.{count}_tasks.{what}"
                yield measure.figure(name, found[what], "requests", first[what], target)
            yield measure.bounded(f"airflow.tick.{count}_tasks.eyes", found["eyes"], "requests/task/min", None)


def paced(home: Path) -> Iterator[Figure]:
    """Looks at a zone, by list and by name, while tasks begin and end, beside the bound that one process keeps."""
    from kinetic_orchestration.platforms.shared import rate_limit as paces
    from tests.benchmarks import cloud

    with cloud.site(zones=cloud.ZONES, hosts=False, creates_per_minute=None) as site:
        template, made = site.template(), 0
        listed = site.folder / "jobs.json"
        for count in PACED:
            some = range(made, made + count + int(SPAN * TURNS))
            listed.write_text(json.dumps([site.add(template, number) for number in some]))
            made = some.stop
            env = environ(home, **_environ_of(site, "many"))
            with _worker("turns", str(listed), str(count), env=env, stdin=subprocess.PIPE) as triggerer:
                assert triggerer.stdin is not None and triggerer.stdout is not None
                while triggerer.stdout.readline() != "all deferred\n":
                    assert triggerer.poll() is None
                site.cloud.requests.clear()
                triggerer.stdin.write("turn\n")
                triggerer.stdin.flush()
                turned = json.loads(triggerer.stdout.readline())
                calls = [method for method, _ in list(site.cloud.requests)]
                if triggerer.stdout.readline() != "all ended\n":  # both lines may have come at once
                    raise AssertionError(f"of {count} tasks not all ended as their jobs did")
                triggerer.communicate(timeout=PATIENCE)
            named = calls.count("GetQueuedResource") - 2 * calls.count("DeleteQueuedResource")  # before and after one
            looks = (calls.count("ListQueuedResources") + named) / len(cloud.ZONES) / turned["seconds"]
            bound = paces.LOOKS_PER_SECOND + paces.LOOKS_AT_ONCE / turned["seconds"]
            yield measure.bounded(f"airflow.pace.{count}_tasks", looks, "looks/zone/s", bound)


def _look(site: Any) -> dict[str, float]:
    """Average three polls; the requests per poll, and the rest per minute."""
    began = time.monotonic()
    looks = site.count_looks(3)
    time.sleep(max(0.0, began + LONG_ENOUGH - time.monotonic()))
    elapsed = time.monotonic() - began
    calls = list(site.cloud.storage.calls)
    eyes = sum(call.where.endswith("/eye") for call in calls)
    listings = sum(call.verb == "list" and call.where.endswith("/beats/") for call in calls)
    tasks = len(json.loads((site.folder / "jobs.json").read_text()))
    return {
        "store": (len(calls) - eyes) / listings, "tpu": looks["tpu"], "eyes": eyes / tasks / elapsed * 60,
    }  # fmt: skip


# ---- in processes of their own -----------------------------------------------------------------------------


def environ(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in measure.environment().items() if not name.startswith("AIRFLOW_")}
    connection = {"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": PROJECT}}
    return {
        **kept,
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": json.dumps(connection),
        **{name: os.environ[name] for name in ("KINETIC_HOME",) if name in os.environ},
        **more,
    }


def _environ_of(site: Any, deployment: str) -> dict[str, str]:
    return {name: value for name, value in site.environ(deployment).items() if name.startswith("KINETIC_")}


def _worker(kind: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.benchmarks.airflow", kind, *arguments]
    given = {"cwd": ROOT, "stderr": subprocess.DEVNULL, **options}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **given)


def _trigger(job_id: str, spec: str = "") -> Any:
    """A trigger as a triggerer creates it from the database."""
    from airflow_kinetic.shared.configuration import DEFAULT_CONNECTION
    from airflow_kinetic.shared.location import JobLocation
    from airflow_kinetic.triggers.kinetic import KineticJobTrigger
    from kinetic_orchestration.plan.values import Cursor

    place, cursor = JobLocation.resolve(DEFAULT_CONNECTION, None)._asdict(), Cursor()._replace(spec=spec).to_json()
    made = KineticJobTrigger(job_id=job_id, place=place, cursor=cursor, deferred=time.time())
    return KineticJobTrigger(**json.loads(json.dumps(made.serialize()[1])))


def _sleeps() -> None:
    import datetime

    from airflow.providers.standard.triggers.temporal import DateTimeTrigger

    from tests.benchmarks import waiting as records

    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    ways: list[Callable[[], Awaitable[object]]] = [lambda: anext(DateTimeTrigger(moment).run())] * JOBS
    asyncio.run(records._measure(ways, lambda: records.AT_LEAST, traced=False))


def _waits() -> None:
    from kinetic_orchestration.api.opening import place_of
    from kinetic_orchestration.jobs.watching.watchers.registry import watcher_of
    from kinetic_orchestration.protocol import names
    from tests.benchmarks import waiting as records

    store, backend, _ = place_of()
    ids = [entry.name.split("/")[1] for entry in store.list(names.JOBS) if entry.name.endswith("spec.json")]
    assert len(ids) == JOBS
    triggers = [_trigger(job_id) for job_id in ids]
    ways = [lambda trigger=trigger: anext(trigger.run()) for trigger in triggers]

    def pace() -> float:
        return max(records.AT_LEAST, watcher_of(store, backend).pace())

    asyncio.run(records._measure(ways, pace, traced=False, begun=lambda: all(trigger._job for trigger in triggers)))


def _kills(count: str) -> None:
    """Seconds from `on_kill` to the verdict of hosts whose program sleeps."""
    import kinetic_orchestration as kinetic
    from kinetic_orchestration.errors import JobError
    from kinetic_orchestration.protocol import names

    async def killed(job: Any) -> float:
        trigger = _trigger(job.job_id, job._job.spec_digest)
        waiting = asyncio.create_task(anext(trigger.run()))
        while job.status().value != "RUNNING" or trigger._job is None:
            await asyncio.sleep(0.05)
        await asyncio.sleep(3.0)  # its hosts have settled
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        began = time.monotonic()
        await trigger.on_kill()
        while job._job.store.read(names.verdict(job.job_id, 1)) is None:
            await asyncio.sleep(0.01)
        return time.monotonic() - began

    found = []
    for _ in range(int(count)):
        job = kinetic.command(["sleep", "600"], accelerator="v5e-1")
        found.append(asyncio.run(killed(job)))
        with contextlib.suppress(JobError):
            job.result(timeout=60)
    print(json.dumps(found), flush=True)


async def _defers(listed: str) -> None:
    from tests.benchmarks.cloud import BATCH, PAUSE, _cancel

    tasks = []
    for number, (job, digest) in enumerate(json.loads(Path(listed).read_text()), 1):
        tasks.append(asyncio.ensure_future(anext(_trigger(job, digest).run())))
        if number % BATCH == 0:
            await asyncio.sleep(PAUSE)
    await asyncio.sleep(PAUSE)
    print("all deferred", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ended = [repr(task) for task in tasks if task.done()]
    await _cancel(tasks)
    if ended:
        raise AssertionError(f"{len(ended)} of the triggers fired, such as {ended[0]}")


async def _turns(listed: str, count: str) -> None:
    """So many triggers; then the oldest job ends and another one begins, again and again."""
    from collections import deque

    from kinetic_orchestration.api.opening import place_of
    from kinetic_orchestration.protocol import names, wire
    from tests.benchmarks.cloud import BATCH, PAUSE, _cancel

    def begin(job: str, digest: str) -> None:
        living.append((job, asyncio.ensure_future(anext(_trigger(job, digest).run()))))

    store, _, _ = place_of()

    def end(job: str) -> None:
        """End the job as its host does."""
        now = store.now()
        verdict = wire.Verdict(wire.CLOSED, "benchmark", now, wire.CANCELLED, None, "its turn is over")
        store.put(names.verdict(job, 1), verdict.encode())
        store.signal(names.beat(job, 1, 0), wire.Beat(wire.DONE, "boot", active=now).encode())

    living: deque[tuple[str, asyncio.Future[Any]]] = deque()
    ended: list[asyncio.Future[Any]] = []
    jobs = json.loads(Path(listed).read_text())
    for number, (job, digest) in enumerate(jobs[: int(count)], 1):
        begin(job, digest)
        if number % BATCH == 0:
            await asyncio.sleep(PAUSE)
    await asyncio.sleep(PAUSE)
    print("all deferred", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    began = time.monotonic()
    for number, (job, digest) in enumerate(jobs[int(count) :], 1):
        oldest, fires = living.popleft()
        await asyncio.to_thread(end, oldest)
        ended.append(fires)
        begin(job, digest)
        await asyncio.sleep(max(0.0, began + number / TURNS - time.monotonic()))
    print(json.dumps({"seconds": time.monotonic() - began, "tasks": len(ended)}), flush=True)
    events = await asyncio.wait_for(asyncio.gather(*ended), PATIENCE)
    assert all(event.payload["how"] == "ended" for event in events), events[0]
    print("all ended", flush=True)
    await _cancel([fires for _, fires in living])


WORKERS: dict[str, Callable[..., None]] = {
    "sleeps": _sleeps, "waits": _waits, "kills": _kills, "defers": lambda listed: asyncio.run(_defers(listed)),
    "turns": lambda listed, count: asyncio.run(_turns(listed, count)),
}  # fmt: skip

if __name__ == "__main__":
    WORKERS[sys.argv[1]](*sys.argv[2:])
