"""Names a command's parser for its hosts, and loads it there.

A parser of the user's travels with the project, as the rest of the code does: by the name of its module, or by its file
if that is the program that submits.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import operator
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.host.process.topology import METRICS
from kinetic_orchestration.program.trainers.parsers import READY, Parser

_LARGEST = 4096  # bytes of the variable


def variables(metrics: Any, file: str | os.PathLike[str] | None, folder: str) -> dict[str, str]:
    """Return the variables by which the hosts of a command know how to read its numbers; none without a parser.

    Args:
        metrics: Name of a ready parser, `"module:name"` or `"file.py:name"` of another one, a function or a class.
        file: File of metrics, by its path from the command's folder, with `*` and variables such as
            `$KINETIC_OUTPUT_DIR`; None for the lines of the output.
        folder: The command's folder.

    Raises:
        UsageError: It is none of these, or a host could not find it.
    """
    if metrics is None:
        if file is not None:
            raise UsageError(f"metrics_file={os.fspath(file)!r} needs metrics=, which says how it is read: {_ready()}")
        return {}
    told = {"parser": _name_of(metrics, folder), **({} if file is None else {"file": os.fspath(file)})}
    text = json.dumps(told, separators=(",", ":"))
    if len(text) > _LARGEST:
        raise UsageError("metrics= and metrics_file= are too long together: name a file by a shorter path")
    return {METRICS: text}


def load(name: str, path: Sequence[str], folder: str) -> Callable[[Sequence[str]], Parser]:
    """Return the maker of a parser by its name: a class, or a function that returns a function as it is.

    Args:
        name: As `variables` gave it.
        path: Folders in which modules of the project are looked for.
        folder: The command's folder, from which files are named.

    Raises:
        ImportError: Its module or file is not there, or fails.
        AttributeError: It has no such name.
    """
    if name in READY:
        return READY[name]
    where, _, wanted = name.partition(":")
    if where.endswith(".py"):
        file = os.path.join(folder, where)
        sys.path[:0] = [os.path.dirname(os.path.abspath(file)), *path]
        spec = importlib.util.spec_from_file_location("kinetic_parser", file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules["kinetic_parser"] = module
        spec.loader.exec_module(module)
    else:
        sys.path[:0] = path
        module = importlib.import_module(where)
    target: Any = operator.attrgetter(wanted)(module)
    return target if isinstance(target, type) else lambda argv: target


def _name_of(metrics: Any, folder: str) -> str:
    if isinstance(metrics, str):
        if metrics not in READY and not all(metrics.partition(":")):
            raise UsageError(f"metrics={metrics!r} names no parser: {_ready()}")
        return metrics
    name = str(getattr(metrics, "__qualname__", ""))
    module = sys.modules.get(str(getattr(metrics, "__module__", "")))
    try:
        there = module is not None and operator.attrgetter(name)(module) is metrics
    except AttributeError:
        there = False
    if not callable(metrics) or module is None or not there:
        raise UsageError(
            f"metrics={metrics!r} cannot be found by its name on a host: write a function or a class at the top of a "
            f"module of your project, or {_ready()}"
        )
    if module.__name__ != "__main__":
        return f"{module.__name__}:{name}"
    file = getattr(module, "__file__", None)
    if not file:
        raise UsageError(f"metrics={name} is written in a prompt or a notebook: put it into a module of your project")
    return f"{os.path.relpath(file, folder)}:{name}"


def _ready() -> str:
    return f"""name one of {", ".join(repr(name) for name in sorted(READY))}, or "module:function" of your project"""
