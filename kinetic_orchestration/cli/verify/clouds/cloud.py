"""The cloud that a verification runs on: which of its calls tell of machines, and what it is asked.

A slice is what one deletion takes away: a queued resource with its node on Cloud TPU; on Compute Engine a VM, or a
group with its VMs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from kinetic_orchestration.plan.declare.cloud import CloudOptions
from kinetic_orchestration.platforms.google.rest.call_listeners import Call

MISSING = "404"
What = Literal["asked", "deleted", "seen"]
ASKED: What = "asked"
DELETED: What = "deleted"
SEEN: What = "seen"
OF_LISTS = (  # the fields of lists, of all clouds
    *("queuedResources", "nodes"),
    *("instances", "disks", "instanceGroupManagers", "instanceTemplates", "resourcePolicies"),
)
_CHARGED = ("READY", "ACTIVE", "RESTARTING", "REPAIRING", "RUNNING", "STOPPING")
_FREE = (MISSING, "SUSPENDED", "FAILED", "PREEMPTED", "TERMINATED", "STOPPED")

Question = Callable[[], Any]
Kind = Literal["alone", "four hosts", "joined", "linked"]
ALONE: Kind = "alone"  # one host, which a step has to itself
OF_FOUR_HOSTS: Kind = "four hosts"  # of a slice of Cloud TPU
JOINED: Kind = "joined"  # VMs that are created one by one
LINKED: Kind = "linked"  # a group's VMs, as a slice


@dataclass
class Slice:
    """A slice of this run, from its create call to its last poll."""

    resource: str
    rate: float
    asked: Mapping[str, Any] = field(default_factory=dict)
    created: float | None = None  # when the create call was answered
    shown: float | None = None  # when it was first seen
    ready: float | None = None
    ended: float | None = None

    def observe(self, word: str, at: float) -> None:
        if word != MISSING and self.shown is None:
            self.shown = at
        if word in _CHARGED and self.ended is None:
            self.ready = at if self.ready is None else min(self.ready, at)
        elif word in _FREE and self.ready is not None and self.ended is None:
            self.ended = at

    def observe_part(self, word: str, at: float) -> None:
        """Take note of one of its machines: the first that is charged begins it, and only its own end ends it."""
        if word in _CHARGED:
            self.observe(word, at)

    def seconds(self, now: float) -> float:
        return 0.0 if self.ready is None else max(0.0, (self.ended or now) - self.ready)


def state_of(answer: Mapping[str, Any]) -> str:
    """Return the state in an answer, which Compute Engine calls a status; "" if it has none."""
    state = answer.get("state", answer.get("status", ""))
    return str(state.get("state", "") if isinstance(state, Mapping) else state)


class Told(NamedTuple):
    """A slice as a call tells of it."""

    what: What
    kind: str  # "queued resource", "node", "VM", "group"
    resource: str  # of the slice, whole
    word: str = ""  # its state
    asked: Mapping[str, Any] = {}  # the body of a create call
    part: str = ""  # the path of one of its machines, if it is that which the call is about


class Calls(Protocol):
    """The meaning of a cloud's calls. Pure."""

    SERVICE: str

    def told(self, call: Call) -> Told | None: ...

    def name_of(self, call: Call) -> str:
        """Return the name under which a call is recorded; "" for its method and its path."""
        ...

    def echoed(self, kind: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of a create call's body that the answer of a poll repeats."""
        ...


class Cloud(Protocol):
    """A cloud as a verification uses it, with the client of the product, and its own questions."""

    backend: str

    def option(self, zones: Sequence[str], hosts: int = 1, slices: int = 1) -> CloudOptions | None:
        """Return the options of a job: of so many VMs that are joined, or so many slices."""
        ...

    def zones(self) -> Sequence[str]:
        """Return those of the settings' zones that exist."""
        ...

    def absent(self, name: str) -> Mapping[str, Question]:
        """Return questions for what never was, each of which is answered with NotFound."""
        ...

    def refused(self, slice_: Slice) -> Mapping[str, Question]:
        """Return questions about a slice whose job runs, the last of which deletes it as a user would."""
        ...

    def polls(self, slice_: Slice, *, whole: bool = False) -> Iterator[Callable[[], bool]]:
        """Yield questions about a slice, each of which returns True if what it asks for does not exist.

        Args:
            slice_: The slice.
            whole: Ask for each resource of it; else for those whose states tell what costs.
        """
        ...

    def deleted(self, slice_: Slice) -> Mapping[str, Question]:
        """Return questions for a slice that was deleted, each of which is answered with NotFound."""
        ...

    def delete(self, slice_: Slice) -> None:
        """Ask for the deletion that takes all of it."""
        ...

    def is_going(self, slice_: Slice) -> bool:
        """Return True if a deletion has begun, or is over."""
        ...

    def removals(self, slice_: Slice) -> Iterator[Question]:
        """Yield what removes a slice, however little of it is left."""
        ...

    def word(self, error: Exception) -> str:
        """Return the name of an error in the words of `steps`: NotFound, Conflict, …"""
        ...

    def command(self, slice_: Slice) -> str:
        """Return the command by which a user removes it."""
        ...
