"""The program in a pod's manifest."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.host.machine.pod import account, last_words
from kinetic_orchestration.host.machine.pod import start as pod_start
from kinetic_orchestration.host.machine.s3.records import S3Records
from kinetic_orchestration.platforms.kubernetes import boot
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.support.s3_server import FIRST_BUILDS, S3Server, s3, s3_server

__all__ = ["s3", "s3_server"]

pytestmark = pytest.mark.fast

JOB, AGENT = "job-of-a-test", "0123456789abcdef" * 4


def started(folder: Path, store: str, environ: dict[str, str], **asked: Any) -> subprocess.CompletedProcess[str]:
    """The first program of a pod, by a plain Python and with what the manifest has, once it has ended."""
    orders = {
        "store": store, "job": JOB, "attempt": 1, "hosts": 1, "hosts_per_slice": 1, "deadline": 0.0, "agent": AGENT,
        "wire": wire.WIRE, "boot": "attempt-1", "account": "training/trainer", **asked,
    }  # fmt: skip
    told = {pod_start.ORDERS: json.dumps(orders), "KINETIC_SLICE": "0", "JOB_COMPLETION_INDEX": "0"}
    nowhere = {"HOME": str(folder), "KINETIC_ROOT": str(folder), "AWS_EC2_METADATA_DISABLED": "true"}
    last_words_of(folder).parent.mkdir(exist_ok=True)
    last_words_of(folder).touch()  # as a kubelet does
    command = [sys.executable, "-I", "-S", "-c", boot.LOADER, boot.program(store)]
    return subprocess.run(command, env={**nowhere, **told, **environ}, capture_output=True, text=True, timeout=60)


def last_words_of(folder: Path) -> Path:
    return folder / last_words.FILE


@pytest.mark.parametrize("store", ["gs://bucket/prefix", "s3://bucket/prefix"])
def test_it_has_no_letter_that_kubernetes_expands(store: str) -> None:
    """In a container's command `$$` becomes `$`, and `$(NAME)` a variable's value."""
    assert "$" not in boot.LOADER + boot.program(store)


@pytest.mark.parametrize(
    ("environ", "said", "cause"),
    [
        ({}, "There are no credentials for S3", wire.INFRASTRUCTURE),  # another pod may get some
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "'minio:9000': give the server's address", wire.CONFIGURATION),
        (
            {"AWS_ENDPOINT_URL": "http://me:hunter2@minio:9000"},
            "has a name or a password in it",
            wire.CONFIGURATION,
        ),
        (
            {"AWS_ACCESS_KEY_ID": "key-of-a-test", "AWS_SECRET_ACCESS_KEY": "x", "AWS_SESSION_TOKEN": "hunter2\nAB"},
            "have a character in their session token that none has",
            wire.CONFIGURATION,
        ),
    ],
)
def test_variables_that_lead_to_no_store_on_s3_are_told_in_the_pods_log_and_in_its_status(
    tmp_path: Path, environ: dict[str, str], said: str, cause: str
) -> None:
    done = started(tmp_path, "s3://bucket/prefix/prod", environ)
    assert (done.returncode, done.stderr) == (wire.EXIT_CODES[cause], "")
    first, second = done.stdout.splitlines()
    assert said in first
    assert second.startswith("kinetic: the attempt could not be ended: ") and said in second
    left = last_words_of(tmp_path).read_text()
    assert left.startswith("host 0 could not start: ") and said in left
    assert "hunter2" not in done.stdout + left


@pytest.mark.slow
def test_the_answer_with_the_agent_tells_a_pod_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another request, and on a real bucket another connection, would come before all that the pod is for."""
    data = b"the agent, which is too late"
    agent = hashlib.sha256(data).hexdigest()
    with StorageServer() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        records = CloudRecords(storage.make_bucket("bucket") + "/prod")
        records.put(names.blob(agent), data)
        storage.forget()
        environ = {"STORAGE_EMULATOR_HOST": storage.url}
        done = started(tmp_path, records.url, environ, agent=agent, deadline=1.0)
        asked = [(call.verb, call.where) for call in storage.calls]
        records.close()
    assert (done.returncode, done.stderr) == (wire.EXIT_CODES[wire.DEADLINE], "")
    verdict = f"bucket/prod/{names.verdict(JOB, 1)}"
    assert [where for _, where in asked] == [f"bucket/prod/{names.blob(agent)}", verdict], asked


@pytest.mark.slow
def test_a_bucket_that_denies_the_agent_ends_the_attempt_at_once_and_for_good(tmp_path: Path) -> None:
    """Nothing that is tried again would change it; an imitated pod without an account asks no metadata server for one."""
    with StorageServer() as storage:
        store = f"{storage.make_bucket('bucket')}/prod"
        storage.forbid("get *")
        began = time.monotonic()
        done = started(tmp_path, store, {"STORAGE_EMULATOR_HOST": storage.url})
        assert time.monotonic() - began < 4.0
        verdicts = [call.where for call in storage.calls if call.verb == "insert"]
    assert (done.returncode, done.stderr) == (wire.EXIT_CODES[wire.CONFIGURATION], "")
    assert "does not have storage.objects.get access" in last_words_of(tmp_path).read_text()
    assert verdicts == [f"bucket/prod/{names.verdict(JOB, 1)}"]


@pytest.mark.slow
def test_a_pod_in_a_cluster_without_a_metadata_server_says_so_at_once(tmp_path: Path) -> None:
    """No address of the network leads to one: it is not waited for, as one that is just starting is."""
    with StorageServer() as storage:
        store = f"{storage.make_bucket('bucket')}/prod"
        environ = {"STORAGE_EMULATOR_HOST": storage.url, "GCE_METADATA_HOST": "255.255.255.255"}
        began = time.monotonic()
        done = started(tmp_path, store, environ)
        took = time.monotonic() - began
    assert (done.returncode, done.stderr) == (wire.EXIT_CODES[wire.CONFIGURATION], "")
    told = last_words_of(tmp_path).read_text()
    assert "this cluster has none (255.255.255.255: " in told and "a store on S3 with KINETIC_STORE" in told
    assert took < 20.0, "it was waited for"


@pytest.mark.parametrize(
    ("said", "absent"),
    [
        ("gaierror: [Errno -2] Name or service not known", True),
        ("OSError: [Errno 113] No route to host", True),
        ("OSError: [Errno 101] Network is unreachable", True),
        ("gaierror: [Errno -3] Temporary failure in name resolution", False),
        ("ConnectionRefusedError: [Errno 111] Connection refused", False),
        ("TimeoutError: timed out", False),
    ],
)
def test_a_metadata_server_that_may_just_be_starting_is_not_taken_for_none(said: str, absent: bool) -> None:
    reply = bootstrap.Reply(0, {}, f"metadata.google.internal: {said}".encode())
    assert account.is_nowhere(reply) is absent
    assert not account.is_nowhere(reply._replace(status=503))


@pytest.mark.slow
@FIRST_BUILDS
def test_a_bucket_on_s3_that_denies_the_agent_ends_the_attempt_at_once_and_for_good(
    s3: S3Server, tmp_path: Path
) -> None:
    records = S3Records(f"{s3.make_bucket()}/prod")
    records.put(names.blob(AGENT), b"the agent")
    s3.fail("GET *", 403, "AccessDenied", times=99)
    environ = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    began = time.monotonic()
    done = started(tmp_path, records.url, environ)
    assert time.monotonic() - began < 20.0
    assert (done.returncode, done.stderr) == (wire.EXIT_CODES[wire.CONFIGURATION], "")
    assert "lack a permission. A store needs s3:GetObject" in last_words_of(tmp_path).read_text()


@pytest.mark.slow
@FIRST_BUILDS
def test_an_agent_on_s3_that_may_not_be_removed_ends_the_attempt_as_any_that_was_changed(
    s3: S3Server, tmp_path: Path
) -> None:
    records = S3Records(f"{s3.make_bucket()}/prod")
    records.put(names.blob(AGENT), b"another")
    s3.fail("DELETE *", 403, "AccessDenied")
    environ = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    done = started(tmp_path, records.url, environ)
    assert (done.returncode, done.stderr) == (wire.EXIT_CODES[wire.CONFIGURATION], "")
    assert "the agent could not be removed from the store: " in done.stdout
    assert "lack a permission. A store needs" in done.stdout
    record = records.read(names.verdict(JOB, 1))
    assert record is not None
    verdict = wire.Verdict.decode(record.data)
    assert (verdict.kind, verdict.cause, verdict.host) == (wire.ABORTED, wire.CONFIGURATION, 0)
    assert f"the agent in {records.url} is not the one that was submitted" in verdict.reason


@pytest.mark.slow
@FIRST_BUILDS
@pytest.mark.parametrize("wrong", ["bytes", "size"])
def test_an_agent_on_s3_whose_bytes_are_not_those_that_were_written_is_removed_within_seconds(
    s3: S3Server, tmp_path: Path, wrong: str
) -> None:
    """Its metadata are as they were, so it does not even agree with its own checksum; or it has more bytes than any."""
    records = S3Records(f"{s3.make_bucket()}/prod")
    records.put(names.blob(AGENT), b"the agent")
    if wrong == "bytes":
        s3.rot(records.requests.place.bucket, f"prod/{names.blob(AGENT)}")
    else:
        records.put(names.blob(AGENT), bytes(bootstrap.LARGEST + 1))
    environ = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    began = time.monotonic()
    done = started(tmp_path, records.url, environ)
    assert time.monotonic() - began < 20.0
    assert (done.returncode, done.stderr) == (wire.EXIT_CODES[wire.CONFIGURATION], "")
    record = records.read(names.verdict(JOB, 1))
    assert record is not None
    told = f"the agent in {records.url} is not the one that was submitted"
    assert told in wire.Verdict.decode(record.data).reason
    assert told in last_words_of(tmp_path).read_text()
    assert records.create(names.blob(AGENT), b"the agent") is not None, "it would never be sent again"
