"""Data of a bucket that two hosts read where they are: disjoint shares, the next record after a kill, and no other content."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import JobError
from kinetic_orchestration.host.machine.bucket_records import Bucket
from kinetic_orchestration.testing import Emulator
from tests.support.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turn(8)]

SHARDS, RECORDS = 4, 10
PROGRAM = '''
import os, signal, time

import kinetic_orchestration as kinetic


def train(rows, kill_at):
    """Reads the records of this host, one at a step: every host_count-th."""
    host, names = kinetic.current(), list(rows.files)
    per_file = rows.files[names[0]] // 8
    training = kinetic.Training(every=4, name="rows")
    state, done = training.restore({"sum": 0})
    for number in range(done, len(names) * per_file // host.host_count):
        record = number * host.host_count + host.host_index
        with rows.open(names[record // per_file]) as file:
            file.seek(record % per_file * 8)
            value = int(file.read(8))
        print(f"attempt {host.attempt} step {number} record {value}", flush=True)
        if host.attempt == 1 and number == kill_at and host.host_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        state = {"sum": state["sum"] + value}
        training.step(number + 1, state)
    training.finish(state)
    return state["sum"]


def waits(rows, path):
    """Ends its first attempt once a file is there."""
    print("waits", flush=True)
    while not os.path.exists(path):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
'''


@pytest.fixture
def program(tmp_path: Path) -> Any:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "streaming_jobs.py").write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("streaming_jobs", folder / "streaming_jobs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def value(record: int) -> int:
    return 7 * record + 1


def fill(cloud: Emulator) -> tuple[Bucket, kinetic.Data]:
    bucket = Bucket(cloud.storage.make_bucket("large-data").removeprefix("gs://"))
    for shard in range(SHARDS):
        records = range(shard * RECORDS, (shard + 1) * RECORDS)
        bucket.write(f"rows/shard-{shard}", b"".join(b"%08d" % value(record) for record in records))
    return bucket, kinetic.Data(f"gs://{bucket.name}/rows/", stream=True)


def test_two_hosts_read_disjoint_shares_go_on_with_the_next_record_and_never_read_other_content(
    cloud: Emulator, program: Any, tmp_path: Path
) -> None:
    bucket, data = fill(cloud)
    cloud.storage.forget()
    options: dict[str, Any] = {"accelerator": "v4-8", "retry": kinetic.Retry(user=1, infra=1)}
    job = kinetic.run(**options)(program.train).run_async(data, 10)
    assert job.result(timeout=240) == sum(value(record) for record in range(0, SHARDS * RECORDS, 2))
    found = re.findall(r"attempt (\d) step (\d+) record (\d+)", job.logs() or "")
    read: dict[int, set[tuple[int, int]]] = {}
    for _, step, record in found:
        read.setdefault(int(record), set()).add((int(step), int(record)))
    assert sorted(read) == [value(record) for record in range(SHARDS * RECORDS)]
    assert all(len(steps) == 1 for steps in read.values()), "a step that is done again has the same record"
    begun = min(int(step) for attempt, step, _ in found if attempt == "2")
    assert begun in (4, 8), "after a checkpoint: that of step 8 may not have been whole when the host died"
    asked = [call for call in cloud.storage.calls if call.where.startswith("large-data/rows/shard")]
    assert asked and all(call.span for call in asked), "ranges, and no copies"

    go = tmp_path / "go"
    job = kinetic.run(**{**options, "accelerator": "v5e-1"})(program.waits).run_async(data, str(go))
    wait_until(lambda: "waits" in (job.logs() or ""), within=120.0)
    bucket.write("rows/shard-2", b"%08d" % 0 * RECORDS)
    bucket.write("rows/shard-new", b"%08d" % 0 * RECORDS)
    go.touch()
    with pytest.raises(JobError, match=r"is not what the job was submitted with: of its files, 1 changed \(shard-2\)"):
        job.result(timeout=240)
    assert (job.logs() or "").count("waits") == 1
    assert "of its files, 1 changed (shard-2), 1 new (shard-new). The job reads what was there" in (job.logs() or "")
    bucket.close()
