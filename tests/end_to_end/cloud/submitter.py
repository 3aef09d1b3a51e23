"""Submitters and readers in a cloud or a cluster that are killed or put to sleep: this program forks one for each order.

    python -m tests.end_to_end.cloud.submitter FOLDER_OF_JOBS

reads orders from standard input, a JSON object a line, and answers each in a line. It has opened no client and started
no thread when it forks, so its children begin as fresh processes do, but without their second of imports.
`Submitters` is the other end, for tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import google.cloud.storage
import google.cloud.tpu_v2  # noqa: F401 - before any fork
import grpc  # noqa: F401

import kinetic_orchestration as kinetic
from kinetic_orchestration.api import batch, handle
from kinetic_orchestration.capacity.races import backend as races
from kinetic_orchestration.capacity.warm import records as warm
from kinetic_orchestration.jobs import job, launch, results, trust
from kinetic_orchestration.jobs import request as resolved
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.jobs.following import actions, drivers, follower, held_time, logs, verdicts
from kinetic_orchestration.jobs.watching import cache, decode, look, poll
from kinetic_orchestration.jobs.watching.watchers import base, polling, registry
from kinetic_orchestration.packaging import staging
from kinetic_orchestration.packaging.source import tree  # noqa: F401
from kinetic_orchestration.plan import identity
from kinetic_orchestration.plan.values import Cursor, Output
from kinetic_orchestration.platforms.google import preflight
from kinetic_orchestration.platforms.google.compute import backend as vms
from kinetic_orchestration.platforms.google.compute import client as instances
from kinetic_orchestration.platforms.google.storage import requests, store
from kinetic_orchestration.platforms.google.tpu import backend, client, request
from kinetic_orchestration.platforms.kubernetes import backend as pods
from kinetic_orchestration.platforms.kubernetes import manifest
from kinetic_orchestration.platforms.kubernetes.api import client as cluster
from tests.end_to_end.faults.submitter import at_line, die, fork

MODULES = (
    resolved, launch, job, verdicts, actions, held_time, follower, logs, drivers, staging, identity, trust, results,
    handle, batch, cache, decode, look, poll, base, polling, registry, reaper, preflight, client, request, backend,
    store, requests, vms, instances, pods, cluster, manifest, races, warm,
)  # fmt: skip
FILES = {module.__file__ for module in MODULES}
ROOT = Path(__file__).parents[3]
PATIENCE = 300  # seconds that a child may live

Line = tuple[str, str, int]


# ---- in the tests


class Submitters:
    """The program, from the outside. Every child that is left when it is closed is killed."""

    def __init__(self, jobs: Any) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.end_to_end.cloud.submitter", str(Path(jobs.__file__).parent), jobs.__name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._program.pid, signal.SIGKILL)
        self._program.communicate()

    def start(self, body: str, report: Path | str = "", **arguments: Any) -> int:
        """A child that does `body` in the environment that this process has now; its value goes to a file."""
        return int(self._order(order="start", body=body, report=str(report), environ=dict(os.environ), **arguments))

    def wait(self, child: int) -> int:
        """Its exit code; -9 if it was killed."""
        return int(self._order(order="wait", child=child))

    def wait_stopped(self, child: int) -> bool:
        """Return True if it sleeps, and has not ended."""
        return bool(self._order(order="wait_stopped", child=child))

    def wake(self, child: int) -> None:
        os.kill(child, signal.SIGCONT)

    def do(self, body: str, report: Path | str = "", **arguments: Any) -> int:
        return self.wait(self.start(body, report, **arguments))

    def _order(self, **order: Any) -> Any:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(order) + "\n")
        self._program.stdin.flush()
        return json.loads(self._program.stdout.readline())


# ---- what a child does; `jobs` is the module of the functions


def submit(
    jobs: Any, key: str, marks: str, at: str = "", nth: int = 1, then: str = "die", go: str = "",
    accelerator: str = "v5e-1", race: int = 1, keep: str | None = None,
) -> Any:  # fmt: skip
    """Ask for the job of that key and wait for its value; `at` a function of the core, by its full name, something
    happens to this process."""
    wait_for(jobs, go)
    if at:
        module, _, name = at.rpartition(".")
        at_line(nth_call(module, name, nth), globals()[then], FILES)
    options = kinetic.run(accelerator=accelerator, key=key, race=race, keep=keep)
    return options(jobs.leaves_mark).run_async(marks).result(timeout=200)


def submit_to(jobs: Any, key: str, marks: str, line: Line) -> Any:
    """The same, and dies at that line."""
    at_line(lambda *at: at == tuple(line), die, FILES)
    return kinetic.run(accelerator="v5e-1", key=key)(jobs.leaves_mark).run_async(marks).result(timeout=200)


def lines(jobs: Any, key: str, marks: str) -> list[Line]:
    """Every line of the core that a submission and its end run, in the order in which they are first reached."""
    seen: dict[Line, None] = {}

    def remember(*line: Any) -> bool:
        seen[line] = None
        return False

    at_line(remember, die, FILES)
    kinetic.run(accelerator="v5e-1", key=key)(jobs.leaves_mark).run_async(marks).result(timeout=200)
    sys.settrace(None)
    return list(seen)


def submit_many(jobs: Any, marks: str, count: int, group: str, at: str = "", nth: int = 1) -> None:
    """A batch whose submitter dies: as soon as it has its handle, or at the n-th call of a function."""
    if at:
        module, _, name = at.rpartition(".")
        at_line(nth_call(module, name, nth), die, FILES)
    handle = kinetic.run(accelerator="v5e-1")(jobs.leaves_mark).run_async_map([f"{marks}-{n}" for n in range(count)])
    Path(group).write_text(handle.group_id)
    die()


def leave(
    jobs: Any, function: str, arguments: list[Any], into: str, allowance: float, accelerator: str = "v5e-1",
    **limits: float,
) -> None:  # fmt: skip
    """Submit a job whose hosts have `allowance` seconds beyond its limits, write down its id, and be gone for ever."""
    held_time.DEADLINE_ALLOWANCE = allowance
    options = kinetic.run(accelerator=accelerator, limits=kinetic.Limits(**limits))
    Path(into).write_text(options(getattr(jobs, function)).run_async(*arguments).job_id)
    die()


def cancel(_: Any, job_id: str, at: str = "") -> None:
    if at:
        module, _, name = at.rpartition(".")
        at_line(nth_call(module, name, 1), die, FILES)
    kinetic.attach(job_id).cancel("no longer needed")


def read(_: Any, job_id: str, cursor: str, heard: str, most: int) -> bool:
    """Go on with a job's log from the cursor that was saved, and die at the `most`-th piece of it."""
    saved, left = Path(cursor), most
    found = Cursor.from_json(json.loads(saved.read_text())) if saved.exists() else None
    reader = follower.Follower(kinetic.attach(job_id)._job, found)

    def emit(event: Any) -> None:
        nonlocal left
        if isinstance(event, Output):
            with Path(heard).open("ab") as file:
                told = [event.host, event.segment, event.offset, event.kind, event.time, event.text.decode()]
                file.write(json.dumps(told).encode() + b"\n")
            left -= 1
            if left == 0:
                die()

    def save(reader: follower.Follower) -> None:
        part = saved.with_suffix(".part")
        part.write_text(json.dumps(reader.cursor.to_json()))
        part.rename(saved)

    return drivers.follow(reader, emit, timeout=200, on_step=save) is not None


def nth_call(module: str, function: str, nth: int) -> Callable[[str, str, int], bool]:
    """Chooses the first line of the n-th call of a function."""
    first, calls = 0, 0

    def chosen(name: str, of: str, number: int) -> bool:
        nonlocal first, calls
        if (name, of) != (module, function):
            return False
        first = first or number
        calls += number == first
        return number == first and calls == nth

    return chosen


def sleep() -> None:
    sys.settrace(None)
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_for(jobs: Any, path: str) -> None:
    if path:
        jobs.wait_for(path)


# ---- the program


def start(jobs: Any, body: str, report: str, environ: dict[str, str], **arguments: Any) -> int:
    def child() -> Any:
        signal.alarm(PATIENCE)
        os.dup2(2, 1)  # the orders' answers are its parent's
        os.environ.clear()
        os.environ.update(environ)
        return globals()[body](jobs, **arguments)

    return fork(child, report)


def wait(_: Any, child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_stopped(_: Any, child: int) -> bool:
    return os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])


def main(folder: str, name: str) -> None:
    os.chdir(folder)
    sys.path.insert(0, folder)
    jobs = __import__(name)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(globals()[order.pop("order")](jobs, **order)), flush=True)
    os.killpg(0, signal.SIGKILL)  # the tests are gone: so is every child, one that sleeps too


if __name__ == "__main__":
    main(*sys.argv[1:])
