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


def test_the_pages_trainer_goes_on_where_the_attempt_before_ended(
    host: Callable[..., Host], run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    block = programs("docs/training/frameworks.md")["trainers.py"]
    for attempt, until, began, told in ((1, 12, 0, ""), (2, 22, 10, "trainer: goes on after step 10\n")):
        there = host(attempt)
        done = run(f"{block}\nprint(with_transformers(None, [], {until}).began)\n", **there.environ(attempt))
        assert (done.stdout, done.stderr) == (f"{began}\n", told), attempt
    files = there.checkpoints / "trainer-files"
    assert sorted(path.name for path in files.glob("*/*")) == ["checkpoint-15", "checkpoint-20"]
    assert there.told("p")[-1]["done"] == 22


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
        told + "), without num_nodes, devices and strategy",
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


PLACES = {"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("", "2 4"), ('devices="auto"', "2 4"), ("devices=None", "2 4"), ("num_nodes=1", "1 4"), ("devices=[0]", "2 [0]"),
        ('strategy="ddp", devices=1', "2 and devices=1, 2 processes, and the job has 8: leave both out"),
        ('strategy="ddp", num_nodes=1', "1 and devices=4, 4 processes, and the job has 8: leave both out"),
        ('strategy="ddp", num_nodes=1, devices=8', "1 8"),
    ],
)  # fmt: skip
def test_a_trainer_of_lightning_takes_all_processes_of_all_hosts_unless_it_is_told_otherwise(
    run: Callable[..., subprocess.CompletedProcess[str]], given: str, taken: str
) -> None:
    join = json.dumps({"coordinator": "127.0.0.1:1", "hosts": 8, "index": 1})
    code = (
        f"import lightning\ntry:\n    made = lightning.Trainer(max_steps=1, {given})\n"
        "    print(made.num_nodes, made.devices)\nexcept ValueError as error:\n    print(error)\n"
    )
    assert taken in run(code, **{topology.JOIN: join, **PLACES}).stdout


MAKES = """
import sys
for name, kind in (("lightning", "Trainer"), ("transformers", "Trainer"), ("accelerate", "Accelerator")):
    module = __import__(name)
    try:
        getattr(module, kind)()
    except TypeError:
        print("made")
    except Exception as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        (4, ["by torch_xla alone", "a single chip of a TPU at most", "a single chip of a TPU at most"]),
        (1, ["by torch_xla alone", "made", "made"]),
    ],
)
def test_a_trainer_that_cannot_compute_on_tpus_is_refused_when_it_is_made(
    run: Callable[..., subprocess.CompletedProcess[str]], hosts: int, told: list[str]
) -> None:
    """Else it would train on the host's CPU, or on each host a model of its own, at the price of a slice."""
    join = json.dumps({"coordinator": "127.0.0.1:1", "hosts": hosts, "index": hosts - 1})
    environ = {topology.EXPECT: "tpu", **({topology.JOIN: join} if hosts > 1 else {})}
    lines = run(MAKES, **environ).stdout.splitlines()
    assert len(lines) == 3
    for line, part in zip(lines, told, strict=True):
        assert part in line
        assert ("this job has 4 TPU hosts: each would train a model of its own" in line) is (hosts > 1)
    assert "Train it on GPUs" in lines[0]
    xla = run("import sys, types; sys.modules['torch_xla'] = found = types.ModuleType('torch_xla')\n"
              "import importlib.machinery; found.__spec__ = importlib.machinery.ModuleSpec('torch_xla', None)\n" + MAKES,
              **environ).stdout.splitlines()  # fmt: skip
    assert ("by torch_xla alone" in xla[0]) is (hosts > 1)
