"""Copies of files on this machine's disk or in its memory, by their digests, which outlive the program that made them.

A copy is a hint: its reader verifies the digest that the bucket has, and discards a copy with another one. So nothing
is synced, and a file that a crash cut short costs a download. Does not know what is in the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from kinetic_orchestration.errors import UsageError
from kinetic_orchestration.host.prepare import tier as places
from kinetic_orchestration.protocol.system import kernel

Where = Literal["auto", "disk", "memory"] | None

SPARE = 64 << 20
SHARE = 10  # of a disk, one part in so many stays free, and room for one more file
OF_MEMORY = 4  # the free memory has to hold this many more files
SLOTS = 64  # programs of one machine that use a folder at once
OLD = 7 * 86400.0  # seconds after which a copy on a machine that others use is removed by any program that has one


def checked(where: Where) -> Where:
    """Return the option, if it is one. Raises UsageError."""
    if where not in ("auto", "disk", "memory", None):
        raise UsageError(
            f'tier is {where!r}: give "disk" or "memory" to keep a copy of the newest checkpoint on the machine, None '
            'for no copy, or "auto"'
        )
    return where


def root_of(where: Where, environ: Mapping[str, str]) -> str:
    """Return the machine's folder for copies; "" where none are kept. All hosts of a job have the same answer, but for
    the path."""
    if checked(where) is None or (where == "auto" and places.SHARED in environ):
        return ""
    return environ.get(places.MEMORY if where == "memory" else places.DISK, "")


def open_folder(where: Where, name: str, environ: Mapping[str, str], say: Callable[[str], None]) -> Folder | None:
    """Open a training's folder on this machine; None where there is none.

    Args:
        where: "auto": on the disk of a machine that has no other job.
        name: Name of the training.
        environ: Variables by which the agent of this host tells the places.
        say: Is told why there is none, if one was asked for, and what goes wrong later.
    """
    root = root_of(where, environ)
    if not root:
        if where not in ("auto", None):
            say(f'tier="{where}" keeps no copy of a checkpoint on this machine: {_reason(environ)}')
        return None
    try:
        return Folder(root, name, say, in_memory=where == "memory", shared=places.SHARED in environ)
    except OSError as error:
        say(f"no copy of a checkpoint is kept on this machine, whose {root} cannot be used: {error}")
        return None


def _reason(environ: Mapping[str, str]) -> str:
    if places.DISK in environ:
        return 'its memory is that of other jobs, too; tier="disk" keeps one'
    return "its disk goes with the job, as a pod's does"


class Folder:
    """The copies of one training that one program keeps, and those that earlier programs left beside them."""

    def __init__(
        self, root: str, name: str, say: Callable[[str], None], *, in_memory: bool = False, shared: bool = False
    ) -> None:
        """Raises OSError."""
        if not places.TRAINING.fullmatch(name):
            raise OSError(f"{name!r} is no name for a folder")
        self._say = say
        self.in_memory = in_memory
        self.shared = shared  # with other jobs, on a machine that stays
        self._is_full = False  # which is reported once
        self._root = os.path.join(root, name)
        for folder in (os.path.dirname(root), root, self._root):
            _make_private(folder)
        if shared:
            _remove_old(os.path.dirname(root), os.path.basename(root))
        self.folder, self._lock = self._take_slot()
        _remove(self.folder, lambda name: not places.COPY.fullmatch(name))  # left by a program that was killed

    def close(self) -> None:
        """Leave the copies to the next program."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ---- read --------------------------------------------------------------------------------------------------------

    def find(self, digest: str, size: int) -> str | None:
        """Return the path of a copy, which is not verified; one that is cut short is removed. A name that is no digest,
        which a bucket or another host may tell, is nowhere: it could lead out of the folder."""
        if not places.COPY.fullmatch(digest):
            return None
        for folder in self._folders():
            path = os.path.join(folder, digest)
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                if not stat.S_ISREG(found.st_mode):
                    continue
                if found.st_size == size:
                    return path
                os.unlink(path)
        return None

    def discard(self, path: str, why: object) -> None:
        """Remove a copy that was found here and is not what it should be."""
        folder, name = os.path.split(path)
        if folder in self._folders() and places.COPY.fullmatch(name):
            _unlink(path)
        self._say(f"a copy on this machine ({path}) is not what was written ({why}), and was removed")

    # ---- write -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """A path for a file that may become a copy."""
        descriptor, path = tempfile.mkstemp(prefix=places.NEW, dir=self.folder)
        os.close(descriptor)
        try:
            yield path
        finally:
            _unlink(path)

    def has_room(self, size: int, *, is_here: bool = False) -> bool:
        """Return True if there is room for one more file, and for the next; `is_here`: it is on the disk already."""
        disk = shutil.disk_usage(self.folder)
        if self.in_memory:
            enough = OF_MEMORY * size <= kernel.free_memory() and size + SPARE <= disk.free
        else:
            enough = (1 if is_here else 2) * size + SPARE + disk.total // SHARE <= disk.free
        if not enough and not self._is_full:
            self._is_full = True
            self._say(
                f"there is no room in {self._root} of this machine for a copy of the newest checkpoint, which is in "
                "the bucket alone"
            )
        return enough

    def take(self, path: str, digest: str) -> bool:
        """Take a file that its owner needs no longer, if there is room."""
        return self._kept(path, digest, os.replace)

    def link(self, path: str, digest: str) -> bool:
        """Keep a file that its owner goes on to use: by a link, or else by a copy of its bytes."""
        return self._kept(path, digest, os.link)

    def _kept(self, path: str, digest: str, move: Callable[[str, str], None]) -> bool:
        if not places.COPY.fullmatch(digest):
            return False
        target = os.path.join(self.folder, digest)
        try:
            size = os.stat(path).st_size
            is_here = move is os.link or os.stat(path).st_dev == os.stat(self.folder).st_dev
            if self.find(digest, size) is not None:
                return True
            if not self.has_room(size, is_here=is_here and not self.in_memory):
                return False
            try:
                move(path, target)
            except OSError:  # on another file system, or one without links
                with self.scratch() as copy:
                    shutil.copyfile(path, copy)
                    os.replace(copy, target)
        except OSError as error:
            self._say(f"no copy of the newest checkpoint is kept on this machine: {error}")
            return False
        return True

    def keep(self, digests: set[str]) -> None:
        """Remove all other copies of this program, and all of programs that are gone."""
        for folder in self._folders():
            if folder == self.folder:
                _remove(folder, lambda name: name not in digests and bool(places.COPY.fullmatch(name)))
                continue
            with contextlib.suppress(OSError), _locked(folder):
                _remove(folder, lambda name: name not in digests)

    def clear(self) -> None:
        """Make room: remove all copies of this program, and of those that are gone."""
        self.keep(set())

    # ---- the folders ---------------------------------------------------------------------------------------------

    def _take_slot(self) -> tuple[str, int]:
        for number in range(SLOTS):
            folder = os.path.join(self._root, f"slot-{number}")
            _make_private(folder)
            lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # a program that is alive has it
                os.close(lock)
                continue
            return folder, lock
        raise OSError(f"{SLOTS} programs of this machine use {self._root}")

    def _folders(self) -> list[str]:
        with contextlib.suppress(OSError):
            with os.scandir(self._root) as found:
                slots = sorted(
                    entry.path for entry in found
                    if places.SLOT.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                )  # fmt: skip
            return [self.folder, *(folder for folder in slots if folder != self.folder)]
        return [self.folder]


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of a folder. Raises OSError if a program has it."""
    lock = os.open(f"{folder}.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _make_private(folder: str) -> None:
    """Make a folder that nobody else can write to. Raises OSError if somebody else made it."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is not a folder of this user")
    if facts.st_mode & 0o022:
        os.chmod(folder, 0o700)


def _remove_old(root: str, own: str) -> None:
    """Remove what other jobs of this machine have not used for long."""
    folder = places.open_own(root)
    try:
        for name in os.listdir(folder):
            if name == own or not places.IDENTITY.fullmatch(name):
                continue
            with contextlib.suppress(OSError):
                used = [os.fstat(opened).st_mtime for *_, opened in os.fwalk(name, dir_fd=folder)]
                if used and max(used) < time.time() - OLD:
                    places.remove_folder(folder, name, places.OF_ROOT)
    finally:
        os.close(folder)


def _remove(folder: str, is_wanted: Callable[[str], bool]) -> None:
    """Remove from a slot the copies, and what was to become some, whose names are wanted. Nothing else is."""
    with contextlib.suppress(OSError):
        opened = places.open_own(folder)
        try:
            places.remove_ours(opened, places.OF_SLOT, {name for name in os.listdir(opened) if not is_wanted(name)})
        finally:
            os.close(opened)


def _unlink(path: str) -> None:
    """Remove a file, if it is there, and never a folder."""
    with contextlib.suppress(OSError):
        os.unlink(path)
