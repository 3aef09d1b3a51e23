"""The watcher of a store whose every look is a request."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kinetic_orchestration.errors import BackendError, CredentialsError, KineticError
from kinetic_orchestration.jobs.watching.cache import Memory
from kinetic_orchestration.jobs.watching.poll import Scene
from kinetic_orchestration.jobs.watching.watchers.base import (
    FOLLOWERS_PER_SECOND,
    PACE,
    SLOWEST,
    Followed,
    Watcher,
)
from kinetic_orchestration.plan.values import Intent
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.google.tpu.rate_limit import Pace, pace_of
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system.parallel import REQUESTS, side_by_side

UNSEEN_PACE = 10.0  # between two scenes of jobs whose log nobody reads
QUICKEST = 0.05  # in the first seconds of a wait: some ten more listings, and a no-op's value is there so much sooner
SEEN_PER_SECOND = 40  # jobs of scenes that one process takes; ten times as many while somebody reads
EYE_SECONDS = 25.0  # after so long the hosts are told again that somebody reads; of many jobs later,
EYES_PER_SECOND = 4
EYES_AT_ONCE = 20


class PollingWatcher(Watcher):
    """The watcher of a store whose every look is a request: it looks for all, once a tick."""

    def __init__(self, store: Store, backend: Backend) -> None:
        super().__init__()
        self._store = store
        self._backend = backend
        self._noted: dict[str, tuple[Followed, ...]] = {}
        self._looked: dict[Pace | None, Scene] = {}  # of each zone, the newest scene in which it was looked at
        self._reading: dict[str, float] = {}  # jobs whose log somebody reads, and when their hosts are told so again
        self._signatures: dict[str, int] = {}
        self._since = 0.0
        self._never = threading.Event()
        self.scene: Scene | None = None  # the newest

    def pace(self, *, restless: bool = False) -> float:
        """A step without news costs no request: it is there for the limits."""
        if restless:
            return super().pace()
        return min(SLOWEST, max(UNSEEN_PACE, self._followers / FOLLOWERS_PER_SECOND))

    def tick(self) -> float:
        """A wait is known to within a hundredth of its length, a second if somebody looks, else a few; of many jobs
        later, because what is listed grows with them.
        """
        waited = time.monotonic() - self._since
        steady, at_once = (PACE, 10 * SEEN_PER_SECOND) if self._reading else (UNSEEN_PACE, SEEN_PER_SECOND)
        return max(min(steady, max(QUICKEST, waited / 100)), len(self._noted) / at_once)

    def scene_for(self, job_id: str, memory: Memory) -> tuple[Scene | None, bool]:
        """One that was woken because its zone was looked at sees that, however late it comes: the scenes after it
        may have left the zone out again.
        """
        newest, intent = self.scene, memory.intent
        if newest is not None and memory.overlooked and job_id in newest.unlooked and intent is not None:
            looked = self._looked.get(pace_of(intent.placement))
            if looked is not None and looked.taken > max(memory.looked, memory.not_before):
                return looked, True
        return newest, False

    def note(self, job_id: str, follower: Followed, *, reads: bool) -> None:
        with self._lock:
            others = self._noted.get(job_id, ())
            if follower not in others:
                self._since = time.monotonic()  # of the youngest: it is the one that may be short
                self._joined.set()
                self._noted[job_id] = (*others, follower)
                follower.memory.woken = True
            if reads:
                self._reading.setdefault(job_id, 0.0)

    def forget(self, job_id: str, follower: Followed) -> None:
        with self._lock:
            others = tuple(other for other in self._noted.pop(job_id, ()) if other is not follower)
            follower.memory.woken = False
            if others:
                self._noted[job_id] = others

    @contextmanager
    def seen_at_once(self, wanted: Mapping[str, tuple[int, Memory]]) -> Iterator[None]:
        """One scene of all of them; an intent is read when its job is looked at for the first time."""

        def recall(job_id: str) -> Intent | None:
            attempt, memory = wanted[job_id]
            with suppress(Exception):  # whoever looks at the job hears of it
                return memory.recall(self._store, self._backend, job_id, attempt)
            return None

        intents = zip(wanted, side_by_side(recall, list(wanted), REQUESTS), strict=True)
        placements = {job_id: intent.placement for job_id, intent in intents if intent and intent.placement}
        self.scene = None
        try:
            self.scene = Scene.take(self._store, self._backend, names.BEATS, placements)
        except (BackendError, CredentialsError):  # then each asks for itself, and hears what is the matter
            pass
        except KineticError:  # the store: it would keep each of them waiting
            raise
        except Exception:  # a mistake of ours that the records of one of them bring to light
            pass
        try:
            yield
        finally:
            if not self._running:
                self.scene = None

    def _remove(self, job_id: str, wake: Callable[[], object]) -> None:
        super()._remove(job_id, wake)
        with self._lock:
            if job_id not in self._waiting:
                for follower in self._noted.pop(job_id, ()):
                    follower.memory.woken = False
                self._reading.pop(job_id, None)
                self._signatures.pop(job_id, None)

    def _pause(self) -> None:
        if self._joined.wait(self.tick()):  # somebody who should not wait as long as the others
            self._joined.clear()
            self._never.wait(QUICKEST)

    def _turn(self) -> None:
        with self._lock:
            waiting, noted = list(self._waiting), dict(self._noted)
        if not waiting:
            return
        if (wait := self._wait_for_zones(noted)) > 0.0:
            self._never.wait(wait)
            with self._lock:  # who came meanwhile is looked at, too
                waiting, noted = list(self._waiting), dict(self._noted)
        self._look(waiting, noted)

    def _failed(self) -> None:
        self.scene = None  # each follower asks for itself, and hears what is the matter

    def _stopped(self) -> None:
        self.scene, self._looked = None, {}

    def _wait_for_zones(self, noted: Mapping[str, tuple[Followed, ...]]) -> float:
        """Return the seconds until this process may look at each zone of several jobs. One job alone need not wait for
        its zone to hear what its hosts say.
        """
        jobs = Counter(map(pace_of, _placements(noted).values()))
        return max((pace.wait() for pace, number in jobs.items() if pace is not None and number > 1), default=0.0)

    def _look(self, waiting: Sequence[str], noted: Mapping[str, tuple[Followed, ...]]) -> None:
        """Of jobs, and of batches, which have a ring only."""
        prefix = names.beats_of(waiting[0]) if len(waiting) == 1 else names.BEATS
        placements = _placements(noted)
        with self._lock:
            reading = frozenset(self._reading)
        scene = Scene.take(self._store, self._backend, prefix, placements, reading, self.scene, paced=True)
        zones = {job: pace_of(placement) for job, placement in placements.items()}
        looked = {zone: scene for job, zone in zones.items() if job not in scene.unlooked}
        self._looked = {zone: found for zone, found in self._looked.items() if zone in zones.values()} | looked
        self.scene = scene
        for job in waiting:
            missed = job not in scene.unlooked and any(one.memory.overlooked for one in noted.get(job, ()))
            if (signature := scene.signature(job)) != self._signatures.get(job) or missed:
                self._signatures[job] = signature
                self._wake((job,))
        self._show(scene.taken)

    def _show(self, now: float) -> None:
        """The hosts send their lines sooner while they know that somebody reads."""
        with self._lock:
            due = [job for job, again in self._reading.items() if now > again][:EYES_AT_ONCE]
            pause = max(EYE_SECONDS, len(self._reading) / EYES_PER_SECOND)
        for job in due:
            if not self._store.hint(names.eye(job), wire.open_eye(pause)):
                return  # a store that is away is for the next look: all followers wait for this one
            with self._lock:
                if job in self._reading:
                    self._reading[job] = now + pause


def _placements(noted: Mapping[str, tuple[Followed, ...]]) -> dict[str, Mapping[str, Any]]:
    """Of each job, that of the newest attempt at which one of its followers is."""
    found: dict[str, Mapping[str, Any]] = {}
    for job, followers in noted.items():
        intents = [follower.memory.intent for follower in followers]
        placed = [intent for intent in intents if intent is not None and intent.placement]
        if placed:
            found[job] = max(placed, key=lambda intent: intent.attempt).placement
    return found
