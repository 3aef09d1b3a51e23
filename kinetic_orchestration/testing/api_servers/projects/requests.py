"""A request of one of Google's small REST APIs, its path taken apart, and a row of the table of what is served."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.model.faults import Caller
from kinetic_orchestration.testing.model.state.resources import Json


class Request(NamedTuple):
    """One request of a neighbour, its path taken apart."""

    project: str
    name: str
    query: Mapping[str, str]  # a list, whose parameter is repeated, with commas
    body: Json
    caller: Caller

    @property
    def page_size(self) -> int:
        """The maximum number of items per page; 0: no limit."""
        given = self.query.get("pageSize", "")
        try:
            size = int(given or 0)
        except ValueError:
            raise refusals.typed("page_size", "TYPE_INT32", given) from None
        if not 0 <= size < 1 << 31:
            raise refusals.invalid("page_size must not be negative")
        return size

    @property
    def update(self) -> list[str]:
        """The fields of the body that shall be written."""
        paths = self.query.get("updateMask", "").split(",")
        return [re.sub(r"_([a-z])", lambda found: found[1].upper(), path) for path in paths]

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("/")[2]


class Route(NamedTuple):
    method: str
    path: re.Pattern[str]
    verb: str
    service: str
    permission: str
    act: Callable[[Any, Request], Json]


_LETTERS = {"P": "project", "S": "item", "V": "version", "L": "location", "C": "cluster", "N": "pool", "M": "model"}


def route(line: str, verb: str, permission: str, act: Callable[[Any, Request], Json], service: str) -> Route:
    """`METHOD /path` with a letter in place of each name: of a project, a secret or service, a version, …"""
    method, _, path = line.partition(" ")
    for letter, name in _LETTERS.items():
        path = re.sub(rf"(?<=/){letter}(?=[/:]|$)", rf"(?P<{name}>[^/:]+)", path)
    return Route(method, re.compile(path), verb, service, permission, act)
