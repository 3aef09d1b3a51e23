"""The checks of what a job runs: a function that can travel, and its arguments. Pure."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kinetic_orchestration.errors import NotAFunction


def check_function(function: Any) -> Callable[..., Any]:
    """Return the plain function to run.

    Raises:
        NotAFunction: The object cannot run as a job. The message shows the correction.
    """
    if isinstance(function, (classmethod, staticmethod)):
        kind = type(function).__name__
        raise NotAFunction(
            f"run() got a {kind} object: its order with @{kind} is wrong. Put it below:\n"
            f"    @{kind}\n    @kinetic.run(...)\n    def train(...): ..."
        )
    if hasattr(function, "cache_clear") and hasattr(function, "cache_info"):
        raise NotAFunction(
            "run() got a function wrapped by functools.lru_cache or cache, whose cache cannot travel and would be "
            "empty in the job's process anyway. Decorate the function below the cache, or drop the cache."
        )
    if _is_generator(function):
        raise NotAFunction(
            f"{name_of(function)} is a generator, which cannot give its values from another machine: return them, as "
            "list(...), and report on the way with kinetic.current().log_metrics(...)"
        )
    if not callable(function):
        raise NotAFunction(f"run() decorates functions and other callables, not {type(function).__name__}")
    plain = getattr(function, "__kinetic_function__", None)
    if plain is None and type(function).__module__.split(".")[0] == "kinetic":
        plain = _inside_kinetic(function)
    found: Callable[..., Any] = plain if plain is not None else function
    return found


def _is_generator(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


def _inside_kinetic(function: Any) -> Callable[..., Any] | None:
    """The plain function inside one that Keras Kinetic itself decorated, or a method bound to its object."""
    if hasattr(function, "_func"):
        plain: Callable[..., Any] = function._func
        return plain
    if hasattr(function, "_c") and hasattr(function, "_instance"):
        return functools.partial(function._c._func, function._instance)
    return None


def check_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if the function cannot be called with these arguments."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # what a wrapper takes is what counts
    except (TypeError, ValueError):
        return  # a builtin without a signature
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name_of(function)}() {error}") from None


def name_of(function: Any) -> str:
    """Return the name of a function, in characters that a job's name can have."""
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    name = getattr(target, "__name__", None) or type(target).__name__
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "job"
