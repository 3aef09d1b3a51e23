"""The files of a VM that may be kept: finds what a job has left or changed, and removes what is the job's own.

Removed are only files in scratch folders and in home folders, which a program writes as a matter of course, each by way
of the very folder that was there before, with no link and no mount on the way. Whatever else is new, changed or gone is
a doubt: nothing of the system is ever removed or put back.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic_orchestration.host.machine import bootstrap
from kinetic_orchestration.host.machine.vm.kept import mounts
from kinetic_orchestration.host.machine.vm.kept.doubt import Unclean, is_below, real_root
from kinetic_orchestration.protocol.system.folders import open_folder, remove_entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_FILES = 100_000  # that are remembered; a VM with more is not kept
MOST_CODE = 1_000_000  # that are looked at for programs and libraries
DEEP = 64

# Where programs leave something, and how many folders deep it is looked for.
SCRATCH = {"tmp": DEEP, "var/tmp": DEEP, "dev/shm": DEEP, "dev/hugepages": DEEP, "mnt/huge": DEEP, "dev/mqueue": 1}
HOMES = {"root": DEEP, "home": DEEP}
# Where nothing may be new, changed or gone. What runs at a boot alone is not there: a restarted VM is not kept.
SYSTEM = {
    "etc": 8, "var/spool/cron": 4, "var/spool/at": 4, "var/crash": 1, "var/lib/systemd/coredump": 1,
    "var/lib/systemd/linger": 1, "run/systemd/transient": 1, "run/systemd/system": 2, "run/netns": 1,
    "bin": 1, "sbin": 1, "usr/bin": 1, "usr/sbin": 1, "usr/local/bin": 1, "usr/local/sbin": 1, "opt": 1, "srv": 2,
}  # fmt: skip
PLACES = {**SCRATCH, **HOMES, **SYSTEM}
# Programs and libraries, too many to be remembered: nothing there may have been changed since the first attempt.
CODE = ("usr/lib", "usr/lib32", "usr/lib64", "usr/libexec", "usr/local", "lib", "lib32", "lib64", "opt")
GCLOUD = re.compile(r"usr/lib/google-cloud-sdk(?:/.*)?")  # root's gcloud compiles itself there when it first runs
LOCKS = ("tmp/libtpu_lockfile", "tmp/libtpu.so_lockfile", "tmp/tpu_logs")  # of a libtpu that did not end by itself
# By what is new there the system may have started something, whose processes are no longer known as the job's.
STARTERS = ("etc/cron", "etc/systemd/", "run/systemd/", "var/spool/at/", "var/spool/cron/", "var/lib/systemd/linger/")
OF_SESSIONS = re.compile(
    r"(?:root|home/[^/]+)/(?:\.ssh/(?:authorized_keys.*|rc|environment)|\.config/(?:systemd|autostart)/.+"
    r"|\.local/share/systemd/.+)|(?:var/)?tmp/systemd-private-[^/]+"
)
# What a running system writes in /etc by itself: leases of DHCP renew these two with what they had (compared by their
# content), mounts are told in the third, hwclock keeps its drift, and tools for accounts create an empty lock.
RENEWED = frozenset(("etc/resolv.conf", "etc/hosts"))
OF_SYSTEM = frozenset(("etc/mtab", "etc/adjtime", "etc/.pwd.lock"))
LARGEST = 1 << 20  # bytes of a file that is compared by its content


class Files(NamedTuple):
    """The files of a VM before its first attempt.

    Attributes:
        places: Of each folder in which files may be left: its path without links, its file system and its number there.
        facts: Of each file that may be left behind by others: what is another if it was changed.
        since: When that was, in nanoseconds by the clock that files are dated by.
    """

    places: dict[str, list[Any]]
    facts: dict[str, list[Any]]
    since: int


def remember(since: int) -> Files:
    """Return what the VM has now. Raises Unclean."""
    return Files(_places(), _facts(), since)


def check(before: Files) -> None:
    """Raise Unclean for all that nobody but the system may write."""
    _left(before)
    for path, status in _code():
        if status.st_ctime_ns > before.since and not GCLOUD.fullmatch(path):
            raise Unclean(f"/{path} was changed, which is of the system")


def clear(before: Files, shared: Sequence[str] = ()) -> None:
    """Remove what is the job's own: from home folders what was not there before, from scratch also what was changed.
    All below the shared folders stays. Raises Unclean."""
    stays = [f"{os.path.relpath(path, bootstrap.root())}/" for path in shared]
    left = {path for path in _left(before) if not any(f"{path}/".startswith(one) for one in stays)}
    _check_unmounted(left)
    for path in (*LOCKS, *sorted(left)):
        _remove(path, before)
    if kept := left & _facts().keys():
        raise Unclean(f"/{min(kept)} could not be removed")


def walk(place: str, depth: int, remote: Sequence[str] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a folder of the VM, if it has that, and what is in it, each folder before its content. Raises Unclean: what
    cannot be listed now may be listed later, and would then be taken for new.

    Links are not followed, nor is anything left that the VM has as its own: file systems that are mounted inside are
    skipped, as others may use what they have.
    """
    root = real_root()
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
    if is_below(real, root) and not any(f"{real}/".startswith(f"{path}/") for path in remote):
        yield from _walk_inside(place, depth, own)


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


# ---- what there is -------------------------------------------------------------------------------------------------


def _places() -> dict[str, list[Any]]:
    """Return which folder is at each of the places that the VM has. Raises Unclean."""
    found: dict[str, list[Any]] = {}
    for place in PLACES:
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


def _facts() -> dict[str, list[Any]]:
    """Return the facts of all files where programs leave some, by their paths below the root. Raises Unclean."""
    found: dict[str, list[Any]] = {}
    remote = mounts.elsewhere()
    for place, depth in PLACES.items():
        for path, status in walk(place, depth, remote):
            found[path] = _facts_of(path, status)
            if len(found) > MOST_FILES:
                raise Unclean(f"it has more than {MOST_FILES:,} files where programs may leave some")
    return found


def _facts_of(path: str, status: os.stat_result) -> list[Any]:
    """Return what is another if a file was changed, also one whose size and time were put back: the kernel alone writes
    the time of the last change of its facts."""
    owned = [status.st_mode, status.st_uid, status.st_gid]
    if stat.S_ISDIR(status.st_mode):  # whose size and times change with what is in it
        return owned
    if path in RENEWED:
        return [*owned, _content(path, status)]
    return [*owned, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _content(path: str, status: os.stat_result) -> str:
    full = os.path.join(bootstrap.root(), path)
    try:
        if stat.S_ISLNK(status.st_mode):
            return os.readlink(full)
        if not stat.S_ISREG(status.st_mode):
            return ""
        with open(os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return hashlib.sha256(file.read(LARGEST)).hexdigest()
    except OSError as error:
        raise Unclean(f"/{path} cannot be read: {error.strerror}") from None


def _code() -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of the system's programs and libraries. Raises Unclean."""
    count = 0
    for place in CODE:
        if not os.path.islink(os.path.join(bootstrap.root(), place)):  # else it is another of these
            for found in walk(place, DEEP):
                yield found
                count += 1
                if count > MOST_CODE:
                    raise Unclean(f"it has more than {MOST_CODE:,} files of the system")


# ---- what is another -----------------------------------------------------------------------------------------------


def _left(before: Files) -> set[str]:
    """Return what the job has left and may be removed. Raises Unclean for all else that is another."""
    now = _facts()
    new = [path for path in now if path not in before.facts and path not in OF_SYSTEM]
    changed = [path for path, facts in now.items() if before.facts.get(path, facts) != facts and path not in OF_SYSTEM]
    scratch = tuple(f"{place}/" for place in SCRATCH)
    if starters := [path for path in new if path.startswith(STARTERS) or OF_SESSIONS.fullmatch(path)]:
        raise Unclean(f"/{starters[0]} is new, by which the system may have started something")
    if spoilt := [path for path in changed if not path.startswith(scratch)]:
        raise Unclean(f"/{spoilt[0]} was changed")
    if gone := [path for path in before.facts if path not in now and not path.startswith((*scratch, "run/"))]:
        raise Unclean(f"/{gone[0]} was removed")
    if moved := [place for place, found in _places().items() if before.places.get(place) != found]:
        raise Unclean(f"/{moved[0]} {'was changed' if moved[0] in before.places else 'was not there before'}")
    if strange := [path for path in new if not _is_own(path)]:
        raise Unclean(f"/{strange[0]} is new, where only the system writes")
    return {*new, *changed}


def _is_own(path: str) -> bool:
    """Return True for what may be removed: in scratch, and inside of a home folder. Those themselves are accounts'."""
    inside = path.split("/")
    return any(path.startswith(f"{place}/") for place in SCRATCH) or len(inside) > {"root": 1, "home": 2}.get(
        inside[0], len(inside)
    )


def _check_unmounted(paths: set[str]) -> None:
    """Raise Unclean if something is mounted at or below one of these paths: it is not theirs."""
    root = real_root()
    for mount in mounts.mounted():
        words = os.path.relpath(mount.path, root).split("/")
        if held := paths & {"/".join(words[:count]) for count in range(1, len(words) + 1)}:
            raise Unclean(f"/{min(held)} cannot be removed: something is mounted in it")


def _remove(path: str, before: Files) -> None:
    """Remove what is at a path below one of the places, and never a place itself. Raises Unclean.

    It starts at the folder that was there before the first attempt, and opens each other one from the one above it.
    """
    place = next((one for one in (*SCRATCH, *HOMES) if one in before.places and path.startswith(f"{one}/")), "")
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
        if (status.st_dev, status.st_ino) != (device, number) or not is_below(real, real_root()):
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
