"""`kinetic.torch`: PyTorch's trainers resume after the loss of their hosts, and save before they are taken away.

`trainer_callback` is for the Trainer of Hugging Face, `lightning_callback` for that of Lightning, `accelerate` for a
loop with Accelerate, and `files` for any loop that writes its own files, as torch.distributed.checkpoint does. All of
them leave writing to the trainer, and say which checkpoints are complete (`file_checkpoints`). Each framework is
imported when one is made for it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

from kinetic_orchestration.program.trainers.file_checkpoints import FileCheckpoints

__all__ = ["Files", "accelerate", "files", "lightning_callback", "trainer_callback"]

WEIGHTS = "trainer.ckpt"  # of Lightning


class Files:
    """Steps of a loop that writes the files of its checkpoints itself; `files` and `accelerate` make one."""

    def __init__(self, checkpoints: FileCheckpoints, save: Callable[[str], Any], load: Callable[[str], Any]) -> None:
        self._checkpoints = checkpoints
        self._save, self._load = save, load
        self._done = 0

    def restore(self) -> int:
        """Load the newest checkpoint that is complete on all hosts.

        Returns:
            The number of steps done; 0 without a checkpoint.
        """
        path = self._checkpoints.newest()
        if path is not None:
            self._load(path)
        self._done = self._checkpoints.resumed or 0
        self._checkpoints.begin(self._done)
        return self._done

    def step(self, done: int, /, **metrics: Any) -> None:
        """Report that `done` steps are done, and write a checkpoint if one is due. All hosts call it after each step.

        Args:
            done: Number of steps done.
            **metrics: Numbers.

        Raises:
            TrainingEnded: The training was asked to end, and has ended after this step.
        """
        self._done = done
        if self._checkpoints.reached(done, metrics):
            self._checkpoints.write(done, self._save)
        self._checkpoints.end_if_last(done)

    def finish(self) -> None:
        """End the training, and write a checkpoint of its last step unless there is one."""
        _finish(self._checkpoints, self._done, self._save)


def files(
    save: Callable[[str], Any],
    load: Callable[[str], Any],
    *,
    every: int | str | None = "10m",
    keep: int = 3,
    total: int = 0,
    name: str = "files",
) -> Files:
    """Make a loop resume whose checkpoints are files that it writes itself.

        from torch.distributed import checkpoint as dcp

        steps = kinetic.torch.files(
            save=lambda folder: dcp.save({"model": model.state_dict()}, checkpoint_id=folder),
            load=lambda folder: dcp.load(state, checkpoint_id=folder),
        )
        for number in range(steps.restore(), total):
            ...
            steps.step(number + 1, loss=loss)
        steps.finish()

    Args:
        save: Writes this host's files into the folder that it gets. All hosts call it for the same steps.
        load: Reads them, from a folder that has the files of all hosts.
        every: Steps (a number) or time ("90s", "5m") between checkpoints. None: only at the end and at a preemption.
        keep: Number of checkpoints to keep.
        total: Number of steps, for the progress; 0 if unknown.
        name: Name of this training among those of the program.
    """
    return Files(FileCheckpoints(name, "step", every=every, keep=keep, total=total), save, load)


def accelerate(
    accelerator: Any,
    *,
    every: int | str | None = "10m",
    keep: int = 3,
    total: int = 0,
    name: str = "accelerate",
) -> Files:
    """Make a loop with Accelerate resume: `save_state` and `load_state` in checkpoints that are complete.

    Args:
        accelerator: The Accelerator, whose `prepare` has seen all that is to be saved before `restore` is called.
        every: Steps (a number) or time ("90s", "5m") between checkpoints. None: only at the end and at a preemption.
        keep: Number of checkpoints to keep.
        total: Number of steps, for the progress; 0 if unknown.
        name: Name of this training among those of the program.
    """

    def save(folder: str) -> None:
        naming = accelerator.project_configuration
        automatic, naming.automatic_checkpoint_naming = naming.automatic_checkpoint_naming, False
        try:  # else it takes a name of its own for the folder, by a counter that begins anew after a kill
            accelerator.save_state(folder)
        finally:
            naming.automatic_checkpoint_naming = automatic

    return files(save, accelerator.load_state, every=every, keep=keep, total=total, name=name)


def _finish(checkpoints: FileCheckpoints, done: int, save: Callable[[str], Any]) -> None:
    """Write a checkpoint of the last step, unless there is one or the program runs outside a job."""
    if checkpoints._host.job_id and done != checkpoints.newest_written:
        checkpoints.write(done, save)
    checkpoints.finish(None, done)


# ---- the Trainer of Hugging Face -------------------------------------------------------------------------------------


def trainer_callback(*, every: int | str | None = None, keep: int = 2, name: str = "trainer") -> Any:
    """Return a callback for the Trainer of Hugging Face.

        keeps = kinetic.torch.trainer_callback()
        trainer = Trainer(model, TrainingArguments(save_steps=100), train_dataset=rows, callbacks=[keeps])
        trainer.train(resume_from_checkpoint=keeps.newest())

    Its `output_dir` becomes a folder that outlives the hosts. The trainer saves as its arguments say, and as `every`.

    Args:
        every: Steps (a number) or time ("90s", "5m") between checkpoints, beside those that the arguments ask for.
        keep: Number of checkpoints to keep, unless the arguments have a `save_total_limit`.
        name: Name of this training among those of the program.

    Raises:
        ImportError: transformers cannot be imported.
    """
    from transformers import TrainerCallback

    made: type = type("KineticTrainerCallback", (_OfTrainer, TrainerCallback), {"__module__": __name__})
    return made(FileCheckpoints(name, "checkpoint", every=every, keep=keep))


class _OfTrainer:
    """What a callback of Hugging Face's Trainer does; the trainer itself writes."""

    def __init__(self, checkpoints: FileCheckpoints) -> None:
        self._checkpoints = checkpoints

    def newest(self) -> str | None:
        """Return the newest checkpoint that is complete on all hosts; None if there is none."""
        return self._checkpoints.newest()

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.open()
        args.output_dir = self._checkpoints.folder
        if args.save_total_limit:
            self._checkpoints._keep = args.save_total_limit
        args.save_total_limit = None  # it would remove one on host 0 while the next is still on its way from host 1

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.begin(state.global_step, max(0, state.max_steps))
        # The best checkpoint is named by its path on the machine before, and so forgotten until the next save.
        best = self._checkpoints.path(getattr(state, "best_global_step", None) or 0)
        if state.best_model_checkpoint is None and os.path.isdir(best):
            state.best_model_checkpoint = best

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self._checkpoints.report(state.global_step, logs or {})

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._checkpoints.reached(state.global_step, {}):
            control.should_save = True
        if self._checkpoints.is_last:
            control.should_training_stop = True
            control.should_evaluate = False  # which may take longer than there is

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        best = state.best_model_checkpoint
        self._checkpoints.commit(state.global_step, protected=[best] if best else [])
        self._checkpoints.end_if_last(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._checkpoints.finish(None, state.global_step)


# ---- Lightning -------------------------------------------------------------------------------------------------------


def lightning_callback(*, every: int | str | None = "10m", keep: int = 2, name: str = "lightning") -> Any:
    """Return a callback for the Trainer of Lightning.

        keeps = kinetic.torch.lightning_callback(every=100)
        trainer = lightning.Trainer(max_epochs=3, callbacks=[keeps])
        trainer.fit(model, loader, ckpt_path=keeps.newest())

    It stands for Lightning's own checkpoints, and beside what they have it restores the random generators of each host
    and the place in the data of an epoch.

    Args:
        every: Steps (a number) or time ("90s", "5m") between checkpoints. None: only at the end and at a preemption.
        keep: Number of checkpoints to keep.
        name: Name of this training among those of the program.

    Raises:
        ImportError: Lightning cannot be imported.
    """
    made: type = type("KineticLightningCallback", (_OfLightning, _kind_of_lightning()), {"__module__": __name__})
    return made(FileCheckpoints(name, "step", every=every, keep=keep))


class _OfLightning:
    """What a callback of Lightning's Trainer does."""

    def __init__(self, checkpoints: FileCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._handler: Any = None
        self._drawn: dict[str, Any] = {}  # the random generators, when the order of an epoch's rows was drawn
        self._begins = False  # an epoch whose order was drawn before its beginning
        self._reached = 0

    def newest(self) -> str | None:
        """Return the newest checkpoint that is complete on all hosts; None if there is none."""
        folder = self._checkpoints.newest()
        return folder and os.path.join(folder, WEIGHTS)

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        if stage == "fit":
            self._checkpoints.open()
            self._handler = signal.getsignal(signal.SIGTERM)

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self._drawn = _drawn()

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if not self._begins:
            self._drawn = _drawn()
        self._begins = False

    def on_train_start(self, trainer: Any, module: Any) -> None:
        with contextlib.suppress(ValueError):  # not the main thread
            # Lightning's own handler begins a collective, wherever each host is; the hosts agree by their records.
            signal.signal(signal.SIGTERM, self._handler)
        _count_next_epoch(trainer.fit_loop)
        self._reached = trainer.global_step
        total = trainer.estimated_stepping_batches
        self._checkpoints.begin(self._reached, int(total) if 0 < total < 1 << 53 else 0)
        if self._reached and self._reached == self._checkpoints.resumed:
            own = os.path.join(self._checkpoints.path(self._reached), self._own())
            drawn, self._begins = _go_on(trainer, own)
            self._drawn = drawn or self._drawn

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        if trainer.global_step == self._reached:  # gradients are accumulated
            return
        self._reached = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        shown = {} if loss is None else {"loss": loss}
        if self._checkpoints.reached(self._reached, {**shown, **trainer.callback_metrics}):
            self._checkpoints.write(self._reached, lambda folder: self._save(trainer, folder))
        self._checkpoints.end_if_last(self._reached)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        _finish(self._checkpoints, trainer.global_step, lambda folder: self._save(trainer, folder))

    def _save(self, trainer: Any, folder: str) -> None:
        import torch

        trainer.save_checkpoint(os.path.join(folder, WEIGHTS))
        torch.save({"epoch": self._drawn, "now": _drawn()}, os.path.join(folder, self._own()))

    def _own(self) -> str:
        return f"random-{self._checkpoints._host.host_index:05d}.pt"


def _kind_of_lightning() -> type:
    """Return the class of its checkpoints, from the package that the program has imported."""
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning.callbacks import Checkpoint
    else:
        from lightning.pytorch.callbacks import Checkpoint
    found: type = Checkpoint
    return found


def _count_next_epoch(fit: Any) -> None:
    """Have the epoch counted that begins after a checkpoint of the last step of the one before.

    Lightning (2.6.6) completes the epoch of the checkpoint, and then takes the next one for its rest: it neither calls
    `on_train_epoch_start` nor counts an epoch as started. To it, a checkpoint of the last step of that epoch is then
    one of its beginning, and another epoch is trained.
    """
    counted = fit.epoch_progress.current
    if getattr(fit, "restarted_mid_epoch", False) and counted.processed == counted.started:
        fit.reset_restart_stage()


def _go_on(trainer: Any, path: str) -> tuple[dict[str, Any], bool]:
    """Pass over the rows of this epoch that were trained on, in their order, and restore this host's random generators.

    Returns their states when the order was drawn, empty if unknown, and True if the next epoch begins with them.
    """
    import torch

    if not os.path.exists(path):  # of another number of hosts
        return {}, False
    states = torch.load(path, weights_only=True)
    fit = trainer.fit_loop
    seen, loaders = fit.epoch_loop.batch_progress.current.ready, fit._combined_loader.flattened
    if all(hasattr(one, "load_state_dict") for one in loaders):  # Lightning has restored their places
        _draw(states["now"])
        return states["epoch"], False
    is_within = 0 < seen < trainer.num_training_batches
    _draw(states["epoch" if is_within else "now"])
    for one in loaders:
        for name in ("sampler", "batch_sampler"):
            if (sampler := getattr(one, name, None)) is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(fit.epoch_progress.current.processed)
    fetcher = fit._data_fetcher
    iter(fetcher)  # as at the beginning of each epoch, which Lightning has done before its generators were restored
    if not is_within:
        return states["now"], True
    for _ in range(seen):
        next(fetcher)
    if fetcher.length is not None:
        fetcher.fetched, fetcher.done = 0, False  # Lightning adds those that were seen
    _draw(states["now"])
    return states["epoch"], False


def _drawn() -> dict[str, Any]:
    """Return the state of all random generators of this process, as plain values and tensors."""
    import torch

    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = [kind, keys.tolist(), *rest]
    return found


def _draw(states: dict[str, Any]) -> None:
    import torch

    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(tuple(states["numpy"]))
