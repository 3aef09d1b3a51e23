"""`KineticCallback`: a Keras `fit` that resumes at its step, on all three backends.

Keras is imported when a callback is created, and not before. Work between two steps is done at the beginning of the
second one: Keras calls that hook in its own thread and without fetching the step's results for it, while a hook at the
end of a step makes it wait for the device at every one.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import time
import weakref
from collections.abc import Mapping
from typing import Any

from kinetic_orchestration.errors import CheckpointError, UsageError
from kinetic_orchestration.host.process.frameworks.keras_fit import optimizers_beside
from kinetic_orchestration.plan.hardware.global_batch import GlobalBatch
from kinetic_orchestration.program.checkpoints.tier.folder import Where
from kinetic_orchestration.program.checkpoints.trees import Slot
from kinetic_orchestration.program.loop import Choice, Training
from kinetic_orchestration.program.trainers.keras_others import Others


class KineticCallback:
    """Metrics, progress and checkpoints of a Keras `fit`, which resumes after the loss of its hosts.

        model.fit(data, epochs=3, callbacks=[kinetic.KineticCallback(every="5m")])

    An instance is a `keras.callbacks.Callback`; Keras is imported when the first one is made.

    Args:
        every: Steps (a number), time ("90s", "5m") or "epoch" between checkpoints. None: only at the end and at a
            preemption.
        keep: Number of checkpoints to keep.
        log_every: Steps between reports of metrics. None: once a second, and at the end of each epoch.
        on_nan: "warn" reports a metric that is not finite, "stop" raises FloatingPointError.
        on_full_disk: "warn" reports a checkpoint that could not be written, "stop" raises CheckpointError.
        reshard: Restore checkpoints of another number of hosts or devices as well. None: as `run` was told.
        global_batch: Samples in one step on all hosts together, which stay the same on any number of hosts; fit gets
            `batch.per_host` of them as its `batch_size`. None: as `run` was told; 0: unknown.
        stream: The data continue from epoch to epoch (a generator, with `steps_per_epoch`) instead of beginning again.
            All data that were trained on are skipped after a restoration.
        name: Name of this fit. The n-th fit of a program without one finds the checkpoints of the n-th.
        samples: Samples in one step on all hosts together, for samples/s. On one host they are known from the data of
            `fit`.
        tokens: Tokens in one step on all hosts together, for tokens/s.
        tier: Where the machine keeps a copy of the newest checkpoint beside the bucket, as of `Training`.

    Attributes:
        batch: The division of the global batch among the hosts, of which `batch.rows` are this host's rows; None
            without one.

    Raises:
        ImportError: Keras 3 cannot be imported.
        UsageError: An option is invalid.
    """

    model: Any
    params: Any
    _model: Any

    async_safe = True  # of on_train_batch_end, which only remembers: Keras then waits for no step

    def __new__(cls, *_: Any, **__: Any) -> KineticCallback:
        try:
            from keras.callbacks import Callback
        except ImportError as error:
            raise ImportError(
                "KineticCallback needs Keras 3, which cannot be imported in this job's environment "
                f"({error}): add keras to its requirements, or use kinetic.Training for a loop of your own"
            ) from error
        if issubclass(cls, Callback):
            return object.__new__(cls)
        told = {"__module__": cls.__module__, "__doc__": cls.__doc__, "_written_as": cls}
        joined: type[KineticCallback] = type(cls.__name__, (cls, Callback), told)
        return object.__new__(joined)

    def __init__(
        self,
        *,
        every: int | str | None = "10m",
        keep: int = 3,
        log_every: int | None = None,
        on_nan: Choice = "warn",
        on_full_disk: Choice = "warn",
        reshard: bool | None = None,
        global_batch: int | None = None,
        stream: bool = False,
        name: str = "",
        samples: int = 0,
        tokens: int = 0,
        tier: Where = "auto",
    ) -> None:
        super().__init__()
        self._training: Training | None = None
        _close_after_failures()
        self._options: dict[str, Any] = {
            "every": every, "keep": keep, "log_every": log_every, "on_nan": on_nan, "on_full_disk": on_full_disk,
            "reshard": reshard, "global_batch": global_batch, "stream": stream, "name": name, "samples": samples,
            "tokens": tokens, "tier": tier,
        }  # fmt: skip
        told = Training(**{**_of_training(self._options), "name": name or "unnamed"})  # refuses what is invalid now
        self.batch = told.batch
        self._latest: Mapping[str, Any] | None = None
        self._others = Others()
        self._skip = 0
        self._restored: dict[str, Any] | None = None  # until the epoch begins in which it resumes

    def __reduce__(self) -> Any:
        """Pickle by the options: a callback may be an argument of a job."""
        return _made, (getattr(self, "_written_as", type(self)), self._options)

    # ---- a fit begins ------------------------------------------------------------------------------------------------

    def _check(self, model: Any) -> None:
        """Refuse what could not be resumed as it was."""
        if self._options["stream"] and keras_backend() == "torch":
            raise CheckpointError(
                "on torch Keras reads a stream where no callback can pass over what was trained on: give the data an "
                "end, and an epoch for each time they are read"
            )
        if not (model.built or model.variables):  # on TensorFlow, for data of unknown shapes
            raise CheckpointError(
                "Keras makes this model's variables in its first step, and nothing could be restored into them before: "
                "call it on a batch before fit, as model(x[:1]), or build it, as model.build((None, 8))"
            )

    def on_train_begin(self, logs: Any = None) -> None:
        model: Any = self.model
        self._check(model)
        self._epochs = int(self.params.get("epochs") or 1)
        self._per_epoch = int(self.params.get("steps") or 0)
        self._stride = int(getattr(model, "steps_per_execution", 1) or 1)
        total = self._epochs * self._per_epoch
        self._training = Training(**_of_training(self._options), total=total)
        self.batch = self._training.batch
        _check_batch(self.batch)
        if not self._options["stream"] and self._epochs > 1 and (goes_on := _continuing_data()):
            what, instead = goes_on
            self._training.say(
                f"the data are {what} from epoch to epoch, and what is resumed in a later epoch would see other "
                f"batches: give {instead}"
            )
        if not self._options["samples"] and self._training.alone:
            self._training.speed.samples = _batch_size()
        _fitting.add(self)
        self._done = self._base = self._epoch = self._batch = self._skip = 0
        self._restored = None
        self._first = True
        late = _Late(model)
        self._kept = _Kept(self._others, late)
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._early = late.early = {name: one for name, one in optimizers_beside(model).items() if one.built}
        state, self._done = self._training.restore(self._state_in_place())
        more = self._training.restored
        if more is None:
            return
        self._restored = state["metrics"]
        self._epoch, self._skip = int(more["epoch"]), int(more["batch"])
        if self._skip and more["steps_per_epoch"] != self._per_epoch:
            self._training.say(
                f"an epoch has {self._per_epoch} steps and had {more['steps_per_epoch']}: it is begun anew, since the "
                "order of its batches is another"
            )
            self._skip = 0
        self._then = _rates(model)
        # Keras' own place for it. The `initial_epoch` of fit counts where nothing was restored, or epoch 0.
        model._initial_epoch = self._epochs if more["ended"] else min(self._epoch, self._epochs)

    def _before_epoch(self) -> None:
        """Run before any callback's hook for a new epoch. A resumed epoch gets its initial learning rate again, for
        callbacks that compute another from it, as a schedule does."""
        if self._restored is None:
            self._kept.rates = _rates(self.model)
        else:
            _set_rates(self.model, self._kept.rates)

    def _after_epoch_begin(self) -> None:
        """Set the learning rate of the checkpoint, in the middle of an epoch."""
        if self._skip:
            _set_rates(self.model, self._then)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._model._initial_epoch = None  # a second fit of the same model begins at its own initial epoch
        self._epoch, self._batch, self._base = epoch, 0, self._done
        restored, self._restored = self._restored, None
        first, self._first = self._first, False
        if restored is not None:
            self._kept.give_back()
            self._base = self._done - self._skip
            if self._skip:
                self._assign_metrics(restored)  # sums over the batches so far; Keras has just reset them
            if self._skip or self._options["stream"]:
                self._pass_over(self._base if self._options["stream"] else 0)
            return
        self._kept.remember()
        if not first:  # here and not at the end of the epoch before: now it is known that there is another one
            self._step(self._done, {"epoch": epoch, "batch": 0}, due=self._options["every"] == "epoch")

    def _pass_over(self, before: int) -> None:
        """Batches that were trained on are taken from the data, and nothing is computed with them: those of epochs
        before, if the data go on, and those of this epoch."""
        model, stride, backend, left = self._model, self._stride, keras_backend(), self._skip
        original, self._passing_since = model.train_function, time.monotonic()

        def take(*given: Any) -> Any:
            nonlocal before, left
            for _ in range(before):
                next(given[-1])
            before = 0
            if left <= 0:
                self._passed_all()
            passed, left = left > 0, left - stride
            if left <= 0:
                model.train_function = original
            if not passed:
                return original(*given)
            if backend != "torch":  # there, the epoch's iterator has read the batch already
                for _ in range(stride):
                    next(given[-1])
            return ({}, given[0]) if backend == "jax" else {}

        model.train_function = take

    def _passed_all(self) -> None:
        """Report the time of skipping data, which belongs to no step."""
        self._trained().passed_over(time.monotonic() - self._passing_since)

    # ---- every step --------------------------------------------------------------------------------------------------

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._batch = batch
        if self._skip:  # all of them were passed over
            self._skip = 0
            self._kept.go_on()
            self._passed_all()
        if batch:
            self._step(self._base + batch, {"epoch": self._epoch, "batch": batch})

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called on a thread of Keras' own, with numbers that it has fetched for its history anyway."""
        if logs:
            self._latest = logs

    def on_test_begin(self, logs: Any = None) -> None:
        self._tests_since = time.monotonic()

    def on_test_end(self, logs: Any = None) -> None:
        if self._training is not None:
            self._training.leave_out(time.monotonic() - self._tests_since)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A validation may take longer than a machine that is taken back has left. Its epoch is then done."""
        if self._training is None:
            return

        def more() -> dict[str, Any]:
            self._kept.remember()
            self._kept.rates = _rates(self.model)
            return self._more({"epoch": self._epoch + 1, "batch": 0})

        self._training.between(self._passed(), self._state, more)

    def _passed(self) -> int:
        """The steps done when an epoch's last batch is."""
        passed = self._batch + self._stride
        return self._base + (min(passed, self._per_epoch) if self._per_epoch else passed)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        training, self._done = self._trained(), self._passed()
        self._latest = None
        training.report(self._done, logs or {})
        training.progress(self._done) if self._per_epoch else training.progress(epoch + 1, self._epochs, "epoch")

    def on_train_end(self, logs: Any = None) -> None:
        """A fit that another callback ended early is not taken up again."""
        self._model._initial_epoch = None  # also of a fit that had ended already, and begins no epoch
        training = self._trained()
        self._kept.remember()
        self._kept.rates = _rates(self.model)
        more = {"epoch": self._epoch + 1, "batch": 0, "ended": bool(self._model.stop_training)}
        training.finish(self._state, self._done, self._more(more))

    def _step(self, done: int, more: dict[str, Any], *, due: bool = False) -> None:
        self._done = done
        latest = {} if self._latest is None else self._latest
        self._trained().advance(done, self._state, latest, self._more(more), due=due)

    def _more(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"ended": False, "steps_per_epoch": self._per_epoch, **more}

    def _trained(self) -> Training:
        assert self._training is not None, "on_train_begin was not called"
        return self._training

    # ---- the model's state -------------------------------------------------------------------------------------------

    def _variables(self) -> dict[str, dict[str, Any]]:
        """The variables by their paths, which need not be unique, and by their numbers, which distinguish models."""
        model: Any = self.model  # which puts JAX's own state back into the variables
        groups = {
            "model": [*model.trainable_variables, *model.non_trainable_variables],
            "optimizer": model.optimizer.variables if model.optimizer is not None else [],
            "metrics": model.metrics_variables,
        }
        seen = {id(variable) for variable in groups["optimizer"]}
        for name, one in self._early.items():
            if own := [variable for variable in one.variables if id(variable) not in seen]:
                groups[f"optimizer {name}"] = own
                seen.update(map(id, own))
        return {
            group: {f"{number} {variable.path}": variable for number, variable in enumerate(variables)}
            for group, variables in groups.items()
        }

    def _state(self) -> dict[str, Any]:
        """All variables, and what the order of the data is drawn from."""
        state: dict[str, Any] = {
            group: {name: _value(variable) for name, variable in variables.items()}
            for group, variables in self._variables().items()
        }
        return {**state, "chance": self._kept}

    def _state_in_place(self) -> dict[str, Any]:
        """The same, of which model and optimizer are given back in place."""
        state = self._state()
        for group, variables in self._variables().items():
            if group != "metrics":
                state[group] = {name: _slot(variable) for name, variable in variables.items()}
        return state

    def _assign_metrics(self, restored: Mapping[str, Any]) -> None:
        for name, variable in self._variables()["metrics"].items():
            variable.assign(restored[name])


class _Kept:
    """The state of a fit besides its variables: the global random generators as they were when the epoch began, from
    which the order of its data is drawn, and as they are at a checkpoint, for on torch dropout draws from the same one
    at every step; the learning rates that the epoch began with; the state of other callbacks; optimizers that were
    built in the epoch."""

    each_hosts_own = False  # each of another number of hosts takes that of one of these

    def __init__(self, others: Others, late: _Late) -> None:
        self.rates: list[float] = []
        self._late = late
        self._others = others
        self._began: dict[str, Any] = {}
        self._then: dict[str, Any] = {}
        self.remember()

    def remember(self) -> None:
        self._began = _generators()

    def give_back(self) -> None:
        _set_generators(self._began)

    def go_on(self) -> None:
        """All that was trained on is passed over."""
        _set_generators(self._then)

    def get_state(self) -> dict[str, Any]:
        of_others = {"rates": self.rates, "callbacks": self._others.get_state()}
        of_others["late"] = self._late.get_state()
        return {"began": self._began, "then": _generators(), **of_others}

    def set_state(self, state: dict[str, Any]) -> None:
        self._began, self._then = state["began"], state["then"]
        self.rates = state.get("rates", [])
        self._others.set_state(state.get("callbacks", {}))
        self._late.set_state(state.get("late", {}))


class _Late:
    """Optimizers besides the model's own that had no variables when the fit began: if they were created during it,
    their values and the variables of the model that they belong to. So they can be created at the next fit's start."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.early: Mapping[str, Any] = {}  # those that had

    def _found(self) -> dict[str, Any]:
        return {name: one for name, one in optimizers_beside(self._model).items() if name not in self.early}

    def get_state(self) -> dict[str, Any]:
        numbers = {id(variable): number for number, variable in enumerate(self._model.weights)}
        told = {}
        for name, one in self._found().items():
            if not one.built:
                continue
            trained = list(one._trainable_variables)
            if not trained or any(id(variable) not in numbers for variable in trained):
                raise CheckpointError(
                    f"the optimizer {name} made its variables within this fit, for some that the model does not have, "
                    f"and nothing could be restored into them: build it before fit, as model.{name}.build(…) with the "
                    "variables that it trains"
                )
            trains = [numbers[id(variable)] for variable in trained]
            told[name] = {"trains": trains, "values": [_value(variable) for variable in one.variables]}
        return told

    def set_state(self, state: Mapping[str, Any]) -> None:
        found = self._found()
        for name, told in state.items():
            if name not in found:
                raise CheckpointError(
                    f"the checkpoint has the state of an optimizer, {name}, that this model does not have when its fit "
                    "begins: make it before fit"
                )
            found[name].build([self._model.weights[number] for number in told["trains"]])
            for variable, value in zip(found[name].variables, told["values"], strict=True):
                variable.assign(value)


_fitting: weakref.WeakSet[KineticCallback] = weakref.WeakSet()


def _close_after_failures() -> None:
    """Keras calls no callback when an exception ends a fit."""
    import keras

    plain = keras.Model.fit
    if getattr(plain, "_closes", False):
        return

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return plain(self, *args, **kwargs)
        except BaseException:
            for callback in list(_fitting):
                if callback._model is self:
                    callback._trained().close()
            raise

    fit._closes = True  # type: ignore[attr-defined]
    keras.Model.fit = fit
    _hook_lists(keras.callbacks.CallbackList)
    if keras_backend() == "tensorflow":
        _build_before_the_first_step(keras)


def _hook_lists(kind: Any) -> None:
    """Hook into the list by which Keras calls all callbacks of a fit. Skipped batches are passed to none of them."""
    train, epoch = kind.on_train_begin, kind.on_epoch_begin
    batch_begin, batch_end = kind.on_train_batch_begin, kind.on_train_batch_end

    def ours(of: Any) -> list[KineticCallback]:
        return [one for one in of.callbacks if isinstance(one, KineticCallback)]

    @functools.wraps(train)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        for one in ours(self):
            one._others.meet(self.callbacks)
        train(self, logs)
        for one in ours(self):
            one._others.give_back(one._trained().say)

    @functools.wraps(epoch)
    def on_epoch_begin(self: Any, number: int, logs: Any = None) -> None:
        for one in ours(self):
            one._before_epoch()
        epoch(self, number, logs)
        for one in ours(self):
            one._after_epoch_begin()

    @functools.wraps(batch_begin)
    def on_train_batch_begin(self: Any, batch: int, logs: Any = None) -> None:
        self._passes_over = any(batch < one._skip for one in ours(self))
        if not self._passes_over:
            batch_begin(self, batch, logs)

    @functools.wraps(batch_end)
    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        if not getattr(self, "_passes_over", False):
            batch_end(self, batch, logs)

    kind.on_train_begin, kind.on_epoch_begin = on_train_begin, on_epoch_begin
    kind.on_train_batch_begin, kind.on_train_batch_end = on_train_batch_begin, on_train_batch_end


def _rates(model: Any) -> list[float]:
    import keras

    return [float(keras.ops.convert_to_numpy(variable.value)) for variable in _rate_variables(model)]


def _set_rates(model: Any, rates: list[float]) -> None:
    for variable, rate in zip(_rate_variables(model), rates, strict=False):  # none, of an older version's checkpoint
        variable.assign(rate)


def _rate_variables(model: Any) -> list[Any]:
    held = [model.optimizer] if model.optimizer is not None else []
    held += optimizers_beside(model).values()
    every = {id(variable): variable for one in held for variable in one.variables}
    return [variable for variable in every.values() if variable.name == "learning_rate"]


def _build_before_the_first_step(keras: Any) -> None:
    """Build the model before the first step, as Keras does on the other backends, and on this one under a strategy:
    else the variables of metrics and of a model without a given input are created within the first step, too late to be
    restored."""
    plain = keras.Model._maybe_symbolic_build

    @functools.wraps(plain)
    def build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        plain(self, iterator, data_batch)
        batch = getattr(getattr(iterator, "_distributed_dataset", None), "element_spec", None)
        if self._distribute_strategy is None and batch is not None:
            with contextlib.suppress(Exception):  # unknown shapes: then in the first step, as usual
                self._symbolic_build(data_batch=batch)

    keras.Model._maybe_symbolic_build = build


def _batch_size() -> int:
    """The batch size of the calling fit, if its data have one, or 0."""
    found = getattr(getattr(_iterator(), "data_adapter", None), "batch_size", None)
    return found if isinstance(found, int) else 0


def _check_batch(batch: GlobalBatch | None) -> None:
    """Refuse a fit whose batches are not this host's share of the global one. Data that Keras itself spreads over the
    hosts have the whole of it."""
    found = _batch_size()
    if batch is not None and found and found not in (batch.per_host, batch.size):
        raise UsageError(
            f"the batches of fit have {found} samples, and {batch}: give fit batch_size=callback.batch.per_host, and "
            "each host its rows, as callback.batch.rows(len(x)) names them"
        )


def _continuing_data() -> tuple[str, str] | None:
    """The kind of the calling fit's data, and the alternative to use, if they continue from epoch to epoch; None if
    each epoch starts them again. Keras keeps one iterator for all epochs with a given number of steps
    (keras/src/trainers/epoch_iterator.py)."""
    iterator = _iterator()
    if iterator is None:
        return None
    steps, batches = iterator.steps_per_epoch, iterator.data_adapter.num_batches
    anew = "data that begin anew in each"
    if type(iterator.data_adapter).__name__ == "GeneratorDataAdapter":
        return "a generator, which goes on", anew if keras_backend() == "torch" else "KineticCallback stream=True"
    if not steps or (batches and steps >= batches):
        return None
    if batches is None:
        what = "without an end or a known length, and with steps_per_epoch go on"
        return what, anew if keras_backend() == "torch" else "KineticCallback stream=True"
    return f"{batches} batches, which with steps_per_epoch={steps} go on", f"{anew}, without steps_per_epoch"


def _iterator() -> Any:
    """The iterator over the data of the calling fit. Keras passes everything but that to its callbacks, on each
    backend."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        iterator = frame.f_locals.get("epoch_iterator")
        if getattr(iterator, "data_adapter", None) is not None:
            return iterator
    return None


def _generators() -> dict[str, Any]:
    found: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = numpy.random.get_state(legacy=False)
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = torch.get_rng_state()
    if (generator := _of_tensorflow()) is not None:
        found["tensorflow"] = [generator.algorithm, generator.state.numpy()]
    return found


def _set_generators(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(state["numpy"])
    if "torch" in state and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(state["torch"])
    if "tensorflow" in state and (tensorflow := sys.modules.get("tensorflow")) is not None:
        algorithm, numbers = state["tensorflow"]
        if (generator := _of_tensorflow()) is not None:
            generator.reset(numbers)
        else:
            made = tensorflow.random.Generator.from_state(numbers, alg=algorithm)
            tensorflow.random.set_global_generator(made)


def _of_tensorflow() -> Any:
    """Its global generator, if there is one: to ask for it creates one, with a seed of its own."""
    module = sys.modules.get("tensorflow.python.ops.stateful_random_ops")
    return getattr(module, "global_generator", None)


def _value(variable: Any) -> Any:
    """A JAX array or a torch tensor as it is, and anything else as numpy has it."""
    import keras

    value = variable.value
    if keras_backend() in ("jax", "torch"):
        return value
    return keras.ops.convert_to_numpy(value)


def _slot(variable: Any) -> Slot:
    return Slot(lambda: _value(variable), variable.assign)


def _of_training(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if name != "stream"}
    return {**given, "every": None if given["every"] == "epoch" else given["every"]}


def keras_backend() -> str:
    import keras

    return str(keras.backend.backend())


def _made(cls: type[Any], options: Mapping[str, Any]) -> Any:
    return cls(**options)
