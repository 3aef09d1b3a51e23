"""Digests of arguments are the same in every process, and unknown where no form of a value is; secrets are named."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinetic_orchestration.packaging.bundle import data_digest
from kinetic_orchestration.packaging.call.arguments import UNKNOWN, differing, digests, warn_of_secrets
from kinetic_orchestration.plan import messages
from kinetic_orchestration.plan.declare.data import Data
from kinetic_orchestration.plan.declare.spec import JobSpec, Options

pytestmark = pytest.mark.fast


class Mode(enum.Enum):
    FAST = 1


@dataclasses.dataclass
class Layer:
    size: int
    name: str


def train(*layers: Any, lr: Any = 0.1, **more: Any) -> None: ...


def digest(value: Any) -> str:
    return digests(train, (), {"lr": value}, lambda data: data.path)["lr"]


SAME = [
    (1, 1.0), ([1, 2], (1, 2)), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"x", "y", "z"}, {"z", "y", "x"}),
    (np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))), (Path("/a"), Path("/a")),
    (math.nan, float("nan")), (Layer(1, "a"), Layer(1, "a")), (Mode.FAST, Mode.FAST), (len, len), (train, train),
    (datetime.date(2026, 1, 1), datetime.date(2026, 1, 1)), (b"x", bytearray(b"x")), (np.float32(1), np.float32(1)),
]  # fmt: skip
OTHER = [
    (1, 2), (1, True), ("1", 1), ("a", b"a"), ([1, 2], [2, 1]), ([[1], 2], [1, [2]]), ({"a": 1}, {"a": 2}), (None, 0),
    (np.zeros(3), np.zeros(3, np.float32)), (np.zeros(4), np.zeros((2, 2))), (Layer(1, "a"), Layer(2, "a")),
    (["ab", "c"], ["a", "bc"]), (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)), ({}, []), (-0.5, 0.5),
]  # fmt: skip


@pytest.mark.parametrize("pair", SAME)
def test_equal_values_have_one_digest(pair: tuple[Any, Any]) -> None:
    assert digest(pair[0]) == digest(pair[1]) != UNKNOWN


@pytest.mark.parametrize("pair", OTHER)
def test_other_values_have_another(pair: tuple[Any, Any]) -> None:
    assert UNKNOWN != digest(pair[0]) != digest(pair[1]) != UNKNOWN


class Loud:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_what_has_no_form_is_unknown_and_no_error() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    for value in (object(), lambda: 1, threading.Lock(), np.array([object()]), cycle, Loud(), iter([]), [object()]):
        assert digest(value) == UNKNOWN


def test_another_process_has_the_same_digests() -> None:
    program = (
        "import sys; from kinetic_orchestration.packaging.call.arguments import digests\n"
        "value = {'names': {'a', 'b', 'c', 'd'}, 'rate': 1e-3, 'deep': [{'x': (1, 2)}]}\n"
        "print(digests(lambda lr: 0, (), {'lr': value}, str)['lr'])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(seen) == 1 and seen.pop().strip() != UNKNOWN


def of(*args: Any, **kwargs: Any) -> dict[str, str]:
    return digests(train, args, kwargs, lambda data: data.path)


def test_which_arguments_differ_is_never_said_by_mistake() -> None:
    def other(had: dict[str, str], now: dict[str, str]) -> tuple[str, ...]:
        return differing(had, train, now, lambda data: data.path)

    assert other(of(1, lr=2), of(1, lr=3)) == ("lr",)
    assert other(of(1, extra="a"), of(2, extra="b")) == ("extra", "layers")
    assert other(of(1), of(1, lr=0.1)) == ()  # its default
    assert other(of(1), of(1, lr=0.2)) == ("lr",)
    assert other(of(lr=object()), of(lr=1)) == () == other(of(lr=1), of(lr=object()))
    assert other(of(), of(unheard=1)) == () == other(of(gone=1), of())


def test_data_is_told_by_its_content(tmp_path: Path) -> None:
    folder, home = tmp_path / "data", tmp_path / "home"
    folder.mkdir()

    def now() -> str:
        return data_digest(home, None, Data(folder))

    (folder / "a.csv").write_text("1")
    first = now()
    os.utime(folder / "a.csv", (1e9, 1e9))
    assert now() == first
    (folder / "a.csv").write_text("2")
    assert now() != first
    assert data_digest(home, None, Data("gs://bucket/a/")) == "gs://bucket/a/"


def test_arguments_that_look_like_secrets_are_named_once(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(messages, "_shown", set())
    kwargs = {
        "config": {"db": ["x", {"password": "correct-horse"}], "url": "mysql://me:hunter2@db", "rate": 0.1},
        "lr": "hf" + "_" + "a1B2c3D4" * 5, "token": "<pad>", "key": "user_id",
    }  # fmt: skip
    for _ in range(2):
        warn_of_secrets(JobSpec("train", Options(), train, ("plain",), kwargs))
    told = [str(warning.message) for warning in recwarn]
    assert len(told) == 1 and "secrets=" in told[0] and "hunter2" not in told[0]
    assert "config['db']['password'], config['url'], lr looks like a secret" in told[0]
