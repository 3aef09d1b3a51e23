"""Finds the mounts of a VM that may be kept, and ends those of a job."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import NamedTuple

from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean, is_below, real_root

# Mounts that a system makes by itself while it runs, and file systems whose content is not this machine's own.
OF_SYSTEM = ("dev", "proc", "run", "snap", "sys", "var/lib/docker", "var/lib/snapd", "var/snap")
REMOTE = re.compile(r"nfs.*|cifs|smb.*|9p|lustre|ceph|fuse\..*|fuse|virtiofs|glusterfs|beegfs.*|gpfs")
# Of the folders above: those of the kernel, and what may come to be mounted there when somebody looks, by its type.
OF_KERNEL = ("dev", "proc", "sys")
BY_ITSELF = frozenset(
    ("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl",
     "hugetlbfs", "mqueue", "pstore", "securityfs", "tracefs")
)  # fmt: skip
SCRATCH = ("dev/shm", "dev/hugepages")  # of the kernel's folders, in which programs write
DETACH = 2  # MNT_DETACH of umount2(2)


class Mount(NamedTuple):
    path: str
    kind: str
    options: str


def mounted() -> list[Mount]:
    """Return what is mounted at the VM's root or below, in the order in which it was mounted."""
    root = real_root()
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        return []
    found = [Mount(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), row[1]), row[2], row[3]) for row in rows]
    return [one for one in found if one.path == root or is_below(one.path, root)]


def elsewhere() -> list[str]:
    """Return where file systems are mounted whose content is not this machine's own."""
    return [one.path for one in mounted() if REMOTE.fullmatch(one.kind)]


def remember() -> list[list[str]]:
    """Return what is mounted, but for what a system mounts by itself."""
    return [list(one) for one in _by_programs()]


def end(before: list[list[str]]) -> None:
    """Unmount what was not mounted before. Raises Unclean if that fails, or if anything else is mounted otherwise."""
    paths = Counter(path for path, *_ in before)
    if new := _more(paths):
        import ctypes

        libc = ctypes.CDLL(None)
        for path in new:  # the deepest first, and a name that has several once for each
            libc.umount2(os.fsencode(path), DETACH)
    if left := _more(paths):
        raise Unclean(f"{', '.join(left)} could not be unmounted")
    check(before)


def check(before: list[list[str]]) -> None:
    """Raise Unclean for what a job may not have mounted or unmounted, or may have mounted with other options."""
    now = Counter(one.path for one in _by_programs())
    if gone := Counter(path for path, *_ in before) - now:
        raise Unclean(f"{min(gone)} is not mounted any longer")
    facts = Counter(tuple(one) for one in before)
    old = {path for path, *_ in before}
    if other := [one for one in _by_programs() if one.path in old and not facts[tuple(one)] and _is_alone(one.path)]:
        raise Unclean(f"{other[0].path} was mounted otherwise, with {other[0].options}")


def _is_alone(path: str) -> bool:
    return sum(one.path == path for one in _by_programs()) == 1


def _more(before: Counter[str]) -> list[str]:
    return sorted((Counter(one.path for one in _by_programs()) - before).elements(), reverse=True)


def _by_programs() -> list[Mount]:
    """Return what a program may have mounted, such as anything in scratch."""
    root = real_root()

    def within(places: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{os.path.join(root, place)}/" for place in places)

    system, kernel, scratch = within(OF_SYSTEM), within(OF_KERNEL), within(SCRATCH)
    found = []
    for one in mounted():
        is_odd = f"{one.path}/".startswith(kernel) and one.kind not in BY_ITSELF
        is_place = f"{one.path}/" in (*kernel, *scratch)
        if one.path.startswith(scratch) or (is_odd and not is_place) or not f"{one.path}/".startswith(system):
            found.append(one)
    return found
