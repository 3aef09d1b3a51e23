"""Remembers which large files of this user were hashed, so that each is hashed once and not at every map.

A file is what it was hashed as if it still is the same inode with the same size, mode and times: the kernel sets the
time of the last change (ctime) at each change, and no program can. This is believed of a file of this user, under one
name, in a home that only this user may enter and in folders that only this user may write; on a file system of this
machine; in the same run of the kernel, since after a power cut a file may have its times and not its bytes; and once
the file was left alone for longer than a tick. Of all else nothing is known: it is hashed.

Responsible for the record and for when it counts. Knows nothing of what is in the files, and does not notice a disk
that decays: `kinor doctor --verify` does.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from kinetic_orchestration.protocol.content.digest import LARGE
from kinetic_orchestration.protocol.content.file_stamps import LOCAL_TICK, believable, settled, stamp_of
from kinetic_orchestration.protocol.system import kernel
from kinetic_orchestration.protocol.system.folders import is_private

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    from typing import Any

    from kinetic_orchestration.protocol.content.file_stamps import Stamp

FOLDER = "verified"
MOST = 1000  # records, before those of files that are gone are removed
_SPEED = 2 << 30  # bytes that two cores hash in a second
_LARGEST = 8 << 10  # of a record: its words and a path
# This kernel keeps their times itself: a server's may be outdated by caching, and are of another clock.
_LOCAL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})


class Verified:
    """The record of one home: a small file for each inode."""

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self._home = os.path.realpath(home)
        self._folder = os.path.join(self._home, FOLDER)

    def knows(self, path: str | os.PathLike[str], file: int, digest: str) -> bool:
        """Return True if an open file is known to have that digest. For one that was changed just now it waits until
        its times are reliable, if that takes less time than hashing it.
        """
        try:
            found = os.fstat(file)
            if found.st_size < LARGE or not self._is_own(path, found):
                return False
            if not self._read(found).startswith(self._words(found, digest)):
                return False
            stamp = stamp_of(found)
            wait = (settled(stamp, LOCAL_TICK) - time.time_ns()) / 1e9
            if wait > found.st_size / _SPEED:
                return False
            if wait >= 0:
                time.sleep(wait + 0.001)
            return stamp_of(os.fstat(file)) == stamp == believable(stamp, time.time_ns(), LOCAL_TICK)
        except OSError:
            return False

    def read(self, path: str | os.PathLike[str], file: int, digest: str, before: Stamp, began: int) -> None:
        """Remember an open file that was found to have that digest; `before`: its stamp when that began."""
        with contextlib.suppress(OSError):
            found = os.fstat(file)
            if stamp_of(found) == before == believable(before, began, LOCAL_TICK):
                self._write(path, found, digest)

    def wrote(self, path: str | os.PathLike[str], digest: str, inode: tuple[int, int, int]) -> None:
        """Remember a file whose bytes were hashed on their way into it, `_inode` of which was that."""
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if _inode(found) == inode:
                self._write(path, found, digest)

    def prune(self) -> None:
        """Remove the records of files that are gone or others by now."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                record = os.path.join(self._folder, name)
                with contextlib.suppress(OSError):
                    with open(record, "rb") as file:
                        words, _, path = file.read(_LARGEST).partition(b"\n")
                    try:
                        is_stale = not words.startswith(self._words(os.lstat(path), ""))
                    except (FileNotFoundError, NotADirectoryError, ValueError):
                        is_stale = True
                    if is_stale:
                        os.unlink(record)

    def _is_own(self, path: str | os.PathLike[str], found: os.stat_result) -> bool:
        if not kernel.boot() or not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            return False
        real = os.path.realpath(path)
        return (
            is_private(real, self._home)
            and os.path.samestat(os.lstat(real), found)
            and kernel.file_system(real) in _LOCAL
        )

    def _words(self, found: os.stat_result, digest: str) -> bytes:
        """The content of a record of a file with that digest. The digest comes last."""
        return " ".join(map(str, (kernel.boot(), found.st_dev, *stamp_of(found), digest))).encode()

    def _record(self, found: os.stat_result) -> str:
        return os.path.join(self._folder, f"{found.st_dev}-{found.st_ino}")

    def _read(self, found: os.stat_result) -> bytes:
        record = self._record(found)
        if not is_private(record, self._home):
            return b""
        file = os.open(record, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return os.read(file, _LARGEST) if os.fstat(file).st_uid == os.geteuid() else b""
        finally:
            os.close(file)

    def _write(self, path: str | os.PathLike[str], found: os.stat_result, digest: str) -> None:
        if found.st_size < LARGE or not self._is_own(path, found):
            return
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        record = self._record(found)
        temporary = f"{record}.{os.urandom(4).hex()}"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, self._words(found, digest) + b"\n" + os.fsencode(os.path.realpath(path)))
            os.rename(temporary, record)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(file)
        if len(os.listdir(self._folder)) > MOST:
            self.prune()


def deliver(records: Any, name: str, path: str, digest: str, home: str | os.PathLike[str]) -> bool:
    """Move a file that was hashed while it was written into a store on this file system, and remember it; False if
    another writer was first.
    """
    inode = _inode(os.lstat(path))
    won: bool = records.upload(name, path, move=True)
    if won and digest and inode[2] >= LARGE and (there := records.local_path(name)) is not None:
        Verified(home).wrote(there, digest, inode)
    return won


def _inode(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, found.st_size


def boot_of(path: str) -> str:
    """Return the id of this boot of the kernel if a path is on a file system of this machine; "" if unknown, or not."""
    return kernel.boot() if kernel.file_system(os.path.realpath(path)) in _LOCAL else ""
