"""The common types of record stores: the results of their operations, valid names, and their errors.

The stores themselves are `files` (a folder) and `cloud` (a bucket); a host needs one of them.
"""

from __future__ import annotations

import errno
from collections import namedtuple

TYPE_CHECKING = False  # typing itself costs an agent a tenth of its start
if TYPE_CHECKING:
    from typing import Any

_NAME_LIMIT = 1024
_PART_LIMIT = 255

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than allowed here (see ulimit -f)",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted on this file system",
    errno.EIO: "the disk, or the network below it, failed",
    errno.ENOTDIR: "a part of the name is an object itself",
    errno.ENOENT: "the store's folder is gone",
    errno.ENOLCK: "the file system gives no locks",
    errno.EMFILE: "too many files are open in this process (see ulimit -n)",
}


class Record(namedtuple("Record", "data generation updated")):
    """The result of a read."""

    __slots__ = ()
    data: bytes
    generation: int
    updated: float


class Entry(namedtuple("Entry", "name size generation updated")):
    """An entry of a listing."""

    __slots__ = ()
    name: str
    size: int
    generation: int
    updated: float


class Signal(namedtuple("Signal", "name data generation updated")):
    """An entry of a listing of signals."""

    __slots__ = ()
    name: str
    data: bytes
    generation: int
    updated: float


class TooLarge(OSError):
    """An object of which nothing is read: none of this package's making has as many bytes under that name.

    `size`: how many it has, where that is known.
    """

    def __init__(self, name: str, store: str, limit: int, size: int | None = None) -> None:
        has = "" if size is None else f"{_amount(size)}, "
        super().__init__(
            errno.EFBIG,
            f"{name} (store {store}) is not read: it has {has}more than {_amount(limit)}, and nothing that this "
            "package has written there has as many, so somebody else has written it. Find out who can write there, "
            "and remove the object",
        )

    def __str__(self) -> str:
        return str(self.strerror)


def _amount(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size > 1e6 else f"{size:,} bytes"


class RecordsError(OSError):
    """The store refused. The message is a sentence; `errno` is the system's number."""

    def __str__(self) -> str:
        return str(self.strerror)


class Damaged(RecordsError):
    """An object whose bytes differ from the checksum that was stored with them, however often they are asked for."""


class Misconfigured(RecordsError):
    """The settings of this process lead to no store, or to one that refuses their key or what it may do: no other try
    helps."""

    cause = "configuration"  # of the end of a host that has no agent yet: wire's, which is not there


def reason_of(error: OSError) -> str:
    """The file system's reason for an error, in words."""
    return _REASONS.get(error.errno or 0) or error.strerror or str(error)


def check_name(name: str) -> None:
    """Raise ValueError unless every store can hold an object of that name."""
    for part in name.split("/"):
        if not part or part[0] == "." or len(part.encode()) > _PART_LIMIT:
            raise ValueError(
                f"{name!r} cannot be an object's name: each part between slashes has 1 to {_PART_LIMIT} "
                "bytes and begins with something else than a dot"
            )
    if "\\" in name or len(name.encode()) > _NAME_LIMIT or _has_control(name):
        raise ValueError(
            f"{name!r} cannot be an object's name: it has a backslash, a control character or more than "
            f"{_NAME_LIMIT} bytes"
        )


def read_bounded(records: Any, name: str) -> bytes | None:
    """Read a record; one that is damaged or too large is empty: it is there, and cannot be read."""
    try:
        record = records.read(name)
    except (Damaged, TooLarge):
        return b""
    return None if record is None else bytes(record.data)


def read_intact(records: Any, name: str, digest: str) -> bytes | None:
    """Return the content with that digest; None if there is none. Raises TooLarge."""
    from kinetic_orchestration.protocol.content.digest import of_bytes

    for _ in range(2 if records.may_corrupt else 1):
        try:
            record = records.read(name)
        except Damaged:
            return None
        if record is None:
            return None
        if of_bytes(record.data) == digest:
            return bytes(record.data)
    return None


def _has_control(name: str) -> bool:
    return not name.isprintable() and any(letter < " " or letter == "\x7f" for letter in name)
