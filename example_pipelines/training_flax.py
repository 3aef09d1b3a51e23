"""Shows a training with Flax NNX, Optax, Grain and Orbax as a Dagster asset, in an environment of its own.

    python example_pipelines/training_flax.py             here and now, on the terminal
    dagster dev -f example_pipelines/training_flax.py     the same in Dagster's own pages

`training_flax.txt` names what the hosts need; it is installed once, and Dagster's own environment has none of it. Each
of the four hosts reads its share of the data with Grain, the gradients are of all of them, and Orbax keeps model,
optimizer and the place in the data together, so that an attempt after a preemption sees each example that is still due.

To change for a real slice: the one line at the end of this file,
    KineticResource(project="my-project", store="gs://my-bucket/kinetic", require_hardware=True, spot=True)
and a Grain source that reads your files in place of `points`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np

from dagster_kinetic import HostContext, KineticResource, kinetic_asset

REQUIREMENTS = Path(__file__).with_name("training_flax.txt")
ARMS, BATCH, KEEP_EVERY = 3, 96, 20
STEPS, RATE = 120, 0.02
REQUIRED = 0.9


@dg.asset
def points() -> dict[str, np.ndarray]:
    """A spiral with three arms; which arm a point lies on is to be learned."""
    random = np.random.default_rng(0)
    arm, turn = random.integers(0, ARMS, 3000), random.random(3000)
    angle = 2 * np.pi * (arm / ARMS + 0.8 * turn) + random.normal(0, 0.1, 3000)
    place = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) * 2
    return {"place": place.astype(np.float32), "arm": arm.astype(np.int32)}


@kinetic_asset(accelerator="v5e-16", requirements=REQUIREMENTS)
def classifier(host: HostContext, points: dict[str, np.ndarray]) -> dict[str, Any]:
    """Runs on every host of the slice. As no name of Dagster is in it, Dagster need not be there."""
    return train(host, points, STEPS, RATE)


@dg.asset_check(asset=classifier, blocking=True)
def accuracy(classifier: dict[str, Any]) -> dg.AssetCheckResult:
    """Nothing that stands on a worse one is made."""
    shown = {name: classifier[name] for name in ("accuracy", "loss", "first_step", "devices")}
    return dg.AssetCheckResult(passed=classifier["accuracy"] >= REQUIRED, metadata=shown)


def train(host: HostContext, points: dict[str, np.ndarray], steps: int, learning_rate: float) -> dict[str, Any]:
    import grain
    import jax
    import optax
    import orbax.checkpoint as ocp
    from flax import nnx
    from jax.sharding import NamedSharding, PartitionSpec

    class Perceptron(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first = nnx.Linear(2, 64, rngs=rngs)
            self.second = nnx.Linear(64, 64, rngs=rngs)
            self.last = nnx.Linear(64, ARMS, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.last(nnx.gelu(self.second(nnx.gelu(self.first(x)))))

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    model = Perceptron(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(learning_rate), wrt=nnx.Param)
    nnx.update((model, optimizer), jax.device_put(nnx.state((model, optimizer)), everywhere))

    # Shuffled as a whole, then each host's share of every batch.
    rows = [{"place": place, "arm": arm} for place, arm in zip(points["place"], points["arm"], strict=True)]
    shuffled = grain.MapDataset.source(rows).seed(7).shuffle().repeat()
    mine = shuffled[jax.process_index() :: jax.process_count()].batch(BATCH // jax.process_count())
    batches = iter(mine.to_iter_dataset())

    @nnx.jit
    def step(model: Perceptron, optimizer: nnx.Optimizer, place: jax.Array, arm: jax.Array) -> jax.Array:
        def loss(model: Perceptron) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(model(place), arm).mean()

        value, slope = nnx.value_and_grad(loss)(model)
        optimizer.update(model, slope)
        return value

    losses = []
    with ocp.CheckpointManager(host.checkpoint_dir, options=ocp.CheckpointManagerOptions(max_to_keep=2)) as kept:
        done = kept.latest_step() or 0
        if done:
            like = nnx.state((model, optimizer))
            found = kept.restore(
                done,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(like), data=grain.checkpoint.CheckpointRestore(batches)
                ),
            )
            nnx.update((model, optimizer), found["state"])
        for number in range(done + 1, steps + 1):
            batch = {name: jax.make_array_from_process_local_data(spread, part) for name, part in next(batches).items()}
            losses.append(float(step(model, optimizer, batch["place"], batch["arm"])))
            if number % KEEP_EVERY == 0 or number == steps:
                state = ocp.args.StandardSave(nnx.state((model, optimizer)))
                kept.save(number, args=ocp.args.Composite(state=state, data=grain.checkpoint.CheckpointSave(batches)))
                host.log_metrics(step=number, loss=losses[-1])
                host.progress(number, steps, unit="step")

    weights = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    guesses = np.argmax(np.asarray(nnx.jit(Perceptron.__call__)(model, jax.device_put(points["place"], everywhere))), 1)
    return {
        "weights": weights,
        "losses": losses,
        "loss": losses[-1] if losses else float("nan"),
        "accuracy": float(np.mean(guesses == points["arm"])),
        "first_step": done,
        "devices": jax.device_count(),
    }


defs = dg.Definitions(
    assets=[points, classifier],
    asset_checks=[accuracy],
    jobs=[dg.define_asset_job("training")],
    resources={"kinetic": KineticResource()},
)


def main() -> None:
    result = defs.resolve_job_def("training").execute_in_process()
    made = result.output_for_node("classifier")
    print(
        f"\nresult   accuracy {made['accuracy']:.1%} on {made['devices']} devices, loss {made['loss']:.3f}"
        f"\nthe UI   dagster dev -f {sys.argv[0]}"
    )


if __name__ == "__main__":
    main()
