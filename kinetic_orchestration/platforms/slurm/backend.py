"""Hosts as the nodes of a job of Slurm, one for each attempt: the verbs, each bounded and idempotent.

`script` has what is submitted, `states` interprets what is seen, `commands` makes the calls. This module joins them.
Slurm knows a job by the name of its attempt, and the attempt's folder, on a file system that all nodes mount, has
which job of Slurm it is. Accounting is never asked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from kinetic_orchestration.errors import BackendError, KineticError, UsageError
from kinetic_orchestration.plan.configuration import store_address
from kinetic_orchestration.plan.configuration.home import private
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.hardware.accelerators import Slice
from kinetic_orchestration.plan.values import ABSENT, UNKNOWN, Freed, Observation, Past, Plan
from kinetic_orchestration.platforms.backend import RateLimit, Submission
from kinetic_orchestration.platforms.shared import agent_zip
from kinetic_orchestration.platforms.shared.findings import Finding
from kinetic_orchestration.platforms.shared.rate_limit import Pace
from kinetic_orchestration.platforms.slurm import commands, preflight, script, states
from kinetic_orchestration.platforms.slurm.states import Claim, Row
from kinetic_orchestration.protocol import names, wire
from kinetic_orchestration.protocol.assignment import Assignment
from kinetic_orchestration.protocol.system import copies
from kinetic_orchestration.protocol.system.folders import remove_tree

LOOKS_PER_SECOND = 1.0  # of this process: squeue asks the one controller of all users
LOOKS_AT_ONCE = 20
FAREWELL_PATIENCE = 2.0
ENDS = ("RUNNING", "COMPLETING")
SHOWN = 300  # letters of a script's log
_NAME = re.compile(r"kinetic-[0-9a-f]{8}-[0-9a-z]{1,64}-[0-9]{1,9}")


class SecretSource(NamedTuple):
    """Reads secrets by reference: each takes references by variable, and the environment."""

    check: Callable[[Mapping[str, str], Mapping[str, str]], None]
    read: Callable[[Mapping[str, str], Mapping[str, str]], dict[str, str]]


class SlurmBackend:
    kind = "slurm"
    charges = False
    shared = True
    parallel = 4

    def __init__(self, settings: Settings, secrets: SecretSource | None = None) -> None:
        self._settings = settings
        self._secrets = secrets
        self._store = os.path.join(settings.store, settings.deployment)
        self._mark = names.mark(settings.store, settings.deployment)
        self._parted: set[str] = set()  # folders whose jobs were given time to end
        self._pace = Pace(LOOKS_PER_SECOND, LOOKS_AT_ONCE)

    # ---- before the create call

    def resolve(self, plan: Plan) -> Plan:
        """Name the shared folder, which only this machine's configuration knows otherwise."""
        folder = str(plan.cloud.get("folder") or self._settings.home)
        return replace(plan, cloud={**plan.cloud, "folder": os.path.abspath(os.path.expanduser(folder))})

    def check(self, plan: Plan) -> None:
        if plan.slice.kind == "tpu":
            raise UsageError(
                f"{plan.slice.name} is a TPU, and nodes of Slurm have CPUs and GPUs: name 'cpu', 'gpu' or a GPU such "
                "as 'h100x8', or another backend"
            )
        if not store_address.is_folder(plan.store):
            raise UsageError(
                f"hosts of Slurm read the store as files, and {plan.store} is none: name a folder that login node and "
                "nodes mount under the same path, with store= or KINETIC_STORE"
            )
        if plan.slices > 1:
            raise UsageError("num_slices joins slices of TPUs: hosts= joins nodes of Slurm")
        if plan.affordable and (named := str(plan.cloud.get("gres") or "")) and not _is_paid(plan, named):
            raise UsageError(
                f"limits.cost counts {plan.slice.chips_per_host} GPUs of each node for {plan.slice.name}, and "
                f"gres={named!r} asks for others: name as many with accelerator=, or use limits.run instead"
            )
        if plan.secret_refs and self._secrets is not None:
            self._secrets.check(plan.secret_refs, copies.environ())

    def require(self, plan: Plan) -> None:
        preflight.require(plan)

    def examine(self, plan: Plan) -> Iterator[Finding]:
        """Run all checks, for `doctor`."""
        yield from preflight.examine(plan)

    def prepare(self) -> None:
        """There is nothing to load."""

    def emulates(self, slice_: Slice) -> bool:
        return slice_.kind == "cpu"

    def dry_run(self, plan: Plan) -> str:
        """Return the call of sbatch of the first attempt, and its script."""
        plan = self.resolve(plan)
        placement = self.place(plan, "job-000000000000", 1)
        said = script.comment(plan.deployment, "job-000000000000", 1)
        shown = " ".join(script.words(plan, placement["name"], said, plan.affordable))
        text = script.script(placement["run"], sys.executable, ["HOST"], "BOOT", plan.hosts, "VERDICT")
        return f"the job of Slurm that is submitted\n{shown} <<'EOF'\n{text}EOF"

    def place(self, plan: Plan, job_id: str, attempt: int, previous: Past | None = None) -> dict[str, Any]:
        name = names.slice_of(plan.store, plan.deployment, job_id, attempt)
        folder = str(plan.cloud.get("folder") or self._settings.home)
        return script.placement(name, f"{folder}/{script.FOLDER}/{name}", plan.hosts)

    # ---- the create call

    def submit(self, asked: Submission) -> str:
        """Submit the job of an attempt, unless Slurm has one of its name: no answer of sbatch is ever needed."""
        run = Path(asked.intent.placement["run"])
        try:
            private(run.parent)
            private(run)
        except OSError as error:
            raise BackendError(
                f"the folder {run} cannot be made: {error.strerror}. Name one that this machine and the nodes mount, "
                "with cloud=Slurm(folder=…) or KINETIC_HOME", wire.CONFIGURATION,
            ) from error  # fmt: skip
        with self._alone(run):
            try:
                if self._rows(run.name):
                    return ""
                if claim_of(str(run)).job:
                    raise BackendError("the attempt's job of Slurm is gone, and its hosts have left no word")
                return self._sent(asked, run)
            except commands.Silent as error:
                if error.cause == wire.CONFIGURATION:
                    raise
                return str(error)

    def _sent(self, asked: Submission, run: Path) -> str:
        plan, intent = asked.plan, asked.intent
        self._write(run, asked)
        text = (run / script.SCRIPT).read_text(encoding="utf-8")
        comment = script.comment(plan.deployment, asked.job_id, intent.attempt)
        environ = script.environment(copies.environ())
        asks = script.words(plan, run.name, comment, intent.affordable or plan.affordable)
        done = commands.run(asks, said=text, environ=environ)
        if not done.code:
            return ""
        cause, advice = states.refusal(done.errors)
        told = f"Slurm refuses the job: {commands.told(done.errors)}: {advice}"
        if not cause:
            return told
        remove_tree(str(run))
        raise commands.Refused(told, cause)

    def _write(self, run: Path, asked: Submission) -> None:
        plan = asked.plan
        refs = plan.secret_refs
        read = self._secrets.read(refs, copies.environ()) if refs and self._secrets is not None else {}
        handed = {"env": {**asked.secrets, **read}, "uv": dict(asked.installer)}
        handed["seal"] = {"key": asked.key} if asked.key else {}
        agent = agent_zip.unpacked(run.parents[1]) / "__main__.py"
        host = [sys.executable, "-I", "-S", str(agent), *self._assignment(asked, run).words()]
        boot = asked.intent.boot
        verdict = f"{self._store}/{names.verdict(asked.job_id, asked.intent.attempt)}"
        text = script.script(str(run), sys.executable, host, boot, plan.hosts, verdict)
        for name, said in ((script.SCRIPT, text), (script.PRIVATE, json.dumps({k: v for k, v in handed.items() if v}))):
            file = run / name
            file.touch(mode=0o600)
            file.write_text(said, encoding="utf-8")

    def _assignment(self, asked: Submission, run: Path) -> Assignment:
        plan, intent = asked.plan, asked.intent
        at_once = not plan.argv and not plan.isolated
        return Assignment(
            store=self._store,
            job=asked.job_id,
            attempt=intent.attempt,
            host=0,
            hosts=plan.hosts,
            slices=1,
            choice=intent.choice,
            spec=asked.spec_digest,
            boot=intent.boot,
            run=str(run),
            home=str(run.parents[1]),
            python=sys.executable if at_once else "",
            marker=f"KINETIC_PLACEMENT={run}",
        )

    @contextlib.contextmanager
    def _alone(self, run: Path) -> Iterator[None]:
        """Look and submit as one: clients of other machines wait, as far as the file system knows locks."""
        gate = os.open(run.parent / ".submitting", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(OSError):  # then Slurm's singleton and the claim keep the second job from its work
                fcntl.flock(gate, fcntl.LOCK_EX)
            yield
        finally:
            os.close(gate)

    # ---- observing

    def observe(self, placements: Sequence[Mapping[str, Any]]) -> list[Observation]:
        """Observe all placements with one call: to ask for each would stop a controller."""
        if not placements:
            return []
        try:
            found = self._rows(*(str(placement.get("name")) for placement in placements if self._is_own(placement)))
        except KineticError as error:
            return [Observation(UNKNOWN, str(error))] * len(placements)
        by_name: dict[str, list[Row]] = {}
        for row in found:
            by_name.setdefault(row.name, []).append(row)
        return [self._observe(placement, by_name) for placement in placements]

    def _observe(self, placement: Mapping[str, Any], by_name: Mapping[str, Sequence[Row]]) -> Observation:
        if not self._is_own(placement):
            return Observation(ABSENT)
        run = str(placement["run"])
        folder = run.rpartition(f"/{script.FOLDER}/")[0]
        return states.judge(folder, by_name.get(str(placement["name"]), ()), claim_of(run))

    def _rows(self, *wanted: str) -> list[Row]:
        """Return the jobs of these names, or of all names of this deployment; those of this user alone."""
        if any(not _NAME.fullmatch(name) for name in wanted):
            return []
        named = [f"--name={','.join(wanted)}"] if 0 < len(wanted) <= 50 else []
        asked = ["squeue", "--noheader", "--all", "--states=all", f"--user={commands.user()}", *named]
        done = commands.run([*asked, "-O", states.FORMAT])
        if done.code:
            if commands.GONE in done.errors:
                return []
            raise commands.Silent(f"squeue could not list the jobs: {commands.told(done.errors)}", wire.INTERNAL)
        return [row for row in states.rows(done.out) if row.name.startswith(f"kinetic-{self._mark}-")]

    def rate_limit(self, placement: Mapping[str, Any]) -> RateLimit | None:
        return self._pace

    def names_place(self, placement: Mapping[str, Any]) -> bool:
        return self._is_own(placement)

    def _is_own(self, placement: Mapping[str, Any]) -> bool:
        """Return True for a place of this deployment: others are neither asked for nor touched."""
        name, run = str(placement.get("name", "")), str(placement.get("run", ""))
        is_named = bool(_NAME.fullmatch(name)) and name.startswith(f"kinetic-{self._mark}-")
        return is_named and run.startswith("/") and run.endswith(f"/{script.FOLDER}/{name}") and "/../" not in run

    # ---- the end of hosts

    def cancel(self, placement: Mapping[str, Any]) -> None:
        """Have Slurm tell the hosts, which look at their store's records anyway: NFS may show these late."""
        if self._is_own(placement):
            with contextlib.suppress(KineticError):
                self._scancel([row for row in self._rows(str(placement["name"])) if not row.is_over])

    def release(self, placement: Mapping[str, Any]) -> Freed:
        if not self._is_own(placement):
            return Freed.DONE
        run = str(placement["run"])
        if self._ends_alone(run):
            return Freed.UNDER_WAY
        try:
            left = [row for row in self._rows(str(placement["name"])) if not row.is_over]
            if left:
                if not os.path.isdir(run) and all(row.state in ENDS for row in left):
                    return Freed.UNDER_WAY  # its script has ended, of which Slurm has yet to hear
                self._scancel(left)
                return Freed.REFUSED  # asked for once more, it removes the folder
        except KineticError:
            return Freed.REFUSED
        remove_tree(run)
        return Freed.DONE

    def _ends_alone(self, run: str) -> bool:
        """Wait for a moment, once, for a job that runs and comes to its end: its script removes the folder. Return True
        if it has: Slurm has yet to note it, and is not asked."""
        if run in self._parted or not claim_of(run).job:
            return False
        self._parted.add(run)
        farewell = time.monotonic() + FAREWELL_PATIENCE
        while (is_there := os.path.isdir(run)) and time.monotonic() < farewell:
            time.sleep(0.005)
        return not is_there

    def _scancel(self, found: Sequence[Row]) -> None:
        ids = [row.id for row in found if row.state != "COMPLETING"]
        if ids:
            commands.run(["scancel", f"--user={commands.user()}", *ids])

    # ---- what dead clients leave

    def leftovers(self) -> Iterator[dict[str, Any]]:
        """Return what this user has of this deployment: jobs of Slurm, and folders of attempts."""
        now, runs = time.time(), Path(self._settings.home) / script.FOLDER
        found: dict[str, dict[str, Any]] = {}
        for run in sorted(runs.glob(f"kinetic-{self._mark}-*")) if runs.is_dir() else ():
            with contextlib.suppress(OSError):
                found[run.name] = {**self._left(run.name), "age": max(0.0, now - run.stat().st_mtime)}
        try:
            for row in self._rows():
                if not row.is_over:
                    age = max(0.0, now - row.submitted) if row.submitted else 0.0
                    found[row.name] = {**self._left(row.name), "age": age, "state": row.state}
        except KineticError as error:
            yield {"backend": self.kind, "zone": "slurm", "unread": str(error)}
        yield from (entry for name, entry in found.items() if _NAME.fullmatch(name))

    def _left(self, name: str) -> dict[str, Any]:
        run = f"{self._settings.home}/{script.FOLDER}/{name}"
        attempt, _ = names.attempt_of_slice(name)
        return {**script.placement(name, run, 0), "job": names.job_of_slice(name), "attempt": attempt}

    def secrets(self) -> tuple[tuple[str, str], ...]:
        """None: they lie in the attempt's folder until its hosts have read them."""
        return ()

    def forget(self, secret: str, job_id: str) -> bool:
        return True


def _is_paid(plan: Plan, gres: str) -> bool:
    """Return True if generic resources are as many GPUs as a limit of cost counts with."""
    name, *rest = gres.split(":")
    return "," not in gres and name == "gpu" and rest[-1:] == [str(plan.slice.chips_per_host)]


def claim_of(run: str) -> Claim:
    """Return what the folder of an attempt says. It is listed first: of a name alone NFS may say for a minute that it
    is not there."""
    try:
        there = os.listdir(run)
    except OSError:
        return Claim()
    job, restarts, log, ended = "", "0", "", ""
    with contextlib.suppress(OSError):
        if script.ENDED in there:
            ended = os.readlink(os.path.join(run, script.ENDED))
    with contextlib.suppress(OSError):
        if script.CLAIM in there:
            job, _, restarts = os.readlink(os.path.join(run, script.CLAIM)).partition(".")
    with contextlib.suppress(OSError):
        if script.LOG in there:
            with Path(run, script.LOG).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - SHOWN))
                log = " ".join(commands.printable(file.read(SHOWN)).split())
    if not (job.isdecimal() and restarts.isdecimal() and len(job) < 20):
        job, restarts = "", "0"
    return Claim(True, job, int(restarts[:9]), log, ended)
