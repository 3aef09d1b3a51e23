"""Cleans the kernel of a VM that may be kept, beside its processes and mounts: removes a job's shared memory,
semaphores and queues, and doubts what else of it is another.

Compared is what /proc and /sys show as text. Rules of the packet filter, programs of BPF and tracing are shown there by
no list, and are not compared.
"""

from __future__ import annotations

import glob
import os
import re
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine.vm.kept import running
from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean, is_emulated
from kinetic_orchestration.host.machine.vm.rearming import holders

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST = 4096  # bytes of a setting

# By these the kernel itself starts programs, or they weaken or starve what comes later.
SETTINGS = (
    *(f"/proc/sys/{name}" for name in (
        "fs/protected_symlinks", "fs/suid_dumpable", "kernel/core_pattern", "kernel/domainname", "kernel/hostname",
        "kernel/hotplug", "kernel/modprobe", "kernel/poweroff_cmd", "kernel/randomize_va_space",
        "kernel/yama/ptrace_scope", "vm/nr_hugepages", "vm/overcommit_memory",
    )),
    "/proc/sys/fs/binfmt_misc/*", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/*/release_agent",
)  # fmt: skip
LIMITS = ("cgroup.freeze", "cpu.max", "cpuset.cpus", "io.max", "memory.high", "memory.max", "pids.max")
DOCKERS = re.compile(r"docker0|veth.*|br-[0-9a-f]{12}")  # interfaces of networks and containers
LISTENS, UNCONNECTED = "0A", "07"  # states of sockets of TCP and UDP
PASSING = 32768  # from this port on, UDP gives them to whoever asks: net.ipv4.ip_local_port_range
ACCEPTS = 0x10000  # of the flags of a UNIX socket: it listens
FOREIGN = re.compile(r"\((?=[^)]*[OE])[^)]*\)$")  # a module from outside of the kernel's tree, or without a signature
DRIVERS = re.compile(r"nvidia.*|gdrdrv|gasket|apex|gve|lustre|lnet|ksocklnd")  # such that images and disks bring along
SECRETS = frozenset(("user", "logon", "big_key", "encrypted", "trusted"))  # kinds of keys that hold something
IPC = {"shm": "shared memory", "sem": "semaphores", "msg": "message queues"}
IPC_RMID = 0


def remember() -> dict[str, list[str]]:
    """Return what this machine's kernel has, by its kind; nothing on an emulated VM, whose kernel is others', too."""
    if is_emulated():
        return {}
    found: dict[str, list[str]] = {kind: [str(one) for one in _ipc(kind)] for kind in IPC}
    found |= {
        "setting": _settings(), "limit": _limits(), "control group": _groups(), "interface": _interfaces(),
        "route": _routes(), "swap": _swaps(), "module": foreign(_text("/proc/modules")), "key": _keys(),
        "socket": sorted(_sockets()),
    }  # fmt: skip
    return found


def remove(before: Mapping[str, list[str]]) -> None:
    """Remove what processes have shared by System V's calls, and have not removed. Raises Unclean."""
    if is_emulated():
        return
    import ctypes

    libc = ctypes.CDLL(None)
    calls = {
        "shm": lambda number: libc.shmctl(number, IPC_RMID, None),
        "sem": lambda number: libc.semctl(number, 0, IPC_RMID),
        "msg": lambda number: libc.msgctl(number, IPC_RMID, None),
    }
    for kind, name in IPC.items():
        old = {int(one) for one in before[kind]}
        for number in _ipc(kind) - old:
            calls[kind](number)
        if left := _ipc(kind) - old:
            raise Unclean(f"its {name} {sorted(left)} could not be removed")


def check(before: Mapping[str, list[str]], pids: Mapping[str, str]) -> None:
    """Raise Unclean for what is another than before. Of sockets and networks only what is new counts, and not that of a
    service that the system has started meanwhile."""
    if is_emulated():
        return
    now = remember()
    for kind in ("setting", "limit", "route", "swap"):
        if other := set(now[kind]) ^ set(before[kind]):
            raise Unclean(f"a {kind} of its kernel is another now: {min(other)}")
    for kind in ("control group", "interface", "module", "key"):
        if more := set(now[kind]) - set(before[kind]):
            raise Unclean(f"there is a new {kind} in its kernel: {min(more)}")
    sockets = _sockets()
    for name in sorted(sockets.keys() - set(before["socket"])):
        if not _is_of_service(sockets[name], pids):
            raise Unclean(f"something listens that did not before: {name}")


def _is_of_service(numbers: set[str], pids: Mapping[str, str]) -> bool:
    """Return True if only this process has these sockets, or services that were not there before."""
    ends = {f"socket:[{number}]" for number in numbers}
    found = holders(lambda path: path in ends) - {os.getpid()}
    held = {os.readlink(f"/proc/self/fd/{end}") for end in _own_ends()} & ends
    services = all(running.is_service(pid) and not running.was_there(pid, pids) for pid in found)
    return services and bool(found or held == ends)


def _own_ends() -> list[str]:
    return [end for end in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{end}")]


def _text(path: str) -> str:
    """Return what the kernel tells in a file; "" where it has no such file."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _rows(path: str) -> list[list[str]]:
    """Return the words of each line but the first, which names them."""
    return [line.split() for line in _text(path).splitlines()[1:]]


def _ipc(kind: str) -> set[int]:
    return {int(row[1]) for row in _rows(f"/proc/sysvipc/{kind}") if len(row) > 1}


def _settings() -> list[str]:
    paths = [path for pattern in SETTINGS for path in glob.glob(pattern)]
    return sorted(f"{path}={' '.join(_text(path)[:LARGEST].split())}" for path in paths)


def _group() -> str:
    """Return the folder of this process's control group; "" where there is none that a service has alone."""
    group = running.group_of(os.getpid())
    tops = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
    return next((f"{top}{group}" for top in tops if group and os.path.isdir(f"{top}{group}")), "")


def _limits() -> list[str]:
    group = _group()
    return sorted(f"{name}={' '.join(_text(f'{group}/{name}').split())}" for name in LIMITS if group)


def _groups() -> list[str]:
    """Return the control groups below this process's."""
    group = _group()
    found = [folder for folder, _, _ in os.walk(group)] if group else []
    return sorted(os.path.relpath(folder, group) for folder in found if folder != group)


def _interfaces() -> list[str]:
    names = (line.partition(":")[0].strip() for line in _text("/proc/net/dev").splitlines()[2:])
    return sorted(name for name in names if not DOCKERS.fullmatch(name))


def _routes() -> list[str]:
    """Return interface, destination, gateway and mask."""
    rows = [row for row in _rows("/proc/net/route") if len(row) > 7 and not DOCKERS.fullmatch(row[0])]
    return sorted(" ".join((row[0], row[1], row[2], row[7])) for row in rows)


def _swaps() -> list[str]:
    return sorted(row[0] for row in _rows("/proc/swaps") if row)


def foreign(modules: str) -> list[str]:
    """Return the modules that are not of the kernel's own tree: of these it loads some when a program first needs them.

    Args:
        modules: As in /proc/modules.
    """
    lines = [line for line in modules.splitlines() if FOREIGN.search(line)]
    return sorted(line.split()[0] for line in lines if not DRIVERS.fullmatch(line.split()[0]))


def _keys() -> list[str]:
    rows = [line.split() for line in _text("/proc/keys").splitlines()]
    return sorted(f"{row[0]} {row[7]}" for row in rows if len(row) > 7 and row[7] in SECRETS)


def _sockets() -> dict[str, set[str]]:
    """Return at which ports and abstract names something listens, and the numbers of the sockets."""
    found: dict[str, set[str]] = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for row in (row for row in _rows(f"/proc/net/{kind}") if len(row) > 9):
            address, _, port = row[1].rpartition(":")
            is_open = row[3] == (LISTENS if kind.startswith("tcp") else UNCONNECTED)
            if is_open and (kind.startswith("tcp") or int(port, 16) < PASSING):
                found.setdefault(f"{kind} port {int(port, 16)} of {address}", set()).add(row[9])
    for row in (row for row in _rows("/proc/net/unix") if len(row) > 7 and row[7].startswith("@")):
        if int(row[3], 16) & ACCEPTS:
            found.setdefault(f"unix {row[7]}", set()).add(row[6])
    return found
