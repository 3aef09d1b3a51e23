"""The embedded backend: every host of a slice is a process tree of this machine.

A host is a guard with its agent below it and the program below that, detached from the submitter. Its lock file names
it; the lock is held as long as guard or agent lives, so a check of the lock shows whether they live, and no process id
is trusted without its start time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kinetic_orchestration.errors import BackendError, TooBig, UsageError
from kinetic_orchestration.plan.configuration.home import private
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.messages import warn_once
from kinetic_orchestration.plan.values import (
    ABSENT,
    ELSEWHERE,
    GONE,
    PARTIAL,
    PRESENT,
    WOUNDED,
    Freed,
    Intent,
    Observation,
    Past,
    Plan,
)
from kinetic_orchestration.platforms.backend import RateLimit, Submission
from kinetic_orchestration.platforms.local import gpus
from kinetic_orchestration.platforms.shared import agent_zip
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.system import copies, processes
from kinetic_orchestration.protocol.system.folders import remove_tree
from kinetic_orchestration.protocol.system.lock import is_marked_full

TPU = "TPU"  # as a device that one job has
HOST_MEMORY = 300 << 20  # what one emulated host takes once it has imported a framework
GOOGLE = "0x1ae0"  # as a vendor on the PCI bus
TPU_DEVICES = {  # as jax/_src/hardware_utils.py has them
    "0x0027": ("v2", "v3"),
    "0x005e": ("v4",),
    "0x0062": ("v5p",),
    "0x0063": ("v5e",),
    "0x006f": ("v6e",),
    "0x0076": ("tpu7x",),
}
LAUNCH_PATIENCE = 30.0
RELEASE_PATIENCE = 10.0
FAREWELL_PATIENCE = 2.0


class SecretSource(NamedTuple):
    """Reads secrets by reference for hosts of this machine: each takes references by variable, and the environment."""

    check: Callable[[Mapping[str, str], Mapping[str, str]], None]
    read: Callable[[Mapping[str, str], Mapping[str, str]], dict[str, str]]


class LocalBackend:
    kind = "local"
    charges = shared = False
    parallel = 1

    def __init__(
        self, home: Path, max_hosts: int, store: str, deployment: str, secrets: SecretSource | None = None
    ) -> None:
        """
        Args:
            home: The folder in which hosts of this machine work.
            max_hosts: The most hosts of one job; 0 for as many as this machine carries.
            store: The store's address, which is handed to the hosts.
            deployment: The deployment in it.
            secrets: Reads the secrets that a job names by reference.
        """
        self._secrets = secrets
        self._known: dict[str, dict[str, str]] = {}  # secrets of jobs that still wait for a place
        self._home = home
        self._runs = home / "run"
        self._max_hosts = max_hosts
        self._store = os.path.join(store, deployment)

    def resolve(self, plan: Plan) -> Plan:
        return plan

    def check(self, plan: Plan) -> None:
        check_size(plan.slice, self._max_hosts, plan.slices)
        check_slices(plan.slice, plan.slices)
        if plan.slice.kind == "gpu" and not plan.emulation_asked:
            self._choice(plan.slice)
        elif plan.slice.kind == "cpu" and (unseen := gpus.hidden(os.environ.get("PATH", ""))):
            warn_once(f"accelerator={plan.slice.name!r} hides this machine's GPUs ({unseen}): 'gpu' takes one")
        for mount in plan.volumes:
            _check_mount(mount)
        if plan.secret_refs and self._secrets is not None:
            self._secrets.check(plan.secret_refs, copies.environ())

    def require(self, plan: Plan) -> None:
        pass

    def prepare(self) -> None:
        pass

    def emulates(self, slice_: Slice) -> bool:
        if slice_.kind == "gpu":
            return not gpus.choice(slice_, gpus.visible(copies.environ()).gpus).kinds
        return not has_real(slice_)

    def dry_run(self, plan: Plan) -> str:
        return ""

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        return {
            "backend": "local",
            "job": job_id,
            "attempt": attempt,
            "run": str(self._runs / f"{job_id}-{attempt}"),  # identifies the home for other processes
            "hosts": plan.machines,
            "machine": processes.machine(),
        }

    def _run_of(self, placement: Mapping[str, Any]) -> Path:
        return Path(self._path_of(placement))

    def _path_of(self, placement: Mapping[str, Any]) -> str:
        """Its folder, from the names of job and attempt: folders in a record are compared, and never opened."""
        return f"{self._runs}/{placement['job']}-{placement['attempt']}"

    def _is_elsewhere(self, placement: Mapping[str, Any]) -> str:
        """The reason why its hosts cannot be seen from this process; "" if they can."""
        here, there = processes.machine(), placement["machine"]
        if there == here:
            if placement.get("run") in (None, self._path_of(placement)):
                return ""
            return "the hosts run in another home (KINETIC_HOME) of this machine"
        if there.split("/")[0] == here.split("/", maxsplit=1)[0]:
            return "the hosts run in another container of this machine"
        return "the hosts run on another machine, or ran before this one restarted"

    def submit(self, asked: Submission) -> str:
        run = self._run_of(asked.intent.placement)
        private(self._runs)
        asked = replace(asked, secrets={**asked.secrets, **self._referred(asked.plan, asked.job_id)})
        with self._admission():
            private(run)
            devices = None
            try:
                wait, devices = self._admit(asked.plan, run)
            finally:
                if devices is None:
                    with contextlib.suppress(OSError):
                        run.rmdir()
            if devices is None:
                return wait
            self._launch(asked, devices)
        self._known.pop(asked.job_id, None)
        return ""

    def _referred(self, plan: Plan, job_id: str) -> dict[str, str]:
        """The values that the job's hosts are handed by their pipe: asked for before others have to wait for it."""
        if not plan.secret_refs or self._secrets is None:
            return {}
        if job_id not in self._known:
            self._known[job_id] = self._secrets.read(plan.secret_refs, copies.environ())
        return self._known[job_id]

    def _admit(self, plan: Plan, run: Path) -> tuple[str, list[dict[str, Any]] | None]:
        """Give each host its devices, exclusively while its lock is held; or return the reason why the job has
        to wait."""
        if wait := self._must_wait(plan.machines, run):
            return wait, None
        if plan.emulated or plan.slice.kind == "cpu":
            return "", []
        leases = self._leases(run)
        if plan.slice.kind == "tpu":  # its driver gives all chips to one process
            if TPU in leases:
                return f"waiting for this machine's TPU: {leases[TPU]} has it", None
            return "", [{"ids": [TPU], "env": {}}]
        return self._gpus_for(plan.slice, run, leases)

    def _gpus_for(self, slice_: Slice, run: Path, leases: Mapping[str, str]) -> tuple[str, list[dict[str, Any]] | None]:
        choice, hosts = self._choice(slice_), slice_.hosts
        taken = self._taken(run) or choice.take(leases.keys())
        if not taken:
            noun = "a GPU" if choice.needed == 1 else f"{choice.needed} GPUs"
            fitting = [gpu for kind in choice.kinds for gpu in kind]
            return f"waiting for {noun}: this machine has {_held_by(fitting, leases)}", None
        whole = [gpu.id for gpu in taken]
        return "", [
            {
                "ids": [whole[host]] if hosts > 1 else whole,
                "taken": whole,
                "env": gpus.environment(taken, host, hosts),
            }
            for host in range(hosts)
        ]

    def _choice(self, slice_: Slice) -> gpus.Choice:
        """Return the GPUs that suit a slice. Raises UsageError, which lists the existing ones, if none ever could."""
        found = gpus.visible(copies.environ())
        choice = gpus.choice(slice_, found.gpus)
        if choice.kinds:
            return choice
        seen = _held_by(found.gpus, self.leases()) if found.gpus else "none"
        hidden = len(gpus.listed(copies.environ()).gpus) - len(found.gpus)
        if hidden:
            variables = "CUDA_VISIBLE_DEVICES and its like"
            seen += f" ({hidden} more {'is' if hidden == 1 else 'are'} hidden from this process by {variables})"
        why = f"; {'; '.join(found.troubles)}" if found.troubles else ""
        advice = "Ask for what is there ('gpu'), or say" if found.gpus else "Say"
        advice += " backend='local' to have it emulated on the processor"
        if slice_.whichever and any(gpu.is_slice for gpu in found.gpus):
            advice = "A program can use one slice of MIG: ask for 'gpu', or say processes='gpu' for one process on each"
        noun = "1 GPU" if slice_.chips == 1 else f"{slice_.chips} GPUs"
        model = "" if slice_.whichever else f" of model {slice_.generation}"
        if not model and slice_.chips <= len(found.gpus) and len({gpu.vendor for gpu in found.gpus}) > 1:
            model = " of one vendor"
        raise UsageError(f"{slice_.name} is {noun}{model}, and this machine's drivers list {seen}{why}. {advice}")

    def _taken(self, run: Path) -> tuple[gpus.Gpu, ...]:
        """Return the GPUs that this placement already has, when its submission is repeated."""
        for lock in _locks(run).values():
            if (names := _devices_of(lock).get("taken", [])) and _held(lock):
                there = {gpu.id: gpu for gpu in gpus.visible(copies.environ()).gpus}
                return tuple(there[name] for name in names if name in there)
        return ()

    def _leases(self, besides: Path) -> dict[str, str]:
        """The job of each leased device. If a host was killed and its program survives it, the lease stays."""
        found: dict[str, str] = {}
        for other, lock in self._locks_of_others(besides):
            ids = _devices_of(lock).get("ids", [])
            if ids and (_held(lock) or processes.marked(marker(other))):
                found |= dict.fromkeys(map(str, ids), other.name.rpartition("-")[0])
        return found

    def _locks_of_others(self, besides: Path) -> Iterator[tuple[Path, str]]:
        for other in self._runs.iterdir() if self._runs.is_dir() else ():
            if other.name[0] != "." and other != besides:
                yield from ((other, lock) for lock in _locks(other).values())

    def leases(self) -> dict[str, str]:
        """The job of each leased device, by the device's id, for users."""
        return self._leases(self._runs)

    def _launch(self, asked: Submission, devices: Sequence[Mapping[str, Any]]) -> None:
        if not sys.executable:
            raise UsageError("this Python does not know its own executable (sys.executable), so no host can be started")
        private = {"env": dict(asked.secrets), "uv": dict(asked.installer)}
        private["seal"] = {"key": asked.key} if asked.key else {}
        handed = json.dumps({name: values for name, values in private.items() if values}).encode()
        launchers: list[subprocess.Popen[bytes]] = []
        try:
            self._start(asked, handed, devices, launchers)
        except OSError as error:
            raise BackendError(
                f"this machine could not start {asked.plan.crew}: {error.strerror}. It may have too many "
                "processes or too little memory just now (see ulimit -u and free)"
            ) from None
        finally:
            problems = [problem for launcher in launchers if (problem := _ending_of(launcher))]
        if problems:
            raise BackendError(f"a host's process could not start: {problems[0]}")

    def _start(
        self,
        asked: Submission,
        handed: bytes,
        devices: Sequence[Mapping[str, Any]],
        launchers: list[subprocess.Popen[bytes]],
    ) -> None:
        """Start one launcher for each host; the started ones are in the list even after an error."""
        folder = agent_zip.unpacked(self._home)
        run = self._run_of(asked.intent.placement)
        for host in range(asked.plan.machines):
            assignment = self.assignment(asked.plan, asked.job_id, asked.spec_digest, asked.intent, host)
            assignment.devices = json.dumps(devices[host]) if devices else ""
            launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", str(folder / "__main__.py"), *assignment.words()],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                env={**copies.environ(), **dict([marker(run).split("=", 1)])},
            )  # fmt: skip
            launchers.append(launcher)
            assert launcher.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                launcher.stdin.write(handed)
                launcher.stdin.close()
            launcher.stdin = None

    def assignment(self, plan: Plan, job_id: str, spec_digest: str, intent: Intent, host: int) -> Assignment:
        run = self._path_of(intent.placement)
        at_once = not plan.argv and not plan.isolated  # the program's own process can start before all else
        return Assignment(
            store=self._store,
            job=job_id,
            attempt=intent.attempt,
            host=host,
            hosts=plan.machines,
            slices=plan.slices,
            choice=intent.choice,
            spec=spec_digest,
            boot=f"{intent.boot}/{host}",
            run=run,
            home=str(self._home),
            python=sys.executable if at_once else "",
            marker=marker(Path(run)),
        )

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        return [self._observe(placement) for placement in placements]

    def _observe(self, placement: Mapping[str, Any]) -> Observation:
        if elsewhere := self._is_elsewhere(placement):
            return Observation(ELSEWHERE, elsewhere)
        locks = _locks(self._path_of(placement))
        if not locks:
            return Observation(ABSENT)
        dead = sorted(host for host, lock in locks.items() if not _held(lock))
        full = {host for host, lock in locks.items() if is_marked_full(lock)}
        if dead:
            state = GONE if len(dead) == len(locks) else WOUNDED
            why = "ended, as the disk of the store stayed full" if dead[0] in full else "and its guard were killed"
            return Observation(state, f"host {dead[0]} {why}")
        waits = f"host {min(full)} waits for room: the disk of the store is full ({self._store})" if full else ""
        return Observation(PRESENT if len(locks) == placement["hosts"] else PARTIAL, waits=waits)

    def guard_of(self, placement: Mapping[str, Any], host: int) -> tuple[int, str]:
        """Return the process id of a host's guard, below which its program runs; or 0, and why there is none."""
        if elsewhere := self._is_elsewhere(placement):
            return 0, elsewhere
        lock = _locks(self._path_of(placement)).get(host, "")
        owner = _owner(lock) if lock and _held(lock) else {}
        return (int(owner["pid"]), "") if owner else (0, "it does not run now")

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        return None

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        return True

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Do nothing: on this machine hosts poll their records twenty times a second."""

    def release(self, placement: Mapping[str, Any]) -> Freed:
        if self._is_elsewhere(placement):
            return Freed.UNDER_WAY  # nothing that is done here would change it
        run = self._run_of(placement)
        farewell = time.monotonic() + FAREWELL_PATIENCE
        while any(_held(lock) for lock in _locks(run).values()) and time.monotonic() < farewell:
            time.sleep(0.002)
        if not run.exists():
            return Freed.DONE
        if not self._end(run):
            return Freed.REFUSED
        remove_tree(str(run))
        return Freed.DONE

    def _end(self, run: Path) -> bool:
        """Stop all processes first: one that is killed while others run may leave a child without a mark."""
        deadline = time.monotonic() + RELEASE_PATIENCE
        stopped: set[int] = set()
        while found := self._processes_of(run):
            if time.monotonic() > deadline:
                return False
            fresh = {process.pid for process in found} - stopped
            for pid in fresh:
                processes.send(pid, signal.SIGSTOP)
            stopped |= fresh
            if not fresh:
                for process in found:
                    processes.send(process.pid, signal.SIGKILL)
                time.sleep(0.005)
        return True

    def leftovers(self) -> Iterator[dict[str, Any]]:
        """Every placement that this machine still knows, for the reaper."""
        if self._runs.is_dir():
            for run in sorted(self._runs.iterdir()):
                found = re.fullmatch(r"(job-[0-9a-z]+)-(\d+)", run.name)
                if found is None:
                    continue
                try:
                    changed = run.stat().st_mtime  # a host began or ended
                except FileNotFoundError:
                    continue
                yield {
                    "backend": "local", "run": str(run), "hosts": 0, "machine": processes.machine(),
                    "job": found[1], "attempt": int(found[2]), "age": time.time() - changed,
                }  # fmt: skip

    def secrets(self) -> tuple[tuple[str, str], ...]:
        """None: they go by an inherited pipe."""
        return ()

    def forget(self, secret: str, job_id: str) -> bool:
        return True

    def _processes_of(self, run: Path) -> list[processes.Process]:
        """All processes with the mark in their environment, under any parent, the guards by their lock files, and all
        their descendants, marked or not.
        """
        found = {process.pid: process for process in processes.marked(marker(run))}
        for lock in _locks(run).values():
            owner = _owner(lock)
            guard = processes.find(owner["pid"]) if owner else None
            if owner and guard is not None and not guard.zombie and guard.started == owner["started"]:
                found[guard.pid] = guard
        for process in processes.descendants(*found):
            found[process.pid] = process
        found.pop(os.getpid(), None)
        return list(found.values())

    @contextlib.contextmanager
    def _admission(self) -> Iterator[None]:
        """One submission at a time counts the hosts and adds its own."""
        gate = os.open(self._runs / ".admission", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)  # a process that was forked in between has the file open as well
            os.close(gate)

    def _must_wait(self, hosts: int, run: Path) -> str:
        """Limit the hosts that a machine emulates at a time; a single job may be larger, up to `check_size`."""
        allowed = self._max_hosts or max(16, 8 * cores())
        others = sum(_held(lock) for _, lock in self._locks_of_others(run))
        if others and others + hosts > allowed:
            return f"waiting for a place: this machine takes {allowed} hosts at once, and other jobs have them"
        return ""


def gpus_and_holders(here: Settings, environ: Mapping[str, str]) -> tuple[list[tuple[gpus.Gpu, str]], gpus.Found]:
    """The GPUs that jobs may use, each with the job that has it, or ""; and the drivers' messages."""
    found = gpus.visible(environ)
    leases = LocalBackend(here.home, here.max_hosts, here.store, here.deployment).leases() if found.gpus else {}
    return [(gpu, leases.get(gpu.id, "")) for gpu in found.gpus], found


def marker(run: Path) -> str:
    """The assignment that every process of a placement carries in its environment."""
    return f"KINETIC_PLACEMENT={run}"


def _check_mount(mount: str) -> None:
    """Check that this user can create the link that stands for a volume on this machine."""
    there = Path(mount)
    if os.path.lexists(mount) and not there.is_symlink():
        problem = "something else is there"
    else:
        parent = next(parent for parent in there.parents if os.path.lexists(parent))
        if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
            return
        problem = f"{parent} is {'not writable for this user' if parent.is_dir() else 'no folder'}"
    raise UsageError(
        f"the volume path {mount} cannot be made on this machine: {problem}. Pass the Data as an argument instead, or "
        f"choose a path in a folder of yours, such as {Path.home() / there.name}"
    )


def check_size(slice_: Slice, max_hosts: int, slices: int = 1) -> None:
    """Refuse what this machine cannot hold, and warn of what will be slow."""
    bound, hosts = most_hosts(max_hosts), slice_.hosts * slices
    name = f"{slices} × {slice_.name}" if slices > 1 else slice_.name
    if hosts > bound:
        raise TooBig(
            f"{name} has {slice_.crew(slices)}, and this machine ({cores()} cores, {memory() >> 30} GiB) can "
            f"hold {bound} processes of about {HOST_MEMORY >> 20} MiB: choose a smaller slice here, or raise "
            "KINETIC_MAX_HOSTS"
        )
    if hosts > 4 * cores():
        warnings.warn(
            f"{name} is {hosts} processes on {cores()} cores here: it will be slow",
            stacklevel=2,
        )


def check_slices(slice_: Slice, slices: int, root: Path = Path("/")) -> None:
    """Refuse several slices of which this machine is one, by the files below `root`: they are not emulated then."""
    if slices > 1 and has_real(slice_, root):
        raise UsageError(
            f"this machine is one {slice_.name}, and {slices} are asked for: leave num_slices out, or name a project "
            "and a bucket (KINETIC_PROJECT, KINETIC_STORE=gs://…) to have them from Google Cloud"
        )


def most_hosts(max_hosts: int) -> int:
    """The hosts of the largest slice that this machine can hold."""
    return max_hosts or max(4, min(64, memory() // HOST_MEMORY))


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its container's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return total
    return min(total, limit)


def _held_by(found: Sequence[gpus.Gpu], leases: Mapping[str, str]) -> str:
    """Describe the number of GPUs of each model, and the jobs that have them."""
    jobs = Counter(leases[gpu.id] for gpu in found if gpu.id in leases)
    held = ", ".join(f"{job} has {count}" for job, count in sorted(jobs.items()))
    return f"{gpus.described(found)} ({held})" if held else gpus.described(found)


def has_real(slice_: Slice, root: Path = Path("/")) -> bool:
    """Return True if this machine's chips are the requested TPU slice, by the files below `root`."""
    if slice_.hosts != 1 or slice_.kind != "tpu":
        return False
    nodes = [*(root / "dev").glob("accel[0-9]*"), *(root / "dev/vfio").glob("[0-9]*")]
    return len(nodes) == slice_.chips and slice_.generation in _tpus(root)


def _tpus(root: Path) -> set[str]:
    """The generations of the chips on this machine's PCI bus."""
    found: set[str] = set()
    for vendor in (root / "sys/bus/pci/devices").glob("*/vendor"):
        if _text(vendor).strip() == GOOGLE:
            found.update(TPU_DEVICES.get(_text(vendor.with_name("device")).strip(), ()))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _locks(run: str | Path) -> dict[int, str]:
    try:
        entries = os.listdir(run)
    except OSError:
        return {}
    return {
        int(entry[5:-5]): f"{run}/{entry}" for entry in entries if entry.startswith("host-") and entry.endswith(".json")
    }


def _held(lock: str) -> bool:
    try:
        opened = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(opened)
    return not os.path.exists(lock)  # it ended between the listing and this check: neither dead nor present


def _devices_of(lock: str) -> dict[str, Any]:
    """A host's devices, which its lock's file names from the first moment on."""
    return dict(_owner(lock).get("devices") or {})


def _owner(lock: str) -> dict[str, Any]:
    """The content of a lock's file; empty if it cannot be read, also after the time that writing it may take."""
    for _ in range(100):
        try:
            text = Path(lock).read_text(encoding="utf-8")
        except OSError:
            return {}
        if not text:
            return {}
        with contextlib.suppress(ValueError):
            owner = json.loads(text)
            return owner if isinstance(owner, dict) else {}
        time.sleep(0.001)
    return {}


def _ending_of(launcher: subprocess.Popen[bytes]) -> str:
    """The result of a launcher, which exits when its host holds its lock, or with an error."""
    try:
        _, errors = launcher.communicate(timeout=LAUNCH_PATIENCE)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.communicate()
        return f"it was not there within {LAUNCH_PATIENCE:g} s"
    if not launcher.returncode:
        return ""
    return errors.decode("utf-8", "replace").strip() or f"exit code {launcher.returncode}"
