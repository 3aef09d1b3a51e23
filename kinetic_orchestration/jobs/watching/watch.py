"""Looking at jobs: one glimpse of one attempt, and one watcher per store in a process that wakes its followers.

A follower sleeps until something rings (the store's bell) or until it is time for a look in any case: the bell
is a hint and never the truth. A thousand sleeping followers cost one stat a tick.

Where every look is a request, the watcher looks for all of them: a `Scene` is one listing of all beats and one of
each zone's resources. A follower is woken when its part of the scene has changed, and then asks only for what the
scene says is new (`Memory`).
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

from kinetic_orchestration.errors import BackendError, Corrupt, CredentialsError, KineticError
from kinetic_orchestration.plan.records import Within, cancel_of, intent_of, verdict_at
from kinetic_orchestration.plan.values import ABSENT, ELSEWHERE, PRESENT, UNKNOWN, Glimpse, Intent, Observation
from kinetic_orchestration.platforms.backend import Backend
from kinetic_orchestration.platforms.google.tpu.rate_limit import Pace, pace_of
from kinetic_orchestration.platforms.local.store import LocalStore
from kinetic_orchestration.platforms.store import Store
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.records.base import Record, Signal
from kinetic_orchestration.protocol.records.files import Bell
from kinetic_orchestration.protocol.system.parallel import REQUESTS, side_by_side
from kinetic_orchestration.protocol.wire import Beat

TICK = 0.002  # between two looks at the bell while it rings; slower the longer it is silent: what rings is heard
SLOWING = 1.02  # within a fiftieth of the silence before it,
SLOWEST_TICK = 0.1  # and within this in any case
PACE = 1.0  # between two looks at a job that does not ring, while few are followed
SLOWEST = 40.0
TOGETHER = 10.0  # who sleeps so long wakes at a whole second, with others
UNSEEN_PACE = 10.0  # between two scenes of jobs whose log nobody reads
QUICKEST = 0.05  # in the first seconds of a wait: some ten more listings, and a no-op's value is there so much sooner
SEEN_PER_SECOND = 40  # jobs of scenes that one process takes; ten times as many while somebody reads
EYE_SECONDS = 25.0  # after so long the hosts are told again that somebody reads; of many jobs later,
EYES_PER_SECOND = 4
EYES_AT_ONCE = 20
BLINK = 45.0  # the longest that is believed to have been watched between two looks
ASK_ANYWAY = 300.0  # for what the scene tells of, in case it did not
FOLLOWERS_PER_SECOND = 25  # looks that one process takes a second, however many jobs it follows


def look(
    store: Store,
    backend: Backend,
    job_id: str,
    attempt: int,
    hosts: int,
    *,
    memory: Memory | None = None,
    scene: Scene | None = None,
    once_more: bool = True,
) -> Glimpse:
    """One glimpse, in an order that makes a slow one no lie: the time first, so that no age is too great; beats
    before the backend, so that hosts which gave a sign and are absent are gone and not just made; the verdict last,
    for hosts that have just gone may have left one. If it came meanwhile, all before it is looked at once more.
    """
    if store.remote:
        return _look_from_afar(store, backend, job_id, attempt, hosts, memory or Memory(), scene)
    now = store.now()
    promised = store.read(names.intent(job_id, attempt))
    intent = None if promised is None else (memory or Memory()).intent_in(promised, backend, job_id, attempt)
    beats, ages, devices = [], [], memory is None or memory.reads
    for host in range(hosts if intent is not None else 0):
        record = store.read(names.beat(job_id, attempt, host))
        beats.append(None if record is None else _beat(record.data, devices=devices))
        ages.append(0.0 if record is None else now - record.updated)
    observation = _shared(backend.observe([intent.placement])[0]) if intent and intent.placement else unseen(intent)
    cancel = store.read(names.cancel(job_id))
    verdict = store.read(names.verdict(job_id, attempt))
    done = 0
    if verdict is not None:
        if verdict.updated > now and once_more:
            return look(store, backend, job_id, attempt, hosts, memory=memory, once_more=False)
        done = sum(store.read(names.host(job_id, attempt, host, "done.json")) is not None for host in range(hosts))
    return _glimpse(job_id, attempt, now, intent, verdict, cancel, observation, beats, ages, done)


def intent_at(record: Record, backend: Backend, job_id: str, attempt: int, within: Within | None) -> Intent:
    """The intent; of one that is damaged, with the place that its backend finds by the names of job and attempt."""
    try:
        return intent_of(record, job_id, attempt, within)
    except Corrupt as error:
        found = place_by_name(backend, job_id, attempt)
        return Intent(attempt, "", found or {}, 0.0, record.updated, damage=str(error), unfound=found is None)


def place_by_name(backend: Backend, job_id: str, attempt: int) -> dict[str, Any] | None:
    """What of an attempt is left where nothing can be read of it; empty if nothing is, and None if nobody can say."""
    unread = False
    try:
        for found in backend.leftovers():
            if "unread" in found:
                unread = True
            elif (found["job"], found["attempt"]) == (job_id, attempt):
                return dict(found)
    except KineticError:
        return None
    return None if unread else {}


def unseen(intent: Intent | None) -> Observation:
    """Of an attempt without a place: there is none yet, or it is not known which."""
    if intent is None or not intent.damage:
        return Observation(ABSENT)
    return Observation(ELSEWHERE, "its intent is damaged, and nothing of its name is found here")


def _glimpse(
    job_id: str, attempt: int, now: float, intent: Intent | None, verdict: Record | None, cancel: Record | None,
    observation: Observation, beats: Sequence[Beat | None], ages: Sequence[float], done: int,
) -> Glimpse:  # fmt: skip
    """What the records say, by the time at which the look began."""
    return Glimpse(
        now=now,
        intent=intent,
        verdict=None if verdict is None else verdict_at(verdict.data, names.verdict(job_id, attempt)),
        verdict_age=0.0 if verdict is None else now - verdict.updated,
        cancel=None if cancel is None else cancel_of(cancel, now, names.cancel(job_id)),
        observation=observation,
        beats=tuple(beats),
        beat_ages=tuple(ages),
        done=done,
    )


class Memory:
    """What a follower has read of an attempt and need not ask for again, where asking is a request."""

    __slots__ = (
        "asked", "attempt", "cancel", "charged", "hint", "intent", "looked", "newest", "not_before", "overlooked",
        "present", "promised", "reads", "shown", "silence", "told", "urgent", "verdict", "within", "without", "woken",
    )  # fmt: skip

    def __init__(self, within: Within | None = None) -> None:
        self.within = within
        self.reads = True  # what devices do, which is more than all else that a host says
        self.woken = False  # by a watcher, also once a zone was looked at that might not be looked at before
        self.urgent = False  # all the same: an attempt was intended, whose hosts are asked for after the next look
        self.attempt = 0
        self.cancel: Record | None = None
        self.forget()

    def forget(self) -> None:
        """Another attempt follows; a cancel is the job's."""
        self.intent: Intent | None = None
        self.promised = 0  # the generation of the record that it was read from
        self.verdict: Record | None = None
        self.hint: object = None
        self.asked = 0.0
        self.not_before = 0.0
        self.overlooked = False  # the newest look left its zone out: whatever the next one sees of it is news
        self.present = 0.0  # since when its hosts were seen to be there
        self.shown = 0.0  # when they were last
        self.without = 0.0  # when none of them was, before that
        self.charged = 0.0  # before which none can have been charged for; 0: none was seen
        self.told = False  # and the store knows of it, as host 0 does not say so
        self.newest = self.looked = self.silence = 0.0

    def recall(self, store: Store, backend: Backend, job_id: str, attempt: int) -> Intent | None:
        """The intent of the attempt that is followed now."""
        self._turn_to(attempt)
        if self.intent is None and (promised := store.read(names.intent(job_id, attempt))) is not None:
            return self.intent_in(promised, backend, job_id, attempt)
        return self.intent

    def intent_in(self, promised: Record, backend: Backend, job_id: str, attempt: int) -> Intent:
        """The intent that a record tells of. One that was understood before is not taken apart again."""
        self._turn_to(attempt)
        if self.intent is None or self.promised != promised.generation:
            intent = intent_at(promised, backend, job_id, attempt, self.within)
            unknown = intent.damage and not intent.placement  # nothing is there yet, or nobody can say: asked again
            if unknown:
                return intent
            self.intent, self.promised = intent, promised.generation
        return self.intent

    def _turn_to(self, attempt: int) -> None:
        if self.attempt != attempt:
            self.forget()
            self.attempt = attempt

    def silence_at(self, newest: float, now: float) -> float:
        """For how long nothing newer was said, under our eyes: while a store is away, hosts cannot be heard either, and
        those that are well speak soon after it is back.
        """
        if newest != self.newest:
            self.newest, self.silence = newest, 0.0
        elif now > self.looked:
            self.silence += min(now - self.looked, BLINK)
        self.looked = max(now, self.looked)
        return self.silence

    def acted(self, now: float) -> None:
        """What was seen before is not what is there now."""
        self.hint = None
        self.not_before = now


class Heard(NamedTuple):
    """A signal of a job. The newest scene has one for each host of all jobs, so it is small."""

    name: str  # below its job's: the attempt and the host of a beat, or the ring's
    updated: float
    said: Beat | int  # a beat; of another signal, which writing of it this was


class Scene:
    """What was there of all jobs of a store at one moment, by as few requests as can be."""

    __slots__ = ("heard", "observations", "placements", "taken", "unlooked")

    def __init__(
        self,
        taken: float,
        heard: dict[str, tuple[Heard, ...]],
        observations: dict[str, Observation],
        placements: Mapping[str, Mapping[str, Any]],
        unlooked: frozenset[str] = frozenset(),
    ) -> None:
        self.taken = taken
        self.heard = heard  # by job
        self.observations = observations  # by job
        self.placements = placements  # which of each job's attempts was observed
        self.unlooked = unlooked  # jobs whose zone was not looked at: their observation is an earlier one

    @classmethod
    def take(
        cls,
        store: Store,
        backend: Backend,
        prefix: str,
        placements: Mapping[str, Mapping[str, Any]],
        read: Container[str] | None = None,
        before: Scene | None = None,
        *,
        paced: bool = False,
    ) -> Scene:
        """The time first, so that no age is too great; beats before the backend, as in `look`. What devices do is only
        kept of the jobs that are `read`, if that is given: it is more than all the rest, and no two hosts' are alike.

        `paced`, for those whom a watcher wakes later: a zone that this process may not look at yet is left out. Of its
        jobs stands what was seen in the scene `before`, for their signatures, and nothing follows from it.
        """
        taken = store.now()
        heard: dict[str, tuple[Heard, ...]] = {}
        for signal in store.signals(prefix):
            job, _, name = signal.name.removeprefix(names.BEATS).partition("/")
            job = sys.intern(job)
            heard[job] = (*heard.get(job, ()), _heard(name, signal, read is None or job in read))
        paces = {job: pace_of(placement) for job, placement in placements.items()}
        allowed = {pace: pace is None or not paced or pace.take() for pace in dict.fromkeys(paces.values())}
        asked = {job: placement for job, placement in placements.items() if allowed[paces[job]]}
        observed = backend.observe(list(asked.values())) if asked else ()
        known = {} if before is None else before.observations
        observations = {job: _shared(seen, known.get(job)) for job, seen in zip(asked, observed, strict=True)}
        unlooked = frozenset(placements.keys() - asked.keys())
        if before is not None:
            same = (job for job in unlooked if job in known and before.placements.get(job) == placements[job])
            observations |= {job: known[job] for job in same}
        return cls(taken, heard, observations, placements, unlooked)

    def observation(self, job_id: str) -> Observation | None:
        """What was seen of the placement; None if the scene has none of that job."""
        return NOT_YET if job_id in self.unlooked else self.observations.get(job_id)

    def signature(self, job_id: str) -> int:
        """What of it tells a follower that there is something new: not that hosts still live. Small, as a thousand
        followers and their watcher keep one each.
        """
        observation = self.observations.get(job_id)
        told = tuple(
            (name, said.state, said.segment, said.verdict, said.exit, said.full)
            if isinstance(said, Beat)
            else (name, said)
            for name, _, said in self.heard.get(job_id, ())
            if isinstance(said, Beat) or name == _RING
        )
        return hash((observation and observation[:3], told))


NOT_YET = Observation(UNKNOWN)  # the next scene tells, or the one after it
_RING = names.ring("job").removeprefix(names.beats_of("job"))


def _heard(name: str, signal: Signal, devices: bool) -> Heard:
    if not name.rpartition("/")[2].isdecimal():
        return Heard(sys.intern(name), signal.updated, signal.generation)
    return Heard(sys.intern(name), signal.updated, _beat(signal.data, devices=devices))


def _beat(data: bytes, *, devices: bool) -> Beat:
    """Read a beat, less what only its own side asks: which life of an agent says it, and where in a segment it is."""
    beat = Beat.read(data) or Beat("")
    beat = beat._replace(boot="", offset=0, active=0.0, began=0.0, devices=beat.devices if devices else None)
    found: Beat = _same(beat)
    return found


def _shared(observation: Observation, before: Observation | None = None) -> Observation:
    """One object for all that are equal. Of hosts that are charged for, no two jobs' are: that of the look before."""
    if observation.charged:
        return before if before == observation else observation
    shared: Observation = _same(observation)
    return shared


def _same(value: Any) -> Any:
    """One object for all that are equal: of what a thousand jobs say, most is. What devices do is not, and no key."""
    try:
        return _kept(value)
    except TypeError:
        return value


@functools.lru_cache(maxsize=1024)
def _kept(value: Any) -> Any:
    return value


def _look_from_afar(
    store: Store, backend: Backend, job_id: str, attempt: int, hosts: int, memory: Memory, scene: Scene | None
) -> Glimpse:
    """In the same order as `look`, and with no more requests than there is news."""
    intent = memory.recall(store, backend, job_id, attempt)
    if (
        scene is None
        or scene.taken <= memory.not_before
        or (intent is not None and scene.placements.get(job_id, {}) != intent.placement)  # another attempt's, or none
        or (job_id in scene.unlooked and not memory.woken)
    ):
        placements = {job_id: intent.placement} if intent is not None and intent.placement else {}
        paced, memory.urgent = memory.woken and not memory.urgent, False
        read = None if memory.reads else ()
        scene = Scene.take(store, backend, names.beats_of(job_id), placements, read, paced=paced)
        memory.not_before = store.now()  # a scene that was begun before this answer came may show less than it
    found = None if intent is None else scene.observation(job_id)  # else it is of the attempt before
    now, observation, memory.overlooked = scene.taken, found or unseen(intent), found is NOT_YET
    if observation.state == PRESENT:
        memory.present, memory.shown = memory.present or now, now
    if observation.charged and not memory.charged:
        memory.charged = min(now, max(observation.charged, memory.without))
    elif not memory.charged and observation.state != UNKNOWN:
        memory.without = now
    told = {heard.name: heard for heard in scene.heard.get(job_id, ())}
    beat_of = len(names.beats_of(job_id))
    promised = range(hosts if intent is not None else 0)
    signals = [told.get(names.beat(job_id, attempt, host)[beat_of:]) for host in promised]
    beats: tuple[Beat | None, ...] = _same(
        tuple(signal.said if signal is not None and isinstance(signal.said, Beat) else None for signal in signals)
    )
    newest = max((signal.updated for signal in signals if signal is not None), default=0.0)
    until = min(now, newest + memory.silence_at(newest, now))
    ages = [0.0 if signal is None else until - signal.updated for signal in signals]
    hint = scene.signature(job_id)
    if memory.verdict is None and (hint != memory.hint or now - memory.asked > ASK_ANYWAY or now < memory.asked):
        if memory.cancel is None:
            memory.cancel = store.read(names.cancel(job_id))
        memory.verdict = store.read(names.verdict(job_id, attempt))
        memory.hint, memory.asked = hint, now
        if memory.verdict is not None and memory.verdict.updated > now:  # the scene is older than what ended it
            return _look_from_afar(store, backend, job_id, attempt, hosts, memory, None)
    done = sum(beat is not None and beat.state == wire.DONE for beat in beats)
    seen = _glimpse(job_id, attempt, now, intent, memory.verdict, memory.cancel, observation, beats, ages, done)
    return seen._replace(since=memory.present, shown=memory.shown, charged=memory.charged)


class Watcher:
    """Wakes the followers of one store's jobs. Its thread lives while somebody follows."""

    def __init__(self, store: Store) -> None:
        self._bell = Bell(store) if isinstance(store, LocalStore) else None
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[Callable[[], object], ...]] = {}
        self.scene: Scene | None = None
        self._running = False
        self._followers = 0
        self._joined = threading.Event()

    @property
    def idle(self) -> bool:
        """Whether nobody relies on it."""
        return not self._waiting and not self._running

    def pace(self, *, restless: bool = False) -> float:
        """How long a follower may sleep without a ring; `restless` is one who waits for a time to come."""
        del restless  # a look is cheap here, so all of them are
        return min(SLOWEST, max(PACE, self._followers / FOLLOWERS_PER_SECOND))

    def scene_for(self, job_id: str, memory: Memory) -> tuple[Scene | None, bool]:
        """Return the scene for the next step of a follower, and whether there is a newer one, for another step."""
        del job_id, memory
        return None, False

    def note(self, job_id: str, follower: Followed, *, reads: bool) -> None:
        """What the watcher of a remote store has to know of a job; a bell needs nothing."""

    def forget(self, job_id: str, follower: Followed) -> None:
        """One of those who follow it does so no more."""

    @contextmanager
    def seen_at_once(self, wanted: Mapping[str, tuple[int, Memory]]) -> Iterator[None]:
        """For those who look at many jobs and their attempts once, and do not wait. Looks are cheap here."""
        del wanted
        yield

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
            self._waiting[job_id] = (*self._waiting.get(job_id, ()), wake)
            self._followers += 1
            self._joined.set()
            if not self._running:
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
        if self._bell is None:
            return
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


class Followed(Protocol):
    """A follower, as its watcher sees it."""

    memory: Memory


class Distant(Watcher):
    """The watcher of a store whose every look is a request: it looks for all, once a tick."""

    def __init__(self, store: Store, backend: Backend) -> None:
        super().__init__(store)
        self._store = store
        self._backend = backend
        self._noted: dict[str, tuple[Followed, ...]] = {}
        self._looked: dict[Pace | None, Scene] = {}  # of each zone, the newest scene in which it was looked at
        self._reading: dict[str, float] = {}  # jobs whose log somebody reads, and when their hosts are told so again
        self._signatures: dict[str, int] = {}
        self._observed = 0.0
        self._since = 0.0

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

    def _run(self) -> None:
        pause = threading.Event()
        idle_since = time.monotonic()
        while True:
            if self._joined.wait(self.tick()):  # somebody who should not wait as long as the others
                self._joined.clear()
                pause.wait(QUICKEST)
            with self._lock:
                waiting, noted = list(self._waiting), dict(self._noted)
                if self._waiting:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > 2.0:
                    self._running, self.scene, self._looked = False, None, {}
                    return
            if not waiting:
                continue
            if (wait := self._wait_for_zones(noted)) > 0.0:
                pause.wait(wait)
                with self._lock:  # who came meanwhile is looked at, too
                    waiting, noted = list(self._waiting), dict(self._noted)
            try:
                self._look(waiting, noted)
            except Exception:  # whatever it is: all followers rely on this thread, and none would hear of its end
                self.scene = None  # each follower asks for itself, and hears what is the matter

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
                with self._lock:
                    wakes = list(self._waiting.get(job, ()))
                for wake in wakes:
                    wake()
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
        """Done at the first ring since `clear`, or when the time is up: of a long one up to a second before, so that
        many who sleep wake together, and find the processor awake and what they need in its caches.
        """
        sleep = self._sleep = self._loop.create_future()
        until = self._loop.time() + within
        self._timer = self._loop.call_at(until if within < TOGETHER else math.floor(until), self._wake)
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


WATCHERS = 16  # of one process, and more only while all of them have somebody to wake
_watchers: dict[tuple[int, str, int, object], Watcher] = {}
_watchers_lock = threading.Lock()


def _after_fork() -> None:
    """In the child, where whoever held the lock is gone."""
    global _watchers_lock  # noqa: PLW0603 - of this process
    _watchers_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def watcher_of(store: Store, backend: Backend) -> Watcher:
    """The one watcher of this store, and of what runs on such a backend, for this caller in this process.

    It needs no project and no zone of its own: each placement names both, and `observe` asks once for each. So jobs of
    many zones and projects share one listing of what their hosts say. It asks as its followers would: what one caller
    may see is nothing to show to another.
    """
    # A thread does not survive a fork. The caller's id is its own, because the watcher keeps the store that has it.
    key = os.getpid(), store.address, id(store.caller), getattr(backend, "kind", type(backend))
    with _watchers_lock:
        if key not in _watchers:
            if len(_watchers) >= WATCHERS:
                for idle in [known for known, watcher in _watchers.items() if watcher.idle]:
                    del _watchers[idle]
            _watchers[key] = Distant(store, backend) if store.remote else Watcher(store)
        return _watchers[key]
