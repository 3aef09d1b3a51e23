"""Jobs on this machine whose store is on S3-compatible storage: a real MinIO."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import errors
from kinetic_orchestration.host.machine.s3.records import S3Records
from kinetic_orchestration.program.reading.checkpoints import read_checkpoint
from tests.support.page_server import serving
from tests.support.s3_server import FIRST_BUILDS, S3Server, s3, s3_server

__all__ = ["s3", "s3_server"]

pytestmark = [pytest.mark.slow, FIRST_BUILDS]


@pytest.fixture
def bucket(home: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    bucket = s3.make_bucket()
    monkeypatch.setenv("KINETIC_STORE", f"{bucket}/kinetic")
    monkeypatch.setenv("KINETIC_DEPLOYMENT", "prod")
    monkeypatch.setenv("KINETIC_SIGNING_KEY", "a key of these tests, which is long")
    return bucket


@kinetic.run(accelerator="cpu")
def double(x: int) -> int:
    print("hello from the host", flush=True)
    return 2 * x


def test_a_job_returns_its_value_and_its_lines(bucket: str) -> None:
    job = double.run_async(4)
    assert job.result(timeout=60) == 8
    assert "hello from the host" in job.logs()
    assert job.status() is kinetic.JobStatus.SUCCEEDED
    with pytest.raises(ValueError, match="a value error"):
        fails.run_async().result(timeout=60)


@kinetic.run(accelerator="cpu")
def fails() -> None:
    raise ValueError("a value error")


@kinetic.run(accelerator="v5e-16")
def large() -> bytes:
    return bytes(range(256)) * 40_000


@pytest.mark.turn(0)
def test_four_hosts_return_a_large_value(bucket: str) -> None:
    assert large.run_async().result(timeout=90) == bytes(range(256)) * 40_000


@kinetic.run(accelerator="cpu")
def sleeper() -> None:
    print("it sleeps", flush=True)
    time.sleep(600)


@pytest.mark.turn(5)
def test_a_job_is_cancelled(bucket: str) -> None:
    job = sleeper.run_async()
    until = time.monotonic() + 60
    while "it sleeps" not in job.logs():
        assert time.monotonic() < until
        time.sleep(0.2)
    job.cancel()
    with pytest.raises(errors.JobCancelled):
        job.result(timeout=60)


@kinetic.run(accelerator="cpu", retry=kinetic.Retry(user=1))
def train() -> tuple[int, int, str]:
    """Dies once, as soon as step 4 is in the bucket."""
    host = kinetic.current()
    with kinetic.Training(every=2, name="t") as training:
        state, begun = training.restore({"w": np.zeros(1000), "n": 0})
        for step in range(begun, 6):
            state = {"w": state["w"] + 1, "n": step + 1}
            training.step(step + 1, state)
            while host.attempt == 1 and step == 3:
                with contextlib.suppress(errors.CheckpointError):
                    if read_checkpoint(f"{host.checkpoint_dir}/t").step == 4:
                        os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.2)
    return begun, int(state["w"][0]), host.checkpoint_dir


@pytest.mark.turn(1)
def test_a_training_continues_from_its_checkpoint_in_the_bucket(bucket: str) -> None:
    begun, total, place = train.run_async().result(timeout=120)
    assert (begun, total) == (4, 6)
    assert place.startswith(f"{bucket}/kinetic/prod/")
    found = read_checkpoint(f"{place}/t")
    assert found.step == 6
    assert (found.state["w"] == 6).all()


@kinetic.run(accelerator="cpu")
def digest(folder: kinetic.Data) -> dict[str, int]:
    return {
        str(path.relative_to(str(folder))): path.stat().st_size
        for path in Path(str(folder)).rglob("*")
        if path.is_file()
    }


def test_data_are_read_from_a_bucket(bucket: str) -> None:
    theirs = S3Records(bucket, plain=True)
    for name, size in (("set/a.txt", 10), ("set/deep/b.bin", 3_000_000), ("set/empty", 0)):
        theirs.put(name, bytes(size))
    found = digest.run_async(kinetic.Data(f"{bucket}/set/")).result(timeout=60)
    assert found == {"a.txt": 10, "deep/b.bin": 3_000_000, "empty": 0}


def test_the_page_over_a_bucket_on_s3_has_its_jobs_their_lines_and_their_time_line(bucket: str) -> None:
    job = double.run_async(4)
    assert job.result(timeout=60) == 8
    with serving() as page:
        (listed,) = page.ask("/api/jobs").json["rows"]
        assert listed[0] == job.job_id
        (row,) = page.ask(f"/api/rows?ids={job.job_id}").json["rows"]
        assert (row[2], row[3]) == ("SUCCEEDED", "double")
        with page.stream(job.job_id) as events:
            heard = list(events)
    assert ["hello from the host" in str(data) for name, _, data in heard if name == "log"] == [True]
    assert "attempt 1" in next(data for name, _, data in heard if name == "state")["timeline"]
