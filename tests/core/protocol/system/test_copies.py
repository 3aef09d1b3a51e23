"""Tables that all threads of a process share are iterated in a copy: another thread may change them at any line."""

from __future__ import annotations

import ast
import gc
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kinetic_orchestration as kinetic

ROOT = Path(__file__).parents[4]
SHARED = (("os", "environ"), ("sys", "modules"))
SINGLE = {"get", "pop", "setdefault", "update"}  # of its methods, those that look at one item, or none
EXCEPT = {
    "kinetic_orchestration/protocol/system/copies.py": "makes the copies",
    "kinetic_orchestration/host/process/hook/sitecustomize.py": "makes its own, where ours cannot be imported",
    "kinetic_orchestration/host/machine/pod/start.py": "a program of one thread, which has no other module of ours",
    "kinetic_orchestration/testing/vms/init.py": "a script of one thread",
}


def walks(tree: ast.AST) -> Iterator[ast.expr]:
    """Yields each use of a shared table that is not of a single item of it."""
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or not (_is_shared(node) or _is_namespace(node)):
            continue
        parent = parents[node]
        single = (
            (isinstance(parent, ast.Subscript) and parent.value is node)
            or (isinstance(parent, ast.Attribute) and parent.attr in SINGLE)
            or (isinstance(parent, ast.Compare) and node in parent.comparators)
            or (isinstance(node, ast.Attribute) and node.attr == "environ" and _takes_names(parent, node))
            or (_is_namespace(node) and _is_left_whole(parent))
        )
        if not single:
            yield node


def _is_shared(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in SHARED


def _is_namespace(node: ast.expr) -> bool:
    """Return True for the attributes of a module, a class or an object, and for this module's globals."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return (node.func.id, len(node.args)) in (("vars", 1), ("globals", 0))
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def _is_left_whole(parent: ast.AST) -> bool:
    """A namespace is an own dict of its owner, whose copy is one step of the interpreter. Or it is handed on itself."""
    copied = isinstance(parent, ast.Attribute) and parent.attr == "copy"
    named = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "id"
    return copied or named or isinstance(parent, ast.Return)


def _takes_names(parent: ast.AST, node: ast.Attribute) -> bool:
    """Return True if only the names of variables are iterated: `os` itself copies them, so that is safe."""
    named = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in ("list", "sorted")
    return named or (isinstance(parent, ast.For | ast.comprehension) and parent.iter is node)


@pytest.mark.parametrize(
    "line",
    [
        "{**os.environ, 'A': '1'}",
        "dict(os.environ)",
        "os.environ.items()",
        "os.environ | {}",
        "walk(os.environ)",
        "list(sys.modules)",
        "for name, module in sys.modules.items(): pass",
        "for name, value in vars(module).items(): pass",
        "for name in vars(kind): pass",
        "dict(vars(error))",
        "{*globals(), 'a'}",
        "[*module.__dict__.values()]",
        "any(name in found for name in self.__dict__)",
        "{**kind.__dict__}",
        "walk(type(self).__dict__ or {})",
        "(type(self), (), self.__dict__)",
    ],
)
def test_a_walk_over_a_shared_table_is_found(line: str) -> None:
    assert len([*walks(ast.parse(line))]) == 1


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['A'] = ''",
        "os.environ.get('A')",
        "'A' in os.environ",
        "sys.modules[a]",
        "[n for n in os.environ]",
        "globals()[name] = value",
        "vars(module).get('__file__')",
        "name in vars(kind)",
        "kind.__dict__['a']",
        "for name in vars(module).copy(): pass",
        "found[id(vars(module))]",
        "def namespace(module): return module.__dict__",
    ],
)
def test_a_look_at_one_item_is_none(line: str) -> None:
    assert not [*walks(ast.parse(line))]


@pytest.mark.slow
@pytest.mark.turn
def test_no_code_of_ours_walks_over_them() -> None:
    found = []
    for package in ("kinetic_orchestration", "airflow_kinetic", "dagster_kinetic"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name not in EXCEPT:
                tree = ast.parse(path.read_text(encoding="utf-8"))
                found += [f"{name}:{node.lineno}: {ast.unparse(node)}" for node in walks(tree)]
    assert not found, "\n".join(found)


@contextmanager
def others_at_work() -> Iterator[list[str]]:
    """Modules and variables that come and go whenever the garbage collector runs, which is at nearly any line: what
    other threads do, without waiting for the unlucky moment. Yields their names so far."""
    made: list[str] = []

    def come_and_go(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            name = f"meanwhile_{len(made)}"
            made.append(name)
            sys.modules[name] = types.ModuleType(name)
            os.environ[name] = "1"
            for gone in made[-3:-2]:
                sys.modules.pop(gone, None)
                os.environ.pop(gone, None)

    threshold = gc.get_threshold()
    gc.callbacks.append(come_and_go)
    gc.set_threshold(20)
    try:
        yield made
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(come_and_go)
        for name in made:
            sys.modules.pop(name, None)
            os.environ.pop(name, None)


@kinetic.run(accelerator="cpu", capture_env_vars=["OF_THIS_TEST_*"])
def with_variables(table: dict[str, int]) -> tuple[str, int]:
    return os.environ["OF_THIS_TEST_A"], sum(table.values())


@pytest.mark.usefixtures("home")
def test_a_job_is_submitted_while_others_import_and_set_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THIS_TEST_A", "a")
    with others_at_work() as made:
        job = with_variables.run_async({"one": 1, "two": 2})
    assert job.result(timeout=60) == ("a", 3)
    assert len(made) > 100
