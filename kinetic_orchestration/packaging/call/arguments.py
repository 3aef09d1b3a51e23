"""Descriptions of a call's arguments: a digest of each, and which of them look like secrets.

Two pickles of one value differ from process to process, so the digest is of the value itself, if it has a stable form:
JSON values, paths, times, arrays by their bytes, data by its content. The digest of any other value is unknown, and
then it is not compared: two calls are never reported as different by mistake.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import hashlib
import inspect
import math
import os
import sys
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from kinetic_orchestration.plan.declare.checks.secret_shapes import is_secret_argument
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import JobSpec
from kinetic_orchestration.plan.messages import warn_once

UNKNOWN: Final = ""
DEEPEST = 50
MOST_VALUES = 100_000
MOST_BYTES = 256 << 20
MOST_TEXTS = 2_000  # strings that are searched for secrets

_TIMES = (datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo)
_TEXTUAL = (decimal.Decimal, uuid.UUID, complex, range, slice, *_TIMES)


class _Unknown(Exception):
    """A value without a form that is the same everywhere."""


def digests(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    digest_of: Callable[[Data], str],
) -> dict[str, str]:
    """A digest of each argument that was given, by its parameter."""
    return {name: _digest(value, digest_of) for name, value in _named(function, args, kwargs).items()}


def differing(
    had: Mapping[str, str], function: Callable[..., Any], now: Mapping[str, str], digest_of: Callable[[Data], str]
) -> tuple[str, ...]:
    """The parameters that certainly had another value. One that was not given had its default."""
    defaults = {
        name: _digest(parameter.default, digest_of)
        for name, parameter in _parameters(function).items()
        if parameter.default is not parameter.empty and (name in had) != (name in now)
    }
    pairs = {
        name: (had.get(name, defaults.get(name, UNKNOWN)), now.get(name, defaults.get(name, UNKNOWN)))
        for name in {**had, **now}
    }
    return tuple(sorted(name for name, pair in pairs.items() if pair[0] != pair[1] and UNKNOWN not in pair))


def warn_of_secrets(spec: JobSpec) -> None:
    """Warn about arguments that look like secrets: they are sent as given, but the user may not want them in
    the store."""
    if spec.function is None:
        return
    found = sorted({way for way, name, text in _texts(spec) if is_secret_argument(name, text)})
    if found:
        warn_once(
            f"{spec.name}: in its arguments {', '.join(found[:5])} looks like a secret, and whoever may read the store "
            "can read it. Hand it over with secrets=, or set it as a variable here and name that in capture_env_vars"
        )


def _texts(spec: JobSpec) -> Iterator[tuple[str, str, str]]:
    """The strings in a call, up to a limit: the path from the parameter, its last name, the string."""
    assert spec.function is not None
    given = _named(spec.function, spec.args, spec.kwargs)
    waiting: list[tuple[str, str, Any]] = [(name, name, value) for name, value in given.items()]
    for count in range(MOST_TEXTS):
        if count >= len(waiting):
            return
        way, name, value = waiting[count]
        if type(value) is str:
            yield way, name, value
        elif type(value) is dict and len(waiting) < MOST_TEXTS:
            pairs = list(islice(value.copy().items(), MOST_TEXTS))
            waiting += [(f"{way}[{key!r:.40}]", str(key)[:80], each) for key, each in pairs]
        elif type(value) in (list, tuple) and len(waiting) < MOST_TEXTS:
            waiting += [(way, name, each) for each in value[:MOST_TEXTS]]


def _named(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    parameters = _parameters(function)
    try:
        bound = inspect.Signature(list(parameters.values())).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a builtin without a signature
        return {**{str(at): value for at, value in enumerate(args, 1)}, **kwargs}
    several = [name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_KEYWORD]
    found = {name: value for name, value in bound.items() if name not in several}
    return {**found, **{key: value for name in several for key, value in bound.get(name, {}).items()}}


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):
        return {}


def _digest(value: Any, digest_of: Callable[[Data], str]) -> str:
    form = _Form(digest_of)
    try:
        form.take(value, 0)
    except Exception:  # an error of a user's value while it is inspected is no reason to refuse a call
        return UNKNOWN
    return form.hasher.hexdigest()[:32]


class _Form:
    """Feeds a value to a hash in the one form that it has everywhere. Equal numbers, and lists and tuples, are one."""

    def __init__(self, digest_of: Callable[[Data], str]) -> None:
        self.hasher = hashlib.sha256()
        self._digest_of = digest_of
        self._values = 0
        self._bytes = 0

    def take(self, value: Any, depth: int) -> None:
        self._values += 1
        if depth > DEEPEST or self._values > MOST_VALUES:
            raise _Unknown
        kind = type(value)
        if value is None or kind is bool:
            self._say("constant", repr(value).encode())
        elif kind is int or kind is float:
            self._say("number", _number(value))
        elif kind is str:
            self._say("text", value.encode("utf-8", "surrogatepass"))
        elif kind in (bytes, bytearray):
            self._say("bytes", value)
        elif issubclass(kind, Data):
            self._say("data", self._digest_of(value).encode())
        elif issubclass(kind, enum.Enum):
            self._say("member", f"{kind.__qualname__}.{value.name}".encode())
        elif issubclass(kind, os.PathLike):
            self._say("path", os.fsencode(value))
        elif kind in _TEXTUAL or (issubclass(kind, _TIMES) and kind.__module__ == "datetime"):
            self._say(kind.__name__, repr(value).encode())
        elif kind in (list, tuple, set, frozenset, dict):
            self._take_many(value, depth)
        else:
            self._take_other(value, depth)

    def _take_many(self, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            parts = sorted(self._part(pair, depth) for pair in dict.copy(value).items())
        elif isinstance(value, (set, frozenset)):
            parts = sorted(self._part(each, depth) for each in tuple(value))
        else:
            self._say("sequence", str(len(value)).encode())
            for each in tuple(value):
                self.take(each, depth + 1)
            return
        self._say("mapping" if isinstance(value, dict) else "set", b"".join(parts))

    def _take_other(self, value: Any, depth: int) -> None:
        kind, numpy = type(value), sys.modules.get("numpy")
        if numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
            if value.dtype.hasobject:
                raise _Unknown
            self._say("array", f"{value.dtype.str} {value.shape}".encode())
            self._say("bytes", memoryview(numpy.ascontiguousarray(value)).cast("B") if value.size else b"")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            self._say("object", f"{kind.__qualname__}".encode())
            for field in dataclasses.fields(value):
                self._say("field", field.name.encode())
                self.take(getattr(value, field.name), depth + 1)
        elif isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)) and "<" not in value.__qualname__:
            self._say("name", f"{value.__module__}.{value.__qualname__}".encode())
        else:
            raise _Unknown

    def _part(self, value: Any, depth: int) -> bytes:
        form = _Form(self._digest_of)
        form._values, form._bytes = self._values, self._bytes
        form.take(value, depth + 1)
        self._values, self._bytes = form._values, form._bytes
        return form.hasher.digest()

    def _say(self, what: str, data: Any) -> None:
        self._bytes += len(data)
        if self._bytes > MOST_BYTES:
            raise _Unknown
        self.hasher.update(f"{what} {len(data)} ".encode())
        self.hasher.update(data)


def _number(value: float) -> bytes:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return repr(value).encode()
