"""Data at an absolute path of this machine: a link, held by a lock for as long as a host needs it.

Hosts with the same data share a link. One with other data is refused while it is in use, and takes it over
otherwise. The last one removes it; after a crash the next one to want the path does.
"""

from __future__ import annotations

import fcntl
import hashlib
import os

ADVICE = "pass the Data as an argument instead, or choose another path"


class Taken(Exception):
    """The path cannot show this data."""


class Volume:
    """One link, from `mount` on until `release`, or until this process ends."""

    def __init__(self, home: str, path: str, source: str) -> None:
        self._path = path
        locks = os.path.join(home, "volumes")
        os.makedirs(locks, exist_ok=True)
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        self._lock = os.open(os.path.join(locks, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._mount(source)
        except BaseException:
            os.close(self._lock)
            raise

    def _mount(self, source: str) -> None:
        if _locked(self._lock, fcntl.LOCK_EX):
            self._link(source)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        if _target(self._path) != source:  # another host has it, or took it between the two locks
            raise Taken(f"the volume path {self._path} shows other data to another job on this machine: {ADVICE}")

    def _link(self, source: str) -> None:
        ours = os.pread(self._lock, 4096, 0) == os.fsencode(_target(self._path) or "/")
        if os.path.lexists(self._path) and not ours:
            raise Taken(f"the volume path {self._path} exists already and is not a link of ours: {ADVICE}")
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            if ours:
                os.unlink(self._path)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, os.fsencode(source), 0)
            os.symlink(source, self._path)
        except OSError as error:
            raise Taken(f"the volume path {self._path} cannot be made ({error.strerror}): {ADVICE}") from None

    def release(self) -> None:
        if _locked(self._lock, fcntl.LOCK_EX) and os.path.islink(self._path):
            os.unlink(self._path)
        os.close(self._lock)


def _locked(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
