"""The store on S3-compatible storage keeps the contract, on a real MinIO, through every fault of the way there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.errors import Corrupt, Denied, StoreError, Unreachable, UsageError
from kinetic_orchestration.host.machine.s3 import records as s3_records
from kinetic_orchestration.host.machine.s3 import requests as s3_requests
from kinetic_orchestration.host.machine.s3.records import S3Records
from kinetic_orchestration.jobs.cleanup import reaper
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.platforms.local.backend import LocalBackend
from kinetic_orchestration.platforms.registry import open_store
from kinetic_orchestration.platforms.s3 import store as s3_store
from kinetic_orchestration.platforms.s3.store import S3Store, open_s3
from kinetic_orchestration.protocol import names
from kinetic_orchestration.testing.contracts.store import StoreContract
from tests.support.s3_server import FIRST_BUILDS, S3Server, s3, s3_server

__all__ = ["s3", "s3_server"]

pytestmark = [pytest.mark.slow, FIRST_BUILDS]

BEGUN = (
    "<ListMultipartUploadsResult><Upload><Key>a%20prefix/prod/x</Key><UploadId>gone</UploadId>"
    "<Initiated>2020-01-01T00:00:00.000Z</Initiated></Upload></ListMultipartUploadsResult>"
)


@pytest.fixture
def address(s3: S3Server) -> str:
    return s3.make_bucket() + "/a prefix"


@pytest.fixture
def store(address: str, s3: S3Server) -> S3Store:
    store = open_s3(address, "prod")
    s3.forget()
    return store


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what may pass be tried for a moment only."""
    monkeypatch.setattr(s3_requests, "PATIENCE", 0.5)


class TestS3Store(StoreContract):
    rounds = 40
    many = 250
    tick = 1.0

    @pytest.fixture(autouse=True)
    def small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set pages of a hundred instead of a thousand objects."""
        monkeypatch.setattr(s3_records, "PAGE", 100)

    @pytest.fixture
    def where(self, address: str) -> list[Any]:
        return [address, "prod"]


# The guarantees.


WRITTEN = "<Result><ETag>0123</ETag></Result>"


@pytest.mark.parametrize(
    ("verb", "asked", "sentence"),
    [
        ("PUT", 1, r"writes over an object though it is told not to \(If-None-Match on PUT\)"),
        ("PUT", 3, r"does not compare an object with the one that was read \(If-Match on PUT\)"),
        ("POST", 1, r"writes over an object by an upload in parts though it is told not to"),
    ],
)
def test_a_server_that_ignores_a_condition_is_refused_by_name(
    s3: S3Server, address: str, verb: str, asked: int, sentence: str
) -> None:
    s3.fail(f"{verb} *probe-*", 200, skip=asked, body=WRITTEN)
    with pytest.raises(StoreError, match=f"127.0.0.1:.* cannot keep a store in the bucket .*{sentence}"):
        open_s3(address, "prod")
    s3.heal()
    assert [entry.name for entry in S3Records(f"{address}/prod").list("")] == []
    assert isinstance(open_store(address, "prod"), S3Store)


def test_a_server_that_knows_no_conditions_is_refused_by_name(s3: S3Server, address: str) -> None:
    s3.fail("PUT *probe-*", 501, "NotImplemented", times=9)
    with pytest.raises(StoreError, match="lacks an operation of S3 that a store needs"):
        open_s3(address, "prod")


def test_the_guarantees_are_checked_once(s3: S3Server, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_s3(address, "prod")
    s3.forget()
    open_s3(address, "prod")
    assert s3.calls == [], "its stamp was read a moment ago"
    monkeypatch.setattr(s3_store, "_stamped", {})
    open_s3(address, "prod")
    assert [call.verb for call in s3.calls] == ["GET"]


def test_another_deployments_store_is_refused(s3: S3Server, address: str) -> None:
    bucket = address.partition("/a prefix")[0]
    S3Records(f"{bucket}/prod").put(
        names.DEPLOYMENT, S3Records(open_s3(address, "other").url).read(names.DEPLOYMENT).data
    )  # type: ignore[union-attr]
    with pytest.raises(StoreError, match="is the store of the deployment 'other', not of 'prod'"):
        open_s3(bucket, "prod")


@pytest.mark.parametrize(
    "address", ["s3://", "s3:///prefix", "s3://A_b/c", "s3://b", "s3://bucket/../x", "s3://fast--x-s3"]
)
def test_an_address_that_names_no_bucket_is_refused(s3: S3Server, address: str) -> None:
    with pytest.raises(UsageError, match=r"names no bucket|cannot be a store|is a directory bucket"):
        open_s3(address, "prod")


def test_an_endpoint_that_is_no_address_is_refused(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "minio:9000")
    with pytest.raises(UsageError, match=r"'minio:9000': give the server's address"):
        open_s3("s3://bucket", "prod")


# Refusals.


def test_a_bucket_that_is_missing_is_told(s3: S3Server) -> None:
    with pytest.raises(
        StoreError, match=r"no bucket bucket-none at http://127.* Make it, with aws s3 mb s3://bucket-n"
    ):
        open_s3("s3://bucket-none/x", "prod")


@pytest.mark.usefixtures("brief")
def test_credentials_that_are_not_valid_are_told(s3: S3Server, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(Denied, match=r"SignatureDoesNotMatch.*\(AWS_ACCESS_KEY_ID\) are not valid at http://127"):
        open_s3(address, "prod")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(Denied, match="InvalidAccessKeyId"):
        open_s3(address, "prod")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(Denied, match=r"no credentials for S3: none in the variables.*AWS_ACCESS_KEY_ID and"):
        open_s3(address, "prod")


def test_a_permission_that_is_missing_is_told(s3: S3Server, store: S3Store) -> None:
    s3.fail("GET *", 403, "AccessDenied")
    with pytest.raises(Denied, match=r"Cannot read a .*AccessDenied.* lack a permission. A store needs s3:GetObject"):
        store.read("a")


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("status", [0, 500, 503])
def test_a_server_that_does_not_answer_is_unreachable(s3: S3Server, store: S3Store, status: int) -> None:
    s3.fail("*", status, "SlowDown", times=99)
    for call in (lambda: store.read("a"), lambda: store.put("a", b"x"), lambda: list(store.list(""))):
        with pytest.raises(Unreachable, match=r"Try again later"):
            call()
    assert store.hint("beats/a", b"x") is False


@pytest.mark.parametrize(
    ("status", "code"),
    [(0, ""), (500, "InternalError"), (503, "SlowDown"), (409, "ConditionalRequestConflict"), (400, "RequestTimeout")],
)
def test_what_may_pass_is_asked_again(s3: S3Server, store: S3Store, status: int, code: str) -> None:
    s3.fail("*", status, code, times=2)
    made = store.create("a", b"x")
    assert made is not None
    s3.fail("*", status, code)
    assert store.swap("a", b"y", made) is not None
    s3.fail("*", status, code)
    assert store.read("a").data == b"y"  # type: ignore[union-attr]
    s3.fail("*", status, code)
    assert [entry.name for entry in store.list("a")] == ["a"]
    s3.fail("*", status, code)
    assert store.delete("a")


# Answers that are lost.


def test_a_writer_whose_answer_was_lost_finds_out_that_it_wrote(s3: S3Server, store: S3Store) -> None:
    s3.fail("PUT *verdict.json", after=True)
    made = store.create("jobs/a/verdict.json", b"mine")
    assert made is not None
    assert store.read("jobs/a/verdict.json").generation == made  # type: ignore[union-attr]
    s3.fail("PUT *verdict.json", after=True)
    second = store.swap("jobs/a/verdict.json", b"mine", made)
    assert second not in (None, made)
    assert store.read("jobs/a/verdict.json").generation == second  # type: ignore[union-attr]


def test_a_writer_whose_request_was_lost_does_not_take_others_bytes_for_its_own(s3: S3Server, store: S3Store) -> None:
    made = store.create("taken", b"the same")
    s3.fail("PUT *taken")
    assert store.create("taken", b"the same") is None
    assert made is not None
    assert store.swap("taken", b"the same", made) is not None
    s3.fail("PUT *taken")
    assert store.swap("taken", b"the same", made) is None


def test_an_upload_in_parts_whose_answer_was_lost_has_won(
    s3: S3Server, store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_records, "LARGE", 6 << 20)
    monkeypatch.setattr(s3_records, "PART", 5 << 20)
    data = os.urandom(12 << 20)
    (tmp_path / "large").write_bytes(data)
    s3.fail("PUT *large", after=True)
    s3.fail("POST *large", after=True, times=2)  # of the begin, and of the end
    assert store.upload("large", str(tmp_path / "large")) is True
    assert store.upload("large", str(tmp_path / "large")) is False
    assert store.find("large").size == len(data)  # type: ignore[union-attr]
    s3.cut("GET *large", 1_200_000)
    s3.fail("GET *large", times=2)
    store.download("large", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == data
    assert store.renew("large")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "large"]


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_loses_no_increment(s3: S3Server, store: S3Store) -> None:
    store.create("counter", b"0")
    done = threading.Event()
    added: list[int] = []

    def add() -> None:
        mine = S3Store(store.url, "prod")
        while not done.is_set():
            record = mine.read("counter")
            assert record is not None
            if mine.swap("counter", b"%d" % (int(record.data) + 1), record.generation) is not None:
                added.append(1)

    writers = [threading.Thread(target=add) for _ in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(3):
            time.sleep(0.3)
            s3.kill()
            s3.start()
        time.sleep(0.3)
    finally:
        done.set()
        for writer in writers:
            writer.join()
    record = store.read("counter")
    assert record is not None
    # Of a swap whose answer a kill took, and on whose value another writer built before it was asked again, nothing is
    # left that tells its writer: it may count as refused.
    assert 3 < len(added) <= int(record.data) <= len(added) + 3 * len(writers)


# Content.


def test_bytes_that_arrive_otherwise_are_read_again_and_then_refused(
    s3: S3Server, store: S3Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.put("small", b"whole")
    s3.garble("GET *small")
    assert store.read("small").data == b"whole"  # type: ignore[union-attr]
    s3.garble("LIST *")
    assert [entry.name for entry in store.list("small")] == ["small"]
    monkeypatch.setattr(s3_requests, "PATIENCE", 0.5)
    s3.garble("GET *small", times=99)
    with pytest.raises(Corrupt, match="its checksum differs"):
        store.read("small")
    with pytest.raises(Corrupt, match="its checksum differs"):
        store.download("small", str(tmp_path / "small"))
    assert list(tmp_path.iterdir()) == []


def test_json_is_json_to_those_who_read_the_bucket_by_other_tools(s3: S3Server, store: S3Store) -> None:
    import json

    store.put("a.json", b'{"a": 1}')
    reply, _ = store.requests.ask("GET", "a prefix/prod/a.json")
    assert reply.data != b'{"a": 1}'
    assert json.loads(reply.data) == {"a": 1}


def test_what_other_tools_wrote_is_read_as_it_is(s3: S3Server, store: S3Store, tmp_path: Path) -> None:
    from kinetic_orchestration.host.machine.s3.requests import Body

    data = os.urandom(100_000)
    reply, _ = store.requests.ask("PUT", "a prefix/prod/theirs", body=Body(data))
    assert reply.status == 200
    assert store.read("theirs").data == data  # type: ignore[union-attr]
    store.download("theirs", str(tmp_path / "theirs"))
    assert (tmp_path / "theirs").read_bytes() == data
    plain = S3Records(f"{store.url}/plain", plain=True)
    plain.put("ours", data)
    reply, _ = store.requests.ask("GET", "a prefix/prod/plain/ours")
    assert reply.data == data
    assert [(entry.name, entry.size) for entry in plain.list("")] == [("ours", len(data))]


# What it costs.


def test_a_listing_of_signals_reads_only_those_that_are_new(s3: S3Server, store: S3Store) -> None:
    writer = S3Store(store.url, "prod")
    for n in range(20):
        writer.signal(f"beats/job-1/1/{n}", b"first")
    s3.forget()
    assert len(list(store.signals("beats/"))) == 20
    assert len(s3.calls) == 21
    s3.forget()
    writer.signal("beats/job-1/1/7", b"first")
    writer.delete("beats/job-1/1/8")
    s3.forget()
    assert {signal.name: signal.data for signal in store.signals("beats/")}["beats/job-1/1/7"] == b"first"
    assert [call.verb for call in s3.calls] == ["LIST", "GET"]


def test_a_writer_of_signals_does_not_read_its_own_again(s3: S3Server, store: S3Store) -> None:
    """A host's own beat is the only new one, if it is alone."""
    store.signal("beats/job-1/1/0", b"first")
    list(store.signals("beats/"))
    s3.forget()
    store.signal("beats/job-1/1/0", b"second")
    assert [signal.data for signal in store.signals("beats/")] == [b"second"]
    assert [call.verb for call in s3.calls] == ["PUT", "LIST"]


@pytest.mark.parametrize("verb", ["create", "swap", "put", "read", "signal", "list"])
def test_a_call_is_one_request(s3: S3Server, store: S3Store, verb: str) -> None:
    made = store.create("a", b"x") or 0
    calls = {
        "create": lambda: store.create("b", b"x"),
        "swap": lambda: store.swap("a", b"y", made),
        "put": lambda: store.put("a", b"y"),
        "read": lambda: store.read("a"),
        "signal": lambda: store.signal("beats/a", b"y"),
        "list": lambda: list(store.list("")),
    }
    s3.forget()
    assert calls[verb]()
    assert len(s3.calls) == 1


# Time.


@pytest.mark.parametrize("skew", [7200.0, -7200.0])
def test_the_servers_clock_counts(s3: S3Server, store: S3Store, skew: float) -> None:
    s3.skew = skew
    store.read("a")
    assert store.now() == pytest.approx(time.time() + skew, abs=3)


def test_a_machine_whose_clock_is_wrong_signs_by_the_servers(
    s3: S3Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server refuses signatures that are more than 15 minutes old; the first one, since nothing is known yet."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 7200)
    monkeypatch.setenv("AWS_SESSION_NAME", "fresh")  # other settings: a client that knows no time
    store = S3Records(f"{address}/prod")
    assert store.create("a", b"x") is not None
    assert [call.status for call in s3.calls if call.key.endswith("/a")] == [403, 200]
    assert store.now() == pytest.approx(right(), abs=3)


def test_interrupted_uploads_are_swept_where_the_server_lists_them(s3: S3Server, store: S3Store) -> None:
    """MinIO lists those of one exact name only, and removes them after a day by itself."""
    assert store.sweep() == 0
    s3.fail("GET ", 200, body=BEGUN)
    s3.forget()
    assert store.sweep() == 1
    assert s3.calls[-1].verb == "DELETE"


@pytest.mark.parametrize("may_list", [True, False])
def test_now_and_then_a_submit_sweeps_them_too_or_does_without_if_it_may_not(
    s3: S3Server, store: S3Store, tmp_path: Path, may_list: bool, recwarn: pytest.WarningsRecorder
) -> None:
    if may_list:
        s3.fail("GET ", 200, body=BEGUN)
    else:
        s3.fail("GET ", 403, "AccessDenied", times=9)
    known = Settings(tmp_path, store.url, "prod", "local")
    reaper._pass(store, LocalBackend(tmp_path, 1, store.url, "prod"), known, tmp_path / "marker")
    assert [call.key for call in s3.calls if call.verb == "DELETE"] == ["a%20prefix/prod/x"] * may_list
    assert not recwarn.list and (tmp_path / "marker").exists()


@pytest.fixture(autouse=True)
def forgets_stamps() -> Iterator[None]:
    yield
    s3_store._stamped.clear()
