"""The log of a host on a store whose objects are written once: its segments, its pace, and what it does in need."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.host.view import segments
from kinetic_orchestration.host.view.segments import SegmentWriter
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.report import frames
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support.waits import wait_until

KEY = ("job-1", 1, 0)
AT_ONCE = 60.0  # a machine may be busy; the pace of who is not watched is slower than this
SLOW = 120.0


@pytest.fixture
def records(storage: StorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudRecords]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    opened = CloudRecords(storage.make_bucket("b-" + os.urandom(6).hex()) + "/prod")
    assert opened.read("nothing") is None
    yield opened
    opened.close()
    storage.heal()


def texts(records: CloudRecords) -> list[str]:
    """The text of each segment."""
    found = []
    for entry in records.list(names.host(*KEY, "log/")):
        record = records.read(entry.name)
        assert record is not None
        decoded, _ = frames.decode(record.data)
        assert decoded[-1].kind == frames.NEXT
        found.append(b"".join(frame.payload for frame in decoded[:-1]).decode())
    return found


def test_the_first_line_goes_at_once_and_the_next_at_a_pace(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pace in ("SLOWEST", "UNWATCHED"):
        monkeypatch.setattr(segments, pace, SLOW)
    begun: list[bool] = []
    log = SegmentWriter(records, *KEY, begun=lambda: begun.append(True))
    log.write(frames.OUT, b"first\n")
    wait_until(lambda: texts(records) == ["first\n"], within=AT_ONCE)
    written = log._written
    log.write(frames.OUT, b"second\n")
    monkeypatch.setattr(segments, "UNWATCHED", 1.0)
    log.write(frames.OUT, b"third\n")
    wait_until(lambda: log.segment == 2)
    assert log._written - written >= 1.0
    assert texts(records) == ["first\n", "second\nthird\n"]
    assert begun == [True]
    assert log.close()


def test_a_notice_of_preemption_quickens_the_pace(records: CloudRecords, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "WATCHED", 0.2)
    for pace in ("SLOWEST", "UNWATCHED"):
        monkeypatch.setattr(segments, pace, SLOW)
    log = SegmentWriter(records, *KEY)
    log.write(frames.OUT, b"first\n")
    wait_until(lambda: log.segment == 1)
    log.write(frames.OUT, b"last\n")
    log.hurry()
    wait_until(lambda: texts(records) == ["first\n", "last\n"], within=AT_ONCE)
    assert log.close()


def test_much_goes_at_once_in_segments_that_readers_can_bear(
    records: CloudRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pace in ("SLOWEST", "UNWATCHED"):
        monkeypatch.setattr(segments, pace, SLOW)
    log = SegmentWriter(records, *KEY)
    log.write(frames.OUT, b"first\n")
    wait_until(lambda: log.segment == 1)
    for number in range(9):
        log.write(frames.OUT, b"%d" % number * (1 << 20))
    wait_until(lambda: log.segment > 2 and not log._size, within=AT_ONCE)
    found = texts(records)
    assert all(len(text) <= frames.SEGMENT_BYTES for text in found)
    assert "".join(found[1:]) == "".join(str(number) * (1 << 20) for number in range(9))
    assert log.close()


def test_a_store_that_refuses_keeps_the_lines_here_until_it_takes_them(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "PAUSE", 0.1)
    storage.refuse("insert *log/*", "permission")
    log = SegmentWriter(records, *KEY)
    for number in range(20):
        log.write(frames.OUT, b"%d" % number * (1 << 20))
    assert log.full
    assert not log.flush(0.3)
    wait_until(lambda: "does not have" in log.trouble)
    storage.heal()
    assert log.close()
    assert "".join(texts(records)) == "".join(str(number) * (1 << 20) for number in range(20))
    assert not log.full


def test_what_is_lost_for_good_is_told_at_the_end(
    records: CloudRecords, storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "PAUSE", 0.1)
    storage.refuse("insert *log/*", "permission")
    log = SegmentWriter(records, *KEY)
    log.write(frames.OUT, b"lost\n")
    assert log.close(0.5) is False


def test_a_segment_of_an_earlier_life_is_left_as_it_is(records: CloudRecords) -> None:
    records.create(names.segment(*KEY, 0), frames.encode(frames.OUT, 1.0, b"earlier\n") + frames.encode(">", 1.0, b""))
    log = SegmentWriter(records, *KEY)
    log.write(frames.OUT, b"later\n")
    assert log.close()
    assert texts(records) == ["earlier\n", "later\n"]
    assert log.segment == 2


def test_a_segment_whose_answer_was_lost_is_there_once(records: CloudRecords, storage: StorageServer) -> None:
    storage.fail("insert *log/*", after=True, times=2)
    log = SegmentWriter(records, *KEY)
    for number in range(3):
        log.write(frames.OUT, b"%d\n" % number)
        assert log.flush()
    assert log.close()
    assert texts(records) == ["0\n", "1\n", "2\n"]
