"""Shared parts of the tests of faults: the roles of a job's processes, and hosts that break at a chosen line."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.jobs.following.drivers import follow
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.jobs.watching.look import look
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.values import Event, Output
from kinetic_orchestration.platforms.shared import agent_zip as agent
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.system import processes
from tests.support.by_hand import start_host
from tests.support.waits import wait_until

KILLED = -9  # the exit code of a process that was
RECORDS = (  # the write of each, by its host's or client's request
    "insert */identities/*",
    "insert */in/spec.json",
    "insert */intent.json",
    "insert */started.json",
    "insert */beats/*/1/0",
    "insert */log/*",
    "insert */exit.json",
    "insert */hosts/0/result",
    "insert */verdict.json",
    "insert */done.json",
)
# Of hosts, so that they leave programs the time of a notice, as far as that goes:
PATIENT = "attempt_rules.GRACE = {**attempt_rules.GRACE, 'preemption': 25.0}"
CHANGED = {  # what a host says of content that was changed in the bucket
    "payload": "was sent.*It was removed from the store",
    "tree": "pack [0-9a-f]{64} .*It was removed from the store",
    "spec": r"spec\.json is not the one that was submitted.*Nothing of it was run",
    "agent": "the agent in gs://.* is not the one that was submitted.*It was not run",
}


class Tree(NamedTuple):
    """The processes of one host."""

    guard: int
    agent: int
    program: int


def folder_of(job: Job, attempt: int = 1) -> Path:
    intent = look(job.store, job.backend, job.job_id, attempt, job.policy).intent
    assert intent is not None
    return Path(intent.placement["run"])


def guard_in(lock: Path) -> int:
    """Return the guard's process id by a host's lock; 0 until it is there: the file has its name before that, and the
    program may run before it."""
    with contextlib.suppress(ValueError):
        return int(json.loads(lock.read_text(encoding="utf-8")).get("pid", 0))
    return 0


def trees(job: Job, attempt: int = 1, within: float = 60.0) -> list[Tree]:
    """Every host's processes, once all their programs run."""
    folder, found = folder_of(job, attempt), {}

    def all_run() -> bool:
        for host in range(job.policy.hosts):
            state = job.store.read(names.beat(job.job_id, attempt, host))
            if state is None or json.loads(state.data)["state"] != "running":
                return False
            if not (guard := guard_in(folder / f"host-{host}.json")):
                return False
            agents = processes.descendants(guard)
            found[host] = Tree(guard, agents[0].pid, agents[1].pid)
        return True

    wait_until(all_run, within=within)
    return [found[host] for host in range(job.policy.hosts)]


def kill(*pids: int, number: int = signal.SIGKILL) -> None:
    """Kill those that have not ended yet."""
    for pid in pids:
        processes.send(pid, number)


def stopped(pid: int) -> bool:
    """Return True if SIGSTOP has reached it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def gone(*pids: int) -> bool:
    return all((process := processes.find(pid)) is None or process.zombie for pid in pids)


def kill_host(tree: Tree) -> None:
    """Kill a host like a power failure: the guard first, or it would report for its agent."""
    kill(tree.guard, tree.agent)
    wait_until(lambda: gone(*tree))


def nothing_left(home: Path) -> bool:
    runs = home / "run"
    return not runs.exists() or [path.name for path in runs.iterdir()] in ([], [".admission"])


def start_broken(job: Job, folder: Path, breaks: str, host: int = 0, words: Sequence[str] = ()) -> None:
    """Start a host in which the lines of `breaks` ran before all else. They know the agent's modules, and
    `once(mark)`, true for the first process of this test that asks with that mark."""
    home = settings.load().home
    site = str(agent.unpacked(home) / "site")
    script = folder / f"broken-{host}.py"
    script.write_text(
        f"import errno, os, signal, sys, time\nsys.path.insert(0, {site!r})\n"
        "from kinetic_orchestration.host import host, start\n"
        "from kinetic_orchestration.host.attempt import outcome, peers\n"
        "from kinetic_orchestration.host.view import retrying_records\n"
        "from kinetic_orchestration.protocol.records import base, files\n"
        f"def once(mark):\n    try:\n        os.mkdir({str(folder)!r} + '/' + mark)\n    except FileExistsError:\n"
        f"        return False\n    return True\n{textwrap.dedent(breaks)}\nstart.main()\n"
    )
    start_host(job, sys.executable, script, host, words)


def break_hosts(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """Have hosts from now on run these lines before all else; they know the agent's modules."""
    start = "from kinetic_orchestration.host.start import main\n"
    before, found, after = agent._MAIN.rpartition(start)
    assert found
    known = (
        "import os, signal, time\n"
        "from kinetic_orchestration.host import host\n"
        "from kinetic_orchestration.host.attempt import outcome, peers\n"
        "from kinetic_orchestration.host.attempt import self_delete\n"
        "from kinetic_orchestration.host.view import bucket\n"
        "from kinetic_orchestration.protocol import attempt_rules\n"
    )
    broken = textwrap.indent(known + textwrap.dedent(lines), 8 * " ")
    monkeypatch.setattr(agent, "_MAIN", f"{before}{found}{broken}\n{after}")


def result(job: Job, timeout: float = 60.0) -> Any:
    return JobHandle(job).result(timeout=timeout)


def events(job: Job, timeout: float = 60.0) -> list[Event]:
    """Everything a follower hears, to the end of the job."""
    heard: list[Event] = []
    assert follow(Follower(job), heard.append, timeout=timeout) is not None, "the job did not end in time"
    return heard


def text(heard: list[Event], host: int, kinds: str = "oe", attempt: int | None = None) -> str:
    """The output of one host."""
    return b"".join(
        event.text
        for event in heard
        if isinstance(event, Output) and event.host == host and event.kind in kinds
        if attempt in (None, event.attempt)
    ).decode("utf-8", "replace")


def load_jobs(folder: Path, name: str) -> Any:
    """The functions of `fault_jobs.py` as the module `name`, from a project that has nothing else."""
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    copy = folder / f"{name}.py"
    shutil.copy(Path(__file__).with_name("fault_jobs.py"), copy)
    spec = importlib.util.spec_from_file_location(name, copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
