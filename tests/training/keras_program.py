"""A Keras training as a user writes it, that breaks where a test wants: run as a program of its own.

python keras_program.py '{"epochs": 3, "die": [1, 4], …}'
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
import warnings
from typing import Any

os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND", "jax")

import keras
import numpy as np

import kinetic_orchestration as kinetic


class Break(keras.callbacks.Callback):  # type: ignore[misc]
    """Dies, is asked to end or tells another callback's wish, when a batch begins."""

    def __init__(self, how: dict[str, list[int]]) -> None:
        super().__init__()
        self.how = how
        self.seen: list[list[int]] = []
        self.drawn: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.seen.append([self.epoch, batch])
        at = [self.epoch, batch]
        if self.how.get("die") == at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how.get("term") == at:
            os.kill(os.getpid(), signal.SIGTERM)
            for thread in threading.enumerate():
                if thread.name == "kinetic-notice":  # it ends when it has heard
                    thread.join(30.0)
        if "global generator" in self.how and keras.backend.backend() == "tensorflow":
            self.drawn.append(float(sys.modules["tensorflow"].random.get_global_generator().uniform(())))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.how.get("stop") == [self.epoch, batch]:
            self.model.stop_training = True


def model_of(units: int, *first: Any) -> Any:
    return keras.Sequential([
        *first, keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(0.2),
        keras.layers.BatchNormalization(), keras.layers.Dense(1),
    ])  # fmt: skip


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Shuffled by Python's own generator."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x) // 8

    def __getitem__(self, at: int) -> Any:
        return self.x[at * 8 : at * 8 + 8], self.y[at * 8 : at * 8 + 8]


def digest(model: Any) -> str:
    sha = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        sha.update(np.asarray(keras.ops.convert_to_numpy(variable.value)).tobytes())
    return sha.hexdigest()


def train(how: dict[str, Any]) -> dict[str, Any]:
    keras.utils.set_random_seed(7)
    random.seed(7)
    if how.get("global generator") and keras.backend.backend() == "tensorflow":
        tensorflow = sys.modules["tensorflow"].random
        tensorflow.set_global_generator(tensorflow.Generator.from_seed(7))
    chance = np.random.default_rng(3)
    x = chance.normal(size=(80, 6)).astype("float32")
    y = (x.sum(1, keepdims=True) * how.get("scale", 1.0)).astype("float32")
    model = model_of(how.get("units", 16), *([] if how.get("unbuilt") else [keras.Input((6,))]))
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=how.get("per_execution", 1))
    broken = Break(how)
    callback = kinetic.KineticCallback(**{"every": 3, **how.get("options", {})})
    assert isinstance(callback, keras.callbacks.Callback)
    assert isinstance(callback, kinetic.KineticCallback)
    data: dict[str, Any] = {"x": x, "y": y, "batch_size": 8}
    if how.get("data") == "dataset":
        data = {"x": Batches(x, y)}
    elif how.get("data") == "generator":
        data = {
            "x": ((x[at : at + 8], y[at : at + 8]) for _ in range(99) for at in range(0, 80, 8)),
            "steps_per_epoch": 10, "shuffle": False,
        }  # fmt: skip
    data |= {"shuffle": how.get("shuffle", True)} if "batch_size" in data else {}
    if how.get("validate"):
        data |= {"validation_data": (x[:16], y[:16])}
    history = model.fit(**data, epochs=how["epochs"], verbose=0, callbacks=[callback, broken])
    again = None
    if how.get("second"):
        again = model.fit(**data, epochs=2, verbose=0, callbacks=[kinetic.KineticCallback(every=3), broken]).history
    return {
        "digest": digest(model), "seen": broken.seen, "history": history.history, "epoch": history.epoch, "again": again,
        "iterations": int(model.optimizer.iterations), "drawn": broken.drawn,
    }  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    print(json.dumps(train(json.loads(sys.argv[1]))))
