"""Keras on TensorFlow, in an environment of its own: the strategy of several workers finds them by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinetic_orchestration as kinetic
from tests.end_to_end.frameworks.curves import BATCH, BOUNDED, EPOCHS, SLICES, check_same, curves, samples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(2)]
REQUIREMENTS = ["tensorflow-cpu==2.21.0", "keras==3.15.1"]


def fit() -> dict[str, list[float]]:
    """Every worker has all rows, and the strategy gives each its share."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import keras

    keras.utils.set_random_seed(7)
    x, y, _ = samples(0, 1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse")
    rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    history = model.fit(rows, epochs=EPOCHS, verbose=0)
    return {
        "loss": [float(value) for value in history.history["loss"]],
        "seen": [strategy.num_replicas_in_sync],
    }


def test_keras_on_tensorflow_trains_as_one(frameworks: Path) -> None:
    found = curves(fit, requirements=REQUIREMENTS, keras_backend="tensorflow")
    assert {hosts: found[hosts]["seen"] for hosts in SLICES} == {1: [1], 2: [2], 4: [4]}
    check_same(found, "loss", EPOCHS)


def test_a_fit_without_a_strategy_says_that_each_host_trains_a_model(frameworks: Path) -> None:
    @kinetic.run(accelerator="v4-8", limits=BOUNDED, requirements=REQUIREMENTS)  # Keras takes what is there
    def alone() -> str:
        import keras

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        model.fit(*samples(0, 1)[:2], verbose=0)
        return keras.backend.backend()

    job = alone.run_async()
    assert job.result() == "tensorflow"
    said = [line for line in (job.logs() or "").splitlines() if "kinetic:" in line]
    assert len(said) == 1 and "the 2 hosts train a model each" in said[0], said
