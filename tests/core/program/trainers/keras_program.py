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


class Score(keras.callbacks.Callback):  # type: ignore[misc]
    """A number that comes to its best in the second epoch, and is told to those that follow."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["score"] = [0.0, 5.0, 1.0, 2.0, 1.0, 3.0][epoch]


class Counts(keras.callbacks.Callback):  # type: ignore[misc]
    """A user's callback: it relies on the logs of a batch, and stores its counts."""

    def __init__(self) -> None:
        super().__init__()
        self.batches, self.losses = 0, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.losses += logs["loss"]

    def get_state(self) -> Any:
        return [self.batches, self.losses]

    def set_state(self, state: Any) -> None:
        self.batches, self.losses = state


class Forgets(keras.callbacks.EarlyStopping):  # type: ignore[misc]
    """It has more to keep than Keras' own."""


class Stateful(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback whose state cannot be stored."""


def callbacks_of_keras(file: str) -> list[Any]:
    of = keras.callbacks
    return [
        Score(), Counts(), of.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        of.ReduceLROnPlateau("score", 0.5, patience=2, mode="max"),
        of.EarlyStopping("score", patience=4, mode="max", restore_best_weights=True),
        of.ModelCheckpoint(file, "score", save_best_only=True, save_weights_only=True, mode="max"),
        Forgets("loss", patience=9), Stateful(),
    ]  # fmt: skip


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Shuffled by Python's own generator."""

    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x) // 8

    def __getitem__(self, at: int) -> Any:
        return self.x[at * 8 : at * 8 + 8], self.y[at * 8 : at * 8 + 8]


class Two(keras.Model):  # type: ignore[misc]
    """Two networks with an optimizer each, beside which compile makes a third one that nobody uses."""

    def __init__(self, built: bool) -> None:
        super().__init__()
        self.parts = [model_of(4, keras.Input((6,))), model_of(4, keras.Input((6,)))]
        self.first, self.rest = keras.optimizers.Adam(0.01), {"second": [keras.optimizers.SGD(0.01, momentum=0.9)]}
        for part, optimizer in zip(self.parts, [self.first, self.rest["second"][0]], strict=True):
            if built:
                optimizer.build(part.trainable_variables)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.parts[0](x, training=training) + self.parts[1](x, training=training)

    def apply(self, state: Any, x: Any, y: Any) -> Any:
        """A step on JAX, which takes all variables and returns them."""
        import jax

        trained, fixed, others, metrics = state

        def loss_of(trained: Any) -> Any:
            found, after = self.stateless_call(trained, fixed, x, training=True)
            return ((found - y) ** 2).mean(), after

        (loss, fixed), slopes = jax.value_and_grad(loss_of, has_aux=True)(trained)
        split, moved = len(self.parts[0].trainable_variables), []
        for optimizer, part in ((self.first, slice(split)), (self.rest["second"][0], slice(split, None))):
            if not optimizer.built:
                optimizer.build(self.parts[bool(part.start)].trainable_variables)
            kept = [variable.value for variable in optimizer.variables]
            found, kept = optimizer.stateless_apply(kept, slopes[part], trained[part])
            moved += found
            for variable, value in zip(optimizer.variables, kept, strict=True):
                variable.assign(value)
        return {"loss": loss}, (moved, fixed, others, metrics)

    def learn(self, x: Any, y: Any) -> Any:
        """A step on the other backends, which changes the variables in place."""
        if keras.backend.backend() == "tensorflow":
            with sys.modules["tensorflow"].GradientTape() as tape:
                loss = keras.ops.mean((self(x, training=True) - y) ** 2)
            slopes = tape.gradient(loss, self.trainable_variables)
        else:
            self.zero_grad()
            loss = keras.ops.mean((self(x, training=True) - y) ** 2)
            loss.backward()
            slopes = [variable.value.grad for variable in self.trainable_variables]
        split = len(self.parts[0].trainable_variables)
        for optimizer, part in ((self.first, slice(split)), (self.rest["second"][0], slice(split, None))):
            optimizer.apply(slopes[part], self.trainable_variables[part])  # which makes its variables at the first step
        return {"loss": loss}

    def train_step(self, *told: Any) -> Any:
        if keras.backend.backend() == "jax":
            state, data = told
            return self.apply(state, *data)
        return self.learn(*told[0])


def digest(model: Any) -> str:
    sha = hashlib.sha256()
    beside = [*model.first.variables, *model.rest["second"][0].variables] if isinstance(model, Two) else []
    for variable in [*model.variables, *model.optimizer.variables, *beside]:
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
    if "two" in how:
        model = Two(built=how["two"] == "built")
        model.build((None, 6))
    eager = {"run_eagerly": True} if "two" in how else {}
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=how.get("per_execution", 1), **eager)
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
    others = callbacks_of_keras(how["file"]) if "file" in how else []
    every = [*others, callback, broken] if how.get("others first") else [callback, broken, *others]
    history = model.fit(**data, epochs=how["epochs"], verbose=0, callbacks=every)
    again = None
    if how.get("second"):
        again = model.fit(**data, epochs=2, verbose=0, callbacks=[kinetic.KineticCallback(every=3), broken]).history
    return {
        "digest": digest(model), "seen": broken.seen, "history": history.history, "epoch": history.epoch, "again": again,
        "iterations": int(model.optimizer.iterations), "drawn": broken.drawn,
        "others": [{name: value for name, value in vars(one).items() if type(value) in (int, float)} for one in others],
    }  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    print(json.dumps(train(json.loads(sys.argv[1]))))
