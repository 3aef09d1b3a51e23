"""The store on this machine's file system: the agent's record store, with error messages for users.

It owns the check, once per folder, that the file system gives a store's guarantees. It does not know the objects.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kinetic_orchestration.errors import StoreError, UsageError
from kinetic_orchestration.platforms.shared import owner_stamp
from kinetic_orchestration.platforms.store import too_large
from kinetic_orchestration.protocol import names
from kinetic_orchestration.protocol.records.base import Entry, Record, reason_of
from kinetic_orchestration.protocol.records.files import Bell, FileRecords

_ELSEWHERE = "put the store elsewhere with KINETIC_STORE (or all of Kinetic's files with KINETIC_HOME)"
_NEXT = {
    errno.ENOSPC: f"Free some space there, or {_ELSEWHERE}.",
    errno.EDQUOT: f"Free some of your quota, or {_ELSEWHERE}.",
    errno.EROFS: f"To go on, {_ELSEWHERE}.",
    errno.EACCES: f"Make the folder writable for this user, or {_ELSEWHERE}.",
    errno.EPERM: f"Make the folder writable for this user, or {_ELSEWHERE}.",
    errno.EIO: f"Look at the system's log (dmesg), or {_ELSEWHERE}.",
    errno.ENOLCK: f"Mount it with locks, or {_ELSEWHERE}.",
}


class LocalStore(FileRecords):
    """A `Store` under one folder of this machine."""

    caller: object = None
    trusted = True
    metered = False
    parallel = 1

    def __init__(self, root: str, deployment: str) -> None:
        super().__init__(root)
        self.url = self.folder = self.address = self.root
        self.deployment = deployment

    def too_large(self, name: str, limit: int, size: int | None = None) -> Exception:
        return too_large(name, self.url, limit, size)

    def bell(self) -> Bell | None:
        return Bell(self)

    def read_all(self, names: Sequence[str]) -> list[Record | None]:
        return [self.read(name) for name in names]

    def list(self, prefix: str, *, last: str = "") -> Iterator[Entry]:
        return (entry for entry in super().list(prefix) if not last or entry.name.endswith(f"/{last}"))

    def find(self, name: str) -> Entry | None:
        record = super().read(name, 0, 0)
        path = self.local_path(name) if record is not None else None
        if record is None or path is None:
            return None
        try:
            return Entry(name, os.stat(path).st_size, record.generation, record.updated)
        except FileNotFoundError:
            return None

    def renew(self, name: str) -> bool:
        path = self.local_path(name)
        if path is None:
            return False
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self.refusal(error, "write", name) from error
        return True

    def hint(self, name: str, data: bytes) -> bool:
        try:
            self.signal(name, data)
        except (OSError, StoreError):
            return False
        return True

    def written_at(self, name: str, generation: int) -> float:
        return generation / 1e9

    def refusal(self, error: OSError, verb: str, name: str, reason: str = "") -> Exception:
        message = str(super().refusal(error, verb, name, reason))
        advice = "" if reason else _NEXT.get(error.errno or 0, "")
        return StoreError(f"{message} {advice}".rstrip())


def open_local(path: str | os.PathLike[str], deployment: str) -> LocalStore:
    """The store of one deployment under `path`, made and checked if it is new."""
    if sys.platform == "win32":
        raise UsageError(
            "The local store needs hard links and file locks as Linux and macOS have them. On Windows, work in WSL 2."
        )
    owner_stamp.check_deployment(deployment)
    base = Path(path).expanduser().absolute()
    root = str(base / deployment)
    _make(root)
    store = LocalStore(root, deployment)
    record = store.read(names.DEPLOYMENT)
    if record is None:
        check_guarantees(root)
        store.create(names.DEPLOYMENT, owner_stamp.new(deployment, store.now(), _fingerprint(root)))
        record = store.read(names.DEPLOYMENT)
    fields = owner_stamp.settle(store, root, record, deployment, _fingerprint(root))
    if fields.get("checked") != _fingerprint(root):  # the folder was copied here, or another machine checked it
        check_guarantees(root)
    return store


def check_guarantees(root: str) -> None:
    """Raise StoreError unless the file system under `root` keeps what the records rest on."""
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    inside, beside = f"{root}/.tmp/probe-{mark}", f"{root}/.probe-{mark}"
    try:
        Path(inside).parent.mkdir(exist_ok=True)
        for promise, check in _PROMISES.items():
            try:
                kept, why = check(inside, beside), ""
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO):
                    raise
                kept, why = False, f" ({error.strerror})"
            if not kept:
                raise StoreError(
                    f"The file system under {root} cannot keep a store: {promise}{why}. Put the store on a "
                    "local disk or on NFS with KINETIC_STORE (or all of Kinetic's files with KINETIC_HOME)."
                )
    except OSError as error:
        raise _refused(root, error) from error
    finally:
        for left in (inside, beside):
            Path(left).unlink(missing_ok=True)


def _links_are_exclusive(inside: str, beside: str) -> bool:
    Path(inside).write_bytes(b"1")
    os.link(inside, beside)
    try:
        os.link(inside, beside)
    except FileExistsError:
        return True
    return False


def _renames_replace(inside: str, beside: str) -> bool:
    Path(inside).unlink()
    Path(inside).write_bytes(b"2")
    Path(inside).rename(beside)
    return Path(beside).read_bytes() == b"2" and not Path(inside).exists()


def _times_are_exact(inside: str, beside: str) -> bool:
    exact = 1_700_000_000_123_456_789
    os.utime(beside, ns=(exact, exact))
    return Path(beside).stat().st_mtime_ns == exact


def _locks_exclude(inside: str, beside: str) -> bool:
    import fcntl

    # A lock of this kind belongs to the open file, so a second opening stands for another process.
    with Path(beside).open("r+b") as ours, Path(beside).open("r+b") as theirs:
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(ours, fcntl.LOCK_UN)
            fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


_PROMISES: dict[str, Callable[[str, str], bool]] = {
    "a hard link cannot be made there, or does not refuse a name that is taken": _links_are_exclusive,
    "a rename there does not replace a file": _renames_replace,
    "it does not keep a file's time to the nanosecond": _times_are_exact,
    "its locks do not exclude anybody": _locks_exclude,
}


def _make(root: str) -> None:
    try:
        # Results are unpickled from here, so no other user may write; a folder made for a team stays as it is.
        os.makedirs(root, mode=0o700, exist_ok=True)
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            with open(f"{root}/.probe-{os.getpid()}", "xb") as file:  # noqa: PTH123 - for the system's own reason
                Path(file.name).unlink()
    except OSError as error:
        raise _refused(root, error) from error


def _refused(root: str, error: OSError) -> StoreError:
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return StoreError(
            f"Cannot keep a store in {root}: a part of that path is a file. Name a folder with KINETIC_STORE."
        )
    advice = _NEXT.get(error.errno or 0, f"To go on, {_ELSEWHERE}.")
    return StoreError(f"Cannot keep a store in {root}: {reason_of(error)}. {advice}")


def _fingerprint(root: str) -> str:
    found = os.stat(root)
    return f"{found.st_dev}:{found.st_ino}"
