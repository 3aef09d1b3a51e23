"""Processes of this machine: who descends from whom, who is still the one that was meant, and how all of them end.

Knows nothing of jobs. Linux is read from /proc, elsewhere `ps` is asked.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections import namedtuple

_LINUX = sys.platform.startswith("linux")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


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


def _prctl(option: int, value: int) -> None:
    if not _LINUX:
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


@functools.cache
def machine() -> str:
    """This machine, boot and pid namespace: where a pid means what it says."""
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
    found = (find(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants(*pids: int) -> list[Process]:
    """All living descendants, the nearest first."""
    children: dict[int, list[Process]] = {}
    for process in _listing().values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    look = list(pids)
    while look:
        below = children.get(look.pop(0), [])
        found += [process for process in below if not process.zombie]
        look += [process.pid for process in below]
    return found


def marked(marker: str) -> list[Process]:
    """All living processes whose environment has the assignment `marker`, whoever their parent is now."""
    if not _LINUX:
        text = os.popen("ps eaxwwo pid=,command=").read()
        pids = [int(line.split(None, 1)[0]) for line in text.splitlines() if f" {marker}" in line]
    else:
        wanted = marker.encode()
        pids = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if wanted in file.read().split(b"\0"):
                        pids.append(int(entry))
            except OSError:
                continue
    found = (find(pid) for pid in pids if pid != os.getpid())
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
    """Whether nothing descends from this process, if it adopts orphans. Collects what has ended, as `reap` does."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def end_descendants(pid: int, within: float = 10.0) -> list[int]:
    """SIGKILL every descendant until none is left; those that would not die (in the kernel's hands) are returned."""
    deadline = time.monotonic() + within
    while True:
        if pid == os.getpid() and childless():
            return []  # known without looking at every process of the machine
        found = descendants(pid)
        if not found or time.monotonic() > deadline:
            return [process.pid for process in found]
        for process in found:
            send(process.pid, signal.SIGKILL)
        time.sleep(0.005)
