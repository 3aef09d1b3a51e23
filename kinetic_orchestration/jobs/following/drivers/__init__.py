"""Repeats the steps of followers: of one until its job ends, on a thread or an event loop, or of many once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from kinetic_orchestration.jobs.following.drivers.step_threads import step_threads
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.following.logs import Emit
from kinetic_orchestration.jobs.watching.watchers.base import Watcher
from kinetic_orchestration.jobs.watching.watchers.registry import watcher_of
from kinetic_orchestration.plan.values import Outcome

LONGEST_SLEEP = 0.5  # so that a stop, a timeout and Ctrl-C are never far away


def follow(
    follower: Follower,
    emit: Emit | None = None,
    *,
    timeout: float | None = None,
    stop: threading.Event | None = None,
    on_step: Callable[[Follower], object] | None = None,
) -> Outcome | None:
    """Follow a job to its end. Returns None at the timeout or the stop event: the job goes on."""
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
                look_at = time.monotonic() + watcher.sleep_seconds(restless=follower.restless, turn_at=follower.turn_at)
                while (now := time.monotonic()) < look_at:
                    if (deadline is not None and now >= deadline) or (stop is not None and stop.is_set()):
                        return None
                    within = min(LONGEST_SLEEP, look_at - now, deadline - now if deadline is not None else look_at)
                    if wakeups.wait(within):
                        break
        finally:
            watcher.unsubscribe(follower.job.job_id, follower)


def step_all(followers: Sequence[Follower], *, patience: float) -> Iterator[tuple[Follower, Exception | None]]:
    """Take one step of each of these jobs of one store, by one poll of all of them. Yields each with what it raised, or
    None. That may be any exception: a mistake of ours that one job brings to light is no reason to leave the others.

    None is begun once the patience is over: then the others are for the next time.
    """
    deadline = time.monotonic() + patience
    watched: dict[Watcher, list[Follower]] = {}
    for follower in followers:
        watched.setdefault(watcher_of(follower.job.store, follower.job.backend), []).append(follower)
    for watcher, some in watched.items():  # one, unless some jobs are not authenticated
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
    """Follow a job on an event loop: no thread is held while nothing happens. Cancelling it only detaches.

    `pause`: so many seconds at least lie between two steps, for those who need not know at once.
    """
    threads = step_threads()
    watcher = watcher_of(follower.job.store, follower.job.backend)
    with watcher.async_wakeup(follower.job.job_id) as wakeup:
        watcher.subscribe(follower.job.job_id, follower, reads=emit is not None)
        try:
            while True:
                wakeup.clear()
                outcome = await threads.take(follower, emit)
                if outcome is not None:
                    return outcome
                if pause:
                    await asyncio.sleep(pause)
                await wakeup.sleep(watcher.sleep_seconds(restless=follower.restless, turn_at=follower.turn_at))
        finally:
            watcher.unsubscribe(follower.job.job_id, follower)
