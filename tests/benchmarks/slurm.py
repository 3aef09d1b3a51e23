"""The time from a call to its value on Slurm, beside submitit: a no-op on a real slurmctld and slurmd of this machine.

Both ask the same controller, in turns, each from a process that has done so before, and without accounting, which
neither needs. The queue's own part is a figure of its own: from the call that has submitted to the prolog, which slurmd
runs before either's first line. submitit is installed for the interpreter that PEERS_PYTHON names, as for peers.py.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks import measure
from tests.benchmarks.measure import Figure

ROUNDS = 7
PEER = "submitit"

# Each prints, for a line that it reads, when it was called, had submitted and had the value, by the machine's clock.
OURS = """
import json, sys, time, warnings
import kinetic_orchestration as kinetic
sys.path.insert(0, sys.argv[1])
from work import nothing
call = kinetic.run(accelerator="cpu", backend="slurm")(nothing)
for line in sys.stdin:
    began = time.time()
    job = call.run_async()
    sent = time.time()
    assert job.result(stream_logs=False) == 1
    print("\\n@" + json.dumps([began, sent, time.time()]), flush=True)
"""
THEIRS = """
import json, logging, sys, time, warnings
import submitit
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
sys.path.insert(0, sys.argv[1])
from work import nothing
executor = submitit.AutoExecutor(folder=sys.argv[2], cluster="slurm")
executor.update_parameters(timeout_min=5, slurm_setup=["export PYTHONPATH=" + sys.argv[1]])
for line in sys.stdin:
    began = time.time()
    job = executor.submit(nothing)
    sent = time.time()
    assert job.result() == 1
    print("\\n@" + json.dumps([began, sent, time.time()]), flush=True)
"""
PROLOG = '#!/bin/sh\ndate +%s.%N >"{folder}/began.$SLURM_JOB_ID"\n'


def figures() -> Iterator[Figure]:
    from tests.support.slurm import cluster

    yield measure.bounded("slurm.load", os.getloadavg()[0], "processes", None)
    if why := cluster.missing():
        sys.stderr.write(f"slurm: {why}\n")
        return
    python = os.environ.get("PEERS_PYTHON", sys.executable)
    if subprocess.run([python, "-c", f"import {PEER}"], capture_output=True).returncode:
        sys.stderr.write(f"slurm: {PEER} is not installed for {python}, and is skipped\n")
        return
    with tempfile.TemporaryDirectory() as place, slurm(Path(place)) as found:
        yield from no_op(found, Path(place), python)


@contextmanager
def slurm(place: Path) -> Iterator[Any]:
    """A Slurm of one node, whose prolog writes down when each job has begun."""
    from tests.support.slurm.cluster import Cluster

    place.chmod(0o755)
    prolog = place / "prolog"
    prolog.write_text(PROLOG.format(folder=place))
    prolog.chmod(0o755)
    (place / "cluster").mkdir()
    found = Cluster(place / "cluster", 1, more=f"Prolog={prolog}\n")
    try:
        found.start()
        yield found
    finally:
        found.close()


def no_op(found: Any, place: Path, python: str) -> Iterator[Figure]:
    """The seconds from the call to the value, but for those in the queue; both in turns."""
    project = place / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    (project / "work.py").write_text("def nothing():\n    return 1\n")
    env = measure.environment(
        **found.environ, KINETIC_HOME=str(place / "home"), KINETIC_STORE=str(place / "store"),
        PYTHONPATH=str(measure.ROOT),
    )  # fmt: skip
    with ExitStack() as stack:
        ours = stack.enter_context(_driver(sys.executable, OURS, project, place / "ours", env))
        theirs = stack.enter_context(_driver(python, THEIRS, project, place / "theirs", env))
        taken: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
        for number in range(ROUNDS + 1):
            for whose, driver in (("ours", ours), ("theirs", theirs)):
                row = _round(driver, place)
                if number:  # the first one warms up
                    taken[whose].append(row)
    (added, waited), (peers, peers_waited) = (
        [statistics.median(part) for part in zip(*taken[whose], strict=True)] for whose in ("ours", "theirs")
    )
    yield measure.figure("slurm.no_op", added, "s", peers, 1.0, against=f"{PEER}, both without accounting")
    yield measure.bounded("slurm.no_op.queue", waited, "s", None, floor=peers_waited)


@contextmanager
def _driver(python: str, code: str, project: Path, own: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    own.mkdir()
    command = [python, "-c", code, str(project), str(own)]
    with subprocess.Popen(
        command, env=env, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def _round(driver: subprocess.Popen[str], place: Path) -> tuple[float, float]:
    """Return the seconds of one job without those of the queue, and these."""
    before = set(place.glob("began.*"))
    assert driver.stdin is not None and driver.stdout is not None
    driver.stdin.write("go\n")
    driver.stdin.flush()
    while not (line := driver.stdout.readline()).startswith("@"):
        assert line, "the driver has ended"
    called, sent, ended = json.loads(line[1:])
    (mark,) = set(place.glob("began.*")) - before
    waited = max(0.0, float(mark.read_text()) - sent)
    return ended - called - waited, waited
