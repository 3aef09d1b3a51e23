"""Search for the part of a value that cannot be pickled, described so that the user finds the line that made it.

Responsible for walking into a value the way pickle does. Does not know how values are pickled: the test is passed in.
"""

from __future__ import annotations

import functools
import pickle
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from kinetic_orchestration.protocol.content.payload import reason_of
from kinetic_orchestration.protocol.system import copies

DEPTH = 40
SECONDS = 10.0
FIX = "Create it inside the function, or pass what is needed to create it"
_FIXES = {
    "generator": "Pass a list of what it yields, or create it inside the function",
    "coroutine": "Pass the async function and call it inside",
    "Task": "Await it first, and pass its result",
    "Future": "Wait for it first, and pass its result",
}

Test = Callable[[Any], Exception | None]


def find_culprit(value: Any, label: str, problem: Test) -> str | None:
    """The path to what fails inside `value` and why, or None if nothing does. Bounded in depth and time."""
    error = problem(value)
    if error is None:
        return None
    path = [label] if label else []
    deadline = time.monotonic() + SECONDS
    seen = {id(value)}
    while len(path) < DEPTH and time.monotonic() < deadline:
        failing = next(_failing(value, seen, problem), None)
        if failing is None:
            break
        step, value, error = failing
        path.append(step)
        seen.add(id(value))
    where = ", ".join(path) or f"the {type(value).__name__} itself"
    return f"{where}: {reason_of(error).rstrip('.')}. {_FIXES.get(type(value).__name__, FIX)}"


def _failing(value: Any, seen: set[int], problem: Test) -> Iterator[tuple[str, Any, Exception]]:
    for step, child in _children(value):
        if id(child) not in seen:
            error = problem(child)
            if error is not None:
                yield step, child, error


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        yield from of_function(value)
    elif isinstance(value, types.MethodType):
        yield f"the object of the method {value.__name__}", value.__self__
        yield f"the method {value.__name__}", value.__func__
    elif isinstance(value, functools.partial):
        yield "the function of the partial", value.func
        for number, item in enumerate(value.args, 1):
            yield f"argument {number} of the partial", item
        for name, item in value.keywords.items():
            yield f"keyword argument {name!r} of the partial", item
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, (staticmethod, classmethod)):
        yield "its function", value.__func__
    elif isinstance(value, property):
        for name in ("fget", "fset", "fdel"):
            yield f"its {name}", getattr(value, name)
    else:
        yield from _of_container(value)
        yield from _of_object(value)


def _of_container(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in dict.copy(value).items():
            yield f"item {_short(key)}", item
            yield f"key {_short(key)}", key
    elif isinstance(value, (list, tuple, deque)):
        for number, item in enumerate(list(value), 1):
            yield f"item {number}", item
    elif isinstance(value, (set, frozenset)):
        for item in list(value):
            yield f"element {_short(item)}", item


def of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    name = function.__name__
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"closure variable {variable!r} of {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    shared = function.__globals__.copy()
    for variable in dict.fromkeys(_globals(function.__code__)):
        if variable in shared:
            yield f"global {variable!r} used by {name}", shared[variable]
    for item in function.__defaults__ or ():
        yield f"a default value of {name}", item
    for parameter, item in (function.__kwdefaults__ or {}).items():
        yield f"the default of {parameter!r} of {name}", item
    for attribute, item in copies.members(function).items():
        yield f"attribute .{attribute} of {name}", item
    for parameter, item in getattr(function, "__annotations__", {}).items():
        yield f"the annotation of {parameter!r} of {name}", item


def _globals(code: types.CodeType) -> Iterator[str]:
    import dis

    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)


def _of_class(cls: type) -> Iterator[tuple[str, Any]]:
    for name, item in copies.members(cls).items():
        if name not in ("__dict__", "__weakref__", "__doc__", "__module__"):
            yield f"attribute .{name} of class {cls.__name__}", item
    for base in cls.__bases__:
        if base is not object:
            yield f"the base class {base.__name__} of {cls.__name__}", base


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts that pickle itself would take from an object: its state, and the arguments of its reconstruction."""
    name = type(value).__name__
    yield f"the class of {name}", type(value)
    try:
        reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # the object itself is what fails
        reduced = ()
    if not isinstance(reduced, tuple):
        return
    state = reduced[2] if len(reduced) > 2 else None
    for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if isinstance(part, dict):
            for attribute, item in dict.copy(part).items():
                yield f"attribute .{attribute} of {name}", item
        elif part is not None:
            yield f"the state of {name}", part
    for item in reduced[1] if len(reduced) > 1 and isinstance(reduced[1], tuple) else ():
        if not isinstance(item, type):
            yield f"what a {name} is made from", item


def _short(value: Any) -> str:
    import reprlib

    try:
        return reprlib.repr(value)
    except Exception:  # a user's __repr__ may raise
        return f"of type {type(value).__name__}"
