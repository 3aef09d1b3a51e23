"""Plain JAX and Keras on JAX: a slice of one host, of two and of four trains one and the same model."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from tests.end_to_end.frameworks.curves import BATCH, BOUNDED, EPOCHS, ROWS, SLICES, check_same, curves, samples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(2)]
STEPS = EPOCHS * ROWS // BATCH
Curves = dict[int, dict[str, list[float]]]


def plain(by_hand: bool) -> list[float]:
    """A perceptron whose batch is spread over all devices: the compiler shares the work, or the code does itself."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = NamedSharding(mesh, PartitionSpec("data"))
    x, y, batch = samples(jax.process_index(), jax.process_count())
    random = np.random.default_rng(1)
    weights = [random.normal(size=(8, 16)).astype(np.float32), random.normal(size=(16, 1)).astype(np.float32) * 0.25]

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2)

    def descend(weights: Any, x: Any, y: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(weights, x, y)
        if by_hand:
            value, slope = jax.lax.pmean((value, slope), "data")
        return [w - 0.1 * s for w, s in zip(weights, slope, strict=True)], value

    if by_hand:
        whole, part = PartitionSpec(), PartitionSpec("data")
        # Without the check JAX would add the sums over all devices by itself, beside those that are written here.
        descend = jax.shard_map(
            descend, mesh=mesh, in_specs=(whole, part, part), out_specs=(whole, whole), check_vma=False
        )
    step = jax.jit(descend)
    losses = []
    for _ in range(EPOCHS):
        for at in range(0, len(x), batch):
            place = functools.partial(jax.make_array_from_process_local_data, spread)
            weights, value = step(weights, place(x[at : at + batch]), place(y[at : at + batch]))
            losses.append(float(value))
    return losses


def keras_fit(model_parallel: bool) -> list[float]:
    """Nothing but `fit`, after one line that says how the model and the batch are laid out."""
    import keras

    keras.utils.set_random_seed(7)
    distribution = keras.distribution
    if model_parallel:
        devices = distribution.list_devices()
        mesh = distribution.DeviceMesh((len(devices) // 4, 4), ("batch", "model"), devices)
        layout = distribution.LayoutMap(mesh)
        layout[".*wide/kernel"] = (None, "model")
        layout[".*wide/bias"] = ("model",)
        layout[".*narrow/kernel"] = ("model", None)
        layout = distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False)
        distribution.set_distribution(layout)
    else:
        distribution.set_distribution(distribution.DataParallel(auto_shard_dataset=False))
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, "tanh", name="wide"), keras.layers.Dense(1, name="narrow")]
    )
    model.compile(optimizer=keras.optimizers.Adam(0.02), loss="mse")
    if model_parallel:
        split = model.get_layer("wide").kernel.value.sharding
        assert "model" in str(split.spec), split
    host = kinetic.current()
    x, y, batch = samples(host.host_index, host.host_count)
    history = model.fit(x, y, batch_size=batch, epochs=EPOCHS, shuffle=False, verbose=0)
    return [float(value) for value in history.history["loss"]]


def program() -> dict[str, list[float]]:
    import jax

    return {
        "jit": plain(by_hand=False),
        "shard_map": plain(by_hand=True),
        "data parallel": keras_fit(model_parallel=False),
        "model parallel": keras_fit(model_parallel=True),
        "seen": [jax.process_count(), jax.device_count()],
    }


@pytest.fixture(scope="module")
def found(shared_home: Path) -> Curves:
    return curves(program, keras_backend="jax")


def test_every_slice_was_used_whole(found: Curves) -> None:
    assert {hosts: found[hosts]["seen"] for hosts in SLICES} == {1: [1, 8], 2: [2, 8], 4: [4, 16]}


@pytest.mark.parametrize("training", ["jit", "shard_map"])
def test_plain_jax_trains_as_one(found: Curves, training: str) -> None:
    check_same(found, training, STEPS)


@pytest.mark.parametrize("training", ["data parallel", "model parallel"])
def test_keras_trains_as_one_once_its_layout_is_named(found: Curves, training: str) -> None:
    check_same(found, training, EPOCHS)


def test_a_fit_without_a_distribution_says_what_is_idle(shared_home: Path) -> None:
    """Keras would use one device of each host, and say nothing."""

    @kinetic.run(accelerator="v4-8", limits=BOUNDED)  # KERAS_BACKEND is nowhere
    def fit() -> str:
        import keras

        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        for _ in range(2):
            model.fit(*samples(0, 1)[:2], verbose=0)
        return keras.backend.backend()

    job = fit.run_async()
    assert job.result() == "jax"
    said = [line for line in (job.logs() or "").splitlines() if "kinetic:" in line]
    assert len(said) == 1 and said[0].startswith("[host 0] "), said
    assert "1 of 4 devices of a host, and the 2 hosts train a model each" in said[0]
    assert "set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))" in said[0]
