"""Costs of a training's resilience: per step, per checkpoint and per preemption.

The floor of a checkpoint is `shutil.copyfile` of the same bytes on the same file system, which waits for no disk; that of
`on_disk` is the same and an fsync, as a checkpoint has. A step's is the same loop, or the same `fit`, without us; a first step's the
same program, run plainly; a preemption's a job that does nothing, from its submission to its end.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

SIZE = 1_000_000_000
STEP = 0.01  # seconds, of which at most a hundredth may be ours
CALLS = 20_000
STEPS = 1_000
ROUNDS = 5
FIRST_STEPS = 3  # projects

FIT = """
import os, sys, time
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
import keras, numpy as np
import kinetic_orchestration as kinetic
steps, rounds = %d, %d
x = np.zeros((2 * steps, 4), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
def fit(n, *callbacks):
    began = time.perf_counter()
    model.fit(x[:n], x[:n, :1], batch_size=1, epochs=1, verbose=0, callbacks=list(callbacks))
    return time.perf_counter() - began
def per_step(*callbacks):  # without what a fit costs once: restoring, and the checkpoint at its end
    return fit(2 * steps, *[made() for made in callbacks]) - fit(steps, *[made() for made in callbacks])
ours = lambda: kinetic.KineticCallback(every=None)
per_step(), per_step(ours)
taken = [(per_step(), per_step(ours)) for _ in range(rounds)]
print(sorted(with_it - without for without, with_it in taken)[len(taken) // 2])
"""

JOB = """
import time
import kinetic_orchestration as kinetic

def nothing():
    return 1

def first_step():
    import jax, jax.numpy as jnp

    @jax.jit
    def step(x):
        for layer in range(8):
            x = jax.random.gamma(jax.random.key(layer), jnp.abs(x) + 1.0)
        return x.sum()

    step(jnp.ones((48, 48))).block_until_ready()
    return time.time()

def train(marks, steps):
    training = kinetic.Training(every=None)
    state, done = training.restore({"n": 0})
    for number in range(done, steps):
        time.sleep(0.01)
        state = {"n": state["n"] + 1}
        with open(marks, "a") as file:
            file.write(f"{time.time()} {number}\\n")
        training.step(number + 1, state)
    training.finish(state)
    return state["n"]
"""


def figures() -> Iterator[Figure]:
    with as_host():
        yield from of_steps()
        yield from of_checkpoints()
    yield from of_first_steps()
    yield from of_a_preemption()


@contextmanager
def as_host() -> Iterator[Path]:
    """This process, and those that it starts, as the host of a job."""
    with tempfile.TemporaryDirectory(prefix="kinetic-training-") as name:
        told = {
            "JOB_ID": "job-benchmark", "ATTEMPT": "1", "HOST_INDEX": "0", "HOST_COUNT": "1", "OUTPUT_DIR": name,
            "CHECKPOINT_DIR": f"{name}/checkpoints", "PARTITION_KEY": "", "EVENTS": f"{name}/events",
            "NOTICE": f"{name}/notice",
        }  # fmt: skip
        os.environ.update({f"KINETIC_{key}": value for key, value in told.items()})
        try:
            yield Path(name)
        finally:
            for key in told:
                del os.environ[f"KINETIC_{key}"]


def of_steps() -> Iterator[Figure]:
    import kinetic_orchestration as kinetic

    state = {"w": [0.0]}
    with kinetic.Training(every="1h") as training:
        training.restore(state)
        number = 0

        def with_it() -> None:
            nonlocal number
            for _ in range(CALLS):
                number += 1
                training.step(number, state, loss=1.0)

        def without() -> None:
            for _ in range(CALLS):
                pass

        ours, floor = measure.interleaved(ROUNDS, with_it, without)
    yield measure.bounded("training.step", 100 * (ours - floor) / CALLS / STEP, "% of a step of 10 ms", 1.0)
    if measure.has("keras") and measure.has("jax"):
        done = subprocess.run(
            [sys.executable, "-c", FIT % (STEPS, ROUNDS)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ},
        )
        percent = 100 * float(done.stdout) / STEPS / STEP
        yield measure.bounded("training.callback", percent, "% of a step of 10 ms", 1.0)


def of_checkpoints() -> Iterator[Figure]:
    if not measure.has("numpy"):
        return
    import numpy as np

    from kinetic_orchestration.program import loop

    with tempfile.TemporaryDirectory(prefix="kinetic-training-") as name:
        folder = Path(name)
        os.environ["KINETIC_CHECKPOINT_DIR"] = f"{name}/checkpoints"
        state = {str(n): np.random.default_rng(n).integers(0, 256, SIZE // 8, dtype=np.uint8) for n in range(8)}
        with (folder / "plain").open("wb") as file:
            for array in state.values():
                array.tofile(file)
        step, copied, on_disk, waited, written, restored = 0, [], [], [], [], []
        training = loop.Training(every=1, keep=1, name="t")
        training.restore(state)

        def copy() -> None:
            (folder / "copy").unlink(missing_ok=True)
            shutil.copyfile(folder / "plain", folder / "copy")

        def copy_to_the_disk() -> None:
            copy()
            with (folder / "copy").open("rb") as file:
                os.fsync(file)

        def write() -> None:
            nonlocal step
            step += 1
            waited.append(measure.seconds(lambda: training.step(step, state)))
            training._settle()

        def warm() -> None:
            """Memory that a virtual machine has never had costs it seconds a gigabyte, whoever asks for it."""
            np.ones(SIZE, np.uint8)

        def restore() -> None:
            with loop.Training(name="t") as again:
                found, done = again.restore(state)
            assert done == step
            assert all(int(array[::4096].sum()) >= 0 for array in found.values())

        for number in range(ROUNDS + 1):
            taken = [measure.seconds(work) for work in (copy, copy_to_the_disk, write, warm, restore)]
            if number:
                for times, one in zip((copied, on_disk, written, [], restored), taken, strict=True):
                    times.append(one)
        training.close()
        floor, synced = (SIZE / 1e6 / statistics.median(times) for times in (copied, on_disk))
        speed = SIZE / 1e6 / statistics.median(written)
        yield measure.figure("training.write", speed, "MB/s, a copy", floor, 0.4, at_least=True)
        yield measure.figure("training.write.on_disk", speed, "MB/s, a copy and fsync", synced, None, at_least=True)
        yield measure.bounded("training.write.waited_for", statistics.median(waited[1:]), "s of 1 GB", 0.1)
        speed = SIZE / 1e6 / statistics.median(restored)
        yield measure.figure("training.restore", speed, "MB/s, a copy", floor, None, at_least=True)


def of_first_steps() -> Iterator[Figure]:
    """Time from the submission to the end of the first step: a project's first job, which is packed and compiled, and
    its second, which is found and read from the compile cache."""
    import importlib

    if not measure.has("jax"):
        return
    told: tuple[list[float], ...] = ([], [], [])
    for number in range(FIRST_STEPS):
        module = f"benchmark_first_step_{number}"
        with measure.project(**{module: JOB}) as folder:
            import kinetic_orchestration as kinetic

            run = kinetic.run(accelerator="cpu")(importlib.import_module(module).first_step)
            plainly = f"import {module}, time; began = time.time(); {module}.first_step()"
            works = (
                lambda code=plainly, at=folder: measure.python("-c", code, env=measure.environment(PYTHONPATH=str(at))),
                lambda run=run: run.run_async().result(timeout=300),
                lambda run=run: run.run_async().result(timeout=300),
            )
            for times, work in zip(told, works, strict=True):
                began = time.time()
                ended = work()
                times.append((ended or time.time()) - began)
    floor, *found = (statistics.median(times) for times in told)
    for kind, value in zip(("cold", "compiled_before"), found, strict=True):
        yield measure.figure(f"training.first_step.{kind}", value, "s, run plainly", floor, None)


def of_a_preemption() -> Iterator[Figure]:
    """Time from the last step before the notice to the first after it; no step is repeated."""
    import importlib
    import signal

    with measure.project(benchmark_training=JOB) as folder:
        import kinetic_orchestration as kinetic
        from tests.support.faults import kill, trees

        jobs = importlib.import_module("benchmark_training")
        run = kinetic.run(accelerator="cpu")
        run(jobs.nothing).run_async().result(timeout=120)
        floor = measure.seconds(lambda: run(jobs.nothing).run_async().result(timeout=120))
        lost, again = [], 0
        for number in range(ROUNDS):
            marks = folder / f"marks-{number}"
            job = run(jobs.train).run_async(str(marks), 150)
            while not marks.exists() or len(marks.read_text().splitlines()) < 50:
                time.sleep(0.01)
            kill(trees(job._job)[0].agent, number=signal.SIGTERM)
            assert job.result(timeout=120) == 150
            told = [(float(at), int(step)) for at, step in map(str.split, marks.read_text().splitlines())]
            lost.append(max(after[0] - before[0] for before, after in itertools.pairwise(told)) - STEP)
            again += len(told) - 150
        yield measure.figure(
            "training.preemption", statistics.median(lost), "s lost, a job that does nothing", floor, None,
            steps_done_again=again,
        )  # fmt: skip


if __name__ == "__main__":
    for found in figures():
        print(json.dumps(found))
