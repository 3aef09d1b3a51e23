"""Looking at jobs: one glimpse of one attempt, and one watcher per store in a process that wakes its followers.

A follower sleeps until something rings (the store's bell) or until it is time for a look in any case: the bell
is a hint and never the truth. A thousand sleeping followers cost one stat a tick.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kinetic_orchestration.agent import names, wire
from kinetic_orchestration.agent.records import Bell, FileRecords, Record
from kinetic_orchestration.agent.wire import Beat, Verdict
from kinetic_orchestration.backends import Backend
from kinetic_orchestration.errors import NewerWire, StoreError
from kinetic_orchestration.stores import Store
from kinetic_orchestration.values import ABSENT, Cancel, Glimpse, Intent, Observation

TICK = 0.002  # between two looks at the bell while it rings; slower the longer it is silent,
SLOWEST_TICK = 0.04
SLOWING = 1.05
PACE = 1.0  # between two looks at a job that does not ring, while few are followed
SLOWEST = 40.0
FOLLOWERS_PER_SECOND = 25  # looks that one process takes a second, however many jobs it follows


def look(store: Store, backend: Backend, job_id: str, attempt: int, hosts: int, *, once_more: bool = True) -> Glimpse:
    """One glimpse, in an order that makes a slow one no lie: the time first, so that no age is too great; beats
    before the backend, so that hosts which gave a sign and are absent are gone and not just made; the verdict last,
    for hosts that have just gone may have left one. If it came meanwhile, all before it is looked at once more.
    """
    now = store.now()
    promised = store.read(names.intent(job_id, attempt))
    intent = None if promised is None else _intent(promised)
    beats, ages = [], []
    for host in range(hosts if intent is not None else 0):
        record = store.read(names.beat(job_id, attempt, host))
        beats.append(None if record is None else Beat.read(record.data) or Beat(""))
        ages.append(0.0 if record is None else now - record.updated)
    observation = backend.observe([intent.placement])[0] if intent is not None else Observation(ABSENT)
    cancel = store.read(names.cancel(job_id))
    verdict = store.read(names.verdict(job_id, attempt))
    done = 0
    if verdict is not None:
        if verdict.updated > now and once_more:
            return look(store, backend, job_id, attempt, hosts, once_more=False)
        done = sum(store.read(names.host(job_id, attempt, host, "done.json")) is not None for host in range(hosts))
    return Glimpse(
        now=now,
        intent=intent,
        verdict=None if verdict is None else verdict_of(verdict.data),
        verdict_age=0.0 if verdict is None else now - verdict.updated,
        cancel=None if cancel is None else _cancel(cancel.data, now - cancel.updated),
        observation=observation,
        beats=tuple(beats),
        beat_ages=tuple(ages),
        done=done,
    )


def _intent(record: Record) -> Intent:
    """An attempt is as old as its record: its writer may have slept since it decided to write it."""
    fields = decoded(record.data, "an intent")
    with _reading("an intent"):
        deadline = record.updated + fields["allowed"] if fields["allowed"] else 0.0
        placement = {  # most of it is the same for all jobs: a thousand followers share it
            sys.intern(name): sys.intern(value) if isinstance(value, str) else value
            for name, value in fields["placement"].items()
        }
        return Intent(fields["attempt"], fields["boot"], placement, deadline, record.updated)


def _cancel(data: bytes, age: float) -> Cancel:
    fields = decoded(data, "a cancel")
    return Cancel(fields.get("reason", ""), fields.get("by", ""), age)


def verdict_of(data: bytes) -> Verdict:
    with _reading("a verdict"):
        return Verdict.decode(data)


def decoded(data: bytes, name: str) -> dict[str, Any]:
    """A record's fields."""
    with _reading(name):
        return wire.decode(data, name)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """What is wrong with a record, as one of the project's own errors."""
    try:
        yield
    except wire.Newer as error:
        raise NewerWire(str(error)) from None
    except (wire.Unreadable, KeyError, TypeError) as error:
        raise StoreError(f"{name} cannot be read ({error}): it is damaged, or not of this package's making") from None


class Watcher:
    """Wakes the followers of one store's jobs. Its thread lives while somebody follows."""

    def __init__(self, store: Store) -> None:
        self._bell = Bell(store) if isinstance(store, FileRecords) else None
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Callable[[], object]]] = {}
        self._running = False
        self._followers = 0
        self._joined = threading.Event()

    def pace(self) -> float:
        """How long a follower may sleep without a ring."""
        return min(SLOWEST, max(PACE, self._followers / FOLLOWERS_PER_SECOND))

    @contextmanager
    def following(self, *job_ids: str) -> Iterator[Rung]:
        """What rings, from now on. Clear it before a look, and no ring is ever missed."""
        rung = Rung(self)
        try:
            for job_id in job_ids:
                rung.follow(job_id)
            yield rung
        finally:
            rung.close()

    def following_async(self, job_id: str) -> Doze:
        """The same on the running event loop."""
        return Doze(self, job_id)

    def _add(self, job_id: str, wake: Callable[[], object]) -> None:
        with self._lock:
            self._waiting.setdefault(job_id, []).append(wake)
            self._followers += 1
            self._joined.set()
            if not self._running and self._bell is not None:
                self._running = True
                threading.Thread(target=self._run, name="kinetic-watch", daemon=True).start()

    def _remove(self, job_id: str, wake: Callable[[], object]) -> None:
        with self._lock:
            waiting = self._waiting.get(job_id, [])
            if wake in waiting:
                waiting.remove(wake)
            if not waiting:
                self._waiting.pop(job_id, None)
            self._followers -= 1

    def _run(self) -> None:
        assert self._bell is not None
        idle_since = time.monotonic()
        tick = TICK
        while True:
            rung = self._bell.poll()
            with self._lock:
                if self._waiting:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > 2.0:
                    self._running = False
                    return
                jobs = list(self._waiting) if rung is None else set(rung)
                wakes = [wake for job in jobs for wake in self._waiting.get(job, ())]
            for wake in wakes:
                wake()
            if self._joined.wait(tick) or rung != []:
                self._joined.clear()
                tick = TICK
            else:
                tick = min(SLOWEST_TICK, tick * SLOWING)


class Rung:
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


class Doze:
    """An event loop's sleep until a job rings. Small, because a process may have thousands of them."""

    __slots__ = ("_job_id", "_loop", "_rung", "_sleep", "_timer", "_watcher")

    def __init__(self, watcher: Watcher, job_id: str) -> None:
        self._watcher = watcher
        self._job_id = job_id
        self._loop = asyncio.get_running_loop()
        self._sleep: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rung = False

    def __enter__(self) -> Doze:
        self._watcher._add(self._job_id, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watcher._remove(self._job_id, self)
        if self._timer is not None:
            self._timer.cancel()

    def __call__(self) -> None:
        """It rings, says the watcher's thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody sleeps there any more
            self._loop.call_soon_threadsafe(self._wake)

    def clear(self) -> None:
        self._rung = False

    def sleep(self, within: float) -> asyncio.Future[None]:
        """Done at the first ring since `clear`, or when the time is up."""
        sleep = self._sleep = self._loop.create_future()
        self._timer = self._loop.call_later(within, self._wake)
        if self._rung:
            self._wake()
        return sleep

    def _wake(self) -> None:
        self._rung = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sleep is not None and not self._sleep.done():
            self._sleep.set_result(None)
        self._sleep = self._timer = None


_watchers: dict[tuple[int, str], Watcher] = {}
_watchers_lock = threading.Lock()


def watcher_of(store: Store) -> Watcher:
    """The one watcher of this store in this process."""
    key = os.getpid(), store.url  # a thread does not survive a fork
    with _watchers_lock:
        if key not in _watchers:
            _watchers[key] = Watcher(store)
        return _watchers[key]
