"""Shows LoRA fine-tuning of a language model in plain JAX: the model is frozen, the batch is spread over every device
of the slice, and only small adapters are trained, kept every ten steps, and gone on with after a preemption.

    python example_pipelines/training_lora_jax.py

The model is tiny and random, and the text is made here, so that this ends in seconds on two cores. For a real slice:
give a project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…), take `accelerator="v5e-16"`
with `spot=True`, and read weights and tokens in `pretrained` and `batch_of`, from a `kinetic.Data("gs://…")` that
`finetune` is given.
"""

from __future__ import annotations

from typing import Any

import kinetic_orchestration as kinetic

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH = 61, 32, 2, 4, 16
RANK, SCALE = 4, 2.0
BATCH, KEEP_EVERY = 32, 10
ADAPTED = ("query", "key", "value", "out", "up", "down")


def pretrained() -> dict[str, Any]:
    """The frozen model; from a checkpoint in real life."""
    import jax

    keys = iter(jax.random.split(jax.random.key(0), 3 + LAYERS * len(ADAPTED)))

    def normal(rows: int, columns: int) -> jax.Array:
        return jax.random.normal(next(keys), (rows, columns)) * rows**-0.5

    shapes = {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = [{name: normal(*shapes.get(name, (WIDTH, WIDTH))) for name in ADAPTED} for _ in range(LAYERS)]
    return {"tokens": normal(VOCABULARY, WIDTH), "places": normal(LENGTH, WIDTH), "layers": layers}


def adapters(base: dict[str, Any]) -> list[dict[str, Any]]:
    """Two thin matrices for each wide one; as the second is zero, training begins at the base model."""
    import jax
    import jax.numpy as jnp

    def pair(number: int, wide: jax.Array) -> dict[str, jax.Array]:
        key = jax.random.key(number + 1)
        rows, columns = wide.shape
        return {"down": jax.random.normal(key, (rows, RANK)) * rows**-0.5, "up": jnp.zeros((RANK, columns))}

    return [
        {name: pair(depth * len(ADAPTED) + number, layer[name]) for number, name in enumerate(ADAPTED)}
        for depth, layer in enumerate(base["layers"])
    ]


def batch_of(step: int) -> Any:
    """Sequences in which each token tells the next one, save for some noise. The same step has the same ones always."""
    import numpy as np

    random = np.random.default_rng(step)
    rows = [random.integers(0, VOCABULARY, BATCH)]
    for _ in range(LENGTH):
        following = (3 * rows[-1] + 1) % VOCABULARY
        rows.append(np.where(random.random(BATCH) < 0.05, random.integers(0, VOCABULARY, BATCH), following))
    return np.stack(rows, axis=1).astype(np.int32)


def loss_of(adapted: list[dict[str, Any]], base: dict[str, Any], tokens: Any) -> Any:
    """The mean surprise at each next token."""
    import jax
    import jax.numpy as jnp

    def normalized(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    def heads(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], HEADS, WIDTH // HEADS)

    x = base["tokens"][tokens[:, :-1]] * WIDTH**0.5 + base["places"]
    for layer, thin in zip(base["layers"], adapted, strict=True):

        def project(x: jax.Array, name: str, layer: Any = layer, thin: Any = thin) -> jax.Array:
            return x @ layer[name] + SCALE * (x @ thin[name]["down"]) @ thin[name]["up"]

        y = normalized(x)
        seen = jax.nn.dot_product_attention(*(heads(project(y, name)) for name in ADAPTED[:3]), is_causal=True)
        x = x + project(seen.reshape(x.shape), "out")
        x = x + project(jax.nn.gelu(project(normalized(x), "up")), "down")
    chances = jax.nn.log_softmax(normalized(x) @ base["tokens"].T * WIDTH**0.5)
    return -jnp.mean(jnp.take_along_axis(chances, tokens[:, 1:, None], axis=-1))


@kinetic.run(accelerator="v5e-8")
def finetune(steps: int = 60, rate: float = 0.01) -> dict[str, Any]:
    """Runs on every host; `jax.devices()` are those of the whole slice."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    base = jax.jit(pretrained, out_shardings=everywhere)()
    thin = adapters(base)
    zeros = jax.tree.map(jnp.zeros_like, thin)
    begin = jax.device_put({"adapters": thin, "momentum": zeros, "square": zeros}, everywhere)

    @jax.jit
    def update(state: dict[str, Any], number: jax.Array, base: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        """Adam, in its four lines."""
        loss, slope = jax.value_and_grad(loss_of)(state["adapters"], base, tokens)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["momentum"], slope)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, state["square"], slope)
        size = rate * jnp.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1))
        moved = jax.tree.map(lambda w, m, s: w - size * m / (jnp.sqrt(s) + 1e-8), state["adapters"], momentum, square)
        return {"adapters": moved, "momentum": momentum, "square": square}, loss

    training = kinetic.Training(every=KEEP_EVERY, total=steps, log_every=KEEP_EVERY, name="adapters")
    state, done = training.restore(begin)
    losses = []
    for number in range(done, steps):
        whole = batch_of(number)
        tokens = jax.make_array_from_callback(whole.shape, spread, lambda index, whole=whole: whole[index])
        state, loss = update(state, np.float32(number), base, tokens)
        training.step(number + 1, state, loss=loss)
        losses.append(float(loss))
    training.finish(state)
    trained = sum(leaf.size for leaf in jax.tree.leaves(state["adapters"]))
    return {
        "losses": losses,
        "first": done,
        "trained": trained / sum(leaf.size for leaf in jax.tree.leaves(base)),
        "devices": jax.device_count(),
    }


def main() -> None:
    found = finetune()
    print(
        f"\nresult   loss {found['losses'][0]:.2f} → {found['losses'][-1]:.2f} on {found['devices']} devices, "
        f"training {found['trained']:.0%} as many weights as the model has"
    )


if __name__ == "__main__":
    main()
