"""The hosts' records keep the store's contract on a real MinIO, and say in a sentence what they are refused."""

from __future__ import annotations

import errno
import http.server
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kinetic_orchestration.host.machine.s3 import records as s3_records
from kinetic_orchestration.host.machine.s3 import requests as s3_requests
from kinetic_orchestration.host.machine.s3.records import S3Records
from kinetic_orchestration.host.machine.s3.requests import Body
from kinetic_orchestration.protocol.records.base import Damaged, RecordsError, read_bounded, read_intact
from kinetic_orchestration.testing.storage_server.proxy import Answer, Fault, Request
from tests.core.host.machine.contract import HostRecordsContract
from tests.support.s3_server import FIRST_BUILDS, S3Server, s3, s3_server

__all__ = ["s3", "s3_server"]

pytestmark = [pytest.mark.slow, FIRST_BUILDS]


@pytest.fixture
def address(s3: S3Server) -> str:
    return s3.make_bucket() + "/a prefix/prod"


@pytest.fixture
def records(address: str) -> Iterator[S3Records]:
    opened = S3Records(address)
    yield opened
    opened.close()


class TestS3Records(HostRecordsContract):
    opener = "kinetic_orchestration.host.machine.s3.records:S3Records"
    paging = s3_records


@pytest.mark.parametrize(
    ("status", "code", "number", "sentence"),
    [
        (
            403,
            "AccessDenied",
            errno.EACCES,
            r"as the test says \(AccessDenied\). The credentials \(AWS_ACCESS_KEY_ID\) lack",
        ),
        (403, "InvalidAccessKeyId", errno.EACCES, "are not valid at http://127"),
        (404, "NoSuchBucket", errno.ENOENT, "There is no bucket bucket-"),
        (507, "XMinioStorageFull", errno.ENOSPC, "Free some space there"),
        (400, "InvalidObjectState", errno.EIO, r"as the test says \(InvalidObjectState\)\."),
    ],
)
def test_a_refusal_is_told_with_its_remedy(
    records: S3Records, s3: S3Server, status: int, code: str, number: int, sentence: str
) -> None:
    s3.fail("PUT *", status, code)
    with pytest.raises(RecordsError, match=sentence) as caught:
        records.create("a", b"x")
    assert caught.value.errno == number


def test_patience_ends_with_a_sentence(records: S3Records, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_requests, "PATIENCE", 0.3)
    s3.fail("*", 503, "SlowDown", times=99)
    with pytest.raises(RecordsError, match=r"Cannot write a .*: as the test says \(SlowDown\), for ") as caught:
        records.put("a", b"x")
    assert caught.value.errno == errno.EIO


def test_a_region_that_the_settings_do_not_know_is_found_out(
    s3: S3Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MinIO knows no regions, and takes a signature for any of them."""
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    records = S3Records(address)
    code = "AuthorizationHeaderMalformed"
    s3.fail("PUT *", 400, body=f"<Error><Code>{code}</Code><Region>eu-north-1</Region></Error>")
    assert records.create("a", b"x") is not None
    assert records.requests.region == "eu-north-1"
    assert [call.status for call in s3.calls][-2:] == [400, 200]
    s3.fail("GET *", 400, body=f"<Error><Code>{code}</Code></Error>", times=9)
    with pytest.raises(RecordsError, match="is in another region than eu-north-1: set AWS_REGION to its own"):
        records.read("a")


def test_threads_that_are_told_the_region_at_once_all_go_there(
    s3: S3Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compares what it is told with the region that its own request was signed for."""
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    records = S3Records(address)
    told = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-north-1</Region></Error>"
    all_are_signed = threading.Barrier(8, timeout=20)

    def elsewhere(request: Request) -> Fault:
        if "/eu-central-1/s3/" not in request.headers["authorization"]:
            return Fault()
        all_are_signed.wait()
        return Fault(answer=Answer(400, told, "application/xml"))

    monkeypatch.setattr(s3, "meet", elsewhere)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: records.create(f"a{n}", b"x"), range(8)))
    assert None not in made
    assert records.requests.region == "eu-north-1"
    assert sorted(call.status for call in s3.calls if "/prod/" in call.key) == [200] * 8 + [400] * 8


@pytest.mark.parametrize("verb", ["GET", "PUT", "LIST"])
def test_a_404_that_is_no_word_of_s3_is_asked_again(records: S3Records, s3: S3Server, verb: str) -> None:
    """As a proxy answers whose server is being started again."""
    made = records.create("a", b"x") or 0
    s3.fail(f"{verb} *", 404, body="404 page not found", times=2)
    calls = {
        "GET": lambda: records.read("a"),
        "PUT": lambda: records.swap("a", b"y", made),
        "LIST": lambda: list(records.list("a")),
    }
    s3.forget()
    assert calls[verb]()
    assert [call.status for call in s3.calls if call.verb == verb] == [404, 404, 200]


def test_a_404_that_stays_is_no_missing_object(
    records: S3Records, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_requests, "PATIENCE", 0.3)
    records.create("a", b"x")
    s3.fail("*", 404, body="404 page not found", times=99)
    for call in (lambda: records.read("a"), lambda: records.delete("a"), lambda: list(records.list("a"))):
        with pytest.raises(RecordsError, match="404 page not found, for "):
            call()


def test_signals_may_be_read_by_many_threads(records: S3Records, s3: S3Server) -> None:
    """One that takes its time over a signal does not see what another reads meanwhile."""
    for n in range(3):
        records.signal(f"beats/{n}", b"first")
    slow = records.signals("beats/")
    assert next(slow).data == b"first"
    records.delete("beats/1")
    records.signal("beats/2", b"second")
    assert [signal.data for signal in records.signals("beats/")] == [b"first", b"second"]
    assert [signal.data for signal in slow] == [b"first", b"first"]
    s3.forget()
    assert [signal.data for signal in records.signals("beats/")] == [b"first", b"second"]
    assert [call.verb for call in s3.calls] == ["LIST"]


def test_a_write_that_something_on_the_way_sends_twice_has_won(records: S3Records, s3: S3Server) -> None:
    """The writer itself lost no answer: that of the second is all that it sees."""
    s3.fail("PUT *", 412, "PreconditionFailed", after=True)
    made = records.create("a", b"x")
    assert made is not None
    s3.fail("PUT *", 412, "PreconditionFailed", after=True)
    second = records.swap("a", b"y", made)
    assert second not in (None, made)
    assert records.swap("a", b"z", made) is None


@pytest.mark.parametrize("more", [-64, -16, 0, 16])
def test_no_part_of_an_upload_is_larger_than_the_first(
    records: S3Records, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """Cloudflare's R2 refuses others."""
    monkeypatch.setattr(s3_records, "LARGE", 1 << 20)
    monkeypatch.setattr(s3_records, "PART", 5 << 20)
    sizes: dict[str, int] = {}
    meet = s3.meet

    def noted(request: Request) -> Fault:
        if number := request.query("partNumber"):
            sizes[number] = int(request.headers["content-length"])
        return meet(request)

    monkeypatch.setattr(s3, "meet", noted)
    data = os.urandom((10 << 20) + more)
    (tmp_path / "file").write_bytes(data)
    assert records.upload("large", str(tmp_path / "file"))
    assert sizes.pop("1") == sizes.pop("2") if more >= 0 else sizes.pop("1") >= sizes.pop("2")
    assert sum(sizes.values()) == max(0, more + s3_records.TAIL)
    records.download("large", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == data


def test_the_whole_of_an_object_is_not_taken_for_a_part(
    records: S3Records, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests an object of another tool, which has no checksum."""
    monkeypatch.setattr(s3_records, "LARGE", 1 << 20)
    monkeypatch.setattr(s3_records, "PART", 1 << 20)
    data = os.urandom(3 << 20)
    reply, _ = records.requests.ask("PUT", "a prefix/prod/theirs", body=Body(data))
    assert reply.status == 200
    s3.fail("GET *theirs", 200, skip=1, body="the whole")
    records.download("theirs", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == data


def test_expired_credentials_are_asked_for_again(
    s3: S3Server, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "credentials"
    valid = f"[default]\naws_access_key_id = {os.environ['AWS_ACCESS_KEY_ID']}\n"
    file.write_text(valid + f"aws_secret_access_key = {os.environ['AWS_SECRET_ACCESS_KEY']}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    records = S3Records(address)
    assert records.create("a", b"x") is not None
    s3.fail("GET *", 400, "ExpiredToken")
    assert records.read("a") is not None
    assert [call.status for call in s3.calls][-2:] == [400, 200]


def test_a_large_object_comes_down_in_parts_and_goes_on_where_it_broke(
    records: S3Records, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_records, "LARGE", 1 << 20)
    monkeypatch.setattr(s3_records, "PART", 1 << 20)
    data = os.urandom(6 << 20)
    records.put("large", data)
    for broken in (50_000, 100_000, 200_000):
        s3.cut("GET *large", broken)
    s3.forget()
    records.download("large", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == data
    assert sum(call.verb == "GET" for call in s3.calls) == 9, "the beginning, five parts, and three that went on"
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_store_that_does_not_answer_at_first_is_asked_for_its_time_again(
    s3: S3Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine's own clock may be wrong by more than an attempt has left. Any answer tells the time."""
    monkeypatch.setenv("AWS_EXECUTION_ENV", "another process")  # which has heard nothing of that server yet
    records = S3Records(address)
    s3.forget()
    s3.skew = 7200.0
    s3.fail("HEAD *", times=2)
    assert records.now() - time.time() > 7000.0
    assert records.now() - time.time() > 7000.0
    assert [call.status for call in s3.calls] == [0, 0, 404]


def test_a_server_that_never_tells_the_time_is_not_asked_for_it_again_and_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Then this machine's own clock counts, at once: each look at the time would take a minute."""

    class Timeless(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """It says nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Timeless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "a-key-of-tests")
        records, began = S3Records("s3://bucket/prod"), time.monotonic()
        assert abs(records.now() - time.time()) < 5.0
        assert time.monotonic() - began < 20.0
        server.shutdown()


@pytest.mark.parametrize("size", [1, s3_records.CHUNK + 1])
def test_bytes_that_are_not_those_that_were_written_are_told_within_seconds(
    records: S3Records, s3: S3Server, tmp_path: Path, size: int
) -> None:
    """However often they are asked for, they come as they are stored."""
    records.put("rotten", bytes(size))
    s3.rot(records.requests.place.bucket, "a prefix/prod/rotten")
    began = time.monotonic()
    with pytest.raises(Damaged, match=r"Cannot read rotten .*: its checksum differs"):
        records.read("rotten", limit=size)
    with pytest.raises(Damaged, match="its checksum differs"):
        records.download("rotten", str(tmp_path / "rotten"))
    assert time.monotonic() - began < 20.0
    assert list(tmp_path.iterdir()) == []
    assert read_bounded(records, "rotten") == b""
    assert read_intact(records, "rotten", "") is None
