"""The agent's own writer keeps the store's contract on Google Cloud Storage, and asks again what may pass."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.host.machine import bootstrap, bucket_records
from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.protocol.content import digest
from kinetic_orchestration.protocol.records.base import Record, RecordsError, read_intact
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.core.host.machine.contract import HostRecordsContract

NOTHING = Record(b"", 0, 0.0)


@pytest.fixture
def address(storage: StorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty deployment, which every process finds that this one starts."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    yield storage.make_bucket("b-" + os.urandom(6).hex()) + "/a prefix/prod"
    storage.heal()


@pytest.fixture
def records(address: str) -> Iterator[CloudRecords]:
    opened = CloudRecords(address)
    yield opened
    opened.close()


class TestCloudRecords(HostRecordsContract):
    opener = "kinetic_orchestration.host.machine.bucket_records:CloudRecords"
    paging = bucket_records


# Answers that are lost, and refusals that pass.


def test_a_create_whose_answer_was_lost_has_won_if_its_bytes_are_there(
    records: CloudRecords, storage: StorageServer
) -> None:
    storage.fail("insert *verdict.json", after=True)
    assert records.create("jobs/a/verdict.json", b"mine") is not None
    storage.fail("insert *second", after=True)
    assert records.create("second", b"mine") is not None
    assert records.create("second", b"other") is None


def test_a_create_whose_answer_was_lost_has_not_won_if_others_bytes_are_there(
    records: CloudRecords, storage: StorageServer
) -> None:
    records.create("taken", b"theirs")
    storage.fail("insert *taken", status=0)
    assert records.create("taken", b"mine") is None


def test_a_swap_whose_answer_was_lost_tells_the_new_generation(records: CloudRecords, storage: StorageServer) -> None:
    first = records.create("identity", b"1")
    assert first is not None
    storage.fail("insert *identity", after=True)
    second = records.swap("identity", b"2", first)
    found = records.read("identity")
    assert found is not None
    assert (found.data, found.generation) == (b"2", second)


def test_an_upload_whose_answer_was_lost_has_won(records: CloudRecords, storage: StorageServer, tmp_path: Path) -> None:
    (tmp_path / "result").write_bytes(os.urandom(100_000))
    storage.fail("insert *result", after=True)
    assert records.upload("result", str(tmp_path / "result"), move=True) is True
    assert not (tmp_path / "result").exists()


@pytest.mark.parametrize("status", [0, 408, 429, 500, 503])
def test_what_may_pass_is_asked_again(records: CloudRecords, storage: StorageServer, status: int) -> None:
    storage.fail("*", status=status, times=3)
    assert records.create("a", b"x") is not None
    storage.fail("*", status=status)
    assert records.read("a") is not None
    storage.fail("*", status=status)
    assert [entry.name for entry in records.list("")] == ["a"]
    storage.fail("*", status=status)
    assert records.delete("a") is True


def test_an_answer_that_cannot_be_read_is_one_that_may_pass(
    records: CloudRecords, storage: StorageServer, tmp_path: Path
) -> None:
    storage.garble("insert *")
    assert records.put("a", b"x")
    storage.garble("insert *")
    assert records.create("b", b"x") is not None
    (tmp_path / "file").write_bytes(b"part of a checkpoint")
    storage.garble("insert *")
    assert records.upload("c", str(tmp_path / "file")) is True
    storage.garble("stat *")
    assert (records.bucket.facts(records._full("a")) or {})["size"] == "1"
    storage.garble("list *")
    assert [entry.name for entry in records.list("")] == ["a", "b", "c"]


def test_bytes_that_arrive_otherwise_are_read_again_and_then_refused(
    records: CloudRecords, storage: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = os.urandom(2 * bucket_records.CHUNK)
    records.put("small", b"whole")
    records.put("large", large)
    records.signal("hints/a", b"heard")
    storage.garble("get *")
    assert (records.read("small") or NOTHING).data == b"whole"
    storage.garble("get *")
    assert (records.read("small", 0, 100) or NOTHING).data == b"whole", "all of it, though a part was asked for"
    for name, data in (("small", b"whole"), ("large", large)):
        storage.garble("get *")
        records.download(name, str(tmp_path / name))
        assert (tmp_path / name).read_bytes() == data
    storage.garble("list *")
    assert [(signal.name, signal.data) for signal in records.signals("hints/")] == [("hints/a", b"heard")]
    monkeypatch.setattr(bucket_records, "PATIENCE", 0.2)
    storage.garble("get *", times=None)
    with pytest.raises(RecordsError, match="its checksum differs") as caught:
        records.read("small")
    assert caught.value.errno == errno.EIO
    with pytest.raises(RecordsError, match="its checksum differs"):
        records.download("large", str(tmp_path / "other"))
    assert sorted(tmp_path.iterdir()) == [tmp_path / "large", tmp_path / "small"]


def test_what_has_no_checksum_is_read_once_more(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's composed objects have no checksum, of which the emulator reports one."""
    once = records.bucket._once

    def without(*args: Any, **more: Any) -> bootstrap.Reply:
        reply = once(*args, **more)
        return reply._replace(headers={k: v for k, v in reply.headers.items() if k.lower() != "x-goog-hash"})

    monkeypatch.setattr(records.bucket, "_once", without)
    lock = b"one package\n" * 100
    records.put("lock", lock)
    storage.garble("get *")
    assert (records.read("lock") or NOTHING).data not in (lock, b""), "nobody else can tell"
    storage.garble("get *")
    assert read_intact(records, "lock", digest.of_bytes(lock)) == lock
    storage.garble("get *", times=None)
    assert read_intact(records, "lock", digest.of_bytes(lock)) is None


@pytest.mark.parametrize("told", [{"X-Goog-Generation": "x"}, {"Last-Modified": "never"}])
def test_a_header_that_cannot_be_read_is_an_answer_that_may_pass(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch, told: dict[str, str]
) -> None:
    """A server may send invalid headers for a while."""
    made = records.put("small", b"whole")
    once, answers = records.bucket._once, [told]

    def spoilt(*args: Any, **more: Any) -> bootstrap.Reply:
        reply = once(*args, **more)
        return reply._replace(headers={**reply.headers, **answers.pop()}) if answers else reply

    monkeypatch.setattr(records.bucket, "_once", spoilt)
    found = records.read("small")
    assert not answers
    assert found is not None
    assert (found.data, found.generation) == (b"whole", made)


@pytest.mark.parametrize("without", ["name", "generation", "updated", "size"])
def test_a_listing_that_lacks_what_it_should_tell_is_asked_for_again(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    records.put("small", b"whole")
    once, spoils = records.bucket._once, [without]

    def spoilt(*args: Any, **more: Any) -> bootstrap.Reply:
        reply = once(*args, **more)
        if not spoils:
            return reply
        page = reply.json()
        del page["items"][0][spoils.pop()]
        return reply._replace(data=json.dumps(page).encode())

    monkeypatch.setattr(records.bucket, "_once", spoilt)
    assert [entry.name for entry in records.list("")] == ["small"]
    assert not spoils


def test_a_delete_whose_answer_was_lost_has_deleted(records: CloudRecords, storage: StorageServer) -> None:
    records.create("a", b"x")
    storage.fail("delete *", after=True)
    assert records.delete("a") is True


def test_a_connection_that_the_server_closed_while_it_was_idle_costs_no_wait(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.create("a", b"x")
    storage.stop_server()
    storage.start_server()
    monkeypatch.setattr(bucket_records, "PATIENCE", 0.0)  # a single try
    assert records.read("a") is None  # its memory is gone


def test_patience_ends_with_a_sentence(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_records, "PATIENCE", 0.3)
    storage.fail("*", status=503, times=None)
    with pytest.raises(RecordsError, match=r"Cannot write a .*: We encountered an internal error. .*again, for 0.3 s"):
        records.put("a", b"x")


@pytest.mark.parametrize(
    ("how", "number", "sentence"),
    [
        ("permission", errno.EACCES, "does not have storage.objects.create access .*roles/storage.objectUser"),
        ("no bucket", errno.ENOENT, "The specified bucket does not exist .the bucket is not there"),
        ("vpc-sc", errno.EACCES, "vpcServiceControlsUniqueIdentifier"),
        ("billing", errno.EACCES, "The billing account"),
    ],
)
def test_a_refusal_is_told_in_googles_words_and_with_its_remedy(
    records: CloudRecords, storage: StorageServer, how: str, number: int, sentence: str
) -> None:
    storage.refuse("insert *", how)
    with pytest.raises(RecordsError, match=sentence) as caught:
        records.create("a", b"x")
    assert caught.value.errno == number


def test_a_bucket_that_is_gone_is_no_absent_object(records: CloudRecords, storage: StorageServer) -> None:
    storage.refuse("*", "no bucket")
    for verb in (records.read, records.delete):
        with pytest.raises(RecordsError, match="The specified bucket does not exist"):
            verb("a")


# Large objects.


def test_a_large_object_comes_down_in_parts_and_goes_on_where_it_broke(
    records: CloudRecords, storage: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_records, "LARGE", 1 << 20)
    data = os.urandom(3 << 20)
    (tmp_path / "large").write_bytes(data)
    assert records.upload("large", str(tmp_path / "large"))
    for broken in (50_000, 100_000, 200_000):
        storage.cut("get *large", broken)
    storage.forget()
    records.download("large", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == data
    assert sum(call.verb == "get" for call in storage.calls) > 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "large"]


def test_an_object_that_changes_under_a_download_is_whole_all_the_same(
    records: CloudRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_records, "LARGE", 1 << 20)
    records.put("changing", b"A" * (2 << 20))
    stop = threading.Event()

    def change() -> None:
        own = CloudRecords(records.url)
        for letter in b"BCDE":
            own.put("changing", bytes([letter]) * (2 << 20))
            if stop.wait(0.15):
                break
        own.close()

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(8):
            records.download("changing", str(tmp_path / "copy"))
            found = (tmp_path / "copy").read_bytes()
            assert found == found[:1] * (2 << 20)
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize(
    ("size", "requests"), [(0, 2), (1, 1), (bucket_records.CHUNK, 1), (bucket_records.CHUNK + 1, 2)]
)
def test_a_small_object_is_fetched_with_one_request(
    records: CloudRecords, storage: StorageServer, tmp_path: Path, size: int, requests: int
) -> None:
    data = os.urandom(size)
    records.put("a", data)
    storage.forget()
    records.download("a", str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == data
    assert len(storage.calls) <= requests
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_disk_without_room_is_told_before_a_byte_is_written(
    records: CloudRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.put("a", b"x" * 1000)
    monkeypatch.setattr(records.bucket, "_begin_to_fetch", lambda _: (1 << 39, "1", None, b""))
    with pytest.raises(RecordsError, match=r"has 549.8 GB, and the disk .* GB free. Give each host only the part"):
        records.download("a", str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


# Time.


def test_the_stores_clock_is_known_to_a_fraction_of_the_second_that_it_tells(
    records: CloudRecords, storage: StorageServer
) -> None:
    storage.skew = 600.0
    for _ in range(40):
        records.read("nothing")
        time.sleep(0.03)
    deadline = time.monotonic() + 30.0  # on a machine that is busy, looks are farther from each other
    while abs(records.now() - (time.time() + 600.0)) > 0.2:
        assert time.monotonic() < deadline
        records.read("nothing")
    storage.skew = -600.0
    records.read("nothing")
    assert abs(records.now() - (time.time() - 600.0)) < 60.0  # noticed at once; how exactly, is a matter of more looks
