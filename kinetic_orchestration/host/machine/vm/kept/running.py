"""The processes of a VM that may be kept: ends those of a job, and doubts all others that came with it."""

from __future__ import annotations

import json
import os
import re
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean, is_emulated, real_root
from kinetic_orchestration.host.machine.vm.rearming import ARMED, armed, holders
from kinetic_orchestration.protocol.system import processes

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE = 30.0  # seconds for processes to die, and for devices to be let go
LINGERS = 10.0  # seconds for those of the system to end by themselves, such as the commands of a timer
OF_KERNEL = 0x00200000  # PF_KTHREAD in /proc/PID/stat, which no program can have
DEVICES = re.compile(r"dev/(?:accel\d+|vfio/.+|nvidia.*)")  # https://cloud.google.com/tpu/docs: TPUs by accel or vfio
# Programs of services, which a system starts late or again, as children of its first process. Interpreters and shells
# are in /usr/bin.
DAEMONS = re.compile(
    r"/(?:usr/)?(?:sbin|lib|libexec)/.+|/usr/bin/(?:containerd|dbus-daemon|dockerd|google_[a-z_]+|nv(?:idia)?-[a-z]+)"
    r"|/snap/snapd/.+|/opt/google-cloud-ops-agent/.+"
)
OF_SYSTEMD = re.compile(r"/(?:usr/)?lib/systemd/.+|/(?:usr/)?bin/udevadm")  # whose own children are of this kind, too
# Services of Ubuntu and Debian that are written in Python.
SCRIPTS = ("/usr/bin/networkd-dispatcher", "/usr/share/unattended-upgrades/unattended-upgrade-shutdown")
PYTHON = re.compile(r"/usr/bin/python3(?:\.\d+)?")


def remember() -> dict[str, str]:
    """Return all processes, each with its start, but those of this very host, of which none must be left."""
    found = (processes.find(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    ours = {os.getpid(), *(process.pid for process in processes.descendants(os.getpid()))}
    return {str(one.pid): one.started for one in found if one is not None and one.pid not in ours}


def end(marker: str, before: Mapping[str, str], folder: str) -> None:
    """End all processes that this process has below it, that the job has marked, or that have come beside it. Raises
    Unclean if one does not end."""
    deadline = time.monotonic() + PATIENCE
    if left := processes.end_descendants(os.getpid(), PATIENCE):
        raise Unclean(f"its processes {left} did not end")
    while strange := _of_job(marker, before, folder):
        if time.monotonic() > deadline:
            raise Unclean(f"its processes {sorted(strange)} did not end")
        for pid in strange:
            processes.send(pid, 9)
        time.sleep(0.02)


def check(before: Mapping[str, str], folder: str) -> None:
    """Raise Unclean for a process that is neither of before nor a service of the system. None is ended: it may be one
    of the system all the same. An emulated VM cannot tell them from those of its machine."""
    deadline = time.monotonic() + LINGERS
    while not is_emulated() and (strange := _others(before, folder)):
        if time.monotonic() > deadline:
            pid, program = min(strange.items())
            raise Unclean(f"process {pid} ({program}) is new, and neither a service of the system nor known as a job's")
        time.sleep(0.1)


def await_devices(before: Mapping[str, str]) -> None:
    """Wait until no process holds an accelerator but those that did before the first job. Raises Unclean."""
    root, deadline = real_root(), time.monotonic() + PATIENCE

    def is_device(path: str) -> bool:
        return path.startswith("/") and bool(DEVICES.fullmatch(os.path.relpath(path, root)))

    while held := {pid for pid in holders(is_device) if not was_there(pid, before)}:
        if time.monotonic() > deadline:
            raise Unclean(f"its processes {sorted(held)} hold its devices")
        time.sleep(0.1)


def was_there(pid: int, before: Mapping[str, str]) -> bool:
    """Return True for a process of before, and not for another one with its number."""
    process = processes.find(pid)
    return process is not None and before.get(str(pid)) == process.started


def is_service(pid: int) -> bool:
    """Return True for a program that systems run as services, by what the kernel says of it: where its program is, and
    who started it. Root can have another process look like one."""
    program, process = program_of(pid), processes.find(pid)
    if OF_SYSTEMD.fullmatch(program):
        return True
    if process is None or process.parent != 1:
        return False
    if PYTHON.fullmatch(program):
        return any(word in SCRIPTS for word in _words(pid)[1:3])
    return bool(DAEMONS.fullmatch(program))


def program_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _words(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def _known(before: Mapping[str, str], folder: str) -> set[int]:
    """Return this process, those that it descends from, and the one that deletes the slice at the deadline. Not every
    process that has that one's lock is it: it was there before, or this host has started it since."""
    try:
        with open(os.path.join(folder, ARMED), encoding="ascii") as file:
            since = json.load(file)
    except (OSError, ValueError):
        since = {}
    found, pid = {one for one in armed() if was_there(one, before) or was_there(one, since)}, os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        process = processes.find(pid)
        pid = 0 if process is None else process.parent
    return found


def _came(before: Mapping[str, str], folder: str) -> list[processes.Process]:
    known = _known(before, folder)
    found = (processes.find(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [
        one
        for one in found
        if one is not None and not one.zombie and one.pid not in known and before.get(str(one.pid)) != one.started
    ]


def _of_job(marker: str, before: Mapping[str, str], folder: str) -> set[int]:
    """Return the processes that a job has left outside of this process's descendants.

    On an emulated VM all processes with its root in their environment are its own; on a real one, those in the same
    control group or below it: the programs of a startup script are in one with it, and system services each have their
    own.
    """
    root = os.environ.get("KINETIC_ROOT", "")
    mine = "" if root else group_of(os.getpid())
    found = set()
    for process in _came(before, folder):
        environ = processes.environ_of(process.pid)
        beside = f"KINETIC_ROOT={root}".encode() in environ if root else _is_within(group_of(process.pid), mine)
        if marker.encode() in environ or beside:
            found.add(process.pid)
    return found


def _others(before: Mapping[str, str], folder: str) -> dict[int, str]:
    found = {}
    for process in _came(before, folder):
        if not _is_of_kernel(process.pid) and not is_service(process.pid):
            found[process.pid] = program_of(process.pid) or "?"
    return {pid: program for pid, program in found.items() if processes.find(pid) is not None}


def _is_of_kernel(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
        return bool(int(text[text.rindex(")") + 2 :].split(" ")[6]) & OF_KERNEL)
    except (OSError, ValueError, IndexError):
        return False


def _is_within(group: str, mine: str) -> bool:
    return bool(mine) and (group == mine or group.startswith(f"{mine}/"))


def group_of(pid: int) -> str:
    """Return the control group of a process that is a service or a scope, with all below it; "" if it is in none, where
    nobody can tell which processes have come with it."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return ""
    for path in (row[2] for name in ("", "name=systemd") for row in rows if len(row) == 3 and row[1] == name):
        if re.search(r"\.(?:service|scope)(?:/|$)", path):
            return path
    return ""
