"""Hides what Linux and macOS tell and do differently: the one module that asks which of them this is.

Linux is read from /proc; elsewhere `ps`, `vm_stat` and `sysctl` are asked, and what has no equivalent is left out, as
each function says. With HOST_KERNEL=portable in the environment Linux is treated as if it had no /proc and no prctl, so
that tests run the other way, too. Knows nothing of jobs. A machine that is deleted after its job (`host/machine`) is
always Linux, and reads more of it by itself.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import time
from collections import namedtuple

TYPE_CHECKING = False  # typing would cost an agent a tenth of its start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MACOS = sys.platform == "darwin"
LINUX = sys.platform.startswith("linux") and os.environ.get("HOST_KERNEL") != "portable"
LOOPBACK = "lo0" if MACOS else "lo"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOKS = 50  # at the list of all processes, for those that were born since the last
_EXEC_LOOKS = 100  # a millisecond apart, at a process in the middle of an exec
# In the C locale and UTC: `lstart` is written as the environment says, and is compared with what another process read.
_PS = "LC_ALL=C TZ=UTC ps "
# With the environment. macOS has -E, and an -e that selects all processes (ps(1) there); procps has the e of BSD.
_PS_ENVIRON = f"{_PS}-E -axww -o pid=,command=" if MACOS else f"{_PS}eaxwwo pid=,command="


class Process(namedtuple("Process", "pid parent started zombie")):
    __slots__ = ()
    pid: int
    parent: int
    started: str  # with the pid, unique on one boot of one machine
    zombie: bool


# ---- processes --------------------------------------------------------------------------------------------------


def die_with_parent() -> None:
    """SIGKILL for this process when its parent dies. Linux only: elsewhere the guard does it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies. Linux only."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def be_killed_first() -> None:
    """Have the kernel end this process before all others when memory runs out. Linux only."""
    try:
        with open("/proc/self/oom_score_adj" if LINUX else os.devnull, "w", encoding="ascii") as score:
            score.write("1000")
    except OSError:
        pass


@functools.cache
def machine() -> str:
    """This machine, boot and pid namespace: the scope of a pid. Elsewhere than on Linux its name."""
    if not LINUX:
        import platform

        return platform.node()
    return f"{boot()}/{os.stat('/proc/self/ns/pid').st_ino}"


def find(pid: int) -> Process | None:
    """The process with this id, if there is one; a zombie is one."""
    if not LINUX:
        return processes_of(_said(f"{_PS}-o pid=,ppid=,stat=,lstart= -p {pid:d}")).get(pid)
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read()
    except OSError:
        return None
    state, parent, *rest = fields[fields.rindex(")") + 2 :].split(" ")
    return Process(pid, int(parent), rest[17], state in "ZX")


def listing() -> dict[int, Process]:
    """All processes, by their ids."""
    if not LINUX:
        return processes_of(_said(f"{_PS}-axo pid=,ppid=,stat=,lstart="))
    found = (find(pid) for pid in _pids())
    return {process.pid: process for process in found if process is not None}


def processes_of(text: str) -> dict[int, Process]:
    """Parse what `ps` says of ids, parents, states and starts."""
    rows = (row for line in text.splitlines() if len(row := line.split(None, 3)) == 4)
    return {
        int(row[0]): Process(int(row[0]), int(row[1]), " ".join(row[3].split()), row[2][0] == "Z")
        for row in rows
        if row[0].isdigit() and row[1].isdigit()
    }


def marked(*markers: str) -> list[int]:
    """The ids of all processes whose environment has all these assignments; zombies have none. macOS shows that of
    this user's own programs alone, and of none that it ships itself.
    """
    if not LINUX:
        return marked_of(_said(_PS_ENVIRON), *markers)
    wanted = {marker.encode() for marker in markers}
    return [pid for pid in _pids() if wanted <= set(environ_of(pid))]


def marked_of(text: str, *markers: str) -> list[int]:
    """Parse what `ps` says of ids, commands and environments, and find those with all these assignments as words."""
    lines = (line for line in text.splitlines() if all(f" {marker} " in f"{line} " for marker in markers))
    rows = (line.split(None, 1) for line in lines)
    return [int(row[0]) for row in rows if row[0].isdigit()]


def environ_of(pid: int) -> list[bytes]:
    """The environment of a process; empty if this is not Linux. During an exec a process shows neither that nor a
    command line: it is read again, as it would escape a caller that ends all processes with a marker.
    """
    for _ in range(_EXEC_LOOKS if LINUX else 0):
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


def catches(pid: int | str, number: int) -> bool | None:
    """Return True if a process has a handler of that signal, Python's or one in C. None: unknown."""
    if not LINUX:
        return None
    try:
        caught = _value(f"/proc/{pid}/status", "SigCgt:")
    except (OSError, StopIteration):  # gone
        return None
    return bool(int(caught, 16) >> (number - 1) & 1)


def use_of(root: int, besides: int) -> tuple[float, int]:
    """Return the seconds of CPU and the bytes of memory of a process's descendants, except one. Shared pages count for
    each process that has them; seconds include those of children that have ended, as far as the system tells.
    """
    rows = _uses() if LINUX else uses_of(_said(f"{_PS}-axo pid=,ppid=,time=,rss="))
    children: dict[int, list[tuple[int, float, int]]] = {}
    for pid, parent, seconds, memory in rows:
        children.setdefault(parent, []).append((pid, seconds, memory))
    ended = os.times()
    spent, held = ended.children_user + ended.children_system, 0
    waiting = [root]
    while waiting:
        for pid, seconds, memory in children.get(waiting.pop(), ()):
            if pid != besides:
                spent, held = spent + seconds, held + memory
                waiting.append(pid)
    return spent, held


def uses_of(text: str) -> Iterator[tuple[int, int, float, int]]:
    """Parse what `ps` says of ids, parents, times and memory: 12:34.56 on macOS, 1-02:03:04 on Linux; KiB."""
    for row in re.findall(r"(?m)^ *(\d+) +(\d+) +(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?) +(\d+)$", text):
        pid, parent, days, hours, minutes, seconds, memory = row
        lasted = (int(days or 0) * 24 + int(hours or 0)) * 3600 + int(minutes) * 60 + float(seconds)
        yield int(pid), int(parent), lasted, int(memory) << 10


def _uses() -> Iterator[tuple[int, int, float, int]]:
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = os.open(f"/proc/{entry}/stat", os.O_RDONLY)
        except OSError:
            continue
        try:
            fields = os.read(stat, 1024).rpartition(b") ")[2].split()
            yield int(entry), int(fields[1]), sum(map(int, fields[11:15])) / tick, int(fields[21]) * page
        except (OSError, ValueError, IndexError):  # it has just ended
            continue
        finally:
            os.close(stat)


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


# ---- memory, disks and the machine ------------------------------------------------------------------------------


def free_memory() -> int:
    """Bytes, of this machine and of its container, if that has a limit; 0 if unknown."""
    if not LINUX:
        return free_of(_said("vm_stat")) if MACOS else 0
    found = 0
    try:
        found = int(_value("/proc/meminfo", "MemAvailable:")) << 10
        limit = _read("/sys/fs/cgroup/memory.max").strip()
        if limit != "max":
            used = int(_read("/sys/fs/cgroup/memory.current"))
            cached = int(_value("/sys/fs/cgroup/memory.stat", "inactive_file "))  # of files written before: given up
            found = min(found, int(limit) - used + cached)
    except (OSError, StopIteration, ValueError):
        pass
    return found


def free_of(text: str) -> int:
    """Parse what macOS's `vm_stat` says: pages that are free, or that are given up when somebody wants them."""
    page = re.search(r"page size of (\d+) bytes", text)
    free = sum(map(int, re.findall(r"(?m)^Pages (?:free|inactive|speculative|purgeable): +(\d+)\.", text)))
    return int(page[1]) * free if page else 0


def own_memory() -> int:
    """The bytes of this process that are not backed by a file, on macOS all that it has; 0 if unknown."""
    try:
        if LINUX:
            return int(_value("/proc/self/status", "RssAnon:")) << 10
        return int(_said(f"{_PS}-o rss= -p {os.getpid():d}")) << 10
    except (OSError, StopIteration, ValueError):
        return 0


def boot() -> str:
    """Return the id of this boot of the kernel; "" if unknown. Linux only."""
    try:
        return _read("/proc/sys/kernel/random/boot_id").strip() if LINUX else ""
    except OSError:
        return ""


def file_system(path: str) -> str:
    """Return the type of the file system of a real path; "" if unknown. Linux only."""
    kind, longest = "", -1
    try:
        with open("/proc/self/mountinfo" if LINUX else os.devnull, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                words, _, more = line.partition(" - ")
                mount = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), words.split()[4]).rstrip("/")
                if len(mount) >= longest and (path == mount or path.startswith(mount + "/")):
                    kind, longest = more.split()[0], len(mount)  # a later mount covers an earlier one
    except (OSError, ValueError, IndexError):
        return ""
    return kind


def in_user_namespace() -> bool:
    """Return True if the users of this process are not those of the machine. Linux only."""
    try:
        return LINUX and _read("/proc/self/uid_map").split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def processor() -> str:
    """Return the model and the abilities of this machine's processors; "" if unknown."""
    if not LINUX:
        return _said("sysctl -n machdep.cpu.brand_string") if MACOS else ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return "".join(sorted({line for line in file if line.startswith(("model name", "flags"))}))
    except OSError:
        return ""


@functools.cache
def call(name: str) -> Callable[..., int] | None:
    """A call of Linux that Python does not have, `sync_file_range` or `fallocate`; None where there is none."""
    if not LINUX or sys.maxsize < 1 << 32:  # there the calls have other sizes of places
        return None
    import ctypes

    descriptor, mode, place = ctypes.c_int, ctypes.c_int, ctypes.c_int64
    types = {
        "sync_file_range": (descriptor, place, place, ctypes.c_uint),
        "fallocate": (descriptor, mode, place, place),
    }
    try:
        found: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    found.argtypes = types[name]
    chosen: Callable[..., int] = found
    return chosen


def written_files() -> Iterator[str]:
    """The paths that this process has open for writing; none where the system does not tell. Linux only."""
    try:
        opened = os.listdir("/proc/self/fd") if LINUX else []
    except OSError:
        return
    for name in opened:
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            flags = int(_value(f"/proc/self/fdinfo/{name}", "flags:"), 8)
        except (OSError, ValueError, StopIteration):
            continue
        if flags & os.O_ACCMODE != os.O_RDONLY:
            yield target


# ---- reading ----------------------------------------------------------------------------------------------------


def _said(command: str) -> str:
    """Return what a program of the system says; "" if there is none."""
    with os.popen(f"{command} 2>/dev/null") as output:
        return output.read()


def _value(path: str, begins: str) -> str:
    """The word after the beginning of a line. Raises OSError, StopIteration."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return next(line[len(begins) :].split()[0] for line in file if line.startswith(begins))


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def _shown(pid: int, what: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{what}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _prctl(option: int, value: int) -> None:
    if LINUX:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
