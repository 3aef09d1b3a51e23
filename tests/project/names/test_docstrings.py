"""Docstrings name what is there: each exception that one announces, and each identifier that one quotes."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks import structure
from tests.support.pages import ROOT

pytestmark = pytest.mark.fast

WORD = re.compile(r"[^\W\d]\w*")
QUOTED = re.compile(r"(?<!`)`([^\W\d][\w.]*)(?:\(\))?`(?!`)")
RAISED = re.compile(r"\bRaises?\s+((?:`?[A-Z]\w+`?(?:,\s+|\s+or\s+|\s+and\s+)?)+)")
LISTED = re.compile(r"^ *Raises:\n((?: {4,}.*\n?)+)", re.MULTILINE)
ELSEWHERE = {"PythonOperator", "Response", "eu", "object_getstate_default"}  # of Airflow, HTTP, a URL and CPython
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module, of its classes and of its functions."""
    body = getattr(node, "body", ())
    if isinstance(node, OWNERS) and body and isinstance(body[0], ast.Expr):
        said = body[0].value
        if isinstance(said, ast.Constant) and isinstance(said.value, str):
            yield said
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                yield from docstrings(child)


def words_of(text: str, tree: ast.AST) -> set[str]:
    """Return the words of a module's lines other than those of its docstrings."""
    lines = text.splitlines()
    for node in docstrings(tree):
        lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return set(WORD.findall("\n".join(lines)))


def raised(text: str) -> Iterator[str]:
    """Yield the exceptions that a docstring announces, in its sentences or in its section."""
    for names in RAISED.findall(text):
        yield from re.findall(r"[A-Z]\w+", names)
    for section in LISTED.findall(text):
        yield from re.findall(r"^ +([A-Z]\w+):", section, re.MULTILINE)


def quoted(text: str) -> Iterator[str]:
    """Yield the words of the identifiers between backticks."""
    for name in QUOTED.findall(text):
        yield from WORD.findall(name)


def known(modules: list[structure.Module]) -> set[str]:
    """Return the words of the code of all packages, the names of their files, and what Python has built in."""
    found = {word for module in modules for word in words_of(module.text, module.tree)}
    paths = (path for name in structure.PACKAGES for path in Path(ROOT, name).rglob("*"))
    named = {word for path in paths if "__pycache__" not in path.parts for word in WORD.findall(path.name)}
    return found | named | ELSEWHERE | {*dir(builtins), *keyword.kwlist}


def test_what_is_announced_or_quoted_and_is_nowhere_is_found() -> None:
    text = 'def f(x):\n    """Return `gone.x`, or `f()`. Raises Shut, OSError.\n    """\n    raise KeyError("a key")\n'
    [node] = docstrings(tree := ast.parse(text))
    said = str(node.value)
    assert [*raised(said), *quoted(said)] == ["Shut", "OSError", "gone", "x", "f"]
    assert words_of(text, tree) == {"def", "f", "x", "raise", "KeyError", "a", "key"}
    assert list(raised("Open it.\n\nRaises:\n    UsageError: It is wrong.\n    Shut: Now.\n")) == ["UsageError", "Shut"]


def test_docstrings_announce_exceptions_and_quote_identifiers_that_exist() -> None:
    modules = structure.read(ROOT, structure.PACKAGES)
    there = known(modules)
    gone = [
        f"{module.name}: {word}"
        for module in modules
        for node in docstrings(module.tree)
        for word in (*raised(str(node.value)), *quoted(str(node.value)))
        if word not in there
    ]
    assert not gone, "\n".join(gone)
