"""The parameters that a step may have: which types and which resources can be sent to another machine.

Checked by their definitions alone, so that the error points to them. Values are checked when they are sent.
"""

from __future__ import annotations

import collections.abc
import copyreg
import functools
import io
import struct
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

_STREAMS: frozenset[type] = frozenset(
    (
        *(collections.abc.Iterator, collections.abc.Generator, types.GeneratorType),
        *(collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator),
        *(collections.abc.Awaitable, collections.abc.Coroutine),
    )
)
# What pickle takes although its layout is its own.
_PLAIN = (
    int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset, type, BaseException,
    memoryview, property, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
    types.NoneType,
)  # fmt: skip
# Classes whose values fail only when they are pickled: package and names → why.
_BOUND: tuple[tuple[str, frozenset[str], str], ...] = (
    ("pyspark", frozenset({"DataFrame", "SparkSession", "SparkContext", "RDD"}), "it lives in its Spark session"),
    ("sqlalchemy", frozenset({"Engine", "Connection", "Session"}), "it is a connection"),
    ("duckdb", frozenset({"DuckDBPyConnection", "DuckDBPyRelation"}), "it lives in its connection"),
    ("_duckdb", frozenset({"DuckDBPyConnection", "DuckDBPyRelation"}), "it lives in its connection"),
    ("h5py", frozenset({"HLObject"}), "it is an open file"),
    ("tensorflow", frozenset({"DatasetV2"}), "it is a graph of this process"),
    ("google", frozenset({"Client"}), "it holds a connection and credentials"),
    ("botocore", frozenset({"BaseClient"}), "it holds a connection and credentials"),
)
_RESOURCES = (dg.ConfigurableResource, dg.IAttachDifferentObjectToOpContext)
_IO_MANAGERS = (dg.IOManager, dg.ConfigurableIOManager, dg.ConfigurableIOManagerFactory)
TRAVELS = "kinetic_travels"  # set by a class that can be sent
_POINTER = struct.calcsize("P")


def why_not_type(hint: Any) -> str:
    """The reason why a value of such a type cannot be sent, or "". Types that are too general are accepted."""
    if isinstance(hint, dg.DagsterType):
        return why_not_type(hint.typing_type)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return why_not_type(arguments[0])
    if origin in (typing.Union, types.UnionType):
        reasons = [why_not_type(each) for each in arguments if each is not types.NoneType]
        return reasons[0] if reasons and all(reasons) else ""
    kind = origin if isinstance(origin, type) else hint
    if not isinstance(kind, type):
        return ""
    if reason := _why_not_class(kind):
        return reason
    inner = () if origin is collections.abc.Callable else arguments
    return next((reason for each in inner if (reason := why_not_type(each))), "")


def _why_not_class(kind: type) -> str:
    if issubclass(kind, (io.IOBase, typing.IO)):
        return "it is an open file"
    if kind in _STREAMS:
        return "its values come from this process alone"
    for each in kind.__mro__:
        for package, names, reason in _BOUND:
            if each.__name__ in names and each.__module__.partition(".")[0] == package:
                return reason
    if _is_opaque(kind):
        return "pickle has no way into it"
    return ""


def _is_opaque(kind: type) -> bool:
    """Return True if it is written in C without pickle support, so that `object.__reduce_ex__` would refuse its values.

    The rule is that of `object_getstate_default` in CPython's Objects/typeobject.c.
    """
    if issubclass(kind, _PLAIN) or kind in copyreg.dispatch_table or getattr(kind, "__abstractmethods__", None):
        return False
    own = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs_ex__", "__getnewargs__")
    if any(getattr(kind, name, None) is not getattr(object, name, None) for name in own):
        return False
    size = object.__basicsize__ + _POINTER * (bool(kind.__dictoffset__) + bool(kind.__weakrefoffset__))
    size += _POINTER * sum(len(_slots(each)) for each in kind.__mro__)
    return bool(kind.__itemsize__) or kind.__basicsize__ > size


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def is_resource(hint: Any) -> bool:
    """Return True if Dagster passes a resource for the parameter."""
    if isinstance(hint, type) and issubclass(hint, (*_RESOURCES, *_IO_MANAGERS)):
        return True
    return "resource_param" in getattr(hint, "__metadata__", ())


def why_not_resource(kind: Any) -> str:
    """The reason why the resource cannot be sent, or "" for one that consists of settings and can be recreated on a
    host."""
    if isinstance(kind, type) and issubclass(kind, _IO_MANAGERS):
        return "I/O managers load and store here, and the hosts see values only"
    if not (isinstance(kind, type) and issubclass(kind, dg.ConfigurableResource)):
        return "it is no ConfigurableResource, whose fields would say how to make it anew there"
    return "" if getattr(kind, TRAVELS, False) else next(_bonds(kind), "")


def _bonds(kind: type[dg.ConfigurableResource[Any]]) -> Iterator[str]:
    """The reasons why a resource's class depends on this process."""
    from kinetic_orchestration.plan.declare.checks.secret_shapes import (
        is_secret_name,  # its many patterns are no part of an import
    )

    own = [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in ("dagster", "pydantic")]
    for name in ("setup_for_execution", "teardown_after_execution", "yield_for_execution", "create_resource"):
        if any(name in vars(each) for each in own):
            yield f"it has {name}(), which runs in the step's process alone"
    for name in (name for each in own for name in vars(each).get("__private_attributes__", ())):
        yield f"it has a state besides its settings, {name}"
    for name, field in kind.model_fields.items():
        if is_secret_name(name) or "Secret" in str(field.annotation):
            yield f"its field {name!r} looks like a secret, and would lie in the store in the open"
        if not _is_plain(field.annotation):
            yield f"its field {name!r} is no plain setting"


def _is_plain(hint: Any) -> bool:
    """Text, numbers, and lists and tables and Config of them: what has the same value everywhere."""
    arguments = [each for each in typing.get_args(hint) if each not in (types.NoneType, Ellipsis)]
    if arguments:
        return all(isinstance(each, str | int | bool) or _is_plain(each) for each in arguments)
    if isinstance(hint, type) and issubclass(hint, dg.Config):
        return all(_is_plain(field.annotation) for field in hint.model_fields.values())
    return hint in (str, int, float, bool, list, dict, Any)


class Anew:
    """A resource as an argument of a job: it is recreated from its settings on the host."""

    def __init__(self, resource: dg.ConfigurableResource[Any]) -> None:
        self._resource = resource

    def __reduce__(self) -> Any:
        kind = type(self._resource)
        settings = {name: _data(getattr(self._resource, name)) for name in kind.model_fields}
        return functools.partial(kind, **settings), ()


def _data(value: Any) -> Any:
    if isinstance(value, dg.Config):
        return {name: _data(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {key: _data(each) for key, each in value.items()}
    return [_data(each) for each in value] if isinstance(value, list | tuple) else value
