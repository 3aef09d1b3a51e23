"""A folder of this machine that is filled once, by one process at a time, and shared by all readers."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from kinetic_orchestration.protocol.content.verified import boot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERY = 60.0  # seconds between two lines about what takes long
CONTENT, COMPLETE = "content", "complete"


def cached(
    root: str,
    bring: Callable[[str, int], str],
    *,
    what: str,
    note: Callable[[str], object],
    resumes: bool = False,
) -> str:
    """Return the path that `bring` returned when it filled this folder, now or earlier in this run of the kernel.

    After a power cut a file may have its name and its size, and not its bytes. So what was brought before this machine
    started counts as not brought, instead of waiting until a disk has all bytes whenever something is brought.

    Args:
        root: The folder.
        bring: Gets the folder, and the descriptor of a lock: a child process that keeps it open keeps others away.
        what: The name of the content in a line.
        note: Is told, once a minute, what is waited for.
        resumes: `bring` verifies and continues what is there. Else that is removed: before it is called, and at once if
            it fails, since the next job may need the room.
    """
    import fcntl
    import shutil

    os.makedirs(root, exist_ok=True)
    os.utime(root)  # also of one that was begun long ago: what is old is removed
    content = os.path.join(root, CONTENT)
    with open(os.path.join(root, "lock"), "w", encoding="ascii") as lock:
        path = _brought(root)
        if path is None:
            with _telling(
                note, lambda passed: f"{what} is waited for since {passed}: another host of this machine brings it"
            ):
                fcntl.flock(lock, fcntl.LOCK_EX)
            path = _brought(root)
        if path is None:
            if not resumes:
                shutil.rmtree(content, ignore_errors=True)
            try:
                with _telling(note, _Progress(what, root).sentence):
                    path = os.path.relpath(bring(root, lock.fileno()), root)
            except BaseException:
                if not resumes:
                    shutil.rmtree(content, ignore_errors=True)
                raise
            complete = os.path.join(root, COMPLETE)
            with open(complete + ".new", "w", encoding="utf-8") as file:
                file.write(f"{boot_of(root)}\n{path}")
            os.replace(complete + ".new", complete)
    os.utime(root)
    return os.path.join(root, path)


def _brought(root: str) -> str | None:
    """Return where the content is, below its folder; None if it was not brought since this machine started."""
    try:
        with open(os.path.join(root, COMPLETE), encoding="utf-8") as file:
            boot, line, path = file.read().partition("\n")
    except (FileNotFoundError, ValueError):
        return None
    return path if line and boot in ("", boot_of(root)) else None


class _Progress:
    """Measures what a folder has, at one moment after another."""

    def __init__(self, what: str, root: str) -> None:
        self._what = what
        self._root = root
        self._had = 0

    def sentence(self, passed: str) -> str:
        had, self._had = self._had, _size_of(self._root)
        return (
            f"{self._what} has been coming for {passed}: {self._had / 1e6:,.1f} MB are on the disk, "
            f"{max(0, self._had - had) / 1e6:,.1f} MB more than at the line before"
        )


def _size_of(root: str) -> int:
    found = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):  # moved to its place just now
                found += os.lstat(os.path.join(folder, name)).st_size
    return found


@contextlib.contextmanager
def _telling(note: Callable[[str], object], sentence: Callable[[str], str]) -> Iterator[None]:
    """Note a sentence, of which the time that has passed is a part, again and again while the block lasts."""
    import threading

    over, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(EVERY):
            with contextlib.suppress(OSError):  # of the log: whoever waits goes on
                note(sentence(f"{time.monotonic() - began:,.0f} s"))

    thread = threading.Thread(target=tell, name="kinetic-waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
