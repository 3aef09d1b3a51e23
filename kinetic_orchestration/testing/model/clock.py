"""The clock of an emulated cloud: due events are carried out when the cloud is used, and every step holds one lock.

Time is passed in. The module knows when events happen and records them; it does not know what they are.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound="Clock")


class Event(NamedTuple):
    """One line of what happened."""

    time: float
    kind: str
    name: str
    what: str


def step(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Decorate a public method of a cloud: due events are carried out first, under the cloud's lock."""

    @functools.wraps(method)
    def stepped(self: C, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.changed:
            self._catch_up()
            try:
                return method(self, *args, **kwargs)
            finally:
                self.changed.notify_all()

    return cast("Callable[Concatenate[C, P], T]", stepped)


class Clock:
    """The time, what is to happen when, and the history of what did."""

    def __init__(self, clock: Callable[[], float], pause: Callable[[float], object]) -> None:
        self.history: deque[Event] = deque(maxlen=10_000)
        self.listener: Callable[[Event], None] | None = None
        # Notified at every step; its lock is the one of the cloud.
        self.changed = threading.Condition(threading.RLock())
        self._clock, self._pause = clock, pause
        self._now = clock()
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    @step
    def advance(self) -> None:
        """Let everything happen that is due by now. (Every other step does so first.)"""

    @property
    def now(self) -> float:
        """The time of the step that is being carried out."""
        return self._now

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after some time; called within a step."""
        self._later(seconds, action)

    def record(self, kind: str, name: str, what: str) -> None:
        """Record an event of the step that is being carried out."""
        self._record(kind, name, what)

    def pause(self, seconds: float) -> bool:
        """Let time pass outside of any step. Returns True if the cloud closes meanwhile."""
        return bool(self._pause(seconds))

    def next_due(self) -> float | None:
        """The time of the next scheduled event, or None."""
        with self.changed:
            return self._due[0][0] if self._due else None

    @step
    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Do something at that time."""
        self._later(max(0.0, moment - self._now), action)

    def _catch_up(self) -> None:
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            at, _, action = heapq.heappop(self._due)
            self._now = max(self._now, at)
            action()
        self._now = max(self._now, now)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self._now + seconds, next(self._numbers), action))

    def _record(self, kind: str, name: str, what: str, moment: float | None = None) -> None:
        """Record an event; by default it is of the step that is being carried out."""
        event = Event(self._now if moment is None else moment, kind, name, what)
        self.history.append(event)
        if self.listener is not None:
            self.listener(event)
