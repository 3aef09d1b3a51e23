"""Steps a second: from the end of the first step on, and without checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.program.speed import Speed, Spent


def test_the_first_step_and_what_is_no_training_are_left_out() -> None:
    speed = Speed(samples=32, tokens=4096)
    speed.begin()
    speed.reached(101, 60.0)  # the first step after a restoration took a minute
    assert speed.metrics(101, 60.0) == {}
    assert speed.metrics(103, 60.5) == {}, "half a second tells little"
    speed.leave_out(5.0)
    assert speed.metrics(121, 67.0) == {"steps/s": 10.0, "samples/s": 320.0, "tokens/s": 40960.0}
    assert speed.metrics(141, 72.0) == {"steps/s": 4.0, "samples/s": 128.0, "tokens/s": 16384.0}
    assert speed.rate == 4.0
    speed.begin()
    assert speed.metrics(150, 80.0) == {}
    speed.reached(90, 80.0)
    speed.reached(10, 81.0)  # somebody counts from the beginning again
    assert speed.metrics(20, 83.0)["steps/s"] == 5.0


@pytest.mark.slow
def test_a_loop_tells_its_speed_with_its_metrics_and_its_progress(host: Callable[..., Any]) -> None:
    there = host()
    with kinetic.Training(every=30, name="t", samples=8, log_every=15) as training:
        training.restore({"sum": 0})
        time.sleep(0.5)  # the first step, which is compiled
        for number in range(1, 91):
            time.sleep(0.02)
            training.step(number, lambda: time.sleep(0.6) or {"sum": 0}, loss=1.0)
        training.finish({"sum": 1})
    told = [one["values"] for one in there.told("m")]
    fast = [values for values in told if "steps/s" in values]
    assert fast, told
    assert all(values["loss"] == 1.0 for values in told)
    assert all(0 < values["steps/s"] <= 52 for values in fast), fast
    assert all(values["samples/s"] == pytest.approx(8 * values["steps/s"]) for values in fast)
    assert there.told("p")[-1]["rate"] == fast[-1]["steps/s"]


def test_what_a_step_takes_is_a_whole_number() -> None:
    with pytest.raises(UsageError, match="tokens is 'many': give how many tokens one step takes"):
        kinetic.Training(tokens="many")  # type: ignore[arg-type]


FIT = """
import time
import keras
import numpy as np
import kinetic_orchestration as kinetic

class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.02)
    def on_test_batch_begin(self, batch, logs=None):
        time.sleep(0.6)

x = np.ones((160, 4), "float32")
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
callbacks = [kinetic.KineticCallback(every=None), Slow()]
model.fit(x, x.sum(1), batch_size=4, epochs=3, verbose=0, validation_data=(x[:4], x[:4, 0]), callbacks=callbacks)
"""


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.timeout(400)
def test_a_fit_of_keras_tells_its_speed_without_its_validations(host: Callable[..., Any]) -> None:
    there = host()
    environ = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, timeout=300, env=environ)
    assert done.returncode == 0, done.stderr
    told = [one["values"] for one in there.told("m")]
    fast = [values for values in told if "steps/s" in values]
    assert fast, told
    assert all(values["samples/s"] == pytest.approx(4 * values["steps/s"]) for values in fast), "of four each"
    assert all(0 < values["steps/s"] <= 52 for values in fast), fast


def test_the_first_step_alone_may_be_compilation_whether_anything_was_restored_or_not() -> None:
    found = []
    for restored in (True, False):
        spent = Spent()
        if restored:
            spent.restored(0, since=1.0, now=2.0)
        for step, now in ((1, 10.0), (2, 13.0), (3, 17.0)):
            spent.reached(step, now)
        found.append(spent.numbers())
    assert found == [[0, 3, 7.0, 8.0, 1.0, 0.0], [0, 3, 7.0, 0.0, 0.0, 0.0]], "of the other nobody knows when it began"


def test_to_come_to_its_place_in_the_data_is_a_part_of_a_restoration() -> None:
    spent = Spent()
    spent.restored(5, since=1.0, now=2.0)
    spent.passed_over(6.0)
    for step, now in ((6, 10.0), (7, 13.0)):
        spent.reached(step, now)
    assert spent.numbers() == [5, 7, 3.0, 2.0, 7.0, 0.0]
