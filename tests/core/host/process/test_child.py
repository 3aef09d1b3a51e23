"""The process of the user's code: the names by which it tells whose matter a failure is."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.host.process import child
from kinetic_orchestration.program import client_only
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.content import payload
from tests.support.faults import gone
from tests.support.waits import wait_until

pytestmark = pytest.mark.fast


def test_each_name_that_the_child_knows_by_its_text_alone_is_there() -> None:
    """One that is wrong would have our failure charged to the user, or a checkpoint lost without a word."""
    tree = ast.parse(Path(child.__file__).read_text())
    names = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    known = {name for name in names if name.startswith(child.OURS)}
    table = {child.OURS, child.ROOT, child.NO_ACCELERATOR, child.RECORD}
    table.update(child.ROOMS, child.USAGE, child.CALLERS, child.FINISH)
    assert known == table, "all of them are in the table"
    found = {name: pkgutil.resolve_name(name.removesuffix(".")) for name in known}
    assert {name for name, there in found.items() if isinstance(there, type)} == {
        child.ROOT, child.NO_ACCELERATOR, *child.USAGE
    }  # fmt: skip
    assert {type(found[name]) for name in (child.RECORD, *child.FINISH)} == {types.FunctionType}
    assert [found[name] for name in child.CALLERS] == [child, payload, client_only]


def test_a_program_whose_agent_dies_while_it_starts_never_runs(agents: Path, tmp_path: Path) -> None:
    """The orders lie in its pipe already: it asks the kernel to die with a parent that it no longer has."""
    ran, unpacked = tmp_path / "ran", next(folder for folder in agents.iterdir() if (folder / "site").is_dir())
    orders = {"drop": [], "env": {}, "cwd": str(tmp_path), "argv": ["touch", str(ran)]}
    agent = f"""\
import os, sys, types
sys.path.insert(0, {str(unpacked / "site")!r})
from kinetic_orchestration.host.process import pipes, supervisor
at = types.SimpleNamespace(marks=("KINETIC_TEST=1",), python=sys.executable)
host = supervisor.Supervisor(at, {str(tmp_path)!r}, None, None)
host.spawn(sys.executable, pipes.COMMAND, {{}}, isolated=False)
host.begin({orders!r})
print(host.child, flush=True)
os._exit(0)
"""
    told = subprocess.run([sys.executable, "-I", "-c", agent], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    wait_until(lambda: gone(int(told.stdout)))
    assert not ran.exists()


class Unloadable:
    """Raises when it is loaded, as a function's code does under another minor version."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_a_call_of_another_python_is_told_by_both_versions_and_is_no_failure_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = payload.PYTHON
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(payload, "PYTHON", "2.7")
        digest, _ = payload.dump(Unloadable(), tmp_path / "call")
        payload.dump("loads all the same", tmp_path / "plain")
    told = rf"pickled by Python 2\.7, and this is Python {here}, .*ValueError: .*no number.* image with Python 2\.7"
    with pytest.raises(payload.OtherPython, match=told) as caught:
        payload.load(tmp_path / "call", digest)
    assert child._cause(caught.value) == wire.CONFIGURATION
    assert payload.load(tmp_path / "plain") == "loads all the same"
    payload.dump(Unloadable(), tmp_path / "own")
    with pytest.raises(ValueError, match="no number"):
        payload.load(tmp_path / "own")
