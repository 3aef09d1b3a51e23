"""The view of a host on a store at a distance, and the times of its reads."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator

import pytest

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.host.view import bucket
from kinetic_orchestration.host.view.bucket import BucketView, cadence
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support.waits import wait_until

JOB = "job-1"


@pytest.fixture
def records(storage: StorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudRecords]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    opened = CloudRecords(storage.make_bucket("b-" + os.urandom(6).hex()) + "/prod")
    yield opened
    opened.close()
    storage.heal()


class Host:
    """One host's view, and what it would show of itself."""

    def __init__(self, records: CloudRecords, index: int = 0, hosts: int = 1) -> None:
        self.shown = wire.Beat(wire.PREPARING, f"boot/{index}")
        self.woken = 0
        at = Assignment(records.url, JOB, 1, index, hosts, "", f"boot/{index}", "", "", "", "A=b")
        self.sight = BucketView(records, at, lambda: self.shown, self.wake)
        self.sight.open()

    def wake(self) -> None:
        self.woken += 1

    def show(self, **changes: object) -> None:
        self.shown = self.shown._replace(**changes)  # type: ignore[arg-type]
        self.sight.poll_soon()


@pytest.mark.parametrize(
    ("hosts", "watched", "seconds"),
    [(1, True, 2.0), (1, False, 5.0), (4, True, 2.0), (16, True, 4.0), (32, False, 8.0), (64, True, 15.0), (512, False, 15.0)],
)  # fmt: skip
def test_more_hosts_look_less_often(hosts: int, watched: bool, seconds: float) -> None:
    assert cadence(hosts, watched=watched) == min(seconds, 15.0)


def test_hosts_see_each_other_start_and_end(records: CloudRecords) -> None:
    leader = {"ports": {"jax": 1}}
    records.create(names.host(JOB, 1, 0, "started.json"), wire.encode(leader))
    hosts = [Host(records, index, 3) for index in range(3)]
    try:
        wait_until(lambda: all(host.sight.started(other) is not None for host in hosts for other in range(3)))
        for host in hosts:
            assert host.sight.started(0) == wire.stamped(leader)
            assert host.sight.started(2) == {}
        hosts[1].show(state=wire.ENDING, exit=3)
        wait_until(lambda: [host.sight.exit(1) for host in hosts] == [3, 3, 3])
        assert hosts[0].sight.exit(2) is None
    finally:
        for host in hosts:
            host.sight.close()


def test_a_host_that_only_boots_has_not_started(records: CloudRecords) -> None:
    host = Host(records, 0, 2)
    host.show(state=wire.STARTING)
    records.signal(names.beat(JOB, 1, 1), wire.Beat(wire.STARTING).encode())
    wait_until(lambda: host.sight.beat_of(1)[0])
    assert host.sight.started(1) is None
    host.sight.close()


def test_a_verdict_is_read_when_another_host_says_that_there_is_one(
    records: CloudRecords, storage: StorageServer
) -> None:
    hosts = [Host(records, index, 2) for index in range(2)]
    wait_until(lambda: all(host.woken for host in hosts))
    verdict = wire.Verdict(wire.ABORTED, "x", 0.0, cause=wire.USER).encode()
    records.create(names.verdict(JOB, 1), verdict)
    hosts[1].show(verdict=True)
    wait_until(lambda: hosts[0].sight.verdict() == verdict, within=bucket.UNHINTED / 2)
    for host in hosts:
        host.sight.close()


@pytest.mark.parametrize("hinted", [True, False])
def test_a_cancel_is_read_when_somebody_rings_and_after_a_while_without(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch, hinted: bool
) -> None:
    monkeypatch.setattr(bucket, "UNWATCHED", 0.2)
    monkeypatch.setattr(bucket, "UNHINTED", 60.0 if hinted else 1.0)
    host = Host(records)
    wait_until(lambda: host.woken)
    records.create(names.cancel(JOB), b"enough")
    if hinted:
        looks = host.woken
        wait_until(lambda: host.woken >= looks + 3)  # the first may have begun before
        assert host.sight.cancel() is None
        records.ring(JOB)
    wait_until(lambda: host.sight.cancel() == b"enough")
    host.sight.close()


@pytest.mark.slow
def test_without_news_a_host_costs_one_listing_and_one_beat_a_look(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "UNWATCHED", 1.0)
    records.create(names.host(JOB, 1, 0, "started.json"), wire.encode({}))
    host = Host(records)
    wait_until(lambda: host.woken >= 2)
    began = time.monotonic()
    storage.forget()
    wait_until(lambda: len(storage.calls) >= 6)
    verbs, looks = [call.verb for call in storage.calls], time.monotonic() - began + 1
    assert set(verbs) == {"list", "insert"}
    assert 3 <= verbs.count("list") <= looks
    assert 3 <= verbs.count("insert") <= looks
    host.sight.close()


@pytest.mark.slow
@pytest.mark.parametrize("eye", [wire.open_eye(1.0), b"somebody", b"9" * 40])
def test_an_eye_is_seen_for_as_long_as_it_says_and_not_for_ever(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch, eye: bytes
) -> None:
    monkeypatch.setattr(bucket, "EYE", 0.5)
    monkeypatch.setattr(bucket, "LONGEST_EYE", 2.0)
    host = Host(records)
    assert not host.sight.watched()

    def seen_by_a_reader() -> bool:
        records.signal(names.eye(JOB), eye)
        host.sight.poll_soon()
        return host.sight.watched()

    wait_until(seen_by_a_reader)
    wait_until(lambda: not host.sight.watched())
    host.sight.close()


def test_a_store_that_refuses_is_looked_at_again_and_nobody_is_taken_for_dead_meanwhile(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "UNWATCHED", 0.2)
    host = Host(records)
    wait_until(lambda: host.woken)
    storage.refuse("*", "permission")
    wait_until(lambda: "does not have" in host.sight.trouble)
    looked, asked = host.sight.beats_read_at(), len(storage.calls)
    wait_until(lambda: len(storage.calls) >= asked + 6)  # three beats and three looks
    assert host.sight.beats_read_at() == looked
    storage.heal()
    wait_until(lambda: host.sight.beats_read_at() > looked)
    host.sight.close()


def test_an_owner_that_could_not_be_looked_at_is_not_judged(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "OWNER", 0.4)
    records.put(names.owner(JOB), b"alive")
    host = Host(records)
    wait_until(lambda: host.sight.owner() is not None)
    storage.refuse("*", "permission")
    wait_until(lambda: host.sight.owner() is None)
    storage.heal()
    wait_until(lambda: host.sight.owner() is not None)
    host.sight.close()


def test_a_look_that_hangs_after_one_refusal_is_no_right_that_is_missing(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"UNWATCHED": 0.05, "DENIED": 0.3}.items():
        monkeypatch.setattr(bucket, name, value)
    storage.refuse("insert *", "permission", times=1)
    storage.delay("list *", 3 * 0.3, times=1)
    host = Host(records)
    wait_until(lambda: "does not have" in host.sight.trouble)
    began = time.monotonic()

    def looked() -> int:
        assert host.sight.denied() == ("", "")
        return host.woken

    wait_until(looked)
    assert time.monotonic() - began > 0.3, "the look that hung was too short to say anything"
    host.sight.close()


@pytest.mark.parametrize(("beats", "cause"), [(0, wire.CONFIGURATION), (2, wire.INFRASTRUCTURE)])
def test_a_right_that_is_missing_for_long_is_a_matter_of_who_grants_it_unless_it_was_there_before(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch, beats: int, cause: str
) -> None:
    for name, value in {"UNWATCHED": 0.05, "DENIED": 0.2}.items():
        monkeypatch.setattr(bucket, name, value)
    host = Host(records)
    wait_until(lambda: host.woken)
    for number in range(beats):
        host.show(segment=1 - number % 2)
        wait_until(lambda number=number: (seen := host.sight.beat_of(0)[1]) and seen.segment == 1 - number % 2)
    storage.refuse("insert *", "permission")
    wait_until(lambda: "does not have" in host.sight.trouble)
    if not beats:
        host.sight._written = 1  # as of one who may only create, however quick the machine is
    wait_until(lambda: host.sight.denied()[0])
    denied, whose = host.sight.denied()
    assert "roles/storage.objectUser" in denied
    assert whose == cause
    storage.heal()
    wait_until(lambda: not host.sight.denied()[0])
    host.sight.close()


@pytest.mark.parametrize(
    ("status", "said", "token", "number"),
    [
        (401, "Invalid Credentials", "", errno.EIO),  # the metadata server was away
        (401, "Invalid Credentials", "a token", errno.EACCES),
        (403, '{"error": {"errors": [{"reason": "rateLimitExceeded"}]}}', "a token", errno.EIO),
        (403, '{"error": {"errors": [{"reason": "forbidden"}]}}', "a token", errno.EACCES),
    ],
)
def test_a_refusal_that_says_nothing_of_rights_is_not_taken_for_one(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch, status: int, said: str, token: str, number: int
) -> None:
    monkeypatch.setattr(bootstrap, "_token", (token, 0.0))
    with pytest.raises(OSError, match="Cannot write beats/x") as refused:
        records.bucket.check(bootstrap.Reply(status, {}, said.encode()), "write", "beats/x")
    assert refused.value.errno == number


def test_the_last_beat_is_there_when_the_view_closes(records: CloudRecords) -> None:
    host = Host(records)
    wait_until(lambda: host.woken)
    host.shown = host.shown._replace(state=wire.DONE, segment=7)
    host.sight.close()
    [signal] = records.signals(names.beats_of(JOB))
    beat = wire.Beat.read(signal.data)
    assert beat is not None
    assert (beat.state, beat.segment) == (wire.DONE, 7)
