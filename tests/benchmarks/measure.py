"""Shared parts of all figures: rounds in which the floor and the measurement take turns, and the row that is printed."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

Figure = dict[str, Any]


def figure(
    name: str, value: float, unit: str, floor: float, target: float | None, *, at_least: bool = False, **more: Any
) -> Figure:
    """`ratio` is value / floor. It may be `target` at most, or must be that `at_least`; without one it only informs."""
    ratio = value / floor
    ok = None if target is None else (ratio >= target if at_least else ratio <= target)
    return {
        "name": name, "value": _short(value), "unit": unit, "floor": _short(floor), "ratio": _short(ratio),
        "target": target, "ok": ok, **more,
    }  # fmt: skip


def bounded(name: str, value: float, unit: str, target: float | None, *, floor: float | None = None) -> Figure:
    """A figure whose target is a number in its own unit; the floor, if there is one, only informs."""
    ratio = _short(value / floor) if floor else None
    return {
        "name": name, "value": _short(value), "unit": unit, "floor": None if floor is None else _short(floor),
        "ratio": ratio, "target": target, "ok": None if target is None else value <= target,
    }  # fmt: skip


def interleaved(rounds: int, *works: Callable[[], object]) -> list[float]:
    """The median seconds of each. They take turns, so what else the machine does falls on all of them."""
    taken: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for work, times in zip(works, taken, strict=True):
            taken_now = seconds(work)
            if number:  # the first round warms up
                times.append(taken_now)
    return [statistics.median(times) for times in taken]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def processors_of_session(leader: int) -> float:
    """The seconds of processors that the processes of a session have used, which live."""
    used = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == leader:
            used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


def environment(**more: str) -> dict[str, str]:
    """The environment of a measured process: nobody's settings, and byte code is read and written as usual."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KINETIC_")}
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        kept.pop(name, None)
    return {**kept, **more}


def python(*arguments: str, executable: str = sys.executable, env: Mapping[str, str] | None = None) -> None:
    """Run an interpreter to its end, at the smallest cost to the one who waits."""
    pid = os.posix_spawn(executable, [executable, *arguments], dict(env) if env is not None else environment())
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"python {' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")


@contextmanager
def project(**files: str) -> Iterator[Path]:
    """A small project in a temporary folder, importable, with a Kinetic home of its own beside it."""
    with tempfile.TemporaryDirectory(prefix="kinetic-benchmark-") as name:
        folder = Path(name) / "project"
        folder.mkdir()
        (folder / "pyproject.toml").write_text('[project]\nname = "benchmark"\nversion = "1"\n')
        for module, text in files.items():
            (folder / f"{module}.py").write_text(text)
        os.environ["KINETIC_HOME"] = str(Path(name) / "home")
        sys.path.insert(0, str(folder))
        try:
            yield folder
        finally:
            sys.path.remove(str(folder))
            del os.environ["KINETIC_HOME"]
            for module in files:
                sys.modules.pop(module, None)


def has(module: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def compile_byte_code() -> None:
    """Compile the packages that are measured, so that no first import pays for it."""
    command = [sys.executable, "-m", "compileall", "-q"]
    folders = [str(ROOT / name) for name in ("kinetic_orchestration", "dagster_kinetic", "airflow_kinetic")]
    subprocess.run([*command, *folders], env=environment(), check=True)


def _short(number: float) -> float:
    return float(f"{number:.4g}")
