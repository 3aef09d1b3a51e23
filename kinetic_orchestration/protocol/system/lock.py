"""The lock of one host: the file in its placement's folder that shows whether the host lives, and its identity.

A host takes it before anything else, so this module needs no more than `os` and `time`.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kinetic_orchestration.protocol.assignment import Assignment


def take(assignment: Assignment) -> int | None:
    """Take this host's lock.

    Return its descriptor; None if another process of the host has it, or its folder was released. The file gets its
    name when it is locked already, so that no process sees a lock without a holder and treats the host as dead.
    """
    import fcntl

    name = path_of(assignment)
    fresh = f"{name}.{os.getpid()}"
    for _ in range(20):
        try:
            lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if assignment.devices:  # exclusive as long as this lock is held
                os.write(lock, content_of(assignment, "").encode())
            os.link(fresh, name)
        except FileExistsError:
            os.close(lock)
        else:
            return lock
        finally:
            os.unlink(fresh)
        try:
            lock = os.open(name, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process of this host, or a process that checks for one
            os.close(lock)
            time.sleep(0.005)
            continue
        if os.fstat(lock).st_nlink:  # of a life that was killed
            if assignment.devices:
                os.ftruncate(lock, os.pwrite(lock, content_of(assignment, "").encode(), 0))
            return lock
        os.close(lock)
    return None


def content_of(assignment: Assignment, more: str) -> str:
    """Return the text of the lock's file, as JSON: first the devices, which are there before the file has its name.
    `more` is what is known later: it only adds to the text, so that a reader finds the same devices.
    """
    parts = [part for part in (f'"devices": {assignment.devices}' if assignment.devices else "", more) if part]
    return "{" + ", ".join(parts) + "}"


def path_of(assignment: Assignment) -> str:
    return os.path.join(assignment.run, f"host-{assignment.host}.json")


def mark_full(file: str, full: bool) -> None:
    """Report that a process waits for room on a disk, by the mode of an existing file: that needs no room. By its
    lock's file a host reports the store's disk, by the file for its stacks a program reports the host's own.
    """
    os.chmod(file, 0o700 if full else 0o600)


def is_marked_full(file: str) -> bool:
    """Return true if the one who has that file waits for room, or did so to its end."""
    try:
        return bool(os.stat(file).st_mode & 0o100)
    except OSError:
        return False
