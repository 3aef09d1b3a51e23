"""Replaces the armed deadline of a VM, at which it deletes its slice whatever has become of all else.

The startup script arms the first one (`bootstrap.arm`), as a process that holds a lock. A kept slice has another
deadline while it is free, and with each attempt. The one before has to end first, which takes milliseconds; whoever
cannot arm the next deletes the slice at once.

That process asks no store, and so ends no lease. It comes after the end of each lease (`idle.ARMED`), past which none
can be claimed. A client whose claim it ends, or whose hosts are dead, goes on elsewhere (`lifecycle.SILENT_CLAIM`).
"""

from __future__ import annotations

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
PACE = 0.01
MOST_FILES = 1 << 16  # that this process may have open


class Unarmed(Exception):
    """The new deadline is not armed."""


def rearm(at: Assignment, deadline: float) -> None:
    """Have the slice deleted at that moment of the store, and no longer at the one before.

    Must be called without other children that end. Raises Unarmed.
    """
    for pid in armed():
        processes.send(pid, signal.SIGKILL)
    _wait_until(lambda: not armed(), "the one before did not end")
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


def armed() -> set[int]:
    """Return the processes that hold this VM's deadline: those that have its lock open.

    By the file, since emulated VMs may share a machine, on which a name is not one process's own.
    """
    lock = os.path.realpath(os.path.join(bootstrap.home(), "deadline.lock"))
    return holders(lambda path: path == lock) - {os.getpid()}


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
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        processes.reap()  # this process adopts what it has armed, and has to collect it
        if time.monotonic() > deadline:
            raise Unarmed(why)
        time.sleep(PACE)
