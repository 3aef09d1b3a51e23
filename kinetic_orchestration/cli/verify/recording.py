"""Records requests and answers while a verification runs: redacted immediately, with place and time.

From the answers alone it also knows which slices of this run exist and for how long they were charged. It does not
judge anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from kinetic_orchestration.cli.verify.clouds.cloud import ASKED, DELETED, OF_LISTS, Calls, Slice, Told
from kinetic_orchestration.cli.verify.clouds.cloud_tpu import TpuCalls
from kinetic_orchestration.cli.verify.redaction import Redactor
from kinetic_orchestration.platforms.google.rest.call_listeners import OK, Call


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
    """The state of a queued resource, a node or a VM in one poll, or in one call of ours."""

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
    def __init__(
        self, redactor: Redactor, ours: str, clock: Callable[[], float] = time.time, calls: Calls | None = None
    ) -> None:
        self.redactor = redactor
        self.step = ""
        self.rate = 0.0  # dollars a second of the slices that this step asks for
        self.entries: list[Entry] = []
        self.seen: list[Seen] = []
        self.echoes: set[Echo] = set()
        self.slices: dict[str, Slice] = {}  # by their names as the API has them
        self.lost = 0  # calls that could not be recorded
        self.calls: Calls = calls or TpuCalls()
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
        ours = call.service == self.calls.SERVICE
        self.entries.append(
            Entry(
                call.began - self._began,
                self.step,
                getattr(self._moment, "name", ""),
                self._called(call),
                self.redactor.plain(call.request),
                call.status,
                self.redactor.plain(answer),
                call.unknown,
                call.seconds,
            )
        )
        if ours and (told := self.calls.told(call)) is not None and _name(told.resource).startswith(self._ours):
            self._follow(call, told)

    def _follow(self, call: Call, told: Told) -> None:
        if told.what == DELETED:
            self.seen.append(self._as_seen(call.began + call.seconds, told, "delete: OK"))
            return
        slice_ = self.slices.setdefault(_name(told.resource), Slice(told.resource, self.rate))
        if told.what == ASKED:
            slice_.created = slice_.created or call.began + call.seconds
            slice_.asked = slice_.asked or told.asked
            return
        self.seen.append(self._as_seen(call.began, told, told.word))
        if told.part:
            slice_.observe_part(told.word, call.began)
            return
        slice_.observe(told.word, call.began)
        if call.status == OK:
            self.echoes.update(self._echoes(call, self.calls.echoed(told.kind, slice_.asked)))

    def _called(self, call: Call) -> str:
        if name := self.calls.name_of(call) if call.service == self.calls.SERVICE else "":
            return f"{call.service} {name}"
        verb, _, path = call.method.partition(" ")
        return f"{call.service} {verb} {self.redactor.path(path)}"

    def deletions(self, slice_: Slice) -> int:
        """Return how many deletions of a slice, by this process, were accepted."""
        shown = self.redactor.placeholder("NAME", _name(slice_.resource))
        return sum((seen.name, seen.word) == (shown, "delete: OK") for seen in self.seen)

    def _as_seen(self, at: float, told: Told, word: str) -> Seen:
        name = _name(told.part or told.resource)
        return Seen(at - self._began, told.kind, self.redactor.placeholder("NAME", name), word)

    def _echoes(self, call: Call, asked: Mapping[str, Any]) -> Iterator[Echo]:
        """Compare each field of a request with the answer, and report only the field's path."""
        name = self._called(call)
        for path, value in flat(asked):
            became = _at(call.answer, path)
            word = "absent" if became is None else "same" if became == value else "changed"
            yield Echo(name, ".".join(self._shown(path)), word)

    def _shown(self, path: tuple[str, ...]) -> Iterator[str]:
        for before, part in zip(("", *path), path, strict=False):
            yield part if part == "[]" else self.redactor.key(part, before)


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


def _name(resource: str) -> str:
    return resource.rpartition("/")[2]


def _without_others(answer: Mapping[str, Any], ours: str) -> Mapping[str, Any]:
    """A listing without resources of other owners in the project."""
    for key in OF_LISTS:
        if isinstance(listed := answer.get(key), list):
            answer = {**answer, key: [item for item in listed if _name(str(item.get("name", ""))).startswith(ours)]}
    if isinstance(scopes := answer.get("items"), Mapping):  # of a list over all zones
        answer = {**answer, "items": {scope: _without_others(found, ours) for scope, found in scopes.items()}}
    return answer
