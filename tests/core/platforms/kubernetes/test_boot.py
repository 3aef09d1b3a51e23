"""The program in a pod's manifest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_orchestration.host.machine.pod import start as pod_start
from kinetic_orchestration.host.machine.s3.records import S3Records
from kinetic_orchestration.platforms.kubernetes import boot
from kinetic_orchestration.protocol import names, wire
from tests.support.s3_server import FIRST_BUILDS, S3Server, s3, s3_server

__all__ = ["s3", "s3_server"]

pytestmark = pytest.mark.fast

JOB, AGENT = "job-of-a-test", "0123456789abcdef" * 4


def started(folder: Path, store: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The first program of a pod, by a plain Python and with what the manifest has, once it has ended."""
    orders = {
        "store": store, "job": JOB, "attempt": 1, "hosts": 1, "hosts_per_slice": 1, "deadline": 0.0, "agent": AGENT,
        "wire": wire.WIRE, "boot": "attempt-1",
    }  # fmt: skip
    told = {pod_start.ORDERS: json.dumps(orders), "KINETIC_SLICE": "0", "JOB_COMPLETION_INDEX": "0"}
    nowhere = {"HOME": str(folder), "KINETIC_ROOT": str(folder), "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-I", "-S", "-c", boot.LOADER, boot.program(store)]
    return subprocess.run(command, env={**nowhere, **told, **environ}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("store", ["gs://bucket/prefix", "s3://bucket/prefix"])
def test_it_has_no_letter_that_kubernetes_expands(store: str) -> None:
    """In a container's command `$$` becomes `$`, and `$(NAME)` a variable's value."""
    assert "$" not in boot.LOADER + boot.program(store)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "There are no credentials for S3"),
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "'minio:9000': give the server's address"),
    ],
)
def test_variables_that_lead_to_no_store_on_s3_are_told_in_the_pods_log(
    tmp_path: Path, environ: dict[str, str], said: str
) -> None:
    done = started(tmp_path, "s3://bucket/prefix/prod", environ)
    assert (done.returncode, done.stderr) == (wire.EXIT_CODES[wire.INFRASTRUCTURE], "")
    first, second = done.stdout.splitlines()
    assert said in first
    assert second.startswith("kinetic: the attempt could not be ended: ") and said in second


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
