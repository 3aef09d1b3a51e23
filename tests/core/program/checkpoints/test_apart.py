"""A part of a state that another library writes: within the checkpoint's folder, and committed with the rest or not at
all. The library here is numpy; tests/end_to_end/frameworks/test_on_orbax.py has Orbax."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointError, UsageError
from kinetic_orchestration.program.checkpoints.commits import Leaf
from tests.core.program.conftest import Host

Become = Callable[..., Host]


class InNumpy:
    """An array that numpy writes, on a thread of its own."""

    kind = "numpy"

    def __init__(self, w: Any, fails: str = "") -> None:
        self.w = w
        self.fails = fails

    def described(self) -> Mapping[str, Leaf]:
        return {"w": Leaf(str(self.w.dtype), self.w.shape)}

    def begin_writing(self, folder: str) -> None:
        if self.fails == "begin":
            raise ValueError("a shard is odd")
        copy = self.w.copy()

        def write() -> None:
            Path(folder, "deep").mkdir(parents=True)
            np.save(Path(folder, "deep", "w.npy"), copy)

        self._thread = threading.Thread(target=write)
        self._thread.start()

    def end_writing(self, patience: float) -> None:
        self._thread.join(patience)
        if self.fails == "end":
            raise OSError("no space left on its device")

    def read_written(self, folder: str) -> None:
        self.w = np.load(Path(folder, "deep", "w.npy"))


def train(until: int, fails: Mapping[int, str] = {}, **options: Any) -> tuple[int, float]:
    """Returns the step at which it began, and the sum of its array there."""
    with kinetic.Training(**{"every": 5, "name": "t", "keep": 2, **options}) as training:
        state, begun = training.restore({"net": InNumpy(np.zeros(9)), "n": 0})
        w, first = state["net"].w, float(state["net"].w.sum())
        for number in range(begun, until):
            w = w + 1.0
            training.step(number + 1, {"net": InNumpy(w, fails.get(number + 1, "")), "n": number + 1})
    return begun, first


def test_it_is_committed_restored_and_removed_with_the_rest(host: Become) -> None:
    there = host()
    assert train(17) == (0, 0.0)
    assert there.steps() == [10, 15]
    assert len(list(there.checkpoints.glob("t/step-*/numpy-00000/deep/w.npy"))) == 2
    assert there.folders() == [path.name for path in sorted((there.checkpoints / "t").glob("step-*"))]
    host(attempt=2)
    assert train(16) == (15, 135.0)


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_where_it_cannot_be_written_there_is_no_checkpoint_and_the_training_goes_on(
    host: Become, fails: str, capfd: pytest.CaptureFixture[str]
) -> None:
    there = host()
    train(22, {10: fails})
    assert there.steps() == [15, 20]
    said = capfd.readouterr().err
    why = "numpy could not write net: a shard is odd" if fails == "begin" else "no space left on its device"
    assert f"t: the checkpoint of step 10 could not be written: {why}; the newest one is that of step 5" in said
    with pytest.raises(CheckpointError, match=why):
        train(30, {25: fails}, on_full_disk="stop")


@pytest.mark.parametrize("harm", ["flipped", "cut", "missing"])
def test_a_file_that_is_not_what_was_written_is_refused_before_anything_is_read(
    host: Become, harm: str, capfd: pytest.CaptureFixture[str]
) -> None:
    there = host()
    train(17)
    file = max(there.checkpoints.glob("t/step-*")) / "numpy-00000/deep/w.npy"
    data = file.read_bytes()
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if harm == "flipped" else data[:-1])
    host(attempt=2)
    assert train(11) == (10, 90.0)
    assert "deep/w.npy" in capfd.readouterr().err


def test_one_that_lives_on_writes_next_to_its_successor(host: Become) -> None:
    there = host()
    zombie = kinetic.Training(every=5, name="t")
    zombie.restore({"net": InNumpy(np.zeros(9)), "n": 0})
    zombie.step(5, {"net": InNumpy(np.full(9, 5.0)), "n": 5})
    zombie._settle()
    late = InNumpy(np.full(9, -1.0))
    late.begin_writing(str(there.checkpoints / "t" / "step-000000000010-0123456789abcdef-1" / "numpy-00000"))
    host(attempt=2)
    assert train(11) == (5, 45.0)
    late.end_writing(60)
    zombie.close()
    host(attempt=3)
    assert train(11) == (10, 90.0)


def test_without_the_library_orbax_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orbax", None)
    with pytest.raises(UsageError, match="orbax-checkpoint, which is not installed"):
        kinetic.Orbax({"w": np.zeros(2)})


def test_a_place_to_which_another_library_cannot_write_is_refused_before_the_first_step(
    host: Become, monkeypatch: pytest.MonkeyPatch
) -> None:
    orbax = object.__new__(kinetic.Orbax)  # which is not installed here
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for place, why in {
        "gs://b/c": "needs gcsfs to write to gs://b/c",
        "s3://b/c": "writes to folders and to gs://",
    }.items():
        with pytest.raises(UsageError, match=why):
            orbax.check_place(place)
    orbax.check_place("/folder")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name == "gcsfs" else None)
    orbax.check_place("gs://b/c")

    class Nowhere(InNumpy):
        def check_place(self, place: str) -> None:
            raise UsageError(f"not in {Path(place).name}")

    host()
    with pytest.raises(UsageError, match=r"^not in t$"):
        kinetic.Training(name="t").restore({"net": Nowhere(np.zeros(9))})
