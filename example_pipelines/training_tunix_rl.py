"""Shows Tunix's reinforcement learning with rewards that a program verifies: GRPO, and agentic GRPO, whose model calls
a tool and answers with what it was told. Both go on at their last checkpoint after a preemption.

    python example_pipelines/training_tunix_rl.py [reinforce] [converse]

The models are tiny random Qwen2 that speak in single letters, so that this ends within minutes on two cores.
For a real slice: give a project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…), take
`accelerator="v5e-16"` with `spot=True` (for `converse` one host, such as "v5e-8": it refuses more), a `ModelConfig` of
Tunix with the weights of its safetensors, its tokenizer and chat parser, and your own `prompts`, `counts_on`,
`questions` and `Lookup`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from training_tunix import BATCH, REQUIREMENTS, Numbers, in_turn, kept_and_told, slice_mesh, tiny

import kinetic_orchestration as kinetic

ALPHABET, ANSWER, GROUP = "abcdefgh", 4, 8
KEYS, QUESTIONS = ALPHABET[:3], 6
SIGNS = "?." + ALPHABET  # what fills up, what ends, and the letters


class Letters:
    """A tokenizer of single letters."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [SIGNS.index(sign) for sign in text]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(SIGNS[token] for token in tokens)

    def pad_id(self) -> int:
        return 0

    bos_id = pad_id  # none is put before a prompt

    def eos_id(self) -> int:
        return 1


def sampler(tokens: int | None = None) -> Any:
    """A rollout engine whose hosts sample one batch together, each of which reads all its tokens: Tunix's own engine
    asks a host for tokens that lie on others. Each call has a chance of its own, and at most `tokens` tokens.
    """
    import jax
    from tunix.rl.rollout.base_rollout import CacheConfig
    from tunix.rl.rollout.vanilla_rollout import VanillaRollout

    class Together(VanillaRollout):
        def __init__(self, rollout_actor: Any, tokenizer: Any, mesh: Any, rollout_config: Any) -> None:
            shape, size = rollout_actor.config, rollout_config.kv_cache_size
            super().__init__(
                rollout_actor, tokenizer, CacheConfig(size, shape.num_layers, shape.num_kv_heads, shape.head_dim)
            )
            decode, self.calls = self._sampler._compiled_decode_fn, 0
            on_all = jax.jit(lambda read: read, out_shardings=jax.sharding.NamedSharding(mesh, jax.P()))

            def readable(weights: Any, state: Any) -> Any:
                state = decode(weights, state)
                read = on_all({"token_buffer": state.token_buffer, "logprobs_buffer": state.logprobs_buffer})
                return dataclasses.replace(state, **read)

            self._sampler._compiled_decode_fn = readable

        def generate(self, prompts: Any, rollout_config: Any, **more: Any) -> Any:
            self.calls += 1
            most = min(tokens or rollout_config.max_tokens_to_generate, rollout_config.max_tokens_to_generate)
            seed = jax.random.PRNGKey(self.calls)  # without one, all calls are sampled with the same chance
            config = dataclasses.replace(rollout_config, seed=seed, max_tokens_to_generate=most)
            return super().generate(prompts, config, **more)

    return Together


def cluster(numbers: Numbers, rate: float, tokens: int | None = None, **rollout: Any) -> Any:
    """The models that learn, sample and are compared with, on all devices."""
    import optax
    from flax import nnx
    from tunix.rl import reshard, rl_cluster
    from tunix.rl.rollout.base_rollout import RolloutConfig

    mesh = slice_mesh()
    actor = reshard.reshard_model_to_mesh(tiny(seed=0, layers=1, width=32, vocabulary=len(SIGNS)), mesh)
    config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys((rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT), mesh),
        rollout_engine=sampler(tokens),
        rollout_config=RolloutConfig(
            max_tokens_to_generate=ANSWER, max_prompt_length=4, kv_cache_size=16, temperature=1.0, **rollout
        ),
        training_config=rl_cluster.RLTrainingConfig(
            actor_optimizer=optax.adamw(rate),
            data_sharding_axis=(),  # each host has the whole batch, which it must not give as its share of one
            **kept_and_told(kinetic.current(), numbers),
        ),
    )
    return rl_cluster.RLCluster(actor=actor, reference=nnx.clone(actor), tokenizer=Letters(), cluster_config=config)


def counts_on(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """The reward: of an answer's letters, the share that follows the letter before as in the alphabet. All hosts learn
    by host 0's, since nothing else would tell that they differ.
    """
    import numpy as np
    from jax.experimental.multihost_utils import broadcast_one_to_all

    following = set(zip(ALPHABET, ALPHABET[1:] + ALPHABET[0], strict=True))

    def share(prompt: str, answer: str) -> float:
        return sum(pair in following for pair in zip(prompt[-1] + answer, answer, strict=False)) / ANSWER

    shares = [share(prompt, answer) for prompt, answer in zip(prompts, completions, strict=True)]
    return [float(one) for one in broadcast_one_to_all(np.array(shares, np.float32))]


def prompts(steps: int) -> Iterator[dict[str, Any]]:
    """The same on all hosts, which sample together; a list of them would not do."""
    import numpy as np

    for step in range(steps):
        letters = np.random.default_rng(step).choice(list(ALPHABET), (BATCH, 2))
        yield {"prompts": np.array(["".join(pair) for pair in letters])}


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS)
def reinforce(steps: int = 12, rate: float = 0.05) -> dict[str, Any]:
    """GRPO: for each prompt a group of answers is sampled, and those above the group's mean become more likely."""
    import jax
    from tunix.rl.grpo import grpo_learner

    numbers = Numbers(kinetic.current(), steps, reward="rewards/train/score/mean", kl="train/kl")
    models = cluster(numbers, rate)
    group = grpo_learner.GRPOConfig(num_generations=GROUP, beta=0.02)
    learner = grpo_learner.GRPOLearner(models, group, reward_fns=counts_on)
    first = models.actor_trainer.train_steps
    learner.train(prompts(steps))
    return {"reward": numbers.of("reward"), "first": first, "devices": jax.device_count()}


class Chat:
    """A chat without any marks: who spoke is told by turns."""

    def parse(self, messages: Sequence[dict[str, str]], **_: Any) -> str:
        return "".join(message["content"] for message in messages)


def lookup() -> Any:
    """The episode: the model is told a letter, calls the tool with it, and answers with what the tool has told."""
    from tunix.rl.agentic.environments.base_environment import BaseTaskEnv, EnvStepResult

    class Lookup(BaseTaskEnv):
        def __init__(self, question: dict[str, Any], **more: Any) -> None:
            super().__init__(question, max_steps=2, **more)
            self.key, self.table = question["prompts"].item(), question["tables"].item()

        def _initial_observation(self) -> str:
            return str(self.key)

        def _step_impl(self, said: str) -> Any:
            if self.step_count == 1:
                told = self.table[KEYS.index(said)] if said and said in KEYS else self.key
                return EnvStepResult(told, 0.5 * (said == self.key), done=False, info={})
            return EnvStepResult({}, 0.5 * (said == self.table[KEYS.index(self.key)]), done=True, info={})

    return Lookup


def questions(steps: int) -> Iterator[dict[str, Any]]:
    """For each question a table of its own, which only the tool knows."""
    import numpy as np

    for step in range(steps):
        chance = np.random.default_rng(step)
        tables = ["".join(chance.permutation(list(KEYS))) for _ in range(QUESTIONS)]
        yield {"prompts": chance.choice(list(KEYS), QUESTIONS), "tables": np.array(tables)}


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS)
def converse(steps: int = 20, rate: float = 0.015) -> dict[str, Any]:
    """Agentic GRPO: of a question's episodes, those with a better reward become more likely, turn by turn."""
    host = kinetic.current()
    if host.host_count > 1:
        host.refuse(
            f"agentic GRPO of Tunix runs on one host, and this slice has {host.host_count}: each host calls the model "
            "as its own episodes come to it, and hosts that compute in different orders wait for each other without an "
            'end. Take a slice of one host, such as accelerator="v5e-8", or GRPO, which samples in one order'
        )
    import jax
    from tunix.rl.agentic import agentic_grpo_learner

    numbers = Numbers(host, steps, reward="trajectory_rewards/train/mean", kl="train/kl")
    models = cluster(numbers, rate, tokens=1, return_logprobs=True)
    group = agentic_grpo_learner.GRPOConfig(
        num_generations=GROUP, beta=0.0, max_response_length=ANSWER, max_concurrency=1
    )
    learner = agentic_grpo_learner.GRPOLearner(models, group, chat_parser=Chat(), env_class=lookup())
    first = models.actor_trainer.train_steps
    learner.train(questions(steps))
    return {"reward": numbers.of("reward"), "first": first, "devices": jax.device_count()}


if __name__ == "__main__":
    in_turn({"reinforce": reinforce, "converse": converse})
