"""Filters of listings, in the language that Google's APIs share (https://google.aip.dev/160). Pure.

Comparisons of fields, joined by AND, OR and NOT, with parentheses. Not functions, and not words without a field.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from kinetic_orchestration.testing.api_rules import refusals

Json = dict[str, Any]
Test = Callable[[Json], bool]

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|<=|>=|!=|[=<>:()]|[^\s=<>:()!"\']+)')
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda found, asked: bool(found < asked),
    "<=": lambda found, asked: bool(found <= asked),
    ">": lambda found, asked: bool(found > asked),
    ">=": lambda found, asked: bool(found >= asked),
}


def chosen(items: Iterable[Json], text: str) -> list[Json]:
    """Return the items that a filter lets through; all for an empty one. Raises Refusal."""
    if not text.strip():
        return list(items)
    try:
        test = _Parser(text).test()
        return [item for item in items if test(item)]
    except RecursionError:
        raise refusals.bad_filter(text) from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: deque[str] = deque()
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                raise refusals.bad_filter(text)
            self._tokens.append(found[1])
            at = found.end()

    def test(self) -> Test:
        found = self._all()
        if self._tokens:
            raise refusals.bad_filter(self._text)
        return found

    def _next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _take(self) -> str:
        if not self._tokens:
            raise refusals.bad_filter(self._text)
        return self._tokens.popleft()

    def _all(self) -> Test:
        """AND binds less than OR in this language."""
        tests = [self._any()]
        while self._tokens and self._next() != ")":
            if self._next() == "AND":
                self._take()
            tests.append(self._any())
        return lambda item: all(test(item) for test in tests)

    def _any(self) -> Test:
        tests = [self._one()]
        while self._next() == "OR":
            self._take()
            tests.append(self._one())
        return lambda item: any(test(item) for test in tests)

    def _one(self) -> Test:
        token = self._take()
        if token == "NOT":
            test = self._one()
            return lambda item: not test(item)
        if token == "(":
            found = self._all()
            if self._take() != ")":
                raise refusals.bad_filter(self._text)
            return found
        if token.startswith("-"):
            self._tokens.appendleft(token[1:])
            test = self._one()
            return lambda item: not test(item)
        return self._comparison(token)

    def _comparison(self, path: str) -> Test:
        operator, value = self._take(), _unquoted(self._take())
        if operator not in ("=", "!=", ":", *_COMPARISONS) or not re.match(r"[A-Za-z_]", path):
            raise refusals.bad_filter(self._text)
        parts = [re.sub(r"_([a-z])", lambda part: part[1].upper(), part) for part in path.split(".")]
        if operator == ":":
            return lambda item: _has(_at(item, parts), value)
        if operator in ("=", "!="):
            return lambda item: _equals(_at(item, parts), value) == (operator == "=")
        return lambda item: _ordered(_at(item, parts), value, operator)


def _at(item: Any, path: list[str]) -> Any:
    for part in path:
        item = item.get(part) if isinstance(item, dict) else None
    return item


def _text(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _equals(found: Any, asked: str) -> bool:
    if found is None:  # the default of its kind, which no JSON shows
        return asked in ("", "false", "0")
    pattern = ".*".join(re.escape(part) for part in asked.split("*"))
    return re.fullmatch(pattern, _text(found), re.S) is not None


def _has(found: Any, asked: str) -> bool:
    if found is None:
        return False
    if isinstance(found, list | dict):
        return asked in ("*", *map(_text, found))
    return asked == "*" or asked.lower() in _text(found).lower()


def _ordered(found: Any, asked: str, operator: str) -> bool:
    if found is None:
        return False
    try:
        return _COMPARISONS[operator](float(_text(found)), float(asked))
    except ValueError:
        return _COMPARISONS[operator](_text(found), asked)  # times are written so that they sort


def _unquoted(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1]) if token[:1] in ('"', "'") else token
