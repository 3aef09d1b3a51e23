"""Checkpoints that trainers write as files: complete ones alone are taken, and a notice ends a training with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.program.trainers.file_checkpoints import FileCheckpoints, is_complete
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.core.program.conftest import JOB, Host
from tests.support.waits import wait_until

Become = Callable[..., Host]


class Loop:
    """A loop of one host, whose state is a number in a file."""

    def __init__(self, **options: Any) -> None:
        self.sum = 0
        self.steps = kinetic.torch.files(self.save, self.load, **{"every": 3, "keep": 2, **options})

    def save(self, folder: str) -> None:
        Path(folder, "inner").mkdir(exist_ok=True)
        Path(folder, "inner", "sum").write_text(str(self.sum))

    def load(self, folder: str) -> None:
        self.sum = int(Path(folder, "inner", "sum").read_text())

    def run(self, until: int) -> int:
        """Returns the step at which it began."""
        begun = self.steps.restore()
        for number in range(begun, until):
            self.sum += number
            self.steps.step(number + 1, value=self.sum)
        return begun


def folders(there: Host, name: str = "files") -> list[str]:
    """Those of all attempts."""
    return sorted(path.name for path in (there.checkpoints / f"{name}-files").glob("*/*"))


def test_a_loop_goes_on_at_its_newest_checkpoint_and_reports(host: Become, capfd: pytest.CaptureFixture[str]) -> None:
    there = host()
    assert Loop(total=20).run(11) == 0
    assert folders(there) == ["step-6", "step-9"]
    there = host(2)
    loop = Loop(total=20)
    assert loop.run(20) == 9
    assert loop.sum == sum(range(20))
    loop.steps.finish()
    assert folders(there) == ["step-18", "step-20"]
    assert "files: goes on after step 9\n" in capfd.readouterr().err
    assert there.told("p")[-1] | {"rate": 0} == {"done": 20.0, "total": 20.0, "unit": "step", "rate": 0}
    assert {"value"} <= {name for told in there.told("m") for name in told["values"]}
    there = host(3)
    assert Loop().run(20) == 20, "one that has ended is not begun anew"


@pytest.mark.parametrize("broken", ["a file is missing", "a file is cut off", "the record is missing", "it is torn"])
def test_what_a_kill_left_is_passed_over_and_removed(host: Become, broken: str) -> None:
    there = host()
    Loop().run(11)
    (newest,) = (there.checkpoints / "files-files").glob("*/step-9")
    record = newest / "kinetic-00000.json"
    if broken == "a file is missing":
        (newest / "inner" / "sum").unlink()
    elif broken == "a file is cut off":
        (newest / "inner" / "sum").write_text("3")
    elif broken == "the record is missing":
        record.unlink()
    else:
        record.write_bytes(record.read_bytes()[:-5])
    there = host(2)
    loop = Loop()
    begun = loop.steps.restore()
    assert (begun, loop.sum, folders(there)) == (6, sum(range(6)), ["step-6"])


class InTwoFiles(Loop):
    """Its number is in two files, and it can be cut off between them."""

    cut: int = 0

    def save(self, folder: str) -> None:
        Path(folder, "first").write_text(f"{self.sum:06}")
        if self.steps._done == self.cut:
            raise InterruptedError
        Path(folder, "second").write_text(f"{self.sum:06}")

    def load(self, folder: str) -> None:
        (self.sum,) = {int(Path(folder, name).read_text()) for name in ("first", "second")}


def test_an_old_program_that_writes_a_step_of_its_successor_changes_none_of_its_files(host: Become) -> None:
    host()
    old = InTwoFiles()
    old.run(5)
    host(2)
    InTwoFiles().run(10)
    old.cut, old.sum = 9, 777
    with pytest.raises(InterruptedError):  # it wakes up late, writes that step with other numbers, and is killed
        for number in range(5, 10):
            old.steps.step(number + 1)
    third = host(3)
    after = InTwoFiles()
    assert (after.steps.restore(), after.sum) == (9, sum(range(9)))
    assert folders(third) == ["step-6", "step-9"], "of a step that both have one is kept, and what was cut off is not"
    for number in range(9, 15):
        after.steps.step(number + 1)
    assert folders(third) == ["step-12", "step-15"]


def test_an_old_program_removes_nothing_of_its_successor(host: Become, monkeypatch: pytest.MonkeyPatch) -> None:
    there = host()
    old = Loop(keep=1)
    old.run(3)
    host(2)
    Loop(keep=3).run(12)
    monkeypatch.setattr("kinetic_orchestration.program.context.HostContext.fence", lambda _: 1)  # asked just before
    for number in range(3, 15):
        old.steps.step(number + 1)
    assert folders(there) == ["step-12", "step-12", "step-15", "step-6", "step-9"], "of both"


def test_a_checkpoint_needs_the_records_of_all_hosts_of_one_attempt(tmp_path: Path) -> None:
    def record(host: int, writer: str = "job-1", hosts: Any = 2, **files: Any) -> None:
        told = {"hosts": hosts, "writer": writer, "step": 3, "files": files}
        (tmp_path / f"kinetic-{host:05d}.json").write_text(json.dumps(told))

    (tmp_path / "weights").write_bytes(b"1234")
    assert not is_complete(str(tmp_path))
    record(0, weights=4)
    assert not is_complete(str(tmp_path)), "host 1 has not written its own"
    record(1, "job-2")
    assert not is_complete(str(tmp_path)), "of another attempt"
    record(1)
    assert is_complete(str(tmp_path))
    for hosts in (True, 0, -1, "2", None, 1 << 40):
        record(0, hosts=hosts, weights=4)
        assert not is_complete(str(tmp_path))
    record(0, weights=4)
    for files in ({"weights": 5}, {"gone": 4}, {"weights\0": 4}, {"weights": "4"}):
        (tmp_path / "kinetic-00001.json").write_text(json.dumps({"hosts": 2, "writer": "job-1", "files": files}))
        assert not is_complete(str(tmp_path))
    for text in ("[]", "{", "null", '{"hosts": 2, "writer": "job-1", "files": []}'):
        (tmp_path / "kinetic-00001.json").write_text(text)
        assert not is_complete(str(tmp_path))


@pytest.mark.parametrize(("cause", "kept"), [(wire.PREEMPTION, True), (wire.CANCELLED, False)])
def test_a_notice_ends_it_at_this_step_with_a_checkpoint_if_anything_is_worth_keeping(
    host: Become, cause: str, kept: bool
) -> None:
    there = host()
    loop = Loop(every=None)
    loop.steps.restore()
    loop.steps.step(1)
    there.ask_to_end(cause)
    wait_until(lambda: loop.steps._checkpoints._notice is not None)
    with pytest.raises(kinetic.TrainingEnded) as ended:
        loop.steps.step(2)
    assert (ended.value.cause, ended.value.step, ended.value.saved) == (cause, 2, kept)
    assert folders(there) == (["step-2"] if kept else [])


def test_a_second_loop_of_a_program_has_files_of_its_own(host: Become) -> None:
    there = host()
    first = Loop()
    first.run(4)
    first.steps.finish()
    assert Loop().run(4) == 0
    assert folders(there) == ["step-3", "step-4"]
    assert folders(there, "files-2") == ["step-3"]


def test_the_best_checkpoint_is_known_on_the_next_machine_which_has_it_elsewhere(host: Become) -> None:
    """Hugging Face's Trainer forgets one whose path is not there, and would end with the last weights for the best."""

    def trained(until: int, state: SimpleNamespace) -> None:
        from kinetic_orchestration.program.trainers.torch import _OfTrainer

        keeps = _OfTrainer(FileCheckpoints("trainer", "checkpoint", every=None, keep=1))
        keeps.newest()
        keeps.on_train_begin(None, state, None)
        for step in range(state.global_step + 1, until + 1):
            state.global_step = step
            keeps.on_step_end(None, state, SimpleNamespace())
            Path(keeps._checkpoints.path(step)).mkdir()
            keeps.on_save(None, state, None)

    there = host()
    best = there.checkpoints / "trainer-files" / f"{JOB.removeprefix('job-')}-1" / "checkpoint-1"
    trained(
        3, state := SimpleNamespace(global_step=0, max_steps=9, best_global_step=1, best_model_checkpoint=str(best))
    )
    host(2)
    state.best_model_checkpoint = None
    trained(5, state)
    assert state.best_model_checkpoint == str(best)
    assert folders(there, "trainer") == ["checkpoint-1", "checkpoint-4", "checkpoint-5"]
    host(3)
    state.best_global_step, state.best_model_checkpoint = 2, None
    trained(6, state)
    assert state.best_model_checkpoint is None, "it is gone"


def test_outside_a_job_it_keeps_nothing_and_trains() -> None:
    loop = Loop()
    assert loop.run(5) == 0
    loop.steps.finish()
    assert loop.sum == 10
    assert not list(Path(loop.steps._checkpoints.folder).glob("step-*"))


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.usefixtures("shared_home")
def test_two_hosts_go_on_at_the_checkpoint_that_the_bucket_has_of_both(jobs: Any, tmp_path: Path) -> None:
    """One of them dies between the files of its third checkpoint and the record of them."""
    with StorageServer() as server:
        bucket = f"{server.make_bucket('files')}/checkpoints"
        job = kinetic.run(accelerator="v4-8", retry=kinetic.Retry(user=1))(jobs.writes_files).run_async(
            server.url, bucket, str(tmp_path / "marks")
        )
        found = job.result(timeout=200)
    assert found == {
        "begun": 6, "sum": sum(range(14)), "saved": [9, 12, 14], "folders": found["folders"],
    }  # fmt: skip
    assert {"step-12", "step-14"} <= set(found["folders"])
    assert (job.logs() or "").count("files: goes on after step 6\n") == 2
