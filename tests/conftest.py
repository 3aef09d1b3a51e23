"""Shared by every test: a home of its own, and the proof that it left no process running there."""

from __future__ import annotations

import fcntl
import gc
import inspect
import os
import signal
import traceback
import types
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.platforms.shared import agent_zip, rate_limit
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.api_rules import journal
from tests.project.gate import again, skips
from tests.support import interpreters
from tests.support.exchanges.recorder import Recorder, told
from tests.support.leftovers import left_in

# What is compiled here runs for a moment: XLA's optimisations take longer than they gain. What a program compiles once
# more, it finds in its home, however short that took.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

# The gate moves HOME, by which an emulated machine finds other Pythons.
if (pyenv := interpreters.pyenv()).is_dir():
    os.environ.setdefault("PYENV_ROOT", str(pyenv))

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.support.exchanges.openapi import Documents

pytest_plugins = ["tests.support.kubernetes.fixtures"]  # here, so that all files share what is made once

TESTS = Path(__file__).parent

# What takes longest, as a whole or in one test: none of it is begun when another worker has nothing left to do.
FIRST = (
    "simulation", "airflow_kinetic/live", "core/program/trainers/test_keras_callback.py", "core/program/checkpoints/test_hosts.py",
    "end_to_end/kubernetes", "core/platforms/kubernetes", "dagster_kinetic/live", "end_to_end/frameworks",
    "end_to_end/disasters", "end_to_end/security/test_damage.py", "core/platforms/google/tpu/test_contract.py",
    "core/platforms/google/compute/test_contract.py", "end_to_end/cloud", "end_to_end/compute",
    "core/platforms/test_other_package.py", "core/cli/verify/test_baseline.py", "project",
    "airflow_kinetic", "end_to_end/faults", "dagster_kinetic/sensors",
)  # fmt: skip

TURNS = 10  # of which the gate plays one for each number of commits: `turn` of pyproject.toml's markers


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which nothing is asked for are not even imported: where only the fast selection is, or only what is slow."""
    asked = config.option.markexpr
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    if asked.startswith("fast"):
        return None if _is_fast(collection_path) else True
    if asked in ("slow", "slow and not offline"):
        return None if _has_slow(collection_path) else True
    return None


def _has_slow(path: Path) -> bool:
    """Return True if a file, or the conftest of its folder, marks anything as slow."""
    return any(
        "mark.slow" in file.read_text("utf-8") for file in (path, path.with_name("conftest.py")) if file.exists()
    )


def _is_fast(path: Path) -> bool:
    """Return True if a file marks its tests as fast."""
    return "\npytestmark = pytest.mark.fast\n" in path.read_text("utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Leave the slow tests of a fast file out of `-m fast`."""
    if config.option.markexpr == "fast":
        config.option.markexpr = "fast and not slow and not offline"


def pytest_collection() -> None:
    """Do not look for garbage while everything is imported, again and again through ever more of it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep all that is imported out of later searches for garbage."""
    gc.freeze()
    gc.enable()


def pytest_report_header() -> str | None:
    """Report which of the tests that take turns are played."""
    turn = _turn()
    return None if turn is None else f"of the tests that take turns, those of turn {turn} of {TURNS} are played"


def _turn() -> int | None:
    """The turn that TURN chooses, if it is set."""
    number = os.environ.get("TURN")
    return int(number) % TURNS if number else None


def _own_turn(item: pytest.Item, mark: pytest.Mark) -> int:
    """The turn of a test: the number of its mark; without one, drawn by its name, so that large families spread."""
    return mark.args[0] if mark.args else zlib.crc32(item.nodeid.encode()) % TURNS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first; of those that take turns, leave only one turn's where TURN is set, as in the gate."""
    own = {item: _own_turn(item, mark) for item in items if (mark := item.get_closest_marker("turn"))}
    if never := [item.nodeid for item, turn in own.items() if turn not in range(TURNS)]:
        raise pytest.UsageError(f"turns are 0 to {TURNS - 1}, so that no day would play {', '.join(never)}")
    if (today := _turn()) is not None:
        others = [item for item, turn in own.items() if turn != today]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    ranks: dict[Path, int] = {}
    for item in items:
        if item.path in ranks:
            continue
        there = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        ranks[item.path] = next((rank for rank, first in enumerate(FIRST) if there.startswith(first)), len(FIRST))
    items.sort(key=lambda item: ranks[item.path])


# Of fixtures in which a failure is no matter of one test, so that the test alone, once more, would not show it: the end of
# what several tests share, and what is found of that before a test.
_shared: dict[str, set[types.CodeType]] = {"setup": set(), "call": set(), "teardown": set()}


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    code = getattr(inspect.unwrap(fixturedef.func), "__code__", None)
    if code is not None and fixturedef.scope != "function":
        _shared["teardown"].add(code)
    elif code is not None and fixturedef.argname == "recorded":
        _shared["setup"].add(code)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and not _shared[call.when].isdisjoint(_codes(call.excinfo.value)):
        report.user_properties.append(("shared", report.nodeid))
    return report


def _codes(error: BaseException) -> Iterator[types.CodeType]:
    """The code of all functions through which it was raised."""
    yield from (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    for one in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _codes(one)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the paths of kept results such as pictures of pages; for the gate, also write down the skipped tests with
    their reasons, and the failures of shared fixtures.
    """
    skips.write_down(
        [
            skips.Skip(report.nodeid, report.longrepr[2].removeprefix("Skipped: "))
            for report in terminalreporter.stats.get("skipped", ())
            if isinstance(report.longrepr, tuple)
        ]
    )
    reports = [report for found in terminalreporter.stats.values() for report in found]
    told = [entry for report in reports for entry in getattr(report, "user_properties", ())]
    for folder in sorted({str(value) for name, value in told if name == "kept"}):
        terminalreporter.write_line(f"kept: {folder}")
    if (cache := getattr(config, "cache", None)) is not None:  # its plugin may be left out
        cache.set(again.SHARED, sorted({str(value) for name, value in told if name == "shared"}))


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """A shell gives what it starts in the background an ignored SIGINT, and so would we what we start: it would hear no
    Ctrl-C, nor Dagster, which takes one for the other, SIGTERM.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _openapi() -> Documents | None:
    from tests.support.kubernetes.published import documents  # may start a server, which most tests have no use for

    return documents()


@pytest.fixture(scope="session", autouse=True)
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """Records the exchanges between emulated clouds and clusters and their callers, checked against Google's discovery
    documents, and against the OpenAPI documents of a real API server where one was ever built."""
    recorder = Recorder(tmp_path_factory.mktemp("exchanges"), _openapi)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv(journal.VARIABLE, str(recorder.folder))
        yield recorder
        left = recorder.findings()
        recorder.close()
    if left:
        pytest.fail(f"after the last test, {told(left)}", pytrace=False)


@pytest.fixture(autouse=True)
def recorded(recorder: Recorder) -> Iterator[None]:
    """Each test answers for the exchanges in it; those between two tests are of a cloud that tests share."""
    if before := recorder.findings():
        pytest.fail(f"before this test, in what tests share, {told(before)}", pytrace=False)
    yield
    if found := recorder.findings():
        pytest.fail(told(found), pytrace=False)


@pytest.fixture(autouse=True)
def fresh_pace() -> None:
    """Each test looks at its zones as a process of its own would, however often the one before it looked at them."""
    rate_limit._paces.clear()


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent as the first job in a new home unpacks and compiles it, here and for other machines, which takes longer
    than much of a job: one worker does it for all."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "agents"
    home.mkdir(exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        agent_zip.unpacked(home)
        agent_zip.packed(home)
    return home / "agent"


@pytest.fixture
def home(tmp_path: Path, agents: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """KINETIC_HOME for this test alone. Afterwards no process of it may live, and no lock may be left."""
    yield from _own_home(tmp_path / "home", agents, monkeypatch)


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory, agents: Path) -> Iterator[Path]:
    """The same for all tests of a module, whose jobs then find their project staged."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield from _own_home(tmp_path_factory.mktemp("shared") / "home", agents, monkeypatch)


def _own_home(folder: Path, agents: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent").symlink_to(agents)
    for name in [name for name in os.environ if name.startswith("KINETIC_") and name != journal.VARIABLE]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_HOME", str(folder))
    yield folder
    left = left_in(folder, within=60.0)
    jobs = sorted(path.parent.name for path in (folder / "run").glob("*/host-*.json"))
    for process in left:
        processes.send(process.pid, signal.SIGKILL)
    locks = sorted(path.name for path in (folder / "run").glob("*/host-*.json")) if not left else []
    assert not left, f"processes of {jobs} were left behind, perhaps by a test that failed before: {left}"
    assert not locks, f"locks were left behind: {locks}"
