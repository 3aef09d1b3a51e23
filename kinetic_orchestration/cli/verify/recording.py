"""Records requests and answers while a verification runs: redacted immediately, with place and time.

From the answers alone it also knows which slices of this run exist and for how long they were charged. It does not
judge anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kinetic_orchestration.cli.verify.redaction import Redactor
from kinetic_orchestration.platforms.google.rest.call_listeners import OK, Call

MISSING = "404"
_LISTS = ("queuedResources", "nodes")
_NOT_FOUND = ("NOT_FOUND", "404")
_CHARGED = ("READY", "ACTIVE", "RESTARTING", "REPAIRING")
_FREE = (MISSING, "SUSPENDED", "FAILED", "PREEMPTED", "TERMINATED", "STOPPED")
_KINDS = {
    "GetQueuedResource": "queued resource", "GetNode": "node",
    "DeleteQueuedResource": "queued resource", "DeleteNode": "node",
}  # fmt: skip


class Entry(NamedTuple):
    """One call, anonymised."""

    at: float  # seconds since the beginning
    step: str
    moment: str  # of a call that a step makes to see this very answer: its name
    call: str  # "tpu GetNode", "storage GET storage/v1/b/BUCKET/o"
    request: Mapping[str, Any]
    status: str
    answer: Mapping[str, Any]
    unknown: tuple[str, ...]
    seconds: float


class Seen(NamedTuple):
    """The state of a queued resource or of a node in one poll, or in one call of ours."""

    at: float  # the time of a poll's request, or of a deletion's answer
    kind: str
    name: str  # a placeholder
    word: str  # a state, "404" or "delete: OK"


class Echo(NamedTuple):
    """A field of a create request, and what an answer made of it: same, changed or absent."""

    call: str
    path: str
    became: str


class Recorder:
    def __init__(self, redactor: Redactor, ours: str, clock: Callable[[], float] = time.time) -> None:
        self.redactor = redactor
        self.step = ""
        self.rate = 0.0  # dollars a second of the slices that this step asks for
        self.entries: list[Entry] = []
        self.seen: list[Seen] = []
        self.echoes: set[Echo] = set()
        self.slices: dict[str, Slice] = {}  # by their names as the API has them
        self.lost = 0  # calls that could not be recorded
        self._ours = ours
        self._clock = clock
        self._began = clock()
        self._moment = threading.local()
        self._lock = threading.RLock()

    @contextmanager
    def moment(self, name: str) -> Iterator[None]:
        """The calls that this thread makes within the block are made to see this very answer."""
        self._moment.name = name
        try:
            yield
        finally:
            self._moment.name = ""

    def record(self, call: Call) -> None:
        """Record a call from the tap. The call continues even if recording fails."""
        try:
            with self._lock:
                self._record(call)
        except Exception:
            self.lost += 1

    def add(self, call: str, answer: Mapping[str, Any], status: str = OK) -> None:
        """Add information that is no call of this process: a host's own report, a check of `doctor`."""
        with self._lock:
            shown = self.redactor.plain(answer)
            self.entries.append(Entry(self.now(), self.step, "", call, {}, status, shown, (), 0.0))

    def now(self) -> float:
        return self._clock() - self._began

    def spent(self) -> float:
        """Dollars by list prices, for the time in which a slice was seen READY or not yet seen gone."""
        with self._lock:
            now = self._clock()
            return sum(slice_.seconds(now) * slice_.rate for slice_ in self.slices.values())

    def _record(self, call: Call) -> None:
        answer = _without_others(call.answer, self._ours)
        name = call.method
        if call.service != "tpu" or " " in name:
            verb, _, path = call.method.partition(" ")
            name = f"{verb} {self.redactor.path(path)}"
        self.entries.append(
            Entry(
                call.began - self._began,
                self.step,
                getattr(self._moment, "name", ""),
                f"{call.service} {name}",
                self.redactor.plain(call.request),
                call.status,
                self.redactor.plain(answer),
                call.unknown,
                call.seconds,
            )
        )
        if call.service == "tpu":
            self._follow(call)

    def _follow(self, call: Call) -> None:
        if call.method == "CreateQueuedResource":
            self._asked(call)
        kind = _KINDS.get(call.method)
        whole = str(call.request.get("name", ""))
        name = whole.rpartition("/")[2]
        if kind is None or not name.startswith(self._ours):
            return
        if call.method.startswith("Delete"):
            if call.status == OK:
                self.seen.append(self._as_seen(call.began + call.seconds, kind, name, "delete: OK"))
            return
        word = MISSING if call.status in _NOT_FOUND else state_of(call.answer) if call.status == OK else ""
        if not word:
            return
        self.seen.append(self._as_seen(call.began, kind, name, word))
        slice_ = self._slice(whole)
        slice_.observe(word, call.began)
        if call.status == OK:
            self.echoes.update(self._echoes(call.method, slice_.asked, call.answer))

    def _asked(self, call: Call) -> None:
        name = str(call.request.get("queuedResourceId", ""))
        if not name.startswith(self._ours):
            return
        slice_ = self._slice(f"{call.request.get('parent', '')}/queuedResources/{name}")
        slice_.created = slice_.created or call.began + call.seconds
        slice_.asked = slice_.asked or dict(call.request.get("queuedResource", {}))

    def _slice(self, resource: str) -> Slice:
        resource = resource.replace("/nodes/", "/queuedResources/")
        return self.slices.setdefault(resource.rpartition("/")[2], Slice(resource, self.rate))

    def _as_seen(self, at: float, kind: str, name: str, word: str) -> Seen:
        return Seen(at - self._began, kind, self.redactor.placeholder("NAME", name), word)

    def _echoes(self, method: str, asked: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[Echo]:
        """Compare each field of a request with the answer, and report only the field's path."""
        if method == "GetNode":
            specs = asked.get("tpu", {}).get("nodeSpec", ({},))
            asked = specs[0].get("node", {})
        for path, value in flat(asked):
            became = _at(answer, path)
            word = "absent" if became is None else "same" if became == value else "changed"
            yield Echo(f"tpu {method}", ".".join(self._shown(path)), word)

    def _shown(self, path: tuple[str, ...]) -> Iterator[str]:
        for before, part in zip(("", *path), path, strict=False):
            yield part if part == "[]" else self.redactor.key(part, before)


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

    @property
    def node(self) -> str:
        return self.resource.replace("/queuedResources/", "/nodes/")

    def observe(self, word: str, at: float) -> None:
        if word != MISSING and self.shown is None:
            self.shown = at
        if word in _CHARGED and self.ended is None:
            self.ready = at if self.ready is None else min(self.ready, at)
        elif word in _FREE and self.ready is not None and self.ended is None:
            self.ended = at

    def seconds(self, now: float) -> float:
        return 0.0 if self.ready is None else max(0.0, (self.ended or now) - self.ready)


def flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of a structure with the way to each; what is empty is a leaf."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from flat(item, (*path, str(key)))
    elif isinstance(value, list) and value:
        for item in value:
            yield from flat(item, (*path, "[]"))
    else:
        yield path, value


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if part == "[]":
            value = value[0] if isinstance(value, list) and value else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is None:
            return None
    return value


def state_of(answer: Mapping[str, Any]) -> str:
    state = answer.get("state", "")
    return str(state.get("state", "") if isinstance(state, Mapping) else state)


def _without_others(answer: Mapping[str, Any], ours: str) -> Mapping[str, Any]:
    """A listing without resources of other owners in the project."""
    for key in _LISTS:
        if isinstance(listed := answer.get(key), list):
            mine = [item for item in listed if str(item.get("name", "")).rpartition("/")[2].startswith(ours)]
            answer = {**answer, key: mine}
    return answer
