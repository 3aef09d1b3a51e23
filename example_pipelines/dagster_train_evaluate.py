"""A Dagster pipeline whose middle step runs on a TPU slice: points → model → accuracy → released.

    python example_pipelines/dagster_train_evaluate.py             here and now, on the terminal
    dagster dev -f example_pipelines/dagster_train_evaluate.py     the same in Dagster's own pages

`model` trains on every host of a v5e-16 at once: 4 hosts with 4 chips each, data-parallel over all 16. No TPU is
needed here: 4 processes of this machine stand for the hosts, and the code cannot tell the difference. `released` is
made only if the blocking check `good_enough` of `accuracy` passes.

To change for a real slice: the one line at the end of this file,
    KineticResource(project="my-project", store="gs://my-bucket/kinetic", require_hardware=True)
The pipeline itself stays as it is.
"""

from __future__ import annotations

import logging
import shlex
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import dagster as dg
import numpy as np

from dagster_kinetic import HostContext, KineticResource, kinetic_asset
from kinetic_orchestration.plan.messages import command, program

Arrays = dict[str, np.ndarray]
HIDDEN = 32
WEIGHTS = 4 * HIDDEN + 1
EPOCHS, STEPS, LEARNING_RATE = 5, 10, 0.2
REQUIRED = 0.9


@dg.asset
def points(context) -> Arrays:
    """Two moons in the plane, one of each kind, with some noise."""
    random = np.random.default_rng(seed=0)
    angle = random.uniform(0, np.pi, size=2048)
    kind = np.arange(2048) % 2
    x = np.where(kind, 1 - np.cos(angle), np.cos(angle)) + random.normal(0, 0.12, 2048)
    y = np.where(kind, 0.5 - np.sin(angle), np.sin(angle)) + random.normal(0, 0.12, 2048)
    context.log.info("2048 points of two kinds")
    return {"xy": np.stack([x, y], axis=1).astype(np.float32), "kind": kind.astype(np.float32)}


@kinetic_asset(accelerator="v5e-16")
def model(host: HostContext, points: Arrays) -> np.ndarray:
    """A small neural network, trained on all chips of the slice. This body runs on every host."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    chips = jax.make_mesh((jax.device_count(),), ("batch",))
    split, everywhere = NamedSharding(chips, PartitionSpec("batch")), NamedSharding(chips, PartitionSpec())
    share = slice(host.host_index, None, host.host_count)  # of the points, for this host
    xy, kind = (jax.make_array_from_process_local_data(split, points[name][share]) for name in ("xy", "kind"))
    print(f"joined with {jax.local_device_count()} of {jax.device_count()} chips and {len(points['xy'][share])} points")

    def loss_of(weights, xy, kind):
        logits = predict(weights, xy, jnp)
        return jnp.mean(jnp.logaddexp(0, logits) - kind * logits)

    def adam(state, xy, kind):
        weights, mean, square = state
        gradient = jax.grad(loss_of)(weights, xy, kind)  # averaged over all chips
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        return weights - LEARNING_RATE * mean / (jnp.sqrt(square) + 1e-8), mean, square

    @jax.jit
    def epoch(state, xy, kind):
        state = jax.lax.fori_loop(0, STEPS, lambda _, state: adam(state, xy, kind), state)
        return state, loss_of(state[0], xy, kind), jnp.mean((predict(state[0], xy, jnp) > 0) == (kind > 0.5))

    weights = np.random.default_rng(seed=1).normal(0, 1, WEIGHTS).astype(np.float32)
    state = jax.jit(lambda: (weights, 0 * weights, 0 * weights), out_shardings=everywhere)()
    for number in range(1, EPOCHS + 1):
        state, loss, correct = epoch(state, xy, kind)
        if host.host_index == 0:
            host.log_metrics(step=number, loss=float(loss), accuracy=float(correct))
        host.progress(number, EPOCHS, unit="epochs")
    return np.asarray(state[0])


@dg.asset(check_specs=[dg.AssetCheckSpec("good_enough", asset="accuracy", blocking=True)])
def accuracy(context, points: Arrays, model: np.ndarray):
    """Return how many points the model puts on the right side, and a picture of where it draws the line."""
    value = float(np.mean((predict(model, points["xy"], np) > 0) == (points["kind"] > 0.5)))
    drawing = picture(points, model)
    context.log.info(f"{value:.1%} of the points are on the right side of the line it draws:")
    print(drawing)
    return dg.MaterializeResult(
        value=value,
        metadata={"accuracy": value, "picture": dg.MetadataValue.md(f"```\n{drawing}\n```")},
        check_results=[dg.AssetCheckResult(check_name="good_enough", passed=value >= REQUIRED, metadata={"is": value})],
    )


@dg.asset(deps=[accuracy])
def released(model: np.ndarray) -> np.ndarray:
    """The weights that others take."""
    return model


def predict(weights, xy, numpy):
    """One hidden layer; above 0 means the second kind."""
    hidden = numpy.tanh(xy @ weights[: 2 * HIDDEN].reshape(2, HIDDEN) + weights[2 * HIDDEN : 3 * HIDDEN])
    return hidden @ weights[3 * HIDDEN : -1] + weights[-1]


def picture(points: Arrays, weights: np.ndarray, width: int = 64, height: int = 17) -> str:
    low, high = points["xy"].min(axis=0), points["xy"].max(axis=0)
    across, down = np.linspace(low[0], high[0], width), np.linspace(high[1], low[1], height)
    grid = np.stack(np.meshgrid(across, down), axis=-1).reshape(-1, 2)
    canvas = np.where(predict(weights, grid, np).reshape(height, width) > 0, "·", " ")
    cells = ((points["xy"] - low) / (high - low) * [width - 1, height - 1]).round().astype(int)
    for (column, row), kind in zip(cells, points["kind"], strict=True):
        canvas[height - 1 - row, column] = "●" if kind else "○"
    return "\n".join("    " + "".join(line) for line in canvas)


defs = dg.Definitions(
    assets=[points, model, accuracy, released],
    jobs=[dg.define_asset_job("train_and_evaluate")],
    resources={"kinetic": KineticResource()},
)


@dg.logger
def brief(_: dg.InitLoggerContext) -> logging.Logger:
    """For a terminal: what the steps say, in short lines, and not what Dagster notes for itself."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note = record.__dict__["dagster_meta"]
            if note["dagster_event"] is None:
                print(f"{note['step_key']:>8} │ {note['orig_message']}", flush=True)

    logger = logging.Logger("brief", logging.INFO)
    logger.addHandler(Lines())
    return logger


def main() -> None:
    began = time.monotonic()
    pipeline = dg.Definitions.merge(defs, dg.Definitions(loggers={"brief": brief}))
    result = pipeline.resolve_job_def("train_and_evaluate").execute_in_process(run_config={"loggers": {"brief": {}}})
    made = result.asset_materializations_for_node("model")[0].metadata
    server = "" if find_spec("dagster_webserver") else f"{_install('dagster-webserver')} && "
    print(
        f"\nresult   accuracy {result.output_for_node('accuracy'):.1%} after {time.monotonic() - began:.0f} s"
        f"\nits log  {command('logs', made['kinetic/job_id'].value)}"
        f"\nthe UI   {server}{program('dagster')} dev -f {shlex.quote(sys.argv[0])}"
    )


def _install(package: str) -> str:
    constraints = "-c constraints.txt " if Path("constraints.txt").is_file() else ""
    return f"{program(Path(sys.executable).name)} -m pip install {constraints}{package}"


if __name__ == "__main__":
    try:
        main()
    except dg.DagsterExecutionInterruptedError:
        sys.exit(130)  # Ctrl-C: the job is cancelled and its hosts are gone
