"""A poll: what was heard of all jobs at once, how small it is kept, and what of it is news."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials

from kinetic_orchestration.jobs.lifecycle import Policy
from kinetic_orchestration.jobs.watching.cache import AttemptCache
from kinetic_orchestration.jobs.watching.decode import interned
from kinetic_orchestration.jobs.watching.look import look
from kinetic_orchestration.jobs.watching.poll import Poll
from kinetic_orchestration.jobs.watching.watchers.base import Wakeups
from kinetic_orchestration.jobs.watching.watchers.polling import PollingWatcher
from kinetic_orchestration.jobs.watching.watchers.registry import MOST_WATCHERS, watcher_of
from kinetic_orchestration.plan.records import intent_of
from kinetic_orchestration.plan.values import ABSENT, PRESENT, UNKNOWN, Intent, Observation
from kinetic_orchestration.platforms.google.storage.store import GcsStore
from kinetic_orchestration.platforms.google.tpu.backend import TpuVmBackend
from kinetic_orchestration.platforms.local.backend import LocalBackend
from kinetic_orchestration.platforms.local.store import LocalStore, open_local
from kinetic_orchestration.platforms.shared import rate_limit
from kinetic_orchestration.platforms.shared.rate_limit import pace_of
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support.on_cloud import Place, enter_deployment

pytestmark = pytest.mark.fast

ONE, TWO = "job-000000000001", "job-000000000002"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return open_local(tmp_path / "store", "test")


def poll(store: LocalStore) -> Poll:
    return Poll.take(store, LocalBackend(Path(store.root), 1, store.url, "test"), names.BEATS, {})


def beat(store: LocalStore, job: str, host: int = 0, state: str = wire.RUNNING, **fields: Any) -> None:
    said = wire.Beat(state, boot=f"{job}/{host}", active=store.now(), began=store.now() - 5.0)
    store.signal(names.beat(job, 1, host), said._replace(**fields).encode())


def test_what_thousands_of_hosts_say_alike_is_kept_once(store: LocalStore) -> None:
    for job in (ONE, TWO):
        beat(store, job)
    first, second = (poll(store), poll(store))
    (one,), (two,), (later,) = first.signals[ONE], first.signals[TWO], second.signals[ONE]
    assert one.said is two.said is later.said
    assert one.name is two.name
    assert one.said == wire.Beat(wire.RUNNING)


def test_of_jobs_here_that_nobody_reads_what_is_alike_is_kept_once(store: LocalStore) -> None:
    backend = LocalBackend(Path(store.root), 1, store.url, "test")
    seen, sample = [], {"at": 1.5, "cpu": 0.5}
    for job in (ONE, TWO):
        run = str(Path(store.root, "run", f"{job}-1"))
        placement = {"job": job, "attempt": 1, "run": run, "hosts": 1, "machine": processes.machine()}
        fields = {"attempt": 1, "boot": job, "placement": placement, "allowed": 0.0}
        store.create(names.intent(job, 1), wire.encode(fields))
        beat(store, job, devices={**sample, "in": job})
        cache = AttemptCache()
        cache.wants_devices = False
        seen.append(look(store, backend, job, 1, Policy(), cache=cache))
    (one,), (two,) = (each.beats for each in seen)
    assert one is two
    assert one == wire.Beat(wire.RUNNING)
    assert seen[0].observation is seen[1].observation
    (read,) = look(store, backend, TWO, 1, Policy(), cache=AttemptCache()).beats
    assert read == wire.Beat(wire.RUNNING, devices={**sample, "in": TWO})


def test_what_devices_do_is_kept_of_jobs_that_somebody_reads(store: LocalStore) -> None:
    """Samples differ between hosts, and are larger than all the rest of a heartbeat."""
    sample = {"at": 1.5, "cpu": 0.5, "kind": "tpu", "busy": [50.0] * 16}
    for job in (ONE, TWO):
        beat(store, job, devices=sample)
    backend = LocalBackend(Path(store.root), 1, store.url, "test")
    seen = Poll.take(store, backend, names.BEATS, {}, frozenset({TWO}))
    (one,), (two,) = seen.signals[ONE], seen.signals[TWO]
    assert one.said == wire.Beat(wire.RUNNING)
    assert two.said == wire.Beat(wire.RUNNING, devices=sample)
    assert seen.signature(ONE) == seen.signature(TWO), "a sample wakes nobody"
    (all_of_it,) = poll(store).signals[ONE]
    assert all_of_it.said == two.said
    beats = (wire.Beat(wire.RUNNING, devices=sample),)
    assert interned(beats) is beats, "what cannot be a key is its own"


def test_that_a_host_still_lives_is_no_news_and_what_it_does_is(store: LocalStore) -> None:
    def signature() -> int:
        return poll(store).signature(ONE)

    beat(store, ONE)
    before = signature()
    beat(store, ONE, offset=100)
    store.signal(names.eye(ONE), b"{}")
    beat(store, TWO, state=wire.DONE)
    assert signature() == before
    beat(store, ONE, segment=3)
    grown = signature()
    assert grown != before
    store.signal(names.ring(ONE), b"now")
    assert signature() != grown


def test_what_somebody_else_put_among_the_beats_is_no_trouble(store: LocalStore) -> None:
    beat(store, ONE)
    before = poll(store).signature(ONE)
    for name in ("nobodys", f"{ONE}/notes", f"{TWO}/x/0"):
        store.put(f"{names.BEATS}{name}", b"\xff not JSON")
    assert poll(store).signature(ONE) == before


def test_a_placement_keeps_no_history_that_it_does_not_have(store: LocalStore) -> None:
    """A thousand followers each keep one."""
    placement = {"name": "kinetic-1-000000000001-1", "zone": "z", "wait": 0.0, "tried": [], "moved": 0, "slices": 1}
    fields = {"attempt": 1, "boot": "b", "placement": placement, "allowed": 0.0}
    store.create(names.intent(ONE, 1), wire.encode(fields))
    record = store.read(names.intent(ONE, 1))
    assert record is not None
    intent = intent_of(record, ONE, 1)
    assert intent.placement == {"name": "kinetic-1-000000000001-1", "zone": "z", "slices": 1}
    assert (intent.wait, intent.since) == (0.0, intent.created)


def test_each_caller_has_a_watcher_of_its_own_which_asks_as_that_caller(tmp_path: Path) -> None:
    """One of two connections of an orchestrator in one process may see less of a store than the other."""
    backend = LocalBackend(tmp_path, 1, str(tmp_path), "test")

    def opened(caller: object) -> GcsStore:
        return GcsStore("gs://bucket/prefix/test", "test", caller, "http://127.0.0.1:9")

    ours, theirs = AnonymousCredentials(), AnonymousCredentials()  # type: ignore[no-untyped-call]
    watcher = watcher_of(opened(ours), backend)
    assert watcher_of(opened(ours), backend) is watcher
    assert watcher_of(opened(theirs), backend) is not watcher


def test_an_eye_that_cannot_be_opened_keeps_no_follower_waiting_and_is_opened_at_a_later_look(tmp_path: Path) -> None:
    with StorageServer() as storage:
        url = storage.make_bucket("eyes") + "/test"
        caller = AnonymousCredentials()  # type: ignore[no-untyped-call]
        store = GcsStore(url, "test", caller, storage.url)
        watcher = PollingWatcher(store, LocalBackend(tmp_path, 1, str(tmp_path), "test"))
        watcher._log_readers = dict.fromkeys((ONE, TWO), 0.0)
        storage.fail("insert *", times=None)
        storage.forget()
        watcher._announce_readers(1000.0)
        assert len(storage.calls) == 1
        assert watcher._log_readers == {ONE: 0.0, TWO: 0.0}
        storage.heal()
        watcher._announce_readers(1000.0)
        assert [eye.name for eye in store.signals(names.BEATS)] == [names.eye(ONE), names.eye(TWO)]
        assert min(watcher._log_readers.values()) > 1000.0


def test_a_process_with_many_callers_keeps_the_watchers_that_somebody_relies_on(tmp_path: Path) -> None:
    store, backend = open_local(tmp_path / "store", "test"), LocalBackend(tmp_path, 1, str(tmp_path), "test")
    with watcher_of(store, backend).wakeups(ONE):
        kept = watcher_of(store, backend)
        others = [open_local(tmp_path / str(number), "test") for number in range(2 * MOST_WATCHERS)]
        first = watcher_of(others[0], backend)
        watchers = [watcher_of(other, backend) for other in others]
        assert len({id(watcher) for watcher in watchers}) == len(others)
        assert watcher_of(store, backend) is kept
        assert watcher_of(others[0], backend) is not first


class Listing(TpuVmBackend):
    """Notes when it looks."""

    looks: int = 0

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        self.looks += 1
        return super().observe(placements)


class OfOneJob:
    """The watcher's view of a follower."""

    def __init__(self, place: Place, number: int) -> None:
        self.job_id = f"job-{number:012d}"
        self.cache, self.turn_at = AttemptCache(), 0.0
        self.cache.intent = Intent(1, "boot", place.backend.place(place.plan, self.job_id, 1), 0.0, place.store.now())


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator(zones=("us-east5-a",), hosts=False) as cloud:
        yield cloud


SECONDS = 3.0


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 30, 500])
def test_a_zone_is_listed_at_the_same_pace_however_many_jobs_begin_and_end(
    tasks: int, cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    enter_deployment(cloud, monkeypatch, request)
    monkeypatch.setattr(rate_limit, "_paces", {})
    place = Place(cloud, ("us-east5-a",))
    backend = Listing(place.settings)
    watcher = PollingWatcher(place.store, backend)
    with watcher.wakeups() as wakeups:
        living = [OfOneJob(place, number) for number in range(tasks)]
        for job in living:
            wakeups.follow(job.job_id)
            watcher.subscribe(job.job_id, job, reads=False)
        began, number = time.monotonic(), tasks
        while time.monotonic() - began < SECONDS:
            job, number = OfOneJob(place, number), number + 1
            wakeups.follow(job.job_id)
            watcher.subscribe(job.job_id, job, reads=False)
            living.append(job)
            wakeups.unfollow(living.pop(0).job_id)
            time.sleep(0.02)
        looks = backend.looks
    print(f"{tasks} jobs, of which {number - tasks} ended: {looks} looks in {SECONDS:g} s")
    assert 0 < looks <= rate_limit.LOOKS_AT_ONCE + (SECONDS + 1) * rate_limit.LOOKS_PER_SECOND


def test_a_pace_gives_some_looks_at_once_and_then_so_many_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    one = rate_limit.Pace(per_second=2.0, at_once=3)
    assert [one.take() for _ in range(4)] == [True, True, True, False]
    assert one.wait() == pytest.approx(0.5)
    now += 0.25
    assert not one.take() and one.wait() == pytest.approx(0.25)
    now += one.wait()
    assert one.take() and not one.take()
    now += 1000.0
    assert [one.take() for _ in range(4)] == [True, True, True, False]


class Seeing(LocalBackend):
    """Says of each place that its hosts are there, and notes which it was asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[str] = []

    def rate_limit(self, placement: Mapping[str, Any]) -> Any:
        return pace_of(placement)

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        self.asked += [placement["job"] for placement in placements]
        return [Observation(PRESENT)] * len(placements)


def test_of_a_zone_that_may_not_be_looked_at_yet_nothing_is_known_and_nothing_is_new(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of its hosts are read all the same, and another zone is polled."""
    monkeypatch.setattr(rate_limit, "_paces", {("p", "here"): rate_limit.Pace(per_second=1e-9, at_once=1)})
    backend = Seeing(Path(store.root), 1, store.url, "test")
    places = {ONE: {"project": "p", "zone": "here", "job": ONE}, TWO: {"project": "p", "zone": "there", "job": TWO}}
    first = Poll.take(store, backend, names.BEATS, places, paced=True)
    second = Poll.take(store, backend, names.BEATS, places, None, first, paced=True)
    assert backend.asked == [ONE, TWO, TWO]
    assert [poll.observation(ONE) for poll in (first, second)] == [Observation(PRESENT), Observation(UNKNOWN)]
    assert second.observation(TWO) == Observation(PRESENT)
    assert first.signature(ONE) == second.signature(ONE)
    beat(store, ONE)
    third = Poll.take(store, backend, names.BEATS, places, None, second, paced=True)
    assert third.signals[ONE] and third.signature(ONE) != second.signature(ONE)
    moved = {**places, ONE: {**places[ONE], "attempt": 2}}
    assert Poll.take(store, backend, names.BEATS, moved, None, third, paced=True).observations.keys() == {TWO}


@pytest.fixture
def paced(
    cloud: Emulator, home: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[..., Place]:
    """A place whose zone this process may look at so often."""

    def made(**how: float) -> Place:
        place = Place(cloud, ("us-east5-a",))
        zone = place.backend.place(place.plan, ONE, 1)
        monkeypatch.setattr(rate_limit, "_paces", {(zone["project"], zone["zone"]): rate_limit.Pace(**how)})
        return place

    enter_deployment(cloud, monkeypatch, request)
    return made


def test_whom_nobody_wakes_later_looks_at_once_and_takes_no_look_away(paced: Callable[..., Place]) -> None:
    """Such as one that asks for the state of many jobs in turn, or for an end and is gone."""
    place = paced(per_second=1e-9, at_once=1)
    jobs = [OfOneJob(place, number) for number in range(1, 4)]
    for job in jobs:
        job.cache.attempt = 1
        seen = look(place.store, place.backend, job.job_id, 1, Policy(), cache=job.cache)
        assert seen.observation.state == ABSENT
    watcher = PollingWatcher(place.store, place.backend)
    for job in jobs[:2]:
        watcher.subscribe(job.job_id, job, reads=False)
    for _ in range(2):  # the one that the pace gives, and one that it does not
        watcher._poll([job.job_id for job in jobs], dict(watcher._subscribers))
    assert watcher.poll is not None and watcher.poll.skipped == {job.job_id for job in jobs[:2]}
    for job, state in zip(jobs, (UNKNOWN, UNKNOWN, ABSENT), strict=True):
        seen = look(place.store, place.backend, job.job_id, 1, Policy(), cache=job.cache, poll=watcher.poll)
        assert seen.observation.state == state
    watcher.unsubscribe(jobs[0].job_id, jobs[0])
    alone = functools.partial(look, place.store, place.backend, jobs[0].job_id, 1, Policy(), cache=jobs[0].cache)
    assert alone(poll=watcher.poll).observation.state == ABSENT, "as it is woken no more"


def test_jobs_that_all_wait_in_a_line_are_polled_and_stepped_no_sooner_than_their_turns_are_worth_a_look(
    paced: Callable[..., Place],
) -> None:
    place = paced(per_second=1.0, at_once=1)
    first, back = (OfOneJob(place, number) for number in (1, 2))
    watcher, now = PollingWatcher(place.store, place.backend), place.store.now()
    for job in (first, back):
        watcher.subscribe(job.job_id, job, reads=True)
    assert watcher.poll_interval() <= 1.0
    first.turn_at, back.turn_at = now + 1000.0, now + 2000.0
    assert watcher.poll_interval() == 15.0, "a cancel is heard of by then"
    assert watcher.sleep_seconds(restless=True, turn_at=first.turn_at) == pytest.approx(1000.0, abs=60.0)
    first.turn_at = 0.0  # it has its turn
    assert watcher.poll_interval() <= 1.0
    watcher.unsubscribe(first.job_id, first)
    assert watcher.poll_interval() == 15.0


def test_each_follower_of_a_job_is_woken_and_sees_the_look_that_woke_it_though_a_scene_after_it_left_its_zone_out(
    paced: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = paced(per_second=1e-9, at_once=1)
    watcher, two = PollingWatcher(place.store, place.backend), [OfOneJob(place, 1), OfOneJob(place, 1)]
    wakeups = Wakeups(watcher)
    monkeypatch.setattr(watcher, "_running", True)  # what its thread does is done here
    wakeups.follow(two[0].job_id)
    for follower in two:
        follower.cache.attempt = 1
        watcher.subscribe(follower.job_id, follower, reads=False)
    turn = [list(watcher._waiting), dict(watcher._subscribers)]

    def step(follower: OfOneJob) -> tuple[str, bool]:
        poll, has_newer = watcher.poll_for(follower.job_id, follower.cache)
        seen = look(place.store, place.backend, follower.job_id, 1, Policy(), cache=follower.cache, poll=poll)
        return seen.observation.state, has_newer

    watcher._poll(*turn)
    watcher._poll(*turn)
    assert [step(follower) for follower in two] == [(UNKNOWN, False)] * 2
    for follower in reversed(two):
        found, deadline = ("", False), time.monotonic() + 60.0
        while found != (ABSENT, True):  # at the first time, unless the store's time went back a moment
            assert found != (ABSENT, False) and time.monotonic() < deadline
            wakeups.clear()
            pace_of(two[0].cache.intent.placement)._left = 1.0
            watcher._poll(*turn)
            assert wakeups.clear() == {follower.job_id}, "one of them has not seen it yet"
            watcher._poll(*turn)
            assert watcher.poll.skipped == {follower.job_id}
            found = step(follower)
    wakeups.close()
    assert not any(follower.cache.subscribed for follower in two)


def test_who_looked_when_the_zone_might_not_be_looked_at_is_woken_when_it_was_though_it_be_as_before(
    paced: Callable[..., Place],
) -> None:
    """The follower has not seen what the watcher saw before: without a notification it would sleep for ten seconds."""
    place = paced(per_second=2.0, at_once=1)
    watcher, job = PollingWatcher(place.store, place.backend), OfOneJob(place, 1)
    job.cache.attempt = 1
    seen = functools.partial(look, place.store, place.backend, job.job_id, 1, Policy(), cache=job.cache)
    with watcher.wakeups(job.job_id) as wakeups:
        watcher.subscribe(job.job_id, job, reads=False)
        while not wakeups.wait(0.1) or watcher.poll is None or job.job_id in watcher.poll.skipped:
            pass
        while seen().observation.state != UNKNOWN:
            pass
        wakeups.clear()
        deadline = time.monotonic() + 60.0
        while True:
            assert wakeups.wait(5.0)
            wakeups.clear()
            if seen(poll=watcher.poll_for(job.job_id, job.cache)[0]).observation.state == ABSENT:
                break
            assert time.monotonic() < deadline


def test_a_verification_looks_as_often_as_it_likes() -> None:
    zone = {"project": "p", "zone": "z"}
    assert rate_limit.pace_of(zone) is rate_limit.pace_of(zone) is not None
    with rate_limit.freely():
        assert rate_limit.pace_of(zone) is None
    assert rate_limit.pace_of(zone) is not None and rate_limit.pace_of({"run": "here"}) is None


def test_the_place_of_an_attempt_that_was_intended_is_looked_at_once(paced: Callable[..., Place]) -> None:
    """Its hosts are requested after that poll."""
    place = paced(per_second=1e-9, at_once=1)
    job = OfOneJob(place, 1)
    job.cache.attempt, job.cache.subscribed = 1, True
    states = []
    for urgent in (False, False, True, False):
        job.cache.observe_now = urgent
        states.append(look(place.store, place.backend, job.job_id, 1, Policy(), cache=job.cache).observation.state)
    assert states == [ABSENT, UNKNOWN, ABSENT, UNKNOWN]
