"""Checkpoints of `Training` beside Orbax', of the same arrays, sharded over eight devices, in one run.

Orbax is in an environment of its own, whose interpreter ORBAX_PYTHON names: `uv venv orbax` and
`uv pip install --python orbax/bin/python orbax-checkpoint==0.12.8 jax cloudpickle`. Without it the figures are skipped by
name. The floor of each figure is Orbax' median. Each round is a process of its own, in which all have the same arrays, warm
up with a sixteenth of them, and write and restore all of them twice, of which the second time counts: the first gets its
memory from the machine. They begin in another order in each round. A write ends when all of its files are on the disk, as
an fsync of each says; what is restored comes from the system's cache, and is compared. Orbax writes with its
AsyncCheckpointer, and is waited for; neither verifies what it writes, ours what it reads.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import measure
from tests.benchmarks.measure import ROOT, Figure

SIZE = 1_000_000_000
ROUNDS = 3
KINDS = ("ours", "orbax", "within")
TIMEOUT = 300  # seconds of a round, which takes some forty

PROGRAM = """
import gc, json, os, shutil, sys, time
size, folder, kinds = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
import jax, numpy as np, orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec
import kinetic_orchestration as kinetic

mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("x"))

def made(size, count=8):
    shape = size // count // 4 // 1024 // 8 * 8, 1024
    draw = lambda n: np.random.default_rng(n).random(shape, dtype="float32")
    return jax.block_until_ready({str(n): jax.device_put(draw(n), rows) for n in range(count)})

times = {}

def timed(name, work):
    began = time.perf_counter()
    found = work()
    times[name] = time.perf_counter() - began  # the last time counts
    return found

def on_disk(top):
    for path, folders, files in os.walk(top):
        for name in [".", *files]:
            file = os.open(os.path.join(path, name), os.O_RDONLY)
            os.fsync(file)
            os.close(file)

def same(found, tree):
    for name, array in tree.items():
        assert found[name].sharding == array.sharding
        for one, other in zip(found[name].addressable_shards, array.addressable_shards, strict=True):
            assert one.index == other.index and (np.asarray(one.data)[::97] == np.asarray(other.data)[::97]).all()

def of_training(kind, tree):
    wrap = kinetic.Orbax if kind == "within" else lambda given: given
    with kinetic.Training(every=1, keep=2, name=kind) as training:  # none is removed while it is timed
        training.restore({"net": wrap(tree)})
        for step in (1, 2):
            def write():
                timed(f"{kind} stall", lambda: training.step(step, {"net": wrap(tree)}))
                training._settle()
                on_disk(f"{folder}/checkpoints/{kind}")
            timed(f"{kind} write", write)
    for _ in range(2):
        with kinetic.Training(name=kind) as training:
            state, done = timed(f"{kind} restore", lambda: training.restore({"net": wrap(tree)}))
        assert done == 2
        same(state["net"].tree if kind == "within" else state["net"], tree)
        del state
        gc.collect()

def of_orbax(tree):
    with ocp.StandardCheckpointer() as writer:
        for step in (1, 2):
            def write():
                timed("orbax stall", lambda: writer.save(f"{folder}/checkpoints/orbax/{step}", tree))
                writer.wait_until_finished()
                on_disk(f"{folder}/checkpoints/orbax")
            timed("orbax write", write)
    for _ in range(2):
        with ocp.StandardCheckpointer() as reader:
            found = timed("orbax restore", lambda: reader.restore(f"{folder}/checkpoints/orbax/2", tree))
        same(found, tree)
        del found
        gc.collect()

for part in (16, 1):
    tree = made(size // part)
    for kind in kinds:
        of_orbax(tree) if kind == "orbax" else of_training(kind, tree)
        shutil.rmtree(f"{folder}/checkpoints/{kind}")
print(json.dumps({"orbax": ocp.__version__, "bytes": sum(one.nbytes for one in tree.values()), "times": times}))
"""


def figures() -> Iterator[Figure]:
    python = os.environ.get("ORBAX_PYTHON") or (sys.executable if measure.has("orbax.checkpoint") else "")
    if not Path(python).is_file():
        sys.stderr.write("stack beside Orbax: skipped, as ORBAX_PYTHON names no interpreter with orbax-checkpoint\n")
        return
    rounds = [_round(python, KINDS[n:] + KINDS[:n]) for n in range(ROUNDS)]
    size = rounds[0]["bytes"] / 1e6
    took = {name: statistics.median(one["times"][name] for one in rounds) for name in rounds[0]["times"]}
    for kind, name, unit in (("ours", "", "Orbax"), ("within", " as kinetic.Orbax", "Orbax alone")):
        for work in ("write", "restore"):
            yield measure.figure(
                f"stack.checkpoint.{work}{name}", size / took[f"{kind} {work}"], f"MB/s, {unit}",
                size / took[f"orbax {work}"], None, at_least=True, orbax=rounds[0]["orbax"],
            )  # fmt: skip
        yield measure.figure(
            f"stack.checkpoint.stall{name}", took[f"{kind} stall"], f"s of 1 GB, {unit}", took["orbax stall"], None
        )


def _round(python: str, kinds: tuple[str, ...], size: int = SIZE) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="kinetic-orbax-") as name:
        host = {
            "JOB_ID": "job-benchmark", "ATTEMPT": "1", "HOST_INDEX": "0", "HOST_COUNT": "1", "OUTPUT_DIR": name,
            "CHECKPOINT_DIR": f"{name}/checkpoints", "PARTITION_KEY": "", "EVENTS": f"{name}/events",
            "NOTICE": f"{name}/notice",
        }  # fmt: skip
        more = {f"KINETIC_{key}": value for key, value in host.items()}
        environ = measure.environment(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="8", PYTHONPATH=str(ROOT), **more)
        command = [python, "-c", PROGRAM, str(size), name, *kinds]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environ)
    if done.returncode:
        raise RuntimeError(f"the comparison with Orbax failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    for one in figures():
        print(json.dumps(one))
