"""STREAM: follow a job. One step looks, decides, acts and reads the log; `drivers` repeat it until the job ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from kinetic_orchestration.errors import StoreError, Unreachable
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following import actions, told
from kinetic_orchestration.jobs.following.held_time import remember_held
from kinetic_orchestration.jobs.following.logs import Emit, LogReader, sampled
from kinetic_orchestration.jobs.following.placing import learn_from_rivals, learn_start
from kinetic_orchestration.jobs.following.verdicts import conclude, glimpse, has_ended, lacks_key
from kinetic_orchestration.jobs.job import Job, authenticated
from kinetic_orchestration.jobs.watching import attempts, live_index
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.jobs.watching.watchers.registry import watcher_of
from kinetic_orchestration.plan.values import (
    GONE,
    PROVISIONING,
    QUEUED,
    UNKNOWN,
    Change,
    Cursor,
    Devices,
    Freed,
    Glimpse,
    JobStatus,
    Observation,
    Outcome,
)
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system import copies

STORE_PATIENCE = 900.0  # with a store that does not answer those who wait for a job
RELEASE_PATIENCE = 60.0  # seconds after a job's verdict for which a refused release is retried: quotas are per minute
EXPLAIN_PAUSE = 10.0  # seconds between two sentences that say why hosts are waited for
STALE = 30.0  # seconds after a look, before whose end its requests stalled: hosts may have gone meanwhile
LATE = 2.0  # seconds after a verdict: a later release is recorded, because hosts cost until then
RELEASE_PAUSE = 2.0  # before it is asked for again; doubled each time,
LONGEST_PAUSE = 600.0  # up to this
WON = (-1,)  # in place of numbers of places: all but the one that has won
LONG_AGO = 60.0  # an attempt that ended before that may have been followed by many
NONE_MEASURED: Mapping[int, float] = MappingProxyType({})

_GOES_ON = (lifecycle.Intend, lifecycle.Close, lifecycle.Release)  # after which there is something new to see


class PendingRelease(NamedTuple):
    """A release to be retried."""

    attempt: int
    until: float
    pause: float
    holds: bool  # back the end of the job: not of an attempt that never had hosts
    waits: bool = False  # its request did: hosts may still come
    costs: bool = False  # its hosts were seen when it was refused, or may have been there


class Losers(NamedTuple):
    """The places of an attempt that have not won its race, and when they are released again; 0.0 if they are gone.

    Attributes:
        of: Those that cannot win any more, by number, while others may; WON for all but the one that has won.
    """

    attempt: int
    of: tuple[int, ...]
    again: float


class Explained(NamedTuple):
    """Why hosts are waited for, as it was told last."""

    why: str
    at: float


class Follower:
    """One process's view of one job: a cursor, and what was seen last."""

    __slots__ = (
        "ahead", "cache", "cursor", "explained", "foreseen", "held", "job", "learned", "losers", "measured", "outcome",
        "refused", "saw_live", "seen", "unreachable", "waiting",
    )  # fmt: skip

    def __init__(self, job: Job, cursor: Cursor | None = None) -> None:
        self.job = job if cursor is None else authenticated(job, cursor.spec, cursor.ended)
        self.cache = AttemptCache(self.job.within, self.job.believes)
        spec = "" if self.job.doubt else self.job.spec_digest
        self.cursor = (cursor or Cursor())._replace(spec=spec, ended=self.job.ended)
        self.ahead: tuple[int, ...] = ()  # the attempts to read next, if others are skipped
        # No cursor tells which releases were refused. That of the attempt before its own may have been, and is asked
        # for once more; those of older ones are the reaper's.
        last = 0 if cursor is None else cursor.attempt - 1
        self.refused: tuple[PendingRelease, ...] = (PendingRelease(last, 0.0, RELEASE_PAUSE / 2, True),) if last else ()
        self.seen: Glimpse | None = None
        self.saw_live = cursor is not None  # by this follower, or by the one whose cursor it continues from
        self.outcome: Outcome | None = None
        self.foreseen: Outcome | None = None  # once it is final
        self.held = False  # the outcome, while its hosts cannot be freed
        self.waiting = ""
        self.losers = Losers(0, (), 0.0)
        self.explained = Explained("", 0.0)
        self.measured: Mapping[int, float] = NONE_MEASURED  # by host: the time of the newest sample that was emitted
        self.unreachable = 0.0  # since when the store has not answered
        self.learned = 0  # the attempt whose start was recorded last

    def step(self, emit: Emit | None = None, *, devices: bool = False) -> Outcome | None:
        """Look once and do what follows. `emit` returns before the cursor moves, so nothing is told too late.

        devices: look at what they measure as well, as for `emit`.
        """
        self.cache.wants_devices = devices or emit is not None
        while self.outcome is None:
            attempt = self.cursor.attempt
            watcher = watcher_of(self.job.store, self.job.backend)
            poll, has_newer = watcher.poll_for(self.job.job_id, self.cache)
            seen = glimpse(self.job, attempt, self.cache, poll)
            if self.cache.zone_skipped and seen.verdict is not None and seen.verdict.cause == wire.PREEMPTION:
                self.cache.observe_now = True  # only its place can say what took the hosts away
                self.cache.invalidate(seen.now)
                seen = glimpse(self.job, attempt, self.cache)
            remember_held(self.job, attempt, seen, self.cache)
            step = lifecycle.advance(self.cursor, seen, self.job.policy)
            over = step.outcome
            if over is not None and emit is not None:  # its lines need not wait until its end is proven and its hosts
                self._emit_logs(emit, attempt, seen, ends=False)  # are released
            ended = self.cursor.ended if over is None else conclude(self.job, over, seen.now - seen.verdict_age)
            self.foreseen = lifecycle.foreseen(self.cursor, seen, self.job.policy)
            moves = step.cursor.attempt != attempt
            if moves:
                self._look_ahead(attempt, step.cursor.attempt, seen, all_with_hosts=emit is not None)
            self._release_again(seen)
            self._release_losers(seen)
            self._learn_start(attempt, seen, step.cursor.phase)
            if step.outcome is not None and not self._is_freed(attempt, seen, emit):
                self.held = True
                break
            if emit is not None:
                self._emit_logs(emit, attempt, seen, ends=step.outcome is not None or moves)
                for change in step.changes:
                    emit(change)
                    self.explained = Explained(change.message, seen.now)
                self._explain(step.cursor, seen, emit)
            if step.outcome is not None:
                self._forget()
            elif not (moves and self.ahead):  # else others have gone on long since, and released it before
                self._act(step.actions, attempt, seen, emit)
            logs = () if moves else self.cursor.logs
            self.cursor = step.cursor._replace(logs=logs, spec=self.cursor.spec, ended=ended)
            if moves and self.ahead:
                self.cursor, self.ahead = self.cursor._replace(attempt=self.ahead[0]), self.ahead[1:]
            self.seen, self.outcome = seen, step.outcome
            if moves or step.outcome is not None:
                told.attempt_ended(self.job, attempt, seen, is_last=step.outcome is not None)
            self.saw_live = self.saw_live or (step.outcome is None and not moves)
            if not has_newer and (self.waiting or not any(isinstance(action, _GOES_ON) for action in step.actions)):
                break
        return self.outcome

    def _look_ahead(self, attempt: int, following: int, seen: Glimpse, *, all_with_hosts: bool) -> None:
        """Find the attempts that have followed this one long since, if that may be."""
        has_ended(self.job, following=following)  # then no other attempt follows
        if not self.ahead and (self.seen is None or seen.verdict_age > LONG_AGO):
            self.ahead = attempts.ahead(self.job.store, self.job.job_id, attempt, all_with_hosts=all_with_hosts)

    def _learn_start(self, attempt: int, seen: Glimpse, now: str) -> None:
        """Record once, for others, that an attempt has got its hosts."""
        if self.learned != attempt and learn_start(self.job, seen, was=self.cursor.phase, now=now):
            self.learned = attempt

    def _forget(self) -> None:
        """Remove the secrets of a job that has ended, and take the job off the roll, unless hosts of it may be left: in
        a place that only the job names, the reaper finds them by the roll.
        """
        actions.forget_secrets(self.job)
        ended_here = self.saw_live and not self.job.doubt  # else it was struck off then, or will be by a listing
        if ended_here and not any(refused.holds or refused.waits for refused in self.refused):
            live_index.remove(self.job.store, self.job.job_id)

    def step_if_reachable(self, emit: Emit | None = None) -> Outcome | None:
        """Take a step, and return None while the store is unreachable: the job does not depend on this process's access
        to it. Raises Unreachable after `STORE_PATIENCE`.
        """
        try:
            outcome = self.step(emit)
        except Unreachable as error:
            now = time.monotonic()
            if not self.unreachable:
                self.unreachable = now
                if emit is not None:
                    emit(Change("unreachable", f"{error} The job goes on; it is asked again.", self.cursor.attempt))
            if now - self.unreachable > STORE_PATIENCE:
                raise
            return None
        self.unreachable = 0.0
        return outcome

    @property
    def status(self) -> JobStatus:
        if self.seen is None:
            return JobStatus.PENDING
        return lifecycle.status(self.cursor, self.seen, self.outcome)

    @property
    def restless(self) -> bool:
        """Return True if the next step may act although nothing new is seen, because a time comes."""
        seen = self.seen
        if self.losers.again:
            return True
        return bool(self.waiting) or (seen is not None and (lifecycle.must_wait(seen) or lifecycle.is_awaited(seen)))

    @property
    def turn_at(self) -> float:
        """Return when the place in the line of an attempt that waits for its turn is worth a look, by the store's
        clock; 0 of any other. Until then there is nothing else to wait for but that the job is cancelled, which rings.
        """
        line = self.job.lines.get(self.cursor.attempt)
        waits = line is not None and line.says and self.seen is not None and self.seen.intent is None
        return line.again if line is not None and waits else 0.0

    def _act(self, decided: tuple[lifecycle.Action, ...], attempt: int, seen: Glimpse, emit: Emit | None) -> None:
        try:
            for action in decided:
                waiting = ""
                if isinstance(action, lifecycle.Release):
                    free = lifecycle.was_free(seen)
                    state, cause = seen.observation.state, seen.observation.cause
                    asked_for = state in (QUEUED, PROVISIONING, GONE)  # or given up
                    asked_for |= state == UNKNOWN and not cause  # no answer; with a cause, there will be none
                    waits = free and (asked_for or self.cache.zone_skipped)  # or not looked at just now
                    self._release(action.attempt, seen, holds=not free, waits=waits)
                elif isinstance(action, lifecycle.Intend) and (asked := self._still_asked()):
                    waiting = f"the request of attempt {asked} could not be withdrawn; that is asked for again first"
                else:
                    waiting = actions.perform(action, self.job, attempt, seen, copies.environ())
                self._wait("queued", waiting, attempt, emit)
        finally:  # what was refused, or got no answer, may have been done
            if decided and not self.turn_at:
                self.cache.invalidate(self.job.store.now())
            self.cache.observe_now = any(isinstance(action, lifecycle.Intend) for action in decided)

    def _explain(self, cursor: Cursor, seen: Glimpse, emit: Emit) -> None:
        """Tell why hosts are waited for, if that is another sentence by now than the one that was told."""
        why = seen.observation.message
        waits = cursor.phase == seen.observation.state and cursor.phase in (QUEUED, PROVISIONING)
        named = self.job.policy.named(seen.intent, why)  # as a change of phase tells it
        if waits and why and self.explained.why not in (why, named) and seen.now - self.explained.at >= EXPLAIN_PAUSE:
            emit(Change(cursor.phase, named, cursor.attempt))
            self.explained = Explained(named, seen.now)

    def _wait(self, phase: str, why: str, attempt: int, emit: Emit | None) -> None:
        if why and why != self.waiting and emit is not None:
            emit(Change(phase, why, attempt))
        if self.waiting and not why and attempt in self.job.lines:
            watcher_of(self.job.store, self.job.backend).hurry()
        self.waiting = why

    def _release(self, attempt: int, seen: Glimpse, *, holds: bool = True, waits: bool = False) -> None:
        """Release an attempt for the first time."""
        costs, late = False, False
        if holds and self.job.backend.charges and not self.job.doubt:
            now = self._observed(attempt, seen)
            costs, late = now is None or not now.is_over, now is not None and now.costs and seen.verdict_age > LATE
        self._try_to_release(PendingRelease(attempt, seen.now, RELEASE_PAUSE, holds, waits, costs), seen, late=late)

    def _try_to_release(self, one: PendingRelease, seen: Glimpse, *, late: bool, again: bool = False) -> None:
        """Release an attempt, and keep what has to be repeated. `late`: hosts of it cost until now."""
        try:
            freed = actions.release(self.job, one.attempt, seen.intent)
        except StoreError:  # where it was is not known now; that it is to be freed must not be forgotten
            freed = Freed.REFUSED
        if one.costs and freed is Freed.REFUSED and not again:
            attempts.record_release(self.job.store, self.job.job_id, one.attempt, done=False)
        elif one.costs and freed not in (Freed.REFUSED, Freed.KEPT) and late:
            attempts.record_release(self.job.store, self.job.job_id, one.attempt, done=True)
        is_refused = freed is Freed.REFUSED  # of all else, what costs is gone, or going
        one = one._replace(until=seen.now + one.pause, costs=one.costs and is_refused)
        if freed in (Freed.REFUSED, Freed.PARTLY) and one.pause < LONGEST_PAUSE:
            one = one._replace(holds=one.holds and is_refused, waits=one.waits and is_refused)
            self.refused = (*self.refused, one)
        elif freed is Freed.UNDER_WAY and self.job.shared and one.pause < LONGEST_PAUSE:  # its chips are free then
            self.refused = (*self.refused, one._replace(holds=False, waits=False))

    def _observed(self, attempt: int, seen: Glimpse) -> Observation | None:
        """Return what an attempt's hosts are, by another look if the last was long ago; None if it was of others."""
        intent = seen.intent
        if intent is None or intent.attempt != attempt:
            return None
        if self.job.store.now() - seen.now <= STALE or not intent.placement:
            return seen.observation
        return self.job.backend.observe([intent.placement])[0]

    def _still_asked(self) -> int:
        """Return the attempt whose request for hosts may still be met, as its release was refused shortly before: the
        next one would get hosts beside it. Zero if there is none. Attempts that had hosts keep no next one waiting.
        """
        return next((one.attempt for one in self.refused if one.waits and one.pause < RELEASE_PATIENCE), 0)

    def _release_again(self, seen: Glimpse) -> None:
        """Retry the releases that were refused, in any state of the job. Hosts, deadline and reaper are the
        fallback.
        """
        due = [refused for refused in self.refused if refused.until <= seen.now]
        for refused in due:
            self.refused = tuple(other for other in self.refused if other is not refused)
            self._try_to_release(refused._replace(pause=2 * refused.pause), seen, late=True, again=True)
        if due:
            self.cache.invalidate(self.job.store.now())

    def _release_losers(self, seen: Glimpse) -> None:
        """Release the places of a race that have not won it, or cannot any more, until they are gone. Once the attempt
        has ended, all of its places are released."""
        intent, attempt = seen.intent, self.cursor.attempt
        is_over = seen.verdict is not None or lacks_key(self.job)  # by whom a record was written is not known then
        if intent is None or "rivals" not in intent.placement or is_over or self.job.doubt:
            self.losers = self.losers._replace(again=0.0)
            return
        ended = lifecycle.given_up(seen, self.job.policy.of(intent))
        of = tuple(sorted(ended)) if intent.races else WON
        if of == () or (self.losers[:2] != (attempt, of)):
            self.losers = Losers(attempt, of, seen.now if of else 0.0)
        if not self.losers.again or seen.now < self.losers.again:
            return
        try:
            if intent.races:
                freed = actions.give_up(self.job, intent, ended)
            else:
                freed = actions.release_losers(self.job, intent)
        except StoreError:
            freed = Freed.REFUSED
        self.cache.invalidate(self.job.store.now())
        learn_from_rivals(self.job, attempt, intent.placement)
        self.losers = Losers(attempt, of, 0.0 if freed is Freed.DONE else seen.now + RELEASE_PAUSE)

    def _is_freed(self, attempt: int, seen: Glimpse, emit: Emit | None) -> bool:
        """Release the hosts of a job that has ended. Returns True once nothing is left to free or to wait for."""
        if not any(refused.attempt == attempt for refused in self.refused):
            self._release(attempt, seen)
            self.cache.invalidate(self.job.store.now())
        left = any(refused.holds or refused.waits for refused in self.refused)
        patient = left and seen.verdict_age < RELEASE_PATIENCE
        why = "its hosts could not be freed; that is asked for again" if patient else ""
        self._wait("releasing", why, attempt, emit)
        self.seen = seen
        return not patient

    def _emit_logs(self, emit: Emit, attempt: int, seen: Glimpse, *, ends: bool) -> None:
        """Emit what hosts have logged and measured since the last step; all of it if the attempt `ends`."""
        logs = LogReader(self.job, attempt, seen.intent)
        for found, positions in logs.read(self.cursor.logs, None if ends else seen):
            for event in found:
                emit(event)
            self.cursor = self.cursor._replace(logs=positions)
        self._emit_devices(emit, attempt, seen)
        for note in logs.cut_logs(self.cursor.logs) if ends else ():
            emit(note)

    def _emit_devices(self, emit: Emit, attempt: int, seen: Glimpse) -> None:
        """Emit the device samples in the hosts' beats, which are read in any case."""
        for host, devices in sampled(seen):
            if self.measured.get(host) != devices["at"]:
                self.measured = {**self.measured, host: devices["at"]}
                emit(Devices(host, devices["at"], devices, attempt))
