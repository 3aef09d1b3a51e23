"""The watcher that polls: for stores whose every look is a request."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kinetic_orchestration.errors import BackendError, CredentialsError, KineticError
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.jobs.watching.poll import Poll
from kinetic_orchestration.jobs.watching.watchers.base import (
    FOLLOWERS_PER_SECOND,
    PACE,
    SLOWEST,
    Subscriber,
    Watcher,
)
from kinetic_orchestration.plan.values import Intent
from kinetic_orchestration.platforms.backend import Backend, RateLimit
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import side_by_side

UNREAD_POLL_SECONDS = 10.0  # seconds between two polls of jobs whose log is not read
POLL_MIN = 0.05  # in the first seconds of a wait: a no-op's value arrives sooner, for about ten more listings
POLLED_PER_SECOND = 40  # polled jobs of one process; ten times as many while a log is read
READER_SECONDS = 25.0  # seconds between two notices to hosts that their log is read; longer for many jobs
READERS_PER_SECOND = 4
READERS_AT_ONCE = 20
LINE_POLL_SECONDS = 15.0  # the most between two polls of jobs that wait in a line: so soon is a cancel heard of


class PollingWatcher(Watcher):
    """Polls a store whose every look is a request, for all followers at once, and wakes those that have news."""

    def __init__(self, store: Store, backend: Backend) -> None:
        super().__init__()
        self._store = store
        self._backend = backend
        self._subscribers: dict[str, tuple[Subscriber, ...]] = {}
        self._looked: dict[RateLimit | None, Poll] = {}  # by rate limit of a zone: the newest poll that did not skip it
        self._log_readers: dict[str, float] = {}  # by job: time of the next notice that its log is read
        self._signatures: dict[str, int] = {}
        self._since = 0.0
        self._never = threading.Event()
        self.poll: Poll | None = None  # the newest

    def sleep_seconds(self, *, restless: bool = False, turn_at: float = 0.0) -> float:
        """Return how long a follower may sleep. A step without news costs no request: it only serves time limits. One
        that waits in a line for its turn has nothing else to wait for."""
        if turn_at:
            return max(PACE, turn_at - self._store.now())
        if restless:
            return super().sleep_seconds()
        return min(SLOWEST, max(UNREAD_POLL_SECONDS, self._followers / FOLLOWERS_PER_SECOND))

    def poll_interval(self) -> float:
        """Return the seconds between two polls: a hundredth of the wait so far, at most a second if a log is read, else
        a few; longer for many jobs, because a listing grows with them, and as long as all of them wait in a line.
        """
        waited = time.monotonic() - self._since
        steady, at_once = (
            (PACE, 10 * POLLED_PER_SECOND) if self._log_readers else (UNREAD_POLL_SECONDS, POLLED_PER_SECOND)
        )
        usual = max(min(steady, max(POLL_MIN, waited / 100)), len(self._subscribers) / at_once)
        return max(usual, min(LINE_POLL_SECONDS, self._in_line()))

    def _in_line(self) -> float:
        """Return for how many seconds nobody's turn is worth a look; 0 if a job does not wait for one."""
        with self._lock:
            turns = [follower.turn_at for followers in self._subscribers.values() for follower in followers]
            waits = bool(turns) and all(turns) and self._waiting.keys() <= self._subscribers.keys()
        return min(turns) - self._store.now() if waits else 0.0

    def hurry(self) -> None:
        self._since = time.monotonic()
        self._joined.set()

    def poll_for(self, job_id: str, cache: AttemptCache) -> tuple[Poll | None, bool]:
        """Return the poll for a follower. One that was woken because its zone was observed gets that poll, however late
        it comes: later polls may have skipped the zone again.
        """
        newest, intent = self.poll, cache.intent
        if newest is not None and cache.zone_skipped and job_id in newest.skipped and intent is not None:
            looked = self._looked.get(self._backend.rate_limit(intent.placement))
            if looked is not None and looked.taken > max(cache.looked_at, cache.stale_before):
                return looked, True
        return newest, False

    def subscribe(self, job_id: str, follower: Subscriber, *, reads: bool) -> None:
        with self._lock:
            others = self._subscribers.get(job_id, ())
            if follower not in others:
                self._since = time.monotonic()  # of the youngest: it is the one that may be short
                self._joined.set()
                self._subscribers[job_id] = (*others, follower)
                follower.cache.subscribed = True
            if reads:
                self._log_readers.setdefault(job_id, 0.0)

    def unsubscribe(self, job_id: str, follower: Subscriber) -> None:
        with self._lock:
            others = tuple(other for other in self._subscribers.pop(job_id, ()) if other is not follower)
            follower.cache.subscribed = False
            if others:
                self._subscribers[job_id] = others

    @contextmanager
    def polled_together(self, wanted: Mapping[str, tuple[int, AttemptCache]]) -> Iterator[None]:
        """Take one poll for all of them; an intent is read when its job is looked at for the first time."""

        def recall(job_id: str) -> Intent | None:
            attempt, cache = wanted[job_id]
            with suppress(Exception):  # the follower's own step raises it
                return cache.intent_of_attempt(self._store, self._backend, job_id, attempt)
            return None

        intents = zip(wanted, side_by_side(recall, list(wanted), self._store.parallel), strict=True)
        placements = {job_id: intent.placement for job_id, intent in intents if intent and intent.placement}
        self.poll = None
        try:
            self.poll = Poll.take(self._store, self._backend, names.BEATS, placements)
        except (BackendError, CredentialsError):  # then each polls for itself, and gets the error
            pass
        except KineticError:  # the store: it would keep each of them waiting
            raise
        except Exception:  # a mistake of ours that the records of one of them bring to light
            pass
        try:
            yield
        finally:
            if not self._running:
                self.poll = None

    def _remove(self, job_id: str, wake: Callable[[], object]) -> None:
        super()._remove(job_id, wake)
        with self._lock:
            if job_id not in self._waiting:
                for follower in self._subscribers.pop(job_id, ()):
                    follower.cache.subscribed = False
                self._log_readers.pop(job_id, None)
                self._signatures.pop(job_id, None)

    def _pause(self) -> None:
        if self._joined.wait(self.poll_interval()):  # a new follower should not wait as long as the others
            self._joined.clear()
            self._never.wait(POLL_MIN)

    def _turn(self) -> None:
        with self._lock:
            waiting, subscribers = list(self._waiting), dict(self._subscribers)
        if not waiting:
            return
        if (wait := self._wait_for_zones(subscribers)) > 0.0:
            self._never.wait(wait)
            with self._lock:  # also followers that joined during the wait
                waiting, subscribers = list(self._waiting), dict(self._subscribers)
        self._poll(waiting, subscribers)

    def _failed(self) -> None:
        self.poll = None  # each follower polls for itself, and gets the error

    def _stopped(self) -> None:
        self.poll, self._looked = None, {}

    def _wait_for_zones(self, subscribers: Mapping[str, tuple[Subscriber, ...]]) -> float:
        """Return the seconds until this process may look at each zone of several jobs. One job alone need not wait for
        its zone to hear what its hosts say.
        """
        jobs = Counter(map(self._backend.rate_limit, _placements(subscribers).values()))
        return max((limit.wait() for limit, number in jobs.items() if limit is not None and number > 1), default=0.0)

    def _poll(self, waiting: Sequence[str], subscribers: Mapping[str, tuple[Subscriber, ...]]) -> None:
        """Poll for jobs, and for batches, which have a ring only, and wake those for whom there is news."""
        prefix = names.beats_of(waiting[0]) if len(waiting) == 1 else names.BEATS
        placements = _placements(subscribers)
        with self._lock:
            reading = frozenset(self._log_readers)
        poll = Poll.take(self._store, self._backend, prefix, placements, reading, self.poll, paced=True)
        zones = {job: self._backend.rate_limit(placement) for job, placement in placements.items()}
        looked = {zone: poll for job, zone in zones.items() if job not in poll.skipped}
        self._looked = {zone: found for zone, found in self._looked.items() if zone in zones.values()} | looked
        self.poll = poll
        for job in waiting:
            missed = job not in poll.skipped and any(one.cache.zone_skipped for one in subscribers.get(job, ()))
            if (signature := poll.signature(job)) != self._signatures.get(job) or missed:
                self._signatures[job] = signature
                self._wake((job,))
        self._announce_readers(poll.taken)

    def _announce_readers(self, now: float) -> None:
        """Notify the hosts whose log is read, so that they send their lines sooner."""
        with self._lock:
            in_line = {job for job, some in self._subscribers.items() if all(one.turn_at for one in some)}
            due = [job for job, again in self._log_readers.items() if now > again and job not in in_line]
            pause = max(READER_SECONDS, len(self._log_readers) / READERS_PER_SECOND)
        for job in due[:READERS_AT_ONCE]:
            if not self._store.hint(names.eye(job), wire.open_eye(pause)):
                return  # an unreachable store is tried again in the next poll: all followers wait for this one
            with self._lock:
                if job in self._log_readers:
                    self._log_readers[job] = now + pause


def _placements(subscribers: Mapping[str, tuple[Subscriber, ...]]) -> dict[str, Mapping[str, Any]]:
    """Return the placement of each job: that of the newest attempt that one of its followers has reached."""
    found: dict[str, Mapping[str, Any]] = {}
    for job, followers in subscribers.items():
        intents = [follower.cache.intent for follower in followers]
        placed = [intent for intent in intents if intent is not None and intent.placement]
        if placed:
            found[job] = max(placed, key=lambda intent: intent.attempt).placement
    return found
