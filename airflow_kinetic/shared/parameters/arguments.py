"""The arguments of a task's function: plain JSON, data, and the parts of its context that are valid on another machine.

They are checked when templates are rendered, with the path to a value that cannot be sent, instead of on a slice.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from airflow_kinetic._compat import homes
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.plan.declare.checks.functions import name_of
from kinetic_orchestration.plan.declare.choices import Choice, form_of
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.profile import Profile

KNOWN_CONTEXT_KEYS: Collection[str] = homes.optional("KNOWN_CONTEXT_KEYS") or ()

# What a task's context has that means the same on another machine. The rest is Airflow's own objects.
TRAVELLING = frozenset({"ds", "ds_nodash", "run_id", "task_instance_key_str", "ts", "ts_nodash", "ts_nodash_with_tz"})


def is_final(value: Any) -> bool:
    """Return True if a templated field is known while the DAG is parsed: it holds no template and no result of
    a task."""
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, Mapping):
        return all(map(is_final, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_final, value))
    if isinstance(value, Choice):
        return is_final(form_of(value))
    return value is None or isinstance(value, (bool, int, float, os.PathLike, Profile))


def untemplated(value: Any, name: str, example: str) -> Any:
    """The same value, if it is as the example, or nothing: a template of a whole list or dict renders to text."""
    if isinstance(value, str):
        raise UsageError(
            f"{name} is the text {value!r:.80} after rendering: write {name}={example}, with templates in its values, "
            "or let the DAG render to what templates stand for, with render_template_as_native_obj=True"
        )
    wanted = "dict" if example[0] == "{" else "list"
    if value is not None and ((wanted == "dict") != isinstance(value, Mapping) or not isinstance(value, Iterable)):
        raise UsageError(f"{name} is {value!r:.80}, which is no {wanted}: write {name}={example}")
    return value


def plain(value: Any, path: str) -> Any:
    """The same value, with Airflow's lazy sequences and mappings as plain ones; what is no JSON is refused by path."""
    if value is None or isinstance(value, (bool, int, float, str, Data)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"{path} has the key {key!r} after rendering: the keys of a dict are text in JSON")
        return {key: plain(entry, f"{path}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(entry, f"{path}[{index}]") for index, entry in enumerate(value))
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [plain(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    kind = type(value)
    raise UsageError(
        f"{path} is a {kind.__module__}.{kind.__qualname__} after rendering, which is no JSON. Pass text, numbers, "
        "lists and dicts of them, or Data(…) for files; make anything else of them in the function itself"
    )


def with_context(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments, with what the function asks of the task's context by name, as other tasks may."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some callables written in C have none
        return dict(kwargs)
    given = signature.bind_partial(*args, **kwargs).arguments
    found = dict(kwargs)
    for name, parameter in signature.parameters.items():
        if name in given or name not in KNOWN_CONTEXT_KEYS:
            continue
        if name in TRAVELLING and name in context:
            found[name] = context[name]
        elif parameter.default is inspect.Parameter.empty:
            if name in TRAVELLING:
                raise UsageError(
                    f"{name_of(function)}() asks for {name!r} of the task's context, which a run without a logical "
                    "date does not have. Ask for run_id, or give the parameter a default."
                )
            raise UsageError(
                f"{name_of(function)}() asks for {name!r} of the task's context, which cannot travel to a host. Pass "
                "what it needs of it as an argument: templates are rendered in op_args and op_kwargs."
            )
    return found
