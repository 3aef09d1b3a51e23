"""Checkpoints in a bucket: through the agent's own client, by way of this machine's disk."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointError
from kinetic_orchestration.host.machine.bucket_records import CloudRecords
from kinetic_orchestration.platforms.shared import agent_zip
from kinetic_orchestration.program.checkpoints import commits, manager, parts, store, trees
from kinetic_orchestration.program.checkpoints.commits import Leaf
from kinetic_orchestration.program.checkpoints.store import open_checkpoints
from kinetic_orchestration.program.checkpoints.tier import mirror
from kinetic_orchestration.protocol import attempt_rules, wire
from kinetic_orchestration.protocol.content.digest import plain_of_file
from kinetic_orchestration.testing import Emulator
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.core.program.checkpoints.test_hosts import UNHURRIED, marks
from tests.core.program.conftest import Host, train
from tests.end_to_end.cloud.cases import nodes
from tests.support.on_vms import constants
from tests.support.waits import wait_until

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
    found = open_checkpoints(f"{address}/t", "reader")
    try:
        return sorted(one.step for one in found.folders() if one.committed)
    finally:
        found.close()


def written_by(hosts: int, store_: store.CheckpointStore) -> commits.Commit:
    """A checkpoint with one array whose rows are spread over the hosts, and one that host 0 wrote for all."""
    rows = 24 // hosts
    leaves = {"rows": Leaf("int32", (24, 5)), "same": Leaf("int32", (3,))}
    told = []
    for host in range(hosts):
        piece = np.arange(24 * 5, dtype=np.int32).reshape(24, 5)[host * rows : (host + 1) * rows]
        part = trees.HostPart(leaves=leaves, dtypes={path: leaf.dtype for path, leaf in leaves.items()})
        part.pieces.append(trees.Piece("rows", (host * rows, 0), (rows, 5), trees._bytes(piece)))
        if host == 0:
            part.pieces.append(trees.Piece("same", (0,), (3,), trees._bytes(np.arange(3, dtype=np.int32))))
        told.append(store_.write(commits.folder(7, store_.writer), host, part))
    record = commits.Commit(7, commits.folder(7, store_.writer), hosts, 0, tuple(told), leaves, samples=224, batch=32)
    assert store_.commit(record)
    return store_.read(record.folder)


@pytest.mark.parametrize("place", ["bucket", "folder"])
def test_a_host_fetches_only_the_parts_of_others_that_have_something_of_its_own(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Twelve hosts' parts are read by six, and four hosts' by twelve; what is the same on all is host 0's."""
    fetched: list[int] = []
    opened = store.CheckpointStore.opened

    def counted(self: Any, record: commits.Commit, host: int, **more: Any) -> Any:
        fetched.append(host)
        return opened(self, record, host, **more)

    monkeypatch.setattr(store.CheckpointStore, "opened", counted)
    for before, after in ((12, 6), (4, 12), (4, 3), (3, 4)):
        there = open_checkpoints(f"{bucket if place == 'bucket' else tmp_path}/{before}-{after}", "job-1")
        record = written_by(before, there)
        assert (record.samples, record.batch) == (224, 32)
        rows = 24 // after
        for host in range(after):
            fetched.clear()
            with contextlib.ExitStack() as stack:
                of = manager.Source(there, record, host, after, stack)
                data = of.fetch("rows", "int32", (host * rows, 0), (rows, 5))
                same = of.fetch("same", "int32", (0,), (3,))
            assert np.frombuffer(same, np.int32).tolist() == [0, 1, 2]
            expected = np.arange(24 * 5, dtype=np.int32).reshape(24, 5)[host * rows : (host + 1) * rows]
            assert (np.frombuffer(data, np.int32).reshape(rows, 5) == expected).all()
            needed = {row * before // 24 for row in range(host * rows, (host + 1) * rows)}
            assert set(fetched) == needed | {0}, (before, after, host)
            assert len(fetched) == len(set(fetched))
        there.close()


def test_a_part_whose_header_is_damaged_is_torn(tmp_path: Path) -> None:
    there = open_checkpoints(str(tmp_path), "job-1")
    record = written_by(2, there)
    path = tmp_path / commits.part(record.folder, 1)
    path.write_bytes(b"\xff" * record.parts[1].size)
    with contextlib.ExitStack() as stack, pytest.raises(parts.Torn, match=r"part-00001\.safetensors is torn"):
        manager.Source(there, record, 0, 1, stack).look("rows", (0, 0), (24, 5))


@pytest.fixture
def files(bucket: str, host: Become, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """The folder of such an attempt's host; whoever had it before is killed."""
    made: list[Path] = []

    def killed() -> None:
        for mirror_ in mirror._mirrors.values():
            mirror_._over.set()
            mirror_._thread.join()
            mirror_._records.close()
            mirror_._scratch.remove()
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


@pytest.mark.slow
def test_files_of_a_trainer_come_back_as_they_last_were_at_rest(
    files: Callable[..., Path], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files(1)
    (folder / "checkpoint-1").mkdir()
    for name in ("checkpoint-1/model", "checkpoint-1/state", "log"):
        (folder / name).write_text(name)
    wait_until(is_sent, within=30)
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


@pytest.mark.slow
def test_what_a_bucket_refused_for_a_while_is_sent_once_it_takes_it_again(
    files: Callable[..., Path],
    storage: StorageServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(mirror, "PAUSES", (0.1, 0.1), raising=False)
    folder = files(1)
    storage.forbid("insert *")
    (folder / "model").write_text("1")
    wait_until(lambda: "could not be sent" in capfd.readouterr().err, "that it is told", within=30)
    storage.heal()
    wait_until(is_sent, "the files, although none has changed", within=30)
    assert "was sent to gs://" in capfd.readouterr().err

    storage.forbid("insert *")
    (folder / "model").write_text("22")
    wait_until(lambda: "could not be sent" in capfd.readouterr().err, "that it is told", within=30)
    threading.Timer(1.0, storage.heal).start()
    mirror.close()
    assert not folder.exists()
    assert there(files(2)) == {"model": "22"}


def test_what_a_bucket_does_not_take_at_the_end_stays_on_this_machine_and_is_named(
    files: Callable[..., Path],
    storage: StorageServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(mirror, "LAST", 0.2, raising=False)
    folder = files(1)
    storage.forbid("insert *")
    (folder / "model").write_text("1")
    mirror.close()
    assert there(folder) == {"model": "1"}
    assert f"what was not sent stays in {folder} of this machine" in capfd.readouterr().err
    storage.heal()


def test_files_that_go_and_change_while_the_last_ones_are_sent_lose_no_others(
    files: Callable[..., Path], storage: StorageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "QUIET", 1e9)
    folder = files(1)
    (folder / "a-model").write_text("model")
    (folder / "z-goes").write_text("goes")
    (folder / "z-grows").write_text("0")
    storage.delay("insert *", 0.3, times=3)
    began = len(storage.calls)
    over = threading.Event()

    def disturb() -> None:
        wait_until(lambda: any(call.verb == "insert" for call in storage.calls[began:]), "the first file's upload")
        (folder / "z-goes").unlink()
        while not over.wait(0.005):
            with contextlib.suppress(FileNotFoundError), (folder / "z-grows").open("r+") as file:
                file.seek(0, 2)
                file.write("0")

    other = threading.Thread(target=disturb)
    other.start()
    mirror.close()
    over.set()
    other.join()
    assert not folder.exists(), "nothing was left that was not sent"
    found = there(files(2))
    assert (found["a-model"], set(found)) == ("model", {"a-model", "z-grows"})
    assert set(found["z-grows"]) == {"0"}


@pytest.mark.slow
def test_a_file_that_the_program_has_open_is_not_whole_however_long_it_writes_nothing(
    files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "QUIET", 0.1)
    looked: list[tuple[bool, bool]] = []
    is_written_to = mirror._is_written_to

    def looks(folder: str) -> bool:  # once everything there has rested, and nothing but this keeps it from being sent
        looked.append((Path(folder, "step-2").exists(), is_written_to(folder)))
        return looked[-1][1]

    monkeypatch.setattr(mirror, "_is_written_to", looks)
    folder = files(1)
    (folder / "step-1").write_text("1")
    wait_until(is_sent, "the first", within=30)
    with (folder / "step-2").open("w") as file:
        file.write("2")
        file.flush()
        (one,) = mirror._mirrors.values()
        wait_until(
            lambda: looked.count((True, True)) >= 3 or "step-2" in one._sent, "that it was passed over", within=30
        )
        assert "step-2" not in one._sent
    wait_until(is_sent, "both", within=30)
    monkeypatch.setattr(mirror, "OPEN", 0.5)
    with (folder / "step-3").open("w") as file:
        file.write("3")
        file.flush()
        wait_until(is_sent, "one that a program leaves open for ever", within=30)


@pytest.mark.slow
def test_a_log_that_is_appended_to_all_the_time_delays_no_checkpoint(
    files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, over = files(1), threading.Event()
    (folder / "events.out.tfevents.1.host").write_text("0")

    def logs() -> None:
        with (folder / "events.out.tfevents.1.host").open("a") as file:
            while not over.wait(0.05):
                file.write("0")
                file.flush()

    writer = threading.Thread(target=logs)
    writer.start()
    try:
        (folder / "model").write_text("model")
        (one,) = mirror._mirrors.values()
        wait_until(lambda: "model" in one._sent, "the checkpoint beside a log", within=30)
    finally:
        over.set()
        writer.join()
    whole = (folder / "events.out.tfevents.1.host").read_text()
    found = there(files(2))
    assert found["model"] == "model"
    assert whole.startswith(found["events.out.tfevents.1.host"])


@pytest.mark.slow
def test_an_attempt_that_lives_on_removes_nothing_that_its_successor_needs(
    files: Callable[..., Path], bucket: str
) -> None:
    folder = files(1)
    (folder / "model").write_text("first")
    wait_until(is_sent, "the first", within=30)
    before = mirror._mirrors.popitem()[1]
    second = files(2)
    assert there(second) == {"model": "first"}
    (folder / "model").write_text("of the attempt before, too late")
    before.close()
    third = files(3)
    assert there(third) == {"model": "first"}, "what the second attempt had, which has sent nothing new"

    records = CloudRecords(f"{bucket}/files")
    (needed,) = {entry.name for entry in records.list("host-00000/file-")} & {
        f"host-00000/{mirror._named(plain_of_file(str(third / 'model')))}"
    }
    records.delete(needed)  # as by one that was frozen in the midst of it
    records.close()
    (third / "other").write_text("other")
    wait_until(is_sent, "the second", within=30)
    assert there(files(4)) == {"model": "first", "other": "other"}, "what had gone was sent again"


@pytest.mark.slow
def test_a_record_that_is_replaced_while_its_files_are_fetched_is_read_again(
    files: Callable[..., Path], storage: StorageServer, bucket: str
) -> None:
    folder = files(1)
    (folder / "model").write_text("first")
    (folder / "old").write_text("old")
    wait_until(is_sent, "the first", within=30)
    before = mirror._mirrors.popitem()[1]
    (folder / "old").unlink()
    (folder / "model").write_text("second")
    old = f"*/host-00000/{mirror._named(hashlib.sha256(b'old').hexdigest())}"
    storage.delay(f"get {old}", 1.5, times=1)
    began = len(storage.calls)

    def send() -> None:
        wait_until(
            lambda: any(call.verb == "get" and call.where.endswith(".json") for call in storage.calls[began:]),
            "the record to be read",
        )
        before.close()

    other = threading.Thread(target=send)
    other.start()
    try:
        assert there(files(2)) == {"model": "second"}
    finally:
        other.join()

    records = CloudRecords(f"{bucket}/files")
    for entry in list(records.list("host-00000/file-")):
        records.delete(entry.name)
    records.close()
    with pytest.raises(CheckpointError, match=r"no such object. A record in gs://.*/files names it: remove gs://"):
        files(3)


def test_what_is_being_set_up_is_not_swept_by_another_host_of_this_machine(
    files: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, others = fcntl.flock, iter([mirror._sweep])

    def flocked(file: Any, how: int) -> None:
        for sweep in others:  # at the very moment before the lock is taken
            sweep()
        flock(file, how)

    monkeypatch.setattr("fcntl.flock", flocked)
    assert files(1).is_dir()


@pytest.mark.slow
def test_an_object_that_a_record_names_outlives_a_file_that_changes_while_it_is_sent_again(
    files: Callable[..., Path],
) -> None:
    folder = files(1)
    (folder / "model").write_text("1")
    wait_until(is_sent, "the first", within=30)
    (one,) = mirror._mirrors.values()
    with pytest.raises(mirror._Moved):
        one._send_one("model", (1, 0), set(), False)  # its time was another one when it was looked at
    assert there(files(2)) == {"model": "1"}


@pytest.mark.slow
def test_what_cannot_be_removed_from_the_bucket_is_not_said_to_be_unsent(
    files: Callable[..., Path], storage: StorageServer, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = files(1)
    (folder / "model").write_text("1")
    wait_until(is_sent, "the first", within=30)
    storage.forbid("delete */file-*")
    (folder / "model").write_text("22")
    mirror.close()
    storage.heal()
    assert not folder.exists()
    assert "could not be sent" not in capfd.readouterr().err
    assert there(files(2)) == {"model": "22"}


def test_what_a_program_that_was_killed_left_on_this_disk_is_removed_by_the_next(
    files: Callable[..., Path], bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = "import kinetic_orchestration as k, time; print(k.current().checkpoint_path(), flush=True); time.sleep(60)"
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        first = files(2)
        assert left.is_dir(), "it is at work there"
        other.kill()
        other.wait()
    files(3)
    assert not left.exists()
    assert not first.exists()


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
    found = open_checkpoints(f"{bucket}/t", "other")
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
    monkeypatch.setattr(store, "SPARE", 1 << 60)
    with pytest.raises(
        CheckpointError, match=r"goes to the bucket, has [\d.]+ GB free: set TMPDIR to a folder with more room"
    ):
        train(12, on_full_disk="stop")
    assert steps(bucket) == []


def take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are preempted have the time that a busy machine takes: by what their agents tell them, and by what
    they know themselves when their machine's own SIGTERM is there first."""
    constants(monkeypatch, attempt_rules, GRACE=UNHURRIED)
    start = "    from kinetic_orchestration.host.process.child import main\n"
    assert agent_zip._CHILD.count(start) == 1
    known = f"    from kinetic_orchestration.protocol import attempt_rules\n\n    attempt_rules.GRACE = {UNHURRIED!r}\n"
    monkeypatch.setattr(agent_zip, "_CHILD", agent_zip._CHILD.replace(start, known + start))


@pytest.mark.slow
@pytest.mark.turn(6)
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
