"""Costs of the Dagster adapter beyond Dagster itself: its import, an asset, the transfer of a log, and waiting for many
jobs.

Floors: `import dagster`; the same no-op through `PipesSubprocessClient`; the same lines from a plain pipe.
"""

import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import logs, measure
from tests.benchmarks.measure import ROOT, Figure

ROUNDS = 15
FLOODS = 3
JOBS = 200
PATIENCE = 180.0
QUIET = {"telemetry": {"enabled": False}}

ASSETS = """\
import sys

import dagster as dg

from dagster_kinetic import kinetic_asset
from producer import flood


@kinetic_asset(accelerator="cpu")
def noop():
    return 1


@dg.asset
def piped(context, pipes: dg.PipesSubprocessClient):
    code = "from dagster_pipes import open_dagster_pipes\\nwith open_dagster_pipes(): pass"
    return pipes.run(command=[sys.executable, "-c", code], context=context).get_materialize_result()


@kinetic_asset(accelerator="cpu")
def flooding(lines: int):
    flood(lines)


@dg.asset
def lines() -> int:
    return {LINES}


""".replace("{LINES}", str(logs.LINES))


def figures() -> Iterator[Figure]:
    if not measure.has("dagster"):
        return
    floor, value = measure.interleaved(
        5,
        lambda: measure.python("-c", "import dagster"),
        lambda: measure.python("-c", "import dagster_kinetic"),
    )
    yield measure.figure("dagster.import", value * 1e3, "ms", floor * 1e3, 1.1)
    with measure.project(producer=logs.PRODUCER, assets=ASSETS) as folder, dagster_instance(folder) as instance:
        yield asset(instance)
        yield from log(instance, folder)
        yield from waiting()


@contextlib.contextmanager
def dagster_instance(folder: Path) -> Iterator[Any]:
    import dagster as dg

    with tempfile.TemporaryDirectory(dir=folder.parent) as home, dg.DagsterInstance.local_temp(home, QUIET) as instance:
        yield instance


def asset(instance: Any) -> Figure:
    """One run of one asset, in a process that has made one before."""
    assets = importlib.import_module("assets")
    floor, value = measure.interleaved(
        ROUNDS,
        lambda: _materialize(instance, assets.piped),
        lambda: _materialize(instance, assets.noop),
    )
    return measure.figure("dagster.noop_asset", value * 1e3, "ms", floor * 1e3, 1.3, against="PipesSubprocessClient")


def log(instance: Any, folder: Path) -> Iterator[Figure]:
    """Throughput from a program's print to the step's captured output: lines a second, and whether all of them came."""
    assets = importlib.import_module("assets")
    speeds: dict[str, list[float]] = {"pipe": [], "asset": []}
    sums = set()
    for _ in range(FLOODS):
        argv = [sys.executable, str(folder / "producer.py"), "lines", "flood", str(logs.LINES)]
        speed, total = logs._flood(lambda sink, argv=argv: logs._read_pipe(argv, sink))
        speeds["pipe"].append(speed)
        sums.add(total)
        result = _materialize(instance, assets.lines, assets.flooding)
        text, ended = _captured(instance, result, "flooding")
        began, _, rest = text.partition(b"\n")
        count = rest.count(b"\n")
        speeds["asset"].append(count / (ended - float(began)))
        sums.add((count, zlib.crc32(rest)))
    best = {name: max(found) for name, found in speeds.items()}
    yield measure.figure("dagster.log_lines", best["asset"], "lines/s", best["pipe"], 0.3, at_least=True)
    yield measure.bounded("dagster.log_lost", float(len(sums) - 1), "floods that differ", 0.0)


def waiting() -> Iterator[Figure]:
    """The memory of the process of a step that waits for its jobs: dagster, the adapter and all it needs with it."""
    command = [sys.executable, "-m", "tests.benchmarks.dagster", "waiting"]
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=PATIENCE * 4, check=True)
    found = json.loads(ran.stdout.splitlines()[-1])
    yield measure.bounded("dagster.waiting_200", found["most"], "MB", 150.0, floor=found["none"])
    if found["running"] != JOBS:
        raise AssertionError(f"{found['running']} of {JOBS} jobs were waited for when the memory was read")


def _materialize(instance: Any, *assets: Any) -> Any:
    import dagster as dg

    from dagster_kinetic import KineticResource

    resources = {"kinetic": KineticResource(), "pipes": dg.PipesSubprocessClient()}
    with _silent():
        return dg.materialize(list(assets), instance=instance, resources=resources)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress this process's own output, on which Dagster repeats captured output: it is for figures."""
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    with Path(os.devnull).open("wb") as nowhere:
        for number in (1, 2):
            os.dup2(nowhere.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        for number, saved in enumerate(kept, 1):
            os.dup2(saved, number)
            os.close(saved)


def _captured(instance: Any, result: Any, step: str) -> tuple[bytes, float]:
    """The step's output in the UI, and the end of the step by this process's clock."""
    [key] = [
        event.logs_captured_data.file_key
        for event in result.all_events
        if event.event_type_value == "LOGS_CAPTURED" and step in (event.logs_captured_data.step_keys or ())
    ]
    manager = instance.compute_log_manager
    data = manager.get_log_data(manager.build_log_key_for_run(result.run_id, key)).stdout or b""
    ends = [entry.timestamp for entry in instance.all_logs(result.run_id) if _is_success_of(entry, step)]
    return data, ends[0] - time.time() + time.monotonic()


def _is_success_of(entry: Any, step: str) -> bool:
    return entry.step_key == step and entry.dagster_event is not None and entry.dagster_event.is_step_success


# ---- in processes of their own -----------------------------------------------------------------------------


def _wait() -> None:
    """A step that waits for jobs which run and say nothing: records with locks, as in the section `waiting`."""
    from dagster_kinetic.step.step import StepCall
    from tests.benchmarks import waiting as records

    run = str(uuid.uuid4())
    with measure.project(noop=records.NOOP) as folder:
        home = folder.parent / "home"
        names = (StepCall(run, "waits", call=f"[{number}]") for number in range(JOBS))
        records._admit(JOBS, lambda deployment: next(names).identity(deployment))
        hosts = records._worker("hosts", str(home), stdin=subprocess.PIPE)
        try:
            assert hosts.stdout is not None
            assert hosts.stdout.readline() == "held\n"
            env = measure.environment(KINETIC_HOME=str(home), PYTHONPATH=str(folder))
            command = [sys.executable, "-m", "tests.benchmarks.dagster", "step", run]
            ran = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
        finally:
            hosts.communicate()
    print(ran.stdout.splitlines()[-1])


def _step(run_id: str) -> None:
    """Run that step as a run's worker does. It prints its memory when it waits for all of them, and ends."""
    import dagster as dg
    from dagster._core.definitions.job_base import InMemoryJob
    from dagster._core.execution.api import execute_run
    from noop import noop  # type: ignore[import-not-found]

    from dagster_kinetic import KineticResource

    @dg.op
    def waits(context: dg.OpExecutionContext, kinetic: KineticResource) -> None:
        before = _resident()
        threading.Thread(target=_say, args=(before,), daemon=True).start()
        kinetic.map(noop, [() for _ in range(JOBS)], accelerator="cpu", context=context, max_concurrent=JOBS)

    @dg.job(resource_defs={"kinetic": KineticResource()}, executor_def=dg.in_process_executor)
    def waiting_job() -> None:
        waits()

    with tempfile.TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder, QUIET) as instance:
        run = instance.create_run_for_job(waiting_job, run_id=run_id)
        execute_run(InMemoryJob(waiting_job), run, instance)
    raise AssertionError("the step is over, and its jobs are not")


def _say(before: float) -> None:
    from dagster_kinetic.fleet.jobs import Fleet

    deadline, most = time.monotonic() + PATIENCE / 2, 0.0
    [fleet] = _until(lambda: [found for found in gc.get_objects() if isinstance(found, Fleet)], deadline)
    _until(lambda: len(fleet._jobs) == JOBS, deadline)
    for _ in range(20):  # all have looked at least once
        most = max(most, _resident())
        time.sleep(0.5)
    print(json.dumps({"none": before, "most": most, "running": len(fleet._jobs)}), flush=True)
    os._exit(0)


def _until(true: Callable[[], Any], deadline: float) -> Any:
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


if __name__ == "__main__":
    {"waiting": _wait, "step": _step}[sys.argv[1]](*sys.argv[2:])
