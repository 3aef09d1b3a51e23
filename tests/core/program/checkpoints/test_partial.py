"""A part of a state is restored by its paths: of the training's own checkpoint, and of another's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointDiffers, UsageError
from tests.core.program.conftest import Host
from tests.support.pages import programs

Become = Callable[..., Host]


class Module:
    """An object with a state of its own, whose names are joined by dots, as torch's modules have."""

    def __init__(self, **weights: Any) -> None:
        self.weights = {name.replace("__", "."): value for name, value in weights.items()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.weights)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert set(state) == set(self.weights)
        self.weights = dict(state)


def trained(value: float = 1.0) -> dict[str, Any]:
    return {
        "params": {"encoder": {"w": np.full((2, 3), value), "b": np.full(3, value)}, "head": np.full((3, 5), value)},
        "module": Module(encoder__w=np.full(2, value), encoder__b=np.full(1, value), head=np.full(4, value)),
        "n": 7, "key": jax.random.key(int(value)),
    }  # fmt: skip


def fine(value: float = 9.0) -> dict[str, Any]:
    """The same with another head, and a part that no checkpoint has."""
    state = trained(value)
    state["params"]["head"] = np.full((3, 2), value)
    state["params"]["adapter"] = np.full(2, value)
    state["module"] = Module(encoder__w=np.full(2, value), encoder__b=np.full(1, value), head=np.full(2, value))
    return state


@pytest.fixture
def place(host: Become) -> str:
    there = host()
    with kinetic.Training(name="pre") as training:
        training.restore(trained(0.0))
        training.finish(trained(), 30)
    return str(there.checkpoints / "pre")


def test_weights_of_another_training_are_filled_in_and_all_else_stays(place: str) -> None:
    given = fine()
    found = kinetic.read_checkpoint(place, into=given, only=["params/encoder", "module/encoder/", "n"])
    assert found.step == 30
    assert found.state["params"]["encoder"]["w"].tolist() == [[1.0] * 3] * 2
    assert found.state["params"]["encoder"]["b"].tolist() == [1.0] * 3
    assert found.state["params"]["head"] is given["params"]["head"]
    assert found.state["params"]["adapter"] is given["params"]["adapter"]
    assert found.state["module"] is given["module"]
    assert {name: value[0] for name, value in given["module"].weights.items()} == {
        "encoder.w": 1.0, "encoder.b": 1.0, "head": 9.0,
    }  # fmt: skip
    assert (found.state["n"], jax.random.key_data(found.state["key"]).tolist()) == (7, [0, 9])
    assert set(kinetic.read_checkpoint(place, only=["params/encoder", "n"]).state) == {
        "params/encoder/w", "params/encoder/b", "n",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("only", "told"),
    [
        (["params/encode"], "params/encode is nowhere in the checkpoint"),
        (["params/encoder", "lora"], "lora is nowhere in the checkpoint"),
        (["params/adapter"], "params/adapter is nowhere in the checkpoint"),
        (["params"], r"params/head is float64\[3, 2\] here and float64\[3, 5\] in the checkpoint"),
        (["params"], r"params/adapter, float64\[2\], is only here"),
        (["module/head"], r"module/head is float64\[2\] here and float64\[4\] in the checkpoint"),
        (["module/tail"], "module/tail is nowhere in the checkpoint"),
    ],
)
def test_what_is_missing_or_differs_is_named_by_its_path(place: str, only: list[str], told: str) -> None:
    given = fine()
    with pytest.raises(CheckpointDiffers, match=told):
        kinetic.read_checkpoint(place, into=given, only=only)
    assert given["params"]["encoder"]["w"].tolist() == [[9.0] * 3] * 2
    assert given["module"].weights["encoder.w"].tolist() == [9.0] * 2


def test_what_names_nothing_is_refused(place: str) -> None:
    with pytest.raises(CheckpointDiffers, match=r"has a path of only=\['nothing'\]"):
        kinetic.read_checkpoint(place, only=["nothing"])
    for only in ("params", [], [""], [3]):
        with pytest.raises(UsageError, match="only is "):
            kinetic.read_checkpoint(place, only=only)  # type: ignore[arg-type]
    shown = {**fine(), "n": jax.ShapeDtypeStruct((2,), np.float32)}
    with pytest.raises(CheckpointDiffers, match="n would stay as given, and is given without a value"):
        kinetic.read_checkpoint(place, into=shown, only=["params/encoder"])


def goes(until: int, attempt_state: dict[str, Any], **options: Any) -> tuple[int, dict[str, Any]]:
    with kinetic.Training(name="pre", every=10) as training:
        state, begun = training.restore(attempt_state, **options)
        found = {"encoder": state["params"]["encoder"]["w"][0, 0], "head": state["params"]["head"].flat[0]}
        for number in range(begun, until):
            state["params"]["head"] = state["params"]["head"] + 1.0
            state["params"]["encoder"]["w"] = state["params"]["encoder"]["w"] + 1.0
            training.step(number + 1, state)
    return begun, found


def test_a_training_takes_a_part_of_its_checkpoint_once_and_then_goes_on_with_the_whole(
    place: str, host: Become
) -> None:
    host(attempt=2)
    with pytest.raises(CheckpointDiffers, match=r"(?s)params/head is .*restore a part of it alone \(only=\)"):
        goes(41, fine())
    only = ["params/encoder", "module/encoder"]
    assert goes(35, fine(), only=only) == (30, {"encoder": 1.0, "head": 9.0})
    host(attempt=3)
    assert goes(45, fine(), only=only) == (30, {"encoder": 1.0, "head": 9.0}), "nothing was committed since"
    host(attempt=4)
    assert goes(45, fine(), only=only) == (40, {"encoder": 11.0, "head": 19.0}), "else the new head would begin again"
    host(attempt=5)
    assert goes(45, fine(), only=only, step=30) == (30, {"encoder": 1.0, "head": 9.0}), "another wish"


def test_without_a_checkpoint_the_given_state_is_used(host: Become) -> None:
    host()
    assert goes(3, fine(), only=["params/encoder"]) == (0, {"encoder": 9.0, "head": 9.0})


PAGE = "docs/training/llm.md"


@pytest.mark.slow
def test_the_program_of_the_page_takes_the_encoder_and_leaves_its_head(tmp_path: Path) -> None:
    (tmp_path / "fine_tune.py").write_text(programs(PAGE)["fine_tune.py"])
    environ = {**os.environ, "KINETIC_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "fine_tune.py"], capture_output=True, text=True, timeout=120, env=environ, cwd=tmp_path
    )
    assert done.stdout == "[1.0, 0.5]\n", done.stderr
