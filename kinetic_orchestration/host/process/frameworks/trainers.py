"""Gives the Trainer of Lightning its place among the hosts, and refuses trainers of others where they cannot compute.

Hooks for `join`, which has them called once a module is imported. Nothing is imported here but what the program has.
"""

from __future__ import annotations

import functools
import os

TYPE_CHECKING = False  # importing typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
# What https://github.com/huggingface/accelerate/releases/tag/v1.16.0 says: "initial single-chip" support of torch-tpu.
ONE_CHIP = "computes on a single chip of a TPU at most (Accelerate, from 1.16.0, by torch-tpu)"
XLA = "computes on a TPU by torch_xla alone, whose last release is 2.9.0"
INSTEAD = (
    'Train it on GPUs, or on accelerator="cpu"; on TPUs train with JAX or Keras on JAX, or in a loop of your own. '
    "KINETIC_ALLOW_CPU=1 lets it try"
)


def hooks(hosts: int, refusal: type[Exception] | None) -> dict[str, Callable[[ModuleType], None]]:
    """Return what is to be done after the import of which module, on one of so many hosts. `refusal`: what is raised on
    a TPU; None elsewhere."""
    if refusal is None:
        return dict.fromkeys(LIGHTNING, _place_lightning)

    def refuse(kind: str, name: str, why: str) -> Callable[[ModuleType], None]:
        return lambda module: _refuse(getattr(module, kind), f"{name} {why}", hosts, refusal)

    found = {name: refuse("Trainer", "Lightning's Trainer", XLA) for name in LIGHTNING}
    if hosts > 1:
        found["transformers.trainer"] = refuse("Trainer", "Hugging Face's Trainer", ONE_CHIP)
        found["accelerate.accelerator"] = refuse("Accelerator", "Accelerator", ONE_CHIP)
    return found


def _refuse(kind: Any, why: str, hosts: int, refusal: type[Exception]) -> None:
    """Have a class refuse to be made where it would train on the CPU of a TPU host, or a model for each host."""
    import importlib.util

    if "torch_xla" in why and hosts == 1 and importlib.util.find_spec("torch_xla") is not None:
        return
    several = f", and this job has {hosts} TPU hosts: each would train a model of its own" if hosts > 1 else ""

    def __init__(self: Any, *_: Any, **__: Any) -> None:
        raise refusal(f"{why}{several}. {INSTEAD}")

    kind.__init__ = __init__


def _place_lightning(module: Any) -> None:
    """Have a Trainer take all hosts, and all processes of each, unless it is told otherwise.

    One that is told a number of processes which is not the job's would give each host the rows of that many.
    """
    plain = module.Trainer.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        processes, nodes = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
        if given.get("devices") in (None, "auto"):
            given["devices"] = processes
        given.setdefault("num_nodes", nodes)
        plain(self, *args, **given)
        _check_world(self, processes * nodes)

    module.Trainer.__init__ = __init__


def _check_world(trainer: Any, world: int) -> None:
    if getattr(getattr(trainer, "strategy", None), "cluster_environment", None) is None:  # it trains alone
        return
    nodes, devices = getattr(trainer, "num_nodes", world), getattr(trainer, "num_devices", 1)
    if nodes * devices != world:
        raise ValueError(
            f"this Trainer has num_nodes={nodes} and devices={devices}, {nodes * devices} processes, and the job has "
            f"{world}: leave both out, since each host knows its place"
        )
