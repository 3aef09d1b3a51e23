"""Data that are read where they are: the objects that were there at submission, and no other ones, from a real server."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kinetic_orchestration.errors import DataChanged, DataNotFound, UsageError
from kinetic_orchestration.host.machine.bucket_records import Bucket
from kinetic_orchestration.host.prepare.data import held
from kinetic_orchestration.packaging.data import streams
from kinetic_orchestration.plan.configuration import settings
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.program.reading import streamed
from kinetic_orchestration.program.reading.streamed import StreamedData, opened
from kinetic_orchestration.protocol.content import pins
from kinetic_orchestration.protocol.records.base import RecordsError
from kinetic_orchestration.testing.storage_server.server import StorageServer

A, B = os.urandom(700_000), b"the second"


@pytest.fixture(scope="module")
def storage() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


@pytest.fixture
def bucket(storage: StorageServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket with two shards in a folder, and something beside it."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    found = Bucket(storage.make_bucket("b-" + os.urandom(6).hex()).removeprefix("gs://"))
    for name, data in {"rows/a": A, "rows/deep/b": B, "rows/": b"", "rows-of-others/c": b"c"}.items():
        found.write(name, data)
    storage.forget()
    yield found
    found.close()
    storage.heal()


def pinned(bucket: Bucket, path: str = "rows/") -> pins.Pinned:
    return streams.find(Data(f"gs://{bucket.name}/{path}", stream=True), settings.load())


def data(found: pins.Pinned, folder: Path) -> StreamedData:
    path = folder / found.digest
    path.write_bytes(found.encode())
    return StreamedData(str(path))


def test_the_address_has_the_files_that_were_there_and_reads_their_ranges(
    bucket: Bucket, storage: StorageServer, tmp_path: Path
) -> None:
    found = pinned(bucket)
    assert [(file.name, file.size) for file in found.files] == [("a", len(A)), ("deep/b", len(B))]
    assert all(file.mark.startswith("crc32c:") and file.generation for file in found.files)
    rows = data(found, tmp_path)
    assert rows == f"gs://{bucket.name}/rows/" and dict(rows.files) == {"a": len(A), "deep/b": len(B)}
    storage.forget()
    with rows.open("a") as file:
        assert file.seek(-9, os.SEEK_END) == len(A) - 9 and file.read() == A[-9:] and file.read(1) == b""
        file.seek(3)
        assert file.read(4) == A[3:7] and file.tell() == 7
        assert file.seek(len(A) + 5) and file.read() == b""
    spans = [call.span for call in storage.calls if call.verb == "get"]
    assert spans == [f"bytes={len(A) - 9}-{len(A) - 1}", f"bytes=3-{3 + (256 << 10) - 1}"]
    with rows.open("deep/b") as file:
        assert file.read() == B
    with pytest.raises(UsageError, match="has no file 'c': it has a, deep/b"):
        rows.open("c")


def test_workers_of_a_loader_get_the_same_by_a_pickle(bucket: Bucket, tmp_path: Path) -> None:
    rows = data(pinned(bucket), tmp_path)
    twin = pickle.loads(pickle.dumps(rows))
    assert type(twin) is StreamedData and (twin, twin.digest, twin.files) == (rows, rows.digest, rows.files)
    with twin.open("deep/b") as file:
        assert file.read() == B


def test_where_its_list_is_not_a_pickle_is_the_address_so_that_a_result_that_holds_it_can_be_read(
    bucket: Bucket, tmp_path: Path
) -> None:
    found = pinned(bucket)
    rows = data(found, tmp_path)
    kept = pickle.dumps({"rows": rows})
    (tmp_path / found.digest).unlink()
    assert pickle.loads(kept) == {"rows": f"gs://{bucket.name}/rows/"}


def test_a_folder_that_has_grown_beyond_all_bounds_is_not_said_to_have_lost_files(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pinned(bucket)
    monkeypatch.setattr(held, "MOST", 2)
    for number in range(4):
        bucket.write(f"rows/0{number}", b"new")
    assert "has more than 2 files now, too many" in held.difference(found, new=False)


def test_an_object_that_is_replaced_is_an_error_at_the_next_read_and_before_the_start(
    bucket: Bucket, tmp_path: Path
) -> None:
    found = pinned(bucket)
    rows = data(found, tmp_path)
    with rows.open("a") as file:
        assert file.read(10) == A[:10]
        bucket.write("rows/a", A[::-1])  # of the same size
        file.seek(400_000)
        with pytest.raises(DataChanged, match=r"rows/a in gs://.* is another object, or gone.*Submit the job again"):
            file.read(10)
    with pytest.raises(DataChanged, match=r"of its files, 1 changed \(a\)"):
        rows.check()
    assert "1 changed (a)" in held.difference(found, new=False)
    again = pinned(bucket)
    assert again.digest != found.digest and held.difference(again) == ""


def test_what_is_gone_or_new_is_named_and_what_is_new_concerns_only_readers_of_the_address(
    bucket: Bucket, tmp_path: Path
) -> None:
    found = pinned(bucket)
    bucket.write("rows/new", b"new")
    assert held.difference(found, new=False) == ""
    assert "1 new (new). The job reads what was there when it was submitted" in held.news(found)
    with pytest.raises(DataChanged, match=r"of its files, 1 new \(new\)"):
        data(found, tmp_path).check()
    bucket.remove("rows/deep/b")
    assert "1 gone (deep/b), 1 new (new)" in held.difference(found)
    with data(found, tmp_path).open("deep/b") as file, pytest.raises(DataChanged, match="or gone"):
        file.read()


def test_one_object_also_at_the_top_of_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("top.bin", b"at the top")
    for path, content in (("top.bin", b"at the top"), ("rows/deep/b", B)):
        rows = data(found := pinned(bucket, path), tmp_path)
        assert held.difference(found) == "" and list(rows.files) == [path.rpartition("/")[2]]
        with rows.open(*rows.files) as file:
            assert file.read() == content


def test_an_answer_that_breaks_off_or_is_refused_for_a_moment_is_asked_for_again(
    bucket: Bucket, storage: StorageServer, tmp_path: Path
) -> None:
    rows = data(pinned(bucket), tmp_path)
    storage.cut(f"get {bucket.name}/rows/a", 1000)
    storage.fail(f"get {bucket.name}/rows/a", 503)
    with rows.open("a") as file:
        assert file.read() == A


class _Unpacking(BaseHTTPRequestHandler):
    """Answers as Cloud Storage does for an object with Content-Encoding: gzip: unpacked and whole, whatever is asked."""

    def do_GET(self) -> None:
        body = b"row\n" * 50
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Goog-Generation", "7")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_an_object_that_comes_unpacked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Unpacking) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        try:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
            for size in (30, 100_000):
                packed = pins.pinned("gs://packed/rows/", [pins.File("a.gz", size, "", "7")])
                with data(packed, tmp_path).open("a.gz") as file, pytest.raises(RecordsError, match="Content-Encoding"):
                    file.read(10)
        finally:
            streamed._buckets.clear()
            server.shutdown()


def test_nothing_and_a_whole_bucket_and_other_clouds_are_refused(bucket: Bucket) -> None:
    with pytest.raises(DataNotFound, match=r"there is nothing at gs://.*/none/"):
        pinned(bucket, "none/")
    with pytest.raises(UsageError, match="is a whole bucket: name a folder"):
        Data(f"gs://{bucket.name}", stream=True)
    with pytest.raises(UsageError, match="only gs:// is read where it is"):
        Data("s3://bucket/rows/", stream=True)
    with pytest.raises(UsageError, match=r"files of the hub are copied.*streaming=True"):
        Data("hf://owner/rows", stream=True)
    with pytest.raises(UsageError, match="give either fuse"):
        Data("gs://bucket/rows/", fuse=True, stream=True)


def test_a_name_that_no_folder_has_refuses_the_whole(bucket: Bucket) -> None:
    bucket.write("rows/x/../../y", b"y")
    with pytest.raises(UsageError, match="would not lie in its own folder"):
        pinned(bucket)


def test_a_list_that_was_changed_is_not_read(bucket: Bucket, tmp_path: Path) -> None:
    found = pinned(bucket)
    path = tmp_path / found.digest
    path.write_bytes(found.encode().replace(b"deep/b", b"deep/c"))
    with pytest.raises(pins.Unpinned, match="is not the one that was sent"):
        opened(str(path))


def test_a_folder_of_this_machine_is_read_where_it_is(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(A)
    (folder / "deep" / "b").write_bytes(B)
    found = streams.find(Data(folder, stream=True), settings.load())
    rows = data(found, tmp_path)
    assert rows == str(folder) and dict(rows.files) == {"a": len(A), "deep/b": len(B)}
    with rows.open("deep/b") as file:
        assert file.read() == B
    rows.check()
    (folder / "new").touch()
    with pytest.raises(DataChanged, match=r"of its files, 1 new \(new\)"):
        rows.check()
    (folder / "new").unlink()
    os.utime(folder / "a", ns=(1, 1))
    with pytest.raises(DataChanged, match="was changed after"):
        rows.open("a")
    shutil.rmtree(folder / "deep")
    with pytest.raises(DataChanged, match="is gone"):
        rows.open("deep/b")
    with pytest.raises(DataChanged, match=r"1 changed \(a\), 1 gone \(deep/b\)"):
        rows.check()
