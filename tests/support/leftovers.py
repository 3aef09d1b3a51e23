"""Processes of a home, wherever they are in the tree."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from kinetic_orchestration.protocol.system import processes


def processes_of(home: Path) -> list[processes.Process]:
    """The processes that have a placement of this home in their environment, or it in their command line."""
    return list(_of(home))


def left_in(home: Path, within: float) -> list[processes.Process]:
    """The same, once they had time to end. Two looks in a row find none: one that forks and ends in the middle of a look
    may be missed by it, and so may its child.
    """
    deadline, quiet = time.monotonic() + within, 0
    while True:
        left = processes_of(home)
        quiet = 0 if left else quiet + 1
        if quiet == 2 or time.monotonic() > deadline:
            return left
        if left:
            time.sleep(0.02)


def _of(folder: Path) -> Iterator[processes.Process]:
    wanted = f"KINETIC_PLACEMENT={folder}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        environ = processes.environ_of(int(entry))  # first: of one in the middle of an exec it waits for both
        try:
            arguments = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if any(each.startswith(wanted) for each in environ) or f"home={folder}".encode() in arguments.split(b"\0"):
            process = processes.find(int(entry))
            if process is not None and not process.zombie:
                yield process
