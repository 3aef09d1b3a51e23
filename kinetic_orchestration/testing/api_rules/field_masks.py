"""Field masks: which parts of an answer a caller wants, as `fields` and `X-Goog-FieldMask` write it.

Pure. With a message's descriptor a mask is checked against the message; without one, names that are not there select
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from kinetic_orchestration.testing.api_rules import refusals

Tree = dict[str, Any]
"""Name → what is wanted below it; nothing below: all of it."""

_TOKEN = re.compile(r"[^.,/()]+|[.,/()]")
# The contents of these messages have no descriptor.
_OPEN = ("google.protobuf.Any", "google.protobuf.Struct", "google.protobuf.Value")


@lru_cache(maxsize=256)
def tree(mask: str, message: Any = None) -> Tree:
    """Return a mask such as `nodes(name,state),nextPageToken` as a tree of JSON names. Raises Refusal."""
    try:
        tokens = _Tokens(mask)
        found: Tree = {}
        _siblings(tokens, found)
        if tokens.next:
            raise refusals.bad_mask(mask, tokens.next)
        found = _widened(found)
        return _either_name(found) if message is None else _described(found, message, mask, "")
    except RecursionError:
        raise refusals.bad_mask(mask, mask[:80]) from None


def select(value: Any, wanted: Tree) -> Any:
    """Return of `value` what is wanted, of each item of a list the same."""
    if not wanted:
        return value
    if isinstance(value, list):
        return [select(item, wanted) for item in value]
    if not isinstance(value, dict):
        return value
    if "*" in wanted:
        wanted = dict.fromkeys(value, wanted["*"]) | wanted
    return {key: select(item, wanted[key]) for key, item in value.items() if key in wanted}


class _Tokens:
    def __init__(self, mask: str) -> None:
        self.mask = mask
        self._all: Iterator[str] = iter(_TOKEN.findall(mask))
        self.next = next(self._all, "")

    def take(self) -> str:
        token, self.next = self.next, next(self._all, "")
        return token


def _siblings(tokens: _Tokens, into: Tree) -> None:
    while tokens.next and tokens.next != ")":
        _path(tokens, into)
        if tokens.next == ",":  # one too many at the end is tolerated
            tokens.take()
        elif tokens.next not in ("", ")"):
            raise refusals.bad_mask(tokens.mask, tokens.next)


def _path(tokens: _Tokens, into: Tree) -> None:
    name = tokens.take()
    if name in ("(", ".", "/", ","):
        raise refusals.bad_mask(tokens.mask, name)
    below = into.setdefault(name, {})
    if tokens.next in (".", "/"):
        tokens.take()
        if not tokens.next:
            raise refusals.bad_mask(tokens.mask, name)
        _path(tokens, below)
    elif tokens.next == "(":
        tokens.take()
        nothing = tokens.next == ")"
        _siblings(tokens, below)
        if tokens.take() != ")" or nothing:
            raise refusals.bad_mask(tokens.mask, name)
    else:
        below["*"] = {}


def _widened(wanted: Tree) -> Tree:
    """Replace each tree that ends in `*` by an empty one, which selects all fields. A `*` on the way, as in
    `items/*/name`, stands for every name of a map."""
    return {} if wanted.get("*") == {} else {name: _widened(below) for name, below in wanted.items()}


def _described(wanted: Tree, message: Any, mask: str, at: str) -> Tree:
    found: Tree = {}
    for name, below in wanted.items():
        path = f"{at}.{name}".removeprefix(".")
        if name == "*":  # of a message, all fields
            return {}
        field = next((field for field in message.fields if name in (field.name, field.json_name)), None)
        if field is None or (below and field.message_type is None):
            raise refusals.bad_mask(mask, path)
        found[field.json_name] = _below(below, field, mask, path)
    return found


def _below(wanted: Tree, field: Any, mask: str, path: str) -> Tree:
    kind = field.message_type
    if not wanted:
        return {}
    if kind.full_name in _OPEN:
        return _either_name(wanted)
    if not kind.GetOptions().map_entry:
        return _described(wanted, kind, mask, path)
    value = kind.fields_by_name["value"]
    if value.message_type is None and any(wanted.values()):
        raise refusals.bad_mask(mask, path)
    return {key: _below(below, value, mask, f"{path}.{key}") for key, below in wanted.items()}


def _either_name(wanted: Tree) -> Tree:
    """Accept the JSON name (camelCase) or the proto name of a field, as field masks do."""
    found: Tree = {}
    for name, below in wanted.items():
        found[name] = found[re.sub(r"_([a-z])", lambda part: part[1].upper(), name)] = _either_name(below)
    return found
