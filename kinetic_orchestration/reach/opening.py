"""Opens the way to a host of a running job, by where its newest attempt is: the only module that names every way."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kinetic_orchestration.errors import HostNotReached, Unsupported, UsageError
from kinetic_orchestration.jobs.following.snapshot import placed
from kinetic_orchestration.jobs.job import Job
from kinetic_orchestration.plan.configuration.settings import Settings
from kinetic_orchestration.plan.values import Intent, Peek, Plan
from kinetic_orchestration.platforms.registry import open_backend
from kinetic_orchestration.protocol.system import copies, processes
from kinetic_orchestration.reach import ssh, vms
from kinetic_orchestration.reach.channel import Pod
from kinetic_orchestration.reach.vms import Entering
from kinetic_orchestration.reach.ways import ByExec, BySsh, Here, Way

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Place:
    """A host of a job's newest attempt.

    Attributes:
        job_id: The job.
        host: Its number.
        plan: The plan of that attempt.
        placement: Its placement.
        settings: Those of this process.
    """

    job_id: str
    host: int
    plan: Plan
    placement: Mapping[str, Any]
    settings: Settings

    @property
    def machine(self) -> int:
        """The number of the machine that it runs on, of which each may have several hosts."""
        return self.host // max(1, self.plan.hosts // self.plan.machines)


def place_of(job: Job, settings: Settings, host: int) -> Place:
    """Return where a host of a job is.

    Args:
        job: The job.
        settings: Those of this process.
        host: The host's number.

    Raises:
        UsageError: There is no such host.
        HostNotReached: The job has no hosts now.
    """
    peek, intent = placed(job)
    plan = job.plan_of(intent.attempt, intent) if intent is not None else job.plan()
    if host >= plan.hosts:
        raise UsageError(f"job {job.job_id} has {plan.crew}, counted from 0; there is no {host}")
    reason = "none was asked for yet" if intent is None else _nowhere(peek)
    if intent is None or reason:
        raise HostNotReached(f"job {job.job_id} has no host that can be entered: {reason}")
    if not job.backend.names_place(intent.placement):
        raise HostNotReached(
            f"job {job.job_id} says that its hosts are in {_where(intent)}, which the settings here do not name: name "
            "its project and its zone or cluster as its submitter does"
        )
    return Place(job.job_id, host, plan, intent.placement, settings)


def _nowhere(peek: Peek) -> str:
    if peek.outcome is not None:
        return f"it has ended, {peek.status.value.lower()}; what it wrote is kept: 'kinor logs'"
    if peek.phase in ("queued", "provisioning", "waiting", ""):
        return f"it is {peek.phase or 'not begun'}: {peek.said or peek.message or 'its hosts are not there yet'}"
    return ""


def _where(intent: Intent) -> str:
    return ", ".join(str(intent.placement.get(name)) for name in ("project", "zone") if intent.placement.get(name))


def way_to(place: Place, tell: Tell, *, user: str = "", account: str = "") -> Way:
    """Open the way to a host.

    Args:
        place: The host.
        tell: Called with what the user is to know about the way.
        user: The name to enter a VM by; "": the usual one.
        account: The email of the Google account, for VMs with OS Login.

    Raises:
        HostNotReached: There is no way now. The message says what is in the way.
        Unsupported: No way leads to hosts of its backend.
    """
    kind = str(place.placement.get("backend", ""))
    opener = WAYS.get(kind)
    if opener is None:
        raise Unsupported(
            f"no way leads to hosts of the backend {kind!r} from here: its platform may have one of its own"
        )
    return opener(place, tell, user, account)


# ---- this machine ----------------------------------------------------------------------------------------------


def _local(place: Place, tell: Tell, user: str, account: str) -> Way:
    from kinetic_orchestration.platforms.local.backend import LocalBackend

    backend = open_backend("local", place.settings)
    assert isinstance(backend, LocalBackend)
    guard, why = backend.guard_of(place.placement, place.machine)
    if not guard:
        raise HostNotReached(f"host {place.host} of {place.job_id} cannot be entered from here: {why}")
    program = _program_of(guard)
    variables = {
        "KINETIC_JOB_ID": place.job_id,
        "KINETIC_HOST_INDEX": str(place.host),
        "KINETIC_HOST_COUNT": str(place.plan.hosts),
    }  # fmt: skip
    environ = {**copies.environ(), **_environ_of(program), **variables}
    environ.pop(
        "KINETIC_PLACEMENT", None
    )  # the mark by which all of the job's processes are ended: a user's shell is none
    python = _python_of(program)
    if python:
        environ["PATH"] = f"{os.path.dirname(python)}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return Here(_folder_of(program) or os.getcwd(), environ)


def _program_of(guard: int) -> int:
    """Return the process id of a host's program: below its guard is the agent, and below that the program."""
    found = guard
    for _ in range(2):
        below = [process for process in processes.descendants(found) if process.parent == found and not process.zombie]
        if not below:
            break
        found = min(below, key=lambda process: process.pid).pid
    return found


def _environ_of(pid: int) -> dict[str, str]:
    pairs = (os.fsdecode(pair).partition("=") for pair in processes.environ_of(pid) if b"=" in pair)
    return {name: value for name, _, value in pairs}


def _folder_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:  # it has ended, or this is no Linux
        return ""


def _python_of(pid: int) -> str:
    try:
        first = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])
    except OSError:
        return ""
    return first if os.path.isabs(first) else ""


# ---- VMs and pods ----------------------------------------------------------------------------------------------


def _entering(place: Place, user: str, account: str) -> tuple[ssh.Keys, Entering]:
    keys = ssh.Keys(place.settings.home)
    return keys, Entering(user or ssh.usual_user(), keys.public(), account)


def _tpu_vm(place: Place, tell: Tell, user: str, account: str) -> Way:
    keys, who = _entering(place, user, account)
    host = vms.tpu_host(place.settings, place.placement, place.machine, place.plan.machines, who)
    return _by_ssh(host, keys, "its guest attributes do not tell it", tell)


def _compute(place: Place, tell: Tell, user: str, account: str) -> Way:
    keys, who = _entering(place, user, account)
    host, why = vms.compute_host(place.settings, place.placement, place.machine, who)
    return _by_ssh(host, keys, why, tell)


def _by_ssh(host: ssh.Host, keys: ssh.Keys, why: str, tell: Tell) -> Way:
    if not host.keys and not keys.known(host).exists():
        tell(
            f"the key of {host.instance} is not known: {why}. The one that it shows is taken now, and expected from "
            "then on"
        )
    return BySsh(host, keys)


def _in_cluster(place: Place, tell: Tell, user: str, account: str) -> Way:
    from kinetic_orchestration.platforms.kubernetes.backend import KubernetesBackend
    from kinetic_orchestration.platforms.kubernetes.manifest import CONTAINER

    backend = open_backend(str(place.placement["backend"]), place.settings)
    assert isinstance(backend, KubernetesBackend)
    access, namespace, name = backend.pod_of(place.placement, place.host)
    if not name:
        raise HostNotReached(f"host {place.host} of {place.job_id} has no pod that runs: look at 'kinor status'")
    return ByExec(access, Pod(namespace, name, CONTAINER))


_Opener = Callable[[Place, Tell, str, str], Way]
WAYS: Final[Mapping[str, _Opener]] = {
    "local": _local, "tpu-vm": _tpu_vm, "compute": _compute, "kubernetes": _in_cluster, "gke": _in_cluster,
}  # fmt: skip
