"""The folders of this machine in which programs may keep a copy of their newest checkpoints, and who cleans them.

A folder belongs to one `checkpoint_dir`, and so to all attempts of one identity. Does not know what is in the files.

    root/IDENTITY/TRAINING/slot-0.lock
                           slot-0/DIGEST            a copy
                                  new-…             one that is being written
                                  kinetic-checkpoint-…/part

Only files and folders of these names are ever removed, in these places, and by way of folders that were opened without
following a link.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat

from kinetic_orchestration.host.machine import buckets
from kinetic_orchestration.protocol.system.folders import open_folder

TYPE_CHECKING = False  # typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from kinetic_orchestration.host.machine.machine import Machine
    from kinetic_orchestration.protocol.assignment import Assignment
    from kinetic_orchestration.protocol.wire.task import Task

DISK, MEMORY = "KINETIC_TIER_DISK", "KINETIC_TIER_MEMORY"
SHARED = "KINETIC_TIER_SHARED"  # the machine has other jobs, and stays: nothing is kept there unless it is asked for
BUDDIES, KEY = "KINETIC_TIER_BUDDIES", "KINETIC_TIER_KEY"
SHM = "dev/shm"
PURPOSE = b"kinetic: copies of checkpoints between hosts"

IDENTITY = re.compile("[0-9a-f]{32}")
TRAINING = re.compile(r"@?[\w-][\w.-]*")
SLOT = re.compile("slot-[0-9]+")
COPY = re.compile("[0-9a-f]{64}")
SCRATCH = "kinetic-checkpoint-"  # begins the name of a folder in which a part is written
NEW = "new-"  # begins the name of a file that may become a copy
_NONE = re.compile("(?!)")
# What a folder may have, by its depth below a root: the names of folders, and of files.
OF_ROOT, _OF_IDENTITY, _OF_TRAINING, OF_SLOT, _OF_SCRATCH = range(5)
_OURS = {
    OF_ROOT: (IDENTITY, _NONE),
    _OF_IDENTITY: (TRAINING, _NONE),
    _OF_TRAINING: (SLOT, re.compile(rf"{SLOT.pattern}\.lock")),
    OF_SLOT: (re.compile(rf"{SCRATCH}\w+"), re.compile(rf"{COPY.pattern}|{NEW}\w+")),
    _OF_SCRATCH: (_NONE, re.compile(r"[\w-][\w.-]*")),
}


def key_of(checkpoint_dir: str) -> str:
    """Return the name of the folder of an identity, by its place of checkpoints."""
    return hashlib.sha256(checkpoint_dir.encode()).hexdigest()[:32]


def roots(home: str) -> tuple[str, str]:
    """Return where the folders of all identities lie, on a machine's disk and in its memory.

    Several homes may be on one machine, so the second has a name that follows from the home.
    """
    from kinetic_orchestration.host.machine import bootstrap  # only hosts with a store in a bucket come here

    of_home = hashlib.sha256(os.path.abspath(home).encode()).hexdigest()[:16]
    return os.path.join(home, "tier"), os.path.join(bootstrap.root(), SHM, f"kinetic-tier-{of_home}")


def keep_only(home: str, checkpoint_dir: str = "") -> None:
    """Remove the copies of checkpoints of all identities but one, while no program runs on the machine.

    Args:
        home: The machine's folder of this package.
        checkpoint_dir: Place of the checkpoints of the identity whose copies stay; "" removes all.
    """
    kept = key_of(checkpoint_dir) if checkpoint_dir else ""
    for root in roots(home):
        with contextlib.suppress(OSError):
            folder = open_own(root)
            try:
                remove_ours(folder, OF_ROOT, (kept,))
            finally:
                os.close(folder)
            if not kept:
                os.rmdir(root)


def open_own(path: str, parent: int | None = None) -> int:
    """Open a folder of this user, but not through a link. Raises OSError for any other."""
    folder = open_folder(path, parent)
    if os.fstat(folder).st_uid != os.geteuid():
        os.close(folder)
        raise PermissionError(f"{path} is not a folder of this user")
    return folder


def remove_ours(folder: int, depth: int, kept: Container[str] = ()) -> None:
    """Remove from an open folder the files and folders that have names of ours, with all such that are in these. All
    else stays, and so do the folders that have it.

    Args:
        folder: The folder.
        depth: Its depth below a root (`OF_ROOT`, `OF_SLOT`).
        kept: Names that stay.
    """
    folders, files = _OURS[depth]
    for name in os.listdir(folder):
        if name in kept:
            continue
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and files.fullmatch(name):
                os.unlink(name, dir_fd=folder)
            elif stat.S_ISDIR(status.st_mode) and folders.fullmatch(name):
                remove_folder(folder, name, depth)


def remove_folder(parent: int, name: str, depth: int) -> None:
    """Remove a folder of ours from an open one of that depth. Raises OSError if it has anything else."""
    folder = open_own(name, parent)
    try:
        if os.fstat(folder).st_dev != os.fstat(parent).st_dev:
            raise PermissionError(f"{name} is another file system")
        remove_ours(folder, depth + 1)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def environ(at: Assignment, task: Task, machine: Machine, addresses: Sequence[str], seal: str) -> Mapping[str, str]:
    """Return the variables by which a program finds its folders and the other hosts; none where they cannot help.

    Args:
        at: The host.
        task: What it runs.
        machine: Its machine.
        addresses: Addresses of all hosts, from an authenticated source.
        seal: Key of the attempt, which all of its hosts have and the store has not; "" without one. The program
            gets a key that follows from it, by which it cannot seal a verdict.
    """
    if not machine.keeps_files or not buckets.in_bucket(task.checkpoint_dir):
        return {}  # a checkpoint_dir that is a folder is on a file system already
    disk, memory = (os.path.join(root, key_of(task.checkpoint_dir)) for root in roots(at.home))
    found = {DISK: disk, **({MEMORY: memory} if machine.is_own else {SHARED: "1"})}
    if at.hosts > 1 and seal:
        import hmac

        found[BUDDIES] = " ".join(addresses)
        found[KEY] = hmac.new(seal.encode(), PURPOSE, hashlib.sha256).hexdigest()
    return found
