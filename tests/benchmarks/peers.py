"""The same work done by others that are installed, beside ours and its floor. They only inform: no target.

They may be in an environment of their own, named by PEERS_PYTHON, its interpreter: `uv venv peers` and
`uv pip install --python peers/bin/python submitit ray metaflow keras-kinetic`. What is not there is skipped by name.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import launch, measure, packaging
from tests.benchmarks.measure import Figure

MODULES = {"submitit": "submitit", "metaflow": "metaflow", "ray": "ray", "keras-kinetic": "kinetic"}
ROUNDS = 5

IS_THERE = """
import importlib.util, json, sys
print(json.dumps(importlib.util.find_spec(sys.argv[1]) is not None))
"""

SUBMITIT = """
import json, os, sys, time
import submitit

def noop():
    print("x", flush=True)
    return 1

rows = []
for _ in range(3):
    began = time.perf_counter()
    job = submitit.LocalExecutor(sys.argv[1]).submit(noop)
    while not (os.path.exists(job.paths.stdout) and "x" in job.paths.stdout.read_text().splitlines()):
        time.sleep(0.001)
    first = time.perf_counter() - began
    assert job.result() == 1
    rows.append([first, time.perf_counter() - began])
print(json.dumps(sorted(rows)[1]))
"""

METAFLOW = """
from metaflow import FlowSpec, step

class Noop(FlowSpec):
    @step
    def start(self):
        print("the line")
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Noop()
"""

METAFLOW_RUN = """
import json, subprocess, sys, time
rows = []
for _ in range(3):
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, sys.argv[1], "run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=sys.argv[2]) as run:
        for line in run.stdout:
            if b"the line" in line:
                first = time.perf_counter() - began
    assert run.returncode == 0
    rows.append([first, time.perf_counter() - began])
print(json.dumps(sorted(rows)[1]))
"""

RAY = """
import json, time
import ray

began = time.perf_counter()
ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, configure_logging=False, log_to_driver=False)
noop = ray.remote(lambda: 1)
assert ray.get(noop.remote()) == 1
cold = time.perf_counter() - began
began = time.perf_counter()
assert ray.get(noop.remote()) == 1
print(json.dumps([cold, time.perf_counter() - began]))
ray.shutdown()
"""

RAY_PACKAGE = """
import json, os, pathlib, sys, time
from ray._private.runtime_env.packaging import create_package, get_uri_for_directory

began = time.perf_counter()
get_uri_for_directory(sys.argv[1], include_gitignore=True)
again = time.perf_counter() - began
create_package(sys.argv[1], pathlib.Path(sys.argv[2]), include_gitignore=True)
print(json.dumps([time.perf_counter() - began, again]))
"""

KINETIC_PACKAGE = """
import json, sys, time
from kinetic.utils.packager import zip_working_dir

began = time.perf_counter()
zip_working_dir(sys.argv[1], sys.argv[2])
took = time.perf_counter() - began
print(json.dumps([took, took]))
"""


def figures() -> Iterator[Figure]:
    python = os.environ.get("PEERS_PYTHON", sys.executable)
    there = {name for name, module in MODULES.items() if _run(python, IS_THERE, module)}
    for name in MODULES.keys() - there:
        sys.stderr.write(f"peers: {name} is not installed for {python}, and is skipped\n")
    with tempfile.TemporaryDirectory(prefix="kinetic-peers-") as folder:
        yield from _imports(python, there)
        yield from _launches(python, there, Path(folder))
        yield from _packages(python, there, Path(folder))


def _imports(python: str, there: set[str]) -> Iterator[Figure]:
    """Each against `python -c pass` of its own interpreter."""
    ours = [(sys.executable, "kinetic_orchestration")]
    for executable, module in ours + [(python, MODULES[name]) for name in MODULES if name in there]:
        floor, value = measure.interleaved(
            ROUNDS,
            lambda executable=executable: measure.python("-c", "pass", executable=executable),
            lambda module=module, executable=executable: measure.python(
                "-c", f"import {module}", executable=executable
            ),
        )
        yield measure.figure(f"peers.import.{module}", value * 1e3, "ms", floor * 1e3, None)


def _launches(python: str, there: set[str], folder: Path) -> Iterator[Figure]:
    floors = [launch.subprocess_once() for _ in range(10)]
    first, result = (statistics.median(column) * 1e3 for column in zip(*floors, strict=True))
    with measure.project(noop=launch.NOOP):
        launch.launch_once()
        ours = [launch.launch_once() for _ in range(10)]
    found = {"kinetic_orchestration": [statistics.median(column) for column in zip(*ours, strict=True)]}
    if "submitit" in there:
        found["submitit"] = _run(python, SUBMITIT, str(folder / "submitit"))
    if "metaflow" in there:
        flow = folder / "flow.py"
        flow.write_text(METAFLOW)
        found["metaflow"] = _run(
            python, METAFLOW_RUN, str(flow), str(folder), METAFLOW_HOME=str(folder), USER="benchmark"
        )
    for name, (line, value) in found.items():
        yield measure.figure(f"peers.first_line.{name}", line * 1e3, "ms", first, None)
        yield measure.figure(f"peers.result.{name}", value * 1e3, "ms", result, None)
    if "ray" in there:
        cold, warm = _run(python, RAY)
        yield measure.figure("peers.result.ray_with_its_start", cold * 1e3, "ms", result, None)
        yield measure.figure("peers.result.ray_warm_worker", warm * 1e3, "ms", result, None)


def _packages(python: str, there: set[str], folder: Path) -> Iterator[Figure]:
    """A project of 5,001 files and 97 MB, new and unchanged; the floor is a walk over it."""
    root = folder / "project"
    packaging.tree_b(root)
    time.sleep(0.2)  # let the files become older than a tick, as a project's are
    found: dict[str, list[float]] = {}
    with packaging.Workplace(folder) as place:
        new, *again = [measure.seconds(lambda: place.stage(root)) for _ in range(4)]
        found["kinetic_orchestration"] = [new, statistics.median(again)]
    if "ray" in there:
        found["ray"] = _run(python, RAY_PACKAGE, str(root), str(folder / "ray.zip"))
    if "keras-kinetic" in there:
        found["keras-kinetic"] = _run(python, KINETIC_PACKAGE, str(root), str(folder / "kinetic.zip"))
    walk = min(measure.seconds(lambda: packaging.walk_and_stat(root)) for _ in range(3))
    for name, (new, again) in found.items():
        yield measure.figure(f"peers.package_new.{name}", new * 1e3, "ms", walk * 1e3, None)
        yield measure.figure(f"peers.package_unchanged.{name}", again * 1e3, "ms", walk * 1e3, None)


def _run(python: str, program: str, *arguments: str, **more: str) -> Any:
    """The last line that the program prints; in a home and a folder of its own, as some write there."""
    with tempfile.TemporaryDirectory(prefix="kinetic-peers-home-") as home:
        env = measure.environment(HOME=home, RAY_AUTH_MODE="disabled", **more)
        done = subprocess.run(
            [python, "-c", program, *arguments], cwd=home, env=env, capture_output=True, text=True, timeout=300
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"a peer failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
