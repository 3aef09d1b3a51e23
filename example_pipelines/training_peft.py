"""Shows LoRA fine-tuning of a Transformers model with PEFT on PyTorch, in an environment of its own
(training_peft.txt). The hosts share the batch by DistributedDataParallel, the adapters are kept in the job's output.

    python example_pipelines/training_peft.py

The model is a tiny random Llama and the text is made here, so that this ends in seconds on two cores. For a real slice:
give a project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…) and `accelerator="v6e-4"`, for
which the line `torch` becomes the build for TPUs; and read model and text from a hub or a bucket in `pretrained` and
`batch_of`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic

REQUIREMENTS = Path(__file__).with_name("training_peft.txt")
VOCABULARY, LENGTH, BATCH, LOG_EVERY = 64, 16, 16, 5


def pretrained() -> Any:
    """The frozen model; from a hub in real life."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=LENGTH, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(shape)


def batch_of(step: int, host: int, hosts: int) -> Any:
    """This host's share of sequences in which each token tells the next one."""
    import torch

    begin = torch.randint(0, VOCABULARY, (BATCH, 1), generator=torch.Generator().manual_seed(step))
    return ((begin + 5 * torch.arange(LENGTH)) % VOCABULARY)[host::hosts]


@kinetic.run(accelerator="v4-8", requirements=REQUIREMENTS)
def finetune(steps: int = 40, rate: float = 0.02) -> dict[str, Any]:
    """Runs on every host. Nothing says where the others are: `init_process_group` finds them."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch.nn.parallel import DistributedDataParallel

    host = kinetic.current()
    torch.distributed.init_process_group()
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    adapt = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(pretrained(), adapt).to(device)
    trained, whole = model.get_nb_trainable_parameters()
    shared = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW((weight for weight in model.parameters() if weight.requires_grad), rate)
    losses = []
    for step in range(1, steps + 1):
        tokens = batch_of(step, host.host_index, host.host_count).to(device)
        loss = shared(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        torch.distributed.all_reduce(shown)
        losses.append(float(shown) / host.host_count)
        if step % LOG_EVERY == 0:
            host.log_metrics(step=step, loss=losses[-1])
            host.progress(step, steps, unit="step")
    if host.host_index == 0:
        kept = kept_in(host.output_dir, model)
    torch.distributed.destroy_process_group()
    return {
        "losses": losses,
        "hosts": host.host_count,
        "trained": trained / whole,
        "adapters": kept if host.host_index == 0 else "",
    }


def kept_in(folder: str, model: Any) -> str:
    """The adapters alone, some thousandth of what the model weighs."""
    if "://" not in folder:
        model.save_pretrained(folder + "/adapters")
        return folder + "/adapters"
    from google.cloud import storage

    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        for path in Path(scratch).iterdir():
            address = f"{folder}/adapters/{path.name}"
            storage.Blob.from_uri(address, client=storage.Client()).upload_from_filename(str(path))
    return folder + "/adapters"


def main() -> None:
    found = finetune()
    print(
        f"\nresult   loss {found['losses'][0]:.2f} → {found['losses'][-1]:.2f} on {found['hosts']} hosts, training "
        f"{found['trained']:.1%} of all weights, which are in {found['adapters']}"
    )


if __name__ == "__main__":
    main()
