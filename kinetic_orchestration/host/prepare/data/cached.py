"""A folder of this machine that is filled once, by one process at a time, and shared by all readers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def cached(root: str, bring: Callable[[str, int], str], *, resumes: bool = False) -> str:
    """Return the path that `bring` returned when it filled this folder, now or earlier.

    Args:
        root: The folder.
        bring: Gets the folder, and the descriptor of a lock: a child process that keeps it open keeps others away.
        resumes: What an earlier call has left when it was killed is continued; else it is removed.
    """
    import fcntl
    import shutil

    os.makedirs(root, exist_ok=True)
    os.utime(root)  # also of one that was begun long ago: what is old is removed
    complete = os.path.join(root, "complete")
    with open(os.path.join(root, "lock"), "w", encoding="ascii") as lock:
        if not os.path.exists(complete):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(complete):
            if not resumes:
                shutil.rmtree(os.path.join(root, "content"), ignore_errors=True)
            path = os.path.relpath(bring(root, lock.fileno()), root)
            with open(complete + ".new", "w", encoding="utf-8") as file:
                file.write(path)
            os.replace(complete + ".new", complete)
    os.utime(root)
    with open(complete, encoding="utf-8") as file:
        return os.path.join(root, file.read() or "content")
