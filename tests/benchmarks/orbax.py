"""Checkpoints of `Training` beside Orbax', of the same arrays, sharded over eight devices, in one run.

Orbax is in an environment of its own, whose interpreter ORBAX_PYTHON names: `uv venv orbax` and
`uv pip install --python orbax/bin/python orbax-checkpoint==0.12.8 jax cloudpickle`. Without it the figures are skipped by
name. The floor of each figure is Orbax' median; they take turns, on one disk. Orbax writes with its AsyncCheckpointer, and
is waited for; neither verifies what it writes, ours what it reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from tests.benchmarks import measure
from tests.benchmarks.measure import ROOT, Figure

SIZE = 1_000_000_000
ROUNDS = 3
TIMEOUT = 1800

PROGRAM = """
import json, os, shutil, statistics, sys, time
size, rounds, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
import jax, numpy as np, orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec
import kinetic_orchestration as kinetic

mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("x"))
count = 8
length = size // count // 4 // 1024 // 8 * 8
tree = {str(n): jax.device_put(np.random.default_rng(n).normal(size=(length, 1024)).astype("float32"), rows) for n in range(count)}
jax.block_until_ready(tree)
step, times = 0, {}

def timed(name, work):
    began = time.perf_counter()
    found = work()
    times.setdefault(name, []).append(time.perf_counter() - began)
    return found

def same(found):
    assert all((np.asarray(found[name][::997]) == np.asarray(tree[name][::997])).all() for name in tree)
    assert all(found[name].sharding == rows for name in tree)

def ours(kind):
    global step
    wrap = kinetic.Orbax if kind == "within" else lambda given: given
    with kinetic.Training(every=1, keep=1, name=kind) as training:
        training.restore({"net": wrap(tree)})
        def write():
            global step
            step += 1
            timed(f"{kind} stall", lambda: training.step(step, {"net": wrap(tree)}))
            training._settle()
        timed(f"{kind} write", write)
    with kinetic.Training(name=kind) as training:
        state, done = timed(f"{kind} restore", lambda: training.restore({"net": wrap(tree)}))
        assert done == step
    same(state["net"].tree if kind == "within" else state["net"])

def orbax():
    path = f"{folder}/orbax"
    shutil.rmtree(path, ignore_errors=True)
    with ocp.StandardCheckpointer() as writer:
        def write():
            timed("orbax stall", lambda: writer.save(path, tree))
            writer.wait_until_finished()
        timed("orbax write", write)
    with ocp.StandardCheckpointer() as reader:
        same(timed("orbax restore", lambda: reader.restore(path, tree)))

for number in range(rounds + 1):
    if number == 1:
        times.clear()  # the first round warms up
    ours("ours"), orbax(), ours("within")
told = {name: statistics.median(one) for name, one in times.items()}
print(json.dumps({"orbax": ocp.__version__, "bytes": sum(one.nbytes for one in tree.values()), **told}))
"""


def figures() -> Iterator[Figure]:
    python = os.environ.get("ORBAX_PYTHON") or (sys.executable if measure.has("orbax.checkpoint") else "")
    if not python:
        sys.stderr.write("orbax: skipped, as ORBAX_PYTHON names no interpreter with orbax-checkpoint\n")
        return
    found = _measured(python)
    size = found["bytes"] / 1e6
    yield measure.figure(
        "orbax.write", size / found["ours write"], "MB/s, Orbax", size / found["orbax write"], None, at_least=True,
        orbax=found["orbax"],
    )  # fmt: skip
    yield measure.figure(
        "orbax.restore", size / found["ours restore"], "MB/s, Orbax", size / found["orbax restore"], None, at_least=True
    )
    yield measure.figure("orbax.stall", found["ours stall"], "s of 1 GB, Orbax", found["orbax stall"], None)
    yield measure.figure(
        "orbax.within.write", size / found["within write"], "MB/s, Orbax alone", size / found["orbax write"], None,
        at_least=True,
    )  # fmt: skip
    yield measure.figure(
        "orbax.within.restore", size / found["within restore"], "MB/s, Orbax alone", size / found["orbax restore"],
        None, at_least=True,
    )  # fmt: skip
    yield measure.figure(
        "orbax.within.stall", found["within stall"], "s of 1 GB, Orbax alone", found["orbax stall"], None
    )


def _measured(python: str, size: int = SIZE, rounds: int = ROUNDS) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="kinetic-orbax-") as name:
        host = {
            "JOB_ID": "job-benchmark", "ATTEMPT": "1", "HOST_INDEX": "0", "HOST_COUNT": "1", "OUTPUT_DIR": name,
            "CHECKPOINT_DIR": f"{name}/checkpoints", "PARTITION_KEY": "", "EVENTS": f"{name}/events",
            "NOTICE": f"{name}/notice",
        }  # fmt: skip
        more = {f"KINETIC_{key}": value for key, value in host.items()}
        environ = measure.environment(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="8", PYTHONPATH=str(ROOT), **more)
        command = [python, "-c", PROGRAM, str(size), str(rounds), name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environ)
    if done.returncode:
        raise RuntimeError(f"the comparison with Orbax failed:\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    for one in figures():
        print(json.dumps(one))
