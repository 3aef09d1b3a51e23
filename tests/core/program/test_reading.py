"""`read_checkpoint`: what a training kept, on any machine and without a job."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointDiffers, CheckpointError
from tests.core.program.conftest import Host
from tests.support.bucket import unsummed

Become = Callable[..., Host]


def state(value: float) -> dict[str, Any]:
    return {
        "params": {"w": jax.numpy.full((4, 6), float(value)), "b": np.full(3, float(value))}, "key": jax.random.key(int(value)),
        "chance": random.Random(int(value)), "n": int(value), "name": "größe",
    }  # fmt: skip


@pytest.fixture
def place(host: Become, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a training's three checkpoints; this process is no longer its host."""
    there = host()
    with kinetic.Training(every=1, name="t") as training:
        training.restore(state(0))
        for number in (1, 2, 3):
            training.step(number, state(number))
    for name in [name for name in os.environ if name.startswith("KINETIC_")]:
        monkeypatch.delenv(name)
    return there.checkpoints / "t"


def test_without_a_state_it_is_whole_arrays_and_values_by_their_paths(place: Path) -> None:
    shutil.rmtree(place / ".tmp")  # as where it was copied to
    before = sorted(place.rglob("*"))
    found = kinetic.read_checkpoint(str(place))
    assert (found.step, found.state["n"], found.state["name"]) == (3, 3, "größe")
    assert type(found.state["params/w"]) is np.ndarray
    assert found.state["params/w"].tolist() == [[3.0] * 6] * 4
    assert found.state["key"].tolist() == jax.random.key_data(jax.random.key(3)).tolist()
    assert found.state["chance"] == random.Random(3).getstate()
    assert kinetic.read_checkpoint(place, step=2).state["n"] == 2
    assert sorted(place.rglob("*")) == before


def test_into_a_state_it_has_its_structure(place: Path) -> None:
    given = state(9)
    found = kinetic.read_checkpoint(str(place), into=given).state
    assert isinstance(found["params"]["w"], jax.Array)
    assert found["params"]["w"].tolist() == [[3.0] * 6] * 4
    assert given["chance"].getstate() == random.Random(3).getstate()
    shown = jax.ShapeDtypeStruct((4, 6), np.float32, sharding=given["params"]["w"].sharding)
    found = kinetic.read_checkpoint(place, into={**given, "params": {"w": shown, "b": np.zeros(3)}}).state
    assert found["params"]["w"].tolist() == [[3.0] * 6] * 4
    with pytest.raises(CheckpointDiffers, match=r"params/b is float64\[4\] here and float64\[3\] in the checkpoint"):
        kinetic.read_checkpoint(str(place), into={**given, "params": {"w": given["params"]["w"], "b": np.zeros(4)}})
    with pytest.raises(CheckpointDiffers, match="name is on one side only"):
        kinetic.read_checkpoint(str(place), into={key: value for key, value in given.items() if key != "name"})


def test_what_is_torn_is_passed_over_and_what_is_not_there_is_said(place: Path, tmp_path: Path) -> None:
    commit = sorted(place.glob("step-*"))[-1] / "commit.json"
    good = unsummed(commit.read_text())
    for harm, told in (({"parts": []}, "is not the record"), ({"folder": "../t"}, r"commit.json is that of ../t")):
        commit.write_text(json.dumps({**good, **harm}))
        assert kinetic.read_checkpoint(str(place)).step == 2
        with pytest.raises(CheckpointError, match=told):
            kinetic.read_checkpoint(str(place), step=3)
    commit.write_text(json.dumps(good))
    newest = sorted(place.glob("step-*"))[-1] / "part-00000.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    assert kinetic.read_checkpoint(str(place)).step == 2
    with pytest.raises(CheckpointError, match=r"no whole checkpoint of step 3 in .*its digest is not"):
        kinetic.read_checkpoint(str(place), step=3)
    with pytest.raises(CheckpointError, match=r"lie in <checkpoint_dir>/<its name>"):
        kinetic.read_checkpoint(str(place.parent))
    with pytest.raises(CheckpointError, match=r"there is no folder .*/nowhere"):
        kinetic.read_checkpoint(str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(CheckpointError, match="copy it here first, with gcloud storage cp -r gs://b/t"):
        kinetic.read_checkpoint("gs://b/t/")


LESS = """
import json, sys
import numpy as np
with open(sys.argv[1], "rb") as file:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    begin = file.tell()
    told = header["params/b"]
    file.seek(begin + told["data_offsets"][0])
    found = np.fromfile(file, {"F32": "<f4", "F64": "<f8"}[told["dtype"]], int(np.prod(told["shape"])))
print(json.dumps(found.reshape(told["shape"]).tolist()), "kinetic_orchestration" in sys.modules)
"""


def test_a_part_needs_nothing_of_ours_to_be_read(place: Path) -> None:
    part = kinetic.read_checkpoint(str(place)).folder
    done = subprocess.run(
        [sys.executable, "-c", LESS, str(place / part / "part-00000.safetensors")],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == f"{json.dumps([3.0] * 3)} False\n"
