"""Processes of this machine: their descent, their identity, and their termination.

Knows nothing of jobs. Linux is read from /proc, elsewhere from `ps`.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from _thread import get_ident
from collections import namedtuple

TYPE_CHECKING = False  # typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LINUX = sys.platform.startswith("linux")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOKS = 50  # at the list of all processes, for those that were born since the last
_EXEC_LOOKS = 100  # a millisecond apart, at a process in the middle of an exec


class Process(namedtuple("Process", "pid parent started zombie")):
    __slots__ = ()
    pid: int
    parent: int
    started: str  # with the pid, unique on one boot of one machine
    zombie: bool


def die_with_parent() -> None:
    """SIGKILL for this process when its parent dies. Linux only: elsewhere the guard does it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies. Linux only."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


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


def catches(pid: int | str, number: int) -> bool | None:
    """Return True if a process has a handler of that signal, Python's or one in C. None: unknown."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):  # gone, or not Linux
        return None
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def _prctl(option: int, value: int) -> None:
    if not _LINUX:
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


@functools.cache
def machine() -> str:
    """This machine, boot and pid namespace: the scope of a pid."""
    if not _LINUX:
        import platform

        return platform.node()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def find(pid: int) -> Process | None:
    """The process with this id, if there is one; a zombie is one."""
    if not _LINUX:
        return _listing().get(pid)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read()
    except OSError:
        return None
    state, parent, *rest = fields[fields.rindex(")") + 2 :].split(" ")
    return Process(pid, int(parent), rest[17], state in "ZX")


def alive(pid: int, started: str) -> bool:
    process = find(pid)
    return process is not None and not process.zombie and process.started == started


def _listing() -> dict[int, Process]:
    if not _LINUX:
        text = os.popen("ps -axo pid=,ppid=,stat=,lstart=").read()
        rows = (line.split(None, 3) for line in text.splitlines())
        return {int(row[0]): Process(int(row[0]), int(row[1]), row[3], row[2][0] == "Z") for row in rows}
    found = (find(pid) for pid in _pids())
    return {process.pid: process for process in found if process is not None}


def _pids() -> Iterator[int]:
    """The pids of all processes, including those created during the listing: in a chain in which each process starts
    the next one and ends, a single listing may hold only dead ones.
    """
    seen: set[int] = set()
    for _ in range(_LOOKS):
        fresh = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()} - seen
        if not fresh:
            return
        yield from fresh
        seen |= fresh


def descendants(*pids: int) -> list[Process]:
    """All living descendants, the nearest first."""
    return [process for process in _below(*pids) if not process.zombie]


def _below(*pids: int) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in _listing().values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = list(pids)
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += [process.pid for process in below]
    return found


def marked(marker: str) -> list[Process]:
    """All living processes whose environment has the assignment `marker`, under any parent."""
    if not _LINUX:
        text = os.popen("ps eaxwwo pid=,command=").read()
        pids = [int(line.split(None, 1)[0]) for line in text.splitlines() if f" {marker}" in line]
    else:
        wanted = marker.encode()
        pids = [pid for pid in _pids() if wanted in environ_of(pid)]
    found = (find(pid) for pid in pids if pid != os.getpid())
    return [process for process in found if process is not None and not process.zombie]


def environ_of(pid: int) -> list[bytes]:
    """The environment of a process. During an exec a process shows neither that nor a command line: it is read again,
    as it would escape a caller that ends all processes with a marker.
    """
    for _ in range(_EXEC_LOOKS):
        if environ := _shown(pid, "environ"):
            return environ.split(b"\0")
        try:
            os.readlink(f"/proc/{pid}/exe")  # which a thread of the kernel lacks, and one that has ended
        except OSError:
            return []
        if _shown(pid, "cmdline"):
            return _shown(pid, "environ").split(b"\0")
        time.sleep(0.001)
    return []


def _shown(pid: int, what: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{what}", "rb") as file:
            return file.read()
    except OSError:
        return b""


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
