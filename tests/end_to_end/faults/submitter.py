"""Submitters that die: run as a program, because it forks, and each child is a submitter of its own.

    python submitter.py lines STEP | hosts | race | stale

prints one JSON object. A submitter is killed by itself at a chosen line, and whoever asks for the same key next
must find one job, one run of the function and one result.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Container, Iterator
from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.jobs import job, launch, request
from kinetic_orchestration.jobs.following import actions, drivers, follower, held_time, logs, verdicts
from kinetic_orchestration.packaging import staging
from kinetic_orchestration.packaging.source import tree  # noqa: F401 - before any fork
from kinetic_orchestration.plan import identity
from kinetic_orchestration.platforms.local import backend

MODULES = (request, launch, job, verdicts, actions, held_time, follower, logs, drivers, staging, identity, backend)
FILES = {module.__file__ for module in MODULES}


def work(marks: str) -> int:
    """Leaves a mark for each time that it is run."""
    host = kinetic.current()
    with open(marks, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f"{host.host_index}\n")
    return os.getpid()


def submit(key: str, marks: str, accelerator: str = "cpu") -> Any:
    return kinetic.run(accelerator=accelerator, key=key)(work).run_async(marks).result(timeout=60)


def runs(marks: str) -> int:
    """The number of hosts that ran the function."""
    if not os.path.exists(marks):
        return 0
    with open(marks, encoding="utf-8") as file:  # noqa: PTH123
        return len(file.readlines())


def fork(body: Callable[[], Any], report: str = "") -> int:
    """A child that does it and ends; its value goes to the file `report`."""
    child = os.fork()
    if child:
        return child
    try:
        value = body()
        if report:
            with open(report + ".part", "w", encoding="utf-8") as file:  # noqa: PTH123
                json.dump(value, file)
            os.rename(report + ".part", report)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_line(
    chosen: Callable[[str, str, int], bool], action: Callable[[], object], files: Container[str] = FILES
) -> None:
    """Acts before the first line of the core that is chosen is run, by module, function and number."""

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in files:
            return None
        if event == "line" and chosen(frame.f_globals["__name__"], code.co_name, frame.f_lineno):
            action()
        return trace

    sys.settrace(trace)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lines_of(key: str, folder: str) -> list[tuple[str, str, int]]:
    """Every line of the core that one submission runs, in the order in which they are first reached."""
    seen: dict[tuple[str, str, int], None] = {}

    def remember(*line: Any) -> bool:
        seen[line] = None
        return False

    def body() -> list[tuple[str, str, int]]:
        at_line(remember, die)
        kinetic.run(accelerator="cpu", key=key)(work).run_async(folder + "/counted")
        sys.settrace(None)
        submit(key, folder + "/counted")
        return list(seen)

    assert wait(fork(body, folder + "/lines")) == 0
    with open(folder + "/lines", encoding="utf-8") as file:  # noqa: PTH123
        return [(name, function, number) for name, function, number in json.load(file)]


def lines(step: int, folder: str) -> dict[str, Any]:
    """A submitter is killed at every `step`th line; another asks for the same key."""
    found = lines_of("counted", folder)
    wrong, killed_at = [], 0
    for number, line in enumerate(found[::step]):
        key, marks = f"line-{number}", f"{folder}/marks-{number}"

        def killed(key: str = key, marks: str = marks, line: tuple[str, str, int] = line) -> Any:
            at_line(lambda *at: at == line, die)
            return submit(key, marks)

        ended = wait(fork(killed))
        again = wait(fork(lambda key=key, marks=marks: submit(key, marks)))
        killed_at += ended == -signal.SIGKILL  # a line of the reaper, say, is not reached each time
        if ended not in (-signal.SIGKILL, 0) or (again, runs(marks)) != (0, 1):
            wrong.append((line, ended, again, runs(marks)))
    return {"lines": len(found), "killed": killed_at, "wrong": wrong}


def hosts(folder: str) -> dict[str, Any]:
    """A submitter of four hosts is killed when it has made 0, 1, 2, 3 of them; another asks for the same key."""
    wrong = []
    for made in range(4):
        key, marks = f"hosts-{made}", f"{folder}/hosts-{made}"

        def killed(key: str = key, marks: str = marks, made: int = made) -> Any:
            launched = iter(range(made))
            real = backend.LocalBackend.assignment

            def assignment(*arguments: Any) -> Any:
                if next(launched, None) is None:
                    for child in launchers():
                        os.waitpid(child, 0)
                    die()
                return real(*arguments)

            backend.LocalBackend.assignment = assignment  # type: ignore[method-assign] # a line to die at
            return submit(key, marks, "v5e-16")

        ended = wait(fork(killed))
        again = wait(fork(lambda key=key, marks=marks: submit(key, marks, "v5e-16")))
        if (ended, again, runs(marks)) != (-signal.SIGKILL, 0, 4):
            wrong.append((made, ended, again, runs(marks)))
    return {"wrong": wrong}


def launchers() -> Iterator[int]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children", encoding="ascii") as file:  # noqa: PTH123
        yield from map(int, file.read().split())


def race(folder: str) -> dict[str, Any]:
    """Six submitters ask for one key at the same moment."""
    marks = folder + "/race"
    ready, go = os.pipe()

    def body() -> Any:
        os.close(go)
        os.read(ready, 1)
        return submit("race", marks, "v5e-16")

    children = [fork(body, f"{folder}/race-{number}") for number in range(6)]
    os.close(go)
    ended = [wait(child) for child in children]
    values = set()
    for number in range(6):
        with open(f"{folder}/race-{number}", encoding="utf-8") as file:  # noqa: PTH123
            values.add(json.load(file))
    return {"ended": ended, "values": len(values), "runs": runs(marks)}


def stale(folder: str) -> dict[str, Any]:
    """A submitter falls asleep before its create call and wakes up when the job has ended long ago."""
    marks = folder + "/stale"

    def sleeper() -> Any:
        at_line(lambda name, function, _: (name, function) == (backend.__name__, "submit"), sleep)
        return submit("stale", marks)

    def sleep() -> None:
        sys.settrace(None)
        os.kill(os.getpid(), signal.SIGSTOP)

    child = fork(sleeper, folder + "/sleeper")
    os.waitpid(child, os.WUNTRACED)
    assert wait(fork(lambda: submit("stale", marks), folder + "/other")) == 0
    os.kill(child, signal.SIGCONT)
    ended = wait(child)
    values = set()
    for name in ("sleeper", "other"):
        with open(f"{folder}/{name}", encoding="utf-8") as file:  # noqa: PTH123
            values.add(json.load(file))
    return {"ended": ended, "values": len(values), "runs": runs(marks)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        mode, *rest = sys.argv[1:]
        print(json.dumps(globals()[mode](*map(int, rest), place)))
