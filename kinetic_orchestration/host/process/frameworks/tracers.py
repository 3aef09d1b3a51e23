"""Starts and ends the profiler of each framework and gets its trace, in the format that XProf reads.

Independent of steps and of a trace's destination. `settle` waits until all calls are computed; `halt` ends the trace
where that takes no time, `finish` does the rest and reports `stopped` when it begins to; `is_on` is false once nothing
is recorded any longer, which may be long before the trace's end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

FRAMEWORKS = ("jax", "torch", "tensorflow")


def of_program() -> Any:
    """Return the tracer of the framework that trains: Keras' backend, else the one whose devices are used."""
    there = [name for name in FRAMEWORKS if _is_there(name)]
    keras = sys.modules.get("keras")
    if keras is not None and not _is_there("keras"):
        return None
    if keras is not None and hasattr(keras, "backend") and (backend := keras.backend.backend()) in there:
        return _TRACERS[backend]()
    if "jax" in there and not _Jax().is_used():
        there.append(there.pop(there.index("jax")))
    return _TRACERS[there[0]]() if there else None


def _is_there(name: str) -> bool:
    """Return True if a module is imported completely, not only in part while another thread imports it."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


class _Tracer:
    """The common part of most tracers. A subclass adds `busy`, `settle`, `start`, `step` and `entrances`."""

    def is_used(self) -> bool:
        """Return True if the framework has set up its devices. A trace would do so before a program that joins its
        hosts by itself.
        """
        return True

    def halt(self) -> None:
        """Do nothing: `finish` ends the trace, which is quick, and reads it, which takes a while."""

    def finish(self, folder: str, stopped: Callable[[], None]) -> dict[str, str]:
        stopped()
        self._stop()
        for parent, _, files in os.walk(folder):
            for name in files:
                if name.endswith(".xplane.pb"):
                    return {".xplane.pb": os.path.join(parent, name)}
        raise FileNotFoundError("the framework's profiler has written no trace")

    def _stop(self) -> None:
        """End the trace of a framework that writes XProf's format itself."""

    def is_on(self) -> bool:
        return False


class _Jax(_Tracer):
    def __init__(self) -> None:
        self.jax: Any = sys.modules["jax"]

    def is_used(self) -> bool:
        bridge = sys.modules.get("jax._src.xla_bridge")
        return bool(getattr(bridge, "backends_are_initialized", lambda: True)())

    def busy(self) -> str:
        state = getattr(sys.modules.get("jax._src.profiler"), "_profile_state", None)
        return "" if getattr(state, "profile_session", None) is None else "jax.profiler runs already"

    def settle(self) -> None:
        """Wait for all computations: they run asynchronously, and those of steps before a border belong before it."""
        self.jax.block_until_ready([array for array in self.jax.live_arrays() if not array.is_deleted()])

    def start(self, folder: str) -> None:
        options = {}
        if hasattr(self.jax.profiler, "ProfileOptions"):
            made = self.jax.profiler.ProfileOptions()
            made.python_tracer_level = 0  # it would see each call of each Python function, and make them slow
            options["profiler_options"] = made
        self.jax.profiler.start_trace(folder, **options)

    def step(self, number: int) -> Any:
        return self.jax.profiler.StepTraceAnnotation("step", step_num=number)

    def _stop(self) -> None:
        self.jax.profiler.stop_trace()

    def is_on(self) -> bool:
        return bool(getattr(self.jax.profiler.TraceAnnotation, "is_enabled", lambda: False)())

    def entrances(self) -> Iterator[tuple[Any, str]]:
        yield self.jax.profiler, "start_trace"
        if (inner := sys.modules.get("jax._src.profiler")) is not None:
            yield inner, "start_trace"  # by which `jax.profiler.trace` begins


class _TensorFlow(_Tracer):
    def __init__(self) -> None:
        self.profiler: Any = sys.modules["tensorflow"].profiler.experimental

    def busy(self) -> str:
        running = getattr(sys.modules.get("tensorflow.python.profiler.profiler_v2"), "_profiler", None)
        return "" if running is None else "tf.profiler runs already"

    def settle(self) -> None:
        testing: Any = getattr(sys.modules["tensorflow"], "test", None)
        if hasattr(getattr(testing, "experimental", None), "sync_devices"):
            testing.experimental.sync_devices()

    def start(self, folder: str) -> None:
        self.profiler.start(folder)  # its defaults exclude Python calls

    def step(self, number: int) -> Any:
        return self.profiler.Trace("train", step_num=number, _r=1)

    def _stop(self) -> None:
        self.profiler.stop()

    def is_on(self) -> bool:
        inner = sys.modules.get("tensorflow.python.profiler.internal._pywrap_traceme")
        return bool(getattr(inner, "traceme_enabled", lambda: False)())

    def entrances(self) -> Iterator[tuple[Any, str]]:
        yield self.profiler, "start"
        if (inner := sys.modules.get("tensorflow.python.profiler.profiler_v2")) is not None:
            yield inner, "start"


class _Torch(_Tracer):
    """Tracer of torch, without `torch.profiler`, whose first start imports a compiler, for ten seconds."""

    def __init__(self) -> None:
        self.torch: Any = sys.modules["torch"]
        self.profiler: Any = self.torch.autograd.profiler
        self.device = next((name for name in ("cuda", "xpu") if self._has(name)), None)

    def _has(self, device: str) -> bool:
        module = getattr(self.torch, device, None)
        return module is not None and bool(module.is_available())

    def busy(self) -> str:
        return "torch.profiler runs already" if getattr(self.profiler, "_is_profiler_enabled", False) else ""

    def settle(self) -> None:
        if self.device is not None:
            getattr(self.torch, self.device).synchronize()

    def start(self, folder: str) -> None:
        more = {}
        with contextlib.suppress(ImportError, TypeError):  # of all threads, which a trace of one thread's making lacks
            from torch._C._profiler import _ExperimentalConfig

            more["experimental_config"] = _ExperimentalConfig(profile_all_threads=True)
        self.trace = self.profiler.profile(use_kineto=True, use_device=self.device, **more)
        self.trace.__enter__()

    def step(self, number: int) -> Any:
        return self.profiler.record_function(f"ProfilerStep#{number}")

    def halt(self) -> None:
        self.trace.__exit__(None, None, None)

    def finish(self, folder: str, stopped: Callable[[], None]) -> dict[str, str]:
        import gzip

        stopped()
        written = os.path.join(folder, "trace.json")
        self.trace.export_chrome_trace(written)
        files = {".xplane.pb": os.path.join(folder, "xplane"), ".pt.trace.json.gz": os.path.join(folder, "zipped")}
        with open(written, "rb") as trace, gzip.open(files[".pt.trace.json.gz"], "wb", 6) as zipped:
            shutil.copyfileobj(trace, zipped, 1 << 20)
        convert(written, files[".xplane.pb"])
        return files

    def entrances(self) -> Iterator[tuple[Any, str]]:
        yield self.profiler.profile, "_prepare_trace"  # by which each of torch's own ways begins


_TRACERS: dict[str, Callable[[], Any]] = {"jax": _Jax, "torch": _Torch, "tensorflow": _TensorFlow}


def convert(trace: str, made: str) -> None:
    """Convert a trace in a separate process: in this one the training would wait for the GIL, and lack the memory."""
    import subprocess

    from kinetic_orchestration.host.process.frameworks import xplane
    from kinetic_orchestration.host.process.pipes import program_of

    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program_of(xplane.__name__), trace, made], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    except RuntimeError:  # at a program's end, before Python 3.12.2
        xplane.convert(trace, made)
        return
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        killed = "it was killed, perhaps since the machine ran out of memory: ask for less"
        raise OSError(f"the trace could not be read: {killed if done.returncode < 0 else said}")
