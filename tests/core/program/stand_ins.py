"""Stand-ins of torch, transformers and lightning, 4.6 GB that the default tests do without: of each call that docs/training/frameworks.md
makes the parameters by name, and files where the real ones write theirs. tests/end_to_end/frameworks/test_on_trainers.py
runs the page with the real ones, and holds these parameters against theirs.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


class Accelerator:
    @staticmethod
    def is_available() -> bool:
        return False


class TrainingArguments:
    world_size = 1

    def __init__(
        self, output_dir: str, *, max_steps: int, save_steps: int = 500, save_total_limit: int | None = None,
        report_to: str = "all", use_cpu: bool = False,
    ) -> None:  # fmt: skip
        self.output_dir = output_dir
        self.max_steps, self.save_steps, self.save_total_limit = max_steps, save_steps, save_total_limit


class HuggingFaceTrainer:
    def __init__(self, model: Any, args: TrainingArguments, *, train_dataset: Any) -> None:
        self.args, self.began = args, 0

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        self.began = int(resume_from_checkpoint.rpartition("-")[2]) if resume_from_checkpoint else 0
        for step in range(self.began + 1, self.args.max_steps + 1):
            if step % self.args.save_steps == 0:
                Path(self.args.output_dir, f"checkpoint-{step}").mkdir(parents=True)
                for old in _checkpoints(self.args.output_dir)[: -(self.args.save_total_limit or 1000)]:
                    shutil.rmtree(old)


def get_last_checkpoint(folder: str) -> str | None:
    found = _checkpoints(folder)
    return str(found[-1]) if found else None


def _checkpoints(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))


class ModelCheckpoint:
    def __init__(self, dirpath: Path, *, save_last: bool, every_n_train_steps: int) -> None:
        self.dirpath = dirpath


class LightningTrainer:
    world_size = 1

    def __init__(
        self, *, max_steps: int, callbacks: list[ModelCheckpoint] | None = None, logger: bool = True, num_nodes: int = 1,
        devices: int = 1, strategy: str = "auto",
    ) -> None:  # fmt: skip
        self.max_steps, self.callbacks, self.num_nodes, self.began = max_steps, callbacks or [], num_nodes, 0

    def fit(self, model: Any, train_dataloaders: Any, *, ckpt_path: Path | None = None) -> None:
        self.began = int(ckpt_path.read_text()) if ckpt_path else 0
        for one in self.callbacks:
            one.dirpath.mkdir(parents=True, exist_ok=True)
            (one.dirpath / "last.ckpt").write_text(str(self.max_steps))


# Where the real ones are: the module that defines a Trainer is the one that hosts look at.
MODULES = {
    "torch": {"accelerator": "Accelerator"},
    "transformers.trainer_utils": {"get_last_checkpoint": "get_last_checkpoint"},
    "transformers.trainer": {"Trainer": "HuggingFaceTrainer"},
    "transformers": {"Trainer": "transformers.trainer", "TrainingArguments": "TrainingArguments"},
    "lightning.pytorch.callbacks": {"ModelCheckpoint": "ModelCheckpoint"},
    "lightning.pytorch.trainer.trainer": {"Trainer": "LightningTrainer"},
    "lightning.pytorch.trainer": {"Trainer": "lightning.pytorch.trainer.trainer"},
    "lightning.pytorch": {"Trainer": "lightning.pytorch.trainer", "callbacks": "lightning.pytorch"},
    "lightning": {"Trainer": "lightning.pytorch", "pytorch": "lightning"},
}


def write(folder: Path) -> None:
    """Packages of these names."""
    for module, names in MODULES.items():
        place = folder.joinpath(*module.split("."))
        place.mkdir(parents=True, exist_ok=True)
        lines = [
            f"from {home if home in MODULES else __name__} import {name if home in MODULES else f'{home} as {name}'}"
            for name, home in names.items()
        ]
        (place / "__init__.py").write_text("\n".join(lines) + "\n")
