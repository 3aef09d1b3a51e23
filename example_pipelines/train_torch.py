"""Shows PyTorch as its users write it on two hosts: Hugging Face's Trainer, Lightning, Accelerate, and FSDP with
torch.distributed.checkpoint. None of them says where the other hosts are; each goes on after its hosts are lost.

    python example_pipelines/train_torch.py

The model is a small one and its rows are made here, so that this ends in a minute on two cores. For real GPUs: give a
project and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…, KINETIC_DEPLOYMENT=…), `accelerator="a100x2",
processes="gpu"`, or a VM with several, and nothing else. On TPUs these trainers do not train yet:
docs/training/frameworks.md says why.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import kinetic_orchestration as kinetic

REQUIREMENTS = Path(__file__).with_name("train_torch.txt")
ROWS, BATCH = 96, 8


def model_and_rows() -> tuple[Any, list[dict[str, Any]]]:
    """A model that draws its dropout, in the form that Hugging Face's Trainer wants, and what it learns."""
    import torch

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)]
            self.layers = torch.nn.Sequential(*layers)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            found = self.layers(x)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    torch.manual_seed(7)
    x = torch.randn(ROWS, 8)
    return Small(), [{"x": one, "labels": one[:1] - one[1:2]} for one in x]


def with_trainer(epochs: int, name: str = "trainer") -> Any:
    from transformers import Trainer, TrainingArguments

    model, rows = model_and_rows()
    keeps = kinetic.torch.trainer_callback(name=name)
    arguments = TrainingArguments(
        "unused", num_train_epochs=epochs, per_device_train_batch_size=BATCH, learning_rate=0.02, save_steps=3,
        logging_steps=1, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[keeps])
    trainer.train(resume_from_checkpoint=keeps.newest())
    return model


def with_lightning(epochs: int, name: str = "lightning") -> Any:
    import lightning
    import torch

    model, rows = model_and_rows()

    class Lit(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 0.02)

    keeps = kinetic.torch.lightning_callback(every=3, name=name)
    loader = torch.utils.data.DataLoader(rows, BATCH, shuffle=True)
    trainer = lightning.Trainer(max_epochs=epochs, callbacks=[keeps], logger=False, enable_progress_bar=False)
    trainer.fit(Lit(), loader, ckpt_path=keeps.newest())
    return model


def with_accelerate(epochs: int, name: str = "accelerate") -> Any:
    import torch
    from accelerate import Accelerator

    model, rows = model_and_rows()
    accelerator = Accelerator()
    # With a generator of its own a loader that is begun in the midst of an epoch draws nothing from dropout's.
    loader = torch.utils.data.DataLoader(rows, BATCH, generator=torch.Generator())
    prepared, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 0.02), loader)
    steps = kinetic.torch.accelerate(accelerator, every=3, total=epochs * len(loader), name=name)
    done = steps.restore()
    for epoch in range(done // len(loader), epochs):
        passed = done % len(loader) if epoch == done // len(loader) else 0
        for number, batch in enumerate(accelerator.skip_first_batches(loader, passed), epoch * len(loader) + passed):
            loss = prepared(**batch)["loss"]
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            steps.step(number + 1, loss=loss)
    steps.finish()
    return model


def with_fsdp(epochs: int, name: str = "fsdp") -> Any:
    """Every host has a part of each weight, and writes that."""
    import torch
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    host = kinetic.current()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group()
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model, rows = model_and_rows()
    fully_shard(model.to(kind), mesh=torch.distributed.init_device_mesh(kind.type, (host.host_count,)))
    optimizer = torch.optim.Adam(model.parameters(), 0.02)

    def save(folder: str) -> None:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)

    def load(folder: str) -> None:
        weights, moments = get_state_dict(model, optimizer)
        dcp.load(state := {"model": weights, "optimizer": moments}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    mine = torch.utils.data.default_collate(rows[host.host_index :: host.host_count])
    steps = kinetic.torch.files(save, load, every=3, total=4 * epochs, name=name)
    for number in range(steps.restore(), 4 * epochs):
        torch.manual_seed(number)  # dropout of this step, whoever computes it
        loss = model(**{key: value.to(kind) for key, value in mine.items()})["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.step(number + 1, loss=loss)
    steps.finish()
    return model


TRAINERS = {"trainer": with_trainer, "lightning": with_lightning, "accelerate": with_accelerate, "fsdp": with_fsdp}


@kinetic.run(accelerator="v4-8", requirements=REQUIREMENTS)
def train(which: str, epochs: int = 2) -> dict[str, Any]:
    """Runs on every host."""
    import torch

    before, rows = model_and_rows()
    model = TRAINERS[which](epochs)
    if which == "fsdp":
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        trained, whole = get_model_state_dict(model, options=options), before
        if kinetic.current().host_index == 0:
            whole = model_and_rows()[0]
            whole.load_state_dict(trained)
    else:
        whole = model.cpu()
    with torch.no_grad():
        losses = [float(one.eval()(**torch.utils.data.default_collate(rows))["loss"]) for one in (before, whole)]
    return {"losses": losses, "hosts": torch.distributed.get_world_size()}


def main() -> None:
    for which in sys.argv[1:] or TRAINERS:
        found = train(which, epochs=6)
        print(f"\nresult   {which}: loss {found['losses'][0]:.3f} → {found['losses'][1]:.3f} on {found['hosts']} hosts")


if __name__ == "__main__":
    main()
