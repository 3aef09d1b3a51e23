"""`python -m tests.disasters --seed N --runs N [--backend local|emulator]`: two to four faults at once, real processes.

What befalls a run, and when, is drawn from its seed alone and printed; how fast the machine is decides what is hit.
Whatever happens, there is one result, it is one that the function returned, nothing is left, `status` and `cost` count
the same attempts, and on the emulated cloud the cost is what its ledger says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import kinetic_orchestration as kinetic
from kinetic_orchestration.agent import processes
from kinetic_orchestration.testing import Emulator
from tests.disasters import work
from tests.faults.helpers import nothing_left, wait_until

ZONES = ("us-west4-a", "us-central1-a")
BACKENDS = ("local", "emulator")
TICK = 2.0  # seconds of each attempt: a look of a follower, and what a host on a busy machine needs to begin and end
ALIKE = (0.95, 1.2)  # the cost by the ledger
GONE_WITHIN = 120.0
ANYWHERE = ("kill submitter", "freeze submitter", "second submitter", "kill agent", "kill program", "freeze host")
CLOUD = (
    "preempt", "preempt with notice", "lose the answer of a create call", "lose the answer of a delete call",
    "bucket refuses", "bucket restarts", "never boots", "reboot", "clock differs", "somebody deletes the slice",
)  # fmt: skip


class Fault(NamedTuple):
    at: float  # seconds after the submission, or after the function began
    what: str
    lasts: float

    def __str__(self) -> str:
        return f"{self.at:.1f} s {self.what} ({self.lasts:.1f} s)"


class Broken(AssertionError):
    """A promise that a run broke."""


class Schedule(NamedTuple):
    faults: list[Fault]
    running: bool  # they begin when the function has, and not with the submission

    def __str__(self) -> str:
        return f"{'while it runs' if self.running else 'from the start'}: {'; '.join(map(str, self.faults))}"


def schedule(seed: int, backend: str) -> Schedule:
    drawn = random.Random(f"{seed} {backend}")
    kinds = ANYWHERE if backend == "local" else (*ANYWHERE, *CLOUD)
    faults = [
        Fault(drawn.uniform(0.0, 5.0), drawn.choice(kinds), drawn.uniform(0.5, 3.0)) for _ in range(drawn.randint(2, 4))
    ]
    return Schedule(sorted(faults), drawn.random() < 0.6)


class Run:
    """One seed. Whatever it starts, it ends."""

    def __init__(self, seed: int, folder: Path, home: Path, environ: Mapping[str, str], cloud: Emulator | None) -> None:
        self.folder, self.home, self.cloud = folder, home, cloud
        self.key, self.marks = f"disaster {seed} {time.time()}", folder / "marks"
        self.environ = {**os.environ, **environ}
        self.submitters: list[subprocess.Popen[bytes]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.unwatched = 0.0  # seconds in which nobody may have looked
        self.hit: list[str] = []

    def submit(self) -> subprocess.Popen[bytes]:
        report = self.folder / f"report-{len(self.submitters)}"
        accelerator = "cpu" if self.cloud is None else "v5e-1"
        words = [self.key, str(self.marks), str(report), "5", accelerator]
        with (self.folder / f"said-{len(self.submitters)}").open("wb") as said:
            started = subprocess.Popen(
                [sys.executable, "work.py", *words], cwd=self.folder, env=self.environ, stdout=said, stderr=said
            )
        self.submitters.append(started)
        return started

    def reports(self) -> list[dict[str, str]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("report-?"))]

    def play(self, drawn: Schedule) -> None:
        self.submit()
        if drawn.running:
            wait_until(self.marks.exists, work.SECONDS)
        began = time.monotonic()
        for fault in drawn.faults:
            self._wait_until(began + fault.at)
            self._strike(fault)
        while self.later:
            self._wait_until(min(at for at, _ in self.later))

    def _wait_until(self, moment: float) -> None:
        while True:
            now = time.monotonic()
            for entry in [entry for entry in self.later if entry[0] <= now]:
                self.later.remove(entry)
                entry[1]()
            if now >= moment:
                return
            time.sleep(0.02)

    def _strike(self, fault: Fault) -> None:
        """What is not there yet, or not any more, is not hit."""
        with contextlib.suppress(LookupError, OSError):
            (self._on_processes if fault.what in ANYWHERE else self._on_cloud)(fault)
            self.hit.append(fault.what)

    def _end_later(self, fault: Fault, end: Callable[[], object]) -> None:
        self.later.append((time.monotonic() + fault.lasts, end))

    def _on_processes(self, fault: Fault) -> None:
        submitter = self.submitters[0]
        if fault.what == "second submitter":
            self.submit()
        elif fault.what == "kill submitter":
            submitter.kill()
        elif fault.what == "freeze submitter":
            submitter.send_signal(signal.SIGSTOP)
            self.unwatched += fault.lasts
            self._end_later(fault, lambda: submitter.send_signal(signal.SIGCONT))
        elif self.cloud is not None:
            machine = self._machine()
            if fault.what == "freeze host":
                machine.freeze()
                self._end_later(fault, machine.thaw)
            else:
                machine.kill(r"child\.py" if fault.what == "kill program" else r"^kinetic-agent")
        else:
            guard = self._guard()
            below = processes.descendants(guard)
            if not below:
                raise LookupError("the guard is gone, and so is all below it")
            agent, *others = below
            if fault.what == "freeze host":
                pids = [guard, agent.pid, *(other.pid for other in others)]
                for pid in pids:
                    processes.send(pid, signal.SIGSTOP)
                self._end_later(fault, lambda: [processes.send(pid, signal.SIGCONT) for pid in pids])
            else:
                processes.send(
                    (others or [agent])[0].pid if fault.what == "kill program" else agent.pid, signal.SIGKILL
                )

    def _guard(self) -> int:
        for path in (self.home / "run").glob("*/host-0.json"):
            with contextlib.suppress(ValueError):
                return int(json.loads(path.read_text())["pid"])
        raise LookupError("no host")

    def _machine(self) -> Any:
        assert self.cloud is not None
        for node in self.cloud.nodes():
            for machine in self.cloud.vms(str(node["name"])):
                if machine is not None:
                    return machine
        raise LookupError("no machine")

    def _on_cloud(self, fault: Fault) -> None:
        cloud, what = self.cloud, fault.what
        assert cloud is not None
        if what.startswith("lose the answer"):
            cloud.lose_answer("CreateQueuedResource" if "create" in what else "DeleteQueuedResource", times=1)
        elif what == "bucket refuses":
            cloud.storage.fail("*", 503, times=None)
            self.unwatched += fault.lasts
            self._end_later(fault, cloud.storage.heal)
        elif what == "bucket restarts":
            cloud.storage.stop_server()
            self.unwatched += fault.lasts
            self._end_later(fault, cloud.storage.start_server)
        elif what == "never boots":
            cloud.never_boots(0, times=1)
        elif what == "clock differs":
            cloud.furnish({"clock_skew": 600.0})
        elif what == "somebody deletes the slice":
            cloud.queued_resources()[0]
            cloud.sweep()
        else:
            node = str(cloud.nodes()[0]["name"])
            if what == "reboot":
                cloud.reboot(node)
            else:
                cloud.preempt(node, 1.0 if "notice" in what else None)

    # ---- what must be so

    def check(self) -> str:
        """After the last fault: somebody asks for the same job again, and all of this holds."""
        if self.submitters[0].poll() not in (None, 0):
            self.unwatched += 8.0  # nobody looked, perhaps, until now
        last = self.submit()
        for submitter in self.submitters:
            submitter.wait(timeout=work.SECONDS + 60)
        told, reports = [], self.reports()
        if last.returncode != 0 or not reports:
            raise Broken(f"whoever asks for the job again hears nothing: {self.said()}")
        told = [report["value"] for report in reports if "value" in report]
        marks = self.marks.read_text().split() if self.marks.exists() else []
        if len(set(told)) != 1 or not set(told) <= set(marks):
            raise Broken(f"the results are {reports}, of {marks}: {self.said()}")
        job = kinetic.attach(next(report["job"] for report in reports if "job" in report))
        if job.result(timeout=60) != told[0]:
            raise Broken(f"another result: {job.result()} and not {told}")
        if self.cloud is None:
            wait_until(lambda: nothing_left(self.home), GONE_WITHIN)
        else:
            self.cloud.wait_until_empty(GONE_WITHIN)
            self.cloud.ledger.assert_nothing_left()
        cost, peek = job.cost(), job.peek()
        if cost.attempts != peek.attempts:
            raise Broken(f"status counts {peek.attempts} attempts, and cost {cost.attempts}")
        if peek.phase != "succeeded":
            raise Broken(f"a job that succeeded is in the phase {peek.phase!r}")
        if self.cloud is None:
            return f"{cost.attempts} attempts"
        charged = self.cloud.ledger.chip_seconds()
        ticks = TICK * max(1, cost.attempts)
        least, most = ALIKE[0] * charged - ticks, ALIKE[1] * charged + ticks + self.unwatched
        if not least <= cost.ready_seconds <= most:
            raise Broken(f"{cost.ready_seconds:.1f} s of slices are told, and {charged:.1f} s were charged for")
        return f"{cost.attempts} attempts, {cost.ready_seconds:.1f} s told, {charged:.1f} s charged for"

    def said(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace")[-2000:] for path in sorted(self.folder.glob("said-?")))

    def close(self) -> None:
        for submitter in self.submitters:
            if submitter.poll() is None:
                submitter.kill()
                submitter.wait()


@contextlib.contextmanager
def opened(seed: int, backend: str, root: Path, home: Path) -> Iterator[Run]:
    folder = Path(tempfile.mkdtemp(prefix=f"{backend}-{seed}-", dir=root))
    (folder / "pyproject.toml").touch()
    shutil.copy(work.__file__, folder / "work.py")
    with contextlib.ExitStack() as open_ones:
        cloud, environ = None, {}
        if backend == "emulator":
            cloud = open_ones.enter_context(Emulator(zones=ZONES, python=sys.executable, seed=seed))
            environ = {**cloud.environ(), "KINETIC_ZONES": ",".join(ZONES)}
        before = dict(os.environ)
        open_ones.callback(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ.update({"KINETIC_HOME": str(home), **environ})
        run = Run(seed, folder, home, {}, cloud)
        open_ones.callback(run.close)
        yield run


def play(seed: int, backend: str, root: Path, home: Path) -> str:
    """Play one seed; returns what came of it."""
    with opened(seed, backend, root, home) as run:
        run.play(schedule(seed, backend))
        return f"{run.check()}; hit: {', '.join(run.hit) or 'nothing'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.disasters")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--backend", choices=BACKENDS, default="local")
    arguments = parser.parse_args()
    broken = 0
    with tempfile.TemporaryDirectory(prefix="disasters-", ignore_cleanup_errors=True) as root:
        home = Path(root) / "home"
        home.mkdir(mode=0o700)
        for seed in range(arguments.seed, arguments.seed + arguments.runs):
            print(f"seed {seed}: {schedule(seed, arguments.backend)}", flush=True)
            try:
                print(f"  {play(seed, arguments.backend, Path(root), home)}", flush=True)
            except Exception as error:
                broken += 1
                print(f"  BROKEN: {type(error).__name__}: {error}", flush=True)
    print(f"{arguments.runs} runs from {arguments.seed} on, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
