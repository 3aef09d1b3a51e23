"""One run: real processes, what befalls them, and what must be so in the end."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

import kinetic_orchestration as kinetic
from kinetic_orchestration import cli
from kinetic_orchestration.capacity.warm.records import slices as kept_slices
from kinetic_orchestration.errors import KineticError
from kinetic_orchestration.jobs.watching import usage
from kinetic_orchestration.protocol import wire
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.protocol.wire.lease import FREE
from kinetic_orchestration.testing import Emulator
from tests.end_to_end.compute.conftest import free_rest
from tests.end_to_end.disasters import cluster, compute, work
from tests.end_to_end.disasters.cluster import OnCluster
from tests.end_to_end.disasters.compute import OnCompute
from tests.end_to_end.disasters.schedule import (
    ANOTHER,
    ANYWHERE,
    DISKS,
    FROZEN,
    LOCAL,
    ONE_DISK,
    PEOPLE,
    QUOTA,
    STEPS,
    STOCKOUT,
    STORES,
    WARM,
    Fault,
    Schedule,
    chosen,
    schedule,
    stands_still,
)
from tests.support.faults import nothing_left
from tests.support.jobs import PROGRAM, placements
from tests.support.leftovers import processes_of
from tests.support.waits import wait_until

T = TypeVar("T")

CLUSTERS = "kubernetes"  # how the names of these backends begin
ZONES = ("us-west4-a", "us-central1-a")
TICK = 1.0  # seconds of each attempt that had hosts: a look of a follower, and what a host needs to begin and end
TICK_WHEN_BUSY = 2.0  # of two cores that five tests share: seed 5 lacked 1.2 s of 8.6
TO_END = 1.5  # seconds, besides, in which pods end whose set is released, and the cluster says so
ALIKE = (0.95, 1.2)  # the cost of all runs by the ledger; of each run it is less by no more than its ticks
ALIKE_ON_CLUSTER = (0.85, 1.25)  # of the time for which pods were seen; of short runs, of which their ends are a sixth
# Of short runs beside others: between READY and the start of a host's own clock lie 0.1 s to 0.3 s on the emulated cloud,
# and up to 0.6 s between the verdict of several hosts and the call by which a follower deletes them, which is not told.
ALIKE_WHEN_BUSY = (0.9, 1.25)
GONE_WITHIN = 120.0
GONE_WITHIN_REAL = 300.0  # the garbage collector of a new control plane takes minutes to know of JobSets
ASKED_AGAIN = 8.0  # seconds in which nobody may have looked, when the last one who did has died
RUNS = 4.0  # seconds of the function
UNJUSTIFIED = ("JobFailed", "JobLost")  # of a job with so many retries; a store that refuses may be told as it is
CANCELLED = "JobCancelled"
FOLLOWS = 0.7  # seconds until somebody who was attached follows
DISK = 96  # MiB of a local home whose disk may be full
STOCKOUT_WAITS = 3.0  # from so many seconds on a zone without hardware has requests wait, instead of refusing them
VM_DISK = 32  # MiB of a host's own, on the emulated cloud


class Broken(AssertionError):
    """A promise that a run broke."""


class Told(NamedTuple):
    """The result of a run."""

    attempts: int
    hit: list[str]
    unmade: list[str]  # what this machine cannot do, and so hit nobody
    told: float = 0.0  # seconds of slices by the records,
    charged: float = 0.0  # and by the ledger
    unwatched: float = 0.0  # seconds of them in which nobody may have looked,
    idle: float = 0.0  # and in which kept slices served nobody

    def __str__(self) -> str:
        idle = f", of which {self.idle:.1f} s idle" if self.idle else ""
        bill = f", {self.told:.1f} s told{idle}, {self.charged:.1f} s charged for" if self.charged else ""
        unmade = f"; COULD NOT BE MADE HERE: {', '.join(self.unmade)}" if self.unmade else ""
        return f"{self.attempts} attempts{bill}; hit: {', '.join(self.hit) or 'nothing'}{unmade}"


class Run:
    """One seed. Whatever it starts, it ends."""

    def __init__(self, drawn: Schedule, folder: Path, home: Path, cloud: Emulator | None) -> None:
        self.drawn, self.folder, self.home, self.cloud = drawn, folder, home, cloud
        self.cluster: OnCluster | None = None
        self.on_compute = OnCompute(cloud, drawn, self.do_later) if cloud is not None and drawn.model else None
        self.key, self.marks, self.job = f"disaster {folder.name}", folder / "marks", folder / "job"
        self.people: list[subprocess.Popen[bytes]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.unwatched = 0.0
        self.cancels: list[threading.Thread] = []
        self.hit: list[str] = []
        self.unmade: list[str] = []

    def submit(self) -> subprocess.Popen[bytes]:
        words = (
            self.key,
            self.marks,
            self.job,
            self._report(),
            RUNS,
            ",".join((self.drawn.accelerator, *self.drawn.others)),
        )
        return self._start("submit", *words, json.dumps(self.drawn.options))

    def follow(self) -> subprocess.Popen[bytes]:
        return self._start("follow", self.job, self._report())

    def _report(self) -> Path:
        return self.folder / f"report-{len(self.people):02}"

    def _start(self, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"said-{len(self.people):02}").open("wb") as said:
            command = [sys.executable, "work.py", *map(str, words)]
            self.people.append(subprocess.Popen(command, cwd=self.folder, stdout=said, stderr=said))
        return self.people[-1]

    def reports(self) -> list[dict[str, str]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("report-??"))]

    def play(self) -> None:
        for worker, skew in enumerate(self.drawn.skews):
            if self.cloud is not None and skew:
                self.cloud.furnish({"clock_skew": skew}, **self._host(worker))
        for worker in self.drawn.disks if self.cloud is not None and self.can_mount() else ():
            self.cloud.furnish({"disk": VM_DISK}, **self._host(worker))
        self.submit()
        if self.drawn.running:
            wait_until(self.marks.exists, within=work.SECONDS)
        began = time.monotonic()
        for fault in self.drawn.faults:
            self._wait_until(began + fault.at)
            self._strike(fault)
        while self.later:
            self._wait_until(min(at for at, _ in self.later))

    def _host(self, worker: int) -> dict[str, Any]:
        """Return the hosts of the cloud that are the host of that number."""
        if not self.on_compute:
            return {"worker": worker}
        return {"node": f"*{self.drawn.end_of(worker)}"}

    def _wait_until(self, moment: float) -> None:
        while True:
            now = time.monotonic()
            for entry in [entry for entry in self.later if entry[0] <= now]:
                self.later.remove(entry)
                entry[1]()
            if now >= moment:
                return
            time.sleep(0.02)

    def can_mount(self) -> bool:
        """True if small disks are available: the home is then on one."""
        return self.home.parent.is_mount()

    def _strike(self, fault: Fault) -> None:
        """Apply a fault, unless its target does not exist now."""
        if fault.what in DISKS and not self.can_mount():
            self.unmade.append(fault.what)
            return
        with contextlib.suppress(LookupError, OSError):
            if fault.what in LOCAL:
                self._fill_home(fault)
            elif fault.what == ONE_DISK:
                self._fill_disk(fault)
            elif self.cluster is not None and fault.what not in PEOPLE:
                self.cluster.strike(fault)
                self.unwatched += fault.lasts * (fault.what in cluster.UNSEEN)
            elif fault.what in ANYWHERE:
                self._on_processes(fault)
            elif fault.what == "cancel":
                job_id = self.job.read_text(encoding="utf-8")
                self.cancels.append(threading.Thread(target=_cancel, args=(job_id,)))
                self.cancels[-1].start()  # the store may not answer until another fault is over
            elif self.on_compute is not None and fault.what not in STORES:
                self.on_compute.strike(fault)
                self.unwatched += fault.lasts * (fault.what in compute.UNSEEN)
            else:
                self._on_cloud(fault)
            self.hit.append(fault.what)

    def do_later(self, seconds: float, do: Callable[[], object]) -> None:
        self.later.append((time.monotonic() + seconds, do))

    def _end_later(self, fault: Fault, end: Callable[[], object]) -> None:
        self.do_later(fault.lasts, end)

    def _on_processes(self, fault: Fault) -> None:
        if fault.what == "second submitter":
            self.submit()
        elif fault.what == "attached follower":
            follower = self.follow()
            if stands_still(fault):
                self.do_later(FOLLOWS, lambda: self._freeze_follower(follower, fault))
        elif fault.what == "kill submitter":
            self._somebody(fault).kill()
        elif fault.what == "freeze submitter":
            self._freeze(self._somebody(fault), fault)
        elif self.cloud is not None:
            machine = chosen([vm for node in self._nodes() for vm in self.cloud.vms(node) if vm is not None], fault)
            if fault.what == "freeze host":
                machine.freeze()
                self._end_later(fault, machine.thaw)
            else:
                machine.kill(PROGRAM if fault.what == "kill program" else r"^kinetic-agent")
        else:
            guard = chosen(list(self._guards()), fault)
            agent, *others = [found.pid for found in processes.descendants(guard)] or [0]
            if not agent:
                raise LookupError("the guard is gone, and so is all below it")
            if fault.what == "freeze host":
                pids = [guard, agent, *others]
                for pid in pids:
                    processes.send(pid, signal.SIGSTOP)
                self._end_later(fault, lambda: [processes.send(pid, signal.SIGCONT) for pid in pids])
            else:
                processes.send((others or [agent])[0] if fault.what == "kill program" else agent, signal.SIGKILL)

    def _freeze(self, person: subprocess.Popen[bytes], fault: Fault) -> None:
        person.send_signal(signal.SIGSTOP)
        self.unwatched += fault.lasts
        self._end_later(fault, lambda: person.send_signal(signal.SIGCONT))

    def _freeze_follower(self, follower: subprocess.Popen[bytes], fault: Fault) -> None:
        if follower.poll() is None:
            self._freeze(follower, fault)
            self.hit.append(FROZEN)

    def _somebody(self, fault: Fault) -> subprocess.Popen[bytes]:
        """One of those who submitted or follow, and have not ended."""
        return chosen([one for one in self.people if one.poll() is None], fault)

    def _guards(self) -> Iterator[int]:
        for path in sorted((self.home / "run").glob("*/host-*.json")):
            with contextlib.suppress(ValueError, OSError):
                yield int(json.loads(path.read_text())["pid"])

    def _nodes(self) -> list[str]:
        assert self.cloud is not None
        if self.on_compute is not None:
            return self.on_compute.names()
        return [str(node["name"]) for node in self.cloud.nodes()]

    def _fill_home(self, fault: Fault) -> None:
        """Its disk, on which the store and all hosts are."""
        filler = self.home.parent / "filler"
        _fill(filler)
        self.unwatched += fault.lasts
        self._end_later(fault, lambda: filler.unlink(missing_ok=True))

    def _fill_disk(self, fault: Fault) -> None:
        """Fill the disk of one host of the newest attempt."""
        host = int(fault.whom * len(self.drawn.skews))
        if self.cloud is not None:
            machine = _newest([vm for node in self._nodes() if (vm := self._vm(node, host)) is not None])
            try:
                machine.fill_disk()
            except KineticError:
                raise LookupError("it has gone") from None
            self._end_later(fault, machine.clear_disk)
            return
        filler = _newest([disk for disk in self._disks() if disk.name == f"host-{host}"]) / "filler"
        _fill(filler)
        self._end_later(fault, lambda: filler.unlink(missing_ok=True))

    def _vm(self, node: str, host: int) -> Any:
        """The machine of a host, if it is one of a node's; None if there is none."""
        assert self.cloud is not None
        machines = self.cloud.vms(node)
        if self.on_compute is None:
            return machines[host]
        return machines[0] if machines and node.endswith(self.drawn.end_of(host)) else None

    def _disks(self) -> list[Path]:
        """The disks of single hosts on this machine, the newest attempt's last."""
        disks = [path for path in (self.home / "run").glob("*-*/host-*") if path.is_mount()]
        return sorted(disks, key=lambda path: int(path.parent.name.rpartition("-")[2]))

    def take_disks(self, *, all: bool = True) -> None:
        """A machine that has a disk of its own cannot remove the folder in which it is: we do, when its host has ended."""
        for disk in self._disks():
            if all or not disk.with_name(f"{disk.name}.json").exists():
                subprocess.run(["umount", "-l", disk], check=True)
                with contextlib.suppress(OSError):
                    disk.rmdir()
                    disk.parent.rmdir()

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
        elif what == STOCKOUT:
            zone = chosen(ZONES, fault)
            cloud.stockout(zone, "refuse" if fault.lasts < STOCKOUT_WAITS else "wait")
            self._end_later(fault, lambda: cloud.restock(zone))
        elif what == QUOTA:
            limit = functools.partial(cloud.quota, generation="v5e", spot=self.drawn.ways[0] == "spot")
            for zone in ZONES:
                limit(zone, 0)
                self._end_later(fault, functools.partial(limit, zone, None))
        elif what == "never boots":
            cloud.never_boots(int(fault.whom * len(self.drawn.skews)), times=1)
        elif what == "somebody deletes the slice":
            cloud.queued_resources()[0]
            cloud.sweep()
        else:
            node = chosen(self._nodes(), fault)
            if what == "reboot":
                cloud.reboot(node)
            else:
                cloud.preempt(node, 1.0 if "notice" in what else None)

    # ---- what must be so

    def check(self, tick: float = TICK) -> Told:
        """Submit the same job again after the last fault, and check that all promises hold."""
        for cancel in self.cancels:
            cancel.join()
        if all(one.poll() not in (None, 0) for one in self.people):
            self.unwatched += ASKED_AGAIN
        last = self.submit()
        for one in self.people:
            one.wait(timeout=work.SECONDS + 60)
        reports = self.reports()
        if reports and reports[-1].get("error", "").startswith(CANCELLED):
            return self._check_cancelled(reports)
        if last.returncode != 0 or not reports or "value" not in reports[-1]:
            raise Broken(f"whoever asks for the job again hears nothing: {reports}: {self.said()}")
        if failed := [report for report in reports if report.get("error", "").startswith((*UNJUSTIFIED, CANCELLED))]:
            raise Broken(f"a job that has attempts left has ended: {failed}: {self.said()}")
        told = {report["value"] for report in reports if "value" in report}
        marks = self.marks.read_text().split() if self.marks.exists() else []
        if len(told) != 1 or not told <= set(marks):
            raise Broken(f"the results are {reports}, of {marks}: {self.said()}")
        job = kinetic.attach(reports[-1]["job"])
        if job.result(timeout=60) not in told:
            raise Broken(f"another result: {job.result()} and not {told}")
        later = [self._check_step(reports, str(step)) for step in range(2, STEPS + 1) if self.drawn.keep]
        self._check_gone()
        self._check_causes(job)
        found = self._check_counts([job, *later], tick)
        self._check_gone()  # still: nobody has begun anew
        return found

    def _check_step(self, reports: Sequence[dict[str, str]], step: str) -> Any:
        """Check a later job of a run that keeps its slices, and return it."""
        if f"value {step}" not in reports[-1]:
            raise Broken(f"whoever asks for step {step} again hears nothing: {reports}: {self.said()}")
        told = {report[f"value {step}"] for report in reports if f"value {step}" in report}
        marks = self.marks.with_name(f"{self.marks.name}-{step}").read_text().split()
        if len(told) != 1 or not told <= set(marks):
            raise Broken(f"the results of step {step} are {reports}, of {marks}: {self.said()}")
        job = kinetic.attach(reports[-1][f"job {step}"])
        if job.result(timeout=60) not in told or job.peek().phase != "succeeded":
            raise Broken(f"another result of step {step}: {job.result()} and not {told}, {job.peek().phase}")
        self._check_causes(job)
        return job

    def _check_cancelled(self, reports: Sequence[dict[str, str]]) -> Told:
        """Check a job that somebody has ended, which those who ask for it by its key hear, too."""
        if not compute.is_right(wire.CANCELLED, {*self.hit}) or any("value" in report for report in reports):
            raise Broken(f"the job was cancelled: {reports}, after {self.hit}: {self.said()}")
        job = kinetic.attach(reports[-1]["job"])
        if job.peek().phase != "cancelled":
            raise Broken(f"a job that was cancelled is in the phase {job.peek().phase!r}")
        self._check_gone()
        self._check_causes(job)
        return Told(job.peek().attempts, self.hit, self.unmade)

    def _check_gone(self) -> None:
        if self.cluster is not None:
            left = self.cluster.left
            within = GONE_WITHIN_REAL if self.cluster.is_real else GONE_WITHIN
            wait_until(lambda: not left(), lambda: f"left in the cluster: {left()}", within=within, pause=0.1)
        if self.cloud is None:
            wait_until(self._is_gone, within=GONE_WITHIN)
            return
        if self.on_compute is not None:
            free_rest(self.cloud)  # all that costs is gone by itself
        self.cloud.wait_until_empty(GONE_WITHIN)
        self.cloud.ledger.assert_nothing_left()

    def _is_gone(self) -> bool:
        self.take_disks(all=False)
        return nothing_left(self.home) and not processes_of(self.home)

    def _check_causes(self, job: Any) -> None:
        """The function never fails by itself: what the machines lacked is not its failure."""
        ends = [(attempt.number, attempt.verdict) for attempt in job.history() if attempt.verdict is not None]
        its = [f"attempt {number}: {end.reason}" for number, end in ends if end.cause == wire.USER]
        if len(its) > sum(map(self.hit.count, ("kill program", "kill one program"))):
            raise Broken(f"the function is said to have failed: {its}: {self.said()}")
        if self.on_compute is not None:
            told = [(number, end) for number, end in ends if not compute.is_right(end.cause, {*self.hit})]
            if told:
                raise Broken(f"causes are not those of what befell it, {self.hit}: {told}: {self.said()}")

    def _check_counts(self, jobs: Sequence[Any], tick: float) -> Told:
        """Check the numbers of the jobs of the run, and return what it cost."""
        costs = [_cost(job) for job in jobs]
        if any(placement.get("choice") for job in jobs for placement in placements(job)):
            self.hit.append(ANOTHER)
        if any("lease" in placement for job in jobs for placement in placements(job)):
            self.hit.append(WARM)
        attempts = sum(cost.attempts for cost in costs)
        if self.cluster is not None:
            charged, slices = self.cluster.meter.seconds, self.cluster.meter.sets
            tick += TO_END
        elif self.on_compute is not None:
            charged, slices = self.on_compute.held()
        elif self.cloud is not None:
            charged, most = held_slices(self.cloud)
            slices = self.cloud.ledger.count("created", "node")
            if self.drawn.share and most > self.drawn.share:
                raise Broken(f"{most} chips were held at once, and {self.drawn.share} is the share: {self.said()}")
        else:
            return Told(attempts, self.hit, self.unmade)
        ticks = tick * slices
        undeleted = 0.0 if self.on_compute is None else self.on_compute.undeleted
        least = charged - ticks - undeleted
        most = ALIKE[1] * charged + ticks + self.unwatched + _unended(jobs[0])
        idle = sum(cost.idle_seconds for cost in costs)
        told = sum(cost.ready_seconds + cost.beside_seconds for cost in costs) + idle
        if not least <= told <= most:
            parts = [(cost.ready_seconds, cost.beside_seconds, cost.idle_seconds) for cost in costs]
            raise Broken(f"{told:.1f} s of slices are told, {parts}, and {charged:.1f} s were charged for")
        return Told(attempts, self.hit, self.unmade, told, charged, self.unwatched, idle)

    def said(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace")[-2000:] for path in sorted(self.folder.glob("said-??")))

    def close(self) -> None:
        for cancel in self.cancels:
            cancel.join()
        for one in self.people:
            if one.poll() is None:
                one.kill()
                one.wait()
        self.take_disks()


def _cost(job: Any) -> Any:
    """Return the cost of a job that succeeded, of which all who tell something tell the same."""
    cost, peek, shown = job.cost(), job.peek(), _status(job.job_id)
    if cost.attempts != peek.attempts or shown["attempts"] != peek.attempts:
        raise Broken(f"peek counts {peek.attempts} attempts, status {shown['attempts']}, and cost {cost.attempts}")
    if abs(shown["held_seconds"] - cost.ready_seconds) > 0.01:
        raise Broken(f"status says {shown['held_seconds']} s, and cost {cost.ready_seconds}")
    if peek.phase != "succeeded":
        raise Broken(f"a job that succeeded is in the phase {peek.phase!r}")
    return cost


def _unended(job: Any) -> float:
    """The seconds for which slices count as idle that are gone, as all are by now: they were taken away while nobody had
    them, so that no host has ended their lease, and nobody who would has looked since."""
    store = job._job.store
    return sum(usage.idle_seconds(held.lease, store.now()) for held in kept_slices(store) if held.lease.state == FREE)


def held_slices(cloud: Emulator) -> tuple[float, int]:
    """Return the seconds that slices were READY, all together, and the most chips that were at once."""
    began: dict[str, float] = {}
    seconds, chips, most = 0.0, 0, 0
    for entry in cloud.ledger.entries:
        if entry.kind == "node" and entry.what == "ready":
            began[entry.name], chips = entry.time, chips + entry.chips
            most = max(most, chips)
        elif entry.kind == "node" and entry.what == "idle":
            seconds, chips = seconds + entry.time - began.pop(entry.name), chips - entry.chips
    return seconds, most


def _fill(filler: Path) -> None:
    """All the room that there is beside it."""
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def _cancel(job_id: str) -> None:
    with contextlib.suppress(KineticError):
        kinetic.attach(job_id).cancel()


def _newest(those: Sequence[T]) -> T:
    if not those:
        raise LookupError("it is not there")
    return those[-1]


def _status(job_id: str) -> dict[str, Any]:
    """The job's status by the command line."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = cli.main(["status", job_id, "--json"])
    if code:
        raise Broken(f"status ends with {code}: {out.getvalue()}")
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


@contextlib.contextmanager
def own_disk(folder: Path) -> Iterator[Path]:
    """A folder that has a small file system of its own, where one may be mounted, and a home in it."""
    folder.mkdir(mode=0o700)
    options = ["-t", "tmpfs", "-o", f"size={DISK}m,mode=0700", "kinetic-test"]
    mounted = os.geteuid() == 0 and not subprocess.run(["mount", *options, folder], capture_output=True).returncode
    try:
        (folder / "home").mkdir(mode=0o700)
        yield folder / "home"
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def opened(seed: int, backend: str, root: Path, home: Path, *, races: bool = False) -> Iterator[Run]:
    folder = Path(tempfile.mkdtemp(prefix=f"{backend}-{seed}-", dir=root))
    (folder / "pyproject.toml").touch()
    # What changes while a later job of the run is submitted: else it would be sent with the project.
    (folder / ".kineticignore").write_text("objects/\nsaid-*\nreport-*\nmarks*\njob\n")
    shutil.copy(work.__file__, folder / "work.py")
    with contextlib.ExitStack() as open_ones:
        cloud, environ = None, {}
        if backend != "local":
            cloud = open_ones.enter_context(Emulator(zones=ZONES, python=sys.executable, seed=seed))
            cloud.storage.stop_server()  # what it holds outlives it when it restarts
            cloud.storage._root = folder / "objects"
            cloud.storage.start_server()
            environ = {
                **cloud.environ(backend=backend if backend == "compute" else "tpu-vm"),
                "KINETIC_ZONES": ",".join(ZONES),
            }
        before = dict(os.environ)
        open_ones.callback(lambda: (os.environ.clear(), os.environ.update(before)))
        on_cluster = backend.startswith(CLUSTERS)
        run = Run(schedule(seed, backend, races=races), folder, home, None if on_cluster else cloud)
        if on_cluster:
            assert cloud is not None
            beside = Path(tempfile.mkdtemp(prefix=f"plane-{seed}-", dir=root))  # or it would be sent with the project
            opening = cluster.opened(backend, beside, run.drawn, cloud, run.do_later)
            run.cluster, environ = open_ones.enter_context(opening)
        if run.drawn.share:
            environ |= {"KINETIC_CHIPS": f"v5e={run.drawn.share}"}
        if run.drawn.disks and run.cloud is None and run.can_mount():
            environ[work.DISKS] = " ".join(map(str, run.drawn.disks))
        os.environ.update({"KINETIC_HOME": str(home), **environ})
        open_ones.callback(run.close)
        yield run


def play(seed: int, backend: str, root: Path, home: Path, tick: float = TICK, *, races: bool = False) -> Told:
    """Play one seed; returns what came of it."""
    with opened(seed, backend, root, home, races=races) as run:
        run.play()
        return run.check(tick)


def ratio(runs: Sequence[Told]) -> float:
    """The ratio of reported to charged time, over all of them."""
    return sum(run.told for run in runs) / max(1e-9, sum(run.charged for run in runs))


def were_made(runs: Mapping[int, Told]) -> None:
    """Fail, or have the test skipped, unless a disk of a single host was full in one of the runs, by their seeds."""
    if any(ONE_DISK in run.hit for run in runs.values()):
        return
    if any(ONE_DISK in run.unmade for run in runs.values()):
        pytest.skip("no small file system can be mounted here")
    raise AssertionError(f"the runs {[*runs]} were hit by none: {[*runs.values()]}")
