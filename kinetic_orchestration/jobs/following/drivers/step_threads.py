"""A few threads that take the steps of all followers on event loops."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from contextlib import suppress
from queue import SimpleQueue

from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.following.logs import Emit
from kinetic_orchestration.plan.values import Outcome

TOLD_WITHIN = 0.01  # seconds, of many steps at once
SLOW_STEP = 0.05  # seconds, after which a step at files does not keep others waiting

Done = tuple[asyncio.Future[Outcome | None], Outcome | None, Exception | None]  # what a step came to


class StepThreads:
    """Takes the steps of all followers on event loops, in a few threads that are not of a loop's own pool.

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
        self._again = 0.0  # time of the next check whether steps have to wait
        self._done: dict[asyncio.AbstractEventLoop, list[Done]] = {}  # results that were not passed to their loop yet

    def take(self, follower: Follower, emit: Emit | None) -> asyncio.Future[Outcome | None]:
        """Return a future of the outcome of one step, on the running loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome | None] = loop.create_future()
        with self._lock:
            self._unfinished += 1
            self._waiting.put((future, follower, emit))
            if not self._begun or (follower.job.store.parallel > 1 and self._unfinished > len(self._begun)):
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
        """Pass a step's result to its loop: with others, while more steps wait. A loop that is woken for each of a
        thousand takes the processor from the thread that takes the next step.
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


_threads: dict[int, StepThreads] = {}


def step_threads() -> StepThreads:
    """Return the threads of this process."""
    return _threads.setdefault(os.getpid(), StepThreads())  # a thread does not survive a fork
