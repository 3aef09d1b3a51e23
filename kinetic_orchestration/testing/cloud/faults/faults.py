"""The faults of API calls: scripted ones, each for a limited number of calls, then random ones.

This module decides; the model acts on the decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, Protocol

from kinetic_orchestration.testing.requests.refusals import Refusal

At = Literal["call", "provision", "operation"]


class Caller(NamedTuple):
    """The caller of an API: a client, or the service account of a VM."""

    kind: str = "client"
    node: str = ""
    worker: int = 0


CLIENT = Caller()


@dataclass
class Fault:
    """A scripted failure of the next `times` matching calls (None: all of them)."""

    method: str
    times: int | None = 1
    refusal: Callable[[], Refusal] | None = None
    at: At = "call"
    lose: bool = False
    delay: float = 0.0
    zone: str = "*"
    caller: str = "*"
    name: str = "*"

    def matches(self, at: str, method: str, zone: str, caller: Caller, name: str) -> bool:
        return (
            self.at == at
            and self.times != 0
            and fnmatchcase(method, self.method)
            and fnmatchcase(zone, self.zone)
            and (self.caller in ("*", caller.kind) or (bool(caller.node) and fnmatchcase(caller.node, self.caller)))
            and fnmatchcase(name.rpartition("/")[2], self.name)
        )

    def use(self) -> None:
        if self.times is not None:
            self.times -= 1


class Trouble(NamedTuple):
    """A random fault of a node: what, and how many seconds after it became READY."""

    what: str
    after: float
    worker: int


class Chance(Protocol):
    """The source of random faults. Each method returns the fault of the next call or node, or None."""

    def call(self, at: At, method: str, zone: str) -> Fault | None: ...

    def node(self, workers: int) -> Trouble | None: ...


class Faults:
    """All scripted faults, in the order in which they were added, followed by the random ones."""

    def __init__(self) -> None:
        self.scripted: list[Fault] = []
        self.random: Chance | None = None

    def add(self, fault: Fault) -> Fault:
        self.scripted.append(fault)
        return fault

    def take(self, at: At, method: str, zone: str = "", caller: Caller = CLIENT, name: str = "") -> Fault | None:
        """The fault that this call meets, used up by one."""
        for fault in self.scripted:
            if fault.matches(at, method, zone, caller, name):
                fault.use()
                self.scripted = [fault for fault in self.scripted if fault.times != 0]
                return fault
        return self.random.call(at, method, zone) if self.random else None
