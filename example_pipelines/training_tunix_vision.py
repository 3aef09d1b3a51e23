"""Shows Tunix on pictures: a tiny Gemma 3 with a vision encoder learns to name what a picture shows. It goes on at its
last checkpoint after a preemption.

    python example_pipelines/training_tunix_vision.py

The model is random and the pictures are made here, so that this ends within minutes on two cores. For a real slice:
give a project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…), take `accelerator="v5e-16"`
with `spot=True`, `ModelConfig.gemma3_4b_it()` with the weights of its safetensors, its tokenizer, and your own
`pictures`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from training_tunix import BATCH, REQUIREMENTS, VOCABULARY, Numbers, in_turn, kept_and_told, slice_mesh, spread

import kinetic_orchestration as kinetic

BEGIN, QUESTION, ANSWERS, PICTURE = 1, 2, 10, VOCABULARY - 1  # tokens; the picture's is replaced by what is seen
COLOURS = ((220, 30, 30), (30, 220, 30), (30, 30, 220), (220, 220, 30))


def sighted() -> Any:
    """A random Gemma 3 that sees a picture of 16 × 16 as four tokens."""
    import jax.numpy as jnp
    from flax import nnx
    from tunix.models.gemma3 import model as gemma3
    from tunix.models.gemma3.vision import SigLIPConfig

    eye = SigLIPConfig(
        image_height=16, image_width=16, patch_size=(4, 4), num_mm_tokens_per_image_prepool=16,
        num_mm_tokens_per_image=4, width=16, depth=1, mlp_dim=32, num_heads=2, soft_token_placeholder=PICTURE,
    )  # fmt: skip
    shape = gemma3.ModelConfig(
        num_layers=2, num_embed=VOCABULARY, embed_dim=32, hidden_dim=64, num_heads=4, head_dim=8, num_kv_heads=2,
        sliding_window_size=16, vision_config=eye, param_dtype=jnp.float32,
    )  # fmt: skip
    return gemma3.Gemma3(shape, rngs=nnx.Rngs(0))


def pictures(steps: int, mesh: Any, eye: Any) -> Iterator[Any]:
    """Noise in one of four colours, a question, and the colour's name, of which alone the loss is taken."""
    import numpy as np
    from tunix.processors.image_processor import ImageProcessor
    from tunix.sft.peft_trainer import TrainingInput

    process = ImageProcessor(eye)
    for step in range(steps):
        chance = np.random.default_rng(step)
        shown = chance.integers(0, len(COLOURS), BATCH)
        noise = chance.integers(-30, 30, (BATCH, 24, 24, 3))
        raw = (np.array(COLOURS)[shown][:, None, None] + noise).clip(0, 255).astype(np.uint8)
        row = [BEGIN, *[PICTURE] * eye.num_mm_tokens_per_image, QUESTION]  # not first: Gemma 3 keeps that token
        tokens = np.concatenate([np.tile(row, (BATCH, 1)), ANSWERS + shown[:, None]], 1).astype(np.int32)
        last = np.arange(tokens.shape[1]) == tokens.shape[1] - 1
        yield TrainingInput(
            input_tokens=spread(tokens, mesh),
            input_mask=spread(np.tile(last, (BATCH, 1)), mesh),
            images=spread(np.array(process(list(raw))), mesh),
        )


@kinetic.run(accelerator="v5e-4", requirements=REQUIREMENTS)
def describe(steps: int = 40, rate: float = 0.01) -> dict[str, Any]:
    """Supervised fine-tuning from pictures; the encoder stays as it is, which is Tunix's choice."""
    import jax
    import optax
    from tunix.rl import reshard
    from tunix.sft import peft_trainer, utils

    mesh = slice_mesh()
    model = reshard.reshard_model_to_mesh(sighted(), mesh)

    def as_input(batch: Any) -> dict[str, Any]:
        return {
            "input_tokens": batch.input_tokens,
            "input_mask": batch.input_mask,
            "positions": utils.build_positions_from_mask(batch.input_tokens > 0),
            "attention_mask": model.get_attention_mask(batch.input_tokens),  # a picture's tokens see each other
            "images": batch.images,
        }

    numbers = Numbers(kinetic.current(), steps, loss="train/loss")
    config = peft_trainer.TrainingConfig(**kept_and_told(kinetic.current(), numbers))
    trainer = peft_trainer.PeftTrainer(model, optax.adamw(rate), config).with_gen_model_input_fn(as_input)
    first = trainer.train_steps
    with mesh:
        trainer.train(pictures(steps, mesh, model.config.vision_config))
    return {"loss": numbers.of("loss"), "first": first, "devices": jax.device_count()}


if __name__ == "__main__":
    in_turn({"describe": describe})
