"""The agent's main class stays one that can be read: its parts hold what they know, and it says what comes when."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kinetic_orchestration.host import host
from kinetic_orchestration.host.attempt import outcome

pytestmark = pytest.mark.fast

SOURCE = Path(host.__file__).read_text("utf-8")


def assigned(function: ast.AST) -> set[str]:
    """Return the attributes of `self` that a function sets."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def test_a_host_has_every_attribute_from_its_beginning() -> None:
    (found,) = (node for node in ast.parse(SOURCE).body if isinstance(node, ast.ClassDef))
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    assert not [node for node in found.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    declared = assigned(methods["__init__"])
    assert declared
    assert {name: assigned(method) - declared for name, method in methods.items() if assigned(method) - declared} == {}


def test_a_host_asks_neither_where_the_store_is_nor_whose_the_machine_is() -> None:
    asked = {node.attr for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Attribute)}
    assert not asked & {"remote", "resource"}


def test_a_host_and_what_it_knows_of_its_attempt_have_types() -> None:
    for path in (Path(host.__file__), *Path(str(outcome.__file__)).parent.glob("*.py")):
        named = {node.id for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Name)}
        assert "Any" not in named, path.name


def test_a_host_is_short() -> None:
    assert len(SOURCE.splitlines()) < 450
