"""Cleans a VM after an attempt, for the next one of the same deployment, and doubts it where that did not work.

What the VM has when its first attempt begins is remembered. After an attempt, what is the job's own is ended and
removed: its processes, containers, shared memory and mounts, and its files in scratch and in home folders. Whatever
else is new, changed or gone is a doubt, and a VM in doubt is deleted: nothing of the system is removed or repaired.
This is hygiene and no isolation: programs are root on their hosts, and could deceive all of this.

Whatever is wrong here could empty a machine. So all of it is refused on one that our startup script has not made.

Stays and is shared, in the agent's own folder: agents, environments, tools, compile cache, data by digest, copies of
checkpoints; and outside of it those copies that are in memory, which the caller names.
Imported only on VMs that may be kept. Knows no job and no lease.
"""

from __future__ import annotations

import json
import os
import stat
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.vm import gpus
from kinetic_orchestration.host.machine.vm.kept import containers, files, kernel, mounts, running
from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean
from kinetic_orchestration.host.machine.vm.rearming import ARMED, armed
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.protocol.system.folders import open_folder, remove_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BASELINE = "baseline.json"
OF_BOOT = "boot.py"  # the program of the startup script
SHARED = frozenset(("agent", "environments", "cache", "tools", "tier", "kept", "deadline.lock", "console", OF_BOOT))
STARTS = 10.0  # seconds for the armed deadline to take its lock, at the start of a VM
CACHES = frozenset(("compile", "data", "uv"))  # of the shared `cache`
LEAST_FREE = 0.95  # of the room that was on the disk, once what is shared is taken off
LEAST_ROOM = 0.1  # of it, for the next attempt
PROBE = 1 << 20  # bytes


class Baseline(NamedTuple):
    """The state of a VM before its first attempt.

    Attributes:
        machine: Its boot; after another one it is not known what has run.
        files: What it had in places where programs leave files, or may change some.
        mounts: Where something is mounted, of which type and with which options.
        pids: The processes, each with its start.
        containers: What docker has.
        kernel: What its kernel has beside these.
        free: Bytes on its disk.
        shared: Bytes of what is shared.
    """

    machine: str
    files: files.Files
    mounts: list[list[str]]
    pids: dict[str, str]
    containers: dict[str, list[str]]
    kernel: dict[str, list[str]]
    free: int
    shared: int


def remember(folder: str) -> None:
    """Write down in the folder what this VM has, or why it cannot be kept, unless that was done before its first
    attempt. Raises OSError.
    """
    path = os.path.join(folder, BASELINE)
    if os.path.exists(path):
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with open(f"{path}.part", "w", encoding="utf-8", errors="surrogateescape") as file:
        since = os.fstat(file.fileno()).st_ctime_ns
        json.dump(_found(folder, since), file, ensure_ascii=False)
    os.replace(f"{path}.part", path)


def _found(folder: str, since: int) -> dict[str, Any]:
    try:
        _check_is_ours(folder)
        gpus.hold_upgrades(bootstrap.root())  # they would change programs, as a job might
        found = Baseline(
            processes.machine(), files.remember(since), mounts.remember(), running.remember(), containers.remember(),
            kernel.remember(), _free(), _size_of_shared(),
        )  # fmt: skip
    except Unclean as unclean:
        return {"why": str(unclean)}
    return found._asdict()


def clean(folder: str, marker: str, shared: Sequence[str] = ()) -> None:
    """Remove what the attempt has left on this VM, and check it.

    No program of the VM is run before it is known that none was changed, and no process of the job is left to put back
    what is removed.

    Args:
        folder: Has what the VM had before its first attempt.
        marker: The variable that all processes of the attempt have.
        shared: Folders of ours outside of the agent's own that stay as well, such as one in memory.

    Raises:
        Unclean: It cannot be kept.
        OSError: Its disk refuses.
    """
    _check_is_ours(folder)
    before = _recalled(folder)
    running.end(marker, before.pids, folder)
    running.check(before.pids, folder)
    files.check(before.files)
    containers.remove(before.containers)
    kernel.remove(before.kernel)
    mounts.end(before.mounts)
    running.await_devices(before.pids)
    files.clear(before.files, shared)
    _remove_own()
    kernel.check(before.kernel, before.pids)
    _check_disk(before)
    running.end(marker, before.pids, folder)  # what was started meanwhile, or by what was removed
    running.check(before.pids, folder)


def _check_is_ours(folder: str) -> None:
    """Raise Unclean unless this machine is a VM that our startup script has made.

    Its agent's folder is where that script has it, with the script's program in it, and a process of it holds the
    deadline at which the VM is deleted. So a machine on which somebody runs an agent by hand is never cleaned.
    """
    root, home = os.path.realpath(bootstrap.root()), os.path.realpath(bootstrap.home())
    is_its_home = home == os.path.join(root, "var", "lib", "kinetic") and _is_own(home, stat.S_ISDIR)
    kept_there = os.path.dirname(os.path.realpath(folder)) == home
    if not (is_its_home and kept_there and _is_own(os.path.join(home, OF_BOOT), stat.S_ISREG)):
        raise Unclean("it is no machine that a startup script of ours has made")
    deadline = time.monotonic() + STARTS
    while not armed():
        if time.monotonic() > deadline:
            raise Unclean("its deletion is not armed")
        time.sleep(0.02)


def _is_own(path: str, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return is_kind(status.st_mode) and status.st_uid == os.geteuid()


def _recalled(folder: str) -> Baseline:
    try:
        with open(os.path.join(folder, BASELINE), encoding="utf-8", errors="surrogateescape") as file:
            fields = json.load(file)
        if "why" in fields:
            raise Unclean(fields["why"])
        before = Baseline(**{**fields, "files": files.Files(*fields["files"])})
    except (OSError, ValueError, TypeError, KeyError):
        raise Unclean("what it had before its first job is not known") from None
    if before.machine != processes.machine():
        raise Unclean("it was restarted (another boot id)")
    return before


# ---- the agent's folder, and the disk ------------------------------------------------------------------------------


def _remove_own() -> None:
    """Remove from the agent's folder all that is not shared. Raises Unclean."""
    home = os.path.realpath(bootstrap.home())
    own = frozenset((BASELINE, ARMED))
    for folder, shared in ((home, SHARED), (os.path.join(home, "cache"), CACHES), (os.path.join(home, "kept"), own)):
        try:
            opened = open_folder(folder)
        except FileNotFoundError:
            continue
        try:
            for name in set(os.listdir(opened)) - shared:
                remove_entry(opened, name, os.fstat(opened).st_dev)
        except OSError as error:
            raise Unclean(f"{folder} could not be emptied: {error}") from None
        finally:
            os.close(opened)


def _size_of_shared() -> int:
    home = os.path.relpath(bootstrap.home(), bootstrap.root())
    return sum(status.st_blocks * 512 for name in SHARED for _, status in files.walk(f"{home}/{name}", files.DEEP))


def _free() -> int:
    """Return the bytes that are free on the VM's own disk; 0 on an emulated one that shares this machine's."""
    if not os.path.ismount(bootstrap.root()):
        return 0
    found = os.statvfs(bootstrap.root())
    return found.f_bavail * found.f_frsize


def _check_disk(before: Baseline) -> None:
    """Raise Unclean if room is missing that nothing shared explains, and OSError if nothing can be written."""
    for folder in (bootstrap.home(), os.path.join(bootstrap.root(), "tmp")):
        probe = os.path.join(folder, "kinetic-probe")
        with open(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
        os.unlink(probe)
    grown = max(0, _size_of_shared() - before.shared)
    free = _free()
    if free + grown < LEAST_FREE * before.free:
        lost = before.free - free - grown
        raise Unclean(f"{lost / 1e6:,.0f} MB of its disk are used up by what was not found")
    if free < LEAST_ROOM * before.free:
        raise Unclean(f"its disk has only {free / 1e6:,.0f} MB left beside data, environments and caches")
