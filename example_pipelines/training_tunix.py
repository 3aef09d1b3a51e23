"""Shows Tunix three times: supervised fine-tuning with LoRA, distillation of a teacher into a smaller student, and GRPO
with a reward that a program verifies. Each is a job in the same environment of its own (training_tunix.txt), whose
numbers are in the orchestrator while it trains and which goes on at its last checkpoint after a preemption.

    python example_pipelines/training_tunix.py [finetune] [distill] [reinforce]

The models are tiny random Qwen2 and the text is made here, so that this ends within a minute on two cores.
For a real slice: give a project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…), take `accelerator="v5e-16"` with
`spot=True` (for GRPO one host, such as "v5e-8": this sampler reads its tokens on one), a `ModelConfig` of Tunix such as
`qwen2p5_0p5b()` with the weights of its safetensors, its tokenizer, and your own `batches`, `prompts` and `counts_on`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic

REQUIREMENTS = Path(__file__).with_name("training_tunix.txt")
VOCABULARY, LENGTH, BATCH, KEEP_EVERY = 64, 16, 16, 10
ALPHABET, ANSWER, GROUP = "abcdefgh", 4, 8


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


def batches(steps: int, mesh: Any) -> Iterator[Any]:
    """Sequences in which each token tells the next one: of each batch a host makes its share."""
    import jax
    import numpy as np
    from tunix.sft.peft_trainer import TrainingInput

    shares = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
    for step in range(steps):
        begin = np.random.default_rng(step).integers(0, VOCABULARY, (BATCH, 1))
        tokens = (begin + 5 * np.arange(LENGTH)) % VOCABULARY
        mine = tokens[jax.process_index() :: jax.process_count()].astype(np.int32)
        whole = jax.make_array_from_process_local_data(shares, mine)
        yield TrainingInput(input_tokens=whole, input_mask=whole >= 0)


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
    """Of each configuration: where and how often Tunix keeps what, and whom it tells its numbers."""
    import orbax.checkpoint as ocp
    from tunix.sft.peft_trainer import MetricsLoggerOptions

    return {
        "max_steps": numbers.steps,
        "eval_every_n_steps": numbers.steps + 1,
        "checkpoint_root_directory": f"{host.checkpoint_dir}/{folder}".rstrip("/"),
        "checkpointing_options": ocp.CheckpointManagerOptions(save_interval_steps=KEEP_EVERY, max_to_keep=2),
        "metrics_logging_options": MetricsLoggerOptions(
            log_dir=host.output_dir, backend_kwargs={"custom_backend": [lambda: numbers]}
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


class Letters:
    """A tokenizer of single letters."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [2 + ALPHABET.index(letter) for letter in text]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(("?" * 2 + ALPHABET)[token] for token in tokens)

    def pad_id(self) -> int:
        return 0

    bos_id = pad_id  # none is put before a prompt

    def eos_id(self) -> int:
        return 1


def counts_on(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """The reward: of an answer's letters, the share that follows the letter before as in the alphabet."""
    following = set(zip(ALPHABET, ALPHABET[1:] + ALPHABET[0], strict=True))

    def share(prompt: str, answer: str) -> float:
        return sum(pair in following for pair in zip(prompt[-1] + answer, answer, strict=False)) / ANSWER

    return [share(prompt, answer) for prompt, answer in zip(prompts, completions, strict=True)]


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS)
def reinforce(steps: int = 12, rate: float = 0.05) -> dict[str, Any]:
    """GRPO: for each prompt a group of answers is sampled, and those above the group's mean become more likely."""
    import jax
    import numpy as np
    import optax
    from flax import nnx
    from tunix.rl import reshard, rl_cluster
    from tunix.rl.grpo import grpo_learner
    from tunix.rl.rollout.base_rollout import RolloutConfig

    mesh = slice_mesh()
    actor = reshard.reshard_model_to_mesh(tiny(seed=0, layers=1, width=32, vocabulary=2 + len(ALPHABET)), mesh)
    numbers = Numbers(kinetic.current(), steps, reward="rewards/train/score/mean", kl="train/kl")
    rollout = RolloutConfig(max_tokens_to_generate=ANSWER, max_prompt_length=4, kv_cache_size=16, temperature=1.0)
    config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys((rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT), mesh),
        rollout_config=rollout,
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adamw(rate), **kept_and_told(kinetic.current(), numbers)
        ),
    )
    cluster = rl_cluster.RLCluster(
        actor=actor, reference=nnx.clone(actor), tokenizer=Letters(), cluster_config=config
    )  # fmt: skip
    group = grpo_learner.GRPOConfig(num_generations=GROUP, beta=0.02)
    learner = grpo_learner.GRPOLearner(cluster, group, reward_fns=counts_on)
    first = cluster.actor_trainer.train_steps

    def prompts() -> Iterator[dict[str, Any]]:
        for step in range(steps):
            rollout.seed = jax.random.PRNGKey(step)  # else every step would be sampled with the same chance
            letters = np.random.default_rng(step).choice(list(ALPHABET), (BATCH, 2))
            yield {"prompts": np.array(["".join(pair) for pair in letters])}

    learner.train(prompts())
    return {"reward": numbers.of("reward"), "first": first, "devices": jax.device_count()}


def main() -> None:
    ways = {"finetune": finetune, "distill": distill, "reinforce": reinforce}
    for name in sys.argv[1:] or ways:
        found = ways[name]()
        what, values = next(iter(found.items()))
        print(f"\nresult   {what} {values[0]:.2f} → {values[-1]:.2f} on {found['devices']} devices, by {name}")


if __name__ == "__main__":
    main()
