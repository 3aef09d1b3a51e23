"""The process of the user's code: the names by which it tells whose matter a failure is."""

from __future__ import annotations

import ast
import pkgutil
import types
from pathlib import Path

import pytest

from kinetic_orchestration.host.process import child
from kinetic_orchestration.program import client_only
from kinetic_orchestration.protocol.content import payload

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
