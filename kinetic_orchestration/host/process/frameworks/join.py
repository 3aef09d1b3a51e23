"""Joins the hosts of a slice within a program, by the environment that `topology` gave it.

`jax.distributed` must be initialised before the first computation, so a hook does it right after the first
`import jax`. Code that initialises it again with the same size and place is let through; code that asks for
another size hears it. Other hooks look, at the import of a framework, whether it sees the accelerator, have Keras
train on all hosts (`keras_fit`), and keep torch from ending in a deadlock. Knows nothing of jobs or records.
"""

from __future__ import annotations

import os
import sys

from kinetic_orchestration.host.process.topology import ALLOW, EXPECT, JOIN, OWN, TRACE
from kinetic_orchestration.protocol.system import copies

TYPE_CHECKING = False  # importing typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# Path of the file that marks a function which runs or has ended well, while its host waits for the others before it
# leaves JAX.
waits_path = ""


def install() -> None:
    """Hook the first imports of frameworks. Only the first Python process of its host joins and needs an accelerator;
    its own workers do neither.
    """
    import json

    after: dict[str, list[Callable[[ModuleType], None]]] = {}
    expected, _, process = os.environ.get(EXPECT, "").partition(" ")
    if expected and process in ("", str(os.getpid())):
        os.environ[EXPECT] = f"{expected} {os.getpid()}"  # taken, for its children; after an exec it is still ours
        for name, check in _CHECKS.get(expected, {}).items():
            after[name] = [check]
    after.setdefault("jax", []).append(_number_slices)
    join = json.loads(os.environ.get(JOIN, "null"))
    if join and join.setdefault("process", os.getpid()) == os.getpid():
        os.environ[JOIN] = json.dumps(join)
        after["jax"].append(lambda jax: _join_jax(jax, join))
    else:
        join = None
    after.setdefault("keras", []).append(lambda keras: _hook_keras(keras, join))
    after.setdefault("torch", []).append(_hold_groups)
    hosts = join["hosts"] if join else 1
    if expected == "tpu" or hosts > 1:
        from kinetic_orchestration.host.process.frameworks import trainers

        for name, hook in trainers.hooks(hosts, NoAccelerator if expected == "tpu" else None).items():
            after.setdefault(name, []).append(hook)
    if join is None or join["index"] == 0:
        for name in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer", "transformers.trainer"):
            after.setdefault(name, []).append(lambda trainer: _hook_trainer(trainer.Trainer, hosts))
    if os.environ.get(OWN):
        after.setdefault("tensorflow", []).append(_see_own)
    if TRACE in os.environ:
        from kinetic_orchestration.host.process.frameworks import profiler, tracers

        if (asked := profiler.install()) is not None:
            for name in tracers.FRAMEWORKS:
                after.setdefault(name, []).append(lambda _: asked.imported())
    sys.meta_path.insert(0, _AfterImport(after))


def _hook_keras(keras: ModuleType, join: dict[str, Any] | None) -> None:
    from kinetic_orchestration.host.process.frameworks import keras_fit

    keras_fit.hook(keras, join["index"] if join else 0, join["hosts"] if join else 1)


class _AfterImport:
    """A finder that leaves finding to the others, and acts when what they found has been loaded."""

    def __init__(self, actions: dict[str, list[Callable[[ModuleType], None]]]) -> None:
        self._actions = actions
        self._process = os.getpid()
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._actions or self._asking or os.getpid() != self._process:  # a forked worker has our hooks
            return None
        import importlib.util

        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                if name == "keras":
                    from kinetic_orchestration.host.process.frameworks import keras_fit

                    keras_fit.choose_backend()
                load(module)
                for action in self._actions.pop(name):
                    action(module)
                if not self._actions:
                    sys.meta_path.remove(self)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class NoAccelerator(RuntimeError):
    """The framework would compute on the CPU instead of the accelerator."""


def _refuse(found: str, kind: str, advice: str) -> None:
    raise NoAccelerator(
        f"{found} and would compute on the CPU of this {kind} host: {advice}, or set {ALLOW}=1 to allow it"
    )


def _trains(framework: str, *others: str) -> bool:
    """Return True if a framework is the one that computes: next to the others it may only load data."""
    return os.environ.get("KERAS_BACKEND") == framework or not any(map(_has, others))


def _check_jax(_: ModuleType) -> None:
    if not _has("libtpu"):
        _refuse("jax is installed here without libtpu", "TPU", "require jax[tpu] instead of jax")


def _check_torch(_: ModuleType) -> None:
    if _trains("torch", "jax") and not (_has("torch_tpu") or _has("torch_xla")):
        _refuse("torch is installed here without torch_tpu or torch_xla", "TPU", "require torch-tpu")


def _check_keras(keras: Any) -> None:
    """Raise NoAccelerator if Keras on torch chose the CPU: it looks for GPUs only, unless a device is named."""
    if keras.config.backend() != "torch":
        return
    from keras.src.backend.torch.core import get_device

    device = str(get_device())
    if device.startswith("cpu"):
        name = "tpu" if _has("torch_tpu") else "xla"
        raise NoAccelerator(
            f"Keras on torch has chosen {device!r} and would compute on the CPU of this TPU host: set "
            f"KERAS_TORCH_DEVICE={name}, or {ALLOW}=1 to allow it"
        )


def _check_tensorflow(_: ModuleType) -> None:
    if _trains("tensorflow", "jax", "torch") and not _has("libtpu"):
        found = "tensorflow is installed here without libtpu"
        _refuse(found, "TPU", "require tensorflow-tpu instead of tensorflow")


def _check_jax_gpu(jax: Any) -> None:
    plugin = next(filter(_has, _JAX_PLUGINS), "")
    if plugin and not os.environ.get("JAX_PLATFORMS"):
        # With the platform named, JAX raises the driver's error where it would else fall back to the CPU.
        jax.config.update("jax_platforms", "rocm,cpu" if "rocm" in plugin else "cuda,cpu")
    if not plugin:
        found = "jax is installed here without a CUDA plugin"
        _refuse(found, "GPU", "require jax[cuda12] or jax[cuda13] instead of jax")


def _check_torch_gpu(torch: Any) -> None:
    if _trains("torch", "jax") and not torch.cuda.is_available():
        advice = "require a build of torch for its driver's CUDA (not a +cpu one)"
        _refuse(f"torch {torch.__version__} sees no GPU", "GPU", advice)


def _check_tensorflow_gpu(tensorflow: Any) -> None:
    if _trains("tensorflow", "jax", "torch") and not tensorflow.config.list_physical_devices("GPU"):
        _refuse(f"tensorflow {tensorflow.__version__} sees no GPU", "GPU", "require tensorflow[and-cuda]")


def _see_own(tensorflow: Any) -> None:
    """Show TensorFlow only this process's GPU: it allocates memory on all that it sees. torch allocates on demand, and
    JAX has a variable.
    """
    gpus = tensorflow.config.list_physical_devices("GPU")
    own = int(os.environ[OWN])
    if own < len(gpus):
        tensorflow.config.set_visible_devices(gpus[own], "GPU")


_JAX_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm60_plugin", "jax_rocm7_plugin")
_CHECKS: dict[str, dict[str, Callable[[Any], None]]] = {
    "tpu": {"jax": _check_jax, "torch": _check_torch, "tensorflow": _check_tensorflow, "keras": _check_keras},
    "gpu": {"jax": _check_jax_gpu, "torch": _check_torch_gpu, "tensorflow": _check_tensorflow_gpu},
}


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def _number_slices(jax: Any) -> None:
    if not os.environ.get("MEGASCALE_NUM_SLICES"):
        return
    from kinetic_orchestration.host.process.frameworks import emulated_slices

    if hosts := emulated_slices.hosts_of_each(copies.environ()):
        emulated_slices.number(jax.Device, hosts)


def _join_jax(jax: Any, join: dict[str, Any]) -> None:
    import atexit
    import functools

    from kinetic_orchestration.protocol.system import processes

    initialize = jax.distributed.initialize
    joined = getattr(jax.distributed, "is_initialized", lambda: True)
    initialize(join["coordinator"], join["hosts"], join["index"])
    processes.leave_forks(_heed_sigterm)
    state: Any = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if state is not None:
        leave = functools.partial(_leave_together, state, os.getpid(), [])
        atexit.register(leave)  # before JAX's own farewell, which came first and begins with the devices
        shutdown = state.shutdown

        def shutdown_together() -> None:  # which a program may call in its midst
            if waits_path and sys.exc_info()[0] is not None:  # it fails, which others learn at its end only
                return
            leave()
            shutdown()

        state.shutdown = shutdown_together

    @functools.wraps(initialize)
    def initialize_again(
        coordinator_address: Any = None, num_processes: Any = None, process_id: Any = None, *_: Any, **__: Any
    ) -> None:
        asked = (join["index"] if process_id is None else process_id, num_processes or join["hosts"])
        if asked != (join["index"], join["hosts"]):
            raise RuntimeError(
                f"jax.distributed is initialised already, as process {join['index']} of {join['hosts']}; this code "
                f"asks for process {asked[0]} of {asked[1]}. Leave the arguments out, or run the job with "
                "distributed=False and initialise it yourself."
            )
        if not joined():  # after a shutdown
            initialize(join["coordinator"], join["hosts"], join["index"])

    jax.distributed.initialize = initialize_again


def _heed_sigterm() -> None:
    """Restore the default of SIGTERM in a forked worker: with JAX's handler, a pool that ends its workers by it would
    wait for ever.
    """
    import signal

    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):  # nor has Python one
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave_together(state: Any, process: int, left: list[Any]) -> None:
    """JAX gives the hosts five minutes to end together, and then aborts the programs of all: one of them may still
    evaluate or export what all have trained. A function that fails is told before, and its agent ends all others, as
    it does if they are stuck; the programs of a command are left to JAX.
    """
    client = getattr(state, "client", None)
    if not waits_path or client is None or client in left or process != os.getpid():
        return
    left.append(client)
    try:
        open(waits_path, "w", encoding="utf-8").close()
    except OSError:
        pass
    try:
        client.wait_at_barrier("kinetic: every host is at its end", 7 * 86_400_000)
    except Exception:  # a host was lost, which the agents report
        pass


def _hook_trainer(kind: Any, hosts: int) -> None:
    """Have a Trainer of Lightning or Hugging Face say at its start what it does without a word otherwise."""
    import functools

    name = "fit" if hasattr(kind, "fit") else "train"
    plain = getattr(kind, name)
    told: set[str] = set()

    @functools.wraps(plain)
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            found = [_idle_trainer(self, name, hosts) if hosts > 1 else "", _astray(self)]
        except Exception:  # another release of it: a warning must not fail a training
            found = []
        for said in found:
            if said and said not in told:
                told.add(said)
                sys.stderr.write(f"kinetic: {said}\n")
        return plain(self, *args, **kwargs)

    setattr(kind, name, train)


def _idle_trainer(trainer: Any, name: str, hosts: int) -> str:
    """One of Lightning that is told of one host takes it for all there are, and so does one of Hugging Face that
    computes on the CPU without being told that it may.
    """
    knows = trainer.world_size if name == "fit" else trainer.args.world_size
    if knows >= hosts:
        return ""
    instead = "Trainer(), without num_nodes, devices and strategy"
    if name == "train":
        instead = "Trainer(model, TrainingArguments(…, use_cpu=True)), if it is to compute on the CPU"
    return f"the {hosts} hosts train a model each, because this Trainer knows of {knows}: make it as {instead}"


def _astray(trainer: Any) -> str:
    """One of Hugging Face takes the address of a bucket for a path of this machine. Lightning does not: it writes there
    if it has gcsfs, and fails without.
    """
    folder = str(getattr(getattr(trainer, "args", None), "output_dir", None) or "")
    if "://" not in folder:
        return ""
    return (
        f"this Trainer writes its checkpoints into the folder {os.path.abspath(folder)} of this machine, and not to "
        f"{folder}: give TrainingArguments kinetic.current().checkpoint_path(), which is mirrored into the bucket"
    )


def _hold_groups(torch: Any) -> None:
    """A process group that something still refers to outlives its `destroy_process_group`, until the program's end.

    A DistributedDataParallel that goes later, with the frame of the function that made it, would take the group with
    it, and torch then waits for gloo's thread without letting go of the interpreter; that thread may just be waiting
    for the interpreter, to drop the tensors of the last collective, and the host hangs. From Python torch lets go.
    """
    c10d: Any = getattr(getattr(torch, "distributed", None), "distributed_c10d", None)
    world: Any = getattr(c10d, "_world", None)
    if not hasattr(world, "pg_map"):  # a build without it, or of long ago
        return
    import atexit
    import functools

    initialize, destroy = c10d.init_process_group, c10d.destroy_process_group
    held: list[Any] = []

    def references(found: list[Any]) -> list[int]:
        return [sys.getrefcount(one) for one in found]

    nobody = references([object()])[0]

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        there = list(world.pg_map)
        destroy(group)
        held.extend(one for one in there if one not in world.pg_map)
        there.clear()
        held[:] = [one for one, count in zip(held, references(held), strict=True) if count > nobody]

    @functools.wraps(initialize)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        held.clear()  # their store would answer for the new one's
        return initialize(*args, **kwargs)

    for module in (c10d, torch.distributed):
        module.init_process_group, module.destroy_process_group = init_process_group, destroy_process_group
    atexit.register(held.clear)  # when frames are gone and threads still get the interpreter
