"""Shared parts of the tests of a live Airflow: scenes that run concurrently, and helpers to read their results."""

from __future__ import annotations

import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kinetic_orchestration.api.handle import JobHandle, all_jobs
from kinetic_orchestration.platforms.local.backend import marker
from kinetic_orchestration.protocol.system import processes
from tests.airflow_kinetic.live.airflow_servers import Airflow, Run
from tests.airflow_kinetic.live.conftest import SideBySide

LATE = 30.0  # seconds between what is said and the time that the log has for it, less than a triggerer is missed
LEFT = 1.5  # as in airflow_kinetic/triggers/kinetic.py, which is not imported here: it brings Airflow along
IN_A_FOLD = "lines lie in a fold"  # so begins the warning that a run of these tests ends with, where one did
TOLERATED = pytest.mark.filterwarnings(f"default:{IN_A_FOLD}")
SOON = 150.0  # until a job whose task was killed has ended, on a machine that is busy

Scene = Callable[..., None]  # of an Airflow, a folder and fixtures of its module


class Scenes(dict[str, Scene]):
    """The scenes of a module, by the names of their tests. The fixture `side_by_side` begins them all."""

    def __call__(self, function: Scene) -> Callable[[SideBySide], None]:
        """A test that runs side by side with the others of its kind."""
        self[function.__name__] = function

        def test(side_by_side: SideBySide) -> None:
            side_by_side.result(function.__name__)

        test.__name__, test.__doc__ = function.__name__, function.__doc__
        return test


def begin(airflow: Airflow, folder: Path, dag_id: str = "training", *, name: str = "", **conf: Any) -> Run:
    """A DAG run, called as its folder if it has no other name; so is its job."""
    name = name or folder.name
    return airflow.trigger(dag_id, name, folder=str(folder), name=name, **conf)


@contextmanager
def begun(airflow: Airflow, folder: Path, dag_id: str = "training", **conf: Any) -> Iterator[Run]:
    """The same, whose program ends with the block."""
    try:
        yield begin(airflow, folder, dag_id, **conf)
    finally:
        go(folder)


def go(folder: Path) -> None:
    (folder / "go").touch()


def stopped(airflow: Airflow, run: Run, name: str) -> int:
    """The process of a task that stands still where its DAG file says so."""
    path = airflow.folder / f"{name}.pid"
    airflow.until(path.exists, about=lambda: (run.task(), run.text()))
    return int(path.read_text())


def jobs(run: Run) -> list[JobHandle[Any]]:
    """All jobs of a DAG run, the oldest first."""
    return [job for job in reversed(all_jobs()) if job.func_name == run.run_id]


def starts(folder: Path) -> list[str]:
    """One for each process in which the program began."""
    return sorted(path.name for path in folder.glob("began-*"))


class Line(NamedTuple):
    """A line that a program printed: the time at which it was printed, and the times in the log."""

    host: int
    step: int
    said: float
    shown: float
    told: float
    """When it was said, as the log has it: of a line from before this try, it stands at the try's beginning."""


def lines(run: Run, number: int = 1) -> list[Line]:
    """The lines that the programs printed, in the order in which they are shown."""
    records = run.log(number) if has_begun(run, number) else []
    said = ((re.fullmatch(r"step (\d+) at ([\d.]+)", str(record.get("event"))), record) for record in records)
    return [
        Line(
            int(record.get("host", 0)), int(match[1]), float(match[2]), seconds(record["timestamp"]),
            seconds(record.get("said") or record["timestamp"]),
        )
        for match, record in said
        if match
    ]  # fmt: skip


def has_begun(run: Run, number: int) -> bool:
    return int(run.task()["try_number"]) >= number


def check_lines(run: Run, *, hosts: int, steps: int, number: int = 1) -> None:
    """Every line of every host once, in order, each with the time at which it was said."""
    found = lines(run, number)
    for host in range(hosts):
        told = [step for where, step, *_ in found if where == host]
        assert told == list(range(len(told))), f"host {host}\n{run.text(number)}"
        assert len(told) == steps if host == 0 else told
    assert max(abs(line.said - line.told) for line in found) < LATE
    assert [line.shown for line in found] == sorted(line.shown for line in found)
    check_folds(run, number)


def check_folds(run: Run, number: int = 1) -> None:
    """The page folds what lies between two marks of Airflow's own: nothing that a program said may be there. But for what
    takes Airflow longer than `LEFT`: until it writes the second mark, nobody can know where that will be. That is told.
    `LEFT` counts from the deferral, which lies between the first mark and what was written before it.
    """
    before = ""
    opened: str | None = None
    inside = False
    for record in run.log(number):
        event = str(record.get("event"))
        if event.startswith("::group::"):
            opened, inside = before, False
        elif event.startswith("::endgroup::") and opened is not None:
            if inside:
                took = seconds(record["timestamp"]) - seconds(opened)
                assert took > LEFT, run.text(number)
                warnings.warn(f"{IN_A_FOLD} of {run.run_id}, for which Airflow took {took:.1f} s", stacklevel=2)
            opened = None
        elif event.startswith("step "):
            inside = opened is not None
        before = record.get("timestamp") or before


def living(job: JobHandle[Any]) -> list[processes.Process]:
    """The processes of all its attempts: guards, agents and programs, and what they started."""
    runs = Path(os.environ["KINETIC_HOME"]) / "run"
    attempts = range(1, job.attempts() + 1)
    return [process for attempt in attempts for process in processes.marked(marker(runs / f"{job.job_id}-{attempt}"))]


def gone(airflow: Airflow, job: JobHandle[Any]) -> None:
    airflow.until(lambda: not living(job), SOON, lambda: living(job))


@contextmanager
def triggerer_killed(airflow: Airflow) -> Iterator[None]:
    triggerer = airflow.components["triggerer"]
    triggerer.kill()
    try:
        yield
    finally:
        triggerer.start()


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


# ---- what happens on every release -----------------------------------------------------------------------------------


def killed_after_the_submission(airflow: Airflow, folder: Path) -> None:
    """The task's process dies between submission and deferral: the next try finds the job. Where Airflow does not try
    such a task again, its supervisor dies, too."""
    with begun(airflow, folder, "killed_before_the_deferral") as run:
        process = processes.find(stopped(airflow, run, run.run_id))
        assert process is not None
        airflow.until(lambda: starts(folder))
        [job] = jobs(run)
        if not airflow.release.retries_killed:
            processes.send(process.parent, signal.SIGKILL)
        processes.send(process.pid, signal.SIGKILL)
        run.wait("deferred", number=2)
        airflow.until(lambda: lines(run, 2), about=lambda: run.text(2))
        assert not job.peek().status.final
        go(folder)
        run.wait("success", number=2)
    assert [found.job_id for found in jobs(run)] == [job.job_id]
    assert len(starts(folder)) == 1
    check_lines(run, hosts=1, steps=run.value()["steps"], number=2)


def killed_with_all_its_processes(airflow: Airflow, folder: Path) -> None:
    """A task's process and who watches it die: the next try finds the job."""
    with begun(airflow, folder, "training_on_a_worker") as run:
        run.wait("running")
        airflow.until(lambda: starts(folder), about=run.text)
        task = airflow.until(run.worker)
        for pid in (task.parent, task.pid):  # who watches it first, so that nobody tells of it
            processes.send(pid, signal.SIGKILL)
        run.wait("running", number=2)
        airflow.until(lambda: lines(run, 2), about=lambda: run.text(2))
        go(folder)
        run.wait("success", number=2)
    assert len(jobs(run)) == 1
    assert len(starts(folder)) == 1


def cleared(airflow: Airflow, folder: Path) -> None:
    """A user clears a deferred task: its job ends, and another one runs."""
    with begun(airflow, folder) as run:
        run.wait("deferred")
        airflow.until(lambda: lines(run), about=run.text)
        [first] = jobs(run)
        assert living(first)
        run.clear()
        airflow.until(lambda: first.peek().status.final, SOON, lambda: (run.text(), run.text(2)))
        assert first.peek().status.value == "CANCELLED"
        run.wait("deferred", number=2)
        airflow.until(lambda: lines(run, 2), about=lambda: run.text(2))
        gone(airflow, first)
        second = jobs(run)[-1]
        assert second.peek().status.value == "RUNNING", "what ended the first has not ended it"
        go(folder)
        run.wait("success", number=2)
    assert [job.job_id for job in jobs(run)] == [first.job_id, second.job_id]
    assert len(starts(folder)) == 2


def marked(airflow: Airflow, folder: Path, on_worker: tuple[str, ...] = ()) -> None:
    """A deferred task is marked failed or success, another one's DAG run failed, and one on a worker failed, where that
    is asked for: the jobs end.
    """
    kinds = ("failed", "success", "run", *on_worker)
    folders = {kind: folder / kind for kind in kinds}
    for each in folders.values():
        each.mkdir()
    runs = {
        kind: begin(
            airflow, each, "training_on_a_worker" if kind in on_worker else "training", name=f"{folder.name}-{kind}"
        )
        for kind, each in folders.items()
    }
    for kind, run in runs.items():
        run.wait("running" if kind in on_worker else "deferred")
        airflow.until(lambda run=run: lines(run), about=run.text)
        airflow.until(lambda each=folders[kind]: starts(each))
    found = {kind: jobs(run) for kind, run in runs.items()}
    assert {len(each) for each in found.values()} == {1}
    assert all(living(job) for [job] in found.values())
    since = time.monotonic()
    for kind, run in runs.items():
        if kind == "run":
            run.mark("failed")
        else:
            run.mark_task("success" if kind == "success" else "failed")
    for kind, [job] in found.items():
        airflow.until(lambda job=job: job.peek().status.final, SOON, runs[kind].text)
        print(f"{kind}: after {time.monotonic() - since:.1f} s")
        assert job.peek().status.value == "CANCELLED", kind
        gone(airflow, job)
        assert runs[kind].task()["state"] == ("success" if kind == "success" else "failed")
        assert len(jobs(runs[kind])) == 1
