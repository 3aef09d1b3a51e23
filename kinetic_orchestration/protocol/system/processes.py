"""Processes of this machine: their descent, their identity, and their termination.

Knows nothing of jobs, and not of which system this is: `kernel` tells what it shows.
"""

from __future__ import annotations

import os
import signal
import time
from _thread import get_ident

from kinetic_orchestration.protocol.system import kernel
from kinetic_orchestration.protocol.system.kernel import (
    Process,
    adopt_orphans,
    catches,
    die_with_parent,
    environ_of,
    find,
    machine,
)

TYPE_CHECKING = False  # typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Process", "adopt_orphans", "catches", "die_with_parent", "environ_of", "find", "machine"]


def leave_forks(leave: Callable[[], object]) -> None:
    """Limit this program's SIGTERM handler to itself: forked workers call `leave` first, and a SIGTERM during the fork
    ends them, too.
    """
    masks: dict[int, set[signal.Signals | int]] = {}  # of each thread that is forking

    def hold() -> None:
        masks[get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # kept first: a handler may raise any time
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def let_go() -> None:
        if (mask := masks.get(get_ident())) is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            masks.pop(get_ident(), None)

    def begin() -> None:
        try:
            leave()
        finally:
            let_go()

    os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=begin)
    os.register_at_fork(after_in_parent=let_go)  # the first may have met a handler that raised


def alive(pid: int, started: str) -> bool:
    process = find(pid)
    return process is not None and not process.zombie and process.started == started


def descendants(*pids: int) -> list[Process]:
    """All living descendants, the nearest first."""
    return [process for process in _below(*pids) if not process.zombie]


def _below(*pids: int) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in kernel.listing().values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = list(pids)
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += [process.pid for process in below]
    return found


def marked(*markers: str) -> list[Process]:
    """All living processes whose environment has all these assignments, under any parent."""
    listing = kernel.listing()
    found = (listing.get(pid) for pid in kernel.marked(*markers) if pid != os.getpid())
    return [process for process in found if process is not None and not process.zombie]


def signal_name(number: int) -> str:
    """Real-time signals have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def reap() -> list[tuple[int, int]]:
    """Collect every child of this process that has ended: (pid, wait status)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def childless() -> bool:
    """Return True if nothing descends from this process, if it adopts orphans. Reaps ended children, as `reap` does."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def end_descendants(pid: int, within: float = 10.0) -> list[int]:
    """SIGKILL every descendant until none is left; those that do not die (in the kernel's hands) are returned.

    This very process, if it adopts orphans, has no descendants when it has no child: the kernel knows that without a
    scan of every process of the machine, which misses those that are just being created.
    """
    deadline = time.monotonic() + within
    own = pid == os.getpid()
    while not (own and childless()):
        below = _below(pid)
        living = [process.pid for process in below if not process.zombie]
        if (not living and not own) or time.monotonic() > deadline:
            return living
        for process in below:  # a process whose first thread has ended looks like a zombie
            send(process.pid, signal.SIGKILL)
        time.sleep(0.005)
    return []


def end_strays(*markers: str, within: float = 10.0) -> None:
    """SIGKILL all processes with these assignments in their environment, where no process adopts orphans: elsewhere
    they descend from who has adopted them, and nothing is looked for.
    """
    deadline = time.monotonic() + within
    while not kernel.LINUX and (left := marked(*markers)) and time.monotonic() < deadline:
        for process in left:
            send(process.pid, signal.SIGKILL)
        time.sleep(0.005)
