"""Stand-ins of torch, transformers and lightning, 4.6 GB that the default tests do without: of each call that docs/training/frameworks.md
makes the parameters by name, and files where the real ones write theirs. tests/end_to_end/frameworks/test_on_trainers.py
runs the page with the real ones, and holds these parameters against theirs.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
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


class TrainerCallback:
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...


class HuggingFaceTrainer:
    def __init__(self, model: Any, args: TrainingArguments, *, train_dataset: Any, callbacks: Any = ()) -> None:
        self.args, self.began, self._callbacks = args, 0, callbacks
        self.state = SimpleNamespace(global_step=0, max_steps=args.max_steps, best_model_checkpoint=None)
        self._control = SimpleNamespace(should_save=False, should_training_stop=False, should_evaluate=False)
        self._call("on_init_end")

    def _call(self, event: str) -> None:
        for one in self._callbacks:
            getattr(one, event)(self.args, self.state, self._control)

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        self.began = int(resume_from_checkpoint.rpartition("-")[2]) if resume_from_checkpoint else 0
        self.state.global_step = self.began
        self._call("on_train_begin")
        for step in range(self.began + 1, self.args.max_steps + 1):
            self.state.global_step = step
            self._call("on_step_end")
            if step % self.args.save_steps == 0:
                folder = Path(self.args.output_dir, f"checkpoint-{step}")
                folder.mkdir(parents=True)
                (folder / "trainer_state.json").write_text("{}")
                self._call("on_save")
        self._call("on_train_end")


class HuggingFaceAccelerator:
    def __init__(self, mixed_precision: str) -> None:
        self.mixed_precision = mixed_precision


class DataParallel:
    """Strategy that knows of other processes."""

    cluster_environment = "torchelastic"


class LightningTrainer:
    world_size = 1

    def __init__(
        self, *, max_steps: int, callbacks: list[Any] | None = None, logger: bool = True, num_nodes: int = 1,
        devices: Any = "auto", strategy: str = "auto",
    ) -> None:  # fmt: skip
        self.max_steps, self.callbacks, self.began = max_steps, callbacks or [], 0
        self.num_nodes, self.devices = num_nodes, devices
        self.num_devices = devices if isinstance(devices, int) else 1
        self.strategy = DataParallel() if strategy == "ddp" else None

    def fit(self, model: Any, train_dataloaders: Any, *, ckpt_path: Path | None = None) -> None:
        self.began = int(ckpt_path.read_text()) if ckpt_path else 0


# Where the real ones are: the module that defines a Trainer is the one that hosts look at.
MODULES = {
    "torch": {"accelerator": "Accelerator"},
    "transformers.trainer": {"Trainer": "HuggingFaceTrainer"},
    "transformers": {
        "Trainer": "transformers.trainer",
        "TrainingArguments": "TrainingArguments",
        "TrainerCallback": "TrainerCallback",
    },
    "accelerate.accelerator": {"Accelerator": "HuggingFaceAccelerator"},
    "accelerate": {"Accelerator": "accelerate.accelerator"},
    "lightning.pytorch.trainer.trainer": {"Trainer": "LightningTrainer"},
    "lightning.pytorch.trainer": {"Trainer": "lightning.pytorch.trainer.trainer"},
    "lightning.pytorch": {"Trainer": "lightning.pytorch.trainer"},
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
