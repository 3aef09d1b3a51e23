"""Flax NNX with Optax, in the environment of its example: the hosts train one and the same model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from tests.end_to_end.frameworks.curves import BATCH, BOUNDED, EPOCHS, ROWS, check_same, curves, samples

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.turn(3)]
REQUIREMENTS = Path(__file__).parents[3] / "example_pipelines" / "training_flax.txt"


def program() -> dict[str, list[float]]:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    class Perceptron(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.wide, self.narrow = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.narrow(jnp.tanh(self.wide(x)))

    model = Perceptron(nnx.Rngs(7))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)
    nnx.update((model, optimizer), jax.device_put(nnx.state((model, optimizer)), everywhere))

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, slope = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, slope)
        return loss

    x, y, batch = samples(jax.process_index(), jax.process_count())
    losses = []
    for _ in range(EPOCHS):
        for at in range(0, len(x), batch):
            part = (jax.make_array_from_process_local_data(spread, rows[at : at + batch]) for rows in (x, y))
            losses.append(float(step(model, optimizer, *part)))
    return {"loss": losses}


def test_flax_with_optax_trains_as_one(frameworks: Path) -> None:
    check_same(curves(program, requirements=REQUIREMENTS), "loss", EPOCHS * ROWS // BATCH)


def test_the_second_run_in_an_environment_of_its_own_starts_as_fast_as_without_one(frameworks: Path) -> None:
    """Measured from the submission to the function's first line, in turns."""

    def start() -> float:
        return time.time()

    def took(**options: Any) -> float:
        began = time.time()
        first_line: float = kinetic.run(accelerator="cpu", limits=BOUNDED, **options)(start).run_async().result()
        return first_line - began

    took(requirements=REQUIREMENTS), took()  # builds it, stages the project
    more: list[float] = []
    while not more or (min(more) >= 2.0 and len(more) < 10):  # a busy machine has calm moments
        more.append(took(requirements=REQUIREMENTS) - took())
    assert min(more) < 2.0, more
