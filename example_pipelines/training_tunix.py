"""Shows Tunix three times: supervised fine-tuning with LoRA, distillation of a teacher into a smaller student, and DPO
from pairs of a better and a worse answer. Each is a job in the same environment of its own (training_tunix.txt), whose
numbers are in the orchestrator while it trains and which goes on at its last checkpoint after a preemption.

    python example_pipelines/training_tunix.py [finetune] [distill] [prefer]

The models are tiny random Qwen2 and the text is made here, so that each ends within minutes on two cores.
For a real slice: give a project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…), take
`accelerator="v5e-16"` with `spot=True`, a `ModelConfig` of Tunix such as `qwen2p5_0p5b()` with the weights of its
safetensors, and your own `batches` and `pairs`. For rewards see training_tunix_rl.py, and for pictures
training_tunix_vision.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic

REQUIREMENTS = Path(__file__).with_name("training_tunix.txt")
VOCABULARY, LENGTH, BATCH, KEEP_EVERY = 64, 16, 16, 10


def slice_mesh() -> Any:
    """All devices of the whole slice."""
    import jax

    return jax.make_mesh(
        (jax.device_count() // 2, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )  # fmt: skip


def tiny(seed: int, layers: int, width: int, vocabulary: int = VOCABULARY) -> Any:
    """A random Qwen2."""
    from flax import nnx
    from tunix.models.qwen2 import model as qwen2

    shape = qwen2.ModelConfig(
        num_layers=layers, vocab_size=vocabulary, embed_dim=width, hidden_dim=2 * width, num_heads=4, head_dim=8,
        num_kv_heads=2, rope_theta=10_000, norm_eps=1e-6,
    )  # fmt: skip
    return qwen2.Qwen2(shape, rngs=nnx.Rngs(seed))


def spread(rows: Any, mesh: Any) -> Any:
    """A batch over all hosts, of which each makes its share."""
    import jax

    shares = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
    return jax.make_array_from_process_local_data(shares, rows[jax.process_index() :: jax.process_count()])


def batches(steps: int, mesh: Any) -> Iterator[Any]:
    """Sequences in which each token tells the next one."""
    import numpy as np
    from tunix.sft.peft_trainer import TrainingInput

    for step in range(steps):
        begin = np.random.default_rng(step).integers(0, VOCABULARY, (BATCH, 1))
        tokens = spread(((begin + 5 * np.arange(LENGTH)) % VOCABULARY).astype(np.int32), mesh)
        yield TrainingInput(input_tokens=tokens, input_mask=tokens >= 0)


def as_input(batch: Any) -> dict[str, Any]:
    from tunix.sft import utils

    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": utils.build_positions_from_mask(batch.input_mask),
        "attention_mask": utils.make_causal_attn_mask(batch.input_mask),
    }


class Numbers:
    """What Tunix logs, as metrics of the job."""

    def __init__(self, host: kinetic.HostContext, steps: int, **names: str) -> None:
        self.host, self.steps, self.names = host, steps, names
        self.seen: dict[str, dict[int, float]] = {name: {} for name in names}

    def log_scalar(self, event: str, value: Any, **more: Any) -> None:
        for name, ending in self.names.items():
            if event.endswith(ending) and "step" in more:
                step = int(more["step"])
                self.seen[name][step] = float(value)
                self.host.log_metrics(step=step, **{name: float(value)})
                self.host.progress(step, self.steps, unit="step")

    def close(self) -> None:
        pass

    def of(self, name: str) -> list[float]:
        return [value for _, value in sorted(self.seen[name].items())]


def kept_and_told(host: kinetic.HostContext, numbers: Numbers, folder: str = "") -> dict[str, Any]:
    """Return, for each configuration, where and how often Tunix keeps what, and whom it tells its numbers."""
    import orbax.checkpoint as ocp
    from tunix.sft.peft_trainer import MetricsLoggerOptions

    return {
        "max_steps": numbers.steps,
        "eval_every_n_steps": numbers.steps + 1,
        "checkpoint_root_directory": f"{host.checkpoint_dir}/{folder}".rstrip("/"),
        "checkpointing_options": ocp.CheckpointManagerOptions(save_interval_steps=KEEP_EVERY, max_to_keep=2),
        "metrics_logging_options": MetricsLoggerOptions(
            log_dir="",  # with one, the learner of agents takes SIGTERM, by which a program is asked to end
            backend_kwargs={"custom_backend": [lambda: numbers]},
        ),
    }


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS)
def finetune(steps: int = 60, rate: float = 0.05) -> dict[str, Any]:
    """Supervised, with LoRA. Runs on every host; `jax.devices()` are those of the whole slice."""
    import jax
    import optax
    import qwix
    from flax import nnx
    from tunix.rl import reshard
    from tunix.sft import peft_trainer

    mesh, frozen = slice_mesh(), tiny(seed=0, layers=2, width=32)
    adapt = qwix.LoraProvider(module_path=".*q_proj|.*kv_proj|.*gate_proj|.*up_proj|.*down_proj", rank=4, alpha=8.0)
    model = reshard.reshard_model_to_mesh(
        qwix.apply_lora_to_model(frozen, adapt, rngs=nnx.Rngs(1), **frozen.get_model_input()), mesh
    )
    numbers = Numbers(kinetic.current(), steps, loss="train/loss")
    config = peft_trainer.TrainingConfig(**kept_and_told(kinetic.current(), numbers))
    trainer = peft_trainer.PeftTrainer(model, optax.adamw(rate), config).with_gen_model_input_fn(as_input)
    first = trainer.train_steps
    with mesh:
        trainer.train(batches(steps, mesh))
    trained = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.LoRAParam)))
    whole = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    return {"loss": numbers.of("loss"), "first": first, "trained": trained / whole, "devices": jax.device_count()}


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS)
def distill(steps: int = 40, rate: float = 0.02) -> dict[str, Any]:
    """A teacher of two layers learns the text; a student of one, half as wide, learns what the teacher would say."""
    import jax
    import optax
    from tunix.distillation import distillation_trainer, strategies
    from tunix.rl import reshard
    from tunix.sft import peft_trainer

    host, mesh = kinetic.current(), slice_mesh()
    teacher = reshard.reshard_model_to_mesh(tiny(seed=0, layers=2, width=32), mesh)
    student = reshard.reshard_model_to_mesh(tiny(seed=1, layers=1, width=16), mesh)
    taught = Numbers(host, 40, teacher_loss="train/loss")
    teaching = peft_trainer.TrainingConfig(**kept_and_told(host, taught, "teacher"))
    with mesh:
        peft_trainer.PeftTrainer(teacher, optax.adamw(rate), teaching).with_gen_model_input_fn(as_input).train(
            batches(taught.steps, mesh)
        )

    def forward(model: Any, input_tokens: Any, input_mask: Any, positions: Any, attention_mask: Any) -> Any:
        logits, _ = model(input_tokens, positions, None, attention_mask)
        return logits[:, :-1]

    def labels(input_tokens: Any, **_: Any) -> Any:
        return jax.nn.one_hot(input_tokens[:, 1:], VOCABULARY)

    numbers = Numbers(host, steps, loss="train/loss")
    config = distillation_trainer.TrainingConfig(**kept_and_told(host, numbers, "student"))
    soft = strategies.LogitStrategy(forward, forward, labels, temperature=2.0, alpha=1.0)  # the teacher's word alone
    trainer = distillation_trainer.DistillationTrainer(student, teacher, soft, optax.adamw(rate), config)
    first = trainer.train_steps
    with mesh:
        trainer.with_gen_model_input_fn(as_input).train(batches(steps, mesh))
    return {"loss": numbers.of("loss"), "first": first, "devices": jax.device_count()}


def pairs(steps: int, mesh: Any) -> Iterator[Any]:
    """Beginnings with two endings: the chosen one goes on as the text does, the rejected one is any tokens."""
    import numpy as np
    from tunix.sft.dpo.dpo_trainer import TrainingInput

    half = LENGTH // 2
    for step in range(steps):
        chance = np.random.default_rng(step)
        begin = chance.integers(0, VOCABULARY, (BATCH, 1))
        text = (begin + 5 * np.arange(LENGTH)) % VOCABULARY
        parts = {"prompt": text[:, :half], "chosen": text[:, half:]}
        parts["rejected"] = chance.integers(0, VOCABULARY, (BATCH, LENGTH - half))
        ids = {f"{name}_ids": spread(rows.astype(np.int32), mesh) for name, rows in parts.items()}
        yield TrainingInput(**ids, **{name.replace("ids", "mask"): rows >= 0 for name, rows in ids.items()})


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS)
def prefer(steps: int = 40, rate: float = 0.005) -> dict[str, Any]:
    """DPO: the chosen endings become more likely than they are to the frozen model, the rejected ones less."""
    import jax
    import optax
    from flax import nnx
    from tunix.rl import reshard
    from tunix.sft.dpo import dpo_trainer

    host, mesh = kinetic.current(), slice_mesh()
    policy = reshard.reshard_model_to_mesh(tiny(seed=0, layers=2, width=32), mesh)
    frozen = nnx.clone(policy)  # before the trainer restores what the policy has learned
    numbers = Numbers(host, steps, loss="train/loss", accuracy="train/rewards/accuracy", margin="train/rewards/margin")
    config = dpo_trainer.DPOTrainingConfig(beta=0.1, **kept_and_told(host, numbers, "policy"))
    trainer = dpo_trainer.DPOTrainer(policy, frozen, optax.adamw(rate), config)
    first = trainer.train_steps
    with mesh:
        trainer.train(pairs(steps, mesh))
    found = {name: numbers.of(name) for name in ("loss", "accuracy")}
    return {**found, "first": first, "devices": jax.device_count()}


def in_turn(ways: Mapping[str, Callable[[], dict[str, Any]]]) -> None:
    """Run those that the command line names, or all."""
    for name in sys.argv[1:] or ways:
        found = ways[name]()
        what, values = next(iter(found.items()))
        print(f"\nresult   {what} {values[0]:.2f} → {values[-1]:.2f} on {found['devices']} devices, by {name}")


if __name__ == "__main__":
    in_turn({"finetune": finetune, "distill": distill, "prefer": prefer})
