"""The time that host 0 waits for the others before it deletes their slice. test_vm covers the VMs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic_orchestration.host.attempt import self_delete
from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.host.machine.pod import last_words
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.testing.storage_server.server import StorageServer

JOB = "job-1"


@pytest.fixture
def records(storage: StorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudRecords]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    opened = CloudRecords(storage.make_bucket("b-" + os.urandom(6).hex()) + "/prod")
    yield opened
    opened.close()


def seconds_of(records: CloudRecords, monkeypatch: pytest.MonkeyPatch, host: int = 0, hosts: int = 3) -> float:
    """The seconds for which a host waits with its delete."""
    deleted: list[str] = []
    monkeypatch.setattr(bootstrap, "end_slice", lambda resource, **_: deleted.append(resource))
    at = Assignment(records.url, JOB, 1, host, hosts, "", "", "", "", "", "A=b", "projects/p/queuedResources/q")
    began = time.monotonic()
    self_delete.delete_own_slice(at)
    assert deleted == ["projects/p/queuedResources/q"]
    return time.monotonic() - began


def say(records: CloudRecords, host: int, state: str) -> None:
    records.signal(names.beat(JOB, 1, host), wire.Beat(state).encode())


def test_host_0_deletes_when_all_are_done(records: CloudRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in range(3):
        say(records, host, wire.DONE)
    monkeypatch.setattr(self_delete, "LATE", 120.0)
    assert seconds_of(records, monkeypatch) < 60.0


def test_host_0_waits_for_none_that_never_came_up(records: CloudRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second of it is charged for."""
    for host in range(2):
        say(records, host, wire.DONE)
    monkeypatch.setattr(self_delete, "LATE", 120.0)
    assert seconds_of(records, monkeypatch) < 60.0


@pytest.mark.slow
def test_host_0_waits_for_the_others_no_longer_than_their_grace_and_a_while(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_delete, "LATE", 0.5)
    say(records, 0, wire.DONE)
    say(records, 1, wire.ENDING)
    assert 0.4 < seconds_of(records, monkeypatch) < 60.0
    verdict = wire.Verdict(wire.ABORTED, "x", 0.0, cause=wire.USER, host=0)
    records.create(names.verdict(JOB, 1), verdict.encode())
    assert 1.5 < seconds_of(records, monkeypatch) < 60.0


def test_the_others_have_their_turns_later(records: CloudRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_delete, "FIRST_TURN", 0.3)
    monkeypatch.setattr(self_delete, "TURN", 0.2)
    assert 0.6 < seconds_of(records, monkeypatch, host=2) < 60.0


def test_one_host_waits_for_nobody(records: CloudRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_delete, "LATE", 120.0)
    assert seconds_of(records, monkeypatch, hosts=1) < 60.0


def test_a_store_that_is_gone_keeps_no_slice_alive(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_delete, "LATE", 0.5)
    storage.refuse("*", "no bucket")
    try:
        assert seconds_of(records, monkeypatch) < 60.0
    finally:
        storage.heal()


def test_that_a_delete_call_was_taken_is_told_once(records: CloudRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    """The charge for the slice ends there. The call is repeated until the slice is gone."""
    answers = [403, 200, 200, 404]
    at_delete: list[float | None] = []

    def delete(_resource: str) -> int:
        found = records.read(names.left(JOB, 1))
        at_delete.append(None if found is None else found.updated)
        return answers[len(at_delete) - 1]

    monkeypatch.setattr(bootstrap, "delete_slice", delete)
    monkeypatch.setattr(bootstrap, "_is_there", lambda _name: False)
    monkeypatch.setattr(bootstrap, "metadata", lambda *_, **__: "")
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    self_delete.delete_own_slice(
        Assignment(records.url, JOB, 1, 0, 1, "", "", "", "", "", "A=b", "projects/p/queuedResources/q")
    )
    assert at_delete[:2] == [None, None] and None not in at_delete[2:] and len(set(at_delete[2:])) == 1


def test_a_node_that_is_left_without_its_queued_resource_is_charged_for_until_its_own_delete_call_is_taken(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = [403, 503, 200, 200], list[bool]()

    def request(method: str, _url: str, **_how: object) -> SimpleNamespace:
        assert method == "DELETE"
        asked.append(records.read(names.left(JOB, 1)) is not None)
        return SimpleNamespace(status=answers[len(asked) - 1])

    monkeypatch.setattr(bootstrap, "delete_slice", lambda _resource: 404)
    monkeypatch.setattr(bootstrap, "request", request)
    monkeypatch.setattr(bootstrap, "_is_there", lambda name: "/nodes/" in name and len(asked) < len(answers))
    monkeypatch.setattr(bootstrap, "metadata", lambda *_, **__: "")
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    self_delete.delete_own_slice(
        Assignment(records.url, JOB, 1, 0, 1, "", "", "", "", "", "A=b", "projects/p/queuedResources/q")
    )
    assert asked == [False, False, False, True]


def test_a_store_that_cannot_be_told_keeps_no_slice_alive(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "delete_slice", lambda _resource: 404)
    monkeypatch.setattr(bootstrap, "_is_there", lambda _name: False)
    monkeypatch.setattr(bootstrap, "metadata", lambda *_, **__: "")
    storage.refuse("*", "no bucket")
    try:
        self_delete.delete_own_slice(
            Assignment(records.url, JOB, 1, 0, 1, "", "", "", "", "", "A=b", "projects/p/queuedResources/q")
        )
    finally:
        storage.heal()


@pytest.mark.parametrize("host", [0, 1])
def test_a_pod_that_cannot_know_how_its_attempt_ended_leaves_the_reason(
    records: CloudRecords, storage: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: int
) -> None:
    """The last one of them, whose exit code is the attempt's."""
    monkeypatch.setenv("KINETIC_ROOT", str(tmp_path))
    left = tmp_path / last_words.FILE
    left.parent.mkdir()
    left.touch()
    storage.refuse("*", "no bucket")
    try:
        code = self_delete.exit_code(Assignment(records.url, JOB, 1, host, 1, "", "", "", "", "", "A=b", pod="uid"))
    finally:
        storage.heal()
    assert code == (0 if host else wire.EXIT_CODES[wire.INFRASTRUCTURE])
    assert ("the attempt's end could not be read: Cannot read prod/jobs/" in left.read_text()) == (not host)
