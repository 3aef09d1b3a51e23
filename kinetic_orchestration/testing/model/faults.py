"""The faults of API calls: scripted ones, each for a limited number of calls, then random ones, reproducible by seed.

With the same seed, the n-th call of a method meets the same random fault, regardless of how calls of different methods
interleave. This module decides; the model acts on the decision.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, Protocol

from kinetic_orchestration.testing.api_rules import refusals
from kinetic_orchestration.testing.api_rules.refusals import Refusal

At = Literal["call", "provision", "operation"]

_CREATE = (
    "CreateQueuedResource",
    "instances.insert",
    "instanceGroupManagers.insert",
    "regionInstanceGroupManagers.insert",
)
_DELETE = (
    "DeleteQueuedResource",
    "instances.delete",
    "instanceGroupManagers.delete",
    "regionInstanceGroupManagers.delete",
)
_CALLS: dict[str, tuple[At, tuple[str, ...]]] = {
    "unavailable": ("call", ("*",)),
    "throttled": ("call", (*_CREATE, *_DELETE, "ListQueuedResources", "ListNodes", "instances.aggregatedList")),
    "internal": ("call", (*_CREATE, *_DELETE)),
    "lost answer": ("call", (*_CREATE, *_DELETE)),
    "slow": ("call", ("*",)),
    "stockout": ("provision", _CREATE),
    "internal at provisioning": ("provision", _CREATE),
}
_NODES = ("preemption with notice", "preemption", "reboot", "maintenance", "never boots", "gone", "power failure")
KINDS = (*_CALLS, *_NODES)


class Caller(NamedTuple):
    """The caller of an API: a client, the service account of a VM, or an account, as pods have one."""

    kind: str = "client"
    node: str = ""  # of an account: its name in policies
    worker: int = 0
    members: tuple[str, ...] = ()  # of an account: all names that it has in policies
    project: str = ""  # that the call counts against, by an API key


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


class Trouble(NamedTuple):
    """A random fault of a node: what, and how many seconds after it became READY."""

    what: str
    after: float
    worker: int


class Faults:
    """All scripted faults, in the order in which they were added, followed by the random ones."""

    def __init__(self) -> None:
        self.scripted: list[Fault] = []
        self.random: RandomFaults | None = None

    def add(self, fault: Fault) -> None:
        self.scripted.append(fault)

    def take(self, at: At, method: str, zone: str = "", caller: Caller = CLIENT, name: str = "") -> Fault | None:
        """The fault that this call meets, used up by one."""
        for fault in self.scripted:
            if fault.matches(at, method, zone, caller, name):
                if fault.times is not None:
                    fault.times -= 1
                self.scripted = [fault for fault in self.scripted if fault.times != 0]
                return fault
        return self.random.call(at, method, zone) if self.random else None


class HasFaults(Protocol):
    """A cloud, of which this module needs the faults alone."""

    @property
    def faults(self) -> Faults: ...


class RandomFaults:
    """Faults by a seed: `rate` of all calls and nodes, at most `limit` of them, of `kinds` (default: every kind)."""

    def __init__(self, seed: int, rate: float, limit: int, kinds: Sequence[str], within: float) -> None:
        unknown = set(kinds) - set(KINDS)
        if unknown:
            raise ValueError(f"no such faults: {', '.join(sorted(unknown))}; there are: {', '.join(KINDS)}")
        self.seed = seed
        self.left = limit
        self.met: list[str] = []
        self._rate = rate
        self._within = within
        self._calls = [kind for kind in kinds if kind in _CALLS]
        self._nodes = [kind for kind in kinds if kind in _NODES]
        self._seen: Counter[str] = Counter()

    def call(self, at: At, method: str, zone: str) -> Fault | None:
        possible = [kind for kind in self._calls if _CALLS[kind][0] == at and _fits(method, _CALLS[kind][1])]
        dice, kind = self._throw(f"{at} {method}", possible)
        if not kind:
            return None
        if kind == "slow":
            return Fault(method, delay=dice.uniform(0.01, 0.2))
        if kind == "lost answer":
            return Fault(method, lose=True)
        event = dice.getrandbits(60)
        refusal = {
            "unavailable": refusals.unavailable,
            "throttled": lambda: refusals.too_many_requests("emulated"),
            "internal": refusals.internal,
            "internal at provisioning": refusals.internal,
            "stockout": lambda: refusals.no_capacity(zone, event),
        }[kind]
        return Fault(method, refusal=refusal, at=at)

    def node(self, workers: int) -> Trouble | None:
        dice, kind = self._throw("node", self._nodes)
        return Trouble(kind, dice.uniform(0, self._within), dice.randrange(workers)) if kind else None

    def _throw(self, what: str, possible: Sequence[str]) -> tuple[random.Random, str]:
        self._seen[what] += 1
        dice = random.Random(f"{self.seed} {what} {self._seen[what]}")
        if not possible or self.left <= 0 or dice.random() >= self._rate:
            return dice, ""
        kind = dice.choice(possible)
        self.left -= 1
        self.met.append(f"{kind}: {what} {self._seen[what]}")
        return dice, kind


def random_faults(
    cloud: HasFaults,
    seed: int,
    *,
    rate: float = 0.1,
    limit: int = 20,
    kinds: Sequence[str] = KINDS,
    within: float = 2.0,
) -> RandomFaults:
    """Let `rate` of all calls and nodes of `cloud` fail in one of `kinds`, at most `limit` times; nodes fail `within`
    that many seconds of becoming READY. `.met` of the result lists the faults that occurred."""
    faults = RandomFaults(seed, rate, limit, kinds, within)
    cloud.faults.random = faults
    return faults


def _fits(method: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(method, pattern) for pattern in patterns)
