"""Checkpoints in a bucket: through the agent's own client, by way of this machine's disk."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.agent import wire
from kinetic_orchestration.agent.cloud import CloudRecords
from kinetic_orchestration.errors import CheckpointError
from kinetic_orchestration.packaging import agent
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.storage import StorageServer
from kinetic_orchestration.training import mirror, shelf
from kinetic_orchestration.training.shelf import Shelf
from tests.agent.on_vms import constants
from tests.cloud.cases import nodes, wait_until
from tests.training.conftest import Host
from tests.training.test_hosts import UNHURRIED, marks

Become = Callable[..., Host]


@pytest.fixture(scope="module")
def storage() -> Iterator[StorageServer]:
    with StorageServer() as server:
        yield server


@pytest.fixture
def bucket(storage: StorageServer, host: Become, monkeypatch: pytest.MonkeyPatch) -> str:
    """A checkpoint_dir in a bucket of its own, of a host."""
    host()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    address = f"{storage.make_bucket('b-' + os.urandom(6).hex())}/prod/checkpoints/key"
    monkeypatch.setenv("KINETIC_CHECKPOINT_DIR", address)
    return address


def steps(address: str) -> list[int]:
    found = Shelf(f"{address}/t", "reader")
    try:
        return sorted(one.step for one in found.found() if one.committed)
    finally:
        found.close()


def train(until: int, **options: Any) -> int:
    with kinetic.Training(**{"every": 5, "name": "t", "keep": 2, **options}) as training:
        state, begun = training.restore({"w": np.zeros(100_000), "n": 0})
        for number in range(begun, until):
            state = {"w": state["w"] + number, "n": state["n"] + 1}
            training.step(number + 1, state)
        assert (state["w"] == sum(range(until))).all()
        assert state["n"] == until
    return begun


@pytest.fixture
def files(bucket: str, host: Become, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """The folder of such an attempt's host; whoever had it before is killed."""
    made: list[Path] = []

    def killed() -> None:
        for mirror_ in mirror._mirrors.values():
            mirror_._sent = mirror_._seen()
            mirror_.close()
        mirror._mirrors.clear()

    def become(attempt: int, index: int = 0) -> Path:
        killed()
        host(attempt)
        monkeypatch.setenv("KINETIC_CHECKPOINT_DIR", bucket)
        monkeypatch.setenv("KINETIC_HOST_INDEX", str(index))
        made.append(Path(kinetic.current().checkpoint_path()))
        return made[-1]

    yield become
    killed()
    assert not any(folder.exists() for folder in made), "it left something on this disk"


def there(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def is_sent() -> bool:
    (one,) = mirror._mirrors.values()
    return one._sent == one._seen() != {}


def test_files_of_a_trainer_come_back_as_they_last_were_at_rest(
    files: Callable[..., Path], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(1)
    (folder / "checkpoint-1").mkdir()
    for name in ("checkpoint-1/model", "checkpoint-1/state", "log"):
        (folder / name).write_text(name)
    wait_until(is_sent, 30)
    monkeypatch.setattr(mirror, "QUIET", 1e9)  # half-written when it is killed
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2/model").write_text("half")

    second = files(2)
    assert second != folder
    assert there(second) == {name: name for name in ("checkpoint-1/model", "checkpoint-1/state", "log")}
    shutil.rmtree(second / "checkpoint-1")
    (second / "checkpoint-3").mkdir()
    (second / "checkpoint-3/model").write_text("3")
    mirror.close()  # as at the program's end
    other = files(2, index=1)
    (other / "checkpoint-3/random-1").write_text("of host 1")
    (other / "log").write_text("of host 1")
    mirror.close()

    records = CloudRecords(f"{bucket}/files")
    assert len(list(records.list("host-00001/file-"))) == 1, "each host sends its own, and the same bytes once"
    records.close()

    wanted = {"checkpoint-3/model": "3", "checkpoint-3/random-1": "of host 1", "log": "log"}
    assert there(files(3)) == wanted
    assert there(files(3, index=1)) == {**wanted, "log": "of host 1"}, "its own come first"


def test_files_that_were_changed_in_the_bucket_are_not_taken_for_whole(files: Callable[..., Path], bucket: str) -> None:
    folder = files(1)
    (folder / "model").write_text("1234")
    mirror.close()
    records = CloudRecords(f"{bucket}/files")
    (blob,) = (entry.name for entry in records.list("host-00000/file-"))
    records.put(blob, b"1235")
    with pytest.raises(CheckpointError, match=r"model, is not what was sent: remove gs://.*/files to begin anew"):
        files(2)
    (record,) = (entry.name for entry in records.list("host-00000/") if entry.name.endswith(".json"))
    for path in ("../outside", "/etc/outside", "a/../../outside", ""):
        records.put(record, wire.encode({"files": {path: ["0" * 64, 4]}}))
        with pytest.raises(CheckpointError, match="is not a record of mirrored files"):
            files(2)
    records.close()


def test_a_training_goes_on_from_a_bucket_and_leaves_nothing_on_this_disk(
    bucket: str, host: Become, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    assert train(23) == 0
    assert steps(bucket) == [15, 20]
    host(attempt=2)
    monkeypatch.setenv("KINETIC_CHECKPOINT_DIR", bucket)
    assert train(31) == 20
    assert steps(bucket) == [25, 30]
    assert list(scratch.iterdir()) == []


def test_what_is_torn_in_a_bucket_is_passed_over(bucket: str, host: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    train(12)
    found = Shelf(f"{bucket}/t", "other")
    part = next(entry for entry in found.records.list("step-000000000010") if entry.name.endswith(".safetensors"))
    data = bytearray(found.records.read(part.name).data)
    data[-1] ^= 1
    found.records.put(part.name, bytes(data))
    found.close()
    host(attempt=2)
    monkeypatch.setenv("KINETIC_CHECKPOINT_DIR", bucket)
    assert train(14) == 5


def test_a_disk_too_small_for_the_way_to_the_bucket_is_told_before_it_is_full(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "SPARE", 1 << 60)
    with pytest.raises(
        CheckpointError, match=r"goes to the bucket, has [\d.]+ GB free: set TMPDIR to a folder with more room"
    ):
        train(12, on_full_disk="stop")
    assert steps(bucket) == []


def take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are preempted have the time that a busy machine takes: by what their agents tell them, and by what
    they know themselves when their machine's own SIGTERM is there first."""
    constants(monkeypatch, "rules", GRACE=UNHURRIED)
    start = "    from kinetic_orchestration.agent.child import main\n"
    assert agent._CHILD.count(start) == 1
    known = f"    from kinetic_orchestration.agent import rules\n\n    rules.GRACE = {UNHURRIED!r}\n"
    monkeypatch.setattr(agent, "_CHILD", agent._CHILD.replace(start, known + start))


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_four_hosts_on_cloud_tpu_that_are_preempted_go_on_at_their_last_step(
    home: Path, jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_time(monkeypatch)
    with Emulator(zones=("us-west4-a",), python=sys.executable) as cloud:
        for name, value in {**cloud.environ(), "KINETIC_ZONES": "us-west4-a"}.items():
            monkeypatch.setenv(name, value)
        folder = tmp_path / "marks"
        job = kinetic.run(accelerator="v5e-16", spot=True)(jobs.counts).run_async(
            40, 0.05, None, str(folder), uneven=0.2, cut_off=True
        )
        wait_until(lambda: len(marks(folder, "runs")) == 4, "all hosts' training", within=200)
        cloud.preempt(nodes(cloud, job)[0], notice=120.0)
        found = job.result(timeout=400)
        ended = set(marks(folder, "ended").values())  # on a busy machine some are killed when they have kept their part
        assert len(ended) == 1, job.logs()
        assert set(marks(folder, "began", 2).values()) == ended, job.logs()
        assert (found["attempt"], {str(found["begun"])}) == (2, ended)
        cloud.wait_until_empty(150)
        cloud.ledger.assert_nothing_left()
