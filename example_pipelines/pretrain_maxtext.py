"""Shows pre-training with MaxText: a tokenizer, a training on two hosts that goes on after a loss of its hosts, and the
model in Hugging Face's layout, each as a command in an environment of its own (pretrain_maxtext.txt, Python 3.12).
Loss, throughput and progress are in the orchestrator while it trains.

    python example_pipelines/pretrain_maxtext.py

The model is a Qwen3 of two small layers and the data are MaxText's synthetic ones, so that this ends within two minutes
on two cores. For a real slice: give a project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…,
KINETIC_DEPLOYMENT=…), take `accelerator="v5e-16"` or several slices with `cloud=kinetic.TpuVm(num_slices=2)`, leave out
the overrides of MODEL, and name your data (`dataset_type=grain grain_train_files=…`). The line `jax` becomes the build
for TPUs by itself. Tokenizer and conversion stay on this machine's CPU (ON_CPU); for a model that it cannot hold, name
a slice there too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic
from kinetic_orchestration.plan.values import Metrics

HERE = Path(__file__).parent
ENVIRONMENT: dict[str, Any] = {"requirements": HERE / "pretrain_maxtext.txt", "python": "3.12", "cwd": HERE}
ON_CPU: dict[str, Any] = {"accelerator": "cpu", "backend": "local", **ENVIRONMENT}  # here, also with a project
VOCABULARY = 512  # of the model: the tokenizer's entries, and room

# A model that MaxText knows by a name, or it could not be converted, and what makes it small.
MODEL = [
    "model_name=qwen3-0.6b", "override_model_config=true", f"vocab_size={VOCABULARY}", "base_num_decoder_layers=2",
    "base_emb_dim=64", "base_mlp_dim=128", "base_num_query_heads=2", "base_num_kv_heads=2", "head_dim=32",
]  # fmt: skip
TRAINING = [
    "dataset_type=synthetic", "per_device_batch_size=1", "max_target_length=64", "checkpoint_period=4",
    "enable_goodput_recording=false", "monitor_goodput=false", "learning_rate=0.001",
]  # fmt: skip
MAXTEXT = ["python", "-m", "kinetic_orchestration.program.trainers.maxtext"]
EXPORT = ["python", "-m", "kinetic_orchestration.program.trainers.maxtext_export"]


def tokenizer(**options: Any) -> kinetic.JobHandle[None]:
    return kinetic.command(["python", Path(__file__).name, "tokenizer"], **ON_CPU, **options)


def train(steps: int = 12, accelerator: str = "v4-8", **options: Any) -> kinetic.JobHandle[None]:
    """Runs on every host. The last checkpoint is where the next attempt begins: give `key=` for the next job, too."""
    words = [*MODEL, *TRAINING, f"steps={steps}"]
    return kinetic.command(
        [*MAXTEXT, *words], metrics="maxtext", accelerator=accelerator, retry=kinetic.Retry(user=1),
        **ENVIRONMENT, **options,
    )  # fmt: skip


def export(trained: kinetic.JobHandle[None], tokens: str, **options: Any) -> kinetic.JobHandle[None]:
    """The last checkpoint in Hugging Face's layout, in `model` of the job's output."""
    argv = [*EXPORT, f"{trained.checkpoint_dir}/run", tokens, "model", *MODEL]
    return kinetic.command(argv, **ON_CPU, **options)


def make_tokenizer(address: str) -> None:
    """Train a byte-level BPE, which has a token for any text, into a folder or a bucket. Runs on the host."""
    from etils import epath
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=special[0], eos_token=special[2], pad_token=special[0]
    )
    epath.Path(address).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        wrapped.save_pretrained(folder)
        for path in Path(folder).iterdir():
            epath.Path(path).copy(f"{address}/{path.name}", overwrite=True)


def main() -> None:
    tokens = tokenizer()
    tokens.result()
    trained = train()
    trained.result()
    losses = {e.step: e.values["loss"] for e in trained.events() if isinstance(e, Metrics)}
    model = export(trained, f"{tokens.output_dir}/tokenizer")
    model.result()
    learned = f"loss {losses[0]:.2f} → {losses[max(losses)]:.2f} on 8 devices"
    print(f"\nresult   {learned}, and a model in {model.output_dir}/model")


if __name__ == "__main__":
    if sys.argv[1:] == ["tokenizer"]:
        make_tokenizer(f"{kinetic.current().output_dir}/tokenizer")
    else:
        main()
