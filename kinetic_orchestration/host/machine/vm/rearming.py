"""Replaces the armed deadline of a VM, at which it deletes its slice whatever has become of all else.

The startup script arms the first one (`bootstrap.arm`), as a process that holds a lock. A kept slice has another
deadline while it is free, and with each attempt. The one before has to end first, which takes milliseconds; whoever
cannot arm the next deletes the slice at once.

That process asks no store, and so ends no lease. It comes after the end of each lease (`lease.ARMED`), past which none
can be claimed. A client whose claim it ends, or whose hosts are dead, goes on elsewhere (`lifecycle.SILENT_CLAIM`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.protocol.system import processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.protocol.assignment import Assignment

PATIENCE = 10.0  # seconds for a process to end, or to take the lock
PACE, SLOWEST = 0.001, 0.02  # seconds between two looks at first, and at most: a claim waits for this
ARMED = "armed.json"  # in the folder of a VM that may be kept: which process was armed last, and its start
MOST_FILES = 1 << 16  # that this process may have open


class Unarmed(Exception):
    """The new deadline is not armed."""


def rearm(at: Assignment, deadline: float) -> None:
    """Have the slice deleted at that moment of the store, and no longer at the one before.

    Must be called without other children that end. Raises Unarmed.
    """
    for pid in _openers():
        processes.send(pid, signal.SIGKILL)
    _wait_until(lambda: not _openers(), "the one before did not end")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.closerange(3, MOST_FILES)  # it outlives this host, whose lock and connections are not its own
            bootstrap.arm((at.resource, *at.unit()), deadline)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise Unarmed("no process could be started for it")
    _wait_until(lambda: bool(armed()), "no process took its lock")
    _note(at.kept)


def armed() -> set[int]:
    """Return the process that holds this VM's deadline: the one that has its lock, and not each that has it open.

    By the file, since emulated VMs may share a machine, on which a name is not one process's own.
    """
    lock, openers = _lock(), _openers()
    try:
        number = os.stat(lock).st_ino
        with open("/proc/locks", encoding="ascii") as file:  # `1: FLOCK  ADVISORY  WRITE 29787 fe:00:12632162 0 EOF`
            rows = [line.split() for line in file]
    except OSError:  # a kernel that does not tell
        return openers
    held = [row for row in rows if row[1:2] == ["FLOCK"] and len(row) > 5 and row[5].rpartition(":")[2] == str(number)]
    return {int(row[4]) for row in held} & openers


def _lock() -> str:
    return os.path.realpath(os.path.join(bootstrap.home(), "deadline.lock"))


def _openers() -> set[int]:
    lock = _lock()
    return holders(lambda path: path == lock) - {os.getpid()}


def _note(folder: str) -> None:
    """Write down which process is armed, so that the cleaning tells it from one that pretends to be it."""
    found = {str(pid): process.started for pid in armed() if (process := processes.find(pid)) is not None}
    try:
        with open(os.path.join(folder, ARMED), "w", encoding="ascii") as file:
            json.dump(found, file)
    except OSError:  # a disk that takes nothing: the next cleaning doubts it
        pass


def holders(wanted: Callable[[str], bool]) -> set[int]:
    """Return the processes that have a file open whose path is wanted."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            for end in os.listdir(f"/proc/{entry}/fd"):
                if wanted(os.readlink(f"/proc/{entry}/fd/{end}")):
                    found.add(int(entry))
                    break
        except OSError:  # it has ended, or is of the kernel
            continue
    return found


def _wait_until(is_so: Callable[[], bool], why: str) -> None:
    deadline, pace = time.monotonic() + PATIENCE, PACE
    while not is_so():
        processes.reap()  # this process adopts what it has armed, and has to collect it
        if time.monotonic() > deadline:
            raise Unarmed(why)
        time.sleep(pace)
        pace = min(SLOWEST, 2 * pace)
