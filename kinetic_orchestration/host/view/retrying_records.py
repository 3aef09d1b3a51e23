"""The record store on files, for those who must not give up at once: asked again while it refuses for a moment."""

from __future__ import annotations

import contextlib
import errno
import time
from _thread import allocate_lock
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic_orchestration.protocol.records.files import FileRecords

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic_orchestration.protocol.records.base import Record

_T = TypeVar("_T")

STORE_PATIENCE = 60.0
FULL = (errno.ENOSPC, errno.EDQUOT)
PASSING = (
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOLCK, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT,
    errno.EAGAIN,
)  # fmt: skip


class RetryingRecords(FileRecords):
    """File records that retry while the file system refuses for a moment: a job is worth more than a minute.

    `waits` is told when the disk turns out to be full, and when there was room again for all that its threads write.
    """

    waits: Callable[[bool], None] | None = None

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._waiting = 0  # threads
        self._lock = allocate_lock()

    def create(self, name: str, data: bytes | bytearray | memoryview) -> int | None:
        return self._again(super().create, name, data)

    def put(self, name: str, data: bytes | bytearray | memoryview) -> int:
        return self._again(super().put, name, data)

    def read(self, name: str, start: int = 0, end: int | None = None, *, limit: int | None = None) -> Record | None:
        return self._again(super().read, name, start, end, limit=limit)

    def append(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._again(super().append, name, data)

    def upload(self, name: str, path: str, *, move: bool = False) -> bool:
        try:
            return self._again(super().upload, name, path, move=move)
        except FileNotFoundError:
            if self.local_path(name) is None:
                raise
            return True  # moved by an earlier try whose answer was lost

    def _again(self, verb: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        deadline, pause, full = 0.0, 0.02, False
        while True:
            try:
                done = verb(*arguments, **options)
            except OSError as error:
                now = time.monotonic()
                deadline = deadline or now + STORE_PATIENCE
                if error.errno in FULL and not full:
                    full = True
                    self._count(1)
                if error.errno not in PASSING or now > deadline:
                    if full:
                        self._count(-1, gave_up=True)
                    raise
            else:
                if full:
                    self._count(-1)
                return done
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _count(self, more: int, *, gave_up: bool = False) -> None:
        """Count the threads that wait for room, and report the first and the last. One that gave up does not withdraw
        the report.
        """
        with self._lock:
            self._waiting += more
            if self.waits is not None and not gave_up and self._waiting == max(0, more):
                with contextlib.suppress(OSError):
                    self.waits(more > 0)
