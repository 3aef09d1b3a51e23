"""Cleans a VM after an attempt, for the next one of the same deployment, and doubts it where that did not work.

What the VM has when its first attempt begins is remembered. After an attempt, what was not there is removed:
processes, mounts, containers and files. What was there and is another now, or cannot be removed, is a doubt, and a VM
in doubt is deleted. This is hygiene and no isolation: programs are root on their hosts, and could deceive all of this.

Whatever is wrong here could empty a machine. So all of it is refused on one that our startup script has not made, and
nothing is removed but the content of the places that are named here, each by way of the very folder that was there
before, with no link and no mount on the way.

Stays and is shared, all of it in the agent's own folder: agents, environments, tools, compile cache, data by digest.
Imported only on VMs that may be kept. Knows no job and no lease.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.vm import gpus
from kinetic_orchestration.host.machine.vm.rearming import armed, holders
from kinetic_orchestration.protocol.system import processes
from kinetic_orchestration.protocol.system.folders import open_folder, remove_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BASELINE = "baseline.json"
OF_BOOT = "boot.py"  # the program of the startup script
SHARED = frozenset(("agent", "environments", "cache", "tools", "tier", "kept", "deadline.lock", "console", OF_BOOT))
ARMED = 10.0  # seconds for the armed deadline to take its lock, at the start of a VM
PATIENCE = 30.0  # seconds for processes to die, and for devices to be let go
MOST_FILES = 100_000  # that are remembered; a VM with more is not kept
CACHES = frozenset(("compile", "data", "uv"))  # of the shared `cache`
LEAST_FREE = 0.95  # of the room that was on the disk, once what is shared is taken off
LEAST_ROOM = 0.1  # of it, for the next attempt
PROBE = 1 << 20  # bytes

# Where programs leave something, and how many folders deep it is looked for.
SCRATCH = {"tmp": 64, "var/tmp": 64, "dev/shm": 64, "dev/hugepages": 64, "mnt/huge": 64}
KEPT = {
    "root": 64, "home": 64, "etc": 8, "var/spool/cron": 4, "var/spool/at": 4, "run/systemd/transient": 1,
    "bin": 1, "sbin": 1, "usr/bin": 1, "usr/sbin": 1, "usr/local/bin": 1, "usr/local/sbin": 1, "opt": 1, "srv": 2,
}  # fmt: skip
LOCKS = ("tmp/libtpu_lockfile", "tmp/libtpu.so_lockfile", "tmp/tpu_logs")  # of a libtpu that did not end by itself
# By what is new there the system may have started something, whose processes are no longer known as the job's.
STARTERS = ("etc/cron", "etc/systemd/", "run/systemd/transient/", "var/spool/at/", "var/spool/cron/")
OF_SYSTEM = frozenset(("etc/mtab", "etc/resolv.conf", "etc/hosts", "etc/adjtime", "etc/.pwd.lock"))  # which renews them
# Mounts that a system makes by itself while it runs, and file systems whose content is not this machine's own.
MOUNTS_OF_SYSTEM = ("dev", "proc", "run", "snap", "sys", "var/lib/docker", "var/lib/snapd", "var/snap")
REMOTE = re.compile(r"nfs.*|cifs|smb.*|9p|lustre|ceph|fuse\..*|fuse|virtiofs|glusterfs|beegfs.*|gpfs")
DEVICES = re.compile(r"dev/(?:accel\d+|vfio/.+|nvidia.*)")  # https://cloud.google.com/tpu/docs: TPUs by accel or vfio


class Baseline(NamedTuple):
    """What a VM had before its first attempt.

    Attributes:
        machine: Its boot; after another one it is not known what has run.
        places: Of each folder in which files may be left: its path without links, its file system and its number there.
        files: Of each file that may be left behind by others: size, time of change, mode.
        mounts: Where something is mounted.
        pids: The processes, each with its start.
        containers: Their ids.
        memory: Ids of the memory that processes share by System V's calls.
        free: Bytes on its disk.
        shared: Bytes of what is shared.
    """

    machine: str
    places: dict[str, list[Any]]
    files: dict[str, list[int]]
    mounts: list[str]
    pids: dict[str, str]
    containers: list[str]
    memory: list[int]
    free: int
    shared: int


class Unclean(Exception):
    """Why this VM cannot be kept."""


def remember(folder: str) -> None:
    """Write down in the folder what this VM has, or why it cannot be kept, unless that was done before its first
    attempt. Raises OSError.
    """
    path = os.path.join(folder, BASELINE)
    if os.path.exists(path):
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        _check_is_ours(folder)
        gpus.hold_upgrades(bootstrap.root())  # they would change programs, as a job might
        found = Baseline(
            processes.machine(), _places(), _files(), _mounts(), _pids(), _containers(), _memory(), _free(),
            _size_of_shared(),
        )  # fmt: skip
        fields = found._asdict()
    except Unclean as unclean:
        fields = {"why": str(unclean)}
    with open(f"{path}.part", "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(fields, file, ensure_ascii=False)
    os.replace(f"{path}.part", path)


def clean(folder: str, marker: str) -> None:
    """Remove what the attempt has left on this VM, and check it.

    Args:
        folder: Has what the VM had before its first attempt.
        marker: The variable that all processes of the attempt have.

    Raises:
        Unclean: It cannot be kept.
        OSError: Its disk refuses.
    """
    _check_is_ours(folder)
    before = _recalled(folder)
    _end_processes(marker, before)
    _remove_containers(before)
    _remove_memory(before)
    _unmount(before)
    _await_devices(before)
    _remove_files(before)
    _remove_own()
    _check_disk(before)


def _check_is_ours(folder: str) -> None:
    """Raise Unclean unless this machine is a VM that our startup script has made.

    Its agent's folder is where that script has it, with the script's program in it, and a process of it holds the
    deadline at which the VM is deleted. So a machine on which somebody runs an agent by hand is never cleaned.
    """
    root, home = os.path.realpath(bootstrap.root()), os.path.realpath(bootstrap.home())
    is_its_home = home == os.path.join(root, "var", "lib", "kinetic") and _is_own(home, stat.S_ISDIR)
    kept_there = os.path.dirname(os.path.realpath(folder)) == home
    if not (is_its_home and kept_there and _is_own(os.path.join(home, OF_BOOT), stat.S_ISREG)):
        raise Unclean("it is no machine that a startup script of ours has made")
    deadline = time.monotonic() + ARMED
    while not armed():
        if time.monotonic() > deadline:
            raise Unclean("its deletion is not armed")
        time.sleep(0.02)


def _is_own(path: str, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return is_kind(status.st_mode) and status.st_uid == os.geteuid()


def _recalled(folder: str) -> Baseline:
    try:
        with open(os.path.join(folder, BASELINE), encoding="utf-8", errors="surrogateescape") as file:
            fields = json.load(file)
        if "why" in fields:
            raise Unclean(fields["why"])
        before = Baseline(**fields)
    except (OSError, ValueError, TypeError):
        raise Unclean("what it had before its first job is not known") from None
    if before.machine != processes.machine():
        raise Unclean("it was restarted (another boot id)")
    return before


# ---- processes -------------------------------------------------------------------------------------------------


def _pids() -> dict[str, str]:
    """Return all processes but those of this very host, of which none must be left."""
    found = (processes.find(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    ours = {os.getpid(), *(process.pid for process in processes.descendants(os.getpid()))}
    return {str(one.pid): one.started for one in found if one is not None and one.pid not in ours}


def _end_processes(marker: str, before: Baseline) -> None:
    """End all processes that this process has below it, that the job has marked, or that have come beside it."""
    deadline = time.monotonic() + PATIENCE
    if left := processes.end_descendants(os.getpid(), PATIENCE):
        raise Unclean(f"its processes {left} did not end")
    while strange := _strangers(marker, before):
        if time.monotonic() > deadline:
            raise Unclean(f"its processes {sorted(strange)} did not end")
        for pid in strange:
            processes.send(pid, 9)
        time.sleep(0.02)


def _strangers(marker: str, before: Baseline) -> set[int]:
    """Return the processes that a job has left outside of this process's descendants.

    On an emulated VM all processes with its root in their environment are its own; on a real one, those in the same
    control group: the programs of a startup script are in one with it, and system services each have their own.
    """
    known = _own() | armed()
    root = os.environ.get("KINETIC_ROOT", "")
    mine = b"" if root else _group(os.getpid())
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in known:
            continue
        process = processes.find(int(entry))
        if process is None or process.zombie or before.pids.get(entry) == process.started:
            continue
        environ = processes.environ_of(process.pid)
        beside = f"KINETIC_ROOT={root}".encode() in environ if root else bool(mine) and _group(process.pid) == mine
        if marker.encode() in environ or beside:
            found.add(process.pid)
    return found


def _own() -> set[int]:
    """Return this process and those that it descends from."""
    found, pid = set(), os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        process = processes.find(pid)
        pid = 0 if process is None else process.parent
    return found


def _group(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _await_devices(before: Baseline) -> None:
    """Wait until no process holds an accelerator but those that did before the first job."""
    root, deadline = os.path.realpath(bootstrap.root()), time.monotonic() + PATIENCE

    def is_device(path: str) -> bool:
        return path.startswith("/") and bool(DEVICES.fullmatch(os.path.relpath(path, root)))

    while held := {pid for pid in holders(is_device) if str(pid) not in before.pids}:
        if time.monotonic() > deadline:
            raise Unclean(f"its processes {sorted(held)} hold its devices")
        time.sleep(0.1)


# ---- containers, mounts, shared memory -------------------------------------------------------------------------


def _docker(*words: str) -> list[str]:
    """Return the lines that docker answers; none where there is no docker that runs. Raises Unclean."""
    import shutil
    import subprocess

    docker = shutil.which("docker")
    if docker is None or not os.path.exists(os.path.join(bootstrap.root(), "var", "run", "docker.sock")):
        return []
    try:
        done = subprocess.run(
            [docker, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unclean(f"its docker does not answer: {error}") from None
    if done.returncode:
        raise Unclean(f"its docker does not answer: {done.stderr.strip()[-200:]}")
    return done.stdout.split()


def _containers() -> list[str]:
    return _docker("ps", "--all", "--quiet", "--no-trunc")


def _remove_containers(before: Baseline) -> None:
    if more := set(_containers()) - set(before.containers):
        _docker("rm", "--force", "--volumes", *sorted(more))
        if left := set(_containers()) - set(before.containers):
            raise Unclean(f"its containers {', '.join(sorted(left))} could not be removed")


def _mounted() -> list[tuple[str, str]]:
    """Return where something is mounted below the VM's root, and of which type."""
    root = os.path.realpath(bootstrap.root())
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split(" ") for line in file]
    except OSError:
        return []
    found = [(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), row[1]), row[2]) for row in rows]
    return [one for one in found if one[0] == root or _is_below(one[0], root)]


def _mounts() -> list[str]:
    """Return where something is mounted that a program may have mounted, such as anywhere in scratch."""
    root = os.path.realpath(bootstrap.root())
    of_system = tuple(f"{os.path.join(root, place)}/" for place in MOUNTS_OF_SYSTEM)
    scratch = tuple(f"{os.path.join(root, place)}/" for place in SCRATCH)
    return [path for path, _ in _mounted() if path.startswith(scratch) or not f"{path}/".startswith(of_system)]


def _unmount(before: Baseline) -> None:
    from collections import Counter

    def more() -> list[str]:
        left = Counter(_mounts()) - Counter(before.mounts)
        return sorted(left.elements(), reverse=True)

    if not (new := more()):
        return
    import subprocess

    for path in new:
        subprocess.run(["umount", "--lazy", path], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if left := more():
        raise Unclean(f"{', '.join(left)} could not be unmounted")


def _memory() -> list[int]:
    """Return the ids of System V's shared memory. That of an emulated VM is this whole machine's, and left alone."""
    if os.environ.get("KINETIC_ROOT"):
        return []
    try:
        with open("/proc/sysvipc/shm", encoding="ascii") as file:
            return [int(line.split()[1]) for line in list(file)[1:]]
    except (OSError, ValueError, IndexError):
        return []


def _remove_memory(before: Baseline) -> None:
    if more := set(_memory()) - set(before.memory):
        import ctypes

        remove = ctypes.CDLL(None).shmctl
        for number in more:
            remove(number, 0, None)  # IPC_RMID
        if left := set(_memory()) - set(before.memory):
            raise Unclean(f"its shared memory {sorted(left)} could not be removed")


# ---- files -----------------------------------------------------------------------------------------------------


def _places() -> dict[str, list[Any]]:
    """Return which folder is at each of the places that the VM has. Raises Unclean."""
    found: dict[str, list[Any]] = {}
    for place in (*SCRATCH, *KEPT):
        full = os.path.join(bootstrap.root(), place)
        real = os.path.realpath(full)
        try:
            status = os.lstat(real)
        except FileNotFoundError:
            if os.path.lexists(full):
                raise Unclean(f"/{place} leads nowhere") from None
            continue
        except OSError as error:
            raise Unclean(f"/{place} cannot be looked at: {error.strerror}") from None
        if not stat.S_ISDIR(status.st_mode):
            raise Unclean(f"/{place} is no folder")
        found[place] = [real, status.st_dev, status.st_ino]
    return found


def _files() -> dict[str, list[int]]:
    """Return the facts of all files where programs leave some, by their paths below the root. Raises Unclean."""
    found: dict[str, list[int]] = {}
    remote = [path for path, kind in _mounted() if REMOTE.fullmatch(kind)]
    for place, depth in {**SCRATCH, **KEPT}.items():
        for path, status in _walk(place, depth, remote):
            is_folder = stat.S_ISDIR(status.st_mode)  # whose size and time change with what is in it
            found[path] = [0 if is_folder else status.st_size, 0 if is_folder else status.st_mtime_ns, status.st_mode]
            if len(found) > MOST_FILES:
                raise Unclean(f"it has more than {MOST_FILES:,} files where programs may leave some")
    return found


def _walk(place: str, depth: int, remote: Sequence[str] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a folder of the VM, if it has that, and what is in it, each folder before its content. Raises Unclean: what
    cannot be listed now may be listed later, and would then be taken for new.

    Links are not followed, nor is anything left that the VM has as its own: file systems that are mounted inside are
    skipped, as others may use what they have.
    """
    root = os.path.realpath(bootstrap.root())
    full = os.path.join(root, place)
    real = os.path.realpath(full)
    try:
        status = os.lstat(full)
        yield place, status
        own = os.lstat(real).st_dev
    except FileNotFoundError:  # there is none
        return
    except OSError as error:
        raise Unclean(f"/{place} cannot be looked at: {error.strerror}") from None
    if _is_below(real, root) and not any(f"{real}/".startswith(f"{path}/") for path in remote):
        yield from _walk_inside(place, depth, own)


def _is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")


def _walk_inside(place: str, depth: int, device: int) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(os.path.join(bootstrap.root(), place)) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):  # it is gone, or no folder
        return
    except OSError as error:
        raise Unclean(f"/{place} cannot be looked at: {error.strerror}") from None
    for entry in inside:
        path = f"{place}/{entry.name}"
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Unclean(f"/{path} cannot be looked at: {error.strerror}") from None
        yield path, status
        if depth > 1 and stat.S_ISDIR(status.st_mode) and status.st_dev == device:
            yield from _walk_inside(path, depth - 1, device)


def _remove_files(before: Baseline) -> None:
    """Remove what was not there before, and of scratch what was changed. Raises Unclean for anything else changed."""
    now = _files()
    new = [path for path in now if path not in before.files and path not in OF_SYSTEM]
    changed = [path for path, facts in now.items() if before.files.get(path, facts) != facts and path not in OF_SYSTEM]
    scratch = tuple(f"{place}/" for place in SCRATCH)
    if starters := [path for path in new if path.startswith(STARTERS)]:
        raise Unclean(f"/{starters[0]} is new, by which the system may have started something")
    if spoilt := [path for path in changed if not path.startswith(scratch)]:
        raise Unclean(f"/{spoilt[0]} was changed")
    if gone := [path for path in before.files if path not in now and not path.startswith(scratch)]:
        raise Unclean(f"/{gone[0]} was removed")
    if moved := [place for place, found in _places().items() if before.places.get(place) != found]:
        raise Unclean(f"/{moved[0]} {'was changed' if moved[0] in before.places else 'was not there before'}")
    _check_unmounted({*new, *changed})
    for path in (*LOCKS, *new, *changed):
        _remove(path, before)
    if left := {*new, *changed} & _files().keys():
        raise Unclean(f"/{min(left)} could not be removed")


def _check_unmounted(paths: set[str]) -> None:
    """Raise Unclean if something is mounted at or below one of these paths: it is not theirs."""
    root = os.path.realpath(bootstrap.root())
    for mount, _ in _mounted():
        words = os.path.relpath(mount, root).split("/")
        if held := paths & {"/".join(words[:count]) for count in range(1, len(words) + 1)}:
            raise Unclean(f"/{min(held)} cannot be removed: something is mounted in it")


def _remove(path: str, before: Baseline) -> None:
    """Remove what is at a path below one of the places, and never a place itself. Raises Unclean.

    It starts at the folder that was there before the first attempt, and opens each other one from the one above it.
    """
    place = next((one for one in before.places if path.startswith(f"{one}/")), "")
    if not place:
        if path in LOCKS:  # the VM has no such folder
            return
        raise Unclean(f"/{path} is in none of the places from which anything is removed")
    real, device, number = before.places[place]
    *above, name = path[len(place) + 1 :].split("/")
    folder = -1
    try:
        folder = open_folder(real)
        status = os.fstat(folder)
        if (status.st_dev, status.st_ino) != (device, number) or not _is_below(
            real, os.path.realpath(bootstrap.root())
        ):
            raise Unclean(f"/{place} was changed")
        for one in above:
            if one in ("", ".", ".."):
                raise Unclean(f"/{path} is no path from which anything is removed")
            outer, folder = folder, open_folder(one, folder)
            os.close(outer)
            if os.fstat(folder).st_dev != device:
                raise Unclean(f"/{path} cannot be removed: something is mounted in it")
        remove_entry(folder, name, device)
    except FileNotFoundError:  # it is gone with its folder
        pass
    except OSError as error:
        raise Unclean(f"/{path} could not be removed: {error.strerror}") from None
    finally:
        if folder >= 0:
            os.close(folder)


def _remove_own() -> None:
    """Remove from the agent's folder all that is not shared. Raises Unclean."""
    home = os.path.realpath(bootstrap.home())
    for folder, shared in ((home, SHARED), (os.path.join(home, "cache"), CACHES)):
        try:
            opened = open_folder(folder)
        except FileNotFoundError:
            continue
        try:
            for name in set(os.listdir(opened)) - shared:
                remove_entry(opened, name, os.fstat(opened).st_dev)
        except OSError as error:
            raise Unclean(f"{folder} could not be emptied: {error}") from None
        finally:
            os.close(opened)


def _size_of_shared() -> int:
    home = os.path.relpath(bootstrap.home(), bootstrap.root())
    return sum(status.st_blocks * 512 for name in SHARED for _, status in _walk(f"{home}/{name}", 64))


def _free() -> int:
    """Return the bytes that are free on the VM's own disk; 0 on an emulated one that shares this machine's."""
    if not os.path.ismount(bootstrap.root()):
        return 0
    found = os.statvfs(bootstrap.root())
    return found.f_bavail * found.f_frsize


def _check_disk(before: Baseline) -> None:
    """Raise Unclean if room is missing that nothing shared explains, and OSError if nothing can be written."""
    for folder in (bootstrap.home(), os.path.join(bootstrap.root(), "tmp")):
        probe = os.path.join(folder, "kinetic-probe")
        with open(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
        os.unlink(probe)
    grown = max(0, _size_of_shared() - before.shared)
    free = _free()
    if free + grown < LEAST_FREE * before.free:
        lost = before.free - free - grown
        raise Unclean(f"{lost / 1e6:,.0f} MB of its disk are used up by what was not found")
    if free < LEAST_ROOM * before.free:
        raise Unclean(f"its disk has only {free / 1e6:,.0f} MB left beside data, environments and caches")
