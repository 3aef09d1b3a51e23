"""STREAM: follow a job to its end. One step looks, decides, acts and reads the log; two tiny drivers repeat it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from kinetic_orchestration import act, lifecycle
from kinetic_orchestration.act import Job
from kinetic_orchestration.agent import frames, names
from kinetic_orchestration.values import (
    Change,
    Cursor,
    Event,
    Glimpse,
    JobStatus,
    Metrics,
    Outcome,
    Output,
    Progress,
)
from kinetic_orchestration.watch import decoded, look, watcher_of

Emit = Callable[[Event], object]

READ_BYTES = 1 << 20
LONGEST_SLEEP = 0.5  # so that a stop, a timeout and Ctrl-C are never far away


class Follower:
    """One process's view of one job: a cursor, and what was seen last."""

    __slots__ = ("cursor", "job", "outcome", "seen", "waiting")

    def __init__(self, job: Job, cursor: Cursor | None = None) -> None:
        self.job = job
        self.cursor = cursor or Cursor()
        self.seen: Glimpse | None = None
        self.outcome: Outcome | None = None
        self.waiting = ""

    def step(self, emit: Emit | None = None) -> Outcome | None:
        """Look once and do what follows. `emit` returns before the cursor moves, so nothing is told too late."""
        while self.outcome is None:
            attempt = self.cursor.attempt
            seen = look(self.job.store, self.job.backend, self.job.job_id, attempt, self.job.policy.hosts)
            if emit is not None:
                self.read_logs(emit)
            step = lifecycle.advance(self.cursor, seen, self.job.policy)
            if emit is not None:
                if step.outcome is not None or step.cursor.attempt != attempt:
                    self.tell_cut_logs(emit)
                for change in step.changes:
                    emit(change)
            for action in step.actions:
                self._perform(action, attempt, seen, emit)
            logs = self.cursor.logs if step.cursor.attempt == attempt else ()
            self.cursor = step.cursor._replace(logs=logs)
            self.seen, self.outcome = seen, step.outcome
            if not any(
                isinstance(action, lifecycle.Intend | lifecycle.Close | lifecycle.Release) for action in step.actions
            ):
                break
        return self.outcome

    @property
    def status(self) -> JobStatus:
        if self.seen is None:
            return JobStatus.PENDING
        return lifecycle.status(self.cursor, self.seen, self.outcome)

    def _perform(self, action: lifecycle.Action, attempt: int, seen: Glimpse, emit: Emit | None) -> None:
        waiting = act.perform(action, self.job, attempt, seen, os.environ)
        if waiting and waiting != self.waiting and emit is not None:
            emit(Change("queued", waiting, attempt))
        self.waiting = waiting

    def read_logs(self, emit: Emit) -> None:
        attempt = self.cursor.attempt
        moved = list(self._positions())
        for host in range(self.job.policy.hosts):
            while True:
                segment, offset = moved[host]
                record = self.job.store.read(
                    names.segment(self.job.job_id, attempt, host, segment), offset, offset + READ_BYTES
                )
                if record is None or not record.data:
                    break
                found, used = frames.decode(record.data, segment, offset)
                if not used:  # a frame longer than one read
                    whole = self.job.store.read(names.segment(self.job.job_id, attempt, host, segment), offset)
                    found, used = frames.decode(whole.data if whole else b"", segment, offset)
                if not used:
                    break
                moved[host] = (segment, offset + used)
                for frame in found:
                    if frame.kind == frames.NEXT:
                        moved[host] = (segment + 1, 0)
                    else:
                        emit(_event(frame, host, attempt))
                self.cursor = self.cursor._replace(logs=tuple(moved))

    def tell_cut_logs(self, emit: Emit) -> None:
        """Of an attempt that is over: which hosts could not write their last lines themselves."""
        attempt = self.cursor.attempt
        if self.job.store.read(names.intent(self.job.job_id, attempt)) is None:
            return
        for host, (segment, offset) in enumerate(self._positions()):
            done = self.job.store.read(names.host(self.job.job_id, attempt, host, "done.json"))
            if done is None or decoded(done.data, "a host's last word").get("cut"):
                text = f"host {host}: its agent was killed, so its log may be cut here\n".encode()
                emit(Output(host, frames.NOTE, self.job.store.now(), text, attempt, segment, offset))

    def _positions(self) -> tuple[tuple[int, int], ...]:
        return self.cursor.logs or ((0, 0),) * self.job.policy.hosts


def _event(frame: frames.Frame, host: int, attempt: int) -> Event:
    if frame.kind == frames.METRICS:
        fields = json.loads(frame.payload)
        return Metrics(host, frame.time, fields["step"], fields["values"], attempt)
    if frame.kind == frames.PROGRESS:
        fields = json.loads(frame.payload)
        return Progress(host, frame.time, fields["done"], fields["total"], fields["unit"], attempt)
    return Output(host, frame.kind, frame.time, frame.payload, attempt, frame.segment, frame.offset)


def follow(
    follower: Follower,
    emit: Emit | None = None,
    *,
    timeout: float | None = None,
    stop: threading.Event | None = None,
    on_step: Callable[[Follower], object] | None = None,
) -> Outcome | None:
    """To the end, or until the timeout or the stop event: then None, and the job goes on."""
    watcher = watcher_of(follower.job.store)
    deadline = None if timeout is None else time.monotonic() + timeout
    with watcher.following(follower.job.job_id) as rung:
        while True:
            rung.clear()
            outcome = follower.step(emit)
            if on_step is not None:
                on_step(follower)
            if outcome is not None:
                return outcome
            look_at = time.monotonic() + watcher.pace()
            while (now := time.monotonic()) < look_at:
                if (deadline is not None and now >= deadline) or (stop is not None and stop.is_set()):
                    return None
                if rung.wait(min(LONGEST_SLEEP, look_at - now, deadline - now if deadline is not None else look_at)):
                    break


async def afollow(follower: Follower, emit: Emit | None = None) -> Outcome:
    """The same on an event loop: no thread is held while nothing happens. Cancelling it only detaches."""
    hands = hands_of_this_process()
    watcher = watcher_of(follower.job.store)
    with watcher.following_async(follower.job.job_id) as doze:
        while True:
            doze.clear()
            outcome = await hands.take(follower, emit)
            if outcome is not None:
                return outcome
            await doze.sleep(watcher.pace())


class Hands:
    """A few threads that take the steps of all followers on event loops, never those of a loop's own pool.

    An executor would do, but for the kilobyte that each of its futures takes while a thousand wait their turn.
    """

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._waiting: SimpleQueue[tuple[asyncio.Future[Outcome | None], Follower, Emit | None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0

    def take(self, follower: Follower, emit: Emit | None) -> asyncio.Future[Outcome | None]:
        """The outcome of one step, on the running loop."""
        future: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._waiting.put((future, follower, emit))
        if not self._idle.acquire(blocking=False) and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name="kinetic-follow", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, follower, emit = self._waiting.get()
            outcome, error = None, None
            if not future.cancelled():
                try:
                    outcome = follower.step(emit)
                except Exception as raised:
                    error = raised
            with suppress(RuntimeError):  # the loop was closed
                future.get_loop().call_soon_threadsafe(_settle, future, outcome, error)
            del future, follower, emit, error
            self._idle.release()


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
    """Writes what happens to a terminal or any text stream: hosts' lines as they come, changes in one line each."""

    def __init__(
        self, hosts: int, write: Callable[[str], object], *, changes: Callable[[str], object] | None = None
    ) -> None:
        self._hosts = hosts
        self._write = write
        self._changes = changes or write

    def __call__(self, event: Event) -> None:
        if isinstance(event, Output):
            self._write(prefixed(event, self._hosts))
        elif isinstance(event, Change):
            detail = f": {event.message}" if event.message else ""
            self._changes(f"kinetic: {event.phase}{detail}\n")
        elif isinstance(event, Metrics):
            step = "" if event.step is None else f" step {event.step}"
            values = " ".join(f"{name}={value:.6g}" for name, value in event.values.items())
            self._write(f"{_prefix(event.host, self._hosts)}metrics{step}: {values}\n")
        elif isinstance(event, Progress) and event.host == 0:
            of = f"/{event.total:g}" if event.total else ""
            self._write(f"{_prefix(event.host, self._hosts)}progress: {event.done:g}{of} {event.unit}".rstrip() + "\n")


def prefixed(event: Output, hosts: int) -> str:
    """The text of an output event, each line led by its host when there is more than one."""
    text = event.text.decode("utf-8", "backslashreplace")
    if text and text[-1] not in "\n\r":
        text += "\n"
    prefix = _prefix(event.host, hosts)
    if not prefix:
        return text
    body = text.replace("\n", "\n" + prefix)
    return prefix + (body[: -len(prefix)] if text.endswith("\n") else body)


def _prefix(host: int, hosts: int) -> str:
    return f"[host {host}] " if hosts > 1 else ""
