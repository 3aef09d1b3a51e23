"""Behaviour of `KineticCallback` that needs a process with Keras: each named case prints a line with its result.

python keras_moments.py plain twice …
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import CheckpointError, UsageError

X = np.arange(96, dtype="float32").reshape(16, 6) / 96


def model() -> Any:
    made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def fit(made: Any, *callbacks: Any, **more: Any) -> Any:
    return made.fit(X, X.sum(1), batch_size=8, verbose=0, callbacks=list(callbacks), **{"epochs": 2, **more})


def plain() -> None:
    """Two fits of one model: the second begins where it is told to, though the first had ended already."""
    made = model()
    fit(made, kinetic.KineticCallback(name="first"))
    print(len(fit(made, epochs=3).epoch))


def twice() -> None:
    """One callback with a name in two fits."""
    made, callback = model(), kinetic.KineticCallback(name="mine")
    print(len(fit(made, callback).epoch), len(fit(made, callback).epoch))


def stream() -> None:
    """Act as on torch, which this environment lacks: Keras only reports that it is its backend."""
    real, keras.backend.backend = keras.backend.backend, lambda: "torch"
    try:
        fit(model(), kinetic.KineticCallback(stream=True, name="stream"))
    except CheckpointError as error:
        print(" ".join(str(error).split()))
    finally:
        keras.backend.backend = real


def shares() -> None:
    """Batches that are another part of the global one than this host's."""
    try:
        fit(model(), kinetic.KineticCallback(name="shares", global_batch=16))
    except UsageError as error:
        print(" ".join(str(error).split()))


def unbuilt() -> None:
    """Act as on TensorFlow, where Keras begins a fit of data of unknown shapes without any variables."""
    callback = kinetic.KineticCallback(name="unbuilt")
    callback.set_model(keras.Sequential([keras.layers.Dense(1)]))  # type: ignore[attr-defined]
    try:
        callback.on_train_begin()
    except CheckpointError as error:
        print(" ".join(str(error).split()))


def failed() -> None:
    """Another callback raises, and the fit is given up: the program's first, which began before we could see it."""

    class Breaks(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyError("no data")

    made, handler = model(), signal.getsignal(signal.SIGTERM)
    for _ in range(2):
        with contextlib.suppress(KeyError):
            made.fit(X, X.sum(1), verbose=0, callbacks=[kinetic.KineticCallback(), Breaks()])
        for thread in threading.enumerate():
            if thread.name == "kinetic-notice":
                thread.join(10)
        left = [thread for thread in threading.enumerate() if thread.name == "kinetic-notice"]
        print(signal.getsignal(signal.SIGTERM) == handler, len(left), end=" ")
    print()


def taken_back() -> None:
    """The machine is, in the first epoch's validation, which is long."""
    validated(told=True)


def validated(told: bool = False) -> None:

    class Told(keras.callbacks.Callback):  # type: ignore[misc]
        batches = 0

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not batch:
                os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(0.01)
            self.batches += 1

        def on_test_end(self, logs: Any = None) -> None:
            print("unheard")

    y = np.zeros((2000, 6), "float32")
    others, callback = [Told()] if told else [], kinetic.KineticCallback(name="v")
    try:
        more = {"validation_data": (y, y.sum(1)), "validation_batch_size": 1}
        print(fit(model(), callback, *others, **more).epoch)
    except kinetic.TrainingEnded as ended:
        print(ended.step, ended.saved)


def passes() -> None:
    """Batches that take long to come, of which seven were trained on when it failed."""

    class Slow(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 10

        def __getitem__(self, at: int) -> Any:
            time.sleep(0.2)
            return X[:8], X[:8].sum(1)

    class Breaks(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 7 and kinetic.current().attempt == 1:
                raise KeyError("no data")

    made, callback = model(), kinetic.KineticCallback(name="passes", every=7)
    try:
        made.fit(Slow(), verbose=0, shuffle=False, callbacks=[callback, Breaks()])
        print(int(made.optimizer.iterations))
    except KeyError:
        print("fails")


def endless() -> None:
    """Print the messages about data that continue from epoch to epoch, and about others."""

    class Endless(keras.utils.PyDataset):  # type: ignore[misc]
        num_batches = None

        def __getitem__(self, at: int) -> Any:
            return X[:4], X[:4].sum(1)

    said = []

    def tell(name: str, *data: Any, stream: bool = False, **more: Any) -> None:
        callback = kinetic.KineticCallback(name=name, stream=stream)
        with contextlib.redirect_stderr(io.StringIO()) as err:
            model().fit(*data, epochs=2, verbose=0, callbacks=[callback], shuffle=False, **more)
        found = [line for line in err.getvalue().splitlines() if "from epoch to epoch" in line]
        said.append(found[0].removeprefix(f"{name}: ") if found else "none")

    tell("endless", Endless(), steps_per_epoch=3)
    tell("short", X, X.sum(1), batch_size=4, steps_per_epoch=3)
    tell("whole", X, X.sum(1), batch_size=4, steps_per_epoch=4)
    tell("all", X, X.sum(1), batch_size=4)
    tell("streamed", Endless(), steps_per_epoch=3, stream=True)
    print("; ".join(said))


def elsewhere() -> None:
    """An optimizer that the model holds trains what is no part of it."""

    class Trains(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not self.model.other.built:
                self.model.other.build([keras.Variable(np.zeros(2))])

    made = model()
    made.other = keras.optimizers.Adam()
    try:
        fit(made, kinetic.KineticCallback(name="elsewhere"), Trains())
        print("fits")
    except CheckpointError as error:
        print(" ".join(str(error).split()))


def memory() -> None:
    """Print the peak of additional memory during the restoration of a model of 84 MB, as a share of it."""
    from kinetic_orchestration.program import loop

    size = 1448
    layers = [keras.layers.Dense(size, use_bias=False, kernel_initializer="ones") for _ in range(10)]
    made = keras.Sequential([keras.Input((size,)), *layers])
    made.compile("sgd", "mse")

    def now() -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        most, over = 0, threading.Event()

        def on_train_begin(self, logs: Any = None) -> None:  # after the one that restores
            self.over.set()

        def watch(self) -> None:
            while not self.over.wait(0.001):
                self.most = max(self.most, now())

    x = np.zeros((1, size), "float32")
    made.fit(x, x, verbose=0, callbacks=[kinetic.KineticCallback(name="m")])
    loop._finished.clear()  # as a new process begins
    for layer in layers:
        layer.kernel.assign(keras.ops.zeros((size, size)))
    before, watch = now(), Watch()
    thread = threading.Thread(target=watch.watch)
    thread.start()
    made.fit(x, x, verbose=0, callbacks=[kinetic.KineticCallback(name="m"), watch])
    thread.join()
    more = (watch.most - before) / (10 * size * size * 4)
    print(round(more, 2), [float(layer.kernel.value[0, 0]) for layer in layers])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        keras.utils.clear_session()  # layers are named as in a process of its own
        print(name, end=": ")
        globals()[name]()
