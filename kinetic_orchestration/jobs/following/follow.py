"""STREAM: follow a job to its end. One step looks, decides, acts and reads the log; two tiny drivers repeat it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, NamedTuple

from kinetic_orchestration.errors import Corrupt, StoreError, Unreachable
from kinetic_orchestration.jobs import lifecycle
from kinetic_orchestration.jobs.following import actions as act
from kinetic_orchestration.jobs.following.held_time import see_held
from kinetic_orchestration.jobs.following.secondary_errors import Echoes
from kinetic_orchestration.jobs.job import Job, vouched
from kinetic_orchestration.jobs.verdicts import conclude, glimpse, has_ended
from kinetic_orchestration.jobs.watching import attempts, roll
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.jobs.watching.watchers.base import Watcher
from kinetic_orchestration.jobs.watching.watchers.registry import watcher_of
from kinetic_orchestration.plan.records import fields_of
from kinetic_orchestration.plan.values import (
    PRESENT,
    WOUNDED,
    Change,
    Cursor,
    Devices,
    Event,
    Freed,
    Glimpse,
    JobStatus,
    Metrics,
    Outcome,
    Output,
    Progress,
)
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.output import frames
from kinetic_orchestration.protocol.records.base import Record
from kinetic_orchestration.protocol.system import copies, visible

Emit = Callable[[Event], object]

READ_BYTES = 1 << 20
LONGEST_FRAME = frames.LONGEST_LINE + (2 << 20)  # a line, what came with its end, and a header
FEW_HOSTS = 16  # whose records are asked for without looking which are there
STORE_PATIENCE = 900.0  # with a store that does not answer those who wait for a job
RELEASE_PATIENCE = 60.0  # after the verdict that ends a job, with a release that is refused: a rate is so much a minute
LATE = 2.0  # seconds after a verdict: a release that comes so late is told to those who reckon the cost
RELEASE_PAUSE = 2.0  # before it is asked for again; doubled each time,
LONGEST_PAUSE = 600.0  # and no more after this
LONG_AGO = 60.0  # an attempt that ended before that may have been followed by many
TOLD_WITHIN = 0.01  # seconds, of many steps at once
SLOW_STEP = 0.05  # seconds, after which a step at files does not keep others waiting
NONE_MEASURED: Mapping[int, float] = MappingProxyType({})
LONGEST_SLEEP = 0.5  # so that a stop, a timeout and Ctrl-C are never far away


class Refused(NamedTuple):
    """A release that is to be asked for again."""

    attempt: int
    until: float
    pause: float
    holds: bool  # back the end of the job: not of an attempt that never had hosts


class Follower:
    """One process's view of one job: a cursor, and what was seen last."""

    __slots__ = (
        "ahead", "cache", "cursor", "foreseen", "held", "job", "measured", "outcome", "refused", "seen", "unreachable",
        "waiting",
    )  # fmt: skip

    def __init__(self, job: Job, cursor: Cursor | None = None) -> None:
        self.job = job if cursor is None else vouched(job, cursor.spec, cursor.ended)
        self.cache = AttemptCache(self.job.within)
        spec = "" if self.job.doubt else self.job.spec_digest
        self.cursor = (cursor or Cursor())._replace(spec=spec, ended=self.job.ended)
        self.ahead: tuple[int, ...] = ()  # the attempts to look at next, if there are many and not all are worth it
        # No cursor tells which releases were refused. That of the attempt before its own may have been, and is asked
        # for once more; those of older ones are the reaper's.
        last = 0 if cursor is None else cursor.attempt - 1
        self.refused: tuple[Refused, ...] = (Refused(last, 0.0, RELEASE_PAUSE / 2, True),) if last else ()
        self.seen: Glimpse | None = None
        self.outcome: Outcome | None = None
        self.foreseen: Outcome | None = None  # once nothing can change it any more
        self.held = False  # the outcome, while its hosts cannot be freed
        self.waiting = ""
        self.measured: Mapping[int, float] = NONE_MEASURED  # of each host, the time of the newest sample that was told
        self.unreachable = 0.0  # since when the store has not answered

    def step(self, emit: Emit | None = None) -> Outcome | None:
        """Look once and do what follows. `emit` returns before the cursor moves, so nothing is told too late."""
        self.cache.wants_devices = emit is not None
        while self.outcome is None:
            attempt = self.cursor.attempt
            watcher = watcher_of(self.job.store, self.job.backend)
            poll, has_newer = watcher.poll_for(self.job.job_id, self.cache)
            seen = glimpse(self.job, attempt, self.cache, poll)
            see_held(self.job, attempt, seen, self.cache)
            step = lifecycle.advance(self.cursor, seen, self.job.policy)
            ended = self.cursor.ended
            if step.outcome is not None:
                ended = conclude(self.job, step.outcome, seen.now - seen.verdict_age)
            self.foreseen = lifecycle.foreseen(self.cursor, seen, self.job.policy)
            moves = step.cursor.attempt != attempt
            if moves:
                has_ended(self.job, following=step.cursor.attempt)  # then no other attempt follows
            if moves and not self.ahead and (self.seen is None or seen.verdict_age > LONG_AGO):
                self.ahead = attempts.ahead(self.job.store, self.job.job_id, attempt, all_with_hosts=emit is not None)
            self._release_again(seen)
            if step.outcome is not None and not self._is_freed(attempt, seen, emit):
                self.held = True
                break
            if emit is not None:
                ends = step.outcome is not None or moves
                self.read_logs(emit, None if ends else seen)
                self._tell_devices(emit, attempt, seen)
                if ends:
                    self.tell_cut_logs(emit)
                for change in step.changes:
                    emit(change)
            if step.outcome is not None:
                self._forget()
            elif not (moves and self.ahead):  # else others have gone on long since, and released it before
                self._act(step.actions, attempt, seen, emit)
            logs = () if moves else self.cursor.logs
            self.cursor = step.cursor._replace(logs=logs, spec=self.cursor.spec, ended=ended)
            if moves and self.ahead:
                self.cursor, self.ahead = self.cursor._replace(attempt=self.ahead[0]), self.ahead[1:]
            self.seen, self.outcome = seen, step.outcome
            goes_on = (lifecycle.Intend, lifecycle.Close, lifecycle.Release)
            if not has_newer and (self.waiting or not any(isinstance(action, goes_on) for action in step.actions)):
                break
        return self.outcome

    def _forget(self) -> None:
        """Remove what nobody needs of a job that has ended."""
        act.forget_secrets(self.job)
        if self.seen is not None and not self.job.doubt:  # it was followed, and not just looked up
            roll.strike(self.job.store, self.job.job_id)

    def step_if_reachable(self, emit: Emit | None = None) -> Outcome | None:
        """A step, for those who wait: the job needs no store that answers us, so that is waited for as well."""
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
        """Whether the next step may do something although nothing new will be seen: its time comes."""
        seen = self.seen
        return bool(self.waiting) or (seen is not None and (lifecycle.must_wait(seen) or lifecycle.is_awaited(seen)))

    def _act(self, actions: tuple[lifecycle.Action, ...], attempt: int, seen: Glimpse, emit: Emit | None) -> None:
        try:
            for action in actions:
                waiting = ""
                if isinstance(action, lifecycle.Release):
                    self._release(action.attempt, seen, holds=not lifecycle.was_free(seen))
                else:
                    waiting = act.perform(action, self.job, attempt, seen, copies.environ())
                self._wait("queued", waiting, attempt, emit)
        finally:  # what was refused, or got no answer, may have been done
            if actions:
                self.cache.invalidate(self.job.store.now())
            self.cache.observe_now = any(isinstance(action, lifecycle.Intend) for action in actions)

    def _wait(self, phase: str, why: str, attempt: int, emit: Emit | None) -> None:
        if why and why != self.waiting and emit is not None:
            emit(Change(phase, why, attempt))
        self.waiting = why

    def _release(self, attempt: int, seen: Glimpse, pause: float = RELEASE_PAUSE, holds: bool = True) -> None:
        try:
            freed = act.release(self.job, attempt, seen.intent)
        except StoreError:  # where it was is not known now; that it is to be freed must not be forgotten
            freed = Freed.REFUSED
        if holds and self.job.store.remote and not self.job.doubt:
            self._tell_late(attempt, seen, freed, again=pause > RELEASE_PAUSE)
        if freed is Freed.REFUSED and pause < LONGEST_PAUSE:
            self.refused = (*self.refused, Refused(attempt, seen.now + pause, pause, holds))

    def _tell_late(self, attempt: int, seen: Glimpse, freed: Freed, *, again: bool) -> None:
        """Hosts cost on after a verdict that does not free them."""
        late = seen.verdict_age > LATE and seen.observation.state in (PRESENT, WOUNDED)
        if freed is Freed.REFUSED and not again:
            attempts.tell_release(self.job.store, self.job.job_id, attempt, done=False)
        elif freed is not Freed.REFUSED and (again or late):
            attempts.tell_release(self.job.store, self.job.job_id, attempt, done=True)

    def _release_again(self, seen: Glimpse) -> None:
        """What was refused, whatever the job does meanwhile. Behind it are its hosts, its deadline and the reaper."""
        due = [refused for refused in self.refused if refused.until <= seen.now]
        for refused in due:
            self.refused = tuple(other for other in self.refused if other is not refused)
            self._release(refused.attempt, seen, 2 * refused.pause, refused.holds)
        if due:
            self.cache.invalidate(self.job.store.now())

    def _is_freed(self, attempt: int, seen: Glimpse, emit: Emit | None) -> bool:
        """Of a job that has ended: whether nothing of it is left that anybody here could still free."""
        if not any(refused.attempt == attempt for refused in self.refused):
            self._release(attempt, seen)
            self.cache.invalidate(self.job.store.now())
        patient = any(refused.holds for refused in self.refused) and seen.verdict_age < RELEASE_PATIENCE
        why = "its hosts could not be freed; that is asked for again" if patient else ""
        self._wait("releasing", why, attempt, emit)
        self.seen = seen
        return not patient

    def read_logs(self, emit: Emit, seen: Glimpse | None = None) -> None:
        """To the end; on a store where each try is a request, only as far as the hosts say that there is more."""
        moved = list(self._positions())
        there = self.hosts_there() if seen is None else None
        for host, position in enumerate(self._positions()):
            if there is not None and host not in there:
                continue
            for found, reached, _ in self._read_log(host, position, seen):
                for event in found:
                    emit(event)
                moved[host] = reached
                self.cursor = self.cursor._replace(logs=tuple(moved))

    def log_of(self, host: int) -> Iterator[Event]:
        """What one host has recorded so far, read as it is asked for. On files, up to the first read that came to its
        end: a slow reader would see one host's log go on that grows, and not another's.
        """
        for found, _, at_end in self._read_log(host, (0, 0)):
            yield from found
            if at_end:
                return

    def _read_log(
        self, host: int, position: tuple[int, int], seen: Glimpse | None = None
    ) -> Iterator[tuple[list[Event], tuple[int, int], bool]]:
        """From there on, a read at a time; how far that goes, and whether there was no more."""
        attempt = self.cursor.attempt
        while True:
            segment, offset = position
            if seen is not None and self.job.store.remote and not _has_written(seen, host, segment):
                return
            name = names.segment(self.job.job_id, attempt, host, segment)
            record = self.job.store.read(name, offset, offset + READ_BYTES)
            if record is None or not record.data:
                return
            found, used = frames.decode(record.data, segment, offset)
            if not used and (length := frames.length_of(record.data)) > READ_BYTES:  # a frame longer than one read
                if length > LONGEST_FRAME:  # than any host writes: nothing of it is taken, nor of what follows
                    text = f"host {host}: its log ends here: {name} has a frame of {length} bytes, which no host has\n"
                    note = Output(host, frames.NOTE, record.updated, text.encode(), attempt, segment, offset)
                    yield [note], (segment + 1, 0), False
                    position = segment + 1, 0
                    continue
                whole = self.job.store.read(name, offset, offset + length)
                found, used = frames.decode(whole.data if whole else b"", segment, offset)
            if not used and self._is_over(host, segment):  # what is left of it is no frame, and never will be
                size = len(record.data)
                position = (segment, offset + size - 100) if size == READ_BYTES else (segment + 1, 0)
                hole = frames.damaged(size, record.updated, segment, offset)
                yield [_event(hole, host, attempt)], position, False
                continue
            if not used:
                return
            over = any(frame.kind == frames.NEXT for frame in found)
            position = (segment + 1, 0) if over else (segment, offset + used)
            at_end = len(record.data) < READ_BYTES and not over and used >= len(record.data)
            yield [_event(frame, host, attempt) for frame in found if frame.kind != frames.NEXT], position, at_end

    def _is_over(self, host: int, segment: int) -> bool:
        """Whether nothing more comes into a segment: an object is never written to again, a file not once another one
        follows.
        """
        store, attempt = self.job.store, self.cursor.attempt
        following = names.segment(self.job.job_id, attempt, host, segment + 1)
        return store.remote or store.read(following, 0, 1) is not None

    def _tell_devices(self, emit: Emit, attempt: int, seen: Glimpse) -> None:
        """What hosts say in their beats, which are read anyway."""
        for host, devices in sampled(seen):
            if self.measured.get(host) != devices["at"]:
                self.measured = {**self.measured, host: devices["at"]}
                emit(Devices(host, devices["at"], devices, attempt))

    def tell_cut_logs(self, emit: Emit) -> None:
        """Of an attempt that is over: which hosts could not write their last lines themselves."""
        attempt = self.cursor.attempt
        if self.job.store.read(names.intent(self.job.job_id, attempt)) is None:
            return
        there = self.hosts_there()
        for host, (segment, offset) in enumerate(self._positions()):
            if there is not None and host not in there:
                continue
            done = self._said(host, "done.json")
            if done is None and self._said(host, "started.json") is None:
                continue  # it was never there
            if done is None or _was_cut(done, names.host(self.job.job_id, attempt, host, "done.json")):
                text = f"host {host}: its agent was killed, so its log may be cut here\n".encode()
                emit(Output(host, frames.NOTE, self.job.store.now(), text, attempt, segment, offset))

    def hosts_there(self) -> set[int] | None:
        """List those of many hosts that have left anything, by one listing; None for few. How many a spec says that
        there are must not decide how often the store is asked.
        """
        hosts = self.job.policy.hosts
        if hosts <= FEW_HOSTS:
            return None
        prefix = names.hosts(self.job.job_id, self.cursor.attempt)
        found = (entry.name.removeprefix(prefix).partition("/")[0] for entry in self.job.store.list(prefix))
        return {int(host) for host in found if host.isdecimal() and len(host) < 8}

    def _said(self, host: int, what: str) -> Record | None:
        name = names.host(self.job.job_id, self.cursor.attempt, host, what)
        return self.job.store.read(name)

    def _positions(self) -> tuple[tuple[int, int], ...]:
        return self.cursor.logs or ((0, 0),) * self.job.policy.hosts


def _was_cut(done: Record, name: str) -> bool:
    try:
        return bool(fields_of(done.data, wire.DONE_RECORD, name).get("cut"))
    except Corrupt:  # nobody can say any more that it is whole
        return True


def _has_written(seen: Glimpse, host: int, segment: int) -> bool:
    beat = seen.beats[host] if host < len(seen.beats) else None
    return beat is not None and segment < beat.segment


def sampled(seen: Glimpse) -> Iterator[tuple[int, dict[str, Any]]]:
    """Of each host that runs, the newest sample of what its devices do."""
    for host, beat in enumerate(seen.beats):
        if beat is None or beat.state != wire.RUNNING or not beat.devices:
            continue
        at = beat.devices.get("at")
        if isinstance(at, float) and math.isfinite(at):  # whoever can write to the store may have written it
            yield host, beat.devices


def _event(frame: frames.Frame, host: int, attempt: int) -> Event:
    """What is not what it says it is (whoever can write to the store may have written it) is shown as it is."""
    with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        if frame.kind == frames.METRICS:
            fields = json.loads(frame.payload)
            values = {str(name): float(value) for name, value in fields["values"].items()}
            step = fields["step"]
            return Metrics(host, frame.time, None if step is None else int(step), values, attempt)
        if frame.kind == frames.PROGRESS:
            fields = json.loads(frame.payload)
            done, total, unit = float(fields["done"]), float(fields["total"]), str(fields["unit"])
            return Progress(host, frame.time, done, total, unit, attempt, float(fields.get("rate", 0.0)))
    kind = frame.kind if frame.kind in (frames.OUT, frames.ERR) else frames.NOTE
    return Output(host, kind, frame.time, frame.payload, attempt, frame.segment, frame.offset)


def follow(
    follower: Follower,
    emit: Emit | None = None,
    *,
    timeout: float | None = None,
    stop: threading.Event | None = None,
    on_step: Callable[[Follower], object] | None = None,
) -> Outcome | None:
    """To the end, or until the timeout or the stop event: then None, and the job goes on."""
    watcher = watcher_of(follower.job.store, follower.job.backend)
    deadline = None if timeout is None else time.monotonic() + timeout
    with watcher.wakeups(follower.job.job_id) as wakeups:
        watcher.subscribe(follower.job.job_id, follower, reads=emit is not None)
        try:
            while True:
                wakeups.clear()
                outcome = follower.step_if_reachable(emit)
                if on_step is not None:
                    on_step(follower)
                if outcome is not None:
                    return outcome
                look_at = time.monotonic() + watcher.sleep_seconds(restless=follower.restless)
                while (now := time.monotonic()) < look_at:
                    if (deadline is not None and now >= deadline) or (stop is not None and stop.is_set()):
                        return None
                    within = min(LONGEST_SLEEP, look_at - now, deadline - now if deadline is not None else look_at)
                    if wakeups.wait(within):
                        break
        finally:
            watcher.unsubscribe(follower.job.job_id, follower)


def step_all(followers: Sequence[Follower], *, patience: float) -> Iterator[tuple[Follower, Exception | None]]:
    """One step of each of these jobs of one store, by one look at all of them; what went wrong with it, if it did. That
    may be any exception: a mistake of ours that one job brings to light is no reason to leave the others.

    None is begun once the patience is over: then the others are for the next time.
    """
    deadline = time.monotonic() + patience
    watched: dict[Watcher, list[Follower]] = {}
    for follower in followers:
        watched.setdefault(watcher_of(follower.job.store, follower.job.backend), []).append(follower)
    for watcher, some in watched.items():  # one, unless there are jobs for which nobody vouches
        if time.monotonic() > deadline:
            return
        with watcher.polled_together({each.job.job_id: (each.cursor.attempt, each.cache) for each in some}):
            for follower in some:
                if time.monotonic() > deadline:
                    return
                try:
                    follower.step()
                except Exception as error:
                    yield follower, error
                else:
                    yield follower, None


async def afollow(follower: Follower, emit: Emit | None = None, *, pause: float = 0.0) -> Outcome:
    """The same on an event loop: no thread is held while nothing happens. Cancelling it only detaches.

    `pause`: so many seconds at least lie between two steps, for those who need not know at once.
    """
    hands = hands_of_this_process()
    watcher = watcher_of(follower.job.store, follower.job.backend)
    with watcher.async_wakeup(follower.job.job_id) as wakeup:
        watcher.subscribe(follower.job.job_id, follower, reads=emit is not None)
        try:
            while True:
                wakeup.clear()
                outcome = await hands.take(follower, emit)
                if outcome is not None:
                    return outcome
                if pause:
                    await asyncio.sleep(pause)
                await wakeup.sleep(watcher.sleep_seconds(restless=follower.restless))
        finally:
            watcher.unsubscribe(follower.job.job_id, follower)


Done = tuple[asyncio.Future[Outcome | None], Outcome | None, Exception | None]  # what a step came to


class Hands:
    """A few threads that take the steps of all followers on event loops, never those of a loop's own pool.

    Steps at a remote store are taken side by side. Of those at files, one thread takes all that are quick: several
    would wait for each other at every call. An executor would do, but for the kilobyte that each of its futures takes
    while a thousand wait their turn.
    """

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._waiting: SimpleQueue[tuple[asyncio.Future[Outcome | None], Follower, Emit | None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._unfinished = 0
        self._begun: dict[int, float] = {}  # of each thread, when it began with the step that it takes
        self._again = 0.0  # when somebody looks whether others have to wait
        self._done: dict[asyncio.AbstractEventLoop, list[Done]] = {}  # and not told to its loop yet

    def take(self, follower: Follower, emit: Emit | None) -> asyncio.Future[Outcome | None]:
        """The outcome of one step, on the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome | None] = loop.create_future()
        with self._lock:
            self._unfinished += 1
            self._waiting.put((future, follower, emit))
            if not self._begun or (follower.job.store.remote and self._unfinished > len(self._begun)):
                self._start()
        if time.monotonic() >= self._again:
            self._relieve(loop)
        return future

    def _relieve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have another thread where all are at slow steps, and look again as long as any step waits."""
        now = time.monotonic()
        with self._lock:
            if self._waiting.empty():
                return
            if all(now - began > SLOW_STEP for began in self._begun.values()):
                self._start()
            self._again = now + SLOW_STEP
        loop.call_later(SLOW_STEP, self._relieve, loop)

    def _start(self) -> None:
        if len(self._begun) < self._most:
            thread = threading.Thread(target=self._work, name="kinetic-follow", daemon=True)
            self._begun[id(thread)] = math.inf
            thread.start()

    def _work(self) -> None:
        me = id(threading.current_thread())
        while True:
            future, follower, emit = self._waiting.get()
            self._begun[me] = time.monotonic()
            outcome, error = None, None
            if not future.cancelled():
                try:
                    outcome = follower.step_if_reachable(emit)
                except Exception as raised:
                    error = raised
            self._tell((future, outcome, error))
            del future, follower, emit, error
            with self._lock:
                self._begun[me] = math.inf
                self._unfinished -= 1
                if self._unfinished == 0 and len(self._begun) > 1:
                    del self._begun[me]
                    return

    def _tell(self, done: Done) -> None:
        """Tell a step's loop what it came to: with others, while more steps wait. A loop that is woken for each of a
        thousand takes the processor from whoever takes the next.
        """
        loop = done[0].get_loop()
        with self._lock:
            if others := self._done.get(loop):
                others.append(done)
                return
            self._done = {each: known for each, known in self._done.items() if not each.is_closed()} | {loop: [done]}
        with suppress(RuntimeError):  # it was closed
            if self._waiting.empty():
                loop.call_soon_threadsafe(self._settle, loop)
            else:
                loop.call_soon_threadsafe(loop.call_later, TOLD_WITHIN, self._settle, loop)

    def _settle(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            done = self._done.pop(loop, [])
        for future, outcome, error in done:
            _settle(future, outcome, error)


def _settle(future: asyncio.Future[Outcome | None], outcome: Outcome | None, error: Exception | None) -> None:
    if future.done():  # cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(outcome)


_hands: dict[int, Hands] = {}


def hands_of_this_process() -> Hands:
    return _hands.setdefault(os.getpid(), Hands())  # a thread does not survive a fork


class Printer:
    """Writes what happens to a terminal or any text stream: hosts' lines as they come, changes in one line each.

    A terminal obeys nothing of it but colours. Unless all is asked for in `full`, what hosts say
    of the end of another one is folded; `of`: how many hosts there are, where they are not told apart.
    """

    def __init__(
        self, hosts: int, write: Callable[[str], object], *, job_id: str,
        changes: Callable[[str], object] | None = None, full: bool = False, of: int = 0,
    ) -> None:  # fmt: skip
        self._hosts = hosts
        self._echoes = Echoes(1 if full else of or hosts, job_id)
        self._write = write
        self._changes = changes or write

    def __call__(self, event: Event) -> None:
        shown = self._echoes(event)
        if shown is not None:
            self._show(shown)

    def _show(self, event: Event) -> None:
        if isinstance(event, Output):
            self._write(visible.log(prefixed(event, self._hosts)))
        elif isinstance(event, Change):
            detail = f": {event.message}" if event.message else ""
            self._changes(visible.text(f"kinetic: {event.phase}{detail}") + "\n")
        elif isinstance(event, Metrics):
            step = "" if event.step is None else f" step {event.step}"
            values = " ".join(f"{name}={value:.6g}" for name, value in event.values.items())
            self._write(visible.text(f"{_prefix(event.host, self._hosts)}metrics{step}: {values}") + "\n")
        elif isinstance(event, Progress) and event.host == 0:
            of = f"/{event.total:g}" if event.total else ""
            said = f"{event.done:g}{of} {event.unit}".rstrip() + pace(event.rate, event.unit)
            self._write(visible.text(f"{_prefix(event.host, self._hosts)}progress: {said}") + "\n")


def pace(rate: float, unit: str) -> str:
    """Behind what is done, how much of it in a second; nothing where that is not known."""
    return f", {rate:.4g} {unit or 'of them'}/s" if rate > 0 else ""


def prefixed(event: Output, hosts: int, lead: str = "") -> str:
    """The text of an output event, each line led by `lead`, and by its host when there is more than one."""
    text = event.text.decode("utf-8", "backslashreplace")
    if text and text[-1] not in "\n\r":
        text += "\n"
    prefix = lead + _prefix(event.host, hosts)
    if not prefix:
        return text
    body = text.replace("\n", "\n" + prefix)
    return prefix + (body[: -len(prefix)] if text.endswith("\n") else body)


def _prefix(host: int, hosts: int) -> str:
    return f"[host {host}] " if hosts > 1 else ""
