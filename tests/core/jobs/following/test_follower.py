"""Following jobs from an event loop, many at once."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.api.handle import JobHandle
from kinetic_orchestration.jobs.following.drivers import afollow
from kinetic_orchestration.jobs.following.drivers.step_threads import SLOW_STEP, StepThreads
from kinetic_orchestration.jobs.following.follower import Follower
from kinetic_orchestration.jobs.watching.watchers import base
from kinetic_orchestration.jobs.watching.watchers.registry import watcher_of
from kinetic_orchestration.plan.values import (
    PRESENT,
    QUEUED,
    Change,
    Cursor,
    Event,
    Glimpse,
    JobStatus,
    Observation,
    Output,
)

pytestmark = pytest.mark.usefixtures("home")


@kinetic.run(accelerator="cpu")
def speak(word: str) -> str:
    print(word)
    return word


@kinetic.run(accelerator="cpu")
def wait_for(gate: str) -> str:
    import time
    from pathlib import Path

    print("waiting")
    while not Path(gate).exists():
        time.sleep(0.01)
    return "gone through"


def test_jobs_are_followed_side_by_side_on_one_event_loop() -> None:
    jobs = [speak.run_async(word) for word in ("one", "two", "three")]
    lines: list[bytes] = []

    def emit(event: Event) -> None:
        if isinstance(event, Output):
            lines.append(event.text)

    async def all_of_them() -> list[JobStatus]:
        outcomes = await asyncio.gather(*(afollow(Follower(job._job), emit) for job in jobs))
        return [outcome.status for outcome in outcomes]

    assert asyncio.run(all_of_them()) == [JobStatus.SUCCEEDED] * 3
    assert sorted(lines) == [b"one\n", b"three\n", b"two\n"]
    assert [job.result() for job in jobs] == ["one", "two", "three"]


def test_why_hosts_are_waited_for_is_told_anew_when_another_sentence_says_it_and_not_too_often() -> None:
    job: JobHandle[str] = speak.run_async("one")
    follower, told = Follower(job._job), list[Event]()
    seen = [
        (QUEUED, "0 of 2 pods run", 0.0), (QUEUED, "0 of 2 pods run", 20.0), (QUEUED, "no node fits", 21.0),
        (QUEUED, "no node fits", 40.0), (QUEUED, "place 2", 42.0), (QUEUED, "place 1", 44.0), (QUEUED, "", 60.0),
        (PRESENT, "2 of 2 pods run", 90.0),
    ]  # fmt: skip
    for state, why, now in seen:
        glimpse = Glimpse(1000.0 + now, observation=Observation(state, why))
        follower._explain(Cursor(phase=QUEUED), glimpse, told.append)
    assert told == [
        Change(QUEUED, "0 of 2 pods run", 1), Change(QUEUED, "no node fits", 1), Change(QUEUED, "place 2", 1)
    ]  # fmt: skip
    assert job.result() == "one"


def test_what_devices_do_is_read_by_those_alone_who_tell_it() -> None:
    job: JobHandle[str] = speak.run_async("one")
    follower = Follower(job._job)
    follower.step()
    assert not follower.cache.wants_devices
    follower.step(lambda event: None)
    assert follower.cache.wants_devices
    assert job.result() == "one"


def test_cancelling_a_follower_only_detaches(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job: JobHandle[str] = wait_for.run_async(str(gate))

    async def detach() -> None:
        spoke = asyncio.Event()
        loop = asyncio.get_running_loop()

        def emit(event: Event) -> None:
            if isinstance(event, Output):
                loop.call_soon_threadsafe(spoke.set)

        task = asyncio.ensure_future(afollow(Follower(job._job), emit))
        await asyncio.wait_for(spoke.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(detach())
    assert watcher_of(job._job.store, job._job.backend)._followers == 0
    assert job.status() is JobStatus.RUNNING
    gate.touch()
    assert job.result() == "gone through"


def test_what_a_sink_raises_reaches_the_one_who_follows() -> None:
    job = speak.run_async("one")

    def emit(event: Event) -> None:
        raise OSError("the sink is full")

    async def follow() -> None:
        with pytest.raises(OSError, match="the sink is full"):
            await afollow(Follower(job._job), emit)

    asyncio.run(follow())
    assert job.result() == "one"


def test_many_followers_share_few_threads_and_none_waits_behind_a_slow_one_alone() -> None:
    class Slow(Follower):
        running = most = 0
        lock = threading.Lock()

        def step(self, emit: object = None) -> None:
            with Slow.lock:
                Slow.running += 1
                Slow.most = max(Slow.most, Slow.running)
            threading.Event().wait(4 * SLOW_STEP)
            with Slow.lock:
                Slow.running -= 1

    job = speak.run_async("one")
    threads = StepThreads(most=2)

    async def eight() -> None:
        await asyncio.gather(*(threads.take(Slow(job._job), None) for _ in range(8)))

    asyncio.run(eight())
    assert Slow.most == 2
    deadline = time.monotonic() + 60.0
    while len(threads._begun) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(threads._begun) == 1, "whoever came to help goes"
    assert job.result() == "one"


class Quiet(base.Watcher):
    """One that has no news."""

    def _pause(self) -> None:
        time.sleep(0.01)

    def _turn(self) -> None:
        pass


def test_sleepers_until_the_same_second_share_one_timer_and_a_ring_wakes_one_of_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "TOGETHER", 0.0)

    async def sleep() -> None:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        call_at = loop.call_at

        def counted(when: float, *call: Any, **more: Any) -> asyncio.TimerHandle:
            timer = call_at(when, *call, **more)
            if isinstance(getattr(call[0], "__self__", None), base._Alarm):
                timers.append(timer)
            return timer

        monkeypatch.setattr(loop, "call_at", counted)
        watcher = Quiet()
        with ExitStack() as kept:
            until = math.floor(loop.time()) + 2.5
            one, *others = [kept.enter_context(watcher.async_wakeup("job-000000000000")) for _ in range(4)]
            sleeps = [wakeup.sleep(until - loop.time()) for wakeup in (one, *others)]
            assert len(timers) == 1
            one._wake()
            assert [sleep.done() for sleep in sleeps] == [True, False, False, False]
            others.pop().__exit__()
            await asyncio.wait(sleeps[1:3], timeout=30)
            assert [sleep.done() for sleep in sleeps] == [True, True, True, False], "who has left is not woken"
            assert loop.time() >= until - 0.6
            again = one.sleep(math.floor(loop.time()) + 60.5 - loop.time())
            one._wake()
            assert again.done()
            assert len(timers) == 2 and timers[1].cancelled(), "nobody needs the second one"
        assert watcher._alarms == {}

    asyncio.run(sleep())


def test_a_ring_between_a_look_and_the_sleep_is_not_missed() -> None:
    job = speak.run_async("one")

    async def sleep() -> None:
        with watcher_of(job._job.store, job._job.backend).async_wakeup(job.job_id) as wakeup:
            wakeup.clear()
            wakeup()  # from the watcher's thread, while the follower looks
            await asyncio.sleep(0)
            await asyncio.wait_for(wakeup.sleep(3600), 60)

    asyncio.run(sleep())
    assert job.result() == "one"
