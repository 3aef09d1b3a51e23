"""The gate's repetitions, names and failures; `.ci/run` runs its steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.gate import again, skips

ROOT = Path(__file__).parents[3]

PROJECT = """
import os, pathlib, pytest

@pytest.mark.parametrize("which", ["a b", "c[d]"])
def test_flaky(which):
    assert "PYTEST_XDIST_WORKER" not in os.environ

def test_twice():
    mark = pathlib.Path(__file__).with_name("mark")
    was_there = mark.exists()
    mark.touch()
    assert was_there

def test_good():
    assert False, "what passed does not run again"

def test_crashing():
    os._exit(7)
"""


def _remember(cache: Path, *names: str) -> None:
    """Write pytest's cache of failed tests."""
    (cache / "v" / "cache").mkdir(parents=True)
    failed = {f"test_it.py::{name}": True for name in names}
    (cache / "v" / "cache" / "lastfailed").write_text(json.dumps(failed), encoding="utf-8")


def _again(folder: Path) -> tuple[int, list[str], list[str]]:
    """The exit code, the report of flaky tests, and the list that is written."""
    (folder / "test_it.py").write_text(PROJECT, encoding="utf-8")
    options = f"-n 2 -p no:kinetic -p no:anyio --basetemp={folder / 'temporary'}"
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {options}\n", encoding="utf-8")
    file = folder / "flaky"
    file.write_text("")
    command = [sys.executable, again.__file__, "1", sys.executable, str(folder / "cache"), str(file)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # of a worker
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environ)
    told = [line for line in done.stdout.splitlines() if line.startswith("flaky: ")]
    return done.returncode, told, file.read_text(encoding="utf-8").splitlines()


def test_what_failed_runs_once_more_alone_and_what_then_passes_is_named_while_the_rest_fails(tmp_path: Path) -> None:
    _remember(tmp_path / "cache", "test_flaky[a b]", "test_flaky[c[d]]", "test_twice")
    flaky = ["flaky: test_it.py::test_flaky[a b]", "flaky: test_it.py::test_flaky[c[d]]"]
    assert _again(tmp_path) == (1, flaky, flaky)
    flaky = ["flaky: test_it.py::test_twice"]  # which is all that pytest remembers now
    assert _again(tmp_path) == (0, flaky, flaky)


def test_a_crash_of_the_second_try_fails_and_names_nothing(tmp_path: Path) -> None:
    _remember(tmp_path / "cache", "test_flaky[a b]", "test_crashing")
    assert _again(tmp_path) == (7, [], [])


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (1, again.MOST + 1),  # more than a busy machine explains
        (1, 0),  # nobody knows what failed
        (2, 1),  # it was interrupted, or a file could not be collected
        (3, 1),  # a crash
        (4, 1),  # a bad option
        (137, 1),  # killed
    ],
)
def test_nothing_else_is_repeated(tmp_path: Path, code: int, names: int, capsys: pytest.CaptureFixture[str]) -> None:
    _remember(tmp_path, *(f"test_{number}" for number in range(names)))
    assert again.main(code, str(tmp_path / "no python"), tmp_path) == code
    assert capsys.readouterr().out == ""


SHARING = """
import pathlib, pytest

def look():
    mark = pathlib.Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        raise AssertionError("something was left")

@pytest.fixture(scope={scope!r})
def place():
    yield
    look()

@pytest.mark.parametrize("number", range(2))
def test_it(place, number):
    pass
"""


def _twice(folder: Path, project: str, workers: str = "0") -> tuple[str, int, str]:
    """Play a project that has this one's conftest, then again: what the first said, and how the second ended."""
    (folder / "test_it.py").write_text(project, encoding="utf-8")
    apart = f"-o cache_dir={folder / 'cache'} --basetemp={folder / 'temporary'}"  # else it clears what others have left
    options = f"-n {workers} --dist loadfile -p tests.conftest {apart}"
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {options}\n", encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONPATH"] = str(ROOT)
    commands = ["-m", "pytest", "test_it.py"], [again.__file__, "1", sys.executable, str(folder / "cache")]
    first, second = (
        subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=120, env=environ)
        for words in commands
    )
    assert first.returncode == again.FAILED, first.stdout + first.stderr
    return first.stdout, second.returncode, second.stdout


@pytest.mark.slow
@pytest.mark.turn
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("scope", ["function", "module", "session"])
def test_what_tests_share_and_fails_as_it_ends_has_no_second_try(tmp_path: Path, scope: str, workers: str) -> None:
    """Alone, the test after which it ended makes a new one, which proves nothing of the first; a place of one test does."""
    first, code, told = _twice(tmp_path, SHARING.format(scope=scope), workers)
    assert "2 passed" in first and "1 error" in first
    if scope == "function":
        assert code == 0, told
        assert "flaky: test_it.py::test_it[" in told
    else:
        assert code == again.FAILED
        assert told == "not repeated, for it is of what tests share: test_it.py::test_it[1]\n"


def test_a_wrong_exchange_before_a_test_in_what_tests_share_has_no_second_try(tmp_path: Path) -> None:
    planted = """
from tests.support.exchanges.recorder import Recorder

def findings(self):
    try:
        look()
    except AssertionError as error:
        return [error]
    return []

Recorder.findings = findings
"""
    first, code, told = _twice(tmp_path, SHARING.format(scope="function").replace("    look()\n", "", 1) + planted)
    assert "before this test, in what tests share, 1 departures" in first
    assert "1 passed" in first and "1 error" in first
    assert (code, told) == (again.FAILED, "not repeated, for it is of what tests share: test_it.py::test_it[0]\n")


def _gate(tmp_path: Path, steps: str) -> tuple[int, str]:
    """A gate of these steps, in a folder that has what the real one's checkout has."""
    for name in (".venv", "tests", ".ci"):
        (tmp_path / name).symlink_to(ROOT / name if name != ".venv" else Path(sys.prefix))
    script = f"set -euo pipefail\nwork=$(mktemp -d)\n. .ci/steps\n{steps}\n"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_temporary_files_lie_in_memory_where_there_is_enough_and_nothing_of_them_is_left(tmp_path: Path) -> None:
    mount = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if (made := subprocess.run(mount, capture_output=True, text=True)).returncode:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    code, told = _gate(
        tmp_path,
        'mkdir "$work/tmp"; in_memory 1000000 && exit 7\nin_memory 0\necho >"$work/tmp/file"\n'
        'echo "at $work is $(stat -f -c %T "$work/tmp")"; stat -c "on %d" "$work/tmp" "$work" "$DISK_OF_TESTS"',
    )
    assert code == 0, told
    [(folder, kind)] = re.findall(r"(?m)^at (\S+) is (\w+)$", told)
    assert kind == "tmpfs"
    memory, disk, environments = re.findall(r"(?m)^on (\d+)$", told)
    assert memory != disk == environments, "gigabytes stay on the disk"
    assert not Path(folder).exists()
    assert folder not in Path("/proc/self/mounts").read_text("utf-8")


TRUE = "root may write anywhere" if os.geteuid() == 0 else "only root may be another user"  # of this machine
SKIPPED = f'skipped "the newest Dagster" "{TRUE}"'


def test_a_red_gate_says_how_long_its_steps_took_what_was_flaky_and_what_was_skipped(tmp_path: Path) -> None:
    code, told = _gate(
        tmp_path,
        f'step first 100\n{SKIPPED}\necho "flaky: a test" >>"$work/flaky"\nstep second 0\n'
        "set -m; sleep 300 & set +m\necho left $!\nsleep 1.1\nexit 3\n",
    )
    assert code == 3
    first, second, *_ = re.findall(r"(?m)^ +(\d+s of +\d+s  .*)$", told)
    assert re.fullmatch(r"[01]s of   100s  first", first)
    assert re.fullmatch(r"[12]s of     0s  second, which is more than it should be", second)
    assert "\nflaky: a test\n" in told
    assert f"skipped: the newest Dagster: {TRUE}" in told
    assert "failed with 3" in told
    [left] = re.findall(r"left (\d+)", told)
    state = Path(f"/proc/{left}/stat")
    assert not state.exists() or state.read_text().rpartition(") ")[2].startswith("Z"), "what ran beside it goes on"


@pytest.mark.parametrize(("reason", "code"), [(TRUE, 0), ("no time", 1)])
def test_a_gate_of_which_something_was_skipped_for_a_reason_that_nobody_knows_is_red(
    tmp_path: Path, reason: str, code: int
) -> None:
    ended, told = _gate(tmp_path, f'step only 100\nskipped something "{reason}"')
    assert ended == code
    assert f"skipped: something: {reason}" in told
    assert ("== done" in told) == (code == 0)
    assert skips.trouble(skips.Skip("something", reason)) == "" or code == 1


def test_tests_that_fail_have_their_second_try_and_the_gate_its_end(tmp_path: Path) -> None:
    """Nothing is remembered of what failed here, so nothing is repeated."""
    assert _gate(tmp_path, "step only 100\ntests true\necho went on")[1].count("went on") == 1
    for name in (".venv", "tests", ".ci"):
        (tmp_path / name).unlink()
    code, told = _gate(tmp_path, "step only 100\ntests bash -c 'exit 5'\necho went on")
    assert code == 5
    assert "went on" not in told


def test_the_gate_has_steps_with_bounds_that_come_to_no_more_than_all_may_take_and_the_readme_says_so() -> None:
    run, steps = ((ROOT / ".ci" / name).read_text(encoding="utf-8") for name in ("run", "steps"))
    bounds = dict(re.findall(r'(?m)^step "([^"]+)" (\d+)\b', run))
    assert len(bounds) == run.count('\nstep "')
    [most] = re.findall(r"(?m)^LONGEST=(\d+)", steps)
    assert sum(map(int, bounds.values())) <= int(most)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    minutes = {"seven": 7, "eight": 8, "nine": 9}
    [said] = re.findall(r"its tests, which take about (\w+) minutes on two cores", readme)
    assert int(bounds["README, second command"]) == minutes[said] * 60
