"""The time that host 0 waits for the others before it deletes their slice, and whose pod ends with the attempt's code.
test_vm covers the VMs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic_orchestration.host.attempt import self_delete
from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.host.machine.pod import last_words
from kinetic_orchestration.protocol import attempt_rules, names, wire
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
    monkeypatch.setattr(bootstrap, "end_slice", lambda resource, *_, **__: deleted.append(resource))
    at = Assignment(
        records.url, JOB, 1, host, hosts, "", "", "", "", "", "A=b", "projects/p/locations/z/queuedResources/q"
    )
    began = time.monotonic()
    self_delete.delete_own_slice(at)
    assert deleted == ["projects/p/locations/z/queuedResources/q"]
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


@pytest.mark.slow
def test_a_host_leaves_its_turn_to_none_that_never_came_up_once_the_attempt_is_over(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All machines are charged for while it waits. Whoever comes up later finds the verdict, and runs nothing."""
    monkeypatch.setattr(self_delete, "FIRST_TURN", 2.0)
    monkeypatch.setattr(self_delete, "TURN", 0.5)
    monkeypatch.setattr(self_delete, "LATE", 120.0)
    for host in (1, 2):
        say(records, host, wire.DONE)
    assert seconds_of(records, monkeypatch, host=1) > 2.0, "host 0 may be about to begin"
    verdict = wire.Verdict(wire.ABORTED, "x", 0.0, cause=wire.INFRASTRUCTURE, host=0)
    records.create(names.verdict(JOB, 1), verdict.encode())
    assert seconds_of(records, monkeypatch, host=1) < 2.0
    assert seconds_of(records, monkeypatch, host=2) > 2.0, "host 1 began, and comes first"
    say(records, 0, wire.ENDING)
    assert seconds_of(records, monkeypatch, host=1) > 2.0, "host 0 did begin"


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

    def delete(_url: str) -> int:
        found = records.read(names.left(JOB, 1))
        at_delete.append(None if found is None else found.updated)
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(bootstrap, "delete", delete)
    monkeypatch.setattr(bootstrap, "request", lambda *_, **__: bootstrap.Reply(404, {}, b""))
    monkeypatch.setattr(bootstrap, "metadata", lambda *_, **__: "")
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    self_delete.delete_own_slice(
        Assignment(records.url, JOB, 1, 0, 1, "", "", "", "", "", "A=b", "projects/p/locations/z/queuedResources/q")
    )
    assert at_delete[:2] == [None, None] and None not in at_delete[2:] and len(set(at_delete[2:])) == 1


def test_a_node_that_is_left_without_its_queued_resource_is_charged_for_until_its_own_delete_call_is_taken(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = [403, 503, 200, 200], list[bool]()

    def delete(url: str) -> int:
        if "/nodes/" not in url or len(asked) == len(answers):
            return 404
        asked.append(records.read(names.left(JOB, 1)) is not None)
        return answers[len(asked) - 1]

    monkeypatch.setattr(bootstrap, "delete", delete)
    monkeypatch.setattr(bootstrap, "request", lambda *_, **__: bootstrap.Reply(404, {}, b""))
    monkeypatch.setattr(bootstrap, "metadata", lambda *_, **__: "")
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    self_delete.delete_own_slice(
        Assignment(records.url, JOB, 1, 0, 1, "", "", "", "", "", "A=b", "projects/p/locations/z/queuedResources/q")
    )
    assert asked == [False, False, False, True]


def test_a_store_that_cannot_be_told_keeps_no_slice_alive(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "delete", lambda _url: 404)
    monkeypatch.setattr(bootstrap, "request", lambda *_, **__: bootstrap.Reply(404, {}, b""))
    monkeypatch.setattr(bootstrap, "metadata", lambda *_, **__: "")
    storage.refuse("*", "no bucket")
    try:
        self_delete.delete_own_slice(
            Assignment(records.url, JOB, 1, 0, 1, "", "", "", "", "", "A=b", "projects/p/locations/z/queuedResources/q")
        )
    finally:
        storage.heal()


# ---- pods --------------------------------------------------------------------------------------------------------

LONG = 120.0  # of a patience that no test waits for


def end_of_pod(records: CloudRecords, host: int, hosts: int = 3) -> tuple[int, float]:
    """The code with which a host's pod ends, and the seconds that it takes to decide that."""
    at = Assignment(records.url, JOB, 1, host, hosts, "", f"b/{host}", "", "", "", "A=b", "", "", "", "uid")
    began = time.monotonic()
    return self_delete.exit_code(at), time.monotonic() - began


def lost(records: CloudRecords, host: int, by: int) -> None:
    """The verdict of a host on one that is silent."""
    verdict = wire.Verdict(wire.ABORTED, f"b/{by}", 0.0, cause=wire.INFRASTRUCTURE, host=host, reason="silent")
    records.create(names.verdict(JOB, 1), verdict.encode())


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(self_delete, "LATE", LONG)
    monkeypatch.setattr(self_delete, "FIRST_TURN", LONG)
    monkeypatch.setattr(attempt_rules, "SIBLING_GRACE", 0.0)
    return monkeypatch


def test_the_others_leave_the_code_to_host_0(records: CloudRecords, patience: pytest.MonkeyPatch) -> None:
    for host in range(3):
        say(records, host, wire.DONE)
    lost(records, 1, by=0)
    found = {host: end_of_pod(records, host) for host in range(3)}
    assert {host: code for host, (code, _) in found.items()} == {0: 65, 1: 0, 2: 0}
    assert max(seconds for _, seconds in found.values()) < LONG / 2


def test_the_others_end_with_the_code_once_they_have_given_up_host_0_and_are_done(
    records: CloudRecords, patience: pytest.MonkeyPatch
) -> None:
    """Nobody else would have its pod ended."""
    lost(records, 0, by=1)
    say(records, 0, wire.RUNNING)
    say(records, 1, wire.DONE)
    say(records, 2, wire.ENDING)
    patience.setattr(self_delete, "FIRST_TURN", 1.0)
    code, seconds = end_of_pod(records, 1)
    assert code == 65 and seconds > 0.9  # another host had its time
    patience.setattr(self_delete, "FIRST_TURN", LONG)
    say(records, 2, wire.DONE)
    for host in (1, 2):
        code, seconds = end_of_pod(records, host)
        assert code == 65 and seconds < LONG / 2


def test_a_host_0_that_comes_back_in_time_tells_the_code_itself(
    records: CloudRecords, patience: pytest.MonkeyPatch
) -> None:
    lost(records, 0, by=1)
    for host in range(3):
        say(records, host, wire.DONE)
    assert end_of_pod(records, 1)[0] == 0
    assert end_of_pod(records, 0)[0] == 65


def test_a_host_0_that_does_not_end_is_waited_for_whatever_the_attempt_came_to(
    records: CloudRecords, patience: pytest.MonkeyPatch
) -> None:
    """Also where it has written the verdict itself: its last words may take their time."""
    lost(records, 0, by=0)
    say(records, 0, wire.ENDING)
    say(records, 1, wire.DONE)
    patience.setattr(self_delete, "FIRST_TURN", 1.0)
    code, seconds = end_of_pod(records, 1, hosts=2)
    assert code == 65 and 0.9 < seconds < LONG / 2


def test_after_a_commit_no_pod_waits_for_host_0_and_none_fails(
    records: CloudRecords, patience: pytest.MonkeyPatch
) -> None:
    say(records, 0, wire.ENDING)
    records.create(names.verdict(JOB, 1), wire.Verdict(wire.COMMITTED, "b/0", 0.0, host=0).encode())
    code, seconds = end_of_pod(records, 1)
    assert code == 0 and seconds < LONG / 2


def test_without_a_word_of_the_store_host_0_alone_fails(
    records: CloudRecords, storage: StorageServer, patience: pytest.MonkeyPatch
) -> None:
    patience.setattr(self_delete, "LATE", 0.5)
    storage.refuse("*", "no bucket")
    try:
        assert [end_of_pod(records, host)[0] for host in (0, 1)] == [65, 0]
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


# ---- slices that a group has made -------------------------------------------------------------------------------

GROUP = "projects/p/zones/z/instanceGroupManagers/kinetic-1"


def end_of_member(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch, answers: Callable[[str], bootstrap.Reply | None]
) -> tuple[list[tuple[object, ...]], float]:
    """Host 2 of 4 on two slices ends: its calls to delete, and the seconds that it waited."""
    slept = [0.0]
    began = time.monotonic()
    monkeypatch.setattr(time, "sleep", lambda seconds: slept.append(slept.pop() + seconds))
    monkeypatch.setattr(time, "monotonic", lambda: began + slept[0])
    monkeypatch.setattr(bootstrap, "request", lambda _method, url, **_: answers(url.rpartition("/compute/v1/")[2]))
    deleted: list[tuple[object, ...]] = []
    monkeypatch.setattr(bootstrap, "end_slice", lambda *what, **_: deleted.append(what))
    self_delete.delete_own_slice(Assignment(records.url, JOB, 1, 2, 4, "", "", "", "", "", "A=b", GROUP, slices=2))
    return deleted, slept[0]


def shown(**counts: int) -> bootstrap.Reply:
    actions = {"none": 0, "creating": 0, "recreating": 0, "deleting": 0, **counts}
    return bootstrap.Reply(200, {}, json.dumps({"currentActions": actions}).encode())


@pytest.mark.parametrize(
    "group", [bootstrap.Reply(503, {}, b"no"), None, shown(none=2), shown(deleting=1, none=1), shown(deleting=1, recreating=1)],
    ids=["no answer", "a strange answer", "all run", "one goes, and the other may save", "one is made again"],
)  # fmt: skip
def test_a_host_of_a_group_waits_for_its_turn_and_then_deletes_all_of_them(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch, group: bootstrap.Reply | None
) -> None:
    deleted, seconds = end_of_member(records, monkeypatch, lambda url: group if url == f"{GROUP}-1" else shown(none=2))
    assert deleted == [(GROUP, 2, 1)]
    assert seconds == pytest.approx(self_delete.FIRST_TURN + 2 * self_delete.TURN, abs=0.1)


def test_a_host_whose_group_is_being_deleted_waits_for_no_turn_as_its_machine_shuts_down_meanwhile(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them together wait for as long as one does. Of another slice its own hosts see to that."""
    leaves = shown(deleting=2)
    deleted, seconds = end_of_member(records, monkeypatch, lambda url: leaves if url == f"{GROUP}-1" else shown(none=2))
    assert deleted == [] and seconds < self_delete.LOOK_AT_VMS + 0.1


def test_a_host_whose_group_is_being_deleted_deletes_all_that_is_left_once_those_before_it_are_gone(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = bootstrap.Reply(404, {}, b"{}")
    deleted, _ = end_of_member(
        records, monkeypatch, lambda url: gone if "/instances/kinetic-1-0-" in url else shown(deleting=2)
    )
    assert deleted == [(GROUP, 2, 1)]
