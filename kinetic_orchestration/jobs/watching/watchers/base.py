"""The part that all watchers share: who waits for which job, how to wake them, and one thread that lives while used.
`BellWatcher` adds the least to it, a store's bell.
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Protocol

from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.jobs.watching.poll import Poll
from kinetic_orchestration.platforms.store import Store

PACE = 1.0  # seconds between two steps of a job that does not ring, while few are followed
SLOWEST = 40.0
FOLLOWERS_PER_SECOND = 25  # steps of one process per second, for any number of jobs
IDLE_SECONDS = 2.0  # a watcher's thread ends when no follower has waited for so long
TOGETHER = 10.0  # longer sleeps end at a whole second, together with others
TICK_MIN = 0.002  # seconds between two polls of the bell while it rings; longer in a silence, so that a ring is noticed
TICK_GROWTH = 1.02  # within a fiftieth of the silence before it,
TICK_MAX = 0.1  # and within this in any case


class Subscriber(Protocol):
    """A follower, as its watcher sees it."""

    cache: AttemptCache

    @property
    def turn_at(self) -> float:
        """Return the store's time at which its attempt's place in a line is worth a look; 0 if it waits in none."""


class Watcher(ABC):
    """Wakes the followers of one store's jobs. Its thread runs while a follower waits.

    A bell or a poll is only a hint: followers also look by themselves, at their own rate.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[Callable[[], object], ...]] = {}
        self._running = False
        self._followers = 0
        self._alarms: Alarms = {}
        self._joined = threading.Event()  # a follower has begun to wait

    @property
    def idle(self) -> bool:
        """True if no follower uses it."""
        return not self._waiting and not self._running

    def sleep_seconds(self, *, restless: bool = False, turn_at: float = 0.0) -> float:
        """Return how long a follower may sleep unless it is woken; a `restless` one waits for a moment to come.

        turn_at: that of the follower.
        """
        del restless, turn_at  # steps cost no request here
        return min(SLOWEST, max(PACE, self._followers / FOLLOWERS_PER_SECOND))

    def poll_for(self, job_id: str, cache: AttemptCache) -> tuple[Poll | None, bool]:
        """Return the poll for the next step of a follower, and whether there is a newer one, for another step."""
        del job_id, cache
        return None, False

    def hurry(self) -> None:  # noqa: B027 - nothing by default
        """Look again now: what a follower has just begun is soon worth a look."""

    def subscribe(self, job_id: str, follower: Subscriber, *, reads: bool) -> None:  # noqa: B027 - nothing by default
        """Poll for a follower too, by what its cache holds; `reads`: it reads the job's log. A bell needs none."""

    def unsubscribe(self, job_id: str, follower: Subscriber) -> None:  # noqa: B027 - nothing by default
        """Undo `subscribe`."""

    def polled_together(self, wanted: Mapping[str, tuple[int, AttemptCache]]) -> AbstractContextManager[None]:
        """Poll these jobs and attempts once, for a caller that looks at each of them and does not wait."""
        del wanted
        return nullcontext()

    @contextmanager
    def wakeups(self, *job_ids: str) -> Iterator[Wakeups]:
        """Collect the jobs that ring from now on. A caller that clears it before each look misses no ring."""
        wakeups = Wakeups(self)
        try:
            for job_id in job_ids:
                wakeups.follow(job_id)
            yield wakeups
        finally:
            wakeups.close()

    def async_wakeup(self, job_id: str) -> AsyncWakeup:
        """Do the same for one job, on the running event loop."""
        return AsyncWakeup(self, job_id)

    @property
    def _hears(self) -> bool:
        """True if there is anything for its thread to do."""
        return True

    @abstractmethod
    def _pause(self) -> None:
        """Sleep until the next turn, or until a follower has begun to wait."""

    @abstractmethod
    def _turn(self) -> None:
        """Wake those for whom there is news."""

    def _failed(self) -> None:  # noqa: B027 - nothing by default
        """Clean up after a turn that raised. Followers look by themselves, and hear what is the matter."""

    def _stopped(self) -> None:  # noqa: B027 - nothing by default
        """Drop what is of no use once the thread has ended. The lock is held."""

    def _add(self, job_id: str, wake: Callable[[], object]) -> None:
        with self._lock:
            self._waiting[job_id] = (*self._waiting.get(job_id, ()), wake)
            self._followers += 1
            self._joined.set()
            if not self._running and self._hears:
                with suppress(RuntimeError):  # too many threads, or the interpreter's end: followers keep their pace
                    threading.Thread(target=self._run, name="kinetic-watch", daemon=True).start()
                    self._running = True

    def _remove(self, job_id: str, wake: Callable[[], object]) -> None:
        with self._lock:
            waiting = list(self._waiting.pop(job_id, ()))
            if wake in waiting:
                waiting.remove(wake)
            if waiting:
                self._waiting[job_id] = tuple(waiting)
            self._followers -= 1

    def _run(self) -> None:
        used = time.monotonic()
        while True:
            self._pause()
            with self._lock:
                if self._waiting:
                    used = time.monotonic()
                elif time.monotonic() - used > IDLE_SECONDS:
                    self._running = False
                    self._stopped()
                    return
            try:
                self._turn()
            except Exception:  # of any kind: all followers rely on this thread, and none would notice its end
                self._failed()

    def _wake(self, jobs: Iterable[str] | None) -> None:
        """Wake all who wait for these jobs at this moment, or for any job if it is None."""
        with self._lock:
            chosen = list(self._waiting) if jobs is None else list(dict.fromkeys(jobs))
            wakes = [wake for job in chosen for wake in self._waiting.get(job, ())]
        for wake in wakes:
            wake()


class BellWatcher(Watcher):
    """Wakes followers when the store's bell rings: a thousand sleeping ones cost one stat a tick. Of a store without a
    bell, followers wake by themselves.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._bell = store.bell()
        self._tick = TICK_MIN
        self._rang = False  # in the newest turn

    @property
    def _hears(self) -> bool:
        return self._bell is not None

    def _pause(self) -> None:
        joined = self._joined.wait(self._tick)
        if joined:
            self._joined.clear()
        self._tick = TICK_MIN if joined or self._rang else min(TICK_MAX, self._tick * TICK_GROWTH)

    def _turn(self) -> None:
        assert self._bell is not None
        self._rang = False
        rung = self._bell.poll()  # before the followers are listed: no ring after one has joined is lost
        self._rang = rung != []
        self._wake(rung)


class Wakeups:
    """The jobs that have rung since the last `clear`, and a sleep until one does."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._event = threading.Event()
        self._rung: set[str] = set()
        self._wakes: dict[str, Callable[[], object]] = {}

    def follow(self, job_id: str) -> None:
        if job_id not in self._wakes:
            self._wakes[job_id] = functools.partial(self._wake, job_id)
            self._watcher._add(job_id, self._wakes[job_id])

    def unfollow(self, job_id: str) -> None:
        wake = self._wakes.pop(job_id, None)
        if wake is not None:
            self._watcher._remove(job_id, wake)

    def clear(self) -> set[str]:
        self._event.clear()
        rung, self._rung = self._rung, set()
        return rung

    def wait(self, within: float) -> bool:
        return self._event.wait(within)

    def close(self) -> None:
        for job_id in list(self._wakes):
            self.unfollow(job_id)

    def _wake(self, job_id: str) -> None:
        self._rung.add(job_id)
        self._event.set()


class AsyncWakeup:
    """An event loop's sleep until a job rings. Small, because a process may have thousands of them."""

    __slots__ = ("_alarm", "_job_id", "_loop", "_rung", "_sleep", "_watcher")

    def __init__(self, watcher: Watcher, job_id: str) -> None:
        self._watcher = watcher
        self._job_id = job_id
        self._loop = asyncio.get_running_loop()
        self._sleep: asyncio.Future[None] | None = None
        self._alarm: _Alarm | None = None
        self._rung = False

    def __enter__(self) -> AsyncWakeup:
        self._watcher._add(self._job_id, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher._remove(self._job_id, self)
        if self._alarm is not None:
            self._alarm.forget(self)
            self._alarm = None

    def __call__(self) -> None:
        """Wake the sleep; called on the watcher's thread when the job rings."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake)

    def clear(self) -> None:
        self._rung = False

    def sleep(self, within: float) -> asyncio.Future[None]:
        """Return a future that is done at the first ring since `clear`, or at the timeout. A long timeout ends up to a
        second early, so that many sleepers wake together, and share one timer, a busy processor and its caches.
        """
        if self._alarm is not None:  # of a sleep that was cancelled
            self._alarm.forget(self)
        sleep = self._sleep = self._loop.create_future()
        until = self._loop.time() + within
        if within < TOGETHER:
            self._alarm = _Alarm(self._loop, until, {})
        else:
            second, alarms = math.floor(until), self._watcher._alarms
            self._alarm = alarms.get((self._loop, second)) or _Alarm(self._loop, second, alarms)
        self._alarm.sleepers[self] = None
        if self._rung:
            self._wake()
        return sleep

    def _wake(self) -> None:
        self._rung = True
        if self._alarm is not None:
            self._alarm.forget(self)
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
        self._sleep = self._alarm = None


class _Alarm:
    """One timer of an event loop for all who sleep until then. It is among `alarms` while anybody does."""

    __slots__ = ("_alarms", "_key", "_timer", "sleepers")

    def __init__(self, loop: asyncio.AbstractEventLoop, until: float, alarms: Alarms) -> None:
        self.sleepers: dict[AsyncWakeup, None] = {}
        self._alarms, self._key = alarms, (loop, until)
        self._timer = loop.call_at(until, self._ring)
        alarms[self._key] = self

    def forget(self, sleeper: AsyncWakeup) -> None:
        self.sleepers.pop(sleeper, None)
        if not self.sleepers:
            self._timer.cancel()
            if self._alarms.get(self._key) is self:
                del self._alarms[self._key]

    def _ring(self) -> None:
        for sleeper in list(self.sleepers):
            sleeper._wake()


Alarms = dict[tuple[asyncio.AbstractEventLoop, float], _Alarm]
