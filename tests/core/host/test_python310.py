"""The agent runs under Python 3.10, whatever this machine has."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.platforms.shared import agent_zip
from tests.support.by_hand import intended, start_host
from tests.support.interpreters import OLDEST, required

pytestmark = pytest.mark.fast

PACKAGE = Path(kinetic.__file__).parent
FILES = [path for room in ("host", "protocol") for path in sorted((PACKAGE / room).rglob("*.py"))]


@pytest.mark.parametrize(
    "path", [PACKAGE / "__init__.py", *FILES], ids=lambda path: path.relative_to(PACKAGE).as_posix()
)
def test_each_file_is_written_in_python_3_10(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 10))


def test_nothing_is_named_that_only_a_later_standard_library_has() -> None:
    """The usual names of later versions, as far as they can be found without a Python 3.10."""
    later = {
        "tomllib",
        "StrEnum",
        "ExceptionGroup",
        "BaseExceptionGroup",
        "Self",
        "UTC",
        "add_note",
        "TaskGroup",
        "batched",
    }
    for path in FILES:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = {alias.name for alias in node.names} if isinstance(node, (ast.Import, ast.ImportFrom)) else set()
            names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            names |= {node.attr} if isinstance(node, ast.Attribute) else set()
            names |= {node.id} if isinstance(node, ast.Name) else set()
            assert not names & later, f"{path.name}: {names & later}"


@pytest.fixture
def python() -> str:
    return required(OLDEST)


MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in FILES
    if path.stem != "__init__" and path.parent.name != "hook"
]


def test_a_python_3_10_imports_every_module_from_the_zip(python: str, tmp_path: Path) -> None:
    packed = tmp_path / "agent.zip"
    packed.write_bytes(agent_zip.build().data)
    assert len(MODULES) > 40
    program = f"import sys, importlib\nsys.path.insert(0, {str(packed / 'site')!r})\nfor name in {MODULES!r}: importlib.import_module(name)"
    done = subprocess.run(
        [python, "-I", "-S", "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_python_3_10_compiles_each_module_of_the_agent_once(python: str, tmp_path: Path) -> None:
    """`zipimport` by itself compiles each one twice: to find its path, and to run it."""
    packed = tmp_path / "agent.zip"
    packed.write_bytes(agent_zip.build().data)
    program = f"""
import collections, contextlib, importlib, sys
compiled = collections.Counter()
sys.addaudithook(lambda event, of: compiled.update([of[1]]) if event == "compile" else None)
import boot
with contextlib.suppress(IndexError):  # it has no assignment
    boot.run({str(packed)!r}, ["agent"])
for name in {MODULES!r}:
    importlib.import_module(name)
found = {{name.partition("/site/")[2]: times for name, times in compiled.items() if isinstance(name, str) and "/site/" in name}}
print(len(found), [name for name, times in found.items() if times > 1])
"""
    shutil.copy(PACKAGE / "host" / "machine" / "bootstrap.py", tmp_path / "boot.py")  # as a VM has it
    done = subprocess.run(
        [python, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    count, _, twice = done.stdout.strip().partition(" ")
    assert (done.stderr, twice) == ("", "[]")
    assert int(count) >= len(MODULES)


def test_a_python_3_10_is_a_host(home: Path, python: str, tmp_path: Path) -> None:
    """The whole life of a host: it prepares, runs a command, ships its lines, and tells how it ended."""
    packed, project = tmp_path / "agent.zip", tmp_path / "project"
    packed.write_bytes(agent_zip.build().data)
    project.mkdir()
    (project / "main.sh").write_text("echo begun; echo to stderr >&2; test $KINETIC_HOST_COUNT = 1 && echo ended\n")
    job = intended(argv=["sh", "main.sh"], cwd=str(project))
    start_host(job, python, packed)
    handle = kinetic.attach(job.job_id)
    handle.result()
    assert sorted((handle.logs() or "").splitlines()) == ["begun", "ended", "to stderr"]

    job = intended(argv=["sh", "-c", "exit 3"], cwd=str(project))
    start_host(job, python, packed)
    with pytest.raises(kinetic.errors.JobFailed, match="exit code 3"):
        kinetic.attach(job.job_id).result()
