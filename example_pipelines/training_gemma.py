"""Shows LoRA fine-tuning of one Gemma by KerasHub and by Flax, from the layout of Hugging Face's hub into the same.

    python example_pipelines/training_gemma.py [keras] [flax]

The model is a tiny random Gemma 3 whose weights, configuration and tokenizer are made here (tiny_gemma.py), and both
ways share one environment (gemma_lora/pyproject.toml, 1.3 GB, without torch and TensorFlow). Each goes on at its last
checkpoint after a preemption. At the end both ways read each result, and compute the same logits.

For a real slice: give a project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…), take
`accelerator="v6e-4"` with `spot=True`, DTYPE = "bfloat16" and rows of your own in `tokens_of`, and give both functions
the model as `kinetic.Data("gs://my-bucket/gemma-3-1b-it/")`. docs/training/frameworks.md tells how it comes there from
the hub, whose token is a secret.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import tiny_gemma

import kinetic_orchestration as kinetic

REQUIREMENTS = Path(__file__).parent / "gemma_lora" / "pyproject.toml"
RANK, BATCH, EPOCH, KEEP_EVERY = 8, 16, 10, 5
DTYPE = "float32"  # bfloat16 on a TPU


def tokens_of(model: str, rows: int) -> Any:
    """Sentences one after the other, in rows of one token more than the model reads, by the model's own tokenizer."""
    import numpy as np
    import sentencepiece

    words = sentencepiece.SentencePieceProcessor(model_file=f"{model}/tokenizer.model")
    random, known = np.random.default_rng(0), tiny_gemma.sentences()
    texts = (" ".join(random.choice(known, tiny_gemma.LENGTH // 4)) for _ in range(rows))
    return np.array([[words.bos_id(), *words.encode(text)][: tiny_gemma.LENGTH + 1] for text in texts], np.int32)


@kinetic.run(accelerator="cpu", backend="local", requirements=REQUIREMENTS)
def make_model() -> str:
    with tempfile.TemporaryDirectory() as scratch:
        return kept(tiny_gemma.make(f"{scratch}/model"), kinetic.current().output_dir + "/model")


def kept(folder: str, address: str) -> str:
    """A copy of a folder of files, here or in a bucket."""
    if "://" not in address:
        return str(shutil.copytree(folder, address, dirs_exist_ok=True))
    from google.cloud import storage

    for path in Path(folder).iterdir():
        storage.Blob.from_uri(f"{address}/{path.name}", client=storage.Client()).upload_from_filename(str(path))
    return address


def adapted(base: str, weights: Path, host: kinetic.HostContext, name: str) -> str:
    """The model in the hub's layout, of which all but the weights is as it was; kept by host 0."""
    address = f"{host.output_dir}/{name}"
    if host.host_index == 0:
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copytree(base, scratch, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
            shutil.copy(weights, scratch)
            kept(scratch, address)
    return address


# ---- KerasHub --------------------------------------------------------------------------------------------------------


def read_by_keras(model: str) -> Any:
    """Without KerasHub's own preprocessor, which takes TensorFlow."""
    import keras_hub

    return keras_hub.models.Gemma3CausalLM.from_preset(model, preprocessor=None, dtype=DTYPE)


def logits_by_keras(gemma: Any, tokens: Any) -> Any:
    import numpy as np

    return np.asarray(gemma({"token_ids": tokens, "padding_mask": np.ones_like(tokens)}))


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS, keras_backend="jax")
def with_keras(model: str, epochs: int = 6, rate: float = 0.01) -> dict[str, Any]:
    """Runs on every host: each has its share of the rows."""
    import keras
    import numpy as np

    host = kinetic.current()
    keras.utils.set_random_seed(7)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    gemma = read_by_keras(model)
    gemma.backbone.enable_lora(
        RANK, ["query", "key", "value", "attention_output", "ffw_gating", "ffw_gating_2", "ffw_linear"]
    )
    gemma.compile(keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tokens = tokens_of(model, BATCH * EPOCH)[host.host_index :: host.host_count]
    seen = {"token_ids": tokens[:, :-1], "padding_mask": np.ones_like(tokens[:, :-1])}
    # KerasHub gives the rows of all epochs to Keras as one stream.
    told = gemma.fit(
        seen, tokens[:, 1:], batch_size=BATCH // host.host_count, epochs=epochs, verbose=0,
        callbacks=[kinetic.KineticCallback(every=KEEP_EVERY, log_every=EPOCH, stream=True)],
    )  # fmt: skip
    return {
        "losses": told.history["loss"],
        "trained": sum(math.prod(weight.shape) for weight in gemma.trainable_weights) / gemma.count_params(),
        "logits": logits_by_keras(gemma, tokens_of(model, BATCH * EPOCH)[:4]),
        "model": written_by_keras(gemma, model, host),
        "devices": keras.distribution.distribution().device_mesh.devices.size,
    }


def written_by_keras(gemma: Any, base: str, host: kinetic.HostContext) -> str:
    """Keras adds adapters to their weights when it saves a model. KerasHub's `export_to_transformers` leaves them out,
    without a word."""
    plain = read_by_keras(base)
    with tempfile.TemporaryDirectory() as scratch:
        gemma.save_weights(f"{scratch}/merged.weights.h5")
        plain.load_weights(f"{scratch}/merged.weights.h5")
        plain.export_to_transformers(scratch)
        return adapted(base, Path(scratch, "model.safetensors"), host, "by-keras")


# ---- Flax ------------------------------------------------------------------------------------------------------------


def read_by_flax(model: str, mesh: Any) -> Any:
    """Tunix' Gemma 3, a module of Flax NNX. It knows Google's sizes by name; any other is told by config.json."""
    import jax.numpy as jnp
    from tunix.models.gemma3 import model as gemma3
    from tunix.models.gemma3 import params_safetensors

    told = json.loads(Path(model, "config.json").read_text())
    shape = gemma3.ModelConfig(
        num_layers=told["num_hidden_layers"], num_embed=told["vocab_size"], embed_dim=told["hidden_size"],
        hidden_dim=told["intermediate_size"], num_heads=told["num_attention_heads"], head_dim=told["head_dim"],
        num_kv_heads=told["num_key_value_heads"], sliding_window_size=told["sliding_window"],
        local_base_frequency=told["rope_local_base_freq"], global_base_frequency=told["rope_theta"],
    )  # fmt: skip
    return params_safetensors.create_model_from_safe_tensors(model, shape, mesh, jnp.dtype(DTYPE))


def logits_by_flax(gemma: Any, tokens: Any) -> Any:
    import jax.numpy as jnp

    length = tokens.shape[1]
    places = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    earlier = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (*tokens.shape, length))
    return gemma(tokens, places, None, earlier)[0]


def with_adapters(frozen: Any, mesh: Any) -> Any:
    """Qwix puts two thin matrices beside each wide one."""
    import qwix
    from flax import nnx
    from tunix.rl import reshard

    wide = ".*q_einsum|.*kv_einsum|.*attn_vec_einsum|.*gate_proj|.*up_proj|.*down_proj"
    adapt = qwix.LoraProvider(module_path=wide, rank=RANK, alpha=RANK)
    gemma = qwix.apply_lora_to_model(frozen, adapt, rngs=nnx.Rngs(1), **frozen.get_model_input())
    return reshard.reshard_model_to_mesh(gemma, mesh)


def slice_mesh() -> Any:
    """All devices of the whole slice."""
    import jax

    return jax.make_mesh(
        (jax.device_count() // 2, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )  # fmt: skip


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS)
def with_flax(model: str, epochs: int = 6, rate: float = 0.01) -> dict[str, Any]:
    """Runs on every host; `jax.devices()` are those of the whole slice, over which model and rows are spread."""
    import jax
    import optax
    from flax import nnx
    from jax.sharding import NamedSharding, PartitionSpec

    host, mesh = kinetic.current(), slice_mesh()
    gemma = with_adapters(read_by_flax(model, mesh), mesh)
    optimizer = nnx.Optimizer(gemma, optax.adam(rate), wrt=nnx.LoRAParam)
    nnx.update(optimizer, jax.tree.map(lambda leaf: on_all_devices(leaf, mesh), nnx.state(optimizer)))

    @nnx.jit
    def update(gemma: Any, optimizer: Any, tokens: Any) -> Any:
        def loss(gemma: Any) -> Any:
            logits = logits_by_flax(gemma, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, slope = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(gemma)
        optimizer.update(gemma, slope)
        return value

    def now() -> dict[str, Any]:
        return {"adapters": nnx.state(gemma, nnx.LoRAParam), "optimizer": nnx.state(optimizer)}

    training = kinetic.Training(every=KEEP_EVERY, total=epochs * EPOCH, log_every=EPOCH, name="adapters")
    state, done = training.restore(now())
    nnx.update(gemma, state["adapters"])
    nnx.update(optimizer, state["optimizer"])
    rows = tokens_of(model, BATCH * EPOCH).reshape(EPOCH, BATCH, -1)
    losses = []
    with mesh:
        for number in range(done, epochs * EPOCH):
            mine = rows[number % EPOCH][host.host_index :: host.host_count]
            batch = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("fsdp")), mine)
            loss = update(gemma, optimizer, batch)
            training.step(number + 1, now, loss=loss)
            losses.append(float(loss))
        training.finish(now)
    trained, whole = (
        sum(leaf.size for leaf in jax.tree.leaves(nnx.state(gemma, kind))) for kind in (nnx.LoRAParam, ...)
    )
    return {
        "losses": losses,
        "trained": trained / whole,
        "logits": on_all_hosts(gemma, rows[0][:4], mesh),
        "model": written_by_flax(gemma, model, mesh, host),
        "devices": jax.device_count(),
    }


def on_all_devices(leaf: Any, mesh: Any) -> Any:
    """Place a leaf of a state on all devices: a number on one device would be restored to that one alone."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    return leaf if len(leaf.sharding.device_set) > 1 else jax.device_put(leaf, NamedSharding(mesh, PartitionSpec()))


def on_all_hosts(gemma: Any, tokens: Any, mesh: Any) -> Any:
    """The logits, of which otherwise each host would have its part."""
    import numpy as np
    from flax import nnx
    from jax.sharding import NamedSharding, PartitionSpec

    with mesh:
        return np.asarray(nnx.jit(logits_by_flax, out_shardings=NamedSharding(mesh, PartitionSpec()))(gemma, tokens))


def written_by_flax(gemma: Any, base: str, mesh: Any, host: kinetic.HostContext) -> str:
    """Tunix adds the adapters to the base's weights, on one host: each gets them whole before."""
    import jax
    from flax import nnx
    from jax.sharding import NamedSharding, PartitionSpec
    from tunix.models.gemma3 import params

    whole = jax.jit(lambda thin: thin, out_shardings=NamedSharding(mesh, PartitionSpec()))
    nnx.update(gemma, whole(nnx.state(gemma, nnx.LoRAParam)))
    with tempfile.TemporaryDirectory() as scratch:
        params.save_lora_merged_model_as_safetensors(base, f"{scratch}/merged", gemma, RANK, RANK)
        return adapted(base, Path(scratch, "merged", "model.safetensors"), host, "by-flax")


# ---- both ------------------------------------------------------------------------------------------------------------


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS, keras_backend="jax")
def read_by_both(model: str) -> dict[str, Any]:
    """Return the logits that each of the two loaders computes from the same folder."""
    tokens, mesh = tokens_of(model, BATCH * EPOCH)[:4], slice_mesh()
    return {
        "keras": logits_by_keras(read_by_keras(model), tokens),
        "flax": on_all_hosts(read_by_flax(model, mesh), tokens, mesh),
    }


def main() -> None:
    ways = {"keras": with_keras, "flax": with_flax}
    base = kinetic.Data(make_model() + "/")
    for name in sys.argv[1:] or ways:
        found = ways[name](base)
        read = read_by_both(kinetic.Data(found["model"] + "/"))
        apart = max(float(abs(logits - found["logits"]).max()) for logits in read.values())
        print(
            f"\nresult   loss {found['losses'][0]:.2f} → {found['losses'][-1]:.2f} on {found['devices']} devices, by "
            f"{name}, training {found['trained']:.1%} of the weights; logits of both loaders are {apart:.0e} apart"
            f"\nmodel    {found['model']}"
        )


if __name__ == "__main__":
    main()
