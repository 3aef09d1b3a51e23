"""Trainers of others on a slice, as the page on frameworks has them: one model of all hosts, and files that come back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration.testing.storage_server.server import StorageServer
from tests.end_to_end.frameworks.curves import BOUNDED
from tests.support.pages import programs

pytestmark = [pytest.mark.offline, pytest.mark.slow, pytest.mark.timeout(1500)]
REQUIREMENTS = ["torch==2.13.0", "transformers>=5,<6", "accelerate>=1,<2", "lightning>=2.5,<3"]


@pytest.fixture(scope="module")
def source() -> str:
    return programs("docs/training/frameworks.md")["trainers.py"]


@pytest.fixture
def bucket() -> Iterator[tuple[str, str]]:
    with StorageServer() as server:
        yield server.url, f"{server.make_bucket('trainers')}/checkpoints"


def models() -> tuple[Any, Any, Any]:
    """The models for Hugging Face and for Lightning, with the rows of both."""
    import lightning
    import torch

    torch.manual_seed(kinetic.current().host_index)  # the hosts differ until something joins them
    rows = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(400)]

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, x: Any, labels: Any) -> Any:
            found = self.layer(x)
            return {"loss": ((found - labels) ** 2).mean(), "logits": found}

    class Lit(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return ((self.layer(batch["x"]) - batch["labels"]) ** 2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 0.01)

    return Plain(), Lit(), rows


def weights(model: Any) -> list[float]:
    return [round(float(value), 6) for one in model.parameters() for value in one.detach().flatten()]


def test_the_pages_trainers_train_one_model_and_go_on_where_the_attempt_before_ended(
    frameworks: Path, source: str, bucket: tuple[str, str]
) -> None:
    url, address = bucket

    def program() -> dict[str, Any]:
        import torch

        os.environ.update({"STORAGE_EMULATOR_HOST": url, "KINETIC_CHECKPOINT_DIR": address})
        page: dict[str, Any] = {}
        exec(source, page)
        host = kinetic.current()
        plain, lit, rows = models()
        until = 10 * host.attempt
        found = page["with_transformers"](plain, rows, until)
        other = page["with_lightning"](lit, torch.utils.data.DataLoader(rows, 8), until)
        if host.attempt == 1:
            raise RuntimeError("once more")
        folder = Path(host.checkpoint_path("trainer-files"))
        here = {"transformers": weights(plain), "lightning": weights(lit)}
        Path(host.output_dir, str(host.host_index)).write_text(repr(here))
        return {
            "steps": [found.state.global_step, other.global_step],
            "worlds": [found.args.world_size, other.world_size],
            "folders": sorted(path.name for path in folder.glob("checkpoint-*")),
        }

    options: dict[str, Any] = {"requirements": REQUIREMENTS, "limits": BOUNDED, "retry": kinetic.Retry(user=1)}
    job = kinetic.run(accelerator="v4-8", **options)(program).run_async()
    found = job.result()
    assert found["steps"] == [20, 20]
    assert found["worlds"] == [2, 2]
    assert found["folders"] == ["checkpoint-15", "checkpoint-20"]
    first, second = (Path(job.output_dir, str(host)).read_text() for host in range(2))
    assert first == second, "one model"
    log = job.logs() or ""
    assert "train a model each" not in log


def test_the_stand_ins_of_the_default_tests_take_what_the_real_ones_take(frameworks: Path) -> None:
    import inspect

    from tests.core.program import stand_ins

    calls = {
        "transformers:TrainingArguments": stand_ins.TrainingArguments,
        "transformers:Trainer": stand_ins.HuggingFaceTrainer,
        "transformers:Trainer.train": stand_ins.HuggingFaceTrainer.train,
        "transformers:TrainerCallback.on_init_end": stand_ins.TrainerCallback.on_init_end,
        "accelerate:Accelerator": stand_ins.HuggingFaceAccelerator,
        "lightning:Trainer": stand_ins.LightningTrainer,
        "lightning:Trainer.fit": stand_ins.LightningTrainer.fit,
    }
    ours = {name: list(inspect.signature(call).parameters) for name, call in calls.items()}

    def program() -> dict[str, list[str]]:
        import importlib
        import operator

        found = {}
        for name in ours:
            module, _, call = name.partition(":")
            real = operator.attrgetter(call)(importlib.import_module(module))
            found[name] = list(inspect.signature(real).parameters)
        return found

    theirs = kinetic.run(accelerator="cpu", requirements=REQUIREMENTS, limits=BOUNDED)(program)()
    for name, parameters in ours.items():
        assert set(parameters) <= set(theirs[name]), name
        named = name in ("lightning:Trainer", "accelerate:Accelerator")  # all of theirs are given by name
        assert parameters[0] == theirs[name][0] or named, name


def test_plain_trainers_take_all_hosts_and_those_that_are_told_otherwise_are_told_as_idle(frameworks: Path) -> None:
    def program() -> list[Any]:
        import lightning
        import torch

        _, lit, rows = models()
        less = {"max_steps": 2, "logger": False, "enable_checkpointing": False}
        found: list[Any] = [lightning.Trainer(**less).world_size]
        try:
            lightning.Trainer(**less, strategy="ddp", num_nodes=1, devices=1)
        except ValueError as error:
            found.append(str(error))
        trainer = lightning.Trainer(**less, num_nodes=1, devices=1)
        trainer.fit(lit, torch.utils.data.DataLoader(rows, 8))
        plain, _, rows = models()
        from transformers import Trainer, TrainingArguments

        folder = kinetic.current().checkpoint_path()
        arguments = TrainingArguments(folder, max_steps=1, report_to="none", save_strategy="no")
        Trainer(plain, arguments, train_dataset=rows).train()
        return [*found, trainer.world_size, arguments.world_size, torch.get_num_threads()]

    job = kinetic.run(accelerator="v4-8", requirements=REQUIREMENTS, limits=BOUNDED)(program).run_async()
    all_, refused, alone, of_hugging_face, threads = job.result()
    assert (all_, alone, of_hugging_face) == (2, 1, 2)
    assert "num_nodes=1 and devices=1, 1 processes, and the job has 2: leave both out" in refused
    assert threads == max(1, len(os.sched_getaffinity(0)) // 2)
    told = "the 2 hosts train a model each, because this Trainer knows of 1: make it as Trainer("
    assert (job.logs() or "").count(told) == 1
    assert told + "), without num_nodes, devices and strategy" in (job.logs() or "")
