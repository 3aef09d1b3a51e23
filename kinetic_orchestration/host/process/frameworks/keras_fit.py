"""Makes a plain `fit` of Keras train one model on all hosts of a slice.

On torch, Keras knows one process only, and each host would train a model of its own. Here the hosts begin with host 0's
weights, average their gradients before the optimizer sees them, and show the mean of their metrics, so that every
callback decides alike everywhere. On JAX and TensorFlow, Keras does this itself once a program has named a distribution
or a strategy; if it has not, a message says which devices are idle. Independent of jobs.
"""

from __future__ import annotations

import functools
import os
import sys
import types

from kinetic_orchestration.host.process.topology import OWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

BACKENDS = ("jax", "tensorflow", "torch")
LARGE = 32 << 20  # bytes of a message, of which the round trip is then a small part
_DEPTH = 4  # of containers and objects in each other, in which a model's optimizers are looked for
_THEIRS = ("builtins", "jax", "jaxlib", "keras", "numpy", "tensorflow", "torch")  # not packages of a user


def choose_backend() -> None:
    """Choose an installed backend if none is configured, where Keras would take TensorFlow, installed or not."""
    if os.environ.get("KERAS_BACKEND"):
        return
    meant = _configured()
    if not _has(meant):
        for name in filter(_has, BACKENDS):
            os.environ["KERAS_BACKEND"] = name
            return


def _configured() -> str:
    """Return the backend in Keras' own file, which Keras writes itself when it is first imported."""
    import json

    folder = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        with open(os.path.join(folder, "keras.json"), encoding="utf-8") as file:
            return str(json.load(file).get("backend", "tensorflow"))
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def hook(keras: Any, host: int, hosts: int) -> None:
    """Hook Keras right after its first import. `hosts`: the number of joined hosts, 1 if this process trains alone."""
    if not hasattr(keras, "distribution"):  # Keras 2
        return
    backend = keras.config.backend()
    if backend == "torch":
        if hosts > 1:
            _share(keras)
        return
    if backend == "tensorflow" and hosts > 1:
        _reduce_each()
    if backend in _IDLE and host == 0:
        _warn_idle(keras, _IDLE[backend], hosts)


def optimizers_beside(model: Any) -> dict[str, Any]:
    """Return the optimizers that a model holds in addition to its `optimizer`, as a GAN does, by attribute."""
    kind = sys.modules["keras"].optimizers.Optimizer
    found: dict[str, Any] = {}
    for layer in model._flatten_layers():
        part = "" if layer is model else f"{layer.name}."
        for name, value in vars(layer).copy().items():
            found.update({f"{part}{name}{key}": one for key, one in _held(value, kind, ())})
    return {name: one for name, one in found.items() if one is not model.optimizer}


def _held(value: Any, kind: type, within: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a kind within a value, in containers and in the user's own objects, each with its path."""
    if isinstance(value, kind):
        yield "", value
        return
    if len(within) == _DEPTH or id(value) in within or isinstance(value, sys.modules["keras"].layers.Layer):
        return  # a layer is one of the model's own, and looked into for itself
    if isinstance(value, dict):
        inside = [(f"[{key!r}]", one) for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        inside = [(f"[{index}]", one) for index, one in enumerate(value)]
    elif hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in _THEIRS:
        if isinstance(value, (type, types.ModuleType)):
            return
        inside = [(f".{name}", one) for name, one in vars(value).copy().items()]
    else:
        return
    for key, one in inside:
        for further, held in _held(one, kind, (*within, id(value))):
            yield key + further, held


# -- JAX and TensorFlow: warnings about idle devices ------------------------------------------------------------------


def _warn_idle(keras: Any, idle: Callable[[Any, Any, int], str], hosts: int) -> None:
    plain, told = keras.Model.fit, False

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal told
        first, told = not told, True
        if first and (said := idle(keras, self, hosts)):
            sys.stderr.write(f"kinetic: {said}\n")
        return plain(self, *args, **kwargs)

    keras.Model.fit = fit


def _idle_on_jax(keras: Any, _: Any, hosts: int) -> str:
    devices = sys.modules["jax"].device_count()
    if devices == 1 or keras.distribution.distribution() is not None:
        return ""
    shards = "auto_shard_dataset=False" if hosts > 1 else ""
    alone = f", and the {hosts} hosts train a model each" if hosts > 1 else ""
    return (
        f"this fit uses 1 of {devices // hosts} devices of a host{alone}, because no distribution is set. Before the "
        f"model is made: keras.distribution.set_distribution(keras.distribution.DataParallel({shards}))"
    )


def _idle_on_tensorflow(_: Any, model: Any, hosts: int) -> str:
    if hosts == 1 or model.distribute_strategy.num_replicas_in_sync > 1:
        return ""
    return (
        f"the {hosts} hosts train a model each, because it was made under no strategy. Make and compile it under "
        "tf.distribute.MultiWorkerMirroredStrategy().scope()"
    )


_IDLE: dict[str, Callable[[Any, Any, int], str]] = {"jax": _idle_on_jax, "tensorflow": _idle_on_tensorflow}


def _reduce_each() -> None:
    """Make the strategy reduce a tuple value by value, and scalars without an axis: Keras passes a batch, which is a
    tuple, and losses with an axis that they lack. With one worker the strategy takes both, with several neither
    (keras/src/backend/tensorflow/trainer.py, _maybe_symbolic_build and reduce_per_replica).
    """
    tf: Any = sys.modules["tensorflow"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy
    plain = strategy.reduce

    @functools.wraps(plain)
    def reduce(self: Any, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        def one(value: Any) -> Any:
            if value is None:
                return None
            scalar = all(local.shape.rank == 0 for local in self.experimental_local_results(value))
            return plain(self, reduce_op, value, None if scalar else axis)

        if isinstance(value, (tuple, list, dict)):
            return tf.nest.map_structure(one, value)
        return one(value) if tf.is_tensor(value) else plain(self, reduce_op, value, axis)

    strategy.reduce = reduce


# -- torch ------------------------------------------------------------------------------------------------------------


class _Hosts:
    """All hosts, as torch joins them; each method is called on every host, in the same order."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._group: Any = torch.distributed

    def join(self) -> None:
        """Join the process group by MASTER_ADDR, RANK and WORLD_SIZE, unless the program has done it."""
        if not self._group.is_initialized():
            import atexit

            self._group.init_process_group()
            atexit.register(self._leave)

    def _leave(self) -> None:
        if self._group.is_initialized():
            self._group.destroy_process_group()

    def take_from_first(self, tensors: Iterable[Any]) -> None:
        """Copy host 0's values to every host."""
        with self._torch.no_grad():
            for same, flat in self._flat(tensors):
                self._group.broadcast(flat, src=0)
                _into(same, flat)

    def average(self, tensors: Iterable[Any]) -> None:
        with self._torch.no_grad():
            for same, flat in self._flat(tensors):
                self._group.all_reduce(flat)
                _into(same, flat.div_(self._group.get_world_size()))

    def of_all(self, number: float) -> list[float]:
        """Return this number as each host has it."""
        mine = self._torch.tensor([number], dtype=self._torch.float64, device=self._device())
        found = [self._torch.zeros_like(mine) for _ in range(self._group.get_world_size())]
        self._group.all_gather(found, mine)
        return [float(one) for one in found]

    def mean(self, numbers: list[float]) -> list[float]:
        tensor = self._torch.tensor(numbers, dtype=self._torch.float64, device=self._device())
        self.average([tensor])
        return [float(number) for number in tensor]

    def _device(self) -> str:
        if self._group.get_backend() != "nccl":
            return "cpu"
        own = os.environ.get(OWN, "")
        return f"cuda:{own}" if own else "cuda"

    def _flat(self, tensors: Iterable[Any]) -> Iterator[tuple[list[Any], Any]]:
        """Few tensors of one kind, since every message costs as much as a round trip; one at a time, and none much
        larger than `LARGE`, or all of a model would be in memory twice."""
        kinds: dict[Any, list[Any]] = {}
        for tensor in tensors:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
        for same in kinds.values():
            few, size = [], 0
            for tensor in same:
                few.append(tensor)
                size += tensor.numel() * tensor.element_size()
                if size >= LARGE:
                    yield few, self._joined(few)
                    few, size = [], 0
            if few:
                yield few, self._joined(few)

    def _joined(self, tensors: list[Any]) -> Any:
        return self._torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _into(tensors: list[Any], flat: Any) -> None:
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))


def _share(keras: Any) -> None:
    """`fit` gets one more callback, before all others, and optimizers average while it runs."""
    hosts = _Hosts()
    together = _callback(keras, hosts)
    plain = keras.Model.fit

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        import inspect

        bound = inspect.signature(plain).bind(self, *args, **kwargs)
        given = bound.arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            given.callbacks.insert(0, together)
            together.set_model(self)
            together.set_params(given.params)
        else:
            rest = given if isinstance(given, (list, tuple)) else [given]
            bound.arguments["callbacks"] = [together, *(one for one in rest if one is not None)]
        try:
            return plain(*bound.args, **bound.kwargs)
        finally:
            together.active = False

    keras.Model.fit = fit
    for name in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer"):
        if "apply" in dir(getattr(keras.optimizers, name, None)):
            _average_first(getattr(keras.optimizers, name), together, hosts)


def _average_first(optimizer: Any, together: Any, hosts: _Hosts) -> None:
    """Average the gradients before an optimizer applies them; an optimizer inside another one gets averaged ones."""
    plain = optimizer.apply

    @functools.wraps(plain)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if not together.active:
            return plain(self, grads, trainable_variables)
        hosts.average(gradient for gradient in grads if gradient is not None)
        together.active = False
        try:
            return plain(self, grads, trainable_variables)
        finally:
            together.active = True

    optimizer.apply = apply


def _callback(keras: Any, hosts: _Hosts) -> Any:
    class Together(keras.callbacks.Callback):  # type: ignore[misc]
        """One model of all hosts. Its numbers are put into the logs that the other callbacks get after it."""

        active = False

        def on_train_begin(self, logs: Any = None) -> None:
            hosts.join()
            steps = hosts.of_all(float((self.params or {}).get("steps") or 0))
            if len(set(steps)) > 1:
                told = ", ".join(f"{count:g}" for count in steps)
                raise ValueError(
                    f"the hosts would train {told} steps per epoch and wait for each other for ever: give every host "
                    "as much data as the others, in batches of the same size, or name steps_per_epoch"
                )
            first = getattr(self.model, "optimizer", None)
            held = [*([] if first is None else [first]), *optimizers_beside(self.model).values()]
            kept = [*self.model.weights, *(variable for one in held for variable in one.variables)]
            hosts.take_from_first(variable.value for variable in kept)
            self.active = True

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._mean(logs)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._mean(logs)

        def on_test_begin(self, logs: Any = None) -> None:
            self._same_statistics()

        def on_train_end(self, logs: Any = None) -> None:
            self._same_statistics()

        def _mean(self, logs: Any) -> None:
            names = sorted(name for name, value in (logs or {}).items() if isinstance(value, (int, float)))
            if names:
                logs.update(zip(names, hosts.mean([float(logs[name]) for name in names]), strict=True))

        def _same_statistics(self) -> None:
            """Give every host the batch statistics that host 0's layers keep, as normalization layers do."""
            kept = (layer for layer in self.model._flatten_layers() if layer.trainable)
            hosts.take_from_first(
                variable.value for layer in kept for variable in getattr(layer, "_non_trainable_variables", ())
            )

    return Together()
