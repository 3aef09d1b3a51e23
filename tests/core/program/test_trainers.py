"""Trainers of others on one host, without their packages: the page's functions, and what such a trainer is told at its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kinetic_orchestration.host.process import topology
from tests.core.program import stand_ins
from tests.core.program.conftest import Host
from tests.support.pages import ROOT, programs


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A program on a host, as one that has imported nothing yet."""
    packages = tmp_path / "packages"
    stand_ins.write(packages)

    def run(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
        begin = "from kinetic_orchestration.host.process.frameworks import join as distributed\ndistributed.install()\n"
        paths = os.pathsep.join(map(str, (packages, ROOT)))
        return subprocess.run(
            [sys.executable, "-c", begin + program], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=True,
            env={**os.environ, **environ, "PYTHONPATH": paths},
        )  # fmt: skip

    return run


def test_the_pages_trainers_go_on_where_the_attempt_before_ended(
    host: Callable[..., Host], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    block = programs("docs/training/frameworks.md")["trainers.py"]
    use = "print(*(f(None, [], until).began for f in (with_transformers, with_lightning)))\n"
    for attempt, until, began in ((1, 12, "0 0"), (2, 22, "10 12")):
        there = host(attempt)
        done = run(f"{block}\nuntil = {until}\n{use}", **there.environ(attempt))
        assert (done.stdout, done.stderr) == (f"{began}\n", ""), attempt
    files = there.checkpoints / "files"
    assert sorted(path.name for path in files.glob("checkpoint-*")) == ["checkpoint-15", "checkpoint-20"]
    assert (there.checkpoints / "lightning" / "last.ckpt").read_text() == "22"


TRAIN = """
import lightning, transformers
for _ in range(2):
    lightning.Trainer(max_steps=1).fit(None, [])
    transformers.Trainer(None, transformers.TrainingArguments("{folder}", max_steps=1), train_dataset=[]).train()
print("trained")
"""


@pytest.mark.parametrize(("hosts", "index"), [(2, 0), (2, 1), (1, 0)])
def test_a_trainer_that_knows_of_one_host_is_told_as_idle_once(
    run: Callable[..., subprocess.CompletedProcess[str]], hosts: int, index: int
) -> None:
    join = json.dumps({"coordinator": "127.0.0.1:1", "hosts": hosts, "index": index})
    done = run(TRAIN.format(folder="out"), **({topology.JOIN: join} if hosts > 1 else {}))
    assert done.stdout == "trained\n"
    told = "kinetic: the 2 hosts train a model each, because this Trainer knows of 1: make it as Trainer("
    lines = [
        told + 'num_nodes=2, devices=1, strategy="ddp")',
        told + "model, TrainingArguments(…, use_cpu=True)), if it is to compute on the CPU",
    ]
    assert done.stderr.splitlines() == (lines if (hosts, index) == (2, 0) else [])


def test_a_trainer_of_another_kind_than_is_known_trains_all_the_same(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    join = json.dumps({"coordinator": "127.0.0.1:1", "hosts": 2, "index": 0})
    unknown = "import lightning\nlightning.Trainer.world_size = property(lambda _: 1 // 0)\n"
    done = run(f"{unknown}{TRAIN.format(folder='out')}", **{topology.JOIN: join})
    assert done.stdout == "trained\n"
    assert done.stderr.count("kinetic: ") == 1, "of the one that is known"


def test_a_trainer_that_takes_a_bucket_for_a_folder_says_where_it_writes(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = run(TRAIN.format(folder="gs://bucket/checkpoints"))
    (line,) = done.stderr.splitlines()
    assert line == (
        f"kinetic: this Trainer writes its checkpoints into the folder {tmp_path}/gs:/bucket/checkpoints of this "
        "machine, and not to gs://bucket/checkpoints: give TrainingArguments kinetic.current().checkpoint_path(), which "
        "is mirrored into the bucket"
    )
